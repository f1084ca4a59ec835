"""Bins as NumPy makes and compares them, of equal width or between given edges.

`numpy.histogram` and `numpy.histogramdd` both make the edges of equal bins by `numpy.linspace`.
`histogram` guesses a sample's bin and compares the sample with the edges beside it; `histogramdd`
searches all edges. Comparisons alone give the same results without a table of edges. Where guesses
are too far off for that, `Bins.cuts` has the numbers to compare samples with instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

#: The most bins of equal width whose edges are kept as one NumPy array.
MANY = 1 << 22

_F8 = np.dtype("f8")


@dataclass(frozen=True)
class Bins:
    """The bins of a histogram.

    Bins of equal width are stored as limits and their number, until their edges are needed.

    Attributes
    ----------
    n : int
        The number of bins.
    dtype : numpy.dtype
        The dtype of the edges, in which NumPy compares samples with them.
    given : numpy.ndarray, optional
        Ascending edges, of shape ``(n + 1,)``, if the bins are not of equal width.
    limits : tuple of two numbers, optional
        Otherwise, the arguments of `numpy.linspace`.
    guesses : bool
        Whether samples find bins of equal width by arithmetic, as in `numpy.histogram`, rather than
        by a search of the edges, as in `numpy.histogramdd`.
    compared : numpy.ndarray, optional
        Ascending numbers, of shape ``(n + 1,)``, to compare samples with instead of the edges, from
        which they differ by a few roundings at most.
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
        """Return the edges at some indices, without making the others."""
        if self.given is not None:
            return np.asarray(self.given[index])
        # As numpy.linspace computes them, in its dtype.
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
        """The distance of edges, and the first edge, in the dtype of `numpy.linspace`."""
        real = np.result_type(*self._limits, 0.0).type
        with np.errstate(all="ignore"):
            start, stop = map(real, self._limits)
            return (stop - start) / self.n, start

    @cached_property
    def ends(self) -> tuple[Any, Any]:
        """The outer edges, in the dtype of the edges."""
        if (known := self.given if self.compared is None else self.compared) is not None:
            return known[0], known[-1]
        real, rounded = type(self._step[0]), self.dtype.type
        with np.errstate(all="ignore"):
            low, high = (rounded(real(limit)) for limit in self._limits)
        return low, high

    @cached_property
    def line(self) -> tuple[float, float] | None:
        """``(step, start)`` if samples are compared with ``i * step + start``; else None.

        Products and sums are float64, rounded to the dtype of the edges, as `numpy.linspace` makes
        all edges but the last. Kernels that know this need no table of edges.
        """
        if self.limits is None or self.compared is not None:
            return None
        start, stop = map(float, self.limits)
        if self._step[0].dtype == _F8:
            if self._is_near or self.cuts is self.edges:
                return float(self._step[0]), start
            return None
        # Edges made in a smaller dtype are few, so compare all of them.
        with np.errstate(all="ignore"):
            step = (stop - start) / self.n
            edges = (np.arange(self.n) * step + start).astype(self.dtype)
        return (step, start) if np.array_equal(edges, self.cuts[:-1]) else None

    @cached_property
    def cuts(self) -> np.ndarray[Any, Any]:
        """The numbers to compare samples with: the edges, with some exceptions.

        `numpy.histogram` guesses bins of equal width in the dtype of samples and edges, and
        corrects a guess by one bin. Where bins are nearly as fine as that dtype, guesses may be
        further off, and NumPy counts a sample at or beside an edge in another bin. Its bins still
        increase with the sample, so they have limits, which differ from the edges.
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
        cuts[1 + wrong] = least(lambda x, i: self._guess(x) > wrong[i], low, high, wrong.size)
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
        rounding, compared = (float(of.eps) for of in dtypes)
        # In bins: the error of the edges; below, the error of guesses.
        size = max(abs(low), abs(high)) / width * self.n
        edges = size * (rounding + compared) + 2 * self.n * rounding
        # The rounding error of subnormal numbers, such as small widths, is absolute.
        edges += self.n / width * sum(self.n * float(of.smallest_subnormal) for of in dtypes)
        ratio = compared + 2 * float(quotient.eps) + abs(float(distance) / width - 1)
        return edges + self.n * (ratio + float(quotient.tiny)) < 0.9

    def _guess(self, x: np.ndarray[Any, Any]) -> Any:
        """Return the bins in which `numpy.histogram` counts numbers between the outer edges."""
        edges = self.edges
        with np.errstate(all="ignore"):
            place = np.subtract(x, self._limits[0], dtype=self.dtype) / _distance(*self._limits)
            bin_ = np.clip((place * self.n).astype("i8"), 0, self.n - 1)
        bin_ -= x < edges[bin_]
        bin_ += (x >= edges[bin_ + 1]) & (bin_ != self.n - 1)
        return bin_

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields without cached edges, which may be many."""
        return Bins, (self.n, self.dtype, self.given, self.limits, self.guesses, self.compared)

    def numpy_arguments(self) -> dict[str, Any]:
        """Return the arguments of `numpy.histogram` that give the same bins."""
        if self.limits is None:
            return {"bins": self.edges}
        return {"bins": self.n, "range": self.limits}

    def are_numpys(self, samples: np.dtype[Any]) -> bool:
        """Return whether `numpy.histogram` counts by these bins with `numpy_arguments`."""
        if self.limits is None:
            return True
        if not self.guesses or self.n > MANY or self.compared is not None:
            return False
        edges = np.result_type(*self.limits, np.empty(0, samples))
        # NumPy fails for guesses beyond the last bin, and for limits that are bool or beyond int64.
        return (
            bool(self.dtype == (edges if edges.kind == "f" else _F8))
            and self._is_near
            and not any(map(_is_beyond_numpy, self.limits))
        )

    def whole_limits(self, samples: np.dtype[Any]) -> tuple[int, int] | None:
        """Return the outermost integers that count if float64 cannot hold them; else None."""
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
    """Return the distance of limits as `numpy.histogram` computes it: unsigned for integers."""
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
    """Return `n` floats, each the least above `low`, and at most `high`, that reaches its place.

    ``reaches(x, i)`` returns whether floats, of the dtype of `high`, reach the places `i`. If a
    number reaches a place, so do all greater numbers, and `high` reaches all places.
    """
    below, above = (np.full(n, _ordinals(end)) for end in (low, high))
    # Bisect between a number that does not reach the place and one that does.
    while (i := np.flatnonzero(above - 1 > below)).size:
        least, most = below[i], above[i]
        middle = (least >> 1) + (most >> 1) + (least & most & 1)
        reached = reaches(_of_ordinals(middle, high.dtype), i)
        above[i], below[i] = np.where(reached, middle, most), np.where(reached, least, middle)
    return np.asarray(_of_ordinals(above, high.dtype))


def _ordinals(x: Any) -> Any:
    """Return integers in the order of floats; neighbouring floats have neighbouring integers."""
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
    """Return `bins` if their edges increase, as NumPy requires, without making all edges."""
    low, high = map(float, bins.ends)
    (step, start), top = bins._step, max(abs(low), abs(high))
    if step.dtype == _F8:
        # Edges differ if a step exceeds their spacing and the rounding of products and sums.
        apart = float(np.spacing(bins.dtype.type(top)))
        rounding = 4 * np.spacing(bins.n * step) + (bins.dtype != _F8) * np.spacing(top)
        if step >= apart + rounding:
            return bins
        # There is no rounding if all edges are multiples of a power of two.
        whole = math.frexp(step)[0] == 0.5 and (start / step).is_integer()
        if whole and step >= apart and high == start + bins.n * step:
            return bins
    count = 1 << 20
    firsts = range(0, bins.n, count)
    # Begin at the large edges, where rounding is most likely to make neighbours equal.
    for first in firsts if abs(low) > abs(high) else reversed(firsts):
        edges = bins.edges_at(np.arange(first, min(first + count, bins.n) + 1))
        if not (edges[:-1] < edges[1:]).all():
            raise ValueError(
                f"Too many bins for data range. Cannot create {bins.n} finite-sized bins."
            )
    return bins
