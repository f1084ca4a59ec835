"""Count the distinct elements of large CuPy chunks with few of them, in hash tables.

A sample gives an estimate of the number of distinct elements. If they fit the table of a block, one
read counts them (kernel_distinct.cuh). If not, elements are dealt by hash to buckets, whose
distinct elements fit a table each. If a table overflows all the same, or there are too many
distinct elements from the beginning, the caller sorts instead.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import distinct as programs

Array = Any

#: The least bytes of a chunk: sorting fewer takes no longer than taking a sample.
LEAST = 1 << 27

#: The elements of a sample, and those counted at a time; counts of a block have 32 bits.
SAMPLE, _SLAB = 1 << 15, 1 << 28

#: The load of tables; the fuller they are, the farther keys lie from their slots.
_LOAD = 0.5

#: The possible numbers of buckets.
_BUCKETS = (1, 256, 512)

#: Elements at pseudorandom positions, which are the same on every run.
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

#: The least number of elements for each distinct one.
_REPEATS = 8


def count_distinct(x: Array) -> list[tuple[Array, Array]] | None:
    """Return distinct elements and their counts, or None if there are too many.

    Parameters
    ----------
    x : cupy.ndarray
        One axis, contiguous and aligned, of one of `programs.DTYPES`, at least `LEAST` bytes.

    Returns
    -------
    list of tuples
        An element may be in several of the tuples, in any order; NaN is one value.
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
    """Return a lower estimate of the number of distinct elements; infinity for very many."""
    some = _SAMPLED(x.view(f"u{x.itemsize}"), np.uint64(x.size), size=SAMPLE)
    keys = cupy.sort(some)
    starts = np.flatnonzero(cupy.asnumpy(keys[1:] != keys[:-1]))
    often = np.bincount(np.diff(starts, prepend=-1, append=SAMPLE - 1), minlength=3)
    once, twice = map(int, often[1:3])
    # Chao's estimate, a lower bound, of the distinct elements that the sample lacks.
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
    """Return the number of buckets and the slots of each table, or None if too many are needed."""
    slots = programs.slots_in(dtype, gpu.shared_bytes)
    for buckets in _BUCKETS:
        if about <= buckets * slots * _LOAD:
            return buckets, slots
    return None
