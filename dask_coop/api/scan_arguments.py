"""What every scan does with its arguments, and the call of the spine."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, handle_out
from dask.array.creation import empty_like
from dask.array.utils import validate_axis

from dask_coop.algebra.monoids import Monoid
from dask_coop.algebra.operation import Operation, bind, compensated
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.api.arguments import rechunk, require_one_kind
from dask_coop.graph import scan as graph_scan

METHODS = ("reduce-then-scan", "blelloch", "sequential", "recompute")


class ScanArguments(NamedTuple):
    """The arguments of a scan besides elements and dtypes, as the public function got them."""

    axis: int | None
    out: da.Array | None
    method: str
    exclusive: bool
    reverse: bool
    include_initial: bool
    segments: Any


def scan_array(
    monoid: Monoid,
    name: str,
    x: da.Array,
    element: np.dtype[Any],
    output: np.dtype[Any],
    given: ScanArguments,
    *,
    skipna: bool = False,
    times: str = "",
) -> da.Array:
    """Scan `x` by the arguments of the public function `name`.

    Parameters
    ----------
    monoid : Monoid
        With one field.
    name : str
        What messages and keys call the scan.
    x : dask.array.Array
    element, output : dtype
        What elements are taken as, and the dtype of the result.
    given : ScanArguments
    skipna : bool
        Whether elements that are NaN are left out.
    times : str
        The kinds of dates and durations that `name` takes.
    """
    op = compensated(bind(monoid, element, output, name, skipna, times))
    return scan_bound(op, name, x, given)


def scan_bound(op: Operation, name: str, x: da.Array, given: ScanArguments) -> da.Array:
    """Do what `scan_array` does, by an operation."""
    axis, out, method, exclusive, reverse, include_initial, segments = given
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if exclusive and include_initial:
        raise ValueError("exclusive and include_initial exclude one another")
    marks = None if segments is None else _bool_chunks(segments, x)
    if axis is None:
        flat, axis = _flatten(x), 0
        if marks is not None and _fits(marks, x):
            marks = _flatten(marks)
    else:
        if not isinstance(axis, Integral):
            raise TypeError(
                f"{name} takes one axis, an integer, or None for the flattened array, got {axis!r}"
            )
        axis = validate_axis(axis, x.ndim)
        flat = x
    if marks is not None:
        marks = _align(marks, flat, axis)
    spec = ScanSpec(axis, bool(exclusive), bool(reverse), bool(include_initial))
    source = flat, marks
    if method == "sequential":
        return handle_out(out, graph_scan.chain(op, spec, source, name))
    return handle_out(out, graph_scan.scan(op, spec, source, name, method == "recompute"))


def _bool_chunks(segments: Any, x: da.Array) -> da.Array:
    marks = asanyarray(segments)
    if marks.dtype != np.dtype("?"):
        raise TypeError(f"segments must be of dtype bool, got {marks.dtype}")
    require_one_kind("x", x, "segments", marks)
    return marks


def _align(marks: da.Array, x: da.Array, axis: int) -> da.Array:
    """Return marks, of the elements or of one line, in the chunks of `x`."""
    wanted = x.chunks
    if not _fits(marks, x):
        wanted = (x.chunks[axis],)
        if marks.ndim != 1 or not _same_size(marks.shape[0], x.shape[axis]):
            raise ValueError(
                f"segments must have the shape of x, {x.shape}, or of its axis {axis}, "
                f"({x.shape[axis]},); got {marks.shape}"
            )
    if any(n != n for n in (*x.shape, *marks.shape)):
        if marks.numblocks != tuple(map(len, wanted)):
            raise ValueError("segments must have the chunks of x where their sizes are not known")
        return marks
    return rechunk(marks, wanted)


def _fits(a: da.Array, b: da.Array) -> bool:
    return a.ndim == b.ndim and all(map(_same_size, a.shape, b.shape))


def _same_size(a: float, b: float) -> bool:
    """Tell whether two sizes are equal, or may be where one is not known."""
    return a == b or a != a or b != b


def _flatten(x: da.Array) -> da.Array:
    """Return `x` in one dimension, C order, in chunks about as large as they were."""
    if 0 in x.shape:
        return empty_like(x, shape=(0,))
    # Dask's reshape trips over chunks of length zero.
    if any(0 in sizes for sizes in x.chunks):
        x = x.rechunk(tuple(tuple(n for n in sizes if n) for sizes in x.chunks))
    return x.reshape(-1)
