"""Programs of kernel_grouped.cuh, which reduce by group, of kernel_group_*.cuh, and of codes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from dask_coop.cuda.programs.base import Functor, ctype

#: The threads of a block, and of the block that sorts codes.
THREADS, PLAN_THREADS = 256, 1024

#: The most threads of a block of `private`.
PRIVATE_THREADS = 512

#: The most bytes of states that a thread of `columns` accumulates, and its bytes in flight.
_STATES_BYTES, _FLIGHT_BYTES = 160, 128


# Compared as objects, because comparing all fields would take a good part of a call's time.
@dataclass(frozen=True, eq=False)
class Product:
    """One monoid or several, over the same elements.

    Attributes
    ----------
    functor : Functor
    element, state : numpy.dtype
        The dtype of the elements, and the layout of a state.
    leaves : tuple of tuple of int
        The offset and the size, in bytes, of every field of the states.
    ordered : bool
        Whether states do not commute.
    """

    functor: Functor
    element: np.dtype[Any]
    state: np.dtype[Any]
    leaves: tuple[tuple[int, int], ...]
    ordered: bool

    def and_then(self, other: Product) -> Product:
        """Return the product with another one over the same elements."""
        state = np.dtype([("a", self.state), ("b", other.state)], align=True)
        assert state.fields is not None
        start = state.fields["b"][1]
        # Two monoids of a user may have the same definition.
        parts = dict.fromkeys((self.functor.definition, other.functor.definition))
        functor = Functor(f"Both<{self.functor}, {other.functor}>", "".join(parts))
        leaves = *self.leaves, *((start + offset, size) for offset, size in other.leaves)
        return Product(functor, self.element, state, leaves, self.ordered or other.ordered)


def columns_per_thread(of: Product) -> int:
    """Return how many neighbouring columns a thread loads and reduces, a power of two."""
    most = min(8, 16 // of.element.itemsize, _STATES_BYTES // of.state.itemsize)
    return 1 << max(0, most.bit_length() - 1)


@cache
def plan() -> str:
    """Return the program that sorts codes in one block."""
    return f"""#include "kernel_grouped.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({PLAN_THREADS}, 1)
entry(const int* codes, int n, int groups, int warps, int piece, int* order, int* begin,
      int* first, i64* sizes) {{
  sort_codes<{PLAN_THREADS}>(codes, n, groups, warps, piece, order, begin, first, sizes);
}}
"""


def plan_shared_bytes(warps: int, groups: int) -> int:
    """Return the shared memory of the block of `plan`."""
    return 4 * warps * groups + 256


@cache
def columns(of: Product, v: int) -> str:
    """Return the program that reduces strided lines, `v` by a thread."""
    loads = max(4, min(12, _FLIGHT_BYTES // (v * of.element.itemsize), 32 // v))
    # As many blocks share a multiprocessor as leave registers for the states.
    blocks = 3 if v * of.state.itemsize <= 32 else 2
    return _unit(
        of,
        f"{_PLAN}, M::State* parts, i64 outer, i64 n, i64 inner, int pieces, int lanes",
        f"group_columns<T, M, {THREADS}, {v}, {loads}>"
        f"(x, {_MADE}, out, parts, outer, n, inner, pieces, lanes);",
        f"{THREADS}, {blocks}",
    )


@cache
def lines(of: Product) -> str:
    """Return the program that reduces contiguous lines in shared memory."""
    return _unit(
        of,
        f"{_PLAN}, i64 outer, int n, int lines, int team",
        f"group_lines<T, M, {THREADS}, {_flag(of)}>(x, {_MADE}, out, outer, n, lines, team);",
    )


def lines_shared_bytes(nbytes: int, itemsize: int) -> int:
    """Return the shared memory of a block of `lines` for `nbytes` of lines."""
    return nbytes + nbytes // 128 * max(4, itemsize)


@cache
def gathered(of: Product) -> str:
    """Return the program that reduces contiguous lines, the rows of a group by a warp."""
    loads = 8 if of.element.itemsize <= 8 else 4
    return _unit(
        of,
        f"{_PLAN}, M::State* parts, i64 outer, i64 n, int pieces",
        f"group_gathered<T, M, {THREADS}, {_flag(of)}, {loads}>"
        f"(x, {_MADE}, out, parts, outer, n, pieces);",
    )


@cache
def private(of: Product, v: int) -> str:
    """Return the program that reduces contiguous lines into a table for each thread."""
    loads = 4 if of.state.itemsize <= 16 else 2
    return f"""{_head(of)}
extern "C" __global__ void __launch_bounds__({PRIVATE_THREADS})
entry(const T* x, const int* codes, M::State* parts, i64 outer, i64 n, int groups, i64 tiles) {{
  group_private<T, M, {v}, {loads}>(x, codes, parts, outer, n, groups, tiles);
}}
"""


def private_widths(of: Product) -> tuple[int, ...]:
    """Return how many elements `private` can load at a time, in ascending order."""
    return tuple(sorted({1, min(4, max(1, 16 // of.element.itemsize))}))


@cache
def combine(of: Product) -> str:
    """Return the program that combines the pieces of groups."""
    return _unit(
        of,
        "const M::State* parts, const int* first, i64 outer, int groups, i64 inner, i64 pieces, "
        "int each, int team",
        f"combine_pieces<M, {THREADS}>"
        "(parts, first, out, outer, groups, inner, pieces, each, team);",
        x="",
    )


#: The arguments of a plan, and the plan.
_PLAN = "const int* order, const int* begin, const int* first, int groups, int piece"
_MADE = "{order, begin, first, groups, piece}"


def _flag(of: Product) -> str:
    return str(of.ordered).lower()


def _head(of: Product) -> str:
    return f"""#include "kernel_grouped.cuh"
using namespace coop;
{of.functor.definition}using M = {of.functor};
using T = {ctype(of.element)};
static_assert(sizeof(M::State) == {of.state.itemsize}, "Python and CUDA disagree on a state");"""


def _unit(
    of: Product, parameters: str, call: str, bounds: str = f"{THREADS}", x: str = "const T* x, "
) -> str:
    """Return a program whose last arguments are the addresses of the states' fields."""
    names = [f"f{k}" for k in range(len(of.leaves))]
    pointers = ", ".join(f"unsigned char* {name}" for name in names)
    members = "".join(f"  unsigned char* {name};\n" for name in names)
    puts = "".join(
        f"    put_field<v, {offset}, {size}>({name}, i, s);\n"
        for name, (offset, size) in zip(names, of.leaves, strict=True)
    )
    return f"""{_head(of)}
struct Out {{
{members}  template <int v> __device__ void put(i64 i, const M::State* s) const {{
{puts}  }}
}};
extern "C" __global__ void __launch_bounds__({bounds})
entry({x}{parameters}, {pointers}) {{
  Out out{{{", ".join(names)}}};
  {call}
}}
"""


#: The threads of a block that deals elements to buckets, and the elements of each.
DEAL_THREADS, DEAL_ITEMS = 512, 16

#: The threads of a block that takes a bucket, and of one that settles; the groups of a bucket.
BUCKET_THREADS, SETTLE_THREADS, BUCKET = 1024, 256, 1 << 14

#: The most groups of buckets.
MOST_GROUPS = BUCKET * BUCKET_THREADS

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
    return f"""{_begin("lists", element, f"{DEAL_THREADS}, 2")}
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
    return f"""{_begin("sums", element)}
entry(const T* x, i64 size, int* exponent) {{
  largest_element<T, {BUCKET_THREADS}>(x, size, exponent);
}}
"""


@cache
def add(element: np.dtype[Any]) -> str:
    """Return the program that sums the lists of `deal`."""
    return f"""{_begin("sums", element, f"{BUCKET_THREADS}, 1")}
entry({_LISTS}, const int* exponent, double* table, u64* high, u64* low, u64* apart) {{
  SumTable<T> sums(table, high, low, apart, exponent);
  reduce_lists<T, SumTable<T>, {BUCKET_THREADS}>({_PASSED}, sums);
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
def extremes(element: np.dtype[Any], of: str, v: int, counted: bool) -> str:
    """Return the program that finds extrema in one read, by keys, in loads of `v` elements.

    If `counted`, it counts the elements of each group, too.
    """
    call = f"extremes_shared<T, {of}, {BUCKET_THREADS}, {v}, 4, {str(counted).lower()}>"
    return f"""{_begin("extremes", element, f"{BUCKET_THREADS}, 1")}
entry(const T* x, const int* codes, i64 size, int groups, unsigned* table, u64* counts) {{
  {call}(x, codes, size, groups, table, counts);
}}
"""


@cache
def extremes_of_lists(element: np.dtype[Any], of: str) -> str:
    """Return the program that finds extrema of the lists of `deal`, by keys."""
    table = f"ExtremeTable<T, {of}>"
    return f"""{_begin("extremes", element, f"{BUCKET_THREADS}, 1")}
entry({_LISTS}, unsigned* table) {{
  {table} keys(table);
  reduce_lists<T, {table}, {BUCKET_THREADS}>({_PASSED}, keys);
}}
"""


@cache
def find_extremes(element: np.dtype[Any], of: str, v: int) -> str:
    """Return the program that finds the first elements with their groups' keys, in loads of `v`."""
    return f"""{_begin("extremes", element, f"{BUCKET_THREADS}, 1")}
entry(const T* x, const int* codes, i64 size, int groups, const unsigned* table, i64* indices) {{
  find_extremes<T, {of}, {BUCKET_THREADS}, {v}, 4>(x, codes, size, groups, table, indices);
}}
"""


@cache
def settle_extremes(element: np.dtype[Any], of: str, functor: Functor) -> str:
    """Return the program that turns keys into elements, by the functor's identity for none."""
    return f"""{_begin("extremes", element, f"{SETTLE_THREADS}")}
entry(const unsigned* table, T* out, int groups) {{
  settle_extremes<T, {of}, {functor}>(table, out, groups);
}}
"""


def _begin(header: str, element: np.dtype[Any], bounds: str = f"{BUCKET_THREADS}") -> str:
    return f"""#include "kernel_group_{header}.cuh"
using namespace coop;
using T = {ctype(element)};
extern "C" __global__ void __launch_bounds__({bounds})"""


#: The threads of a block that writes codes.
CODE_THREADS = 512

Coding = Literal["range", "table", "sorted"]

_CODINGS: dict[Coding, tuple[str, str]] = {
    "range": ("u64 first, u64 n", "RangeCodes<T>{first, n}"),
    "table": ("u64 first, u64 n, const int* codes", "TableCodes<T>{first, n, codes}"),
    "sorted": (
        "int n, E low, E high, const E* edges, const int* guide, int cells, "
        "DistanceOf<E>::type scale, int staged, const int* codes",
        "SortedCodes<T, E>{{n, low, high, edges, guide, cells, scale, bool(staged)}, codes}",
    ),
}


@cache
def codes(label: np.dtype[Any], coding: Coding, compared: np.dtype[Any]) -> str:
    """Return the program that writes the codes of labels, which are compared in some dtype."""
    parameters, finder = _CODINGS[coding]
    return f"""#include "kernel_codes.cuh"
using namespace coop;
using T = {ctype(label)};
using E = {ctype(compared)};
extern "C" __global__ void __launch_bounds__({CODE_THREADS})
entry(const T* labels, i64 size, {parameters}, int* out) {{
  write_codes<T, decltype({finder}), {CODE_THREADS}>(labels, size, {finder}, out);
}}
"""
