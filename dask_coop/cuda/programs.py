"""The generated translation units: one kernel each, an instance of a template in kernels/.

Everything here is text made of dtypes and names, so it needs no GPU. Tuning stands here as data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Threads of a block that reduces or scans, and of one that counts.
THREADS = 256
HISTOGRAM_THREADS = 1024

CTYPES = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "i64",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "u64",
    "float16": "half_t",
    "float32": "float",
    "float64": "double",
    "complex64": "complex_t<float>",
    "complex128": "complex_t<double>",
}


def ctype(dtype: np.dtype[Any]) -> str:
    """Return the C++ name of `dtype`."""
    return CTYPES[dtype.name]


def items_per_thread(itemsize: int) -> int:
    """Return how many elements of a tile a scanning thread takes: odd, against bank conflicts."""
    return 15 if itemsize <= 4 else 11 if itemsize <= 8 else 5


def reduce_rows(functor: str, element: np.dtype[Any], state: np.dtype[Any], team: int) -> str:
    """Return the reduction of contiguous lines by teams of `team` threads."""
    return _reduce(functor, ctype(element), state, _rows(team))


def reduce_columns(functor: str, element: np.dtype[Any], state: np.dtype[Any]) -> str:
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


def scan_rows(
    functor: str, element: np.dtype[Any], result: np.dtype[Any], state: np.dtype[Any], team: int
) -> str:
    """Return the inclusive scan of contiguous lines by teams of `team` threads."""
    vt = items_per_thread(max(element.itemsize, result.itemsize, state.itemsize))
    call = f"scan_rows<T, M, R, {THREADS}, {vt}, {team}, false>(x, y, base, outer, n, parts);"
    return _scan(functor, ctype(element), ctype(result), state, "", call)


def scan_columns(
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


def count(element: np.dtype[Any], edge: np.dtype[Any], shared: bool) -> str:
    """Return the histogram that counts, in shared memory or in the table itself."""
    body = f"count_{'shared' if shared else 'global'}<T, E, {HISTOGRAM_THREADS}>"
    return _histogram(element, edge, "", "u64", f"{body}(x, size, bins, table);")


def weigh(
    element: np.dtype[Any], edge: np.dtype[Any], weight: np.dtype[Any], total: np.dtype[Any]
) -> str:
    """Return the histogram that sums weights."""
    table = "double" if total.kind == "f" else "u64"
    body = f"weigh_global<T, E, W, {table}, {HISTOGRAM_THREADS}>"
    parameters = f" const {ctype(weight)}* weights,"
    call = f"using W = {ctype(weight)};\n  {body}(x, weights, size, bins, table);"
    return _histogram(element, edge, parameters, table, call)


def _histogram(
    element: np.dtype[Any], edge: np.dtype[Any], parameters: str, table: str, call: str
) -> str:
    return f"""#include "kernel_histogram.cuh"
using namespace coop;
using T = {ctype(element)};
using E = {ctype(edge)};
extern "C" __global__ void __launch_bounds__({HISTOGRAM_THREADS}, 1)
entry(const T* x,{parameters} i64 size, const E* edges, int n, E low, E high, E scale, E slack,
      {table}* table) {{
  Bins<E> bins{{edges, n, low, high, scale, slack}};
  {call}
}}
"""
