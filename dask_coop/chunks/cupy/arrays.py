"""Bring CuPy chunks into the form that kernels read: contiguous and aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy

Array = Any


def is_plain(x: Array) -> bool:
    """Return whether an array is in C order, contiguous, and aligned for its dtype.

    This check needs no GPU, so callers do it before they make the chunk's GPU the current one.
    """
    return bool(x.flags.c_contiguous and x.data.ptr % x.itemsize == 0)


def owners(xs: Sequence[Array]) -> dict[int, list[int]]:
    """Return the numbers of the chunks on each GPU, by the GPU's ordinal."""
    found: dict[int, list[int]] = {}
    for i, x in enumerate(xs):
        found.setdefault(x.data.device_id, []).append(i)
    return found


def dense(x: Array) -> tuple[Array, list[int]]:
    """Return `x` as a C-contiguous array with its axes in some order, and that order.

    Chunks in another dense order (transposed ones) are read in place; others are copied.
    """
    if x.size and not x.flags.c_contiguous:
        order = sorted(range(x.ndim), key=lambda d: -x.strides[d])
        if x.transpose(order).flags.c_contiguous:
            return aligned(x.transpose(order)), order
    return aligned(contiguous(x)), list(range(x.ndim))


def contiguous(x: Array) -> Array:
    """Return `x` in C order, copied if need be."""
    # CuPy's ascontiguousarray would turn a 0-d array into a 1-d one.
    return x if x.flags.c_contiguous else cupy.ascontiguousarray(x)


def aligned(x: Array) -> Array:
    """Return the contiguous `x`, copied if its address is not a multiple of its item size."""
    if x.data.ptr % x.dtype.itemsize == 0:
        return x
    copy = cupy.empty_like(x)
    copy.data.copy_from_device_async(x.data, x.nbytes)
    return copy
