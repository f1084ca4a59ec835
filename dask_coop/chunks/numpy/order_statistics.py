"""Order statistics of the lines of NumPy chunks: lines in blocks, sorted or partitioned.

NumPy sorts, and partitions about one rank, by vector instructions; about several ranks it does not.
So two neighbouring ranks, as of a median, take one partition and the largest element before it. A
few ranks take one partition each, of the elements before the last one. More take a sort. NaN is
last either way::

    a line       3 nan 1 7 5    a block has as many lines as stay in the cache; lines across
    partitioned  1 3 | 5 nan 7  the memory are copied by strips of rows, because neighbours in
    sorted       1 3 5 7 nan    a line are many pages apart
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_coop.chunks.states import boxes

Array = np.ndarray[Any, Any]

#: Elements of a block, and of a strip of rows, which is read twice. With smaller ones, many threads
#: wait for each other between the calls of NumPy.
_BLOCK, _STRIP = 1 << 20, 1 << 18

#: Bytes of neighbouring columns that are read together: a cache line.
_TOGETHER = 64

#: The fewest elements of a line that is partitioned by itself, given the cost of the calls.
_ALONE = 1 << 15

#: The integer that stands for NaT.
_NAT = np.iinfo("i8").max


def order_statistics(
    x: Array, axes: tuple[int, ...], ranks: Array, index: Array | None = None
) -> tuple[Array, Array]:
    """Return the elements of given ranks among the elements of each line that are not NaN.

    Zeros of either sign are equal: either may be returned. With `index`, lines are those of
    ``x[..., index]``.
    """
    if index is not None:
        x = _indexed(x, index)
    by_stride = sorted(range(x.ndim), key=lambda d: -abs(x.strides[d]))
    kept = [d for d in by_stride if d not in axes]
    lines = x.transpose([*kept, *(d for d in by_stride if d in axes)])
    shape = [x.shape[d] for d in kept]
    values = np.empty((ranks.shape[1], *shape), x.dtype)
    counts = np.empty(shape, "i8")
    for at in boxes(counts.shape, _room(lines, len(kept))):
        block = _load(lines[at], len(kept))
        selected, counted = _select(block, ranks, x.dtype.kind)
        values[(slice(None), *at)] = _unload(selected, x.dtype).T.reshape(-1, *counts[at].shape)
        counts[at] = counted.reshape(counts[at].shape)
    order = np.argsort(kept)
    return values.transpose([0, *(order + 1)]), counts.transpose(order)


def _indexed(x: Array, index: Array) -> Array:
    """Return ``x[..., index]``, of neighbours without a copy."""
    first = int(index.flat[0])
    if np.array_equal(index.reshape(-1), np.arange(first, first + index.size)):
        return x[..., first : first + index.size].reshape(*x.shape[:-1], *index.shape)
    return np.asarray(x[..., index])


def _room(lines: Array, ndim: int) -> int:
    """Return the number of lines in a block."""
    least = _TOGETHER // lines.itemsize if _across(lines, ndim) else 1
    return int(max(least, _BLOCK // max(1, math.prod(lines.shape[ndim:]))))


def _across(lines: Array, ndim: int) -> bool:
    """Return whether neighbours in memory belong to different lines."""
    return 0 < ndim < lines.ndim and abs(lines.strides[ndim - 1]) < abs(lines.strides[-1])


def _load(block: Array, ndim: int) -> Array:
    """Return a copy of a block as rows, of a dtype that NumPy sorts by vector instructions.

    Dates become integers less one, so that NaT is the largest.
    """
    dtype = block.dtype
    if dtype.kind in "mM":
        ticks = block.view(np.dtype("i8").newbyteorder(dtype.byteorder))
        rows = _rows(ticks, ndim, np.dtype("i8"))
        rows -= 1
        return rows
    if dtype.itemsize < 4:
        dtype = np.dtype("f4" if dtype.kind == "f" else "i4")
    return _rows(block, ndim, dtype.newbyteorder("="))


def _unload(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert elements of rows back to the dtype of the chunk."""
    if dtype.kind in "mM":
        return (values + 1).view(dtype.newbyteorder("="))
    return values.astype(dtype, copy=False)


def _rows(block: Array, ndim: int, dtype: np.dtype[Any]) -> Array:
    """Return a copy of a block with one line a row."""
    count, n = math.prod(block.shape[:ndim]), math.prod(block.shape[ndim:])
    rows = np.empty((count, n), dtype)
    if not _across(block, ndim):
        rows.reshape(block.shape)[...] = block
        return rows
    # Loop over all axes of a line but the last.
    height = max(1, _STRIP // count)
    out = rows.reshape(block.shape)
    for at in np.ndindex(*block.shape[ndim:-1]):
        line = (..., *at, slice(None))
        source, target = block[line], out[line]
        for start in range(0, source.shape[-1], height):
            strip = np.moveaxis(source[..., start : start + height], -1, 0)
            target[..., start : start + height] = np.moveaxis(strip.copy("C"), 0, -1)
    return rows


def _select(rows: Array, ranks: Array, kind: str) -> tuple[Array, Array]:
    """Return the elements of rows by rank, and their counts; rows are overwritten."""
    count, n = rows.shape
    counts = np.full(count, n)
    if n == 0:
        nothing = np.nan if kind == "f" else _NAT if kind in "mM" else 0
        return np.full((count, ranks.shape[1]), nothing, rows.dtype), counts
    of_whole = np.minimum(ranks[n], n - 1)
    # So many partitions take as long as a sort; in short lines a single one takes longer.
    if len(_pivots(of_whole)) > (n.bit_length() - 6) // 2:
        rows.sort(axis=1)
        last = _absent(rows[:, -1], kind)
        if last.any():
            counts[last] -= np.count_nonzero(_absent(rows[last], kind), axis=1)
        return _take(rows, ranks, counts), counts
    absent = _absent(rows, kind)
    if not absent.any():
        return _partition(rows, of_whole), counts
    counts -= np.count_nonzero(absent, axis=1)
    whole = counts == n
    values = np.empty((count, ranks.shape[1]), rows.dtype)
    values[whole] = _partition(rows[whole], of_whole)
    if n < _ALONE:
        incomplete = rows[~whole]
        incomplete.sort(axis=1)
        values[~whole] = _take(incomplete, ranks, counts[~whole])
        return values, counts
    if kind == "f":
        # Rows with NaN are partitioned without vector instructions.
        np.copyto(rows, np.inf, where=absent)
    for i in np.flatnonzero(~whole):
        own_ranks = np.minimum(ranks[counts[i]], max(0, counts[i] - 1))
        values[i] = _partition(rows[i : i + 1], own_ranks)[0]
    if kind == "f":
        values[counts == 0] = np.nan
    return values, counts


def _absent(rows: Array, kind: str) -> Array:
    """Return where elements of rows stand for NaN or NaT of a chunk of this kind."""
    if kind in "mM":
        return np.asarray(rows == _NAT)
    return np.asarray(np.isnan(rows) if kind == "f" else False)


def _take(rows: Array, ranks: Array, counts: Array) -> Array:
    """Return the elements of sorted rows by rank."""
    n = rows.shape[1]
    values = rows[:, np.minimum(ranks[n], n - 1)]
    short = np.flatnonzero(counts < n)
    if short.size:
        left = counts[short]
        own_ranks = np.minimum(ranks[left], np.maximum(left - 1, 0)[:, np.newaxis])
        values[short] = rows.reshape(-1).take(own_ranks + (short * n)[:, np.newaxis])
    return values


def _pivots(ranks: Array) -> list[int]:
    """Return the ranks about which to partition, the last one first."""
    pivots: list[int] = []
    previous = -1
    for rank in sorted({*ranks.tolist()}, reverse=True):
        if rank != previous:
            pivots.append(rank)
        previous = rank - 1 if rank != previous else -1
    return pivots


def _partition(rows: Array, ranks: Array) -> Array:
    """Return the elements of rows at ranks that all rows share; rows are overwritten."""
    values = np.empty((len(rows), len(ranks)), rows.dtype)
    end = rows.shape[1]
    for pivot in _pivots(ranks):
        rows[:, :end].partition(pivot, axis=1)
        values[:, ranks == pivot] = rows[:, pivot, np.newaxis]
        before = ranks == pivot - 1
        if before.any():
            values[:, before] = rows[:, :pivot].max(axis=1, keepdims=True)
        end = pivot
    return values
