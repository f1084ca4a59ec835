"""The statistics and the histogram of all values of an array, in two reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np

from dask_coop.api.histogram import histogram
from dask_coop.api.moments import describe
from dask_coop.cli.readable import readable
from dask_coop.errors import UserError

#: Two numbers, or two dates.
Range = tuple[Any, Any]

# Those of `describe` that are shown, and their labels.
STATISTICS = {
    "count": "count",
    "nans": "NaN",
    "min": "min",
    "max": "max",
    "mean": "mean",
    "std": "standard deviation",
}
QUANTILES = {"1 %": 0.01, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "99 %": 0.99}


@dataclass(frozen=True)
class Summary:
    """What is known of an array's values after its reads.

    Attributes
    ----------
    statistics : dict
        `STATISTICS` of all values, as Python numbers, or NumPy's dates and durations.
    counts, edges : numpy.ndarray
        The histogram, of shapes ``(n,)`` and ``(n + 1,)``.
    origin : numpy.datetime64 or numpy.timedelta64, optional
        From where on edges count in the unit of the values, which are dates or durations.
    reads : int
        How often the array was read.
    seconds : float
        How long that took.
    """

    statistics: dict[str, Any]
    counts: np.ndarray[Any, Any]
    edges: np.ndarray[Any, Any]
    reads: int
    seconds: float
    origin: Any = None

    @property
    def inside(self) -> int:
        """How many values the histogram holds."""
        return int(self.counts.sum())

    def rows(self) -> dict[str, Any]:
        """Return the table for people: what each number is, and the number."""
        rows = {label: self.statistics[name] for name, label in STATISTICS.items()}
        width = float(self.edges[1] - self.edges[0])
        if self.origin is not None:
            rows = {"NaT" if label == "NaN" else label: value for label, value in rows.items()}
            width = np.int64(round(width)).view(_duration(self.origin.dtype))
        if outside := self.statistics["count"] - self.inside:
            rows["outside the histogram"] = outside
        rows["width of a bin"] = width
        names = [f"{name} (from {len(self.counts)} bins)" for name in QUANTILES]
        values = self.values(self.quantiles([*QUANTILES.values()]))
        return rows | dict(zip(names, values, strict=True))

    def quantiles(self, probabilities: list[float]) -> list[float]:
        """Return where the quantiles of the values in the histogram lie along its edges.

        Values are taken to be even inside each bin.
        """
        cumulative = np.concatenate(([0], np.cumsum(self.counts)))
        found = np.interp(np.multiply(probabilities, cumulative[-1]), cumulative, self.edges)
        low, high = self.statistics["min"], self.statistics["max"]
        if self.origin is not None:
            low, high = (_ticks(value) - _ticks(self.origin) for value in (low, high))
        return [float(value) for value in np.clip(found, low, high)]

    def values(self, numbers: Any) -> Any:
        """Return the values that lie at `numbers` along the edges."""
        if self.origin is None:
            return numbers
        first, last = np.iinfo("i8").min + 1, np.iinfo("i8").max
        ticks = (min(max(_ticks(self.origin) + round(n), first), last) for n in map(float, numbers))
        return np.array([*ticks], "i8").view(self.origin.dtype)


def summarize(
    x: da.Array, bins: int, limits: Range | None, compute: Callable[..., list[Any]]
) -> Summary:
    """Describe an array and count its values into bins.

    Parameters
    ----------
    x : dask.array.Array
        Bool, integers, floats, dates or durations.
    bins : int
        The number of bins. For all but floats it is the most that there may be without `limits`:
        each bin then holds the same number of integers, or of units of time, since the histogram
        would otherwise show the rounding of the edges.
    limits : tuple of two floats, or of two datetime64, or None
        The outer edges, those of durations in their unit. With them one read is enough; without, a
        first one finds them.
    compute : callable
        Turns lazy arrays into NumPy arrays.

    Returns
    -------
    Summary

    Raises
    ------
    UserError
        If no value can be counted, or NumPy refuses such bins.
    """
    start = perf_counter()
    if x.dtype == np.float16:
        x = x.astype(np.float32)  # which holds the differences and squares of float16
    of_time = x.dtype.kind in "mM"
    origin, given = None, limits
    description = describe(x)
    lazy = [getattr(description, name) for name in STATISTICS]
    if limits is None:
        statistics = _numbers(compute(*lazy))
        _require_values(statistics)
        if of_time:
            origin = statistics["min"]
            x = _since(x, origin)
            limits, bins = _find_ticks(_ticks(statistics["max"]) - _ticks(origin), bins)
        else:
            limits, bins = _find_limits(statistics, x.dtype, bins)
        counts, edges = _histogram(x, bins, limits)
        (counts,) = compute(counts)
        reads = 2
    else:
        _require_kind(limits, x.dtype)
        if of_time:
            origin, last = (_in_unit(limit, x.dtype) for limit in limits)
            x = _since(x, origin)
            span = _ticks(last) - _ticks(origin)
            limits, bins = (0.0, float(span)), max(min(bins, span), 1)
        counts, edges = _histogram(x, bins, limits)
        *values, counts = compute(*lazy, counts)
        statistics = _numbers(values)
        _require_values(statistics)
        reads = 1
    if not counts.any():
        ends = (*(given or limits), statistics["min"], statistics["max"])
        low, high, least, most = map(_short, ends)
        raise UserError(
            f"no value lies within --range {low} {high}; the values go from {least} to {most}"
        )
    return Summary(statistics, counts, edges, reads, perf_counter() - start, origin)


def _numbers(values: list[Any]) -> dict[str, Any]:
    scalars = [value[()] if value.dtype.kind in "mM" else value.item() for value in values]
    return dict(zip(STATISTICS, scalars, strict=True))


def _require_values(statistics: dict[str, Any]) -> None:
    if statistics["count"] == 0:
        nan = "NaT" if isinstance(statistics["min"], np.generic) else "NaN"
        raise UserError(f"all {statistics['nans']} values are {nan}; there is nothing to describe")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else readable(value)


def _require_kind(limits: Range, dtype: np.dtype[Any]) -> None:
    given = f"--range {_short(limits[0])} {_short(limits[1])}"
    if isinstance(limits[0], np.datetime64) != (dtype.kind == "M"):
        what = "two dates, such as 2020-01-31" if dtype.kind == "M" else "two numbers of its unit"
        what = what if dtype.kind in "mM" else "two numbers"
        raise UserError(f"{given}: the values are {dtype}; give {what}")


def _in_unit(limit: Any, dtype: np.dtype[Any]) -> Any:
    """Return a date in the unit of `dtype`, or the duration that is so many of it."""
    if not isinstance(limit, np.datetime64):
        if abs(limit) >= 2**63:
            raise UserError(f"--range {_short(limit)}: {dtype} does not reach that far")
        return np.int64(round(limit)).view(dtype)
    try:
        converted = limit.astype(dtype)
        apart = (converted.astype("M8[Y]") - limit.astype("M8[Y]")).astype("i8")
    except OverflowError:
        apart = 2
    # Where the unit does not reach that far, it may also wrap.
    if abs(apart) > 1:
        raise UserError(f"--range {_short(limit)}: {dtype} does not reach that date")
    return converted


def _ticks(value: Any) -> int:
    return int(value.view("i8"))


def _duration(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(dtype.str.replace("M8", "m8"))


def _since(x: da.Array, origin: Any) -> da.Array:
    """Return how many units dates lie after `origin`; those before it, and NaT, beyond all."""
    meta = np.empty((0,) * x.ndim, "u8")
    return x.map_blocks(_count_since, _ticks(origin), dtype="u8", meta=meta)


def _count_since(x: Any, origin: int) -> Any:
    ticks = x.view("i8")
    # Where it wraps, the difference is that of unsigned integers.
    return np.where(ticks < origin, np.iinfo("u8").max, (ticks - origin).view("u8"))


def _find_ticks(span: int, bins: int) -> tuple[Range, int]:
    """Return limits that are so many units apart, and bins that each hold as many of them."""
    width = -(-(span + 1) // bins)
    bins = -(-(span + 1) // width)
    return (0.0, float(bins * width)), bins


def _find_limits(statistics: dict[str, Any], dtype: Any, bins: int) -> tuple[Range, int]:
    low, high = statistics["min"], statistics["max"]
    if not np.isfinite([low, high]).all():
        raise UserError(
            f"the values go from {low:g} to {high:g}; give --range LO HI, finite, for the histogram"
        )
    if dtype.kind == "f":
        return (low, high), bins
    span = int(high) - int(low) + 1
    width = -(-span // bins)
    bins = -(-span // width)
    return (low - 0.5, low - 0.5 + bins * width), bins


def _histogram(x: da.Array, bins: int, limits: Range) -> tuple[da.Array, Any]:
    low, high = limits
    if not np.isfinite(high - low):
        raise UserError(f"from {low:g} to {high:g} is too far for float64; give a narrower --range")
    try:
        return histogram(x, bins, limits)
    except ValueError as error:
        message = str(error).rstrip(".")
        raise UserError(f"{message}; give fewer --bins or a wider --range") from error
