"""The monoid of central moments up to any order.

A state is the count, the mean, from the second power on the sums of powers of the deviations from
the mean, and the rounding error of the mean, which is as large as small deviations where that is
far from zero.  Two states combine by the binomial theorem, with the distance between their means:
P. Pebay, "Formulas for Robust, One-Pass Parallel Computation of Covariances and Arbitrary-Order
Statistical Moments", SAND2008-6212 (2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import comb
from typing import Any

import numpy as np

from dask_coop.algebra.merges import meet
from dask_coop.algebra.monoids import VAR, Field, MonoidRow, State, mean_dtype


@dataclass(frozen=True, eq=False)
class Powers(MonoidRow):
    """The monoid of central moments up to an order; it has no functor."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return moments_up_to, (self.order,)

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "Powers", self.order

    @property
    def order(self) -> int:
        """The highest power."""
        return len(self.fields) - 2


@lru_cache
def moments_up_to(order: int) -> Powers:
    """Return the monoid of central moments up to `order`, 2 or more."""
    count, mean, second = VAR.fields
    more = (Field(f"m{power}", "real", second.identity, np.add) for power in range(3, order + 1))
    fields = (count, mean, second, *more, Field("short", "real", second.identity, np.add))
    merge = partial(_merge, order)
    return Powers(f"moments_up_to_{order}", fields, "biuf", "", merge, output=mean_dtype)


def centred(count: Any, mean: Any, sums: Sequence[Any]) -> State:
    """Return the state of elements whose powers of distances from `mean` add up to `sums`.

    Parameters
    ----------
    count, mean : number or array
        The number of elements, and about their mean; 0 and 0 where there are none.
    sums : sequence of arrays
        The sums of distances, of their squares, and of higher powers.
    """
    short = sums[0] / np.maximum(count, 1)
    about = (count, mean, *sums[1:])
    orders = range(2, len(sums) + 1)
    # The sum of distances itself is the count times `short`.
    return (count, mean, *(_about(about, -short, count * (1 - p), p) for p in orders), short)


def _merge(order: int, a: State, b: State) -> State:
    a_count, a_mean, *_, a_short = a
    b_count, b_mean, *_, b_short = b
    count = a_count + b_count
    # The mean of no element is stored as 0, with weight 0.
    some = np.maximum(count, 1)
    a_weight, b_weight = a_count / some, b_count / some
    mean, short, delta = meet(a_count, b_count, (a_mean, a_short), (b_mean, b_short))
    # The distances of the means from the common mean; 0 for a side without elements.
    to_a, to_b = -b_weight * delta * (a_count > 0), a_weight * delta * (b_count > 0)
    sums: list[Any] = []
    for power in range(2, order + 1):
        total = _about(a, to_a, a_count, power) + _about(b, to_b, b_count, power)
        sums.append(total)
    return (count, mean, *sums, short)


def _about(state: State, shift: Any, count: Any, power: int) -> Any:
    """Return the sum of `power`-th powers about a point at a distance of `shift` from the mean."""
    total = state[power] + count * shift**power
    for k in range(1, power - 1):
        total = total + comb(power, k) * shift**k * state[power - k]
    return total
