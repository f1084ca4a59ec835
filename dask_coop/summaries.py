"""The statistics and the histogram of all values of an array, in two reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np

from dask_coop.errors import UserError
from dask_coop.histograms import histogram
from dask_coop.reductions import describe

Range = tuple[float, float]

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
        `STATISTICS` of all values, as Python numbers.
    counts, edges : numpy.ndarray
        The histogram, of shapes ``(n,)`` and ``(n + 1,)``.
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

    @property
    def inside(self) -> int:
        """How many values the histogram holds."""
        return int(self.counts.sum())

    def rows(self) -> dict[str, int | float]:
        """Return the table for people: what each number is, and the number."""
        rows = {label: self.statistics[name] for name, label in STATISTICS.items()}
        if outside := self.statistics["count"] - self.inside:
            rows["outside the histogram"] = outside
        rows["width of a bin"] = float(self.edges[1] - self.edges[0])
        names = [f"{name} (from {len(self.counts)} bins)" for name in QUANTILES]
        values = self.quantiles([*QUANTILES.values()])
        return rows | dict(zip(names, values, strict=True))

    def quantiles(self, probabilities: list[float]) -> list[float]:
        """Return quantiles of the values in the histogram, as if they were even inside each bin."""
        cumulative = np.concatenate(([0], np.cumsum(self.counts)))
        found = np.interp(np.multiply(probabilities, cumulative[-1]), cumulative, self.edges)
        low, high = self.statistics["min"], self.statistics["max"]
        return [float(value) for value in np.clip(found, low, high)]


def summarize(
    x: da.Array, bins: int, limits: Range | None, compute: Callable[..., list[Any]]
) -> Summary:
    """Describe an array and count its values into bins.

    Parameters
    ----------
    x : dask.array.Array
        Bool, integers or floats.
    bins : int
        The number of bins. For bool and integers without `limits` it is the most that there may
        be: each bin then holds the same number of integers, since the histogram would otherwise
        show the rounding of the edges.
    limits : tuple of two floats or None
        The outer edges. With them one read is enough; without, a first one finds them.
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
    description = describe(x)
    lazy = [getattr(description, name) for name in STATISTICS]
    if limits is None:
        statistics = _numbers(compute(*lazy))
        _require_values(statistics)
        limits, bins = _find_limits(statistics, x.dtype, bins)
        counts, edges = _histogram(x, bins, limits)
        (counts,) = compute(counts)
        reads = 2
    else:
        counts, edges = _histogram(x, bins, limits)
        *values, counts = compute(*lazy, counts)
        statistics = _numbers(values)
        _require_values(statistics)
        reads = 1
    if not counts.any():
        raise UserError(
            f"no value lies within --range {limits[0]:g} {limits[1]:g}; the values go from "
            f"{statistics['min']:g} to {statistics['max']:g}"
        )
    return Summary(statistics, counts, edges, reads, perf_counter() - start)


def _numbers(values: list[Any]) -> dict[str, Any]:
    return {name: value.item() for name, value in zip(STATISTICS, values, strict=True)}


def _require_values(statistics: dict[str, Any]) -> None:
    if statistics["count"] == 0:
        raise UserError(f"all {statistics['nans']} values are NaN; there is nothing to describe")


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
