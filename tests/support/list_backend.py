"""A chunk backend of plain Python lists: sums, scans and counts of one kind, and no more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dask_coop.algebra.bins import BinSpec, Grid, Integers, Steps
from dask_coop.algebra.compensated import settle
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.monoids import COMPENSATED_SUM, COUNTS, SUM, State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.strategies import AUTO
from dask_coop.algebra.windows import Window
from dask_coop.chunks import ChunkBackend
from dask_coop.chunks.backend import Side
from dask_coop.chunks.distinct import Distinct
from dask_coop.chunks.files import Direct
from dask_coop.chunks.one_by_one import (
    downsweep,
    histogram_all,
    lift_all,
    synchronize,
    upsweep,
)
from dask_coop.chunks.states import as_lines

__all__ = [
    "ListArray",
    "argsort",
    "collect",
    "compress",
    "digitize",
    "downsweep",
    "flatnonzero",
    "from_numpy",
    "histogram",
    "histogram_all",
    "isin",
    "lift",
    "lift_all",
    "lift_groups",
    "lift_segments",
    "matmul",
    "merge_distinct",
    "move",
    "order_statistics",
    "positions",
    "scan",
    "scan_on",
    "searchsorted",
    "sort",
    "synchronize",
    "to_numpy",
    "transpose",
    "upsweep",
]


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
        return from_numpy(to_numpy(self).astype(dtype))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Do what dask_coop asks for a meta, and Dask to put chunks together."""
        return _FUNCTIONS[function](*args, **kwargs) if function in _FUNCTIONS else NotImplemented

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Do arithmetic, and with NumPy's arrays none, as CuPy."""
        if any(isinstance(x, np.ndarray) and x.ndim for x in inputs) or options:
            return NotImplemented
        arrays = [to_numpy(x) if isinstance(x, ListArray) else x for x in inputs]
        return from_numpy(np.asarray(getattr(ufunc, method)(*arrays)))

    __add__, __sub__, __mul__ = map(_binary, (np.add, np.subtract, np.multiply))


def _zeros_like(x: ListArray, dtype: Any, shape: tuple[int, ...]) -> ListArray:
    return from_numpy(np.zeros(shape, dtype))


def _concatenate(parts: Sequence[ListArray], axis: int = 0) -> ListArray:
    return from_numpy(np.concatenate([to_numpy(part) for part in parts], axis))


def _broadcast_to(x: ListArray, shape: tuple[int, ...], **_: Any) -> ListArray:
    return from_numpy(np.broadcast_to(to_numpy(x), shape))


_FUNCTIONS: dict[Any, Callable[..., ListArray]] = {
    np.broadcast_to: _broadcast_to,
    np.zeros_like: _zeros_like,
    np.concatenate: _concatenate,
}


def to_numpy(
    x: ListArray, nbytes: int | None = None, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    array = np.array(x.values, x.dtype).reshape(x.shape)
    if out is None:
        return array
    out[...] = array
    return out


def from_numpy(
    x: np.ndarray[Any, Any], nbytes: int | None = None, direct: Direct = "auto"
) -> ListArray:
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
    return from_numpy(np.array(values, op.output).reshape(x.shape))


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


def scan_on(
    op: Operation,
    x: ListArray,
    spec: ScanSpec,
    base: State | None = None,
    heads: ListArray | None = None,
) -> NoReturn:
    raise _missing("scan_on")


def lift_groups(ops: Sequence[Operation], x: ListArray, codes: Any, n: int) -> NoReturn:
    raise _missing("groups")


def lift_segments(op: Operation, x: ListArray, spec: ScanSpec, heads: ListArray) -> NoReturn:
    raise _missing("lift_segments")


def digitize(x: ListArray, steps: Steps) -> NoReturn:
    raise _missing("digitize")


def collect(x: ListArray, digits: Digits) -> NoReturn:
    raise _missing("collect")


def compress(x: ListArray, mask: ListArray) -> NoReturn:
    raise _missing("compress")


def flatnonzero(x: ListArray) -> NoReturn:
    raise _missing("flatnonzero")


def merge_distinct(monoid: Distinct, states: Sequence[State]) -> NoReturn:
    raise _missing("merge_distinct")


def positions(values: ListArray, x: ListArray) -> NoReturn:
    raise _missing("positions")


def isin(x: ListArray, values: ListArray) -> NoReturn:
    raise _missing("isin")


def searchsorted(a: ListArray, v: ListArray, side: Side) -> NoReturn:
    raise _missing("searchsorted")


def move(window: Window, x: ListArray, halo: ListArray, base: State | None = None) -> NoReturn:
    raise _missing("move")


def transpose(x: ListArray, axes: Sequence[int] | None = None, strategy: str = AUTO) -> NoReturn:
    raise _missing("transpose")


def sort(x: ListArray, axis: int, stable: bool) -> NoReturn:
    raise _missing("sort")


def argsort(x: ListArray, axis: int, stable: bool) -> NoReturn:
    raise _missing("argsort")


def matmul(
    a: ListArray, b: ListArray, semiring: str = "plus_times", strategy: str = AUTO
) -> NoReturn:
    raise _missing("matmul")


def order_statistics(x: ListArray, axes: tuple[int, ...], ranks: Any) -> NoReturn:
    raise _missing("order_statistics")


def _one(op: Operation, value: Any) -> State:
    """Return the state of one element."""
    first, *rest = op.monoid.identity(op.element)
    return (first.dtype.type(value), *rest)


def _missing(what: str) -> NotImplementedError:
    return NotImplementedError(f"chunks of lists have no {what}")


if TYPE_CHECKING:
    from support import list_backend

    _: ChunkBackend = list_backend
