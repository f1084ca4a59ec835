"""Sums held to exact arithmetic: numbers that are hard to add up, and shapes for each kernel."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from support.strategies import Chunked, arrays

#: Shapes and the axes to reduce, by the kernel that they are for.
KERNEL_SHAPES = {
    "slabs": [((1001, 64), (1,)), ((100_001, 2), (1,)), ((999, 17), (1,)), ((1000, 50, 3), (1,))],
    "rows": [((1001, 1025), (1,)), ((513, 5000), (1,)), ((8500, 1030), (1,))],
    "long rows": [((33,), (0,)), ((4099,), (0,)), ((2_000_003,), (0,)), ((3, 300_001), (1,))],
    "narrow columns": [((300_001, 5), (0,)), ((30_011, 31), (0,)), ((37, 3000, 3), (1,))],
    "wide columns": [((999, 4096), (0,)), ((3001, 129), (0,)), ((20_001, 130), (0,))],
    "threads": [((2, 1_100_003), (0,)), ((3, 1_200_000), (0,)), ((20_000, 5, 64), (1,))],
    "several axes": [((7, 5, 11, 13), (1, 2)), ((7, 5, 11, 13), (0, 2)), ((3, 4, 5000), (0, 1, 2))],
    "nothing": [((0,), (0,)), ((5, 0), (1,)), ((0, 5), (0,)), ((0, 5), (1,))],
}


def rounded(x: Fraction, dtype: Any) -> Any:
    """Return `x` rounded once to the float `dtype`, half to even."""
    info = np.finfo(dtype)
    if x == 0:
        return info.dtype.type(0)
    size = abs(x)
    e = size.numerator.bit_length() - size.denominator.bit_length()
    e -= size < Fraction(2) ** e
    unit = Fraction(2) ** (max(e, int(info.minexp)) - info.nmant)
    value = round(size / unit) * unit
    with np.errstate(over="ignore"):
        result = np.inf if abs(value) > Fraction(float(info.max)) else float(value)
        return info.dtype.type(math.copysign(result, 1 if x > 0 else -1))


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(x).tobytes()


@st.composite
def hard_arrays(draw: st.DrawFn, dtypes: list[str]) -> Chunked:
    """Arrays whose elements differ much in size, some of them not finite."""
    case = draw(arrays(dtypes=dtypes, special=draw(st.booleans())))
    x = case.array
    # Palettes have few values: half of the elements are moved by powers of two.
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    with np.errstate(all="ignore"):
        x = (x * np.ldexp(1.0, rng.integers(-60, 1, x.shape))).astype(x.dtype)
    return Chunked(x, case.chunks)


def scattered(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Return numbers of many sizes, of which the largest ones come late."""
    rng = np.random.default_rng(seed)
    info = np.finfo(dtype)
    powers = rng.integers(info.minexp - info.nmant, info.maxexp - 2, shape)
    x = np.ldexp(rng.standard_normal(shape) / 8, np.sort(powers, None).reshape(shape))
    usual = rng.standard_normal(shape)
    x = np.where(rng.random(shape) < 0.5, usual, x)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * np.flip(x)
    return x.astype(dtype)
