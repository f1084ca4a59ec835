"""Programs of kernel_matmul_int8.cuh, which multiply integer matrices on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype

#: The threads of a block of every program.
THREADS = 256

#: The tile of a block along m, n and k; planes are padded to these.
TILE = 128, 256, 128

#: The most stages of the ring in shared memory, and the fewest.
STAGES, LEAST_STAGES = 4, 2

#: The tile of `split_columns`, along n and k.
SPLIT = 32, 128

DTYPES = tuple(map(np.dtype, ("i1", "i2", "i4", "u1", "u2", "u4")))


def shared_bytes(stages: int) -> int:
    """Return the dynamic shared memory of a block of `multiply`."""
    return stages * (TILE[0] + TILE[1]) * TILE[2]


@cache
def split_rows(dtype: np.dtype[Any]) -> str:
    """Return the program that splits left operands into planes of bytes."""
    return _unit(
        dtype,
        "const T* x, unsigned* y, i64 matrices, i64 m, i64 k, i64 mp, i64 kp",
        f"split_rows<T, {THREADS}>(x, y, matrices, m, k, mp, kp);",
    )


@cache
def split_columns(dtype: np.dtype[Any]) -> str:
    """Return the program that splits and transposes right operands."""
    parameters = "const T* x, unsigned* y, i64 k, i64 n, i64 np, i64 kp"
    return _unit(dtype, parameters, "split_columns<T>(x, y, k, n, np, kp);")


@cache
def multiply(dtype: np.dtype[Any], stages: int) -> str:
    """Return the program that multiplies planes of integers, with a ring of `stages` stages."""
    names = "m", "n", "kp", "inner", "a_outer", "a_inner", "b_outer", "b_inner"
    return _unit(
        dtype,
        f"const unsigned char* a, const unsigned char* b, T* c, i64 {', i64 '.join(names)}",
        f"multiply_planes<T, {dtype.itemsize}, {stages}>(a, b, c, {', '.join(names)});",
    )


def programs(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield every program for integers of `dtype`."""
    yield from (split_rows(dtype), split_columns(dtype))
    yield from (multiply(dtype, stages) for stages in range(LEAST_STAGES, STAGES + 1))


def _unit(dtype: np.dtype[Any], parameters: str, call: str) -> str:
    return f"""#include "kernel_matmul_int8.cuh"
using namespace coop;
using T = {ctype(dtype)};
using Tile = BytesTile;
static_assert(Tile::bm == {TILE[0]} && Tile::bn == {TILE[1]} && Tile::kt == {TILE[2]}, "");
extern "C" __global__ void __launch_bounds__({THREADS})
entry({parameters}) {{
  {call}
}}
"""
