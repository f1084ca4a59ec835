"""Order statistics of the lines of NumPy chunks: lines in blocks, sorted or partitioned.

NumPy sorts, and partitions about one rank, by vector instructions; about several ranks it does not.
So two neighbours, such as those of a median, are one partition and the largest element before it,
a few of them are one partition each, of what is before the last one, and more are a sort. NaN is
last either way::

    a line       3 nan 1 7 5    lines in a block are as many as stay in the cache; those that lie
    partitioned  1 3 | 5 nan 7  across the memory are put there by strips of rows, for elements
    sorted       1 3 5 7 nan    that are many pages apart hinder one another
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_coop.chunks.states import boxes

Array = np.ndarray[Any, Any]

#: Elements of a block, and of a strip, which is read twice.
_BLOCK, _STRIP = 1 << 17, 1 << 15

#: Bytes of neighbouring columns that are read together, however long: a line of the cache.
_TOGETHER = 64

#: The least elements of a line that is partitioned by itself, for the calls that it costs.
_ALONE = 1 << 15

#: What stands for NaT.
_NAT = np.iinfo("i8").max


def order_statistics(x: Array, axes: tuple[int, ...], ranks: Array) -> tuple[Array, Array]:
    """Return elements by their ranks among those of their lines that are not NaN.

    Zeros of either sign are equal, so that either may be returned.
    """
    by_stride = sorted(range(x.ndim), key=lambda d: -abs(x.strides[d]))
    kept = [d for d in by_stride if d not in axes]
    lines = x.transpose([*kept, *(d for d in by_stride if d in axes)])
    shape = [x.shape[d] for d in kept]
    values = np.empty((ranks.shape[1], *shape), x.dtype)
    counts = np.empty(shape, "i8")
    for at in boxes(counts.shape, _room(lines, len(kept))):
        block = _load(lines[at], len(kept))
        found, counted = _select(block, ranks, x.dtype.kind)
        values[(slice(None), *at)] = _unload(found, x.dtype).T.reshape(-1, *counts[at].shape)
        counts[at] = counted.reshape(counts[at].shape)
    order = np.argsort(kept)
    return values.transpose([0, *(order + 1)]), counts.transpose(order)


def _room(lines: Array, ndim: int) -> int:
    """Return how many lines make a block."""
    least = _TOGETHER // lines.itemsize if _across(lines, ndim) else 1
    return int(max(least, _BLOCK // max(1, math.prod(lines.shape[ndim:]))))


def _across(lines: Array, ndim: int) -> bool:
    """Tell whether neighbours in memory are of different lines."""
    return 0 < ndim < lines.ndim and abs(lines.strides[ndim - 1]) < abs(lines.strides[-1])


def _load(block: Array, ndim: int) -> Array:
    """Return a copy of a block as rows, of a dtype that NumPy sorts by vector instructions.

    Of dates these are integers, one less each, by which NaT is the largest.
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
    """Return elements of rows as those of the chunk."""
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
    # All but the last axis of a line are gone through one by one.
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
    """Return elements of rows, which are written to, by their ranks, and the counts."""
    count, n = rows.shape
    counts = np.full(count, n)
    if n == 0:
        nothing = np.nan if kind == "f" else _NAT if kind in "mM" else 0
        return np.full((count, ranks.shape[1]), nothing, rows.dtype), counts
    of_whole = np.minimum(ranks[n], n - 1)
    # As many partitions take as long as a sort; of short lines one takes longer.
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
        rest = rows[~whole]
        rest.sort(axis=1)
        values[~whole] = _take(rest, ranks, counts[~whole])
        return values, counts
    if kind == "f":
        # Rows with NaN are partitioned without vector instructions.
        np.copyto(rows, np.inf, where=absent)
    for i in np.flatnonzero(~whole):
        own = np.minimum(ranks[counts[i]], max(0, counts[i] - 1))
        values[i] = _partition(rows[i : i + 1], own)[0]
    if kind == "f":
        values[counts == 0] = np.nan
    return values, counts


def _absent(rows: Array, kind: str) -> Array:
    """Tell which elements of rows stand for NaN or NaT of a chunk of that kind."""
    if kind in "mM":
        return np.asarray(rows == _NAT)
    return np.asarray(np.isnan(rows) if kind == "f" else False)


def _take(rows: Array, ranks: Array, counts: Array) -> Array:
    """Return elements of sorted rows by their ranks."""
    n = rows.shape[1]
    values = rows[:, np.minimum(ranks[n], n - 1)]
    short = np.flatnonzero(counts < n)
    if short.size:
        left = counts[short]
        own = np.minimum(ranks[left], np.maximum(left - 1, 0)[:, np.newaxis])
        values[short] = rows.reshape(-1).take(own + (short * n)[:, np.newaxis])
    return values


def _pivots(ranks: Array) -> list[int]:
    """Return the ranks about which to partition, from the last one on."""
    pivots: list[int] = []
    previous = -1
    for rank in sorted({*ranks.tolist()}, reverse=True):
        if rank != previous:
            pivots.append(rank)
        previous = rank - 1 if rank != previous else -1
    return pivots


def _partition(rows: Array, ranks: Array) -> Array:
    """Return elements of rows, which are written to, by ranks that are those of all rows."""
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
