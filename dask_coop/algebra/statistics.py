"""The statistics by name: a row says all that arrays, groups and windows have to know of one.

::

    "nanvar"  -->  a row  -->  VAR, which chunks are lifted and combined by
                          -->  finish: count, mean, squared deviations --> the variance

A public function of arrays and `groupby_reduce` look up the same row, `xarray`'s methods call these
by name, and windows take the row that counts elements besides. A name with "nan" before it is the
row of that name, with NaN left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dask_coop.algebra import reproducible as digits
from dask_coop.algebra.monoids import (
    ALL,
    ANY,
    ARGMAX,
    ARGMIN,
    COUNT,
    COUNT_NONZERO,
    FIRST,
    FIRST_MAX,
    FIRST_MIN,
    LAST,
    LOGADDEXP,
    MAX,
    MEAN,
    MIN,
    MOMENTS,
    NANMAX,
    NANMIN,
    NO_INDEX,
    PROD,
    SUM,
    VAR,
    MonoidRow,
    State,
)

#: Makes of a state the result.
Finish = Callable[[State], Any]


def only_field(state: State) -> Any:
    """Return the field of a state that has one: what most reductions end with."""
    return state[0]


def quotient(state: State) -> Any:
    """Return a total by a count; NaN of no element."""
    total, count = state
    with np.errstate(all="ignore"):
        return total / count


def _spread(
    state: State, *, ddof: float = 0, root: bool = False, skipna: bool = False, masked: bool = False
) -> Any:
    count, _, m2 = state
    degrees = np.maximum(count - ddof, 0)
    value = quotient((m2, degrees))
    if skipna:
        value = np.where(degrees > 0, value, np.nan)
    if root:
        value = np.sqrt(value)
    # NumPy masks what has no degree of freedom, too.
    return np.ma.masked_where(degrees <= 0, value) if masked else value


def _index(state: State) -> Any:
    return np.where(state[1] == NO_INDEX, -1, state[1])


@dataclass(frozen=True)
class StatisticRow:
    """A statistic by name.

    Attributes
    ----------
    monoid : MonoidRow
        What it is made of, which also tells the dtype of results.
    finish : callable
        Makes results of states.
    keywords : tuple of str
        What `finish` takes besides that a caller may set.
    skipna : bool
        Whether NaN is left out.
    nothing : int or None
        What a group without elements gets; None stands for what is missing: NaN, NaT or the lowest
        integer.
    converts : bool
        Whether elements become numbers of the dtype that is asked for before they are reduced, and
        not the results afterwards.
    exact : callable, optional
        Makes results of the digits of a reproducible sum, and takes their dtype for `output`.
    of_complex : MonoidRow, optional
        The monoid in the place of `monoid` for complex numbers.
    without_nan : MonoidRow, optional
        The monoid that leaves NaN out by itself.
    window : MonoidRow, optional
        What chunks that lie within a window are reduced by.
    units : str
        The rule of `api/call/units.py` for the units of results, if it is a public function.
    """

    monoid: MonoidRow
    finish: Callable[..., Any] = only_field
    keywords: tuple[str, ...] = ()
    skipna: bool = False
    nothing: int | None = None
    converts: bool = False
    exact: Callable[..., Any] | None = None
    of_complex: MonoidRow | None = None
    without_nan: MonoidRow | None = None
    window: MonoidRow | None = None
    units: str = ""

    def leaves_out(self, element: np.dtype[Any]) -> bool:
        """Tell whether there may be elements of a dtype that are left out."""
        return self.skipna and element.kind in "fc"

    def monoid_of(self, element: np.dtype[Any]) -> MonoidRow:
        """Return the monoid for elements of a dtype."""
        if self.of_complex is not None and element.kind == "c":
            return self.of_complex
        if self.without_nan is not None and self.leaves_out(element):
            return self.without_nan
        return self.monoid

    def finish_with(self, **keywords: Any) -> Finish:
        """Return what makes results of states by some keywords."""
        return (
            partial(self.finish, skipna=self.skipna, **keywords) if self.keywords else self.finish
        )


_VAR = StatisticRow(VAR, _spread, ("ddof",), window=VAR, units="square")
_MIN = StatisticRow(
    MIN, converts=True, of_complex=FIRST_MIN, without_nan=NANMIN, window=MOMENTS, units="same"
)
_MAX = replace(_MIN, monoid=MAX, of_complex=FIRST_MAX, without_nan=NANMAX)


def with_nan_forms(rows: dict[str, StatisticRow]) -> dict[str, StatisticRow]:
    """Return rows by their names, and the same with NaN left out by these with "nan" before."""
    return rows | {f"nan{name}": replace(row, skipna=True) for name, row in rows.items()}


#: The statistics by the names that flox has for them, and two besides.
STATISTICS = with_nan_forms(
    {
        "sum": StatisticRow(SUM, converts=True, exact=digits.total, window=MEAN, units="sum"),
        "prod": StatisticRow(PROD, nothing=1, converts=True, units="pure"),
        "mean": StatisticRow(
            MEAN, quotient, converts=True, exact=digits.mean, window=MEAN, units="same"
        ),
        "var": _VAR,
        "std": replace(_VAR, finish=partial(_spread, root=True), units="difference"),
        "min": _MIN,
        "max": _MAX,
        "argmin": StatisticRow(ARGMIN, _index, nothing=-1, units="place"),
        "argmax": StatisticRow(ARGMAX, _index, nothing=-1, units="place"),
        "first": StatisticRow(FIRST),
        "last": StatisticRow(LAST),
    }
)
# The product of no element is one, where NaN are left out and flox calls it missing.
STATISTICS["nanprod"] = replace(STATISTICS["nanprod"], nothing=None)
STATISTICS |= {
    "any": StatisticRow(ANY, nothing=0, units="truth"),
    "all": StatisticRow(ALL, nothing=0, units="truth"),
    "count": StatisticRow(COUNT, skipna=True, nothing=0),
    "count_nonzero": StatisticRow(COUNT_NONZERO, nothing=0, units="truth"),
    "logsumexp": StatisticRow(LOGADDEXP),
}


@dataclass(frozen=True)
class ScanRow:
    """A scan by name.

    Attributes
    ----------
    monoid : MonoidRow
    skipna : bool
        Whether NaN is left out.
    times : str
        The kinds of dates and durations that it takes.
    units : str
        The rule of `api/call/units.py` for the units of results.
    """

    monoid: MonoidRow
    skipna: bool = False
    times: str = ""
    units: str = ""

    def element(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return what elements of a dtype are taken as: floats where the monoid has these only."""
        is_whole = dtype.kind in "biu" and self.monoid.kinds == "f"
        return np.dtype("f8") if is_whole else dtype


#: The scans by name that are scans of a monoid.
SCANS = {
    "cumsum": ScanRow(SUM, times="m", units="sum"),
    "nancumsum": ScanRow(SUM, skipna=True, units="sum"),
    "cumprod": ScanRow(PROD, units="pure"),
    "nancumprod": ScanRow(PROD, skipna=True, units="pure"),
    "cummax": ScanRow(MAX, times="mM", units="same"),
    "cummin": ScanRow(MIN, times="mM", units="same"),
    "logcumsumexp": ScanRow(LOGADDEXP, units="pure"),
}


@dataclass(frozen=True)
class Fill:
    """The results of groups with too few elements.

    Attributes
    ----------
    value : object
        The fill value that the caller gave, or None.
    least : int
        The number of elements, not counting NaN, that a group needs.
    nothing : object
        The default result of a group without elements, or "identity": that of the monoid.
    """

    value: Any
    least: int
    nothing: Any

    def required(self, name: str) -> Any:
        """Return the caller's fill value; without one, raise ValueError with flox's message."""
        if self.value is None:
            raise ValueError(
                f"Filling is required but fill_value is None: a group has less than min_count="
                f"{self.least} elements that {name} takes; give fill_value"
            )
        return self.value
