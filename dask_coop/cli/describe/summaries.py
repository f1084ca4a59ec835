"""Compute the statistics, exact quantiles and the histogram of all values of an array.

If all values are among 65,536, one read counts them, and the counts give everything (codes.py).

Otherwise, without a range, there are two passes: the first one finds the statistics, and with them
the range of the bins. Quantiles belong to the first pass, which is one read if the chunks can be
kept in memory, and otherwise one read for every digit by which quantiles are found. If there are
infinities, all of it is done again without them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from dask_coop.cli.describe.codes import Codes, find_codes
from dask_coop.compiled.waits import WAITS
from dask_coop.errors import UserError

#: Two numbers, or two dates.
Range = tuple[Any, Any]

# The fields of `describe` to show, and their labels.
STATISTICS = {
    "count": "count",
    "nans": "NaN",
    "min": "min",
    "max": "max",
    "mean": "mean",
    "std": "standard deviation",
}
QUANTILES = {"1 %": 0.01, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "99 %": 0.99}


#: The most bars that can be distinguished on paper.
MOST_BARS = 1024

#: The largest array, in bytes, whose chunks stay in memory while its quantiles are found.
KEPT = 2**30


@dataclass(frozen=True)
class Summary:
    """Statistics, quantiles and histogram of an array's finite values.

    Attributes
    ----------
    statistics : dict
        `STATISTICS` of the values, as Python numbers, or NumPy's dates and durations.
    quantiles : dict
        Exact quantiles of the values, by the labels of `QUANTILES`.
    counts, edges : numpy.ndarray
        The histogram, of shapes ``(n,)`` and ``(n + 1,)``.
    below : int
        Number of values below the histogram.
    single : bool
        Whether a bin holds a single number, or unit of time.
    reads : int
        How often the array was read.
    nbytes : int
        The bytes of one read: of the array, or of its codes.
    origin : numpy.datetime64 or numpy.timedelta64, optional
        For dates and durations: the value from which edges count, in the unit of the values.
    seconds : float
        Duration of the reads, without that of compilations.
    compiling : float
        Seconds in which this process compiled meanwhile.
    infinite : int
        How often infinities occur.
    """

    statistics: dict[str, Any]
    quantiles: dict[str, Any]
    counts: np.ndarray[Any, Any]
    edges: np.ndarray[Any, Any]
    below: int
    single: bool
    reads: int
    nbytes: int
    origin: Any = None
    seconds: float = 0.0
    compiling: float = 0.0
    infinite: int = 0

    @property
    def inside(self) -> int:
        """Number of values in the histogram."""
        return int(self.counts.sum())

    def rows(self) -> dict[str, Any]:
        """Return the numbers of the table for people, by their labels."""
        rows = {label: self.statistics[name] for name, label in STATISTICS.items()}
        width = float(self.edges[1] - self.edges[0])
        if self.origin is not None:
            rows = {"NaT" if label == "NaN" else label: value for label, value in rows.items()}
            width = np.int64(round(width)).view(_duration(self.origin.dtype))
        if self.infinite:
            counts = {label: rows.pop(label) for label in ("count", "NaN")}
            rows = {**counts, "infinite": self.infinite, **rows}
        rows |= self.quantiles
        if outside := self.statistics["count"] - self.inside:
            rows["outside the histogram"] = outside
        return rows | {"width of a bin": width}

    def bars(self) -> tuple[Any, Any]:
        """Return counts and edges of at most `MOST_BARS` bars, each of one or several bins."""
        merged = -(-len(self.counts) // MOST_BARS)
        starts = np.arange(0, len(self.counts), merged)
        edges = np.append(self.edges[starts], self.edges[-1])
        return np.add.reduceat(self.counts, starts), edges

    def dots(self) -> dict[str, tuple[float, float]]:
        """Return position and cumulative fraction of each quantile that lies within the edges.

        A value that occurs several times spans several fractions; the quantile's own is taken.
        """
        fractions, dots = self._fractions(), {}
        for label, value in self.quantiles.items():
            x = float(value) if self.origin is None else _ticks(value) - _ticks(self.origin)
            if not self.edges[0] <= x <= self.edges[-1]:
                continue
            # Between two numbers with bins of their own the fraction is that of the first.
            values = self.steps() if self.single else self.edges[:-1]
            bin = max(int(np.searchsorted(values, x, "right")) - 1, 0)
            least = fractions[bin + 1 if self.single and x > values[bin] else bin]
            dots[label] = x, float(np.clip(QUANTILES[label], least, fractions[bin + 1]))
        return dots

    def curve(self) -> tuple[Any, Any]:
        """Return the cumulative distribution: rising positions, and the fractions up to them.

        It is a staircase for single numbers; otherwise it goes straight between the edges and the
        `dots`.
        """
        fractions = self._fractions()
        if self.single:
            first, last = self.edges[[0, -1]]
            x = np.concatenate(([first], np.repeat(self.steps(), 2), [last]))
            steps = np.repeat(fractions, 2)[1:-1]
            return x, np.concatenate((fractions[:1], steps, fractions[-1:]))
        dots = np.array([*self.dots().values()]).reshape(-1, 2)
        x, y = np.append(self.edges, dots[:, 0]), np.append(fractions, dots[:, 1])
        order = np.lexsort((y, x))
        return x[order], y[order]

    def _fractions(self) -> Any:
        """Return the fraction of all values below each edge."""
        below = self.below + np.concatenate(([0], np.cumsum(self.counts)))
        return below / self.statistics["count"]

    def steps(self) -> Any:
        """Return the single numbers that the bins hold."""
        return self.edges[:-1] + (0.5 if self.origin is None else 0)

    def values(self, numbers: Any) -> Any:
        """Return the values at `numbers` along the edges."""
        if self.origin is None:
            return numbers
        first, last = np.iinfo("i8").min + 1, np.iinfo("i8").max
        ticks = (min(max(_ticks(self.origin) + round(n), first), last) for n in map(float, numbers))
        return np.array([*ticks], "i8").view(self.origin.dtype)


def summarize(
    x: da.Array,
    bins: int,
    limits: Range | None,
    compute: Callable[..., list[Any]],
    codes: Codes | None = None,
) -> Summary:
    """Describe an array and count its values into bins.

    Parameters
    ----------
    x : dask.array.Array
        Bool, integers, floats, dates or durations.
    bins : int
        The number of bins. Without `limits`, and except for floats, it is the most bins: each then
        holds the same number of integers, or of units of time, because the histogram would
        otherwise show the rounding of the edges.
    limits : tuple of two floats, or of two datetime64, or None
        The outer edges; for durations, in their unit. If None, another read finds them first.
    compute : callable
        Computes lazy arrays, and returns NumPy arrays.
    codes : Codes, optional
        What is stored in the place of the elements; by default the elements, if they are short.

    Returns
    -------
    Summary

    Raises
    ------
    UserError
        If no value can be counted, or NumPy refuses such bins.
    """
    start, compiled = perf_counter(), WAITS.seconds()
    codes = codes or find_codes(x)
    if codes is None:
        summary = _of_elements(x, bins, limits, compute)
    else:
        summary = _of_codes(codes, bins, limits, compute)
    if not summary.counts.any():
        least, most = summary.statistics["min"], summary.statistics["max"]
        low, high, least, most = map(_short, (*(limits or (least, most)), least, most))
        raise UserError(
            f"no value lies within --range {low} {high}; the values go from {least} to {most}"
        )
    compiling = WAITS.seconds() - compiled
    return replace(summary, seconds=perf_counter() - start - compiling, compiling=compiling)


def _of_codes(
    codes: Codes, bins: int, limits: Range | None, compute: Callable[..., list[Any]]
) -> Summary:
    """Summarise by one count of all codes."""
    counted = codes.count(compute)
    dtype, single, below = counted.values.dtype, False, 0
    statistics = counted.statistics()
    _require_values(statistics, counted.infinite)
    if limits is None:
        limits, bins = _find_limits(statistics, dtype, bins)
        single = dtype.kind in "biu" and limits[1] - limits[0] == bins
    else:
        _require_kind(limits, dtype)
        below = counted.below(limits[0])
    # Small chunks, which are not worth compiling loops.
    values, weights = (
        da.from_array(array, chunks=1 << 13) for array in (counted.values, counted.counts)
    )
    lazy, edges = _histogram(values, bins, limits, weights)
    counts = lazy.compute(scheduler="synchronous").astype("i8")
    quantiles = _labelled(counted.quantiles([*QUANTILES.values()]))
    quantities = statistics, quantiles, counts, edges, below, single, 1, codes.nbytes
    return Summary(*quantities, infinite=counted.infinite)


def _of_elements(
    x: da.Array, bins: int, limits: Range | None, compute: Callable[..., list[Any]]
) -> Summary:
    """Summarise by one or two passes over the elements, and as many again without infinities."""
    first = _passes(x, bins, limits, compute)
    if isinstance(first, Summary):
        return first
    reads, nans = first
    finite = x.map_blocks(_finite, dtype=x.dtype, meta=x._meta)
    summary = _passes(finite, bins, limits, compute, nans)
    assert isinstance(summary, Summary)
    return replace(summary, reads=reads + summary.reads)


def _finite(x: Any) -> Any:
    return np.where(np.isfinite(x), x, x.dtype.type(np.nan))


def _passes(
    x: da.Array,
    bins: int,
    limits: Range | None,
    compute: Callable[..., list[Any]],
    nans: int | None = None,
) -> Summary | tuple[int, int]:
    """Summarise, or return the number of reads and that of NaN if some values are infinite.

    If `nans` of the NaN stood there before, the others are infinities.
    """
    nbytes = x.size * x.dtype.itemsize
    if x.dtype == np.float16:
        x = x.astype(np.float32)  # which holds the differences and squares of float16
    of_time, whole = x.dtype.kind in "mM", x.dtype.kind in "biu"
    origin = None
    description = describe(x)
    quantiles, reads = _quantiles(x)
    lazy = [*(getattr(description, name) for name in STATISTICS), quantiles]
    below, single = 0, False
    if limits is None:
        *values, exact = _computed(compute, lazy)
        statistics = _numbers(values)
        if _has_infinities(statistics):
            return reads, statistics["nans"]
        infinite = _separate(statistics, nans)
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
        *values, exact, lower, counts = _computed(compute, [*lazy, counts])
        statistics, below = _numbers(values), int(lower)
        if _has_infinities(statistics):
            return reads, statistics["nans"]
        infinite = _separate(statistics, nans)
    quantities = statistics, _labelled(exact), counts, edges, below, single
    return Summary(*quantities, reads, nbytes, origin, infinite=infinite)


def _labelled(quantiles: Any) -> dict[str, Any]:
    numbers = [*quantiles] if quantiles.dtype.kind in "mM" else quantiles.tolist()
    return dict(zip(QUANTILES, numbers, strict=True))


def _quantiles(x: da.Array) -> tuple[da.Array, int]:
    """Return the `QUANTILES` of all values, and the number of reads that they take."""
    fractions = [*QUANTILES.values()]
    recompute = x.size * x.dtype.itemsize > KEPT
    quantiles = nanquantile(x, fractions, recompute=recompute)
    if not recompute:
        return quantiles, 1
    # A read before those of the digits counts NaT.
    return quantiles, count_digits(x.dtype, 2 * len(fractions)) + (x.dtype.kind in "mM")


def _computed(compute: Callable[..., list[Any]], lazy: list[Any]) -> list[Any]:
    with warnings.catch_warnings():
        # Warnings of all-NaN arrays, which get a message, and of quantiles between infinities.
        warnings.simplefilter("ignore", RuntimeWarning)
        return compute(*lazy)


def _numbers(values: list[Any]) -> dict[str, Any]:
    scalars = [value[()] if value.dtype.kind in "mM" else value.item() for value in values]
    return dict(zip(STATISTICS, scalars, strict=True))


def _has_infinities(statistics: dict[str, Any]) -> bool:
    return any(
        isinstance(statistics[name], float) and math.isinf(statistics[name])
        for name in ("min", "max")
    )


def _separate(statistics: dict[str, Any], nans: int | None) -> int:
    """Return how many of the NaN are infinities, if only `nans` were NaN before, and correct it."""
    infinite = 0 if nans is None else statistics["nans"] - nans
    statistics["nans"] -= infinite
    _require_values(statistics, infinite)
    return infinite


def _require_values(statistics: dict[str, Any], infinite: int) -> None:
    if statistics["count"] == 0:
        nan = "NaT" if isinstance(statistics["min"], np.generic) else "NaN"
        number = statistics["nans"] + infinite
        nan = f"{nan} or infinite" if infinite else nan
        raise UserError(f"all {number} values are {nan}; there is nothing to describe")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else readable(value)


def _require_kind(limits: Range, dtype: np.dtype[Any]) -> None:
    option = f"--range {_short(limits[0])} {_short(limits[1])}"
    if isinstance(limits[0], np.datetime64) != (dtype.kind == "M"):
        kinds = {"M": "two dates, such as 2020-01-31", "m": "two numbers of its unit"}
        wanted = kinds.get(dtype.kind, "two numbers")
        raise UserError(f"{option}: the values are {dtype}; give {wanted}")


def _in_unit(limit: Any, dtype: np.dtype[Any]) -> Any:
    """Return a limit in `dtype`: a date in its unit, or a number of units as a duration."""
    if not isinstance(limit, np.datetime64):
        if abs(limit) >= 2**63:
            raise UserError(f"--range {_short(limit)}: {dtype} does not reach that far")
        return np.int64(round(limit)).view(dtype)
    try:
        converted = limit.astype(dtype)
        apart = (converted.astype("M8[Y]") - limit.astype("M8[Y]")).astype("i8")
    except OverflowError:
        apart = 2
    # A unit that does not reach that far may also wrap around.
    if abs(apart) > 1:
        raise UserError(f"--range {_short(limit)}: {dtype} does not reach that date")
    return converted


def _ticks(value: Any) -> int:
    return int(value.view("i8"))


def _duration(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(dtype.str.replace("M8", "m8"))


def _since(x: da.Array, origin: Any) -> da.Array:
    """Return the units from `origin` to each date; dates before it, and NaT, get the maximum."""
    meta = np.empty((0,) * x.ndim, "u8")
    return x.map_blocks(_count_since, _ticks(origin), dtype="u8", meta=meta)


def _count_since(x: Any, origin: int) -> Any:
    ticks = x.view("i8")
    # If the difference wraps, its bits are those of the unsigned difference.
    return np.where(ticks < origin, np.iinfo("u8").max, (ticks - origin).view("u8"))


def _find_ticks(span: int, bins: int) -> tuple[Range, int]:
    """Return limits at least `span` units apart, and a number of bins of equally many units."""
    width = -(-(span + 1) // bins)
    bins = -(-(span + 1) // width)
    return (0.0, float(bins * width)), bins


def _find_limits(statistics: dict[str, Any], dtype: Any, bins: int) -> tuple[Range, int]:
    low, high = statistics["min"], statistics["max"]
    if dtype.kind == "f":
        return (low, high), bins
    span = int(high) - int(low) + 1
    width = -(-span // bins)
    bins = -(-span // width)
    return (low - 0.5, low - 0.5 + bins * width), bins


def _histogram(
    x: da.Array, bins: int, limits: Range, weights: da.Array | None = None
) -> tuple[da.Array, Any]:
    low, high = limits
    if not np.isfinite(high - low):
        raise UserError(f"from {low:g} to {high:g} is too far for float64; give a narrower --range")
    try:
        return histogram(x, bins, limits, weights=weights)
    except ValueError as error:
        message = str(error).rstrip(".")
        raise UserError(f"{message}; give fewer --bins or a wider --range") from error
