"""The monoids of series with gaps: the last valid element, and exponentially weighted means.

None of them commutes, and each has parameters, which are part of the row and of its functor.

Filled, a state is the last valid element. With a limit it is that as long as it is good, and how
many missing elements are behind it; where these are more than the limit they hide all before them,
as a valid element would::

    limit 2     3 - | - 5 -  ->  (3, 1) (5, 1)      - - | -  ->  (-, 2) (-, 1)
                                     (5, 1)                          (-, 3)

An exponentially weighted mean is that of pandas (`ewm_mean` tells what its arguments are). Let `a`
be the weight of a new element and ``q = 1 - alpha`` what a step leaves of a weight. Where means are
adjusted a = 1, and a state is the mean m of its elements, the sum w of their weights as these are
at the last, and the product d of the steps up to there; missing elements are a step or none, and
have no weight. So two states combine as weighted means do::

    (m1, w1, d1) (m2, w2, d2)  ->  ((w1 d2 m1 + w2 m2) / (w1 d2 + w2), w1 d2 + w2, d1 d2)

Steps behind the last valid element are a fourth field, a factor of the next state's d. So w2 is 1
at least, and a mean outlasts any gap.

Otherwise a = alpha, and the weight of all elements so far is taken for 1 behind each valid one. The
first valid element f of a state then meets a mean before it, of weight w and any value, by

    f' = (w l m + a f) / (w l + a)

where l are the steps up to it, and all that comes later makes of f' no more than c f' + e, with c
and e that do not depend on what is before. A state is (f, c, e, l, w): of two of them the first
tells f, l and what becomes of c f + e by the second's f', and the second tells w. The algebra of
such recurrences is that of affine maps: G. E. Blelloch, "Prefix Sums and Their Applications", 1990,
section 1.4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import Field, MonoidRow, State, one, zero

Array = Any

#: What is left of a weight at the least: nothing of an infinity would be NaN.
LEAST = 5e-324

#: Limits below this one are counted in 32 bits.
_NARROW = 1 << 30


def missing(dtype: np.dtype[Any]) -> Any:
    """Return what stands for a missing element: NaN or NaT."""
    return dtype.type("NaT", np.datetime_data(dtype)) if dtype.kind in "mM" else dtype.type(np.nan)


@dataclass(frozen=True, eq=False)
class Fill(MonoidRow):
    """The monoid of the last valid element, for as many missing ones as the limit allows."""

    limit: int | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it: tasks stay small and `is` holds."""
        return fill, (self.limit,)

    def __dask_tokenize__(self) -> Any:
        """Name the call that makes it, for Dask's keys."""
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
        """Pickle as the call that makes it: tasks stay small and `is` holds."""
        return weighted_mean, (self.alpha, self.adjust, self.ignore_na)

    def __dask_tokenize__(self) -> Any:
        """Name the call that makes it, for Dask's keys."""
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
        share = before / (before + self.alpha)
        rest = b[1] * (share * a[2] + (1 - share) * b[0]) + b[2]
        both = a[0], np.maximum(a[1] * (share * b[1]), LEAST), rest, a[3], b[4]
        first = *b[:3], a[3] * b[3], b[4]
        last = *a[:4], before
        return _join(a[1] == 0, b[1] == 0, first, last, both)

    def means(self, state: State) -> Array:
        """Return the means behind states, NaN where there are no elements."""
        value = state[0] if self.adjust else state[1] * state[0] + state[2]
        return choose(state[1] > 0, value, np.nan)


@lru_cache
def weighted_mean(alpha: float, adjust: bool, ignore_na: bool) -> WeightedMean:
    """Return the monoid of such means: as of the public function `ewm_mean`."""
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


def _join(is_first: Any, is_last: Any, first: State, last: State, both: State) -> State:
    """Return what two states make, by whether there is nothing before, or nothing behind."""
    fields = zip(first, last, both, strict=True)
    return tuple(choose(is_first, x, choose(is_last, y, z)) for x, y, z in fields)
