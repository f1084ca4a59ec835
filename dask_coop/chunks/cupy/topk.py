"""The best elements of the lines of CuPy chunks, by sorting."""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.topk import TopK, rank
from dask_coop.chunks.cupy.arrays import contiguous
from dask_coop.chunks.cupy.states import HOST_STATE_BYTES

Array = Any


def lift(monoid: TopK, x: Array, axes: tuple[int, ...]) -> State:
    """Return the best elements of a chunk along one axis, and their indices."""
    (axis,), k, indices = axes, monoid.k, monoid.positional
    lines = contiguous(cupy.moveaxis(x, axis, -1))
    *kept, n = lines.shape
    state = largest(lines.reshape(math.prod(kept), n), k, indices)
    shape = (*kept, min(abs(k), n))
    # States that are combined have to be in one memory, those of short chunks, too.
    nbytes = math.prod(kept) * abs(k) * sum(field.itemsize for field in state)
    to_host = nbytes <= HOST_STATE_BYTES
    fields = (cupy.asnumpy(field) if to_host else field for field in state)
    return tuple(field.reshape(shape) for field in fields)


def largest(x: Array, k: int, indices: bool) -> State:
    """Return the `k` largest elements of lines in C order, or the smallest ones, and their indices.

    Where lines have no more, these are all. Equal ones are in their order.

    Parameters
    ----------
    x : cupy.ndarray
        Of shape ``(lines, n)``.
    k : int
        Negative for the smallest.
    indices : bool
        Whether indices are returned besides, int64.
    """
    count = min(abs(k), x.shape[-1])
    if x.size == 0 or count == 0:
        at = cupy.zeros((len(x), count), np.int64)
        values = cupy.empty(at.shape, x.dtype)
        return (values, at) if indices else (values,)
    at = contiguous(rank(x, k)[:, :count])
    values = cupy.take_along_axis(x, at, -1)
    return (values, at) if indices else (values,)
