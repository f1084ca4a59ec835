"""Statistics of windows: the state of a window, and the results of states.

A state has the number of elements that are not NaN, and their sum, or extremum, or mean and squared
deviations. Pairs are complex elements, and their state has these of either variable, and the sum of
products of deviations. Elements are never subtracted from a state, so those outside the window
cannot affect it. Order statistics have no such state: they need every element of a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_coop.algebra.merges import cast, extremum, merge_deviations, settle
from dask_coop.algebra.monoids import COMPENSATED_VAR, MOMENTS, State
from dask_coop.algebra.operation import Operation, compensated
from dask_coop.algebra.paired import COMOMENTS
from dask_coop.algebra.quantiles import Quantiles
from dask_coop.algebra.statistics import STATISTICS, quotient

#: Order statistics of windows, and those that are places or ranks, whatever the elements.
ORDERED = ("median", "quantile", "rank", "argmin", "argmax")
_PLACES = ("rank", "argmin", "argmax")


@dataclass(frozen=True)
class Window:
    """The statistic of the window that ends at each element of a line.

    Attributes
    ----------
    statistic : str
        The name of a row of `STATISTICS` that windows have, or one of `ORDERED`.
    axis : int
        The axis of the lines, not negative.
    length : int
        The number of elements of a window, at most the number of results of a line.
    min_count : int
        The least number of elements, without NaN, for a result other than NaN; 1 or more.
    ddof : int
        The delta degrees of freedom: squared deviations are divided by the count minus `ddof`.
    q : float, optional
        The quantile, from 0 to 1.
    first : bool
        Whether places are of the first of equal extrema, not of the last.
    """

    statistic: str
    axis: int
    length: int
    min_count: int
    ddof: int = 0
    q: float | None = None
    first: bool = False

    @property
    def is_ordered(self) -> bool:
        """Whether results need every element of their windows."""
        return self.statistic in ORDERED

    @property
    def is_paired(self) -> bool:
        """Whether elements are pairs of numbers."""
        return self.statistic in ("cov", "corr")

    @property
    def quantiles(self) -> Quantiles:
        """The quantile of each window, or the median."""
        q = None if self.q is None else np.asarray(self.q, "f8")
        return Quantiles(q, skipna=True, weak=True)

    def element(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype to which elements of `dtype` are converted."""
        if self.is_paired:
            return dtype
        return np.dtype("f4" if dtype in (np.float16, np.float32) else "f8")

    def result(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of results for elements of `dtype`."""
        if self.statistic in _PLACES:
            narrow = dtype.kind == "f" and dtype.itemsize <= 4
            # float32 has all places up to there.
            return np.dtype("f4" if narrow and self.length <= 1 << 24 else "f8")
        if self.is_paired:
            return np.dtype("f4" if dtype.itemsize == 8 else "f8")
        return dtype.newbyteorder("=") if dtype.kind == "f" else np.dtype("f8")

    def operation(self, dtype: np.dtype[Any]) -> Operation:
        """Return the operation that reduces chunks of `dtype` that lie within a window."""
        if self.is_paired:
            return Operation(COMOMENTS, np.dtype("f8"), np.dtype("f8"), skipna=True)
        row, element = STATISTICS[self.statistic].window, dtype.newbyteorder("=")
        assert row is not None, self.statistic
        if row is MOMENTS:
            element = self.element(dtype)
            return Operation(row, element, element)
        op = Operation(row, element, np.dtype("f8"), skipna=dtype.kind == "f")
        return compensated(op)

    def keep(self, op: Operation, state: State) -> State:
        """Return the state of a window from a state of the operation."""
        if op.monoid in (COMOMENTS, COMPENSATED_VAR):
            return state
        if op.monoid is MOMENTS:
            return state[0], state[2 if self.statistic == "min" else 3]
        total, count = settle(state) if op.monoid.has_excess else state
        return count, total

    def lift(self, x: Any) -> State:
        """Return the state of each element."""
        valid = x == x
        if self.is_paired:
            first, second = (np.where(valid, of, 0).astype("f8") for of in (x.real, x.imag))
            nothing = np.zeros_like(first)
            return valid.astype("f8"), first, *(nothing,) * 2, second, *(nothing,) * 3
        if self.statistic in ("min", "max"):
            return valid.astype("i8"), np.where(valid, x, x.dtype.type(self._worst))
        values = cast(np.where(valid, x, x.dtype.type(0)), np.dtype("f8"))
        if self.statistic in ("var", "std"):
            with np.errstate(invalid="ignore"):
                # Not 0 for infinity, which has no deviation from itself.
                nothing = values - values
            return valid.astype("i8"), values, nothing, np.zeros_like(values)
        return valid.astype("i8"), values

    def _of_pairs(self, state: State) -> Any:
        """Return covariances or correlations, NaN where there are too few pairs."""
        count, _, _, xx, _, _, yy, xy = state
        with np.errstate(all="ignore"):
            if self.statistic == "corr":
                return np.clip(xy / (np.sqrt(xx) * np.sqrt(yy)), -1, 1)
            return np.where(count > self.ddof, xy / (count - self.ddof), np.nan)

    @property
    def _worst(self) -> float:
        return np.inf if self.statistic == "min" else -np.inf

    def combine(self, a: State, b: State) -> State:
        """Combine states of neighbours."""
        with np.errstate(all="ignore"):
            if self.is_paired:
                return COMOMENTS.combine(a, b)
            if self.statistic in ("var", "std"):
                return merge_deviations(a, b)
            ufunc = {"min": np.minimum, "max": np.maximum}.get(self.statistic)
            both = a[1] + b[1] if ufunc is None else extremum(ufunc, a[1], b[1])
            return a[0] + b[0], both

    def finish(self, state: State) -> Any:
        """Return the results of windows."""
        count, value = state[:2]
        if self.is_paired:
            value = self._of_pairs(state)
        if self.statistic == "mean":
            value = quotient((value, count))
        elif self.statistic in ("var", "std"):
            value = quotient((state[2], count - self.ddof))
        if self.statistic == "std":
            with np.errstate(invalid="ignore"):
                value = np.sqrt(value)
        return np.where(count >= self.min_count, value, value.dtype.type(np.nan))
