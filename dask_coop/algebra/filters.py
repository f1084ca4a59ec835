"""Recursive filters: the delays behind some samples, and those that follow from others.

A section of order m has m delays z. A sample x gives a result y and other delays, SciPy's direct
form II transposed, and the result is the next section's sample::

    y = z[0] + b[0] x           z[i] <- z[i + 1] + b[i + 1] x - a[i + 1] y

So the delays behind n samples are linear in those before: ``A**n z + f``, with f the delays that
the samples leave if they start from zeros, and A a matrix of the coefficients. A state is (f, n);
two of them combine as affine maps do: G. E. Blelloch, "Prefix Sums and Their Applications", 1990,
section 1.4.1.

The powers of A of a narrow filter reach 1e12 and more before they vanish, and squaring them in
floats would leave no digits. They are squared in integers instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dask_coop.algebra.merges import excess
from dask_coop.algebra.monoids import State

#: The bits behind the binary point of an element of a power, and the bits of the largest one.
_BITS, _MOST = 512, 1 << 2048


@dataclass(frozen=True)
class Filter:
    """A cascade of recursive filters along an axis.

    Attributes
    ----------
    sections : tuple
        The coefficients b and a of each, as tuples of numbers.
    dtype : numpy.dtype
        In which samples are filtered: float32, float64, complex64 or complex128.
    axis : int
        Not negative.
    is_cascade : bool
        Whether the sections are rows of SciPy's format "sos", and not one of any order.
    """

    sections: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]
    dtype: np.dtype[Any]
    axis: int
    is_cascade: bool

    @property
    def orders(self) -> list[int]:
        """The number of delays of each section."""
        return [max(map(len, section)) - 1 for section in self.sections]

    @property
    def is_finite(self) -> bool:
        """Whether results depend on a few samples only."""
        return all(len(a) == 1 for _, a in self.sections)

    def padded(self) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Return the coefficients of each section, of one length, divided by a[0]."""
        rows = []
        for (b, a), order in zip(self.sections, self.orders, strict=True):
            row = np.zeros((2, order + 1), self.dtype)
            row[0, : len(b)], row[1, : len(a)] = b, a
            rows.append((row[0] / row[1, 0], row[1] / row[1, 0]))
        return rows

    def begin(self, shape: tuple[int, ...], delays: Any = None) -> np.ndarray[Any, Any]:
        """Return the delays before samples of a shape, by default zeros."""
        if delays is not None:
            return np.asarray(delays)
        others = (*shape[: self.axis], *shape[self.axis + 1 :])
        return np.zeros((sum(self.orders), *others), np.result_type(self.dtype, "f8"))

    def combine(self, first: State, second: State) -> State:
        """Combine the states of two neighbours."""
        with np.errstate(all="ignore"):
            return self.later(first[0], second[1]) + second[0], first[1] + second[1]

    def later(self, delays: Any, n: int) -> Any:
        """Return delays, an array along the first axis, behind `n` samples of zero."""
        if self.dtype.kind == "c":
            result = _dot(*_power(self, n), np.concatenate([delays.real, delays.imag]), self)
            return result[: len(delays)] + 1j * result[len(delays) :]
        return _dot(*_power(self, n), delays, self)


def _dot(power: Any, short: Any, delays: Any, of: Filter) -> Any:
    """Return ``(power + short) @ delays``, rounded once."""
    result, error = np.zeros_like(delays), np.zeros_like(delays)
    column = (-1, *(1,) * (delays.ndim - 1))
    with np.errstate(all="ignore"):
        for j, value in enumerate(delays):
            # NaN is in no later result of a finite filter, and in all of others.
            at = np.flatnonzero(power[:, j]) if of.is_finite else np.arange(len(power))
            factor = power[at, j].reshape(column)
            product = np.where(value == 0, 0.0, factor * value)
            total = result[at] + product
            error[at] += short[at, j].reshape(column) * value + _lack(factor, value, product)
            error[at] -= excess(result[at], product, total)
            result[at] = total
        return result + np.where(np.isfinite(error), error, 0)


def _lack(a: Any, b: Any, product: Any) -> Any:
    """Return the rounding error of a product: T. J. Dekker, "A floating-point technique", 1971."""
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _halves(x: Any) -> tuple[Any, Any]:
    """Return two floats of up to 26 bits each that add up to `x`."""
    large = x * 134217729.0
    high = large - (large - x)
    return high, x - high


@lru_cache(maxsize=64)
def _power(of: Filter, n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the matrix that delays are multiplied by in `n` steps, and its rounding errors."""
    step = _step(of)
    if of.dtype.kind != "c":
        # The imaginary parts are zeros.
        step = step[: len(step) // 2, : len(step) // 2]
    power = np.identity(len(step), object) * (1 << _BITS)
    while n:
        power = _product(power, step) if n & 1 else power
        n >>= 1
        step = _product(step, step) if n else step
    near = _floats(power)
    known = np.frompyfunc(lambda value: _integer(value) if abs(value) < np.inf else 0, 1, 1)(near)
    return near, np.where(np.isfinite(near), _floats(power - known), 0.0)


def _step(of: Filter) -> np.ndarray[Any, Any]:
    """Return the matrix of one step in integers, first for real halves, then for imaginary ones.

    Its columns are the delays behind a sample of zero, each of them from one delay of 1.
    """
    order = sum(of.orders)
    delays = np.identity(2 * order, object) * (1 << _BITS)
    sample, columns, at = np.zeros((2, 2 * order), object), [], 0
    for (b, a), m in zip(of.padded(), of.orders, strict=True):
        these = np.stack([delays[at : at + m], delays[order + at : order + at + m]], 1)
        these = np.concatenate([these, np.zeros((1, 2, 2 * order), object)])
        result = these[0] + _times(b[0], sample)
        for i in range(m):
            columns.append(these[i + 1] + _times(b[i + 1], sample) - _times(a[i + 1], result))
        sample, at = result, at + m
    return np.concatenate(
        [*np.array(columns, object).reshape(order, 2, 2 * order).transpose(1, 0, 2)]
    )


def _times(coefficient: Any, value: Any) -> Any:
    """Return a complex coefficient times rows of real and imaginary halves."""
    real, imaginary = map(_integer, (coefficient.real, coefficient.imag))
    turned = np.stack([-value[1], value[0]])
    return (real * value + imaginary * turned) >> _BITS


def _integer(value: Any) -> int:
    numerator, denominator = float(value).as_integer_ratio()
    return (numerator << _BITS) // denominator


def _product(a: Any, b: Any) -> Any:
    return np.clip((a @ b) >> _BITS, -_MOST, _MOST)


def _floats(integers: Any) -> np.ndarray[Any, Any]:
    """Return the floats nearest to integers, which have `_BITS` bits behind the point."""
    most = np.iinfo("i8").max << (_BITS + 940)
    floats = [int(np.clip(i, -most, most)) / (1 << _BITS) for i in integers.ravel()]
    whole = np.array(floats, "f8").reshape(integers.shape)
    return np.where(np.abs(whole) < most >> _BITS, whole, np.copysign(np.inf, whole))
