"""Where in memory the lines of a chunk are, as the loops of scan_numba.py take it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

Array = np.ndarray[Any, Any]

#: The first element of a scan, and steps from there to the next group of lines and along a line.
Place = tuple[int, int, int]

#: Lines that are neighbours and so few that loops go along one after the other.
FEW = 12


def flatten(x: Array) -> tuple[Array, Place]:
    """Return the memory of (outer, n, inner), read-only and so of one type for Numba; and a place.

    Lines are neighbours there; of an array where they are not it is a copy.
    """
    if x.dtype.kind == "b":
        x = x.view("u1")
    apart = x.shape[2] > 1 and x.strides[2] != x.itemsize
    if apart or any(step % x.itemsize for step in x.strides):
        x = np.ascontiguousarray(x)
    if x.flags.c_contiguous:
        memory = x.reshape(-1)
    else:
        lowest = x[tuple(slice(None, None, -1 if step < 0 else 1) for step in x.strides)]
        reach = sum((n - 1) * step for n, step in zip(x.shape, lowest.strides, strict=True))
        memory = as_strided(lowest, (reach // x.itemsize + 1,), (x.itemsize,))
    memory.flags.writeable = False
    return memory, place(x, memory)


def place(x: Array, memory: Array) -> Place:
    """Return where in `memory` the lines of (outer, n, inner) are."""
    first = x.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return first // x.itemsize, x.strides[0] // x.itemsize, x.strides[1] // x.itemsize
