"""Programs of kernel_matmul.cuh, which multiply matrices over semirings."""

from __future__ import annotations

from collections.abc import Iterator
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
