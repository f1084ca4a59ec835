"""Check the arguments of scans, and build their graphs."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, handle_out
from dask.array.creation import empty_like
from dask.array.utils import validate_axis

from dask_coop.algebra.monoids import MonoidRow
from dask_coop.algebra.operation import Operation, bind, compensated
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.statistics import ScanRow
from dask_coop.api.arguments import fitting, in_chunks_of, rechunk, replace_nan
from dask_coop.graph import scan as graph_scan

METHODS = ("reduce-then-scan", "blelloch", "sequential", "recompute")


class ScanArguments(NamedTuple):
    """The arguments of a public function that scans, except elements and dtypes."""

    axis: int | None
    #: A Dask array, or None.
    out: Any
    method: str
    exclusive: bool
    reverse: bool
    include_initial: bool
    segments: Any


def scan_array(
    monoid: MonoidRow,
    name: str,
    x: da.Array,
    element: np.dtype[Any],
    output: np.dtype[Any],
    given: ScanArguments,
) -> da.Array:
    """Scan `x` by the arguments of the public function `name`.

    Parameters
    ----------
    monoid : MonoidRow
        A monoid of one field.
    name : str
        The name of the scan in messages and keys.
    x : dask.array.Array
    element, output : dtype
        The dtype in which elements are scanned, and that of the result.
    given : ScanArguments
    """
    return scan_bound(compensated(bind(monoid, element, output, name)), name, x, given)


def bind_row(row: ScanRow, name: str, x: da.Array, dtype: Any) -> tuple[Operation, da.Array]:
    """Return the operation of a scan, which messages call `name`, and the array to scan.

    If the scan ignores NaN and `dtype` is another kind of number, NaN in `x` is replaced.
    """
    element = row.element(x.dtype)
    output = row.monoid.output(element) if dtype is None else np.dtype(dtype)
    if row.skipna and x.dtype.kind in "fc" and output.kind != x.dtype.kind:
        x = replace_nan(row.monoid, name, x)
    return bind(row.monoid, element, output, name, row.skipna, row.times), x


def scan_bound(op: Operation, name: str, x: da.Array, given: ScanArguments) -> da.Array:
    """Scan `x` as `scan_array` does, by a bound operation."""
    axis, out, method, exclusive, reverse, include_initial, segments = given
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if exclusive and include_initial:
        raise ValueError("exclusive and include_initial exclude one another")
    heads = None if segments is None else flags_beside(x, segments)
    if axis is None:
        flat, axis = flatten(x), 0
        if heads is not None and _fits(heads, x):
            heads = flatten(heads)
    else:
        if not isinstance(axis, Integral):
            raise TypeError(
                f"{name} takes one axis, an integer, or None for the flattened array, got {axis!r}"
            )
        axis = validate_axis(axis, x.ndim)
        flat = x
    if heads is not None:
        heads = _align(heads, flat, axis)
    spec = ScanSpec(axis, bool(exclusive), bool(reverse), bool(include_initial))
    source = flat, heads
    if method == "sequential":
        return handle_out(out, graph_scan.chain(op, spec, source, name))
    return handle_out(out, graph_scan.scan(op, spec, source, name, method == "recompute"))


def flags_beside(x: da.Array, segments: Any) -> da.Array:
    """Return `segments`, which must be bool, in chunks of the kind of `x`'s."""
    heads = asanyarray(segments)
    if heads.dtype != np.dtype("?"):
        raise TypeError(f"segments must be of dtype bool, got {heads.dtype}")
    return in_chunks_of("x", x, "segments", segments)


def _align(heads: da.Array, x: da.Array, axis: int) -> da.Array:
    """Return `heads`, the flags of all elements or of one line, in the chunks of `x`."""
    wanted = x.chunks
    if not _fits(heads, x):
        wanted = (x.chunks[axis],)
        if heads.ndim != 1 or not _same_size(heads.shape[0], x.shape[axis]):
            raise ValueError(
                f"segments must have the shape of x, {x.shape}, or of its axis {axis}, "
                f"({x.shape[axis]},); got {heads.shape}"
            )
    if any(n != n for n in (*x.shape, *heads.shape)):
        if heads.numblocks != tuple(map(len, wanted)):
            raise ValueError("segments must have the chunks of x where their sizes are not known")
        return fitting("segments", heads, x, range(x.ndim)) if heads.ndim == x.ndim else heads
    return rechunk(heads, wanted)


def _fits(a: da.Array, b: da.Array) -> bool:
    return a.ndim == b.ndim and all(map(_same_size, a.shape, b.shape))


def _same_size(a: float, b: float) -> bool:
    """Return whether two sizes are equal, or may be because one is unknown."""
    return a == b or a != a or b != b


def flatten(x: da.Array) -> da.Array:
    """Return `x` flattened in C order, in chunks about as large as before."""
    if 0 in x.shape:
        return empty_like(x, shape=(0,))
    # Dask's reshape fails on chunks of length zero.
    if any(0 in sizes for sizes in x.chunks):
        x = x.rechunk(tuple(tuple(n for n in sizes if n) for sizes in x.chunks))
    return x.reshape(-1)
