"""The table of statistics by name: each row has all that arrays, groups and windows need.

::

    "nanvar"  -->  a row  -->  VAR, which chunks are lifted and combined by
                          -->  finish: count, mean, squared deviations --> the variance

The public functions of arrays and `groupby_reduce` look up the same row. The methods of `xarray`
call statistics by these names, and windows use the row that also counts elements. A name that
begins with "nan" stands for the row of the other letters, with NaN left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dask_coop.algebra import reproducible as digits
from dask_coop.algebra.central_moments import moments_up_to
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

#: Makes the result from a state.
Finish = Callable[[State], Any]


def only_field(state: State) -> Any:
    """Return the only field of a state: the last step of most reductions."""
    return state[0]


def quotient(state: State) -> Any:
    """Divide a total by a count; return NaN where the count is zero."""
    total, count = state
    with np.errstate(all="ignore"):
        return total / count


def _spread(
    state: State, *, ddof: float = 0, root: bool = False, skipna: bool = False, masked: bool = False
) -> Any:
    count, _, m2, *_ = state
    degrees = np.maximum(count - ddof, 0)
    value = quotient((m2, degrees))
    if skipna:
        value = np.where(degrees > 0, value, np.nan)
    if root:
        value = np.sqrt(value)
    # NumPy also masks results without a degree of freedom.
    return np.ma.masked_where(degrees <= 0, value) if masked else value


#: The least variance, as a multiple of the squared mean, that is not taken for rounding errors.
_RESOLUTION = 1e-30


def _normalized(state: State, order: int) -> tuple[Any, Any]:
    """Return counts, and the moment of an order of elements in units of their deviation.

    As in SciPy it is NaN where elements differ by rounding errors only.
    """
    count, mean, squares, power = state[0], state[1], state[2], state[order]
    degrees = np.where(count > 0, count, np.nan)
    variance = squares / degrees
    varies = variance > _RESOLUTION * mean * mean
    return degrees, np.where(varies, power / degrees / variance ** (order / 2), np.nan)


def _skew(state: State, *, bias: bool = True, skipna: bool = False) -> Any:
    with np.errstate(all="ignore"):
        n, value = _normalized(state, 3)
        if bias:
            return value
        return np.where(n > 2, value * np.sqrt((n - 1) * n) / (n - 2), value)


def _kurtosis(state: State, *, fisher: bool = True, bias: bool = True, skipna: bool = False) -> Any:
    with np.errstate(all="ignore"):
        n, value = _normalized(state, 4)
        if not bias:
            other = ((n * n - 1) * value - 3 * (n - 1) ** 2) / (n - 2) / (n - 3) + 3
            value = np.where(n > 3, other, value)
        return value - 3 if fisher else value


def _index(state: State) -> Any:
    return np.where(state[1] == NO_INDEX, -1, state[1])


@dataclass(frozen=True)
class StatisticRow:
    """A statistic by name.

    Attributes
    ----------
    monoid : MonoidRow
        The monoid that reduces chunks; it also sets the dtype of results.
    finish : callable
        Makes results from states.
    keywords : tuple of str
        Further arguments of `finish` that a caller may set.
    skipna : bool
        Whether NaN is left out.
    nothing : int or None
        The result of a group without elements; None stands for the missing value: NaN, NaT or
        the lowest integer.
    converts : bool
        Whether elements are converted to the requested dtype before the reduction; otherwise
        results are converted after it.
    exact : callable, optional
        Makes results from the digits of a reproducible sum; takes their dtype as `output`.
    of_complex : MonoidRow, optional
        The monoid that replaces `monoid` for complex numbers.
    without_nan : MonoidRow, optional
        The monoid that leaves NaN out by itself.
    window : MonoidRow, optional
        The monoid that reduces chunks that lie within a window.
    units : str
        The rule of `api/call/units.py` for the units of results, for public functions.
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
        """Return whether the statistic leaves out NaN and elements of this dtype may be NaN."""
        return self.skipna and element.kind in "fc"

    def monoid_of(self, element: np.dtype[Any]) -> MonoidRow:
        """Return the monoid for elements of a dtype."""
        if self.of_complex is not None and element.kind == "c":
            return self.of_complex
        if self.without_nan is not None and self.leaves_out(element):
            return self.without_nan
        return self.monoid

    def finish_with(self, **keywords: Any) -> Finish:
        """Return the function that makes results from states, with these keywords set."""
        return (
            partial(self.finish, skipna=self.skipna, **keywords) if self.keywords else self.finish
        )


_VAR = StatisticRow(VAR, _spread, ("ddof",), window=VAR, units="square")
_MIN = StatisticRow(
    MIN, converts=True, of_complex=FIRST_MIN, without_nan=NANMIN, window=MOMENTS, units="same"
)
_MAX = replace(_MIN, monoid=MAX, of_complex=FIRST_MAX, without_nan=NANMAX)


def with_nan_forms(rows: dict[str, StatisticRow]) -> dict[str, StatisticRow]:
    """Return the rows, and for each name a row "nan" + name that leaves NaN out."""
    return rows | {f"nan{name}": replace(row, skipna=True) for name, row in rows.items()}


#: The statistics by flox's names, and some that flox lacks.
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
        "skew": StatisticRow(moments_up_to(3), _skew, ("bias",)),
        "kurtosis": StatisticRow(moments_up_to(4), _kurtosis, ("fisher", "bias")),
        "first": StatisticRow(FIRST),
        "last": StatisticRow(LAST),
    }
)
# The product of no elements is one, but flox calls it missing where NaN are left out.
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
        The kinds of dates and durations that the scan accepts.
    units : str
        The rule of `api/call/units.py` for the units of results.
    """

    monoid: MonoidRow
    skipna: bool = False
    times: str = ""
    units: str = ""

    def element(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype in which elements are scanned: float64 for integers of float monoids."""
        is_whole = dtype.kind in "biu" and self.monoid.kinds == "f"
        return np.dtype("f8") if is_whole else dtype


#: The named scans that are scans of a monoid.
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
