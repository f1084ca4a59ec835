"""Histograms of CuPy chunks: along any axes, over any number of coordinates, with weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.algebra.bins import BinSpec, Grid, Integers, Steps
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.edges import Bins
from dask_coop.algebra.monoids import MINMAX, State
from dask_coop.algebra.operation import Operation, bind
from dask_coop.chunks import reproducible_histogram
from dask_coop.chunks.cupy.arrays import aligned, deliver, dense, fields_of
from dask_coop.chunks.cupy.bin_lookup import MOST, find_indices, find_numbers
from dask_coop.chunks.cupy.histogram_strategies import count
from dask_coop.chunks.cupy.lift import lift
from dask_coop.chunks.cupy.reduce import reduce_lines
from dask_coop.chunks.cupy.transpose import contiguous, transpose

Array = Any


def histogram(
    op: Operation, samples: Sequence[Array], grid: BinSpec, weights: Array | None
) -> State:
    """Count the samples of a chunk, or sum their `weights`, by bin.

    Samples of one coordinate are counted directly. Other samples get their offsets in the table
    first, which are then counted as integers.

    Parameters
    ----------
    op : Operation
    samples : sequence of cupy.ndarray
        The coordinates, of equal shapes; or one array, with the coordinates along its last axis.
    grid : Grid, Integers or Digits
    weights : cupy.ndarray or None
    """
    with samples[0].device:
        if op.monoid.has_digits:
            return reproducible_histogram.histogram(lift, histogram, op, samples, grid, weights)
        (total,) = op.monoid.dtypes(op.element)
        samples = [x.view("u1") if x.dtype.kind == "b" else x for x in samples]
        if weights is not None:
            weights = aligned(contiguous(weights.astype(op.element, copy=False)))
        match grid:
            case Integers():
                found = _integers(samples[0], weights, grid)
            case Grid():
                found = _entries(samples, weights, grid)
            case Digits():
                found = _digits(samples[0], weights, grid)
        table = _count(found.x, found.weights, found.bins, total, op.strategy)
        # Tables of unknown length stay on the GPU, so that all chunks' tables are in one memory.
        return (table if found.shape is None else deliver(table.reshape(found.shape)),)


class _Counted(NamedTuple):
    """The contiguous samples or bin indices to count, possibly none.

    Attributes
    ----------
    x : cupy.ndarray
    weights : cupy.ndarray or None
        One for each sample.
    bins : Bins, Integers or Digits
    shape : tuple of int or None
        The shape of the table, if it is known.
    """

    x: Array
    weights: Array | None
    bins: Bins | Integers | Digits
    shape: tuple[int, ...] | None


def _integers(x: Array, weights: Array | None, integers: Integers) -> _Counted:
    """Return the samples and bins of a count of nonnegative integers."""
    x = dense(x)[0] if weights is None else aligned(contiguous(x))
    n = integers.minlength
    if x.size:
        extrema = bind(MINMAX, x.dtype, x.dtype, "bincount")
        low, high = map(int, fields_of(extrema, reduce_lines(extrema, x, (1, x.size, 1)), ()))
        if low < 0:
            raise ValueError(f"x of bincount must have no negative elements, got {low}")
        n = max(n, high + 1)
    if n > MOST:
        raise ValueError(f"a table of {n} entries is larger than the limit of {MOST}")
    return _Counted(x, weights, Integers(n), None)


def _digits(x: Array, weights: Array | None, digits: Digits) -> _Counted:
    """Return the samples and bins of a count by a digit of keys."""
    x = dense(x)[0] if weights is None else aligned(contiguous(x))
    return _Counted(x, weights, digits, digits.shape)


def _entries(samples: Sequence[Array], weights: Array | None, grid: Grid) -> _Counted:
    """Return the samples and bins of a count into the entries of a grid."""
    x = samples[0]
    kept, axes = grid.lines(x.shape if len(samples) == grid.ndim else x.shape[:-1])
    shape = (*(x.shape[axis] for axis in kept), *grid.shape)
    if math.prod(shape) > MOST:
        raise ValueError(f"a table of shape {shape} has more than {MOST} entries")
    entries = Integers(math.prod(shape))
    if not x.size or not entries.n:
        return _Counted(x.reshape(-1)[:0], None, entries, shape)
    if grid.ndim == 1 and not kept and not grid.flow:
        x = dense(x)[0] if weights is None else aligned(contiguous(x))
        return _Counted(x, weights, grid.bins[0], shape)
    lines = None
    if len(samples) < grid.ndim:
        samples = _columns(x)
    elif kept:
        # The length of the counted axes, and the distance of elements along them.
        lines = math.prod(x.shape[axis] for axis in axes), 1
        if axes and axes[-1] - axes[0] == len(axes) - 1:
            lines = lines[0], math.prod(x.shape[axes[-1] + 1 :])
        else:
            order = kept + axes
            samples = [transpose(x, order)]
            weights = weights if weights is None else transpose(weights, order)
    index = find_indices([aligned(contiguous(x)) for x in samples], grid, lines)
    return _Counted(index, weights, entries, shape)


def digitize(x: Array, steps: Steps, rows: Array | None = None) -> Array:
    """Return the bin number of each sample, int64, in the shape of `x`."""
    with x.device:
        x = x.view("u1") if x.dtype.kind == "b" else x
        return find_numbers(aligned(contiguous(x)), steps, rows)


def _count(
    x: Array, weights: Array | None, bins: Bins | Integers | Digits, total: Any, strategy: str
) -> Array:
    """Return the table of contiguous samples."""
    table = cupy.zeros(bins.n, total)
    if not x.size or not bins.n:
        return table
    if weights is None or weights.dtype.kind != "c":
        count(x, weights, bins, table, strategy)
        return table
    # The kernels add real numbers only.
    part = np.dtype(f"f{weights.itemsize // 2}")
    parts = weights.reshape(-1).view(part).reshape(-1, 2)
    for i in range(2):
        sums = cupy.zeros(bins.n, "f8")
        count(x, cupy.ascontiguousarray(parts[:, i]), bins, sums, strategy)
        table.view("f8").reshape(-1, 2)[:, i] = sums
    return table


def _columns(x: Array) -> list[Array]:
    """Return the coordinates along the last axis of `x`, each contiguous."""
    columns = [x[..., i] for i in range(x.shape[-1])]
    if all(column.flags.c_contiguous for column in columns):
        return columns
    return list(transpose(x, (x.ndim - 1, *range(x.ndim - 1))))
