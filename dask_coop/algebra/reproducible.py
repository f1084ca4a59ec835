"""Sums with the same bits for every order and grouping: digits of fixed weights.

After J. Demmel and H. D. Nguyen, "Parallel Reproducible Summation", IEEE Transactions on Computers
64 (2015).  All numbers are split along the same grid::

    bin           E-1          E-2          E-3          E-4
    unit       2^(24 (E-1)) 2^(24 (E-2)) 2^(24 (E-3)) 2^(24 (E-4))
    x      =     digit 0      digit 1      digit 2      digit 3     below: dropped

A digit is the remainder of x after the digits before it, rounded to whole units, half to even.  The
*exponent* of x is the least E for which x is less than half a unit of bin E, so x has no digit in
bins from E on: its digits do not depend on where the window starts.  The exponent of a sum is the
largest of its elements'. Its digits are sums of their digits, bin by bin, in integers and without
carries; digits of bins below the window are dropped.  A bin of the last window was in all windows
before, and so has the digits of every element.

Every digit is at most 2^23, so int64 holds the sums of `LIMIT` elements.  The dropped rest of an
element is at most half a unit of the last bin: 2^-72 of the largest element.

A state is the sum of the non-finite elements; the exponent and the digits of each component (real
numbers have one, complex numbers two); and possibly counts of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_coop.algebra.merges import cast

#: The binary logarithm of the ratio of neighbouring units.
WIDTH = 24

#: The number of digits of a number.
DIGITS = 4

#: The least exponent: the last digit of its window reaches below the least float64.
LOWEST = -41

#: The most elements of one sum.
LIMIT = 1 << 39


def exponents(bits: Any) -> Any:
    """Return the exponents of float64 numbers from their `bits`, int64 without the sign."""
    return np.maximum(((bits >> 52) + 10) // WIDTH - 42, LOWEST)


def merge(components: int, a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """Add two states of numbers of 1 or 2 `components`, field by field once digits align."""
    length = 1 + DIGITS
    result = [a[0] + b[0]]
    for start in range(1, 1 + components * length, length):
        (x, *x_digits), (y, *y_digits) = a[start : start + length], b[start : start + length]
        exponent = np.maximum(x, y)
        aligned = shift(x_digits, exponent - x), shift(y_digits, exponent - y)
        result += [exponent, *(p + q for p, q in zip(*aligned, strict=True))]
    counts = zip(a[len(result) :], b[len(result) :], strict=True)
    return (*result, *(p + q for p, q in counts))


def merge_tables(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """Add two states whose fields are tables; a table of integers may be longer."""
    n = max(len(a[0]), len(b[0]))
    if np.ndim(a[0]) == 1 and len(a[0]) != len(b[0]):
        a, b = _lengthen(a, n), _lengthen(b, n)
    return merge(1, a, b)


def _lengthen(state: Sequence[Any], n: int) -> tuple[Any, ...]:
    special, exponent, *digits = state
    tables = []
    for short in (special, *digits):
        table = np.zeros_like(short, shape=(n,))
        table[: len(short)] = short
        tables.append(table)
    return (tables[0], exponent, *tables[1:])


def shift(digits: Sequence[Any], steps: Any) -> list[Any]:
    """Move digits by `steps` bins; zeros come in, and digits beyond the last are dropped."""
    shifted = list(digits)
    # The usual case; a check on a GPU would take longer than moving digits.
    if isinstance(steps, np.ndarray | np.generic) and not steps.any():
        return shifted
    for step in (1, 2, 4):
        # A shift by 4 or more leaves nothing.
        far = steps >= 4 if step == 4 else steps & step != 0
        before = [0] * step + shifted
        shifted = [np.where(far, p, q)[()] for p, q in zip(before, shifted, strict=False)]
    return shifted


def whole(state: Sequence[Any], axes: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the sums of all entries of tables along `axes`, which keep length one."""
    special, exponent, *digits = state
    sums = [table.sum(axes, keepdims=True) for table in (special, *digits)]
    return (sums[0], exponent, *sums[1:])


def total(state: Sequence[Any], output: np.dtype[Any]) -> Any:
    """Return the sum of a state, rounded once to the nearest `output`.

    `output` is a float dtype, or a complex dtype for states with two components. An exact zero is
    +0.
    """
    special, length = state[0], 1 + DIGITS
    if output.kind != "c":
        return _finish(special, state[1 : 1 + length], output)
    component = output.type(0).real.dtype
    real = _finish(special.real, state[1 : 1 + length], component)
    imag = _finish(special.imag, state[1 + length : 1 + 2 * length], component)
    # Not real + 1j * imag, which would turn infinities to NaN.
    result = np.empty_like(real, output)
    result.real, result.imag = real, imag
    return result


def mean(state: Sequence[Any], output: np.dtype[Any]) -> Any:
    """Return the quotient of a state's sum, rounded to float64, and its count, as `output`."""
    component = output.type(0).real.dtype
    sums = total(state, np.dtype("c16" if output.kind == "c" else "f8"))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if output.kind != "c":
            return narrow(sums / state[-1], component)
        # By components, since a division by a complex number would turn infinities to NaN.
        result = np.empty_like(sums, output)
        result.real = narrow(sums.real / state[-1], component)
        result.imag = narrow(sums.imag / state[-1], component)
        return result


def _finish(special: Any, window: Sequence[Any], output: np.dtype[Any]) -> Any:
    with np.errstate(over="ignore"):
        finite = _round(window[0], window[1:], output != np.float64)
        return narrow(np.where(special == 0, finite, special), output)


def narrow(x: Any, output: np.dtype[Any]) -> Any:
    """Return float64 `x` as `output`, rounded once; NaN have the same bits on all machines."""
    if output == np.float16:
        # CuPy rounds to float32 in between. Round to 24 bits first, to odd, so that this is exact.
        bits = x.view("i8")
        below = (1 << 29) - 1
        x = np.where(bits & below != 0, bits & ~below | below + 1, bits).view("f8")
    return np.where(x != x, output.type(np.nan), cast(x, output))[()]


def _round(exponent: Any, digits: Sequence[Any], to_odd: bool) -> Any:
    """Return ``sum(digits[k] * 2.0 ** (24 * (exponent - 1 - k)))`` as the nearest float64.

    With `to_odd`, round an inexact sum to the neighbour with an odd significand, so that rounding
    it to a narrower dtype gives the same as rounding the sum itself.
    """
    negative = _carry(digits)[0] < 0
    sign = np.where(negative, -1, 1)
    top, *low = _carry([digit * sign for digit in digits])
    # Three floats without rounding: from 2^96 on, then twice 48 bits, in units of the last digit.
    middle = (top & _MASK) * 2.0**24 + low[0]
    low_bits = low[1] * 2.0**24 + low[2]
    high, lower = _two_sum((top >> WIDTH) * 2.0**96, middle * 2.0**48)
    # S. Boldo and G. Melquiond, "Emulation of a FMA and Correctly Rounded Sums", IEEE Transactions
    # on Computers 57 (2008): rounding the smaller terms to odd keeps the result correctly rounded.
    result, error = _two_sum(high, _odd(*_two_sum(lower, low_bits)))
    if to_odd:
        result = _odd(result, error)
    return np.ldexp(result * sign, (WIDTH * (exponent - DIGITS)).astype("i4"))


_MASK = (1 << WIDTH) - 1


def _carry(digits: Sequence[Any]) -> list[Any]:
    """Return digits of the same sum, all but the first between 0 and 2^24."""
    *digits, last = digits
    result: list[Any] = []
    for digit in reversed(digits):
        result.insert(0, last & _MASK)
        last = digit + (last >> WIDTH)
    return [last, *result]


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded sum and its error, after D. E. Knuth."""
    total = a + b
    added = total - a
    return total, (a - (total - added)) + (b - added)


def _odd(total: Any, error: Any) -> Any:
    """Return an inexact sum with an even significand as its neighbour on the error's side."""
    even = total.view("i8") & 1 == 0
    neighbour = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, neighbour, total)[()]
