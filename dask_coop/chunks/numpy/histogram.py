"""Histograms of NumPy chunks: find the bin index of each sample, then count or sum weights.

A bin index is negative where a sample counts nowhere. Blocks of samples are small enough to stay in
the cache between the steps. The line of a sample and its bins along all coordinates make up its
index in the flat table. Where Numba is installed and a chunk is large enough to pay for compiling,
one call of `dask_coop.chunks.numpy.histogram_calls` does all blocks, with the same results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from dask_coop.algebra.bins import Grid, Integers, Steps
from dask_coop.chunks.numpy.bin_finder import find_finder
from dask_coop.chunks.numpy.loop_table import loops_for
from dask_coop.chunks.numpy.sorting import sortable

Array = np.ndarray[Any, Any]

#: Samples in a block.
BLOCK = 1 << 14


def count(samples: Sequence[Array], grid: Grid, weights: Array | None, dtype: Any) -> Array:
    """Return the table of a chunk: kept axes of the samples, then the entries of each coordinate.

    Parameters
    ----------
    samples : sequence of numpy.ndarray
        The coordinates, of equal shapes, not bool.
    grid : Grid
    weights : numpy.ndarray or None
        In the shape of samples.
    dtype : dtype
        The dtype of the table, in which weights are summed.
    """
    x, loops = samples[0], _loops_for(samples[0])
    kept, axes = grid.lines(x.shape)
    bins, plain = grid.bins[0], len(samples) == 1 and not kept and weights is None
    if plain and not grid.flow and loops is None and bins.are_numpys(x.dtype):
        # NumPy sorts samples to count them between arbitrary edges.
        counts, _ = np.histogram(x if bins.limits else sortable(x), **bins.numpy_arguments())
        return counts.astype(dtype, copy=False)
    if plain and x.itemsize == 1 and loops is not None:
        values = tally(x.view("u1"), Integers(256), None, "i8")
        return count([np.arange(256, dtype="u1").view(x.dtype)], grid, values, dtype)
    finders = [
        find_finder(bins, array.dtype, numbering)
        for bins, array, numbering in zip(grid.bins, samples, grid.numberings, strict=True)
    ]
    shape = (*(x.shape[axis] for axis in kept), *grid.shape)
    if loops is not None and loops.takes(finders, shape, dtype):
        table: Array = loops.count(samples, finders, grid.shape, kept, weights, dtype)
        return table.reshape(shape)
    table = np.zeros(shape, dtype)
    arrays, run = _flatten([*samples] if weights is None else [*samples, weights], kept, axes)
    indices, along = np.empty((2, BLOCK), "i8")
    for start in range(0, x.size, BLOCK):
        blocks = [array[start : start + BLOCK] for array in arrays]
        index, more = (buffer[: len(blocks[0])] for buffer in (indices, along))
        if kept:
            _number_lines(index, start, run)
        for i, finder in enumerate(finders):
            is_first = i == 0 and not kept
            finder.find(blocks[i], index if is_first else more)
            if not is_first:
                inside = (index >= 0) & (more >= 0)
                np.copyto(index, np.where(inside, index * grid.shape[i] + more, -1))
        _add(index, None if weights is None else blocks[-1], table.reshape(-1))
    return table


def tally(x: Array, integers: Integers, weights: Array | None, dtype: Any) -> Array:
    """Return the count of each integer, or the sum of its `weights`, in `dtype`."""
    loops, n = _loops_for(x), integers.minlength
    if weights is not None and weights.dtype == "f8" and x.dtype == "i8":
        # NumPy's add.at converts neither, and adds each weight in place.
        loops = None
    if loops is not None and n and loops.takes([], (n,), dtype):
        # One pass over the integers is enough if all are below the minimum length.
        table, are_all = loops.tally(x, n, weights, dtype)
        if are_all:
            return np.asarray(table)
    low, high = (int(x.min()), int(x.max())) if x.size else (0, -1)
    if low < 0:
        raise ValueError(f"x of bincount must have no negative elements, got {low}")
    n = max(high + 1, n)
    if loops is not None and loops.takes([], (n,), dtype):
        return np.asarray(loops.tally(x, n, weights, dtype)[0])
    (flat, *more), _ = _flatten([x] if weights is None else [x, weights], (), ())
    # NumPy sums weights in float64, which cannot hold all sums of integers.
    if (weights is None or np.dtype(dtype).kind == "f") and x.dtype != "u8":
        table = np.bincount(flat, more[0] if more else None, n)
        return table.astype(dtype, copy=False)
    table = np.zeros(n, dtype)
    for start in range(0, x.size, BLOCK):
        block = slice(start, start + BLOCK)
        _add(flat[block].astype("i8"), more[0][block] if more else None, table)
    return table


def locate(x: Array, steps: Steps) -> Array:
    """Return the bin number of each sample, int64 of the shape of `x`."""
    finder, loops = find_finder(steps.bins, x.dtype, steps.numbering), _loops_for(x)
    if loops is not None and loops.takes([finder], (), np.dtype("i8")):
        return np.asarray(loops.locate(x, finder))
    result = np.empty(x.shape, "i8")
    samples, index = x.reshape(-1), result.reshape(-1)
    for start in range(0, x.size, BLOCK):
        part = slice(start, start + BLOCK)
        finder.find(samples[part], index[part])
    return result


def _loops_for(x: Array) -> ModuleType | None:
    """Return the module that calls the compiled loops; None without Numba or for small chunks."""
    if loops_for("histogram", x.size) is None:
        return None
    from dask_coop.chunks.numpy import histogram_calls

    return histogram_calls


def _add(index: Array, weights: Array | None, table: Array) -> None:
    """Add ones or weights to the entries of a flat table; skip indices out of its range."""
    inside = (index >= 0) & (index < len(table))
    if not inside.all():
        index = index[inside]
        weights = weights if weights is None else weights[inside]
    np.add.at(table, index, 1 if weights is None else weights.astype(table.dtype, copy=False))


def _flatten(
    arrays: list[Array], kept: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[list[Array], tuple[int, int]]:
    """Return equally shaped arrays as lines, and the length and distance of their elements.

    Element i of line (o, j) is at ``(o * length + i) * distance + j``.
    """
    shape = arrays[0].shape
    if not kept:
        order: Any = "F" if all(a.flags.f_contiguous for a in arrays) else "C"
        return [a.reshape(-1, order=order) for a in arrays], (arrays[0].size, 1)
    if axes and axes[-1] - axes[0] == len(axes) - 1:
        length = math.prod(shape[axis] for axis in axes)
        return [a.reshape(-1) for a in arrays], (length, math.prod(shape[axes[-1] + 1 :]))
    length = math.prod(shape[axis] for axis in axes)
    return [a.transpose(kept + axes).reshape(-1) for a in arrays], (length, 1)


def _number_lines(index: Array, start: int, run: tuple[int, int]) -> None:
    length, distance = run
    at = np.arange(start, start + len(index))
    np.copyto(index, at // (length * distance) * distance + at % distance)
