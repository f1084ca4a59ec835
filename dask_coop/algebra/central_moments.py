"""The monoid of central moments up to any order.

A state is the count, the mean and, from the second power on, the sums of powers of the deviations
from the mean.  Two states combine by the binomial theorem, with the distance between their means:
P. Pebay, "Formulas for Robust, One-Pass Parallel Computation of Covariances and Arbitrary-Order
Statistical Moments", SAND2008-6212 (2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from math import comb
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import VAR, Field, MonoidRow, State


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
        return len(self.fields) - 1


@lru_cache
def moments_up_to(order: int) -> Powers:
    """Return the monoid of central moments up to `order`, 2 or more."""
    count, mean, second = VAR.fields
    more = (Field(f"m{power}", "real", second.identity, np.add) for power in range(3, order + 1))
    fields = (count, mean, second, *more)
    return Powers(f"moments_up_to_{order}", fields, "biuf", "", partial(_merge, order))


def _merge(order: int, a: State, b: State) -> State:
    a_count, a_mean, *_ = a
    b_count, b_mean, *_ = b
    count = a_count + b_count
    # The mean of no element is stored as 0, with weight 0.
    some = np.maximum(count, 1)
    a_weight, b_weight = a_count / some, b_count / some
    delta = b_mean - a_mean
    # The distances of the means from the common mean; 0 for a side without elements.
    to_a, to_b = -b_weight * delta * (a_count > 0), a_weight * delta * (b_count > 0)
    sums: list[Any] = []
    for power in range(2, order + 1):
        total = _about(a, to_a, a_count, power) + _about(b, to_b, b_count, power)
        sums.append(total)
    return (count, a_mean * a_weight + b_mean * b_weight, *sums)


def _about(state: State, shift: Any, count: Any, power: int) -> Any:
    """Return the sum of `power`-th powers about a point at a distance of `shift` from the mean."""
    total = state[power] + count * shift**power
    for k in range(1, power - 1):
        total = total + comb(power, k) * shift**k * state[power - k]
    return total
