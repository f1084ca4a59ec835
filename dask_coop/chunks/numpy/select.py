"""The elements of NumPy chunks that a mask holds for, and where elements are that are not zero.

Where about half of the elements are kept, NumPy's own branches of x[mask] are mostly guessed wrong,
which takes several times as long as the memory does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.loop_table import loops_for

Array = np.ndarray[Any, Any]

#: Of fewer than one element in so many NumPy guesses the branches right.
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
    found: Array = x[mask]
    return found


def flatnonzero(x: Array) -> Array:
    """Return where in C order `x` has elements that are not zero, as int64."""
    x = np.asarray(x)
    if x.dtype.kind in "mM" and x.dtype.isnative:
        x = x.view("i8")
    # NumPy has loops without branches for bool alone.
    return np.flatnonzero(x != 0 if x.dtype.kind in "iufc" else x)


def _is_plain(x: Array) -> bool:
    """Tell whether the loop reads `x` as it lies, its elements as words."""
    words = x.itemsize in (1, 2, 4, 8) and not x.dtype.hasobject
    return words and x.flags.c_contiguous and x.flags.aligned


def _bits_of(x: Array) -> str:
    return f"u{x.itemsize}"


def _as_bits(x: Array) -> Array:
    """Return the elements of `x` as unsigned integers along one axis, read-only for one loop."""
    flat = x.reshape(-1).view(_bits_of(x))
    flat.flags.writeable = False
    return flat
