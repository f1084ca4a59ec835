"""The monoid for masked arrays: the state of another monoid, and the number of unmasked elements.

Masked elements are left out of a state. A result without elements is masked, whatever the other
monoid's result would be::

    1 2 -    lift     (3, 2)    finalize    3
    - - -   ------>   (0, 0)   ---------->  masked
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import COUNT_NONZERO, MonoidRow, State
from dask_coop.algebra.operation import Operation


@dataclass(frozen=True, eq=False)
class Counted(MonoidRow):
    """A monoid whose state ends with the number of elements; it has no functor."""

    inner: MonoidRow = COUNT_NONZERO

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return counted, (self.inner,)

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "Counted", self.inner.__dask_tokenize__()

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        return (*self.inner.combine(a[:-1], b[:-1]), a[-1] + b[-1])


@lru_cache
def counted(monoid: MonoidRow) -> Counted:
    """Return the monoid of the states of `monoid` with their numbers of elements."""
    (count,) = COUNT_NONZERO.fields
    fields = (*monoid.fields, replace(count, name="elements"))
    commutative = monoid.commutative
    return Counted(
        f"counted_{monoid.name}", fields, monoid.kinds, "", commutative=commutative, inner=monoid
    )


# Inside the task.


def with_number(op: Operation) -> Operation:
    """Return the operation whose states count elements, for a masked chunk of an undeclared one.

    Dask's `tensordot` makes such chunks. Monoids with a class of their own keep their states.
    """
    counts = type(op.monoid) is MonoidRow and not op.monoid.fills_masked
    return replace(op, monoid=counted(op.monoid)) if counts else op


def is_mixed(op: Operation, states: Sequence[State]) -> bool:
    """Tell whether any of the states counts elements though `op` does not."""
    fields = len(op.monoid.fields)
    return type(op.monoid) is MonoidRow and any(len(state) > fields for state in states)


def combine_mixed(op: Operation, states: Sequence[State]) -> tuple[State, bool]:
    """Combine states, and return besides whether they are mixed: then the result counts elements.

    States that do not count are of chunks without masks, and have elements.
    """
    if not is_mixed(op, states):
        return op.combine([*states]), False
    op = with_number(op)
    fields = len(op.monoid.fields)
    return op.combine([s if len(s) == fields else (*s, np.int64(1)) for s in states]), True


def masked(finalize: Callable[[State], Any], state: State) -> Any:
    """Return the result of a state, masked where it has no elements."""
    *inner, count = state
    nothing = np.asarray(count == 0)
    if nothing.any():
        # Any state will do; ones cause no warnings or errors.
        inner = [np.where(nothing, np.asarray(field).dtype.type(1), field) for field in inner]
    value = np.asanyarray(finalize(tuple(inner)))
    return np.ma.array(value, mask=nothing | np.zeros(value.shape, "?"))
