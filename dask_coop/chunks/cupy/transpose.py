"""Transposed copies of CuPy chunks, by kernel_transpose.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy

from dask_coop.algebra.strategies import AUTO, refusal
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import transpose as programs
from dask_coop.errors import DoesNotApply

Array = Any


def transpose(x: Array, axes: Sequence[int] | None = None, strategy: str = AUTO) -> Array:
    """Return a copy of the chunk `x` in C order, with its axes in another order.

    Parameters
    ----------
    x : cupy.ndarray
        With any strides.
    axes : sequence of int, optional
        ``result.shape == tuple(x.shape[axis] for axis in axes)``; by default the axes reversed.
    strategy : str
        "auto", or a name of `algebra.strategies.TRANSPOSE`.

    Raises
    ------
    ValueError
        If `axes` is not a permutation of the axes of `x`, or the strategy does not apply.
    """
    with x.device:
        view = x.transpose(axes)
        result = cupy.empty(view.shape, x.dtype)
        starts = (x.data.ptr, result.data.ptr)
        named = None if strategy == AUTO else strategy
        try:
            steps = [*programs.plan(view.shape, view.strides, x.itemsize, starts, named)]
        except DoesNotApply as error:
            raise refusal("transpose", strategy, str(error)) from None
        for step in steps:
            addresses = (start + offset for start, offset in zip(starts, step.offsets, strict=True))
            launch(step.source, step.blocks, step.threads, *addresses, *step.arguments)
        return result


def contiguous(x: Array) -> Array:
    """Return `x` if it is in C order, otherwise a copy in C order."""
    return x if x.flags.c_contiguous else transpose(x, range(x.ndim))
