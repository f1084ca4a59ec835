"""Replacements of CuPy's functions that keep subnormal float32, which CuPy flushes to zero.

CuPy compiles all its kernels with ``-ftz=true``. Here float32 numbers are compared as integers, and
arithmetic and conversions are instructions that the compiler does not change.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

Array = Any

_F4, _F8 = np.dtype("f4"), np.dtype("f8")

#: The bits of a float32 as an integer with the same order, except for NaN.
_RANK = "__device__ int rank(int x) { return x < 0 ? -(x & 0x7fffffff) : x; }"
_RANKS = {
    "<f4": cupy.ElementwiseKernel("int32 x", "int32 y", "y = rank(x)", "rank_f4", preamble=_RANK),
    # The real part is the lower half.
    "<c8": cupy.ElementwiseKernel(
        "int64 x", "int64 y", "y = rank(x) * (1LL << 32) + rank(x >> 32)", "rank_c8", preamble=_RANK
    ),
}
_BETTER = cupy.ElementwiseKernel(
    "int32 a, int32 b, bool most, bool skip",
    "int32 y",
    """bool a_nan = (a & 0x7fffffff) > 0x7f800000, b_nan = (b & 0x7fffffff) > 0x7f800000;
    bool better = most ? rank(b) > rank(a) : rank(b) < rank(a);
    y = (a_nan ? skip : b_nan ? !skip : better) ? b : a""",
    "extremum_f4",
    preamble=_RANK,
)
_ARITHMETIC: dict[np.ufunc, Any] = {
    ufunc: cupy.ElementwiseKernel(
        "float32 a, float32 b",
        "float32 y",
        f'asm("{word}.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b))',
        f"{word}_f4",
    )
    for ufunc, word in ((np.add, "add"), (np.subtract, "sub"), (np.multiply, "mul"))
}
_CASTS = {
    (_F4, _F8): cupy.ElementwiseKernel(
        "float32 x", "float64 y", 'asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x))', "f8_of_f4"
    ),
    (_F8, _F4): cupy.ElementwiseKernel(
        "float64 x", "float32 y", 'asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x))', "f4_of_f8"
    ),
}


def extremum(ufunc: np.ufunc, a: Array, b: Array) -> Array:
    """Return the elementwise extrema of two arrays by a ufunc; one may be a NumPy array."""
    if a.dtype != b.dtype or a.dtype != np.float32:
        return ufunc(a, b)
    options = ufunc in (np.maximum, np.fmax), ufunc in (np.fmax, np.fmin)
    return _BETTER(*(cupy.asarray(x).view("i4") for x in (a, b)), *options).view("f4")


def comparable(a: Array, b: Array) -> tuple[Array, Array]:
    """Return integers in the order of two arrays' elements, or the arrays if CuPy is exact."""
    rank = _RANKS.get(a.dtype.str)
    if rank is None or a.dtype != b.dtype:
        return a, b
    bits = f"i{a.dtype.itemsize}"
    first, second = (rank(cupy.asarray(x).view(bits)) for x in (a, b))
    return first, second


def arithmetic(ufunc: np.ufunc, a: Array, b: Array) -> Array:
    """Return the sum, difference or product of two arrays; one may be a NumPy array."""
    common = np.result_type(a.dtype, b.dtype)
    a, b = (cast(cupy.asarray(x), common) for x in (a, b))
    return _ARITHMETIC[ufunc](a, b) if common == _F4 else ufunc(a, b)


def cast(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array as one of `dtype`."""
    dtype = np.dtype(dtype)
    if x.dtype.kind == dtype.kind == "c" and x.dtype != dtype:
        result = cupy.empty_like(x, dtype)
        result.real, result.imag = (cast(part, result.real.dtype) for part in (x.real, x.imag))
        return result
    kernel = _CASTS.get((x.dtype, dtype))
    return x.astype(dtype, copy=False) if kernel is None else kernel(x)
