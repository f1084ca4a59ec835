"""The monoids of series with gaps: the last valid element, and exponentially weighted means.

None of them commutes. Their parameters are part of the row and of its functor.

The state of a fill is the last valid element. With a limit it also has the number of missing
elements after it; once these exceed the limit they hide all elements before, as a valid element
would::

    limit 2     3 - | - 5 -  ->  (3, 1) (5, 1)      - - | -  ->  (-, 2) (-, 1)
                                     (5, 1)                          (-, 3)

An exponentially weighted mean is that of pandas, with the arguments of `ewm_mean`. Let `a` be the
weight of a new element and ``q = 1 - alpha`` the factor by which a step reduces weights.

Adjusted means have a = 1. A state is the mean m of its elements, the sum w of their weights at the
last one, and the product d of the steps up to there. Missing elements have no weight; whether they
are a step depends on `ignore_na`. Two states combine as weighted means do::

    (m1, w1, d1) (m2, w2, d2)  ->  ((w1 d2 m1 + w2 m2) / (w1 d2 + w2), w1 d2 + w2, d1 d2)

Steps after the last valid element are a fourth field, a factor of the next state's d. So w2 is at
least 1, and a mean outlasts any gap.

Other means have a = alpha, and after each valid element the weight of all elements so far is 1. The
first valid element f of a state meets a mean m before it, of weight w and any value, by

    f' = (w l m + a f) / (w l + a)

where l is the product of the steps up to it. All later elements turn f' into c f' + e, with c and e
independent of the elements before. A state is (f, c, e, l, w). When two combine, f and l are the
first's, w is the second's, and the second's c and e apply to the f' that it makes of c f + e. Such
recurrences compose as affine maps: G. E. Blelloch, "Prefix Sums and Their Applications", 1990,
section 1.4.1.

Sums are ``s1 d2 + s2``. Variances and covariances are made of weighted moments, which never take a
difference of squares: the sum of weights, twice the sum of products of two of them, means, and
weighted sums of products of deviations. Two sets of elements combine as those of T. F. Chan, G. H.
Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances", 1979. Other than adjusted moments keep those of all elements but the first apart, since
the weight of the first depends on what is before it. Infinities whose weight is lost leave
NaN in the means.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import Field, MonoidRow, State, one, zero

Array = Any

#: The least weight; zero times an infinite mean would be NaN.
LEAST = 5e-324

#: The least number with all digits. A spread divides by weights, and less than that is noise.
TINY = 2.2250738585072014e-308

#: Gaps with a limit below this one are counted in 32 bits.
_NARROW = 1 << 30


def missing(dtype: np.dtype[Any]) -> Any:
    """Return the value of a missing element: NaN or NaT."""
    return dtype.type("NaT", np.datetime_data(dtype)) if dtype.kind in "mM" else dtype.type(np.nan)


@dataclass(frozen=True, eq=False)
class Fill(MonoidRow):
    """The monoid of the last valid element, for as many missing ones as the limit allows."""

    limit: int | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return fill, (self.limit,)

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "Fill", self.limit

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        is_missing = b[0] != b[0]
        if self.limit is None:
            return (choose(is_missing, a[0], b[0]),)
        gap = choose(is_missing, np.minimum(a[1] + b[1], self.limit + 1), b[1])
        return choose(is_missing & (gap <= self.limit), a[0], b[0]), gap


@lru_cache
def fill(limit: int | None) -> Fill:
    """Return the monoid of the last valid element, for up to `limit` missing ones."""
    value = Field("value", "element", missing, np.fmax)
    if limit is None:
        return Fill("fill", (value,), "fc", "Fill", commutative=False, neutral=missing)
    dtype = np.dtype("i4" if limit < _NARROW else "i8")
    return Fill(
        f"fill_{limit}",
        (value, Field("gap", dtype, zero, np.add)),
        "fc",
        "LimitedFill",
        commutative=False,
        neutral=missing,
        arguments=("int" if dtype.itemsize == 4 else "i64", str(limit)),
        limit=limit,
    )


@dataclass(frozen=True, eq=False)
class WeightedMean(MonoidRow):
    """The monoid of exponentially weighted means."""

    alpha: float = 0.5
    adjust: bool = True
    ignore_na: bool = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return weighted_mean, (self.alpha, self.adjust, self.ignore_na)

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "WeightedMean", self.alpha, self.adjust, self.ignore_na

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        with np.errstate(all="ignore"):
            return self._combine_adjusted(a, b) if self.adjust else self._combine_recursive(a, b)

    def _combine_adjusted(self, a: State, b: State) -> State:
        between = a[3] * b[2]
        before = np.maximum(a[1] * between, LEAST)
        weight = before + b[1]
        mean = choose(a[0] == b[0], a[0], (before * a[0] + b[1] * b[0]) / weight)
        first = b[0], b[1], a[2] * between, b[3]
        last = a[0], a[1], a[2], between
        return _join(a[1] == 0, b[1] == 0, first, last, (mean, weight, *first[2:]))

    def _combine_recursive(self, a: State, b: State) -> State:
        before = np.maximum(a[4] * b[3], LEAST)
        weight = before / (before + self.alpha)
        offset = b[1] * (weight * a[2] + (1 - weight) * b[0]) + b[2]
        both = a[0], np.maximum(a[1] * (weight * b[1]), LEAST), offset, a[3], b[4]
        first = *b[:3], a[3] * b[3], b[4]
        last = *a[:4], before
        return _join(a[1] == 0, b[1] == 0, first, last, both)

    def results(self, state: State) -> Array:
        """Return the means after states, NaN where there are no elements."""
        value = state[0] if self.adjust else state[1] * state[0] + state[2]
        return choose(state[1] > 0, value, np.nan)


@lru_cache
def weighted_mean(alpha: float, adjust: bool, ignore_na: bool) -> WeightedMean:
    """Return the monoid of exponentially weighted means, with arguments of `ewm_mean`."""
    names = "mean weight decay gap" if adjust else "first shared rest lead weight"
    fields = tuple(
        Field(name, "real", one if name in ("decay", "gap", "lead") else zero, np.add)
        for name in names.split()
    )
    bits = np.float64(alpha).view("i8")
    return WeightedMean(
        f"weighted_mean_{alpha}_{adjust}_{ignore_na}",
        fields,
        "f",
        "WeightedMean" if adjust else "RecursiveMean",
        commutative=False,
        neutral=missing,
        arguments=(str(bits), str(ignore_na).lower()),
        alpha=alpha,
        adjust=adjust,
        ignore_na=ignore_na,
    )


@dataclass(frozen=True, eq=False)
class WeightedSum(MonoidRow):
    """The monoid of exponentially weighted sums."""

    alpha: float = 0.5
    ignore_na: bool = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return weighted_sum, (self.alpha, self.ignore_na)

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "WeightedSum", self.alpha, self.ignore_na

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        with np.errstate(all="ignore"):
            total = choose(a[2] > 0, a[0] * b[1] + b[0], b[0])
            return total, a[1] * b[1], np.maximum(a[2], b[2])

    def results(self, state: State) -> Array:
        """Return the sums after states, NaN where there are no elements."""
        return choose(state[2] > 0, state[0], np.nan)


@lru_cache
def weighted_sum(alpha: float, ignore_na: bool) -> WeightedSum:
    """Return the monoid of exponentially weighted sums, with arguments of `ewm_sum`."""
    fields = [Field(name, "real", zero, np.add) for name in ("total", "decay", "some")]
    fields[1] = Field("decay", "real", one, np.multiply)
    return WeightedSum(
        f"weighted_sum_{alpha}_{ignore_na}",
        tuple(fields),
        "f",
        "WeightedSum",
        commutative=False,
        neutral=missing,
        arguments=(str(np.float64(alpha).view("i8")), str(ignore_na).lower()),
        alpha=alpha,
        ignore_na=ignore_na,
    )


@dataclass(frozen=True, eq=False)
class WeightedSpread(MonoidRow):
    """The monoid of exponentially weighted variances, or of covariances of complex elements.

    A state of an adjusted statistic is its moments and the `decay` and `gap` of a mean's; other
    states are the moments of all elements but the first, that one, its weight, `lead` and `weight`.
    """

    statistic: str = "var"
    alpha: float = 0.5
    adjust: bool = True
    ignore_na: bool = False
    bias: bool = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return weighted_spread, self._arguments()

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "WeightedSpread", *self._arguments()

    def _arguments(self) -> tuple[Any, ...]:
        return self.statistic, self.alpha, self.adjust, self.ignore_na, self.bias

    @property
    def pairs(self) -> bool:
        """Whether elements are pairs of numbers."""
        return self.statistic in ("cov", "corr")

    @property
    def moments(self) -> int:
        """The number of moments, which are the first fields."""
        return 7 if self.pairs else 4

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        with np.errstate(all="ignore"):
            return self._combine_adjusted(a, b) if self.adjust else self._combine_recursive(a, b)

    def _combine_adjusted(self, a: State, b: State) -> State:
        moments, (decay, gap), (b_decay, b_gap) = b[:-2], a[-2:], b[-2:]
        between = gap * b_decay
        both = *_together(_scaled(a[:-2], _left(between)), moments), decay * between, b_gap
        last = *a[:-2], decay, between
        return _join(a[0] == 0, b[0] == 0, (*moments, decay * between, b_gap), last, both)

    def _combine_recursive(self, a: State, b: State) -> State:
        k = self.moments
        *_, a_shared, a_lead, a_weight = a
        *b_first, b_shared, b_lead, b_weight = b[k:]
        before = np.maximum(a_weight * b_lead, LEAST)
        share = before / (before + self.alpha)
        left = _left(share * b_shared)
        point = self._point(b_first, (1 - share) * b_shared)
        moments = _together(_together(_scaled(a[:k], left), point), b[:k])
        both = *moments, *a[k:-3], a_shared * left, a_lead, b_weight
        first = *b[:-2], a_lead * b_lead, b_weight
        return _join(a_weight == 0, b_weight == 0, first, (*a[:-1], before), both)

    def _point(self, values: Any, weight: Any) -> State:
        """Return the moments of one element."""
        products = (0 * weight,) * (self.moments - 2 - len(values))
        return weight, 0 * weight, *values, *products

    def all_moments(self, state: State) -> State:
        """Return the moments of all elements of states."""
        if self.adjust:
            return state[:-2]
        *first, shared, _, _ = state[self.moments :]
        with np.errstate(all="ignore"):
            return _together(self._point(first, shared), state[: self.moments])

    def results(self, state: State) -> Array:
        """Return the statistic after states, NaN where there are too few elements."""
        weight, cross, *_ = moments = self.all_moments(state)
        with np.errstate(all="ignore"):
            # NaN unless all elements are finite.
            nothing = 0 * moments[2] + (0 * moments[3] if self.pairs else 0)
            if self.statistic == "corr":
                square = moments[4] * moments[6]
                return choose(square >= TINY, moments[5] / np.sqrt(square) + nothing, np.nan)
            scale = weight if self.bias else cross / weight
            value = moments[5 if self.pairs else 3] / scale + nothing
            enough = (weight if self.bias else cross) > 0
            value = np.sqrt(np.maximum(value, 0)) if self.statistic == "std" else value
            return choose(enough, value, np.nan)


def _left(by: Any) -> Any:
    """Return a factor of weights, 0 for less than `TINY`."""
    return choose(by < TINY, 0.0, by)


def _scaled(moments: State, by: Any) -> State:
    weight, cross, *others = moments
    k = 1 if len(others) == 2 else 2
    return weight * by, cross * (by * by), *others[:k], *(c * by for c in others[k:])


def _together(a: State, b: State) -> State:
    """Return the moments of two sets of elements, of which either may be without weight."""
    weight, k = a[0] + b[0], 1 if len(a) == 4 else 2
    first, last = (
        (*x[:2], *(m + 0 * n for m, n in zip(x[2 : 2 + k], y[2 : 2 + k], strict=True)), *x[2 + k :])
        for x, y in ((b, a), (a, b))
    )
    share, cross = b[0] / weight, a[1] + b[1] + 2 * a[0] * b[0]
    deltas = [y - x for x, y in zip(a[2 : 2 + k], b[2 : 2 + k], strict=True)]
    means = [x + delta * share for x, delta in zip(a[2 : 2 + k], deltas, strict=True)]
    pairs = [(i, j) for i in range(k) for j in range(i, k)]
    products = (
        x + y + deltas[i] * deltas[j] * (a[0] * share)
        for x, y, (i, j) in zip(a[2 + k :], b[2 + k :], pairs, strict=True)
    )
    return _join(a[0] == 0, b[0] == 0, first, last, (weight, cross, *means, *products))


@lru_cache
def weighted_spread(
    statistic: str, alpha: float, adjust: bool, ignore_na: bool, bias: bool
) -> WeightedSpread:
    """Return the monoid of a weighted variance or covariance, with arguments of `ewm_var`."""
    pairs = statistic in ("cov", "corr")
    names = "total cross " + ("x y xx xy yy" if pairs else "x xx")
    names += " decay gap" if adjust else f" first{' second' * pairs} shared lead weight"
    fields = tuple(
        Field(name, "real", one if name in ("decay", "gap", "lead") else zero, np.add)
        for name in names.split()
    )
    flags = (str(flag).lower() for flag in (ignore_na, bias))
    return WeightedSpread(
        f"weighted_{statistic}_{alpha}_{adjust}_{ignore_na}_{bias}",
        fields,
        "c" if pairs else "f",
        "WeightedSpread" if adjust else "RecursiveSpread",
        commutative=False,
        neutral=missing,
        arguments=(str(np.float64(alpha).view("i8")), f"SpreadOf::{statistic}", *flags),
        statistic=statistic,
        alpha=alpha,
        adjust=adjust,
        ignore_na=ignore_na,
        bias=bias,
    )


def _join(is_first: Any, is_last: Any, first: State, last: State, both: State) -> State:
    """Return the combined state: `first` or `last` where the other is empty, else `both`."""
    fields = zip(first, last, both, strict=True)
    return tuple(choose(is_first, x, choose(is_last, y, z)) for x, y, z in fields)
