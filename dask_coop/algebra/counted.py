"""The monoid of what a masked array leaves: the state of another one, and how many elements it has.

Masked elements are left out of a state. Where none was left the result is masked, whatever the
monoid would make of nothing::

    1 2 -    lift     (3, 2)    finalize    3
    - - -   ------>   (0, 0)   ---------->  masked
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import COUNT_NONZERO, MonoidRow, State


@dataclass(frozen=True, eq=False)
class Counted(MonoidRow):
    """A monoid whose state ends with the number of elements; it has no functor."""

    inner: MonoidRow = COUNT_NONZERO

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it: tasks stay small and `is` holds."""
        return counted, (self.inner,)

    def __dask_tokenize__(self) -> Any:
        """Name the call that makes it, for Dask's keys."""
        return "Counted", self.inner.__dask_tokenize__()

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        return (*self.inner.combine(a[:-1], b[:-1]), a[-1] + b[-1])


@lru_cache
def counted(monoid: MonoidRow) -> Counted:
    """Return the monoid of states of `monoid` and of how many elements they have."""
    (count,) = COUNT_NONZERO.fields
    fields = (*monoid.fields, replace(count, name="elements"))
    commutative = monoid.commutative
    return Counted(
        f"counted_{monoid.name}", fields, monoid.kinds, "", commutative=commutative, inner=monoid
    )


# Inside the task.


def masked(finalize: Callable[[State], Any], state: State) -> Any:
    """Return the result of a state, masked where no element was left."""
    *rest, count = state
    nothing = np.asarray(count == 0)
    if nothing.any():
        # Any state will do, and this is one without warnings and refusals.
        rest = [np.where(nothing, np.asarray(field).dtype.type(1), field) for field in rest]
    value = np.asanyarray(finalize(tuple(rest)))
    return np.ma.array(value, mask=nothing | np.zeros(value.shape, "?"))
