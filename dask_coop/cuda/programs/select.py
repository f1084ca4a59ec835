"""Selected and distinct elements: programs of kernel_select.cuh, _collect.cuh and _distinct.cuh."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import CTYPES, ctype
from dask_coop.cuda.programs.histogram import Finder

#: Threads of a block.
THREADS = 256

#: Bytes of elements that a thread takes at a time, and the most of its elements.
_BYTES, _MOST = 64, 32

#: What elements are moved as, whose values do not matter, by their sizes.
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "u64", 16: "Word16"}

#: The sizes of elements that are moved.
SIZES = tuple(_WORDS)


def _items(item: int | None) -> int:
    """Return how many elements of a size a thread takes, or marks where it is None."""
    return _MOST if item is None else min(_BYTES // item, _MOST)


def tile_of(item: int | None) -> int:
    """Return how many elements make a tile where elements of so many bytes are written, or none."""
    return THREADS * _items(item)


def mark_blocks(tiles: int) -> int:
    """Return how many blocks mark so many tiles, by a warp each."""
    return -(-tiles * 32 // THREADS)


@cache
def mark_nonzero(dtype: np.dtype[Any], tile: int) -> str:
    """Return the program that marks what is not zero, such as of a mask of bytes."""
    whole = dtype.kind in "biu"
    source = _WORDS[dtype.itemsize] if whole else ctype(dtype)
    return _mark(source, tile, "", "NonzeroKeep keep;")


@cache
def mark_found(find: Finder, tile: int) -> str:
    """Return the program that marks what has a bin."""
    # NVRTC leaves undefined what a struct within a struct leaves out, unless it has a name.
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
    """Return the program that writes marked elements of so many bytes, and where they are."""
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


#: Threads of a block that collects, and vectors that one of them has in flight.
COLLECT_THREADS, _COLLECT_LOADS = 512, 3

#: Shared memory for what a block has collected, and for the bits by which it tells that, in bytes.
COLLECT_BYTES, FILTER_BYTES = 1 << 15, 1 << 12


@cache
def collect(samples: np.dtype[Any], several: bool) -> str:
    """Return the program that collects what begins with one prefix, or with one of several."""
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


#: Threads of a block that deals keys, and bytes of the elements of each.
DEAL_THREADS, _DEAL_BYTES = 512, 64

#: Threads of a block that counts keys, whose table takes all the memory of a multiprocessor.
COUNT_THREADS = 1024

#: The dtypes of elements that have programs.
DISTINCT_DTYPES = tuple(map(np.dtype, ("i4", "u4", "f4", "i8", "u8", "f8")))


def dealt_tile(dtype: np.dtype[Any]) -> int:
    """Return how many elements are dealt at a time."""
    return DEAL_THREADS * _DEAL_BYTES // dtype.itemsize


def vectors_of(dtype: np.dtype[Any], buckets: int) -> int:
    """Return how many vectors of 16 bytes the lists of a tile take at most."""
    return dealt_tile(dtype) * dtype.itemsize // 16 + buckets


def table_bytes(dtype: np.dtype[Any], slots: int) -> int:
    """Return the shared memory of a table and of the keys that wait."""
    return _head_bytes(dtype) + slots * (dtype.itemsize + 4)


def slots_in(dtype: np.dtype[Any], nbytes: int) -> int:
    """Return how many slots a table has in so many bytes of shared memory."""
    return (nbytes - _head_bytes(dtype)) // (dtype.itemsize + 4)


def _head_bytes(dtype: np.dtype[Any]) -> int:
    # For each warp the keys of a vector a lane and of one more lane each, and where they look next.
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
    """Return the program that counts keys, of so many bytes, by buckets."""
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
    # Of integers the bits are the key.
    return ctype(dtype if dtype.kind == "f" else np.dtype(f"u{dtype.itemsize}"))


def programs() -> list[str]:
    """Return what selects by masks and zeros, and counts distinct elements, of any dtype."""
    byte = np.dtype("u1")
    sources = [write(None, True), *(write(item, both) for item in SIZES for both in (False, True))]
    sources += [mark_nonzero(byte, tile_of(item)) for item in SIZES]
    sources += [mark_nonzero(np.dtype(name), tile_of(None)) for name in CTYPES]
    sources += [count_lists(itemsize) for itemsize in (4, 8)]
    for dtype in DISTINCT_DTYPES:
        sources += [deal(dtype), count_elements(dtype)]
    return list(dict.fromkeys(sources))
