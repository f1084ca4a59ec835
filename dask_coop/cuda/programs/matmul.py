"""Programs that multiply matrices: kernel_matmul.cuh, its _int8.cuh, and kernel_deviations.cuh."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype

#: The threads of a block, and the side of its tile of results.
THREADS, SIDE = 256, 128

#: The depth of a stage and the stages of the ring, by the bytes of a word.
DEPTHS = {4: (16, 3), 8: (8, 3)}

#: The blocks that a multiprocessor has registers for, by the bytes of a word.
BLOCKS = {4: 2, 8: 1}

#: The dtypes of words that elements are widened to; other elements are words themselves.
WORDS = dict.fromkeys(("int8", "uint8", "int16", "uint16"), np.dtype("i4"))

#: The functors of the semirings that are named by a pattern.
FUNCTORS = {"min_plus": "MinPlus", "max_plus": "MaxPlus", "max_min": "MaxMin"}

DTYPES = tuple(map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")))


def word(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the words that elements of `dtype` are widened to."""
    return WORDS.get(dtype.name, dtype)


def shared_bytes(itemsize: int) -> int:
    """Return the dynamic shared memory of a block, in bytes, for words of `itemsize` bytes."""
    depth, stages = DEPTHS[itemsize]
    return depth * stages * (2 * SIDE * itemsize + 16)


def semiring(name: str, element: np.dtype[Any]) -> str:
    """Return the program that multiplies elements, widened to words, into elements.

    Parameters
    ----------
    name : {"plus_times", "min_plus", "max_plus", "max_min"}
    element : dtype
        One of `DTYPES`.
    """
    itemsize = word(element).itemsize
    if name == "plus_times":
        # Unsigned integers wrap by definition, to the same bits.
        kept = element if element.kind == "f" else np.dtype(f"u{itemsize}")
        return _matmul(f"PlusTimes<{ctype(kept)}>", element, itemsize)
    return _matmul(f"{FUNCTORS[name]}<{ctype(element)}>", element, itemsize)


def packed(element: np.dtype[Any]) -> str:
    """Return the program that multiplies bool in words of 32, or bytes in words of 4."""
    functor = "OrAnd" if element.kind == "b" else f"PlusTimesBytes<{ctype(element)}>"
    return _matmul(functor, element, 4)


def programs(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield every program for elements of `dtype`."""
    if dtype.itemsize == 1:
        yield packed(dtype)
    else:
        yield semiring("plus_times", dtype)
    if dtype.kind != "b":
        yield from (semiring(name, dtype) for name in FUNCTORS)
    if dtype in INT8_DTYPES:
        yield from (split_rows(dtype), split_columns(dtype))
        rings = range(INT8_LEAST_STAGES, INT8_STAGES + 1)
        yield from (multiply_planes(dtype, stages) for stages in rings)


def _matmul(functor: str, result: np.dtype[Any], itemsize: int) -> str:
    depth, stages = DEPTHS[itemsize]
    names = ["m", "n", "k", "pitch", "slice", "slices", "inner"]
    names += ["a_outer", "a_inner", "b_outer", "b_inner"]
    sizes = ", ".join(f"i64 {name}" for name in names)
    return f"""#include "kernel_matmul.cuh"
using namespace coop;
using S = {functor};
using R = {ctype(result)};
extern "C" __global__ void __launch_bounds__({THREADS}, {BLOCKS[itemsize]})
entry(const S::Word* a, const S::Word* b, R* out, {sizes}) {{
  matmul<S, R, {depth}, {stages}>(a, b, out, {{{", ".join(names)}}});
}}
"""


#: Threads of a block that multiplies bytes on tensor cores, or splits operands into bytes.
INT8_THREADS = 256

#: The tile of a block along m, n and k; planes are padded to these.
INT8_TILE = 128, 256, 128

#: The most stages of the ring in shared memory, and the fewest.
INT8_STAGES, INT8_LEAST_STAGES = 4, 2

#: The tile of `split_columns`, along n and k.
INT8_SPLIT = 32, 128

INT8_DTYPES = tuple(map(np.dtype, ("i1", "i2", "i4", "u1", "u2", "u4")))


#: The side of a block's tile of products of deviations, its threads, and its dynamic shared memory:
#: two sides for each of two turns.
DEVIATIONS_SIDE, DEVIATIONS_THREADS = 64, 256
DEVIATIONS_BYTES = 2 * 2 * DEVIATIONS_SIDE * (32 + 4) * 8


@cache
def deviations(element: np.dtype[Any]) -> str:
    """Return the program that multiplies deviations of real elements."""
    return f"""#include "kernel_deviations.cuh"
using namespace coop;
using T = {ctype(element)};
static_assert({DEVIATIONS_SIDE} == deviations_side, "Python and CUDA disagree on a side");
extern "C" __global__ void __launch_bounds__({DEVIATIONS_THREADS}, 2)
entry(const T* a, const double* shifts_a, i64 count_a, i64 row_a, i64 column_a,
      const T* b, const double* shifts_b, i64 count_b, i64 row_b, i64 column_b,
      int same, i64 n, i64 spans, double* products, double* sums_a, double* sums_b) {{
  Variables<T> left{{a, shifts_a, count_a, row_a, column_a}};
  Variables<T> right{{b, shifts_b, count_b, row_b, column_b}};
  multiply_deviations(left, right, same, n, spans, products, sums_a, sums_b);
}}
"""


def int8_shared_bytes(stages: int) -> int:
    """Return the dynamic shared memory of a block of `multiply_planes`."""
    return stages * (INT8_TILE[0] + INT8_TILE[1]) * INT8_TILE[2]


@cache
def split_rows(dtype: np.dtype[Any]) -> str:
    """Return the step that splits the left operands into planes of bytes."""
    return _int8(
        dtype,
        "const T* x, unsigned* y, i64 matrices, i64 m, i64 k, i64 mp, i64 kp",
        f"split_rows<T, {INT8_THREADS}>(x, y, matrices, m, k, mp, kp);",
    )


@cache
def split_columns(dtype: np.dtype[Any]) -> str:
    """Return the step that splits the right operands, and turns them."""
    parameters = "const T* x, unsigned* y, i64 k, i64 n, i64 np, i64 kp"
    return _int8(dtype, parameters, "split_columns<T>(x, y, k, n, np, kp);")


@cache
def multiply_planes(dtype: np.dtype[Any], stages: int) -> str:
    """Return the products of planes of integers of `dtype`, by a ring of so many stages."""
    names = "m", "n", "kp", "inner", "a_outer", "a_inner", "b_outer", "b_inner"
    return _int8(
        dtype,
        f"const unsigned char* a, const unsigned char* b, T* c, i64 {', i64 '.join(names)}",
        f"multiply_planes<T, {dtype.itemsize}, {stages}>(a, b, c, {', '.join(names)});",
    )


def _int8(dtype: np.dtype[Any], parameters: str, call: str) -> str:
    m, n, k = INT8_TILE
    return f"""#include "kernel_matmul_int8.cuh"
using namespace coop;
using T = {ctype(dtype)};
using Tile = BytesTile;
static_assert(Tile::bm == {m} && Tile::bn == {n} && Tile::kt == {k}, "");
extern "C" __global__ void __launch_bounds__({INT8_THREADS})
entry({parameters}) {{
  {call}
}}
"""
