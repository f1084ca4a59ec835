"""The loops over samples of NumPy chunks, compiled by Numba, which is optional.

They are written for three dtypes of samples (float64, int64, uint64), to which blocks of the others
are converted, so that there is little to compile; histogram.py has the same in NumPy
and says what the parameters are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.jit import jit

Array = Any


#: The bin index of a sample that is looked for in a second loop: the first has no branches, so that
#: the compiler can make it work on several samples at a time.
UNSURE = -(2**62)


@jit
def guess_on_line(
    x: Array,
    low: float,
    high: float,
    scale: float,
    doubt: float,
    first: int,
    step: int,
    index: Array,
) -> int:
    """Write the bin indices of samples that are further than `doubt` bins from edges on a line.

    Return how many are not, or outside.
    """
    unsure = 0
    for i in range(len(x)):
        v = x[i]
        at = (v - low) * scale
        bin_ = np.int32(at)
        rest = at - bin_
        sure = (v >= low) & (v < high) & (rest > doubt) & (rest < 1 - doubt)
        index[i] = first + step * np.int64(bin_) if sure else UNSURE
        unsure += 0 if sure else 1
    return unsure


@jit
def guess_by_guide(
    x: Array,
    low: float,
    high: float,
    cells: float,
    guide: Array,
    first: int,
    step: int,
    index: Array,
) -> int:
    """Write the bin indices of samples in cells of which `guide` has the only bin.

    Return how many are in others, or outside.
    """
    unsure = 0
    for i in range(len(x)):
        v = x[i]
        cell = np.int32((float(v) - float(low)) * cells)
        index[i] = cell if (v >= low) & (v < high) else -1
    # A loop of its own, because this one does not work on several samples at a time.
    for i in range(len(x)):
        cell = index[i]
        bin_ = guide[np.uint64(cell if cell >= 0 else 0)]
        sure = (cell >= 0) & (bin_ >= 0)
        index[i] = first + step * np.int64(bin_) if sure else UNSURE
        unsure += 0 if sure else 1
    return unsure


@jit
def search(
    x: Array,
    edges: Array,
    scale: float,
    guide: Array,
    cells: float,
    numbers: tuple[int, int, int, int, int, bool],
    index: Array,
) -> None:
    """Write the bin indices that are unsure yet.

    Edges are about ``1 / scale`` apart if that is not 0; else `guide` tells where to begin, if it
    has any cells.
    """
    below, above, missing, first, step, closed = numbers
    n = len(edges) - 1
    low, high = edges[0], edges[n]
    for i in range(len(x)):
        if index[i] != UNSURE:
            continue
        v = x[i]
        if low <= v < high:
            bin_ = 0
            if scale > 0:
                bin_ = min(int((float(v) - float(low)) * scale), n - 1)
                while v < edges[bin_]:
                    bin_ -= 1
            elif len(guide):
                bin_ = max(-2 - guide[int((float(v) - float(low)) * cells)], 0)
            end, jump = bin_ + 1, 1
            while end < n and v >= edges[end]:
                bin_ = end
                end, jump = end + jump, jump * 2
            end = min(end, n)
            while end - bin_ > 1:
                middle = (bin_ + end) // 2
                if v >= edges[middle]:
                    bin_ = middle
                else:
                    end = middle
            index[i] = first + step * bin_
        elif v == high and closed:
            index[i] = first + step * (n - 1)
        else:
            index[i] = below if v < low else above if v >= high else missing


@jit
def search_on_line(
    x: Array,
    n: int,
    low: float,
    high: float,
    scale: float,
    width: float,
    start: float,
    single: bool,
    numbers: tuple[int, int, int, int, int, bool],
    index: Array,
) -> None:
    """Write the bin indices that are unsure yet, by edges at ``i * width + start``.

    With `single` these are rounded to float32.
    """
    below, above, missing, first, step, closed = numbers
    for i in range(len(x)):
        if index[i] != UNSURE:
            continue
        v = float(x[i])
        if low <= v < high:
            bin_ = min(int((v - low) * scale), n - 1)
            while v < _edge_at(bin_, width, start, single):
                bin_ -= 1
            while bin_ < n - 1 and v >= _edge_at(bin_ + 1, width, start, single):
                bin_ += 1
            index[i] = first + step * bin_
        elif v == high and closed:
            index[i] = first + step * (n - 1)
        else:
            index[i] = below if v < low else above if v >= high else missing


@jit
def _edge_at(i: int, width: float, start: float, single: bool) -> float:
    edge = i * width + start
    return float(np.float32(edge)) if single else edge


@jit
def refine(along: Array, count: int, index: Array) -> None:
    """Make `index` that of a table with `count` entries more for each that it was in."""
    for i in range(len(index)):
        inside = (index[i] >= 0) & (along[i] >= 0)
        index[i] = index[i] * count + along[i] if inside else -1


@jit
def number_lines(index: Array, start: int, n: int, inner: int) -> None:
    """Write the line of each element from `start` on of an array of shape (outer, n, inner)."""
    outer, rest = divmod(start, n * inner)
    row, column = divmod(rest, inner)
    for i in range(len(index)):
        index[i] = outer * inner + column
        column += 1
        if column == inner:
            column = 0
            row += 1
            if row == n:
                row = 0
                outer += 1


@jit
def count(index: Array, table: Array) -> None:
    """Add one to the table for each index in it."""
    n = len(table)
    for i in range(len(index)):
        if 0 <= index[i] < n:
            table[index[i]] += 1


@jit
def weigh(index: Array, weights: Array, table: Array) -> None:
    """Add each weight to its entry of the table."""
    n = len(table)
    for i in range(len(index)):
        if 0 <= index[i] < n:
            table[index[i]] += weights[i]
