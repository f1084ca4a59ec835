"""Integer keys in the order of elements, so that one compiled loop serves all dtypes.

Loops read elements of up to 64 bits as int64, as they are in memory or widened. A step that depends
on the dtype's kind turns these bits into a key. Keys are equal where elements are; NaN and NaT have
the largest key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

#: Codes of the step that makes keys: none, or the one for unsigned integers, dates or floats.
PLAIN, UNSIGNED, TICKS, FLOAT = range(4)

LEAST, MOST = int(np.iinfo("i8").min), int(np.iinfo("i8").max)
#: The bits of infinity.
INFINITY = 0x7FF0000000000000


class Bits(NamedTuple):
    """The bits of elements, contiguous, and the step that makes keys of them."""

    array: Array
    step: int


def find_bits(x: Array) -> Bits | None:
    """Return the bits of elements, or None for elements of more than 64 bits."""
    if x.dtype.kind not in "biufmM" or x.itemsize > 8:
        return None
    if x.dtype.kind in "mM":
        return Bits(fixed(x).view("i8"), TICKS)
    if x.dtype == "u8":
        return Bits(fixed(x).view("i8"), UNSIGNED)
    if x.dtype.kind == "f":
        return Bits(fixed(x.astype("f8", copy=False)).view("i8"), FLOAT)
    return Bits(fixed(x.astype("i8", copy=False)), PLAIN)


def fixed(x: Array) -> Array:
    """Return a view, or copy, in the only layout for which loops are compiled."""
    x = np.require(x, requirements=["C", "A"]).view()
    x.flags.writeable = False
    return x


def keys_of(bits: Bits) -> Array:
    """Return the keys of some bits; bits of floats must be those of sorted elements."""
    x, step = bits
    if step == UNSIGNED:
        return x ^ LEAST
    if step == TICKS:
        # The least integer stands for NaT.
        return x - 1
    if step == FLOAT:
        floats, keys = x.view("f8"), x.copy()
        zeros, positive = (np.searchsorted(floats, 0, side) for side in ("left", "right"))
        np.subtract(LEAST, keys[:zeros], out=keys[:zeros])
        keys[zeros:positive] = 0
        keys[np.searchsorted(floats, np.inf, "right") :] = MOST
        return keys
    return x


def elements(keys: Array, dtype: np.dtype[Any]) -> Array:
    """Return the elements of a dtype with these keys; keys of floats must be sorted."""
    if dtype.kind in "mM":
        return (keys + 1).view(dtype)
    if dtype == "u8":
        return (keys ^ LEAST).view(dtype)
    if dtype.kind == "f":
        bits, negative = keys.copy(), np.searchsorted(keys, 0)
        np.subtract(LEAST, bits[:negative], out=bits[:negative])
        return bits.view("f8").astype(dtype, copy=False)
    return keys.astype(dtype, copy=False)
