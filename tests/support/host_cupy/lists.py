"""A chunk backend of plain Python lists: sums, scans and counts of one kind, and no more.

In CuPy's place, lists are on the GPU.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest

from dask_coop.algebra.bins import BinSpec, Grid, Integers
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.merges import settle
from dask_coop.algebra.monoids import COMPENSATED_SUM, COUNTS, SUM, State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks import ChunkBackend, backend
from dask_coop.chunks.files import Direct
from dask_coop.chunks.one_by_one import downsweep as downsweep
from dask_coop.chunks.one_by_one import histogram_all as histogram_all
from dask_coop.chunks.one_by_one import join as join
from dask_coop.chunks.one_by_one import lift_all as lift_all
from dask_coop.chunks.one_by_one import most_joined as most_joined
from dask_coop.chunks.one_by_one import multiply_deviations as multiply_deviations
from dask_coop.chunks.one_by_one import synchronize as synchronize
from dask_coop.chunks.one_by_one import upsweep as upsweep
from dask_coop.chunks.states import as_lines

#: The copies that were made, where lists take CuPy's place: where to, and what else was said of it.
copies: list[tuple[Any, ...]] = []


def _binary(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    return lambda a, b: ufunc(a, b)


class ListArray:
    """The elements of an array in C order, in a list."""

    def __init__(self, values: list[Any], shape: tuple[int, ...], dtype: Any) -> None:
        self.values, self.shape, self.dtype = values, shape, np.dtype(dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def positions(self) -> np.ndarray[Any, Any]:
        """Where each element is in the list."""
        return np.arange(len(self.values)).reshape(self.shape)

    def __getitem__(self, index: Any) -> ListArray:
        part = self.positions[index]
        return ListArray([self.values[i] for i in part.flat], part.shape, self.dtype)

    def astype(self, dtype: Any) -> ListArray:
        return listed(plain(self).astype(dtype))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Do what dask_coop asks for a meta, and Dask to put chunks together."""
        return _FUNCTIONS[function](*args, **kwargs) if function in _FUNCTIONS else NotImplemented

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Do arithmetic, and with NumPy's arrays none, as CuPy."""
        if any(isinstance(x, np.ndarray) and x.ndim for x in inputs) or options:
            return NotImplemented
        arrays = [plain(x) if isinstance(x, ListArray) else x for x in inputs]
        return listed(np.asarray(getattr(ufunc, method)(*arrays)))

    __add__, __sub__, __mul__ = map(_binary, (np.add, np.subtract, np.multiply))


def _zeros_like(x: ListArray, dtype: Any, shape: tuple[int, ...]) -> ListArray:
    return listed(np.zeros(shape, dtype))


def _concatenate(parts: Sequence[ListArray], axis: int = 0) -> ListArray:
    return listed(np.concatenate([plain(part) for part in parts], axis))


def _broadcast_to(x: ListArray, shape: tuple[int, ...], **_: Any) -> ListArray:
    return listed(np.broadcast_to(plain(x), shape))


_FUNCTIONS: dict[Any, Callable[..., ListArray]] = {
    np.broadcast_to: _broadcast_to,
    np.zeros_like: _zeros_like,
    np.concatenate: _concatenate,
}


def to_numpy(
    x: ListArray, nbytes: int | None = None, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    copies.append(("host", nbytes))
    array = plain(x)
    if out is None:
        return array
    out[...] = array
    return out


def from_numpy(
    x: np.ndarray[Any, Any], nbytes: int | None = None, direct: Direct = "auto"
) -> ListArray:
    copies.append(("GPU", nbytes, direct))
    return listed(x)


def plain(x: ListArray) -> np.ndarray[Any, Any]:
    return np.array(x.values, x.dtype).reshape(x.shape)


def listed(x: np.ndarray[Any, Any]) -> ListArray:
    return ListArray(x.reshape(-1).tolist(), x.shape, x.dtype)


def lift(
    op: Operation, x: ListArray, axes: tuple[int, ...], where: ListArray | None = None
) -> State:
    if op.monoid not in (SUM, COMPENSATED_SUM) or where is not None:
        raise _missing(f"{op.monoid.name} with where={where}")
    lines = as_lines(x.positions, axes)
    kept = lines.shape[:-1]
    state = tuple(np.full(kept, value) for value in op.monoid.identity(op.element))
    for line in np.ndindex(kept):
        total = op.monoid.identity(op.element)
        for i in lines[line]:
            total = op.monoid.combine(total, _one(op, x.values[i]))
        for field, value in zip(state, total, strict=True):
            field[line] = value
    return tuple(field[()] for field in state)


def scan(
    op: Operation,
    x: ListArray,
    spec: ScanSpec,
    base: State | None = None,
    heads: ListArray | None = None,
) -> ListArray:
    if op.monoid not in (SUM, COMPENSATED_SUM) or spec != ScanSpec(spec.axis) or heads is not None:
        raise _missing(f"a scan by {op.monoid.name} with {spec} and heads={heads}")
    lines = as_lines(x.positions, (spec.axis,))
    values = [*x.values]
    for line in np.ndindex(lines.shape[:-1]):
        total = op.monoid.identity(op.element)
        if base is not None:
            total = tuple(field[line] for field in base)
        for i in lines[line]:
            total = op.monoid.combine(total, _one(op, x.values[i]))
            (values[i],) = settle(total) if op.monoid is COMPENSATED_SUM else total
    return listed(np.array(values, op.output).reshape(x.shape))


def histogram(
    op: Operation,
    samples: Sequence[ListArray],
    grid: BinSpec,
    weights: ListArray | None,
) -> State:
    others = op.monoid is not COUNTS or weights is not None
    if others or isinstance(grid, Integers | Digits) or grid != Grid(grid.bins[:1]):
        raise _missing(f"{op.monoid.name} into {grid} with weights={weights}")
    edges = grid.bins[0].edges.tolist()
    (dtype,) = op.monoid.dtypes(op.element)
    table = np.zeros(grid.shape, dtype)
    for value in samples[0].values:
        if edges[0] <= value <= edges[-1]:
            # The last bin has its right edge, too.
            table[min(bisect_right(edges, value), len(table)) - 1] += 1
    return (table,)


def _missing(what: str) -> NotImplementedError:
    return NotImplementedError(f"chunks of lists have no {what}")


def _lacking(name: str) -> Any:
    """Return a function that lists do not have."""

    def fail(*args: Any, **kwargs: Any) -> NoReturn:
        raise _missing(name)

    return fail


scan_on, lift_segments = map(_lacking, ("scan_on", "lift_segments"))
codes, lift_groups = map(_lacking, ("codes", "groups"))
digitize, collect, compress = map(_lacking, ("digitize", "collect", "compress"))
flatnonzero, merge_distinct = map(_lacking, ("flatnonzero", "merge_distinct"))
positions, isin, searchsorted = map(_lacking, ("positions", "isin", "searchsorted"))
move, transpose, matmul = map(_lacking, ("move", "transpose", "matmul"))
label = _lacking("label")
filter_lines = _lacking("lfilter")
sort, argsort, order_statistics = map(_lacking, ("sort", "argsort", "order_statistics"))
merge_sorted = sort


def _one(op: Operation, value: Any) -> State:
    """Return the state of one element."""
    first, *rest = op.monoid.identity(op.element)
    return (first.dtype.type(value), *rest)


def _scan_on(
    op: Operation, x: ListArray, spec: ScanSpec, base: State | None = None, heads: Any = None
) -> tuple[ListArray, State]:
    state = lift(op, x, (spec.axis,))
    behind = state if base is None else op.monoid.combine(base, state)
    return scan(op, x, spec, base, heads), behind


@contextmanager
def in_cupys_place() -> Iterator[None]:
    """Have ListArray be CuPy's class."""
    row = backend.BackendRow("cupy", (backend.class_name(ListArray),), __name__)
    copies.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backend.BACKENDS, "cupy", row)
        patch.setitem(globals(), "scan_on", _scan_on)
        backend._find.cache_clear()
        yield
    backend._find.cache_clear()


if TYPE_CHECKING:
    from support.host_cupy import lists

    _: ChunkBackend = lists
