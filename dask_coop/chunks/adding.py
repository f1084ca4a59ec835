"""Sums of NumPy chunks in an accumulator that is wider than the elements.

NumPy converts the elements to a buffer before it adds them; where Numba is there and chunks are
large enough to pay for its compiler, the loops of adding_numba.py convert and add in one step.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

Array = np.ndarray[Any, Any]

#: The least elements of a chunk for which loops are compiled, and of a line that is summed alone.
WORTH_COMPILING, _LONG = 1 << 16, 1 << 9

#: What elements are added up in what.
_WIDENED = {"f4": "f8", **dict.fromkeys(("i1", "i2", "i4"), "i8")}
_WIDENED |= dict.fromkeys(("u1", "u2", "u4"), "u8")
_PAIRS = {(np.dtype(a), np.dtype(b)) for a, b in _WIDENED.items()}


@cache
def _loops() -> ModuleType | None:
    try:
        from dask_coop.chunks import adding_numba
    except ImportError:
        return None
    return adding_numba


def compiled(x: Array) -> ModuleType | None:
    """Return the loops for a chunk, or None where there is no Numba or they are not worth it."""
    return _loops() if x.size >= WORTH_COMPILING and x.flags.aligned else None


def add(x: Array, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return ``np.add.reduce(x, axes, dtype, initial=0)``, for sorted axes."""
    if (x.dtype, dtype) in _PAIRS:
        rows = axes == tuple(range(x.ndim - len(axes), x.ndim))
        lines = _lines(x, x.ndim - len(axes) if rows else len(axes))
        if (rows or axes == tuple(range(len(axes)))) and lines is not None:
            loops = compiled(x)
            n, step = lines.shape[rows], lines.strides[0] // x.itemsize
            if loops is not None and (not rows or n >= _LONG):
                span = (len(lines) - 1) * step + lines.shape[1]
                flat = as_strided(lines, (span,), (x.itemsize,), writeable=False)
                sums = np.empty(lines.shape[1 - rows], dtype)
                (loops.add_rows if rows else loops.add_columns)(flat, step, n, sums)
                return sums.reshape([m for d, m in enumerate(x.shape) if d not in axes])[()]
    return np.add.reduce(x, axes, dtype=dtype, initial=0)


def _lines(x: Array, split: int) -> Array | None:
    """Return a view of `x` with its axes before `split` as one and the others as one.

    None stands for an array that is not in C order, or has no such view.
    """
    if x.flags.c_contiguous and x.size:
        return x.reshape(math.prod(x.shape[:split]), -1)
    steps = x.strides[0] % x.itemsize == 0 < x.strides[0] if x.ndim == 2 else False
    return x if steps and split == 1 and x.strides[1] == x.itemsize else None
