"""Radix selection in NumPy chunks: samples are counted, or collected, by digits of their keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_coop.algebra.digits import WIDTH, Digits, begins, key_bits, keys_of
from dask_coop.chunks.numpy.histogram import BLOCK
from dask_coop.chunks.numpy.loop_table import loops_for

Array = np.ndarray[Any, Any]

#: What share of a chunk is collected at most: where more of it is wanted, it stays as it is, for
#: what all chunks leave takes memory besides them.
_MOST = 64


def count(x: Array, digits: Digits, weights: Array | None, dtype: Any) -> Array:
    """Return the table of a chunk: how often each digit follows each prefix, or with what weights.

    Parameters
    ----------
    x : numpy.ndarray
        Not bool.
    digits : Digits
    weights : numpy.ndarray or None
        In the shape of `x`; they are added up in float64.
    dtype : dtype
        That of the table.
    """
    table = np.zeros(digits.entries, "i8" if weights is None else "f8")
    if not digits.prefixes:
        return table.astype(dtype, copy=False)
    loops = loops_for("selection", x.size) if weights is None else None
    blocks = _flat(x, BLOCK if loops is None else x.size)
    if weights is not None:
        # In one order, which blocks without weights need not be in.
        x, weights = x.reshape(-1), weights.reshape(-1)
        blocks = (x[begin : begin + BLOCK] for begin in range(0, x.size, BLOCK))
    at = 0
    for block in blocks:
        if loops is not None:
            loops.count(*_given(loops, block, digits), table)
            continue
        keys = keys_of(block)
        inside, slot = begins(keys, digits)
        digit = (keys >> keys.dtype.type(digits.shift)).astype("i8") & ((1 << digits.width) - 1)
        some = None if weights is None else weights[at : at + len(block)][inside]
        entries = (slot << digits.width | digit)[inside]
        table += np.bincount(entries, some, digits.entries)
        at += len(block)
    return table.astype(dtype, copy=False)


def collect(x: Array, digits: Digits) -> Array:
    """Return the samples of a chunk that `digits` counts, or all if they are not few."""
    loops = loops_for("selection", x.size)
    most, found = x.size // _MOST, [np.empty(0, x.dtype)]
    for block in _flat(x, BLOCK if loops is None else x.size):
        if loops is None:
            found.append(block[begins(keys_of(block), digits)[0]])
            continue
        room = np.empty(most + loops.BLOCK, f"u{x.itemsize}")
        size = loops.collect(*_given(loops, block, digits), room)
        if size < 0:
            return x
        # A copy, so that the room that is left can be used.
        found.append(room[:size].view(x.dtype).copy())
    if sum(map(len, found)) > most:
        return x
    return np.concatenate(found) if len(found) > 2 else found[-1]


def _flat(x: Array, size: int) -> Iterator[Array]:
    """Yield the samples of a chunk on one axis, so many at a time, in any order."""
    order: Any = "F" if x.flags.f_contiguous else "C"
    if x.flags.c_contiguous or x.flags.f_contiguous:
        flat = x.reshape(-1, order=order)
        yield from (flat[at : at + size] for at in range(0, x.size, size))
    elif x.size:
        flags: Any = ["external_loop", "buffered", "zerosize_ok"]
        yield from np.nditer(x, flags=flags, order="K", buffersize=1 << 20)


def _given(loops: Any, x: Array, digits: Digits) -> tuple[Any, ...]:
    """Return what the loops take.

    Raises
    ------
    TypeError
        If samples have another dtype than `digits`, whose table a loop would leave.
    """
    if key_bits(x.dtype) != key_bits(digits.dtype):
        raise TypeError(f"samples of dtype {x.dtype} have no digits of dtype {digits.dtype}")
    kind = {"i": loops.SIGNED, "f": loops.FLOAT, "M": loops.DATE, "m": loops.DATE}
    bits = x.view(f"u{x.itemsize}")
    bits.flags.writeable = False
    whole = digits.shift + digits.width == key_bits(digits.dtype)
    prefixes = np.array(() if whole else digits.prefixes, "u8")
    skip = np.uint64(max(0, key_bits(digits.dtype) - WIDTH))
    slots = np.empty(0, "u2") if whole else digits.slots
    numbers = np.uint64(digits.shift), np.uint64(digits.width), skip
    return bits, kind.get(x.dtype.kind, loops.UNSIGNED), *numbers, prefixes, slots
