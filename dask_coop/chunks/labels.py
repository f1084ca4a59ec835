"""Turn labels into codes: the number of each element's group.

Several labels are combined into the codes of a table with an axis for each label::

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
    """Groups given by their labels.

    Attributes
    ----------
    sorted : numpy.ndarray
        The labels of all groups, sorted.
    numbers : numpy.ndarray or None
        The group of each label; by default its position.
    """

    sorted: Array
    numbers: Array | None = None

    def codes(self, x: Any) -> Any:
        """Return the codes of labels; -1 for NaN and labels of no group."""
        values, numbers = self.comparable(x.dtype)
        n = len(values)
        if not n:
            return np.zeros_like(x, "i8", shape=x.shape) - 1
        if are_consecutive(values):
            # They need no search.
            inside = (x >= values[0]) & (x <= values[-1])
            codes = np.where(inside, x, values[0]).astype("i8") - int(values[0])
        else:
            x = x.astype(values.dtype, copy=False)
            values = asarray(values, kind(x)) if values.dtype.kind in "biufc" else values
            codes = np.minimum(backend_of(x).searchsorted(values, x, "left"), n - 1)
            inside = equals(values[codes], x)
        if numbers is not None:
            codes = asarray(numbers, kind(x))[codes]
        return np.where(inside, codes, -1)

    def comparable(self, dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
        """Return the labels of groups in a dtype that compares with labels, and their numbers."""
        values, numbers = self.sorted, self.numbers
        if values.dtype == dtype:
            return values, numbers
        if values.dtype.kind == "b":
            values = values.astype("u1")
        if values.dtype.kind in "biu" and dtype.kind in "iu":
            # There may be no common integer dtype.
            info = np.iinfo(dtype)
            fits = np.flatnonzero((values >= info.min) & (values <= info.max))
            if len(fits) < len(values):
                values, numbers = values[fits], fits if numbers is None else numbers[fits]
            return values.astype(dtype), numbers
        return values.astype(np.result_type(values, dtype), copy=False), numbers


def are_consecutive(values: Array) -> bool:
    """Return whether sorted distinct labels are integers that follow one another."""
    n = len(values)
    return n > 0 and values.dtype.kind in "iu" and int(values[-1]) - int(values[0]) == n - 1


@dataclass(frozen=True, eq=False)
class Intervals:
    """Groups given by intervals; the numbers of `steps` count the edges below a label."""

    steps: Steps
    n: int

    def codes(self, x: Any) -> Any:
        """Return the codes of labels; -1 for labels in no interval."""
        bins = backend_of(x).digitize(x.view("i8") if x.dtype.kind in "mM" else x, self.steps)
        return np.where((bins >= 1) & (bins <= self.n), bins - 1, -1)


@dataclass(frozen=True, eq=False)
class Coder:
    """The groups of several labels, which turns labels into codes.

    Attributes
    ----------
    groups : tuple of Values, Intervals or None
        The groups of each label; None for a label that has codes already.
    shape : tuple of int
        The number of groups of each label.
    """

    groups: tuple[Values | Intervals | None, ...]
    shape: tuple[int, ...]

    def codes(self, labels: Sequence[Any]) -> Any:
        """Return the codes of elements, given labels that broadcast to each other."""
        total: Any = 0
        left_out: Any = False
        for i, (groups, x) in enumerate(zip(self.groups, labels, strict=True)):
            codes = x if groups is None else groups.codes(x)
            total = total + codes * math.prod(self.shape[i + 1 :])
            left_out = left_out | (codes < 0)
        return np.where(left_out, -1, total)


def codes(coder: Coder, labels: Sequence[Any]) -> tuple[Any, int]:
    """Return the codes of elements by NumPy's functions, and the first group's number, 0."""
    return coder.codes(labels), 0
