"""What results are held to: values with the error that is allowed, and exact sums and scans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzz.case import Array, Chunks

#: The most that results may be off, in ulps of their own dtype, where no number cancels another:
#: sums and every element of a scan. What float64 holds is rounded once more to narrower floats.
SUM_ULPS = {8: 0.75, 4: 1.0, 2: 1.0}
SCAN_ULPS = {8: 16.0, 4: 4.0, 2: 4.0}
#: Where numbers cancel, as many units of float64's rounding of the sum of their sizes besides.
SUM_MIXED = 4.0
SCAN_MIXED = 16.0

EPS = float(np.finfo("f8").eps)


@dataclass
class Expected:
    """What one result is to be.

    Attributes
    ----------
    value : numpy.ndarray
        Floats may be wider than the result, which is then their rounding; dates are ticks.
    dtype : dtype
        That of the result, in the machine's byte order.
    ulps, slack : float and array
        How far off it may be; None stands for what is the same, bit by bit but for NaN and the
        sign of zero.
    chunks : tuple of tuple of int, optional
        Those of the result, where they are known.
    defined : array of bool, optional
        Where the result is anything in particular.
    host : bool
        Whether it is NumPy's whatever the chunks are.
    refusable : bool
        Whether it may also be refused, but then of chunks of every size.
    mask : array of bool, optional
        What of it is masked; None stands for what is no masked array.
    """

    value: Any
    dtype: Any = None
    ulps: float | None = None
    slack: Any = 0.0
    chunks: Chunks | None = None
    defined: Any = True
    host: bool = False
    refusable: bool = False
    mask: Any = None

    def __post_init__(self) -> None:
        self.value = np.asarray(self.value)
        self.dtype = np.dtype(self.value.dtype if self.dtype is None else self.dtype)

    def differs(self, actual: Array) -> Array:
        """Return where a result of the same shape is wrong."""
        if self.dtype.kind == "c" and self.ulps is not None:
            parts = [
                Expected(part, self.dtype.type(0).real.dtype, self.ulps, self.slack).differs(mine)
                for part, mine in (
                    (self.value.real, actual.real),
                    (self.value.imag, actual.imag),
                )
            ]
            return (parts[0] | parts[1]) & self.defined
        with np.errstate(all="ignore"):
            return self._differs(actual)

    def _differs(self, actual: Array) -> Array:
        if self.dtype.kind in "mM":
            # Ticks, of which NaT is the least.
            ticks = actual.view("i8")
            near = np.abs(ticks - self.value.astype("g")) <= self.slack
            return ~np.where(self.slack == 0, ticks == self.value, near)
        rounded = self.value.astype(self.dtype)
        same = actual == rounded
        if self.dtype.kind in "fc":
            same |= np.isnan(actual) & np.isnan(rounded)
        if self.dtype.kind in "iu":
            same |= (self.slack > 0) & (np.abs(actual - self.value.astype("g")) <= self.slack)
        if self.ulps is not None and self.dtype.kind == "f":
            finite = np.isfinite(rounded)
            error = np.abs(np.where(finite, actual, 0) - np.where(finite, self.value, 0))
            unit = np.spacing(np.abs(np.where(finite, rounded, 0)))
            same |= finite & (error <= self.ulps * unit.astype("g") + self.slack)
            # Beside what rounds to infinity the largest number is as near, and the other way round.
            most = np.finfo(self.dtype).max
            unit = 2 * np.spacing(most / 2).astype("g")
            beside = np.abs(np.abs(self.value) - most) <= self.ulps * unit + self.slack
            same |= beside & (np.abs(actual) >= most) & (np.sign(actual) == np.sign(self.value))
        return ~same & np.broadcast_to(self.defined, same.shape)


def wide(x: Array) -> Array:
    """Return `x` in the widest floats, where sums of some narrower ones are as good as exact."""
    return x.astype("G" if x.dtype.kind == "c" else "g")


def finite(x: Array) -> Array:
    """Return `x` with zeros in the place of NaN and infinities, which add nothing to a bound."""
    return np.where(np.isfinite(x), x, 0)


def sizes(x: Array) -> Array:
    """Return the sizes of numbers, by parts where they are complex, wide and finite."""
    x = wide(x)
    return np.abs(finite(x.real)) + (np.abs(finite(x.imag)) if x.dtype.kind == "c" else 0)


def same_sign(x: Array) -> bool:
    """Tell whether no element cancels another."""
    parts = (x.real, x.imag) if x.dtype.kind == "c" else (x,)
    return all(bool((p >= 0).all() or (p <= 0).all()) for p in map(finite, parts))


def total(x: Array, axis: Any, keepdims: bool, valid: Any = True) -> Array:
    """Return the sum of the valid elements, exact as far as anybody can tell."""
    valid = np.broadcast_to(valid, x.shape)
    if x.size <= 4096:
        return np.sum(wide(x), axis, keepdims=keepdims, where=valid)
    return _split(lambda part, add: add(part, axis, keepdims=keepdims, where=valid), np.sum, x)


def running(x: Array) -> Array:
    """Return the cumulative sum of a line, exact as far as anybody can tell."""
    if x.size <= 512:
        return np.add.accumulate(wide(x))
    return _split(lambda part, add: add(part), np.cumsum, x)


def _split(sum_up: Callable[..., Any], add: Any, x: Array) -> Array:
    """Add up digits as integers, what is left of them wide, and what is not finite by itself."""
    if x.dtype.kind == "c":
        parts = (_split(sum_up, add, part) for part in (x.real, x.imag))
        real, imag = parts
        result = np.empty(np.shape(real), "G")
        result.real, result.imag = real, imag
        return result
    w, f = wide(x), wide(finite(x))
    top = np.abs(f).max(initial=0)
    if top:
        scale = 30 - int(np.frexp(top)[1])
        scaled = np.ldexp(f, scale)
        high = np.rint(scaled)
        whole = sum_up(high.astype("i8"), add).astype("g") + sum_up(scaled - high, add)
        result = np.ldexp(whole, -scale)
    else:
        result = sum_up(f, add)
    odd = np.where(np.isfinite(x), 0, w)
    return result + sum_up(odd, add)
