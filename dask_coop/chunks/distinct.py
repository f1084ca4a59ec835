"""The monoid of sorted distinct values, with their counts and first positions.

A state is as long as the number of its distinct values; states merge up the tree like others::

    3 1 3   lift    1 3 | 1 2                      values | counts
    1 1 2  ------>  1 2 | 2 1   --merge-->  1 2 3 | 3 1 2

The backend of the arrays merges states of different lengths.
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
    """A monoid whose states are sorted distinct values, their first indices, and their counts.

    Attributes
    ----------
    counting : bool
        Whether the last field is the count of each value.
    equal_nan : bool
        Whether all NaN are one value; otherwise each is its own.
    """

    counting: bool = False
    equal_nan: bool = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return distinct, self._arguments

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "Distinct", self._arguments

    @property
    def _arguments(self) -> tuple[bool, bool, bool]:
        return self.positional, self.counting, self.equal_nan

    def combine(self, a: State, b: State) -> State:
        """Merge two states."""
        return self.combine_all([a, b])

    def combine_all(self, states: Sequence[State]) -> State:
        """Merge states in one step."""
        if len(states) == 1:
            return states[0]
        merged: State = backend_of(states[0][0]).merge_distinct(self, states)
        return merged


@lru_cache
def distinct(index: bool = False, counts: bool = False, equal_nan: bool = True) -> Distinct:
    """Return the monoid of distinct values, with first indices and counts if wanted."""
    (value, first), (count,) = ARGMIN.fields, COUNT_NONZERO.fields
    fields = (value, *([first] if index else []), *([count] if counts else []))
    return Distinct("distinct", fields, "biufcmMSU", "", counting=counts, equal_nan=equal_nan)


def named(monoid: Distinct, state: State) -> tuple[Any, Any, Any]:
    """Return the values, first indices and counts of a state; None for a missing field."""
    index = state[1] if monoid.positional else None
    return state[0], index, state[-1] if monoid.counting else None


def gathered(monoid: Distinct, states: Sequence[State]) -> list[tuple[Any, ...]]:
    """Return lists of each field of several states, without empty states."""
    filled = [state for state in states if len(state[0])] or [states[0]]
    return list(zip(*filled, strict=True))


def keeps_nan(monoid: Distinct, dtype: np.dtype[Any]) -> bool:
    """Return whether a state may have several NaN."""
    return not monoid.equal_nan and dtype.kind in "fcmM"
