"""The monoid of distinct values: sorted, how often each occurs, and where it does first.

A state is as long as a chunk has distinct values; states merge up the tree as others combine::

    3 1 3   lift    1 3 | 1 2                      values | counts
    1 1 2  ------>  1 2 | 2 1   --merge-->  1 2 3 | 3 1 2

How arrays of several lengths merge is the business of the backend whose arrays they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import ARGMIN, COUNT_NONZERO, MonoidRow, State
from dask_coop.chunks.backend import backend_of


@dataclass(frozen=True, eq=False)
class Distinct(MonoidRow):
    """A monoid whose states are sorted distinct values, then where they are first, then counts.

    Attributes
    ----------
    counting : bool
        Whether the last field is how often each value occurs.
    equal_nan : bool
        Whether all NaN are one value, or each is a value of its own.
    """

    counting: bool = False
    equal_nan: bool = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it: tasks stay small and `is` holds."""
        return distinct, self._arguments

    def __dask_tokenize__(self) -> Any:
        """Name the call that makes it, for Dask's keys."""
        return "Distinct", self._arguments

    @property
    def _arguments(self) -> tuple[bool, bool, bool]:
        return self.positional, self.counting, self.equal_nan

    def combine(self, a: State, b: State) -> State:
        """Merge the states of two parts."""
        return self.combine_all([a, b])

    def combine_all(self, states: Sequence[State]) -> State:
        """Merge states, all at once."""
        if len(states) == 1:
            return states[0]
        merged: State = backend_of(states[0][0]).merge_distinct(self, states)
        return merged


@lru_cache
def distinct(index: bool = False, counts: bool = False, equal_nan: bool = True) -> Distinct:
    """Return the monoid of states that tell so much."""
    (value, first), (count,) = ARGMIN.fields, COUNT_NONZERO.fields
    fields = (value, *([first] if index else []), *([count] if counts else []))
    return Distinct("distinct", fields, "biufcmMSU", "", counting=counts, equal_nan=equal_nan)


def named(monoid: Distinct, state: State) -> tuple[Any, Any, Any]:
    """Return values, first indices and counts of a state, None for what it does not tell."""
    values, *rest = state
    index = rest.pop(0) if monoid.positional else None
    return values, index, rest[0] if monoid.counting else None


def gathered(monoid: Distinct, states: Sequence[State]) -> list[tuple[Any, ...]]:
    """Return, field by field, what several states have, those without values left out."""
    some = [state for state in states if len(state[0])] or [states[0]]
    return list(zip(*some, strict=True))


def keeps_nan(monoid: Distinct, dtype: np.dtype[Any]) -> bool:
    """Tell whether there may be several values that are not equal to themselves."""
    return not monoid.equal_nan and dtype.kind in "fcmM"
