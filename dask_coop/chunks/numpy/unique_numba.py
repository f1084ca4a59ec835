"""The loop that merges two states of distinct values, compiled for keys of any dtype: int64."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.jit import jit

Array = np.ndarray[Any, Any]
Fields = tuple[Array, Array, Array]


@jit
def _merge(x: Any, xi: Any, xc: Any, y: Any, yi: Any, yc: Any, z: Any, zi: Any, zc: Any) -> int:
    """Merge sorted keys, their first indices and counts into z; return how many are left.

    What is not asked for is empty.
    """
    n, m = len(x), len(y)
    has_index, has_counts = len(zi) > 0, len(zc) > 0
    i = j = k = 0
    while i < n and j < m:
        a, b = x[i], y[j]
        z[k] = min(a, b)
        # Selected, for nobody can foretell a branch.
        if has_index:
            first, second = xi[i], yi[j]
            either = min(first, second)
            zi[k] = first if a < b else (second if b < a else either)
        if has_counts:
            first, second = xc[i], yc[j]
            both = first + second
            zc[k] = first if a < b else (second if b < a else both)
        i += a <= b
        j += b <= a
        k += 1
    for keys, index, counts, start, stop in ((x, xi, xc, i, n), (y, yi, yc, j, m)):
        for at in range(start, stop):
            z[k] = keys[at]
            if has_index:
                zi[k] = index[at]
            if has_counts:
                zc[k] = counts[at]
            k += 1
    return k


def merge(parts: list[Fields]) -> Fields:
    """Merge sorted distinct keys, first indices and counts, two by two: all int64, some empty."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [_merged(*pair) if len(pair) > 1 else pair[0] for pair in pairs]
    return parts[0]


def _merged(a: Fields, b: Fields) -> Fields:
    made = [np.empty(len(x) + len(y), x.dtype) for x, y in zip(a, b, strict=True)]
    n = _merge(*a, *b, *made)
    keys, index, counts = (field[:n] for field in made)
    return keys, index, counts
