"""The plain histogram: programs of kernel_count.cuh."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs import ctype
from dask_coop.cuda.programs.histogram import THREADS


@cache
def count(element: np.dtype[Any], edge: np.dtype[Any], shared: bool) -> str:
    """Return the histogram that counts, in shared memory or in the table itself."""
    body = f"count_{'shared' if shared else 'global'}<T, E, {THREADS}>"
    return _histogram(element, edge, "", "u64", f"{body}(x, size, bins, table);")


@cache
def weigh(
    element: np.dtype[Any], edge: np.dtype[Any], weight: np.dtype[Any], total: np.dtype[Any]
) -> str:
    """Return the histogram that sums weights."""
    table = "double" if total.kind == "f" else "u64"
    body = f"weigh_global<T, E, W, {table}, {THREADS}>"
    parameters = f" const {ctype(weight)}* weights,"
    call = f"using W = {ctype(weight)};\n  {body}(x, weights, size, bins, table);"
    return _histogram(element, edge, parameters, table, call)


def _histogram(
    element: np.dtype[Any], edge: np.dtype[Any], parameters: str, table: str, call: str
) -> str:
    return f"""#include "kernel_count.cuh"
using namespace coop;
using T = {ctype(element)};
using E = {ctype(edge)};
extern "C" __global__ void __launch_bounds__({THREADS}, 1)
entry(const T* x,{parameters} i64 size, const E* edges, int n, E low, E high, E scale, E slack,
      {table}* table) {{
  Bins<E> bins{{edges, n, low, high, scale, slack}};
  {call}
}}
"""
