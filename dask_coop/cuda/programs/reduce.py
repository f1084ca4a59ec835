"""Programs of kernel_reduce.cuh, which reduce lines."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import Functor, ctype

#: The threads of a block.
THREADS = 256

#: The blocks that share a multiprocessor: enough to have at least 40 KB in flight from memory, and
#: few enough for 64 registers a thread, or 80 for columns.
BLOCKS, COLUMN_BLOCKS = 4, 3

#: The most bytes of states that a thread of strided lines accumulates.
_STATES_BYTES = 32


def columns_per_thread(element: np.dtype[Any], state: np.dtype[Any]) -> int:
    """Return how many neighbouring columns a thread loads and reduces."""
    return max(1, min(8, 16 // element.itemsize, _STATES_BYTES // state.itemsize))


def slab_loads(state: np.dtype[Any]) -> int:
    """Return how many loads of 16 bytes a thread that copies slabs has in flight."""
    return 6 if state.itemsize <= 40 else 4 if state.itemsize <= 64 else 3


def slab_bytes(state: np.dtype[Any]) -> int:
    """Return how many bytes of slabs a block copies at a time."""
    return (THREADS * slab_loads(state) - 1) * 16


@cache
def slabs(functor: Functor, element: np.dtype[Any], state: np.dtype[Any]) -> str:
    """Return the program that reduces slabs, many of which fit into shared memory."""
    body = f"reduce_slabs<T, M, {THREADS}, {slab_loads(state)}>"
    return _reduce(
        functor,
        element,
        state,
        "i64 outer, int n, int inner, int slabs, int team",
        f"{body}(x, out, outer, n, inner, slabs, team);",
    )


@cache
def rows(functor: Functor, element: np.dtype[Any], state: np.dtype[Any]) -> str:
    """Return the program that reduces contiguous lines by a warp each."""
    call = f"reduce_rows<T, M, {THREADS}, {loads(element, state)}>(x, out, outer, n);"
    return _reduce(functor, element, state, "i64 outer, int n", call)


@cache
def long_rows(functor: Functor, element: np.dtype[Any], state: np.dtype[Any]) -> str:
    """Return the program that reduces contiguous lines that several blocks share."""
    body = f"reduce_long_rows<T, M, {THREADS}, {loads(element, state)}>"
    return _reduce(
        functor,
        element,
        state,
        "M::State* tile_states, unsigned* tickets, i64 n, i64 tiles",
        f"{body}(x, out, tile_states, tickets, n, tiles);",
    )


@cache
def long_pairs(functor: Functor, element: np.dtype[Any], state: np.dtype[Any]) -> str:
    """Return the program that reduces lines of two arrays, whose pairs are complex `element`s."""
    number = loads(element, state)
    return f"""#include "kernel_reduce.cuh"
using namespace coop;
{functor.definition}using M = {functor};
using T = {ctype(element)};
using Real = {ctype(np.dtype(f"f{element.itemsize // 2}"))};
static_assert(sizeof(M::State) == {state.itemsize}, "Python and CUDA disagree on a state");
extern "C" __global__ void __launch_bounds__({THREADS}, {BLOCKS})
entry(const Real* x, const Real* y, M::State* out, M::State* tile_states, unsigned* tickets,
      i64 n, i64 tiles, int skips) {{
  auto reduce = reduce_long_pairs<T, Real, M, {THREADS}, {-(-number // 2)}>;
  reduce(x, y, out, tile_states, tickets, n, tiles, skips);
}}
"""


@cache
def long_columns(functor: Functor, element: np.dtype[Any], state: np.dtype[Any], v: int) -> str:
    """Return the program that reduces strided lines shared by blocks, in loads of `v` elements."""
    return _reduce(
        functor,
        element,
        state,
        "M::State* tile_states, unsigned* tickets, "
        "i64 n, i64 inner, i64 width, i64 tiles, int lanes",
        f"reduce_columns<T, M, {THREADS}, {v}, {_row_loads(element, v)}>"
        "(x, out, tile_states, tickets, n, inner, width, tiles, lanes);",
        COLUMN_BLOCKS,
    )


@cache
def threads(functor: Functor, element: np.dtype[Any], state: np.dtype[Any], v: int) -> str:
    """Return the program that reduces `v` strided lines by each thread."""
    loads = max(4, _row_loads(element, v) // 2)
    return _reduce(
        functor,
        element,
        state,
        "i64 columns, int n, i64 inner",
        f"reduce_threads<T, M, {THREADS}, {v}, {loads}>(x, out, columns, n, inner);",
    )


def loads(element: np.dtype[Any], state: np.dtype[Any]) -> int:
    """Return how many loads of 16 bytes a thread of a contiguous line has in flight."""
    # More than 32 converted elements would not fit into registers. Large states take longer to
    # process what has arrived, so more must be in flight while registers last.
    if element.itemsize <= 2:
        return 2 * element.itemsize
    return 4 if state.itemsize <= 16 else 6 if state.itemsize <= 64 else 3


def _row_loads(element: np.dtype[Any], v: int) -> int:
    """Return how many rows a thread of strided lines has in flight."""
    return max(2, min(16, 64 // (v * element.itemsize), 32 // v))


def _reduce(
    functor: Functor,
    element: np.dtype[Any],
    state: np.dtype[Any],
    parameters: str,
    call: str,
    blocks: int = BLOCKS,
) -> str:
    return f"""#include "kernel_reduce.cuh"
using namespace coop;
{functor.definition}using M = {functor};
using T = {ctype(element)};
static_assert(sizeof(M::State) == {state.itemsize}, "Python and CUDA disagree on a state");
extern "C" __global__ void __launch_bounds__({THREADS}, {blocks})
entry(const T* x, M::State* out, {parameters}) {{
  {call}
}}
"""
