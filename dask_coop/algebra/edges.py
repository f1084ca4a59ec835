"""Bins as NumPy makes and compares them, of equal width or between given edges.

`numpy.histogram` and `numpy.histogramdd` both make edges of equal bins by `numpy.linspace`. The one
guesses a sample's bin and compares the sample with the edges beside it; the other searches all. The
results are those of comparisons, which can be had without a table of edges; where guesses are too
far off for that, `Bins.cuts` says what samples have to be compared with instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

#: The most bins of equal width whose edges are kept, and handed out, as one NumPy array.
MANY = 1 << 22

_F8 = np.dtype("f8")


@dataclass(frozen=True)
class Bins:
    """The bins of a histogram.

    Those of equal width are two numbers and how many they are, until the edges are asked for.

    Attributes
    ----------
    n : int
        The number of bins.
    dtype : numpy.dtype
        That of the edges, in which NumPy compares samples with them.
    given : numpy.ndarray, optional
        Ascending edges, of shape ``(n + 1,)``, where the bins are not of equal width.
    limits : tuple of two numbers, optional
        Otherwise what `numpy.linspace` makes the edges of.
    guesses : bool
        Whether samples find bins of equal width as in `numpy.histogram`, by arithmetic, and not as
        in `numpy.histogramdd`, among the edges.
    compared : numpy.ndarray, optional
        Ascending numbers, of shape ``(n + 1,)``, that samples are compared with in the place of the
        edges, from which they are at most a few roundings apart.
    """

    n: int
    dtype: np.dtype[Any]
    given: np.ndarray[Any, Any] | None = None
    limits: tuple[Any, Any] | None = None
    guesses: bool = False
    compared: np.ndarray[Any, Any] | None = None

    @property
    def edges(self) -> np.ndarray[Any, Any]:
        """All edges, ascending, as NumPy makes them."""
        if self.given is not None:
            return self.given
        return self._kept if self.n <= MANY else self.edges_at(np.arange(self.n + 1))

    @cached_property
    def _kept(self) -> np.ndarray[Any, Any]:
        with np.errstate(all="ignore"):
            edges: np.ndarray[Any, Any] = np.linspace(*self._limits, self.n + 1, dtype=self.dtype)
        return edges

    def edges_at(self, index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the edges of those numbers, without all others."""
        if self.given is not None:
            return np.asarray(self.given[index])
        # The steps of numpy.linspace, in its dtype.
        step, start = self._step
        with np.errstate(all="ignore"):
            edges = np.asarray(index.astype(step.dtype) * step + start).astype(self.dtype)
        edges[index == self.n] = self.ends[1]
        return edges

    @property
    def _limits(self) -> tuple[Any, Any]:
        assert self.limits is not None
        return self.limits

    @cached_property
    def _step(self) -> tuple[Any, Any]:
        """How far apart edges are, and the first one, in the dtype of `numpy.linspace`."""
        real = np.result_type(*self._limits, 0.0).type
        with np.errstate(all="ignore"):
            start, stop = map(real, self._limits)
            return (stop - start) / self.n, start

    @cached_property
    def ends(self) -> tuple[Any, Any]:
        """The outer edges, in the dtype of all."""
        if (known := self.given if self.compared is None else self.compared) is not None:
            return known[0], known[-1]
        real, rounded = type(self._step[0]), self.dtype.type
        with np.errstate(all="ignore"):
            low, high = (rounded(real(limit)) for limit in self._limits)
        return low, high

    @cached_property
    def line(self) -> tuple[float, float] | None:
        """``(step, start)`` where samples are compared with ``i * step + start``; else None.

        The products and sums are float64's, rounded to the dtype of the edges, as `numpy.linspace`
        makes all edges but the last; kernels that know this need no table of edges.
        """
        if self.limits is None or self.compared is not None:
            return None
        start, stop = map(float, self.limits)
        if self._step[0].dtype == _F8:
            if self._is_near or self.cuts is self.edges:
                return float(self._step[0]), start
            return None
        # Edges made in a smaller dtype are few, and seldom the same.
        with np.errstate(all="ignore"):
            step = (stop - start) / self.n
            edges = (np.arange(self.n) * step + start).astype(self.dtype)
        return (step, start) if np.array_equal(edges, self.cuts[:-1]) else None

    @cached_property
    def cuts(self) -> np.ndarray[Any, Any]:
        """The numbers that samples are compared with: the edges, but for what follows.

        `numpy.histogram` guesses bins of equal width in the dtype of samples and edges, and puts a
        guess right by one bin. Where bins are nearly as fine as that dtype, guesses may be further
        off; then NumPy counts a sample at or beside an edge into another bin. What it finds grows
        with the sample, so it counts by other numbers than the edges.
        """
        if self.compared is not None:
            return self.compared
        edges = self.edges
        if self._is_near:
            return edges
        inner, number = edges[1:-1], np.arange(1, self.n)
        low, high = self.ends
        with np.errstate(all="ignore"):
            before = np.nextafter(inner, low)
            wrong = np.nonzero((self._guess(inner) < number) | (self._guess(before) >= number))[0]
        if not wrong.size and edges[0] == low:
            return edges
        cuts = edges.copy()
        cuts[0] = low
        cuts[1 + wrong] = least(lambda x, at: self._guess(x) > wrong[at], low, high, wrong.size)
        return cuts

    @cached_property
    def _is_near(self) -> bool:
        """Whether NumPy's guesses are known to be at most one bin off."""
        if not self.guesses:
            return True
        low, high = map(float, self.ends)
        with np.errstate(all="ignore"):
            distance = _distance(*self._limits)
        width, quotient = high - low, np.finfo(np.result_type(self.dtype, distance))
        if not 0 < width < math.inf:
            return False
        dtypes = np.finfo(self._step[0].dtype), np.finfo(self.dtype)
        made, compared = (float(of.eps) for of in dtypes)
        # In bins: how far edges are from where they should be, and guesses from these.
        size = max(abs(low), abs(high)) / width * self.n
        edges = size * (made + compared) + 2 * self.n * made
        # Of subnormal numbers, as the width of a bin may be, rounding is no share.
        edges += self.n / width * sum(self.n * float(of.smallest_subnormal) for of in dtypes)
        ratio = compared + 2 * float(quotient.eps) + abs(float(distance) / width - 1)
        return edges + self.n * (ratio + float(quotient.tiny)) < 0.9

    def _guess(self, x: np.ndarray[Any, Any]) -> Any:
        """Return the bins in which `numpy.histogram` counts numbers between the outer edges."""
        edges = self.edges
        with np.errstate(all="ignore"):
            at = np.subtract(x, self._limits[0], dtype=self.dtype) / _distance(*self._limits)
            bin_ = np.clip((at * self.n).astype("i8"), 0, self.n - 1)
        bin_ -= x < edges[bin_]
        bin_ += (x >= edges[bin_ + 1]) & (bin_ != self.n - 1)
        return bin_

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out what follows from the rest: edges may be many, and go far."""
        return Bins, (self.n, self.dtype, self.given, self.limits, self.guesses, self.compared)

    def numpy_arguments(self) -> dict[str, Any]:
        """Return the arguments by which `numpy.histogram` counts into these very bins."""
        if self.limits is None:
            return {"bins": self.edges}
        return {"bins": self.n, "range": self.limits}

    def are_numpys(self, samples: np.dtype[Any]) -> bool:
        """Tell whether `numpy.histogram` counts by these bins, given `numpy_arguments`."""
        if self.limits is None:
            return True
        if not self.guesses or self.n > MANY or self.compared is not None:
            return False
        edges = np.result_type(*self.limits, np.empty(0, samples))
        # It fails where guesses are beyond the last bin, or limits bool or beyond int64.
        return (
            bool(self.dtype == (edges if edges.kind == "f" else _F8))
            and self._is_near
            and not any(map(_is_beyond_numpy, self.limits))
        )

    def whole_limits(self, samples: np.dtype[Any]) -> tuple[int, int] | None:
        """Return the outermost integers that count where float64 can't tell; None where it can."""
        if not self.guesses or samples.kind not in "iu" or samples.itemsize < 8:
            return None
        least, most = int(np.iinfo(samples).min), int(np.iinfo(samples).max)
        low, high = (
            int(limit) if isinstance(limit, int | np.integer) and abs(int(limit)) >> 53 else None
            for limit in self._limits
        )
        if low is None and high is None:
            return None
        return least if low is None else low, most if high is None else high


def _distance(first: Any, last: Any) -> Any:
    """Return how far apart limits are, as `numpy.histogram` takes it: unsigned if it is whole."""
    dtype = np.result_type(last, first)
    if dtype.kind not in "biu":
        return np.subtract(last, first, dtype=dtype)
    distance = int(last) - int(first)
    return np.float64(distance) if distance >> 64 else np.dtype(f"u{dtype.itemsize}").type(distance)


def _is_beyond_numpy(limit: Any) -> bool:
    return isinstance(limit, bool | np.bool_) or (isinstance(limit, int) and limit >= 1 << 63)


def least(
    reaches: Callable[[np.ndarray[Any, Any], Any], Any], low: Any, high: Any, n: int
) -> np.ndarray[Any, Any]:
    """Return n floats, each the least above `low`, and at most `high`, that reaches its place.

    ``reaches(x, at)`` tells of floats of the dtype of `high` whether they reach the places `at`; a
    place that is reached by a number is reached by all that are greater, and by `high`.
    """
    below, above = (np.full(n, _ordinals(end)) for end in (low, high))
    # Halve what lies between a number that does not and one that does.
    while (at := np.flatnonzero(above - 1 > below)).size:
        least, most = below[at], above[at]
        middle = (least >> 1) + (most >> 1) + (least & most & 1)
        reached = reaches(_of_ordinals(middle, high.dtype), at)
        above[at], below[at] = np.where(reached, middle, most), np.where(reached, least, middle)
    return np.asarray(_of_ordinals(above, high.dtype))


def _ordinals(x: Any) -> Any:
    """Return integers in the order of floats, of which neighbours have neighbours."""
    x = np.asarray(x)
    bits = x.view(f"i{x.itemsize}").astype("i8")
    return np.where(bits < 0, -(bits & ((1 << (8 * x.itemsize - 1)) - 1)), bits)


def _of_ordinals(ordinals: Any, dtype: np.dtype[Any]) -> Any:
    sizes = abs(ordinals).astype(f"i{dtype.itemsize}").view(dtype)
    return np.copysign(sizes, np.where(ordinals < 0, -1, 1).astype(dtype))


def given_bins(edges: np.ndarray[Any, Any]) -> Bins:
    """Return the bins between ascending edges."""
    return Bins(len(edges) - 1, edges.dtype, edges)


def check_increase(bins: Bins) -> Bins:
    """Return bins whose edges increase, as NumPy asks for, but without making all of them."""
    low, high = map(float, bins.ends)
    (step, start), top = bins._step, max(abs(low), abs(high))
    if step.dtype == _F8:
        # Rounded sums of numbers so far apart differ: products and sums are rounded before.
        apart = float(np.spacing(bins.dtype.type(top)))
        rounding = 4 * np.spacing(bins.n * step) + (bins.dtype != _F8) * np.spacing(top)
        if step >= apart + rounding:
            return bins
        # Nothing is rounded if all edges are multiples of a power of two.
        whole = math.frexp(step)[0] == 0.5 and (start / step).is_integer()
        if whole and step >= apart and high == start + bins.n * step:
            return bins
    part = 1 << 20
    firsts = range(0, bins.n, part)
    # Where edges are large they are closest to each other.
    for first in firsts if abs(low) > abs(high) else reversed(firsts):
        edges = bins.edges_at(np.arange(first, min(first + part, bins.n) + 1))
        if not (edges[:-1] < edges[1:]).all():
            raise ValueError(
                f"Too many bins for data range. Cannot create {bins.n} finite-sized bins."
            )
    return bins
