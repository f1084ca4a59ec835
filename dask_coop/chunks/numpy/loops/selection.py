"""The loops of radix selection by digits of samples' keys, of registers, and of masks.

Hashes of keys are those of `algebra/registers.py`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.algebra.digits import NO_SLOT
from dask_coop.algebra.registers import FIRST, SECOND, STEP
from dask_coop.compiled.jit import jit, jit_inner

Array = np.ndarray[Any, Any]

_NO_SLOT = NO_SLOT

#: The constants of hashes.
_ADDED, _FIRST, _SECOND = np.uint64(STEP), np.uint64(FIRST), np.uint64(SECOND)

#: Samples whose keys are made at a time.
BLOCK = _BLOCK = 1 << 11

#: Codes of the ways to turn the bits of a sample into a key.
UNSIGNED, SIGNED, FLOAT, DATE = range(4)
_FLOAT = FLOAT

#: The code of each kind of samples; the others are unsigned.
KINDS = {"i": SIGNED, "f": FLOAT, "M": DATE, "m": DATE}


@jit_inner
def _to_keys(bits: Any, kind: int, keys: Any) -> None:
    """Write the keys of samples to `keys`, as uint64."""
    one = np.uint64(1)
    size = np.uint64(8 * bits.itemsize)
    sign = one << (size - one)
    full = sign - one | sign
    if kind == UNSIGNED:
        for i in range(len(bits)):
            keys[i] = bits[i]
    elif kind == SIGNED:
        for i in range(len(bits)):
            keys[i] = np.uint64(bits[i]) ^ sign
    elif kind == DATE:
        for i in range(len(bits)):
            keys[i] = (np.uint64(bits[i]) ^ sign) - one & full
    else:
        mantissa = np.uint64(10 if size == 16 else 23 if size == 32 else 52)
        infinity = (sign - one) >> mantissa << mantissa
        for i in range(len(bits)):
            bit = np.uint64(bits[i])
            key = bit ^ (full if bit & sign else sign)
            keys[i] = full if bit & (sign - one) > infinity else key


@jit_inner
def _find(key: Any, shift: Any, width: Any, skip: Any, prefixes: Any, slots: Any) -> Any:
    """Return the index of the prefix with which a key begins, or -1."""
    slot: Any = np.int64(slots[np.int64(key >> skip)])
    if slot == _NO_SLOT:
        return -1
    prefix = key >> shift >> width
    if prefixes[slot] != prefix:
        # Several prefixes begin so: they are longer than those that `slots` tells apart.
        end = len(prefixes) - 1
        while slot < end:
            middle = (slot + end) // 2
            if prefixes[middle] < prefix:
                slot = middle + 1
            else:
                end = middle
    return slot if prefixes[slot] == prefix else -1


def _count(
    bits: Any,
    kind: int,
    shift: Any,
    width: Any,
    skip: Any,
    prefixes: Any,
    slots: Any,
    table: Any,
    keys: Any,
) -> None:
    last = (np.uint64(1) << width) - np.uint64(1)
    for start in range(0, len(bits), _BLOCK):
        n = _BLOCK if len(bits) - start > _BLOCK else len(bits) - start
        _to_keys(bits[start : start + n], kind, keys)
        if len(prefixes) == 0:
            for i in range(n):
                table[np.int64(keys[i] >> shift)] += 1
        elif len(prefixes) == 1:
            only = prefixes[0]
            for i in range(n):
                if keys[i] >> shift >> width == only:
                    table[np.int64(keys[i] >> shift & last)] += 1
        else:
            for i in range(n):
                slot = _find(keys[i], shift, width, skip, prefixes, slots)
                if slot >= 0:
                    table[slot << np.int64(width) | np.int64(keys[i] >> shift & last)] += 1


def _collect(
    bits: Any,
    kind: int,
    shift: Any,
    width: Any,
    skip: Any,
    prefixes: Any,
    slots: Any,
    found: Any,
    keys: Any,
) -> Any:
    # `slots` decides alone for prefixes as long as those it covers.
    behind, at = shift + width, 0
    for start in range(0, len(bits), _BLOCK):
        n = _BLOCK if len(bits) - start > _BLOCK else len(bits) - start
        if at + n > len(found):
            return -1
        block = bits[start : start + n]
        _to_keys(block, kind, keys)
        if len(prefixes) == 1:
            only = prefixes[0]
            for i in range(n):
                found[at] = block[i]
                at += keys[i] >> behind == only
        elif behind == skip:
            for i in range(n):
                found[at] = block[i]
                at += slots[np.int64(keys[i] >> skip)] != _NO_SLOT
        else:
            for i in range(n):
                if _find(keys[i], shift, width, skip, prefixes, slots) >= 0:
                    found[at] = block[i]
                    at += 1
    return at


_count_keys: Any = jit(_count, allocates=False)
_collect_keys: Any = jit(_collect, allocates=False)


def count(*arguments: Any) -> None:
    """Add the samples that begin with one of the prefixes to the table of their digits.

    Without prefixes all samples count. `skip` is the number of low bits of a key that `slots`, from
    `Digits.slots`, does not cover.
    """
    _count_keys(*arguments, np.empty(_BLOCK, np.uint64))


def collect(*arguments: Any) -> Any:
    """Write the samples that begin with one of the prefixes to `found`; return their number.

    Return -1 if they exceed the room, which has one block more than the permitted number.
    """
    return _collect_keys(*arguments, np.empty(_BLOCK, np.uint64))


#: Elements between two checks whether all are found.
_STEP = 8


def _compress(x: Array, mask: Array, out: Array) -> None:
    n, total, i, k = len(x), len(out), 0, 0
    # Every element is written, and the next one overwrites it unless it is selected: a branch that
    # the processor cannot predict takes longer.
    while k < total - _STEP and i <= n - _STEP:
        for j in range(i, i + _STEP):
            out[k] = x[j]
            k += mask[j] != 0
        i += _STEP
    while k < total and i < n:
        out[k] = x[i]
        k += mask[i] != 0
        i += 1


#: Write the elements for which a mask, of bytes, is not 0: as many as there is room for.
compress: Final = jit(_compress)


def _fill(lines: Any, kind: int, bits: Any, keys: Any, table: Any) -> None:
    unit, left = np.uint64(1), np.uint64(64) - bits
    last = unit << (bits - unit)
    # The keys of -0.0 and 0.0 are neighbours.
    negative = (unit << np.uint64(8 * lines.itemsize - 1)) - unit
    after = np.uint64(kind == _FLOAT)
    for line in range(len(lines)):
        for start in range(0, lines.shape[1], _BLOCK):
            block = lines[line, start : start + _BLOCK]
            _to_keys(block, kind, keys)
            for i in range(len(block)):
                key = keys[i] + after * np.uint64(keys[i] == negative) + _ADDED
                key = (key ^ key >> np.uint64(30)) * _FIRST
                key = (key ^ key >> np.uint64(27)) * _SECOND
                key ^= key >> np.uint64(31)
                others, at = key << bits | last, np.int64(key >> left)
                rank: Any = np.uint64(table[line, at])
                # Rarely true, once many elements were seen: they begin with more zeros.
                if not others >> unit >> np.uint64(63) - rank:
                    while not others >> unit >> np.uint64(63) - rank:
                        rank += unit
                    table[line, at] = rank


_fill_registers: Any = jit(_fill, allocates=False)


def fill_registers(lines: Array, bits: int, table: Array) -> None:
    """Fill registers: a row of `table` for each row of contiguous `lines`."""
    unsigned = lines.view(f"u{lines.itemsize}")
    unsigned.flags.writeable = False
    kind = KINDS.get(lines.dtype.kind, UNSIGNED)
    _fill_registers(unsigned, kind, np.uint64(bits), np.empty(_BLOCK, "u8"), table)
