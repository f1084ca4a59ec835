"""The options of a scan, which public functions set and every task carries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import Field, MonoidRow, State, zero


@dataclass(frozen=True)
class ScanSpec:
    """The direction of a scan, and the elements that its results include.

    Attributes
    ----------
    axis : int
        The axis of the lines, not negative.
    exclusive : bool
        Whether a result excludes its own element.
    reverse : bool
        Whether lines are scanned from the end.
    initial : bool
        Whether the scan starts with one more result, of no element.
    """

    axis: int
    exclusive: bool = False
    reverse: bool = False
    initial: bool = False

    def part(self, first: bool) -> ScanSpec:
        """Return the spec of a chunk; only the first chunk has the initial result."""
        return self if first or not self.initial else replace(self, initial=False)


def segmented(monoid: MonoidRow) -> MonoidRow:
    """Return the monoid of states since the last restart, with a flag of restarts."""
    restarts = Field("restarts", "truth", zero, np.logical_or)
    merge = partial(_merge_segments, monoid)
    name, functor = f"segmented {monoid.name}", "Segmented"
    fields = (*monoid.fields, restarts)
    return MonoidRow(name, fields, monoid.kinds, functor, merge, commutative=False)


def _merge_segments(monoid: MonoidRow, a: State, b: State) -> State:
    restarts = b[-1]
    merged = zip(b[:-1], monoid.combine(a[:-1], b[:-1]), strict=True)
    return (*(choose(restarts, *pair) for pair in merged), np.logical_or(a[-1], restarts))
