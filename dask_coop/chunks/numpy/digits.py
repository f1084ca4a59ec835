"""Radix selection in NumPy chunks: count or collect samples by the digits of their keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_coop.algebra.digits import WIDTH, Digits, begins, key_bits, keys_of
from dask_coop.chunks.numpy.histogram import BLOCK
from dask_coop.chunks.numpy.loop_table import loops_for

Array = np.ndarray[Any, Any]

#: At most one in so many samples of a chunk is collected. If more qualify, the chunk is returned
#: whole: the collected samples of all chunks take memory besides the chunks.
_MOST = 64


def count(x: Array, digits: Digits, weights: Array | None, dtype: Any) -> Array:
    """Return the table of a chunk: the count, or sum of weights, of each digit after each prefix.

    Parameters
    ----------
    x : numpy.ndarray
        Not bool.
    digits : Digits
    weights : numpy.ndarray or None
        In the shape of `x`; summed in float64.
    dtype : dtype
        The dtype of the table.
    """
    table = np.zeros(digits.entries, "i8" if weights is None else "f8")
    if not digits.prefixes:
        return table.astype(dtype, copy=False)
    loops = loops_for("selection", x.size) if weights is None else None
    blocks = _flat(x, BLOCK if loops is None else x.size)
    if weights is not None:
        # Blocks in C order, so that they match the weights; without weights any order does.
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
    """Return the samples of a chunk that `digits` counts, or all if these are too many."""
    loops = loops_for("selection", x.size)
    most, blocks = x.size // _MOST, [np.empty(0, x.dtype)]
    for block in _flat(x, BLOCK if loops is None else x.size):
        if loops is None:
            blocks.append(block[begins(keys_of(block), digits)[0]])
            continue
        room = np.empty(most + loops.BLOCK, f"u{x.itemsize}")
        size = loops.collect(*_given(loops, block, digits), room)
        if size < 0:
            return x
        # A copy, so that the unused end of the buffer is freed.
        blocks.append(room[:size].view(x.dtype).copy())
    if sum(map(len, blocks)) > most:
        return x
    return np.concatenate(blocks) if len(blocks) > 2 else blocks[-1]


def _flat(x: Array, size: int) -> Iterator[Array]:
    """Yield the samples of a chunk as one-dimensional blocks of up to `size`, in any order."""
    order: Any = "F" if x.flags.f_contiguous else "C"
    if x.flags.c_contiguous or x.flags.f_contiguous:
        flat = x.reshape(-1, order=order)
        yield from (flat[at : at + size] for at in range(0, x.size, size))
    elif x.size:
        flags: Any = ["external_loop", "buffered", "zerosize_ok"]
        yield from np.nditer(x, flags=flags, order="K", buffersize=1 << 20)


def _given(loops: Any, x: Array, digits: Digits) -> tuple[Any, ...]:
    """Return the arguments of the loops.

    Raises
    ------
    TypeError
        If samples and `digits` differ in dtype: a loop would write beyond the table.
    """
    if key_bits(x.dtype) != key_bits(digits.dtype):
        raise TypeError(f"samples of dtype {x.dtype} have no digits of dtype {digits.dtype}")
    bits = x.view(f"u{x.itemsize}")
    bits.flags.writeable = False
    whole = digits.shift + digits.width == key_bits(digits.dtype)
    prefixes = np.array(() if whole else digits.prefixes, "u8")
    skip = np.uint64(max(0, key_bits(digits.dtype) - WIDTH))
    slots = np.empty(0, "u2") if whole else digits.slots
    numbers = np.uint64(digits.shift), np.uint64(digits.width), skip
    return bits, loops.KINDS.get(x.dtype.kind, loops.UNSIGNED), *numbers, prefixes, slots
