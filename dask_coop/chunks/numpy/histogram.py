"""Counting in NumPy chunks: samples get bin indices, and these are counted or weighed.

A bin index is negative where a sample counts nowhere. Samples are taken in blocks that stay in the
cache between the steps: the line of each and its bins along all coordinates together are its index
in the flat table. Where Numba is there and chunks are large enough to pay for its compiler, the
steps are loops of `dask_coop.chunks.numpy.histogram_numba`; the results are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from dask_coop.algebra.bins import Grid, Integers, Numbering, Steps
from dask_coop.algebra.edges import Bins

Array = np.ndarray[Any, Any]

#: Samples that are worked on at a time.
BLOCK = 1 << 14

#: The least samples of a chunk for which loops are compiled.
WORTH_COMPILING = 1 << 15


@cache
def _loops() -> ModuleType | None:
    try:
        from dask_coop.chunks.numpy import histogram_numba
    except ImportError:
        return None
    return histogram_numba


class _Finder(NamedTuple):
    """How samples find their bins, in float64 or 64-bit integers, to which all others convert.

    Floats and shorter integers compare there as they do in their own dtypes.
    """

    n: int
    ends: tuple[Any, Any]
    numbering: Numbering
    # Empty where edges are on a line: its step and start, and whether sums are rounded to float32.
    edges: Array = np.empty(0)
    line: tuple[float, float, bool] | None = None
    # The bins per unit of uniform bins, and how far from an edge, in bins, a guess is right.
    scale: float = 0.0
    doubt: float = 0.0
    # The only bin of each cell of the range, or -2 less the last of the cells before, if any; and
    # the cells per unit.
    guide: Array = np.empty(0, "i4")
    cells: float = 0.0
    # Integers as the user gave them, where float64 could not tell them from their neighbours.
    limits: tuple[int, int] | None = None

    def find(self, x: Array, index: Array, compiled: bool) -> None:
        """Write the bin indices of one-dimensional samples to `index`, perhaps by Numba's loops."""
        loops = _loops() if compiled else None
        # The loops widen float32 themselves.
        v = x if loops is not None and x.dtype == "f4" else self._convert(x)
        if loops is None:
            self._locate(v, index)
            return
        first, step = self.numbering.first, self.numbering.step
        low, high = self.ends
        if self.guide.size:
            unsure = loops.guess_by_guide(v, low, high, self.cells, self.guide, first, step, index)
        elif self.scale:
            unsure = loops.guess_on_line(v, low, high, self.scale, self.doubt, first, step, index)
        else:
            unsure = len(v)
            index.fill(loops.UNSURE)
        numbers = tuple(self.numbering)
        if unsure and self.line is not None:
            loops.search_on_line(v, self.n, low, high, self.scale, *self.line, numbers, index)
        elif unsure:
            loops.search(v, self.edges, self.scale, self.guide, self.cells, numbers, index)

    def _convert(self, x: Array) -> Array:
        v = x.astype(self.edges.dtype, copy=False)
        if self.limits is not None:
            v[x < self.limits[0]] = -np.inf
            v[x > self.limits[1]] = np.inf
        return v

    def _locate(self, v: Array, index: Array) -> None:
        (low, high), n, numbers = self.ends, self.n, self.numbering
        if self.line is None:
            bin_ = np.searchsorted(self.edges, v, "right") - 1
        else:
            bin_ = self._step_to(np.where((v >= low) & (v < high), v, low))
        np.copyto(index, numbers.first + numbers.step * bin_)
        index[v < low] = numbers.below
        outside = ~(v < high)
        if outside.any():
            rest = v[outside]
            last = numbers.first + numbers.step * (n - 1) if numbers.closed else numbers.above
            beyond = np.where(rest > high, numbers.above, numbers.missing)
            index[outside] = np.where(rest == high, last, beyond)

    def _step_to(self, v: Array) -> Array:
        """Return the bins of samples that are in one, by steps from a guess."""
        bin_: Array = np.minimum(((v - self.ends[0]) * self.scale).astype("i8"), self.n - 1)
        while True:
            below = v < self._edges_at(bin_)
            beyond = (v >= self._edges_at(bin_ + 1)) & (bin_ < self.n - 1)
            if not (below.any() or beyond.any()):
                return bin_
            bin_ += beyond
            bin_ -= below

    def _edges_at(self, index: Array) -> Array:
        assert self.line is not None
        step, start, single = self.line
        edges: Array = index * step + start
        return edges.astype("f4").astype("f8") if single else edges


def _finder(bins: Bins, samples: np.dtype[Any], numbering: Numbering, compiled: bool) -> _Finder:
    common, n, limits = np.result_type(samples, bins.dtype), bins.n, bins.whole_limits(samples)
    low, high = (float(end) for end in bins.ends)
    with np.errstate(all="ignore"):
        width = np.subtract(high, low)
        scale = float(n / width) if bins.limits is not None else 0.0
        # Edges are rounded to their dtype, guesses to float64.
        size = max(abs(low), abs(high)) * scale
        doubt = (size + n) * 2.0**-50
        if 0 < scale < math.inf and bins.line is not None and bins.dtype.itemsize > 2:
            step, start = bins.line
            eps = float(np.finfo(bins.dtype).eps)
            doubt = min(size * eps + doubt, 1.0) if n < 1 << 31 else 1.0
            if samples.kind in "iu" and step * scale == 1 and math.frexp(step)[0] == 0.5:
                # Nothing is rounded if edges are whole, too, or halves, quarters and so on, and
                # float64 has all the numbers between them.
                exact = low == start and low.is_integer() and high == low + n * step
                far = max(abs(low), abs(high), size * eps * 2.0**52) > 2.0**52
                doubt = -1.0 if exact and not far else doubt
            line = step, start, bins.dtype == "f4"
            ends = low, high
            return _Finder(n, ends, numbering, np.empty(0), line, scale, doubt, limits=limits)
        wide = common.kind in "iu" and common.itemsize == 8
        edges = bins.cuts.astype(common).astype(common if wide else "f8")
        finder = _Finder(n, (edges[0], edges[-1]), numbering, edges, limits=limits)
        if not compiled:
            return finder
        if 0 < scale < math.inf:
            doubt += float(abs((edges - low) * scale - np.arange(n + 1)).max())
            return finder._replace(scale=scale, doubt=min(doubt, 1.0))
        n_cells = min(max(2 * n, min(32 * n, 1 << 16)), 1 << 20)
        cells = float(n_cells / width)
        if not (0 < width < math.inf and 0 < cells < math.inf):
            return finder
        # The same arithmetic as the loop's, so that no edge is in a later cell than what is above.
        distances = edges.astype("f8") - low
    cell = (distances * cells).astype("i4")
    # The last edge may be rounded into a cell behind the last.
    at = np.arange(n_cells + 2)
    guide = np.searchsorted(cell, at, "right").astype("i4") - np.int32(1)
    guide[cell] = -2 - np.maximum(np.searchsorted(cell, cell).astype("i4") - np.int32(1), 0)
    return finder._replace(guide=guide, cells=cells)


def count(samples: Sequence[Array], grid: Grid, weights: Array | None, dtype: Any) -> Array:
    """Return the table of a chunk: kept axes of the samples, then entries along each coordinate.

    Parameters
    ----------
    samples : sequence of numpy.ndarray
        The coordinates, of equal shapes, not bool.
    grid : Grid
    weights : numpy.ndarray or None
        As many as samples, of `dtype`.
    dtype : dtype
        That of the table.
    """
    x = samples[0]
    kept, axes = grid.lines(x.shape)
    compiled = x.size >= WORTH_COMPILING and _loops() is not None
    bins, plain = grid.bins[0], len(samples) == 1 and not kept and weights is None
    if plain and not grid.flow and not compiled and bins.are_numpys(x.dtype):
        counts, _ = np.histogram(x, **bins.numpy_arguments())
        return counts.astype(dtype, copy=False)
    if plain and x.itemsize == 1 and compiled:
        return _count_values(x, grid, dtype)
    lines = tuple(x.shape[axis] for axis in kept)
    table = np.zeros((*lines, *grid.shape), dtype)
    flat, size = table.reshape(-1), x.size
    arrays = [*samples] if weights is None else [*samples, weights]
    arrays, run = _flatten(arrays, kept, axes)
    finders = [
        _finder(bins, array.dtype, numbering, compiled)
        for bins, array, numbering in zip(grid.bins, samples, grid.numberings, strict=True)
    ]
    indices, along = np.empty((2, BLOCK), "i8")
    for start in range(0, size, BLOCK):
        blocks = [array[start : start + BLOCK] for array in arrays]
        index, more = (buffer[: len(blocks[0])] for buffer in (indices, along))
        if kept:
            _number_lines(index, start, run, compiled)
        for i, finder in enumerate(finders):
            is_first = i == 0 and not kept
            finder.find(blocks[i], index if is_first else more, compiled)
            if not is_first:
                _refine(more, grid.shape[i], index, compiled)
        _add(index, None if weights is None else blocks[-1], flat, compiled)
    return table


def tally(x: Array, integers: Integers, weights: Array | None, dtype: Any) -> Array:
    """Return how often each integer occurs, or the sum of its `weights`, which are of `dtype`."""
    compiled = x.size >= WORTH_COMPILING and _loops() is not None
    # NumPy adds up weights in float64, which does not hold all sums of integers.
    exact = weights is None or np.dtype(dtype).kind == "f"
    if exact and (x.dtype == "i8" or not compiled) and x.dtype != "u8":
        (flat, *more), _ = _flatten([x] if weights is None else [x, weights], (), ())
        table = np.bincount(flat, more[0] if more else None, integers.minlength)
        return table.astype(dtype, copy=False)
    low, high = (int(x.min()), int(x.max())) if x.size else (0, -1)
    if low < 0:
        raise ValueError("'list' argument must have no negative elements")
    table = np.zeros(max(high + 1, integers.minlength), dtype)
    arrays, _ = _flatten([x] if weights is None else [x, weights], (), ())
    for start in range(0, x.size, BLOCK):
        blocks = [array[start : start + BLOCK] for array in arrays]
        index = blocks[0].astype("i8", copy=False)
        _add(index, None if weights is None else blocks[-1], table, compiled)
    return table


def locate(x: Array, steps: Steps) -> Array:
    """Return the numbers that samples get, int64 of the shape of `x`."""
    result = np.empty(x.shape, "i8")
    compiled = x.size >= WORTH_COMPILING and _loops() is not None
    finder = _finder(steps.bins, x.dtype, steps.numbering, compiled)
    samples, index = x.reshape(-1), result.reshape(-1)
    for start in range(0, x.size, BLOCK):
        part = slice(start, start + BLOCK)
        finder.find(samples[part], index[part], compiled)
    return result


def _refine(along: Array, count: int, index: Array, compiled: bool) -> None:
    loops = _loops() if compiled else None
    if loops is not None:
        loops.refine(along, count, index)
    else:
        np.copyto(index, np.where((index < 0) | (along < 0), -1, index * count + along))


def _add(index: Array, weights: Array | None, table: Array, compiled: bool) -> None:
    """Add ones or weights to the entries of a flat table; other indices are left out."""
    loops = _loops() if compiled else None
    if loops is not None and weights is None:
        loops.count(index, table)
    elif loops is not None:
        loops.weigh(index, weights, table)
    else:
        inside = (index >= 0) & (index < len(table))
        if not inside.all():
            index = index[inside]
            weights = weights if weights is None else weights[inside]
        np.add.at(table, index, 1 if weights is None else weights)


def _count_values(x: Array, grid: Grid, dtype: Any) -> Array:
    """Count samples of one byte by their values, and these by bin."""
    values = np.zeros(256, "i8")
    flat = x.view("u1").reshape(-1, order="A")
    for start in range(0, x.size, BLOCK):
        _add(flat[start : start + BLOCK], None, values, True)
    return count([np.arange(256, dtype="u1").view(x.dtype)], grid, values.astype(dtype), dtype)


def _flatten(
    arrays: list[Array], kept: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[list[Array], tuple[int, int]]:
    """Return equally shaped arrays as lines, and how long and how far apart their elements are.

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


def _number_lines(index: Array, start: int, run: tuple[int, int], compiled: bool) -> None:
    loops = _loops() if compiled else None
    if loops is not None:
        loops.number_lines(index, start, *run)
        return
    length, distance = run
    at = np.arange(start, start + len(index))
    np.copyto(index, at // (length * distance) * distance + at % distance)
