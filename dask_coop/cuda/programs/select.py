"""Programs of kernel_select.cuh, kernel_collect.cuh and kernel_distinct.cuh."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import CTYPES, ctype
from dask_coop.cuda.programs.histogram import Finder

#: The threads of a block.
THREADS = 256

#: The bytes of elements that a thread takes at a time, and the most of its elements.
_BYTES, _MOST = 64, 32

#: The C++ types that elements are moved as, by size.
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "u64", 16: "Word16"}

#: The sizes of elements that are moved.
SIZES = tuple(_WORDS)


def _items(item: int | None) -> int:
    """Return how many elements of a size a thread writes, or how many it marks for None."""
    return _MOST if item is None else min(_BYTES // item, _MOST)


def tile_of(item: int | None) -> int:
    """Return the elements of a tile whose elements of `item` bytes are written, or not for None."""
    return THREADS * _items(item)


def mark_blocks(tiles: int) -> int:
    """Return how many blocks mark `tiles` tiles, by a warp each."""
    return -(-tiles * 32 // THREADS)


@cache
def mark_nonzero(dtype: np.dtype[Any], tile: int) -> str:
    """Return the program that marks nonzero elements, such as those of a mask."""
    whole = dtype.kind in "biu"
    source = _WORDS[dtype.itemsize] if whole else ctype(dtype)
    return _mark(source, tile, "", "NonzeroKeep keep;")


@cache
def mark_found(find: Finder, tile: int) -> str:
    """Return the program that marks elements with a bin."""
    # A named variable, because NVRTC does not initialise the rest of an unnamed inner struct.
    keep = f"B bins = {find.bins};\n  BinsKeep<B> keep{{bins}};"
    types = f"using T = {find.element};\nusing E = {find.edge};\nusing B = {find.type};\n"
    return _mark(find.element, tile, f"{find.parameters}, ", keep, types)


def _mark(source: str, tile: int, parameters: str, keep: str, types: str = "") -> str:
    return f"""#include "kernel_select.cuh"
using namespace coop;
using S = {source};
{types}extern "C" __global__ void __launch_bounds__({THREADS})
entry(const S* sources, i64 size, {parameters}unsigned char* marks, i64* counts) {{
  {keep}
  mark_kept<S, decltype(keep), {THREADS}, {tile}>(sources, size, keep, marks, counts);
}}
"""


@cache
def write(item: int | None, indices: bool) -> str:
    """Return the program that writes marked elements of `item` bytes, and their indices."""
    values, word = item is not None, _WORDS[item or 1]
    flags = ", ".join(str(flag).lower() for flag in (values, indices))
    return f"""#include "kernel_select.cuh"
using namespace coop;
using T = {word};
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const T* x, i64 size, const unsigned char* marks, const i64* ends, T* y, i64* index) {{
  write_kept<T, {flags}, {THREADS}, {_items(item)}>(x, size, marks, ends, y, index);
}}
"""


#: The threads of a block that collects, and the vectors that a thread has in flight.
COLLECT_THREADS, _COLLECT_LOADS = 512, 3

#: The shared memory for a block's collected samples, and for the bitmap of prefixes, in bytes.
COLLECT_BYTES, FILTER_BYTES = 1 << 15, 1 << 12


@cache
def collect(samples: np.dtype[Any], several: bool) -> str:
    """Return the program that collects keys with one prefix, or with one of several."""
    parameters = "int bits, u64 prefix"
    filtered = "bits, prefix"
    if several:
        parameters += ", int count, const u64* prefixes, const unsigned* begins"
        filtered += ", count, prefixes, begins"
    call = f"collect<T, F, {COLLECT_THREADS}, {_COLLECT_LOADS}>"
    return f"""#include "kernel_collect.cuh"
using namespace coop;
using T = {ctype(samples)};
using F = PrefixFilter<T, {str(several).lower()}>;
extern "C" __global__ void __launch_bounds__({COLLECT_THREADS}, 2)
entry(const T* x, i64 size, {parameters}, i64 tile, unsigned room, T* out, u64 capacity,
      u64* total) {{
  {call}(x, size, F{{{filtered}}}, tile, room, out, capacity, total);
}}
"""


#: The threads of a block that deals keys, and the bytes of elements of each.
DEAL_THREADS, _DEAL_BYTES = 512, 64

#: The threads of a block that counts keys, whose table takes all memory of a multiprocessor.
COUNT_THREADS = 1024

#: The dtypes that have programs.
DISTINCT_DTYPES = tuple(map(np.dtype, ("i4", "u4", "f4", "i8", "u8", "f8")))


def dealt_tile(dtype: np.dtype[Any]) -> int:
    """Return how many elements are dealt at a time."""
    return DEAL_THREADS * _DEAL_BYTES // dtype.itemsize


def vectors_of(dtype: np.dtype[Any], buckets: int) -> int:
    """Return the most vectors of 16 bytes that the lists of a tile take."""
    return dealt_tile(dtype) * dtype.itemsize // 16 + buckets


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
def count_elements(dtype: np.dtype[Any]) -> str:
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
    """Return the programs of selections and of distinct elements, for elements of any dtype."""
    byte = np.dtype("u1")
    sources = [write(None, True), *(write(item, both) for item in SIZES for both in (False, True))]
    sources += [mark_nonzero(byte, tile_of(item)) for item in SIZES]
    sources += [mark_nonzero(np.dtype(name), tile_of(None)) for name in CTYPES]
    sources += [count_lists(itemsize) for itemsize in (4, 8)]
    for dtype in DISTINCT_DTYPES:
        sources += [deal(dtype), count_elements(dtype)]
    return list(dict.fromkeys(sources))
