"""Programs of kernel_window.cuh and kernel_window_order.cuh, and their shared memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype

#: The threads of a block that takes columns, and the elements of each in flight.
WIDTHS, STAGES = (128, 64, 32), 16

#: The most threads of a block that takes a tile of a line, and the results of each, for longer
#: windows.
THREADS, VALUES = 128, (16, 8, 4)

#: The functors of statistics, and the bytes of their values; None for an element's.
_FUNCTORS = {
    "sum": ("WindowSum", 8),
    "mean": ("WindowMean", 8),
    "var": ("WindowVar", 16),
    "std": ("WindowStd", 16),
    "min": ("WindowMin<T>", None),
    "max": ("WindowMax<T>", None),
}

#: The threads of a block of order statistics, and the results of each, which are odd.
ORDER_THREADS, STRETCH = 64, 65

#: The functors of order statistics, and the rooms of windows that registers hold sorted.
_ORDER = {
    "rank": "WindowRank<T>",
    "argmin": "WindowPlace<T, true>",
    "argmax": "WindowPlace<T, false>",
    "quantile": "WindowQuantile<T>",
}
_ROOMS = {4: (16, 32, 64), 8: (16, 32)}

_BASE = "const double* first, const double* second, const i64* count"
_SPEC = "int length, int min_count, int ddof, double inverse"
_GIVEN = "WindowBase{first, second, count}"


def _kept(statistic: str, dtype: np.dtype[Any]) -> int:
    return _FUNCTORS[statistic][1] or dtype.itemsize


def column_bytes(statistic: str, dtype: np.dtype[Any], length: int) -> tuple[int, int, int]:
    """Return the memory of a column: for elements in flight, for states, and for bits."""
    return dtype.itemsize * STAGES, _kept(statistic, dtype) * length, 4 * -(-length // 32)


def row_values(length: int) -> int:
    """Return how many results of a line a thread makes."""
    return next((vt for vt in VALUES if vt < length), VALUES[-1])


def row_bytes(statistic: str, dtype: np.dtype[Any], length: int, threads: int) -> int:
    """Return the shared memory of `threads` threads of a line."""
    vt = row_values(length)
    groups = threads + -(-(length - 1) // vt)
    staged = -(-dtype.itemsize * groups * (vt + 1) // 16) * 16
    whole = length - 1 >= 2 * vt
    return staged + 2 * groups * (_kept(statistic, dtype) + 4) * whole


@cache
def columns(statistic: str, dtype: np.dtype[Any], width: int, spilled: bool) -> str:
    """Return the program for lines whose elements are apart in memory.

    States of a window that are `spilled` are in device memory.
    """
    functor, flag = _FUNCTORS[statistic][0], str(spilled).lower()
    call = f"window_columns<T, {functor}, {width}, {STAGES}, {flag}>"
    own = f"i64 n, i64 inner, int before, i64 tile, {functor}::V* work, unsigned* marks"
    given = "n, inner, before, tile, work, marks, "
    return _program(dtype, width, own, f"{call}(x, halo, y, {_GIVEN}, {given}")


@cache
def rows(statistic: str, dtype: np.dtype[Any], vt: int) -> str:
    """Return the program for contiguous lines, with `vt` results by a thread."""
    call = f"window_rows<T, {_FUNCTORS[statistic][0]}, {vt}>"
    own = "i64 n, int before, i64 parts"
    return _program(dtype, THREADS, own, f"{call}(x, halo, y, {_GIVEN}, n, before, parts, ")


def order_functor(statistic: str, dtype: np.dtype[Any], length: int) -> str:
    """Return the functor of an order statistic of windows."""
    if statistic not in ("median", "quantile"):
        return _ORDER[statistic]
    room = next((room for room in _ROOMS[dtype.itemsize] if length <= room), None)
    return _ORDER["quantile"] if room is None else f"WindowSorted<T, {room}>"


def order_bytes(dtype: np.dtype[Any], length: int) -> int:
    """Return the shared memory of a block of order statistics."""
    return dtype.itemsize * (ORDER_THREADS * STRETCH + length - 1)


@cache
def order(functor: str, dtype: np.dtype[Any]) -> str:
    """Return the program of an order statistic of contiguous lines."""
    return f"""#include "kernel_window_order.cuh"
using namespace coop;
using T = {ctype(dtype)};
extern "C" __global__ void __launch_bounds__({ORDER_THREADS})
entry(const T* x, const T* halo, T* y, i64 n, int before, i64 parts, int length, int min_count,
      int first, double q) {{
  OrderSpec spec = {{length, min_count, first, q}};
  window_order<T, {functor}, {STRETCH}>(x, halo, y, n, before, parts, spec);
}}
"""


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
        *(rows(statistic, dtype, vt) for statistic in _FUNCTORS for vt in VALUES),
        *(columns(statistic, dtype, nt, False) for statistic in _FUNCTORS for nt in WIDTHS),
        *(columns(statistic, dtype, WIDTHS[0], True) for statistic in _FUNCTORS),
        *(order(functor, dtype) for functor in _ORDER.values()),
        *(order(f"WindowSorted<T, {room}>", dtype) for room in _ROOMS[dtype.itemsize]),
    ]
