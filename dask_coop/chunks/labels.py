"""What makes codes of labels: which group an element is of, by the number of the group.

Codes of several labels are those of the table that has an axis for each::

    month  [1 1 2]  -->  0 0 1  -+
                                 +-->  0 1 2        group (month, land) by its place in the table
    land   [a b a]  -->  0 1 0  -+
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_coop.algebra.bins import Steps
from dask_coop.algebra.merges import equals
from dask_coop.chunks.backend import asarray, backend_of, kind

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Values:
    """Groups by their labels.

    Attributes
    ----------
    sorted : numpy.ndarray
        The labels of all groups.
    numbers : numpy.ndarray or None
        The group that each of them has, where that is not its place.
    """

    sorted: Array
    numbers: Array | None = None

    def codes(self, x: Any) -> Any:
        """Return the codes of labels: -1 for what is no group's, or NaN."""
        values, numbers = _comparable(self.sorted, self.numbers, x.dtype)
        n = len(values)
        if not n:
            return np.zeros_like(x, "i8", shape=x.shape) - 1
        if values.dtype.kind in "iu" and int(values[-1]) - int(values[0]) == n - 1:
            # No search is needed among integers that follow one another.
            inside = (x >= values[0]) & (x <= values[-1])
            found = np.where(inside, x, values[0]).astype("i8") - int(values[0])
        else:
            x = x.astype(values.dtype, copy=False)
            own = asarray(values, kind(x)) if values.dtype.kind in "biufc" else values
            found = np.minimum(backend_of(x).searchsorted(own, x, "left"), n - 1)
            inside = equals(own[found], x)
        if numbers is not None:
            found = asarray(numbers, kind(x))[found]
        return np.where(inside, found, -1)


@dataclass(frozen=True, eq=False)
class Intervals:
    """Groups that are intervals between edges; of `steps` numbers count the edges below."""

    steps: Steps
    n: int

    def codes(self, x: Any) -> Any:
        """Return the codes of labels: -1 for what is in no interval."""
        found = backend_of(x).digitize(x.view("i8") if x.dtype.kind in "mM" else x, self.steps)
        return np.where((found >= 1) & (found <= self.n), found - 1, -1)


@dataclass(frozen=True, eq=False)
class Coder:
    """What makes codes of several labels.

    Attributes
    ----------
    groups : tuple of Values, Intervals or None
        Those of each label; None for one that is codes already.
    shape : tuple of int
        How many groups each of them has.
    """

    groups: tuple[Values | Intervals | None, ...]
    shape: tuple[int, ...]

    def codes(self, labels: Sequence[Any]) -> Any:
        """Return the codes of elements of which each label broadcasts to the others."""
        total: Any = 0
        left_out: Any = False
        for i, (groups, x) in enumerate(zip(self.groups, labels, strict=True)):
            codes = x if groups is None else groups.codes(x)
            total = total + codes * math.prod(self.shape[i + 1 :])
            left_out = left_out | (codes < 0)
        return np.where(left_out, -1, total)


def _comparable(
    values: Array, numbers: Array | None, dtype: np.dtype[Any]
) -> tuple[Array, Array | None]:
    """Return values, and their numbers, as labels of a dtype compare with them."""
    if values.dtype == dtype:
        return values, numbers
    if values.dtype.kind in "biu" and dtype.kind in "iu":
        # No dtype may have all integers of both.
        info = np.iinfo(dtype)
        fits = np.flatnonzero((values >= info.min) & (values <= info.max))
        if len(fits) < len(values):
            values, numbers = values[fits], fits if numbers is None else numbers[fits]
        return values.astype(dtype), numbers
    return values.astype(np.result_type(values, dtype), copy=False), numbers
