"""Distinct elements of large CuPy chunks that have few: by hash tables, by kernel_distinct.cuh.

A sample tells about how many distinct elements there are. What fits the table of a block is counted
in one read; more are dealt to buckets by a hash, whose tables they fit. Should a table overflow all
the same, or were there too many from the beginning, a sort does it.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import distinct as programs

Array = Any

#: The least bytes of a chunk: a sort of fewer takes no longer than what is asked of a sample.
LEAST = 1 << 27

#: Elements of a sample, and of what is counted at a time: counts of a block have 32 bits.
SAMPLE, _SLAB = 1 << 15, 1 << 28

#: How full tables are to be: the fuller, the farther from where they ought to be are keys.
_LOAD = 0.5

#: How many buckets there may be.
_BUCKETS = (1, 256, 512)

#: Elements from places that have no pattern, and are the same on every run.
_SAMPLED = cupy.ElementwiseKernel(
    "raw T x, uint64 n",
    "T y",
    """
    unsigned long long h = (i + 1) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 27) * 0x94d049bb133111ebull;
    y = x[__umul64hi(h ^ h >> 31, n)]""",
    "sampled",
)

#: How many elements there are to be for each distinct one.
_REPEATS = 8


def count_distinct(x: Array) -> list[tuple[Array, Array]] | None:
    """Return distinct elements and their counts, or None if they are not few.

    Parameters
    ----------
    x : cupy.ndarray
        On one axis, contiguous and aligned, of one of `programs.DTYPES`, at least `LEAST` bytes.

    Returns
    -------
    list of tuples
        Parts in which an element may be several times, in no order; NaN is one value.
    """
    about = estimate(x)
    if about * _REPEATS > x.size:
        return None
    parts = []
    for begin in range(0, x.size, _SLAB):
        if (part := _count(x[begin : begin + _SLAB], about)) is None:
            return None
        parts.append(part)
    return parts


def estimate(x: Array) -> float:
    """Return about how many distinct elements there are, at least; infinity for very many."""
    some = _SAMPLED(x.view(f"u{x.itemsize}"), np.uint64(x.size), size=SAMPLE)
    keys = cupy.sort(some)
    starts = np.flatnonzero(cupy.asnumpy(keys[1:] != keys[:-1]))
    often = np.bincount(np.diff(starts, prepend=-1, append=SAMPLE - 1), minlength=3)
    once, twice = map(int, often[1:3])
    # Chao's estimate of those that the sample has not: it never counts on more than it must.
    unseen = once**2 / (2 * twice) if twice else np.inf if once else 0
    return len(starts) + 1 + unseen


def _count(x: Array, about: float) -> tuple[Array, Array] | None:
    """Return distinct elements and their counts, or None if a table overflows."""
    gpu = device(cupy.cuda.runtime.getDevice())
    if (tuned := _tune(gpu, x.dtype, about)) is None:
        return None
    buckets, slots = tuned
    shared = programs.table_bytes(x.dtype, slots)
    given: tuple[Any, ...] = x.data.ptr, np.int64(x.size)
    if buckets == 1:
        source, blocks = programs.count(x.dtype), gpu.processors
        given += (np.int64(-(-x.size // blocks // 64) * 64),)
    else:
        # Buckets of one size get a block each, and larger ones more.
        source, blocks = programs.count_lists(x.itemsize), buckets + buckets * 7 // 8
        tiles = -(-x.size // programs.tile_of(x.dtype))
        vectors = programs.vectors_of(x.dtype, buckets)
        lists, extents = cupy.empty(tiles * vectors * 16, "u1"), cupy.empty(tiles * buckets, "u4")
        sizes = cupy.zeros(buckets, "u4")
        deal, threads = programs.deal(x.dtype), programs.DEAL_THREADS
        prepare(deal, source)
        room = lists.data.ptr, extents.data.ptr, sizes.data.ptr
        launch(deal, tiles, threads, *given, np.int32(buckets), *room, shared=buckets * 8)
        given = *room, np.int32(buckets), np.int64(tiles), np.int32(vectors)
    most = min(blocks * (slots + 1), x.size)
    keys, counts, found = cupy.empty(most, x.dtype), cupy.empty(most, "i8"), cupy.zeros(2, "u8")
    given += np.uint32(slots), keys.data.ptr, counts.data.ptr, found.data.ptr
    launch(source, blocks, programs.COUNT_THREADS, *given, shared=shared)
    total, full = map(int, found.get())
    return None if full else (keys[:total], counts[:total])


def _tune(gpu: Device, dtype: np.dtype[Any], about: float) -> tuple[int, int] | None:
    """Return how many buckets there are to be, and slots of each one's table, or None for more."""
    slots = programs.slots_in(dtype, gpu.shared_bytes)
    for buckets in _BUCKETS:
        if about <= buckets * slots * _LOAD:
            return buckets, slots
    return None
