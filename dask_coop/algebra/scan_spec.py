"""How the lines of an array are scanned: what public functions ask for and every task carries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import Field, MonoidRow, State, zero


@dataclass(frozen=True)
class ScanSpec:
    """A direction, and what the results include.

    Attributes
    ----------
    axis : int
        The axis that lines run along, not negative.
    exclusive : bool
        Whether a result leaves out its own element.
    reverse : bool
        Whether lines are scanned from their ends.
    initial : bool
        Whether there is one more result, of nothing yet: the first that is made.
    """

    axis: int
    exclusive: bool = False
    reverse: bool = False
    initial: bool = False

    def part(self, first: bool) -> ScanSpec:
        """Return how a chunk is scanned: only the first has the result of nothing yet."""
        return self if first or not self.initial else replace(self, initial=False)


def segmented(monoid: MonoidRow) -> MonoidRow:
    """Return the monoid of what is behind the last restart, and of whether there was one."""
    restarts = Field("restarts", "truth", zero, np.logical_or)
    merge = partial(_merge_segments, monoid)
    name, functor = f"segmented {monoid.name}", "Segmented"
    fields = (*monoid.fields, restarts)
    return MonoidRow(name, fields, monoid.kinds, functor, merge, commutative=False)


def _merge_segments(monoid: MonoidRow, a: State, b: State) -> State:
    restarts = b[-1]
    merged = zip(b[:-1], monoid.combine(a[:-1], b[:-1]), strict=True)
    return (*(choose(restarts, *pair) for pair in merged), np.logical_or(a[-1], restarts))
