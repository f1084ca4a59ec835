"""The scans: programs of kernel_scan.cuh."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.cuda.programs import ctype

#: Threads of a block.
THREADS = 256


def items_per_thread(itemsize: int) -> int:
    """Return how many elements of a tile a scanning thread takes: odd, against bank conflicts."""
    return 15 if itemsize <= 4 else 11 if itemsize <= 8 else 5


def rows(
    functor: str, element: np.dtype[Any], result: np.dtype[Any], state: np.dtype[Any], team: int
) -> str:
    """Return the inclusive scan of contiguous lines by teams of `team` threads."""
    vt = items_per_thread(max(element.itemsize, result.itemsize, state.itemsize))
    call = f"scan_rows<T, M, R, {THREADS}, {vt}, {team}, false>(x, y, base, outer, n, parts);"
    return _scan(functor, ctype(element), ctype(result), state, "", call)


def columns(
    functor: str, element: np.dtype[Any], result: np.dtype[Any], state: np.dtype[Any]
) -> str:
    """Return the inclusive scan of strided lines."""
    call = f"scan_columns<T, M, R, {THREADS}, false>(x, y, base, outer, n, inner, parts);"
    return _scan(functor, ctype(element), ctype(result), state, " i64 inner,", call)


def spine_rows(functor: str, state: np.dtype[Any]) -> str:
    """Return the exclusive scan of the states of contiguous lines."""
    vt = items_per_thread(state.itemsize)
    call = f"scan_rows<T, M, R, {THREADS}, {vt}, {THREADS}, true>(x, y, base, outer, n, parts);"
    name = f"{functor}::State"
    return _scan(f"Merge<{functor}>", name, name, state, "", call)


def spine_columns(functor: str, state: np.dtype[Any]) -> str:
    """Return the exclusive scan of the states of strided lines."""
    call = f"scan_columns<T, M, R, {THREADS}, true>(x, y, base, outer, n, inner, parts);"
    name = f"{functor}::State"
    return _scan(f"Merge<{functor}>", name, name, state, " i64 inner,", call)


def _scan(
    functor: str, element: str, result: str, state: np.dtype[Any], parameters: str, call: str
) -> str:
    return f"""#include "kernel_scan.cuh"
using namespace coop;
using M = {functor};
using T = {element};
using R = {result};
static_assert(sizeof(M::State) == {state.itemsize}, "Python and CUDA disagree on a state");
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const T* x, R* y, const M::State* base, i64 outer, i64 n,{parameters} i64 parts) {{
  {call}
}}
"""
