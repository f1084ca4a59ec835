"""The statistics, the exact quantiles and the histogram of all values of an array.

Without a range there are two passes: the first finds the statistics, and with them where bins are
to lie. Quantiles are of the first pass, which takes one read where the chunks can be kept for it,
and otherwise one for every digit that quantiles are found by.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np

from dask_coop.algebra.digits import count_digits
from dask_coop.api.call.drawings import readable
from dask_coop.api.histograms.histogram import histogram
from dask_coop.api.moments import describe
from dask_coop.api.order import nanquantile
from dask_coop.api.sums import count_nonzero
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


#: As many as can be seen apart on paper.
MOST_BARS = 1024

#: Bytes of the largest array whose chunks are kept while its quantiles are found.
KEPT = 2**30


@dataclass(frozen=True)
class Summary:
    """What is known of an array's values after its reads.

    Attributes
    ----------
    statistics : dict
        `STATISTICS` of all values, as Python numbers, or NumPy's dates and durations.
    quantiles : dict
        Those of all values, exact, by the labels of `QUANTILES`.
    counts, edges : numpy.ndarray
        The histogram, of shapes ``(n,)`` and ``(n + 1,)``.
    below : int
        How many values lie below the histogram.
    single : bool
        Whether a bin holds a single number, or unit of time.
    reads : int
        How often the array was read.
    seconds : float
        How long that took.
    origin : numpy.datetime64 or numpy.timedelta64, optional
        From where on edges count in the unit of the values, which are dates or durations.
    """

    statistics: dict[str, Any]
    quantiles: dict[str, Any]
    counts: np.ndarray[Any, Any]
    edges: np.ndarray[Any, Any]
    below: int
    single: bool
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
        return rows | self.quantiles

    def bars(self) -> tuple[Any, Any]:
        """Return counts and edges, of neighbouring bins that could not be seen apart together."""
        merged = -(-len(self.counts) // MOST_BARS)
        starts = np.arange(0, len(self.counts), merged)
        edges = np.append(self.edges[starts], self.edges[-1])
        return np.add.reduceat(self.counts, starts), edges

    def dots(self) -> dict[str, tuple[float, float]]:
        """Return the quantiles that lie within the edges: where, and the share of values up to it.

        A value that is there more than once has several shares, of which it is the quantile's.
        """
        shares, found = self._shares(), {}
        for label, value in self.quantiles.items():
            at = float(value) if self.origin is None else _ticks(value) - _ticks(self.origin)
            if not self.edges[0] <= at <= self.edges[-1]:
                continue
            # Between two numbers that have bins of their own the share is that up to the first.
            values = self.steps() if self.single else self.edges[:-1]
            bin = max(int(np.searchsorted(values, at, "right")) - 1, 0)
            least = shares[bin + 1 if self.single and at > values[bin] else bin]
            found[label] = at, float(np.clip(QUANTILES[label], least, shares[bin + 1]))
        return found

    def curve(self) -> tuple[Any, Any]:
        """Return positions along the edges, rising, and the shares of all values up to them.

        A staircase of single numbers; else known at the edges and the `dots`, and even between.
        """
        shares = self._shares()
        if self.single:
            first, last = self.edges[[0, -1]]
            x = np.concatenate(([first], np.repeat(self.steps(), 2), [last]))
            return x, np.concatenate((shares[:1], np.repeat(shares, 2)[1:-1], shares[-1:]))
        dots = np.array([*self.dots().values()]).reshape(-1, 2)
        x, y = np.append(self.edges, dots[:, 0]), np.append(shares, dots[:, 1])
        order = np.lexsort((y, x))
        return x[order], y[order]

    def _shares(self) -> Any:
        """Return the shares of all values that lie below each edge."""
        below = self.below + np.concatenate(([0], np.cumsum(self.counts)))
        return below / self.statistics["count"]

    def steps(self) -> Any:
        """Return the single numbers that the bins hold."""
        return self.edges[:-1] + (0.5 if self.origin is None else 0)

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
        The outer edges, those of durations in their unit. Without, they are found first, and take
        a read more.
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
    of_time, whole = x.dtype.kind in "mM", x.dtype.kind in "biu"
    origin, given = None, limits
    description = describe(x)
    quantiles, reads = _quantiles(x)
    lazy = [*(getattr(description, name) for name in STATISTICS), quantiles]
    below, single = 0, False
    if limits is None:
        *values, found = _computed(compute, lazy)
        statistics = _numbers(values)
        _require_values(statistics)
        if of_time:
            origin = statistics["min"]
            x = _since(x, origin)
            limits, bins = _find_ticks(_ticks(statistics["max"]) - _ticks(origin), bins)
        else:
            limits, bins = _find_limits(statistics, x.dtype, bins)
        single = (of_time or whole) and limits[1] - limits[0] == bins
        counts, edges = _histogram(x, bins, limits)
        (counts,) = compute(counts)
        reads += 1
    else:
        _require_kind(limits, x.dtype)
        if of_time:
            origin, last = (_in_unit(limit, x.dtype) for limit in limits)
        lazy.append(count_nonzero(x < (origin if of_time else limits[0])))
        if of_time:
            x = _since(x, origin)
            span = _ticks(last) - _ticks(origin)
            limits, bins = (0.0, float(span)), max(min(bins, span), 1)
        counts, edges = _histogram(x, bins, limits)
        *values, found, lower, counts = _computed(compute, [*lazy, counts])
        statistics, below = _numbers(values), int(lower)
        _require_values(statistics)
    if not counts.any():
        ends = (*(given or limits), statistics["min"], statistics["max"])
        low, high, least, most = map(_short, ends)
        raise UserError(
            f"no value lies within --range {low} {high}; the values go from {least} to {most}"
        )
    shown = dict(zip(QUANTILES, [*found] if of_time else found.tolist(), strict=True))
    seconds = perf_counter() - start
    return Summary(statistics, shown, counts, edges, below, single, reads, seconds, origin)


def _quantiles(x: da.Array) -> tuple[da.Array, int]:
    """Return the `QUANTILES` of all values, and how often they read the array."""
    # Between False and True there is no other value.
    method: Any = "inverted_cdf" if x.dtype.kind == "b" else "linear"
    fractions = [*QUANTILES.values()]
    anew = x.size * x.dtype.itemsize > KEPT
    found = nanquantile(x, fractions, method=method, recompute=anew)
    if not anew:
        return found, 1
    # NaT are counted before the first digit.
    return found, count_digits(x.dtype, 2 * len(fractions)) + (x.dtype.kind in "mM")


def _computed(compute: Callable[..., list[Any]], lazy: list[Any]) -> list[Any]:
    with warnings.catch_warnings():
        # Of nothing but NaN, which is told, and of quantiles between infinities, which are NaN.
        warnings.simplefilter("ignore", RuntimeWarning)
        return compute(*lazy)


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
