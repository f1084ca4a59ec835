"""The backend of NumPy chunks: all functions that the graph calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_coop.algebra.bins import BinSpec, Grid, Integers, Steps
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.filters import Filter
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.strategies import AUTO
from dask_coop.chunks import ChunkBackend, reproducible_histogram
from dask_coop.chunks.files import Direct
from dask_coop.chunks.labels import codes as codes
from dask_coop.chunks.numpy import custom as custom_monoid
from dask_coop.chunks.numpy import digits as digit_counts
from dask_coop.chunks.numpy import histogram as histograms
from dask_coop.chunks.numpy import scan as numpy_scan
from dask_coop.chunks.numpy import sorting
from dask_coop.chunks.numpy.digits import collect as collect
from dask_coop.chunks.numpy.grouped import lift_groups as lift_groups
from dask_coop.chunks.numpy.matmul import matmul as matmul
from dask_coop.chunks.numpy.order_statistics import order_statistics as order_statistics
from dask_coop.chunks.numpy.reduce import lift as lift
from dask_coop.chunks.numpy.select import compress as compress
from dask_coop.chunks.numpy.select import flatnonzero as flatnonzero
from dask_coop.chunks.numpy.unique import isin as isin
from dask_coop.chunks.numpy.unique import merge_distinct as merge_distinct
from dask_coop.chunks.numpy.unique import positions as positions
from dask_coop.chunks.numpy.unique import searchsorted as searchsorted
from dask_coop.chunks.numpy.windows import move as move
from dask_coop.chunks.one_by_one import downsweep as downsweep
from dask_coop.chunks.one_by_one import histogram_all as histogram_all
from dask_coop.chunks.one_by_one import join as join
from dask_coop.chunks.one_by_one import lift_all as lift_all
from dask_coop.chunks.one_by_one import most_joined as most_joined
from dask_coop.chunks.one_by_one import multiply_deviations as multiply_deviations
from dask_coop.chunks.one_by_one import synchronize as synchronize
from dask_coop.chunks.one_by_one import upsweep as upsweep
from dask_coop.errors import pip_install

Array = np.ndarray[Any, Any]


def scan(
    op: Operation,
    x: Array,
    spec: ScanSpec,
    base: State | None = None,
    heads: Array | None = None,
) -> Array:
    """Return the scan of the chunk `x`, starting from the state `base`."""
    return scan_on(op, x, spec, base, heads)[0]


def scan_on(
    op: Operation,
    x: Array,
    spec: ScanSpec,
    base: State | None = None,
    heads: Array | None = None,
) -> tuple[Array, State]:
    """Return the scan of the chunk `x`, starting from `base`, and the state behind it."""
    x = np.asarray(x)
    if op.monoid.lift is not None:
        return custom_monoid.scan(op, x.astype(op.element, copy=False), spec, base, heads)
    return numpy_scan.scan(op, x, spec, base, heads)


def lift_segments(
    op: Operation, x: Array, spec: ScanSpec, heads: Array, valid: Array | None = None
) -> State:
    """Reduce every line of the chunk `x`, from its last head flag on, to a state.

    The last field says which lines have a flag; other lines are reduced as a whole. `heads` are
    the flags of the elements, or of one line. `valid`, of the shape of `x`, is true where an
    element counts.
    """
    axis = spec.axis
    if spec.reverse:
        x, heads = np.flip(x, axis), np.flip(heads, axis if heads.ndim == x.ndim else 0)
        valid = None if valid is None else np.flip(valid, axis)
    if heads.ndim < x.ndim or heads.ndim == 1:
        at = np.flatnonzero(heads)
        start = at[-1] if at.size else 0
        last = (*(slice(None),) * axis, slice(start, None))
        state = lift(op, x[last], (axis,), None if valid is None else valid[last])
        return (*state, np.broadcast_to(at.size > 0, state[0].shape)[()])
    n = x.shape[axis]
    if n == 0:
        return (*lift(op, x, (axis,)), heads.any(axis))
    start = n - 1 - np.argmax(np.flip(heads, axis), axis, keepdims=True)
    restarts = heads.any(axis)
    along = np.arange(n).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    where = (along >= start) | ~np.expand_dims(restarts, axis)
    where = where if valid is None else where & valid
    return (*lift(op, x, (axis,), where), restarts)


def histogram(
    op: Operation, samples: Sequence[Array], grid: BinSpec, weights: Array | None
) -> State:
    """Count the samples of a chunk by bin, or sum their `weights`.

    Parameters
    ----------
    op : Operation
    samples : sequence of numpy.ndarray
        The coordinates, of equal shapes; or one array that has the coordinates as its last axis.
    grid : Grid, Integers or Digits
    weights : numpy.ndarray or None
    """
    if op.monoid.has_digits:
        return reproducible_histogram.histogram(lift, histogram, op, samples, grid, weights)
    (dtype,) = op.monoid.dtypes(op.element)
    if weights is not None:
        weights = weights.astype(op.element, copy=False)
    match grid:
        case Integers():
            return (histograms.tally(samples[0], grid, weights, dtype),)
        case Digits():
            x = samples[0].view("u1") if samples[0].dtype.kind == "b" else samples[0]
            return (digit_counts.count(x, grid, weights, dtype),)
        case Grid():
            if grid.ndim > len(samples):
                samples = [samples[0][..., i] for i in range(grid.ndim)]
            samples = [x.view("u1") if x.dtype.kind == "b" else x for x in samples]
            return (histograms.count(samples, grid, weights, dtype),)


def digitize(x: Array, steps: Steps, rows: Array | None = None) -> Array:
    """Return the bin number of each sample, int64 of the shape of `x`."""
    numbers = histograms.locate(x.view("u1") if x.dtype.kind == "b" else x, steps)
    if rows is not None:
        rows *= steps.bins.n + 2
        numbers += rows
    return numbers


def transpose(x: Array, axes: Sequence[int] | None = None, strategy: str = AUTO) -> Array:
    """Return a copy of the chunk `x` in C order, with its axes in another order."""
    return np.array(np.transpose(x, axes), order="C")


def label(x: Array, structure: Array) -> Array:
    """Return the labels of connected true elements of the chunk `x`, by SciPy."""
    try:
        from scipy import ndimage
    except ImportError as error:
        raise ModuleNotFoundError(
            f"label needs SciPy for NumPy chunks: {pip_install('cpu')}"
        ) from error
    labels: Array = ndimage.label(x, structure, np.int32)[0]
    return labels


def filter_lines(of: Filter, x: Array, delays: Array | None = None) -> tuple[Array, Array]:
    """Return the filtered lines of the chunk `x`, by SciPy, and the delays behind them."""
    try:
        from scipy import signal
    except ImportError as error:
        raise ModuleNotFoundError(
            f"lfilter and sosfilt need SciPy for NumPy chunks: {pip_install('cpu')}"
        ) from error
    x, delays = x.astype(of.dtype, copy=False), of.begin(x.shape, delays)
    if not x.size:
        return x.copy(), delays
    if of.is_cascade:
        rows = np.array([b + a for b, a in of.sections], of.dtype)
        before = delays.astype(of.dtype).reshape(len(rows), 2, *delays.shape[1:])
        y, after = signal.sosfilt(rows, x, of.axis, np.moveaxis(before, 1, of.axis + 1))
        after = np.moveaxis(after, of.axis + 1, 1)
    else:
        b, a = (np.array(row, of.dtype) for row in of.sections[0])
        before = np.moveaxis(delays.astype(of.dtype), 0, of.axis)
        y, after = signal.lfilter(b, a, x, of.axis, before)
        after = np.moveaxis(after, of.axis, 0)
    return y, after.reshape(delays.shape).astype(delays.dtype)


def sort(x: Array, axis: int, stable: bool) -> Array:
    """Return a sorted copy of the chunk `x`."""
    return sorting.sort(x, axis, "stable" if stable else None)


def merge_sorted(xs: Sequence[Array], stable: bool) -> Array:
    """Return the sorted elements of sorted arrays."""
    return sorting.merge(xs, stable)


def argsort(x: Array, axis: int, stable: bool) -> Array:
    """Return the indices that sort the chunk `x`."""
    return np.argsort(x, axis, kind="stable" if stable else None).astype("i8", copy=False)


def to_numpy(x: Array, nbytes: int | None = None, out: Array | None = None) -> Array:
    """Return `x`, which is a NumPy array, or copy it into `out` and return that."""
    if out is None:
        return x
    out[...] = x
    return out


def from_numpy(x: Array, nbytes: int | None = None, direct: Direct = "auto") -> Array:
    """Return `x`, which is a NumPy array."""
    return x


if TYPE_CHECKING:
    from dask_coop.chunks.numpy import backend

    _: ChunkBackend = backend
