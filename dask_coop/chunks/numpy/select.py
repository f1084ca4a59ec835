"""Selection of elements of NumPy chunks by a mask, and indices of nonzero elements.

Where a mask keeps about half of the elements, the processor mispredicts most branches of NumPy's
x[mask], which then takes several times as long as the memory traffic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.loop_table import loops_for

Array = np.ndarray[Any, Any]

#: If a mask keeps fewer than one element in so many, branches are predicted well.
_FEW = 32


def compress(x: Array, mask: Array) -> Array:
    """Return ``x[mask]`` for a mask of the shape of `x`: one axis, in C order."""
    x, mask = np.asarray(x), np.asarray(mask)
    loops = loops_for("selection", x.size)
    if loops is not None and _is_plain(x) and mask.flags.c_contiguous:
        count = int(np.count_nonzero(mask))
        if x.size // _FEW <= count < x.size:
            out = np.empty(count, x.dtype)
            loops.compress(_as_bits(x), _as_bits(mask), out.view(_bits_of(x)))
            return out
    selected: Array = x[mask]
    return selected


def flatnonzero(x: Array) -> Array:
    """Return the C-order indices of nonzero elements of `x`, as int64."""
    x = np.asarray(x)
    if x.dtype.kind in "mM" and x.dtype.isnative:
        x = x.view("i8")
    # NumPy has loops without branches only for bool.
    return np.flatnonzero(x != 0 if x.dtype.kind in "iufc" else x)


def _is_plain(x: Array) -> bool:
    """Return whether the loop can read `x` in place, its elements as words."""
    words = x.itemsize in (1, 2, 4, 8) and not x.dtype.hasobject
    return words and x.flags.c_contiguous and x.flags.aligned


def _bits_of(x: Array) -> str:
    return f"u{x.itemsize}"


def _as_bits(x: Array) -> Array:
    """Return the elements of `x` as unsigned integers along one read-only axis, for one loop."""
    flat = x.reshape(-1).view(_bits_of(x))
    flat.flags.writeable = False
    return flat
