"""Programs of kernel_group_sums.cuh and kernel_group_extremes.cuh, for many groups."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import Functor, ctype

#: The threads of a block that deals elements to buckets, and the elements of each.
DEAL_THREADS, DEAL_ITEMS = 512, 16

#: The threads of a block that takes a bucket, and of one that settles; the groups of a bucket.
THREADS, SETTLE_THREADS, BUCKET = 1024, 256, 1 << 14

#: The most groups of buckets.
MOST_GROUPS = BUCKET * THREADS

#: The words of global memory of each group for the elements that are added apart.
APART_WORDS = 5

_LISTS = (
    "const unsigned short* lows, const T* values, const unsigned* extents, const unsigned* sizes,"
    " int buckets, i64 tiles, int groups"
)
_PASSED = f"lows, values, extents, sizes, buckets, tiles, {DEAL_THREADS * DEAL_ITEMS}, groups"


@cache
def deal(element: np.dtype[Any]) -> str:
    """Return the program that deals elements and their codes to lists, one for each bucket."""
    return f"""{_head("lists", element, f"{DEAL_THREADS}, 2")}
entry(const T* x, const int* codes, i64 size, int groups, unsigned short* lows, T* values,
      unsigned* extents, unsigned* sizes, int buckets, int copies, int* exponent) {{
  deal_groups<T, {DEAL_THREADS}, {DEAL_ITEMS}>(x, codes, size, groups, lows, values, extents, sizes,
                                               buckets, copies, exponent);
}}
"""


def deal_shared_bytes(element: np.dtype[Any], counters: int) -> int:
    """Return the shared memory of a block of `deal`."""
    return DEAL_THREADS * DEAL_ITEMS * (2 + element.itemsize) + 4 * (counters + 2) + 256


def lists_shared_bytes(words: int) -> int:
    """Return the shared memory of a block that takes a bucket, of `words` words a group."""
    return BUCKET * 4 * words + 256


@cache
def largest(element: np.dtype[Any]) -> str:
    """Return the program that finds the exponent of the largest element."""
    return f"""{_head("sums", element)}
entry(const T* x, i64 size, int* exponent) {{
  largest_element<T, {THREADS}>(x, size, exponent);
}}
"""


@cache
def add(element: np.dtype[Any]) -> str:
    """Return the program that sums the lists of `deal`."""
    return f"""{_head("sums", element, f"{THREADS}, 1")}
entry({_LISTS}, const int* exponent, double* table, u64* high, u64* low, u64* apart) {{
  SumTable<T> sums(table, high, low, apart, exponent);
  reduce_lists<T, SumTable<T>, {THREADS}>({_PASSED}, sums);
}}
"""


@cache
def settle(total: np.dtype[Any]) -> str:
    """Return the program that turns words into sums."""
    return f"""#include "kernel_group_sums.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({SETTLE_THREADS})
entry({"double" if total.kind == "f" else "u64"}* table, const u64* high, const u64* low,
      const u64* apart, const int* exponent, int groups) {{
  settle_groups(table, high, low, apart, exponent, groups);
}}
"""


def key(element: np.dtype[Any], most: bool, keeps_nan: bool, one_zero: bool) -> str:
    """Return the C++ name of the keys of the least or the largest element."""
    flags = most, keeps_nan, one_zero
    return f"ExtremeKey<{ctype(element)}, {', '.join(str(flag).lower() for flag in flags)}>"


@cache
def extremes(element: np.dtype[Any], of: str, v: int) -> str:
    """Return the program that finds extrema in one read, by keys, in loads of `v` elements."""
    return f"""{_head("extremes", element, f"{THREADS}, 1")}
entry(const T* x, const int* codes, i64 size, int groups, unsigned* table) {{
  extremes_shared<T, {of}, {THREADS}, {v}, 4>(x, codes, size, groups, table);
}}
"""


@cache
def extremes_of_lists(element: np.dtype[Any], of: str) -> str:
    """Return the program that finds extrema of the lists of `deal`, by keys."""
    table = f"ExtremeTable<T, {of}>"
    return f"""{_head("extremes", element, f"{THREADS}, 1")}
entry({_LISTS}, unsigned* table) {{
  {table} keys(table);
  reduce_lists<T, {table}, {THREADS}>({_PASSED}, keys);
}}
"""


@cache
def find(element: np.dtype[Any], of: str, v: int) -> str:
    """Return the program that finds the first elements with their groups' keys, in loads of `v`."""
    return f"""{_head("extremes", element, f"{THREADS}, 1")}
entry(const T* x, const int* codes, i64 size, int groups, const unsigned* table, i64* indices) {{
  find_extremes<T, {of}, {THREADS}, {v}, 4>(x, codes, size, groups, table, indices);
}}
"""


@cache
def settle_extremes(element: np.dtype[Any], of: str, functor: Functor) -> str:
    """Return the program that turns keys into elements, by the functor's identity for none."""
    return f"""{_head("extremes", element, f"{SETTLE_THREADS}")}
entry(const unsigned* table, T* out, int groups) {{
  settle_extremes<T, {of}, {functor}>(table, out, groups);
}}
"""


def _head(header: str, element: np.dtype[Any], bounds: str = f"{THREADS}") -> str:
    return f"""#include "kernel_group_{header}.cuh"
using namespace coop;
using T = {ctype(element)};
extern "C" __global__ void __launch_bounds__({bounds})"""
