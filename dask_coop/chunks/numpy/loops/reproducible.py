"""The loops of reproducible.py, compiled by Numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.algebra.reproducible import DIGITS, WIDTH
from dask_coop.compiled.jit import jit, jit_inner

Array = np.ndarray[Any, Any]

#: Elements of a row that are read twice, and the rows and columns of such a tile.
_LENGTH, _TALL, _WIDE = 2048, 16, 128

#: The distance between the sums of a tile's digits. A fraction of a page would make the processor
#: confuse stores with loads.
_APART = _WIDE + 8

# `SHIFTS` of reproducible.py, and their bits.
_A, _B, _C, _D = (float(1.5 * 2.0 ** (52 - WIDTH * k)) for k in range(DIGITS))
_A_BITS, _B_BITS, _C_BITS, _D_BITS = (int(np.float64(s).view("i8")) for s in (_A, _B, _C, _D))


def _raise(exponent: Array, digits: Array, line: int, magnitude: float) -> bool:
    """Make room for numbers of that magnitude; return whether it is finite."""
    if not np.isfinite(magnitude):
        return False
    to = ((np.float64(magnitude).view(np.int64) >> 52) + 10) // WIDTH - 42
    if to > exponent[line]:
        for _ in range(min(to - exponent[line], DIGITS)):
            for k in range(DIGITS - 1, 0, -1):
                digits[k, line] = digits[k - 1, line]
            digits[0, line] = 0
        exponent[line] = to
    return True


def _scale(exponent: int) -> float:
    """Return ``2.0 ** (-24 * (exponent - 1))``."""
    return np.int64((1023 - WIDTH * (exponent - 1)) << 52).view(np.float64)


def _cut(scaled: float) -> tuple[Any, Any, Any, Any]:
    """Return the bits of each digit of a scaled element, shifted."""
    a = np.float64(scaled + _A)
    rest = scaled - (a - _A)
    b = np.float64(rest + _B)
    rest -= b - _B
    c = np.float64(rest + _C)
    rest -= c - _C
    d = np.float64(rest + _D)
    return a.view(np.int64), b.view(np.int64), c.view(np.int64), d.view(np.int64)


def _flush(sums: Array, rows: int, digits: Array, first: int, width: int) -> None:
    """Move the sums over so many rows to the digits of their lines; wraps, as the sums do."""
    for i in range(width):
        digits[0, first + i] += sums[i] - rows * _A_BITS
        digits[1, first + i] += sums[_APART + i] - rows * _B_BITS
        digits[2, first + i] += sums[2 * _APART + i] - rows * _C_BITS
        digits[3, first + i] += sums[3 * _APART + i] - rows * _D_BITS
    sums[:] = 0


_raise, _scale = jit_inner(_raise), jit_inner(_scale)
_cut, _flush = jit_inner(_cut), jit_inner(_flush)


def _rows(x: Array, bits: Array, exponent: Array, digits: Array) -> bool:
    mask = (1 << (8 * bits.itemsize - 1)) - 1
    largest = np.empty(1, bits.dtype)
    for line in range(x.shape[0]):
        for start in range(0, x.shape[1], _LENGTH):
            part, masked = x[line][start : start + _LENGTH], bits[line][start : start + _LENGTH]
            top = 0
            for i in range(part.size):
                top = max(top, masked[i] & mask)
            largest[0] = top
            if not _raise(exponent, digits, line, largest.view(x.dtype)[0]):
                return False
            scale = _scale(exponent[line])
            a = b = c = d = np.int64(0)
            for i in range(part.size):
                p, q, r, s = _cut(np.float64(part[i]) * scale)
                a += p
                b += q
                c += r
                d += s
            # Wraps, as the sums above do.
            digits[0, line] += a - part.size * _A_BITS
            digits[1, line] += b - part.size * _B_BITS
            digits[2, line] += c - part.size * _C_BITS
            digits[3, line] += d - part.size * _D_BITS
    return True


def _columns(x: Array, bits: Array, exponent: Array, digits: Array) -> bool:
    mask = (1 << (8 * bits.itemsize - 1)) - 1
    largest, scale = np.empty(_WIDE, bits.dtype), np.empty(_WIDE)
    # One array, so that loops need not check whether several overlap.
    sums = np.zeros(DIGITS * _APART, np.int64)
    for first in range(0, x.shape[1], _WIDE):
        width = min(_WIDE, x.shape[1] - first)
        # An even number of rows, which are processed two by two.
        tall = _TALL * _WIDE // width // 2 * 2
        summed = 0
        known = np.full(_WIDE, -1, bits.dtype)
        largest[:] = 0
        for start in range(0, x.shape[0], tall):
            stop = min(start + tall, x.shape[0])
            for row in range(start, stop):
                masked = bits[row][first : first + width]
                for i in range(width):
                    largest[i] = max(largest[i], masked[i] & mask)
            larger = 0
            for i in range(width):
                larger += largest[i] > known[i]
            if larger:
                _flush(sums, summed, digits, first, width)
                summed = 0
                magnitudes = largest.view(x.dtype)
                for i in range(width):
                    if largest[i] > known[i]:
                        if not _raise(exponent, digits, first + i, magnitudes[i]):
                            return False
                        scale[i] = _scale(exponent[first + i])
                        known[i] = largest[i]
            for row in range(start, stop - 1, 2):
                one, other = x[row][first : first + width], x[row + 1][first : first + width]
                for i in range(width):
                    a, b, c, d = _cut(np.float64(one[i]) * scale[i])
                    p, q, r, s = _cut(np.float64(other[i]) * scale[i])
                    sums[i] += a + p
                    sums[_APART + i] += b + q
                    sums[2 * _APART + i] += c + r
                    sums[3 * _APART + i] += d + s
            if (stop - start) % 2:
                one = x[stop - 1][first : first + width]
                for i in range(width):
                    a, b, c, d = _cut(np.float64(one[i]) * scale[i])
                    sums[i] += a
                    sums[_APART + i] += b
                    sums[2 * _APART + i] += c
                    sums[3 * _APART + i] += d
            summed += stop - start
        _flush(sums, summed, digits, first, width)
    return True


_rows, _columns = jit(_rows), jit(_columns)


def add_rows(x: Array, exponent: Array, digits: Array) -> bool:
    """Do the work of `_add_rows` of reproducible.py for float32 or float64 in C order."""
    return bool(_rows(x, x.view(f"i{x.itemsize}"), exponent, digits))


def add_columns(x: Array, exponent: Array, digits: Array) -> bool:
    """Do the work of `_add_columns` of reproducible.py for float32 or float64 in C order."""
    return bool(_columns(x, x.view(f"i{x.itemsize}"), exponent, digits))
