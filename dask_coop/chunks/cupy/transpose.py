"""Transposed copies of CuPy chunks, by kernel_transpose.cuh.

============ ======================================================================================
strategy     for
============ ======================================================================================
``"tiles"``  two long axes that are exchanged: the last one of the copy and the contiguous one
``"rows"``   contiguous rows of many words that stay rows
``"boxes"``  all else: short axes, short rows, strided elements
============ ======================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy

from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import transpose as programs

Array = Any

STRATEGIES = programs.STRATEGIES


def transpose(x: Array, axes: Sequence[int] | None = None, strategy: str | None = None) -> Array:
    """Return a copy of the chunk `x` in C order, with its axes in another order.

    Parameters
    ----------
    x : cupy.ndarray
        Of any strides.
    axes : sequence of int, optional
        ``result.shape == tuple(x.shape[axis] for axis in axes)``; by default the axes reversed.
    strategy : str, optional
        One of `STRATEGIES`, instead of the one that suits.

    Raises
    ------
    ValueError
        If `axes` is no permutation of the axes of `x`, or the strategy does not apply.
    """
    with x.device:
        view = x.transpose(axes)
        result = cupy.empty(view.shape, x.dtype)
        starts = (x.data.ptr, result.data.ptr)
        for step in programs.plan(view.shape, view.strides, x.itemsize, starts, strategy):
            addresses = (start + offset for start, offset in zip(starts, step.offsets, strict=True))
            launch(step.source, step.blocks, step.threads, *addresses, *step.arguments)
        return result


def contiguous(x: Array) -> Array:
    """Return `x` in C order: itself where it is, a copy otherwise."""
    return x if x.flags.c_contiguous else transpose(x, range(x.ndim))
