"""The reductions: programs of kernel_reduce.cuh."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.cuda.programs import ctype

#: Threads of a block.
THREADS = 256

#: Threads that reduce one contiguous line of at most so many elements; longer ones take a block.
TEAMS = ((2, 16), (8, 256), (32, 4096))


def rows(functor: str, element: np.dtype[Any], state: np.dtype[Any], team: int) -> str:
    """Return the reduction of contiguous lines by teams of `team` threads."""
    return _reduce(functor, ctype(element), state, _rows(team))


def columns(functor: str, element: np.dtype[Any], state: np.dtype[Any]) -> str:
    """Return the reduction of strided lines."""
    return _reduce(functor, ctype(element), state, _COLUMNS)


def merge_rows(functor: str, state: np.dtype[Any], team: int) -> str:
    """Return the reduction of contiguous lines of states."""
    return _reduce(f"Merge<{functor}>", f"{functor}::State", state, _rows(team))


def merge_columns(functor: str, state: np.dtype[Any]) -> str:
    """Return the reduction of strided lines of states."""
    return _reduce(f"Merge<{functor}>", f"{functor}::State", state, _COLUMNS)


_COLUMNS = (
    ", i64 inner, i64 parts, int log_width",
    "reduce_columns<T, M, {threads}>(x, out, outer, n, inner, parts, log_width);",
)


def _rows(team: int) -> tuple[str, str]:
    return (
        ", i64 parts",
        f"reduce_rows<T, M, {{threads}}, {team}>(x, out, outer, n, parts);",
    )


def _reduce(functor: str, element: str, state: np.dtype[Any], body: tuple[str, str]) -> str:
    parameters, call = body
    return f"""#include "kernel_reduce.cuh"
using namespace coop;
using M = {functor};
using T = {element};
static_assert(sizeof(M::State) == {state.itemsize}, "Python and CUDA disagree on a state");
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const T* x, M::State* out, i64 outer, i64 n{parameters}) {{
  {call.format(threads=THREADS)}
}}
"""
