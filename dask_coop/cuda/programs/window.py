"""Statistics of windows: programs of kernel_window.cuh, and how much shared memory they take."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype

#: Threads of a block that takes columns, and elements of each that are on their way.
WIDTHS, STAGES = (128, 64, 32), 16

#: Threads of a block that takes part of a line.
THREADS = (128, 64, 32)

#: Functors by statistics, and bytes of what they keep of elements; None where it is an element.
_FUNCTORS = {
    "sum": ("WindowSum", 8),
    "mean": ("WindowMean", 8),
    "var": ("WindowVar", 16),
    "std": ("WindowStd", 16),
    "min": ("WindowMin<T>", None),
    "max": ("WindowMax<T>", None),
}

_BASE = "const double* first, const double* second, const i64* count"
_SPEC = "int length, int min_count, int ddof, double inverse"
_GIVEN = "WindowBase{first, second, count}"


def _kept(statistic: str, dtype: np.dtype[Any]) -> int:
    return _FUNCTORS[statistic][1] or dtype.itemsize


def column_bytes(statistic: str, dtype: np.dtype[Any], length: int) -> tuple[int, int, int]:
    """Return the memory of a column: for what is on its way, for states, and for bits."""
    return dtype.itemsize * STAGES, _kept(statistic, dtype) * length, 4 * -(-length // 32)


def row_bytes(statistic: str, dtype: np.dtype[Any], length: int, share: int) -> int:
    """Return the shared memory for `share` blocks of a line."""
    kept, words, stride = _kept(statistic, dtype), -(-length // 32), length | 1
    return kept * share * stride + dtype.itemsize * (share + 1) * stride + 4 * words * share


@cache
def columns(statistic: str, dtype: np.dtype[Any], width: int, spilled: bool) -> str:
    """Return the program of lines whose elements are apart in memory.

    States of a window that are `spilled` are in device memory.
    """
    functor, flag = _FUNCTORS[statistic][0], str(spilled).lower()
    call = f"window_columns<T, {functor}, {width}, {STAGES}, {flag}>"
    own = f"i64 n, i64 inner, int before, i64 tile, {functor}::V* work, unsigned* marks"
    given = "n, inner, before, tile, work, marks, "
    return _program(dtype, width, own, f"{call}(x, halo, y, {_GIVEN}, {given}")


@cache
def rows(statistic: str, dtype: np.dtype[Any], threads: int) -> str:
    """Return the program of contiguous lines."""
    call = f"window_rows<T, {_FUNCTORS[statistic][0]}, {threads}>"
    own = "i64 n, int before, i64 parts, int share, unsigned magic"
    given = "n, before, parts, share, magic, "
    return _program(dtype, threads, own, f"{call}(x, halo, y, {_GIVEN}, {given}")


def _program(dtype: np.dtype[Any], threads: int, own: str, call: str) -> str:
    return f"""#include "kernel_window.cuh"
using namespace coop;
using T = {ctype(dtype)};
extern "C" __global__ void __launch_bounds__({threads})
entry(const T* x, const T* halo, T* y, {_BASE}, {own}, {_SPEC}) {{
  {call}WindowSpec{{length, min_count, ddof, inverse}});
}}
"""


def programs(dtype: np.dtype[Any]) -> list[str]:
    """Return every program for elements of `dtype`, float32 or float64."""
    return [
        *(rows(statistic, dtype, nt) for statistic in _FUNCTORS for nt in THREADS),
        *(columns(statistic, dtype, nt, False) for statistic in _FUNCTORS for nt in WIDTHS),
        *(columns(statistic, dtype, WIDTHS[0], True) for statistic in _FUNCTORS),
    ]
