"""Sums and products of NumPy chunks, most of them in an accumulator wider than the elements.

NumPy converts the elements to a buffer before it combines them, and multiplies them one by one.
Where Numba is installed and a chunk is large enough to pay for compiling, the loops of
loops/sums.py convert and combine in one step, several elements at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dask_coop.chunks.numpy.lines import aligned
from dask_coop.chunks.numpy.loop_table import loops_for

Array = np.ndarray[Any, Any]

#: The fewest elements of a line that is summed by itself.
_LONG = 1 << 9

_WIDENED = {"f4": "f8", **dict.fromkeys(("i1", "i2", "i4"), "i8")}
_WIDENED |= dict.fromkeys(("u1", "u2", "u4"), "u8")
_SUMS = {(np.dtype(a), np.dtype(b)) for a, b in _WIDENED.items()}
_PRODUCTS = _SUMS | {(np.dtype("f8"), np.dtype("f8"))}
#: The ufuncs, elements and accumulators that have loops. NumPy is as fast at sums of wide elements
#: and at products of wide integers.
_PAIRS: dict[np.ufunc, Any] = {np.add: _SUMS, np.multiply: _PRODUCTS}


def reduce(ufunc: np.ufunc, x: Array, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return ``ufunc.reduce(x, axes, dtype, initial=ufunc.identity)`` for sorted axes."""
    if (x.dtype, dtype) in _PAIRS.get(ufunc, ()):
        rows, multiply = axes == tuple(range(x.ndim - len(axes), x.ndim)), ufunc is np.multiply
        loops = loops_for("sums", x.size)
        x = x if loops is None else aligned(x)
        lines = _lines(x, x.ndim - len(axes) if rows else len(axes))
        if (rows or axes == tuple(range(len(axes)))) and lines is not None:
            n, step = lines.shape[rows], lines.strides[0] // x.itemsize
            if loops is not None and (multiply or not rows or n >= _LONG):
                span = (len(lines) - 1) * step + lines.shape[1]
                flat = as_strided(lines, (span,), (x.itemsize,), writeable=False)
                results = np.empty(lines.shape[1 - rows], dtype)
                if not rows:
                    loops.combine_columns(flat, step, n, results, multiply)
                elif multiply:
                    loops.multiply_rows(flat, step, n, results)
                else:
                    counts = np.empty(len(results), "i8")
                    loops.add_rows(flat, step, n, *(None,) * 4, counts, results)
                return results.reshape([m for d, m in enumerate(x.shape) if d not in axes])[()]
    return ufunc.reduce(x, axes, dtype=dtype, initial=ufunc.identity)


def _lines(x: Array, split: int) -> Array | None:
    """Return a view of `x` with two axes: those before `split`, and the others.

    Return None if the array is not in C order or has no such view.
    """
    if x.flags.c_contiguous and x.size:
        return x.reshape(math.prod(x.shape[:split]), -1)
    steps = x.strides[0] % x.itemsize == 0 < x.strides[0] if x.ndim == 2 else False
    return x if steps and split == 1 and x.strides[1] == x.itemsize else None
