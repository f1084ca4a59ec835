"""How often elements of lines repeat: the most frequent one, its count, and the number of values.

A sorted line is a row of runs of equal elements, of which the lengths are counts::

    3 1 3 2 --sort--> 1 2 3 3 --lengths where runs begin--> 1 1 2 0

NaN are one value, the last.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from dask_coop import chunks
from dask_coop.algebra.merges import equals


class Repeats(NamedTuple):
    """A result of lines, in the place of `dask_coop.algebra.quantiles.Quantiles`.

    Attributes
    ----------
    wanted : {"mode", "count", "nunique"}
        The least of the most frequent elements, their count, or the number of distinct elements.
    skipna : bool
        Whether NaN and NaT are left out.
    """

    wanted: Literal["mode", "count", "nunique"]
    skipna: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the results of a line."""
        return ()

    def result(self, element: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of results."""
        return element if self.wanted == "mode" else np.dtype("i8")

    def of_lines(self, lines: Any) -> tuple[Any, Any]:
        """Return the results of lines along the last axis, and how many elements each counts."""
        ordered = chunks.backend_of(lines).sort(lines, -1, False)
        counts, valid = _runs(ordered)
        if self.skipna:
            counts = counts * valid
        sizes = counts.sum(-1)
        if self.wanted == "nunique":
            return (counts > 0).sum(-1), np.full_like(sizes, lines.shape[-1])
        # The first of several.
        at = counts.argmax(-1)[..., np.newaxis]
        of_each = ordered if self.wanted == "mode" else counts
        return np.take_along_axis(of_each, at, -1)[..., 0], sizes

    def of_distinct(self, state: Any) -> Any:
        """Return the result of a whole array, from its distinct elements and their counts."""
        values, counts = state
        if self.skipna:
            counts = counts * (values == values)
        if self.wanted == "nunique":
            return (counts > 0).sum()
        return (values if self.wanted == "mode" else counts)[counts.argmax()]


def begins(ordered: Any) -> Any:
    """Return which elements of sorted lines differ from the one before; NaN are equal."""
    valid = ordered == ordered
    first = np.ones_like(ordered, bool)
    same = equals(ordered[..., 1:], ordered[..., :-1])
    first[..., 1:] = ~same & (valid[..., 1:] | valid[..., :-1])
    return first


def _runs(ordered: Any) -> tuple[Any, Any]:
    """Return the length of each run of equal elements, where it begins, and which are not NaN."""
    starts = np.flatnonzero(begins(ordered))
    counts = np.zeros_like(ordered, "i8").reshape(-1)
    ends = np.zeros_like(starts)
    ends[:-1] = starts[1:]
    ends[-1:] = counts.size
    counts[starts] = ends - starts
    return counts.reshape(ordered.shape), ordered == ordered
