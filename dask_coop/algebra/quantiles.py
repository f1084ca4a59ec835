"""Quantiles by NumPy's rules: the ranks that they lie between, and the interpolation.

A method has a *virtual index* among the n sorted elements, usually not an integer. Its fraction,
gamma, interpolates between the elements before and after it; discrete methods take one element.
R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages", The American Statistician
50(4), 1996.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dask_coop.algebra.merges import arithmetic, equals

Array = np.ndarray[Any, Any]

Method = Literal[
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "linear",
    "median_unbiased",
    "normal_unbiased",
    "lower",
    "higher",
    "midpoint",
    "nearest",
]

METHODS = get_args(Method)


class Ranks(NamedTuple):
    """The ranks that quantiles lie between, for some numbers of elements.

    Attributes
    ----------
    previous, next : numpy.ndarray
        int64; the shape is the numbers' followed by the quantiles'.
    gamma : numpy.ndarray or None
        The position of a quantile from the previous (0) to the next (1); None if all are 0.
    """

    previous: Array
    next: Array
    gamma: Array | None


@dataclass(frozen=True)
class Quantiles:
    """A choice of quantiles.

    Attributes
    ----------
    q : numpy.ndarray or None
        Between 0 and 1, with at most two axes; None for `numpy.median`, the mean of the middle two.
    method : str
        One of `METHODS`.
    skipna : bool
        Whether NaN and NaT are left out; otherwise they are the result.
    weak : bool
        Whether `q` was a Python number, which does not change the dtype of elements.
    """

    q: Any
    method: Method = "linear"
    skipna: bool = False
    weak: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the quantiles of one line."""
        return () if self.q is None else tuple(self.q.shape)

    def result(self, element: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the quantiles of elements of a dtype.

        Raises
        ------
        TypeError
            As NumPy does, if elements cannot be interpolated.
        """
        some = np.ones(2, element)
        if self.q is None:
            return np.dtype(np.asarray(_middle(some[0], some[1])).dtype)
        ranks = self.ranks(np.array(2))
        low, high = some[ranks.previous], some[ranks.next]
        return np.dtype(np.asarray(self.interpolate(low, high, ranks.gamma)).dtype)

    def warn_without_elements(self, element: np.dtype[Any]) -> None:
        """Warn that the median of no element is NaN, or raise an error where NumPy does.

        `end` warns where NaN are left out.

        Raises
        ------
        ValueError
            If NumPy raises an error, or the dtype of the result has no NaN.
        """
        if not (self.skipna or self.q is None) or self.result(element).kind in "iu":
            raise ValueError("cannot take a quantile of no elements")
        if not self.skipna:
            warnings.warn("Mean of empty slice", RuntimeWarning, stacklevel=1)

    def ranks(self, n: Any) -> Ranks:
        """Return the ranks among `n` elements, int64 of any shape; meaningless for n = 0."""
        n = np.asarray(n, "i8")
        if self.q is None:
            return Ranks(np.maximum(n - 1, 0) // 2, n // 2, None)
        index = _VIRTUAL[self.method](_Sample(n.reshape(n.shape + (1,) * self.q.ndim), self.q))
        last = np.maximum(n, 1).reshape(n.shape + (1,) * self.q.ndim) - 1
        if index.dtype.kind in "iu" and self.method in _TAKEN:
            rank = np.clip(index, 0, last).astype("i8")
            return Ranks(rank, rank, None)
        previous = np.floor(index)
        # NumPy uses -1 for the last.
        previous = np.where(index >= last, -1, np.where(index < 0, 0, previous)).astype("i8")
        following = np.where(index >= last, -1, np.where(index < 0, 0, previous + 1))
        gamma = _GAMMA.get(self.method, _fraction)(index - previous, index)
        gamma = np.asarray(gamma, index.dtype)
        previous, following = (np.where(i < 0, last, i) for i in (previous, following))
        return Ranks(previous, following, gamma)

    def interpolate(self, low: Any, high: Any, gamma: Any) -> Any:
        """Return quantiles between the elements before and after them, as NumPy does.

        `gamma` has the shape of both, or broadcasts to it.
        """
        if self.q is None:
            return _middle(low, high)
        if gamma is None:
            return low
        gamma = gamma.astype("f8") if self.weak else gamma
        complement, is_late, distance = 1 - gamma, gamma >= 0.5, arithmetic(np.subtract, high, low)
        if self.weak and low.dtype.kind == "f":
            # Python numbers are rounded to the dtype of the array.
            gamma, complement = gamma.astype(low.dtype), complement.astype(low.dtype)
        before = arithmetic(np.subtract, high, arithmetic(np.multiply, distance, complement))
        behind = arithmetic(np.add, low, arithmetic(np.multiply, distance, gamma))
        return np.where(is_late, before, behind)

    def end(self, low: Any, high: Any, gamma: Any, size: int) -> Any:
        """Return the quantiles of `size` elements; if there are none, NaN."""
        if not size:
            if self.skipna:
                warnings.warn("All-NaN slice encountered", RuntimeWarning, stacklevel=1)
            # Integers have no NaN.
            return np.full(low.shape, np.nan) if low.dtype.kind in "iu" else low
        with np.errstate(all="ignore"):
            return np.asarray(self.interpolate(low, high, gamma))


def _middle(low: Any, high: Any) -> Any:
    """Return the mean of each two elements as `numpy.mean` does; of two equal ones, the first."""
    if low.dtype.kind == "M":
        # NumPy cannot add dates, but it adds durations to them.
        return low + _middle(high - high, high - low)
    if low.dtype == np.float32:
        half = np.full_like(low, 0.5)
        mean = arithmetic(np.multiply, arithmetic(np.add, low, high), half)
    else:
        mean = np.mean(np.stack([low, high]), axis=0)
    # The sum of equal elements may overflow.
    return np.where(equals(low, high), low, mean).astype(mean.dtype)


@dataclass(frozen=True)
class _Sample:
    """Numbers of elements, and quantiles of them."""

    n: Array
    q: Array

    def times(self, n: Array) -> Array:
        """Return n * q in the dtype of q; a Python number for n would not change it."""
        return n.astype(self.q.dtype) * self.q if self.q.dtype.kind == "f" else n * self.q

    @cached_property
    def spread(self) -> Array:
        """The virtual index that goes from the first element to the last."""
        return self.times(self.n - 1)

    def between(self, alpha: float, beta: float) -> Array:
        """Return Hyndman and Fan's virtual index for two parameters."""
        return self.times(self.n) + (alpha + self.q * (1 - alpha - beta)) - 1


def _discrete(index: Array, is_previous: Callable[[Array, Array], Any]) -> Array:
    previous: Array = np.floor(index)
    chosen: Array = np.where(is_previous(index - previous, previous), previous, previous + 1)
    return np.asarray(np.maximum(chosen.astype("i8"), 0))


def _whole(index: Array) -> Array:
    return index.astype("i8")


#: The methods that take one element if their virtual index is an integer.
_TAKEN = {"inverted_cdf", "closest_observation", "linear", "lower", "higher", "nearest"}

#: The virtual index of each method.
_VIRTUAL: dict[str, Callable[[_Sample], Array]] = {
    "inverted_cdf": lambda s: _discrete(s.times(s.n) - 1, lambda gamma, at: gamma == 0),
    "averaged_inverted_cdf": lambda s: s.times(s.n) - 1,
    "closest_observation": lambda s: _discrete(
        s.times(s.n) - 1 - 0.5, lambda gamma, at: (gamma == 0) & (at % 2 == 1)
    ),
    "interpolated_inverted_cdf": lambda s: s.between(0, 1),
    "hazen": lambda s: s.between(0.5, 0.5),
    "weibull": lambda s: s.between(0, 0),
    "linear": lambda s: s.spread,
    "median_unbiased": lambda s: s.between(1 / 3.0, 1 / 3.0),
    "normal_unbiased": lambda s: s.between(3 / 8.0, 3 / 8.0),
    "lower": lambda s: _whole(np.floor(s.spread)),
    "higher": lambda s: _whole(np.ceil(s.spread)),
    "midpoint": lambda s: 0.5 * (np.floor(s.spread) + np.ceil(s.spread)),
    "nearest": lambda s: _whole(np.around(s.spread)),
}


def _fraction(gamma: Array, index: Array) -> Array:
    return gamma


#: The replacement of the fraction, for some methods.
_GAMMA: dict[str, Callable[[Array, Array], Array]] = {
    "averaged_inverted_cdf": lambda gamma, index: np.where(gamma == 0, 0.5, 1.0),
    "midpoint": lambda gamma, index: np.where(index % 1 == 0, 0.0, 0.5),
}
