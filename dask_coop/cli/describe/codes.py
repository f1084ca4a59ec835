"""Summarise arrays of few different values in one read, by how often each value occurs.

Elements of 8 or 16 bits, and numbers that a file packs in as many, are codes: there are at most
65,536. One read counts them, and everything else follows exactly from the counts and from what each
code stands for::

    chunks --bincount--> counts of codes --decode the codes that occur--> values and their counts

The same holds for any statistic that depends on the values alone, not on where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np

from dask_coop.algebra.monoids import MEAN
from dask_coop.algebra.quantiles import Method, Quantiles
from dask_coop.api.histograms.bincount import bincount
from dask_coop.cli.describe.decoding import decode

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Codes:
    """The codes of an array's elements, and how to decode them.

    Attributes
    ----------
    array : dask.array.Array
        Bool, or unsigned integers with the bits of what is stored.
    stored : numpy.dtype
        The dtype of what is stored.
    attributes : dict
        Its `packing`.
    """

    array: da.Array
    stored: np.dtype[Any]
    attributes: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """The bytes of all codes."""
        return int(self.array.size * self.stored.itemsize)

    def like(self, array: da.Array) -> Codes:
        """Return other codes, which stand for the same values."""
        return Codes(array, self.stored, self.attributes)

    def count(self, compute: Callable[..., list[Any]]) -> Counted:
        """Return the values that occur, and how often they do."""
        dtype = self.array.dtype
        (counts,) = compute(bincount(self.array, minlength=_number(dtype)))
        occurring = np.flatnonzero(counts)
        return Counted.of(self._values(occurring.astype(dtype)), counts[occurring])

    def _values(self, codes: Array) -> Array:
        values = codes.view(self.stored.newbyteorder("="))
        if not self.attributes:
            return values
        # As a Dask array, which xarray decodes as it does the array itself.
        stored = da.from_array(values.astype(self.stored), chunks=-1)
        decoded, *_ = decode(stored, self.attributes)
        with np.errstate(all="ignore"):
            return np.asarray(decoded.compute(scheduler="synchronous"))


def find_codes(x: da.Array, attributes: dict[str, Any] | None = None) -> Codes | None:
    """Return the codes of stored elements, which attributes may pack; None if they are too many."""
    stored = np.dtype(x.dtype)
    if stored.kind not in "biu" or stored.itemsize > 2:
        return None
    x = x if stored.isnative else x.astype(stored.newbyteorder("="))
    if stored.kind == "i":
        code = np.dtype(f"u{stored.itemsize}")
        x = x.map_blocks(_view, code, dtype=code, meta=x._meta.view(code))
    return Codes(x, stored, attributes or {})


def _view(x: Any, dtype: np.dtype[Any]) -> Any:
    return x.view(dtype)


def _number(dtype: np.dtype[Any]) -> int:
    """Return the number of codes of a dtype."""
    return 2 if dtype.kind == "b" else 1 << 8 * dtype.itemsize


@dataclass(frozen=True)
class Counted:
    """The finite values of an array in ascending order, and how often each occurs.

    Attributes
    ----------
    values : numpy.ndarray
        Several may be equal.
    counts : numpy.ndarray
    nans, infinite : int
        How often NaN and infinities occur.
    """

    values: Array
    counts: Array
    nans: int
    infinite: int = 0

    @staticmethod
    def of(values: Array, counts: Array) -> Counted:
        """Return values in any order, sorted."""
        nans, finite = np.isnan(values), np.isfinite(values)
        infinite = int(counts[~(nans | finite)].sum())
        order = np.argsort(values, kind="stable")
        order = order[finite[order]]
        return Counted(values[order], counts[order], int(counts[nans].sum()), infinite)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of `describe` as Python numbers."""
        n = int(self.counts.sum())
        if not n:
            nan = math.nan
            return {"count": 0, "nans": self.nans, "min": nan, "max": nan, "mean": nan, "std": nan}
        dtype, numbers = MEAN.output(self.values.dtype), self.values.astype("f8")
        with np.errstate(all="ignore"):
            mean = np.float64(_total(self.counts * numbers) / n)
            std = np.sqrt(_total(self.counts * (numbers - mean) ** 2) / n)
            mean, std = mean.astype(dtype), std.astype(dtype)
        low, high = self.values[0], self.values[-1]
        values = (low, high, mean, std)
        named = zip(("min", "max", "mean", "std"), (v.item() for v in values), strict=True)
        return {"count": n, "nans": self.nans, **dict(named)}

    def quantiles(self, fractions: list[float]) -> Array:
        """Return exact quantiles; of bool, one of the two."""
        method: Method = "inverted_cdf" if self.values.dtype.kind == "b" else "linear"
        asked, n = Quantiles(np.array(fractions), method, skipna=True), int(self.counts.sum())
        ranks, upto = asked.ranks(n), np.cumsum(self.counts)
        low, high = (
            self.values[np.searchsorted(upto, rank, "right")]
            for rank in (ranks.previous, ranks.next)
        )
        result = asked.end(low, high, ranks.gamma, n)
        return np.asarray(result, asked.result(self.values.dtype))

    def below(self, limit: float) -> int:
        """Return how many values are below a limit."""
        return int(self.counts[self.values < limit].sum())


def _total(numbers: Array) -> Any:
    """Return a sum rounded once; of infinities, NumPy's."""
    total = numbers.sum()
    return math.fsum(numbers) if np.isfinite(np.abs(numbers).sum()) else total
