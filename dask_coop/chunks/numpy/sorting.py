"""NumPy's sort, with float16 sorted as float32.

On processors with AVX-512, NumPy 2.4's default sort of float16 leaves some elements unsorted (for
example 26,000 elements of a few neighbouring values). So do `numpy.unique` and `numpy.histogram`,
which call it. Its stable sort, `argsort` and `partition` of float16 are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]


def sortable(x: Array) -> Array:
    """Return elements in a dtype that NumPy sorts correctly, with the same order and equalities."""
    return x.astype("f4") if x.dtype.kind == "f" and x.itemsize == 2 else x


def sort(x: Array, axis: int = -1, kind: Literal["stable"] | None = None) -> Array:
    """Return a sorted copy of `x`."""
    return np.sort(sortable(x), axis, kind=kind).astype(x.dtype, copy=False)


def merge(xs: Sequence[Array], stable: bool) -> Array:
    """Return the sorted elements of several sorted arrays of one axis."""
    x = np.concatenate([*map(sortable, xs)])
    # A stable sort merges arrays that are sorted; other sorts are faster where they use vectors.
    x.sort(kind="stable" if stable or x.dtype.kind not in "biufmM" else None)
    return x.astype(xs[0].dtype, copy=False)
