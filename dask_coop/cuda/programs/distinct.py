"""Programs of kernel_distinct.cuh, which count distinct elements."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype

#: The threads of a block that deals keys, and the bytes of elements of each.
DEAL_THREADS, _DEAL_BYTES = 512, 64

#: The threads of a block that counts keys, whose table takes all memory of a multiprocessor.
COUNT_THREADS = 1024

#: The dtypes that have programs.
DTYPES = tuple(map(np.dtype, ("i4", "u4", "f4", "i8", "u8", "f8")))


def tile_of(dtype: np.dtype[Any]) -> int:
    """Return the number of elements that are dealt at a time."""
    return DEAL_THREADS * _DEAL_BYTES // dtype.itemsize


def vectors_of(dtype: np.dtype[Any], buckets: int) -> int:
    """Return the most vectors of 16 bytes that the lists of a tile take."""
    return tile_of(dtype) * dtype.itemsize // 16 + buckets


def table_bytes(dtype: np.dtype[Any], slots: int) -> int:
    """Return the shared memory of a table and of the waiting keys."""
    return _head_bytes(dtype) + slots * (dtype.itemsize + 4)


def slots_in(dtype: np.dtype[Any], nbytes: int) -> int:
    """Return the number of slots of a table in `nbytes` of shared memory."""
    return (nbytes - _head_bytes(dtype)) // (dtype.itemsize + 4)


def _head_bytes(dtype: np.dtype[Any]) -> int:
    # The waiting keys of a warp, a vector and one more for each lane, with their next slots.
    waiting = (16 // dtype.itemsize + 1) * COUNT_THREADS
    return 256 + waiting * (dtype.itemsize + 4)


@cache
def deal(dtype: np.dtype[Any]) -> str:
    """Return the program that deals keys to buckets."""
    call = f"deal_keys<T, {DEAL_THREADS}, {_DEAL_BYTES // dtype.itemsize}>"
    return f"""#include "kernel_distinct.cuh"
using namespace coop;
using T = {_element(dtype)};
using V = Vector<DistinctKey<T>::K, 16 / sizeof(T)>;
extern "C" __global__ void __launch_bounds__({DEAL_THREADS}, 2)
entry(const T* x, i64 size, int buckets, V* lists, unsigned* extents, unsigned* sizes) {{
  {call}(x, size, buckets, lists, extents, sizes);
}}
"""


@cache
def count_lists(itemsize: int) -> str:
    """Return the program that counts keys of `itemsize` bytes by buckets."""
    call = f"count_keys<K, {COUNT_THREADS}>"
    return f"""#include "kernel_distinct.cuh"
using namespace coop;
using K = {"u64" if itemsize == 8 else "unsigned"};
using V = Vector<K, 16 / sizeof(K)>;
extern "C" __global__ void __launch_bounds__({COUNT_THREADS}, 1)
entry(const V* lists, const unsigned* extents, const unsigned* sizes, int buckets, i64 tiles,
      int stride, unsigned slots, K* out, i64* counts, u64* found) {{
  {call}(lists, extents, sizes, buckets, tiles, stride, slots, out, counts, found);
}}
"""


@cache
def count(dtype: np.dtype[Any]) -> str:
    """Return the program that counts elements without buckets."""
    return f"""#include "kernel_distinct.cuh"
using namespace coop;
using T = {_element(dtype)};
extern "C" __global__ void __launch_bounds__({COUNT_THREADS}, 1)
entry(const T* x, i64 size, i64 share, unsigned slots, DistinctKey<T>::K* out, i64* counts,
      u64* found) {{
  count_elements<T, {COUNT_THREADS}>(x, size, share, slots, out, counts, found);
}}
"""


def _element(dtype: np.dtype[Any]) -> str:
    # The bits of an integer are its key.
    return ctype(dtype if dtype.kind == "f" else np.dtype(f"u{dtype.itemsize}"))


def programs() -> list[str]:
    """Return the programs that count distinct elements of any dtype."""
    sources = [count_lists(itemsize) for itemsize in (4, 8)]
    for dtype in DTYPES:
        sources += [deal(dtype), count(dtype)]
    return list(dict.fromkeys(sources))
