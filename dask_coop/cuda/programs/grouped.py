"""Programs of kernel_grouped.cuh, which reduce by group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

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
