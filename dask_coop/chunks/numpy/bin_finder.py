"""Search for the bins of samples of NumPy chunks, with the same results as NumPy's steps."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dask_coop.algebra.bins import Numbering
from dask_coop.algebra.edges import Bins

Array = np.ndarray[Any, Any]


class Finder(NamedTuple):
    """A way to find the bins of samples in float64 or 64-bit integers, to which all are converted.

    Floats and shorter integers compare there as they do in their own dtypes.
    """

    n: int
    ends: tuple[Any, Any]
    numbering: Numbering
    # Step and start of edges on a line, and whether sums are rounded to float32; else empty.
    edges: Array
    line: tuple[float, float, bool] | None
    # The bins per unit of uniform bins, and the distance from an edge, in bins, at which a guess is
    # right, where edges are on a line or would be without rounding.
    scale: float
    doubt: float
    # The user's integers, where float64 would confuse them with their neighbours.
    limits: tuple[int, int] | None

    def convert(self, x: Array) -> Array:
        """Return samples in the dtype in which they are compared."""
        v = x.astype(self.edges.dtype, copy=False)
        if self.limits is not None:
            v[x < self.limits[0]] = -np.inf
            v[x > self.limits[1]] = np.inf
        return v

    def find(self, x: Array, index: Array) -> None:
        """Write the bin indices of one-dimensional samples to `index`."""
        v = self.convert(x)
        (low, high), n, numbers = self.ends, self.n, self.numbering
        if self.line is None:
            bin_ = np.searchsorted(self.edges, v, "right") - 1
        else:
            bin_ = self._step_to(np.where((v >= low) & (v < high), v, low))
        np.copyto(index, numbers.first + numbers.step * bin_)
        index[v < low] = numbers.below
        outside = ~(v < high)
        if outside.any():
            beyond_range = v[outside]
            last = numbers.first + numbers.step * (n - 1) if numbers.closed else numbers.above
            beyond = np.where(beyond_range > high, numbers.above, numbers.missing)
            index[outside] = np.where(beyond_range == high, last, beyond)

    def _step_to(self, v: Array) -> Array:
        """Return the bins of samples inside the range, by steps from a guess."""
        bin_: Array = np.minimum(((v - self.ends[0]) * self.scale).astype("i8"), self.n - 1)
        while True:
            below = v < self._edges_at(bin_)
            beyond = (v >= self._edges_at(bin_ + 1)) & (bin_ < self.n - 1)
            if not (below.any() or beyond.any()):
                return bin_
            bin_ += beyond
            bin_ -= below

    def _edges_at(self, index: Array) -> Array:
        assert self.line is not None
        step, start, single = self.line
        edges: Array = index * step + start
        return edges.astype("f4").astype("f8") if single else edges


def find_finder(bins: Bins, samples: np.dtype[Any], numbering: Numbering) -> Finder:
    """Return the finder of bins for samples of a dtype."""
    common, n, limits = np.result_type(samples, bins.dtype), bins.n, bins.whole_limits(samples)
    low, high = (float(end) for end in bins.ends)
    with np.errstate(all="ignore"):
        scale = float(n / np.subtract(high, low)) if bins.limits is not None else 0.0
        scale = scale if scale < math.inf else 0.0
        # Edges are rounded to their dtype, guesses to float64.
        size = max(abs(low), abs(high)) * scale
        doubt = (size + n) * 2.0**-50
        if not scale or bins.line is None or bins.dtype.itemsize <= 2:
            wide = common.kind in "iu" and common.itemsize == 8
            edges = bins.cuts.astype(common).astype(common if wide else "f8")
            ends = edges[0], edges[-1]
            return Finder(n, ends, numbering, edges, None, scale, doubt, limits)
        step, start = bins.line
        eps = float(np.finfo(bins.dtype).eps)
        far = max(abs(low), abs(high))
        # Edges that are small multiples of a power of two are not rounded.
        rounded = math.frexp(step)[0] != 0.5 or step * scale != 1
        rounded = rounded or low != start or not (low / step).is_integer() or far / step > 2 / eps
        doubt = min(rounded * size * eps + doubt, 1.0) if n < 1 << 31 else 1.0
        if samples.kind in "iu" and step * scale == 1 and math.frexp(step)[0] == 0.5:
            # Nothing is rounded if edges are whole, or halves, quarters and so on, and float64 has
            # all numbers between them.
            exact = low == start and low.is_integer() and high == low + n * step
            doubt = -1.0 if exact and max(far, size * eps * 2.0**52) <= 2.0**52 else doubt
        line = step, start, bins.dtype == "f4"
        return Finder(n, (low, high), numbering, np.empty(0), line, scale, doubt, limits)
