"""Loops over sorted keys: merge two states of distinct values, or search for elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.keys import FLOAT, INFINITY, LEAST, MOST, TICKS, UNSIGNED, Bits, fixed
from dask_coop.compiled.jit import jit, jit_inner

Array = np.ndarray[Any, Any]
Fields = tuple[Array, Array, Array]

#: Elements that are searched for side by side, so that they wait for memory together.
_ABREAST = 16

_NONE = np.empty(0, "i8"), np.empty(0, "?")


@jit
def _merge(x: Any, xi: Any, xc: Any, y: Any, yi: Any, yc: Any, z: Any, zi: Any, zc: Any) -> int:
    """Merge sorted keys, their first indices and counts into z; return the number of results.

    Unused fields are empty.
    """
    n, m = len(x), len(y)
    has_index, has_counts = len(zi) > 0, len(zc) > 0
    i = j = k = 0
    while i < n and j < m:
        a, b = x[i], y[j]
        z[k] = min(a, b)
        # Selected without a branch, which the processor could not predict.
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
    """Merge sorted distinct keys, first indices and counts pairwise: all int64, some empty."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [_merged(*pair) if len(pair) > 1 else pair[0] for pair in pairs]
    return parts[0]


def _merged(a: Fields, b: Fields) -> Fields:
    made = [np.empty(len(x) + len(y), x.dtype) for x, y in zip(a, b, strict=True)]
    n = _merge(*map(fixed, (*a, *b)), *made)
    keys, index, counts = (field[:n] for field in made)
    return keys, index, counts


@jit_inner
def _key(bits: Any, step: Any) -> Any:
    if step == UNSIGNED:
        return bits ^ LEAST
    if step == TICKS:
        return bits - 1
    if step == FLOAT:
        key = LEAST - bits if bits < 0 else bits
        return MOST if (bits & MOST) > INFINITY else key
    return bits


@jit
def _search(keys: Any, bits: Any, step: Any, right: Any, places: Any, among: Any) -> None:
    """Write the number of keys before each element, or whether elements are among the keys.

    The unused output is empty.
    """
    wanted, base = np.empty(_ABREAST, np.int64), np.empty(_ABREAST, np.int64)
    n, size = len(bits), len(keys)
    for start in range(0, n, _ABREAST):
        abreast = min(_ABREAST, n - start)
        for j in range(_ABREAST):
            # Lanes beyond the end repeat the search for the last element.
            wanted[j] = _key(bits[start + min(j, abreast - 1)], step)
            base[j] = 0
        left = size
        while left > 0:
            half = (left + 1) >> 1
            for j in range(_ABREAST):
                beyond = base[j] + half
                key = keys[beyond - 1]
                base[j] = beyond if (key < wanted[j]) | (right & (key == wanted[j])) else base[j]
            left -= half
        for j in range(abreast):
            if len(places) > 0:
                places[start + j] = base[j]
            else:
                among[start + j] = keys[min(base[j], size - 1)] == wanted[j]


def search(keys: Array, x: Bits, right: bool) -> Array:
    """Return the number of sorted keys before each element, or not behind it if `right`."""
    places = np.empty(len(x.array), "i8")
    _search(fixed(keys), x.array, x.step, right, places, _NONE[1])
    return places


def contains(keys: Array, x: Bits) -> Array:
    """Return whether each element has one of some sorted keys."""
    among = np.empty(len(x.array), "?")
    _search(fixed(keys), x.array, x.step, False, _NONE[0], among)
    return among
