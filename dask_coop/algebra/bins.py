"""Histogram bins by NumPy's rules, computed once for all chunks."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_coop.algebra.digits import Digits
from dask_coop.algebra.edges import MANY, Bins, check_increase, given_bins

#: The most bytes of a table, beyond any GPU's memory.
MOST_BYTES = 1 << 40


def require_room(shape: tuple[float, ...]) -> None:
    """Refuse tables that are larger than `MOST_BYTES`, at 8 bytes an entry."""
    entries = math.prod(shape)
    if 8 * entries > MOST_BYTES:
        raise ValueError(
            f"a table of {entries:,} entries takes {8 * entries:,} bytes, more than the "
            f"limit of {MOST_BYTES:,}; take fewer bins"
        )


def find_bins(bins: Any, limits: Any, dtype: np.dtype[Any]) -> Bins:
    """Return the bins that NumPy would use for samples of `dtype`.

    Parameters
    ----------
    bins : int or array_like
        The number of bins of equal width, or all their edges.
    limits : tuple of two numbers or None
        The outer edges; None if `bins` are edges or there are no samples.
    dtype : numpy.dtype
        The dtype of the samples.

    Raises
    ------
    TypeError, ValueError
        With NumPy's message where NumPy raises; also for NaN edges, and for more bins than a table
        may have.
    """
    refuse_nan(bins)
    samples, many = np.empty(0, dtype), _are_many(bins)
    try:
        edges = np.histogram_bin_edges(samples, 1 if many else bins, limits)
    except ValueError as error:
        raise ValueError(str(error).replace("create 1 ", f"create {bins} ")) from None
    if np.ndim(bins) == 1:
        return given_bins(edges)
    first, last = (0, 1) if limits is None else limits
    if first == last:
        first, last = first - 0.5, last + 0.5
    result = Bins(operator.index(bins), edges.dtype, None, (first, last), True)
    return check_increase(result) if many else _keep(result, edges)


def _are_many(bins: Any) -> bool:
    """Return whether there are too many edges to make all of them just for checks."""
    if np.ndim(bins) or not hasattr(bins, "__index__") or operator.index(bins) <= MANY:
        return False
    require_room((operator.index(bins),))
    return True


def _keep(bins: Bins, edges: np.ndarray[Any, Any]) -> Bins:
    bins.__dict__["_kept"] = edges
    return bins


def refuse_nan(bins: Any, name: str = "bins") -> None:
    """Refuse edges that include NaN, which NumPy's comparison of neighbours lets pass."""
    if np.ndim(bins) != 1:
        return
    edges = np.asarray(bins)
    if edges.dtype.kind == "f" and (nans := np.flatnonzero(np.isnan(edges))).size:
        raise ValueError(f"{name} must be monotonic, got NaN at position {nans[0]}")


class Numbering(NamedTuple):
    """The numbers of bins: a sample in bin i gets ``first + step * i``.

    Attributes
    ----------
    below, above, missing : int
        The numbers for samples outside the bins and for NaN; negative if these do not count.
    first, step : int
    closed : bool
        Whether the last bin includes its right edge, which is above otherwise.
    """

    below: int = -1
    above: int = -1
    missing: int = -1
    first: int = 0
    step: int = 1
    closed: bool = True


@dataclass(frozen=True)
class Grid:
    """The bins of a histogram along each coordinate.

    Attributes
    ----------
    bins : tuple of Bins
        The bins of each coordinate of a sample.
    flow : bool
        Whether each coordinate has two more entries: one for samples below its first edge, one for
        samples above its last and for NaN.
    axes : tuple of int, optional
        The axes that samples are counted over, sorted; by default all of them. The other axes are
        the first axes of the table.
    omit : bool
        Whether NaN does not count, even with `flow`.
    closed : bool
        Whether the last bins include their right edges; if not, which needs `flow`, these count as
        above.
    squares: bool
        Whether weights are squared, in float64, before they are added.
    """

    bins: tuple[Bins, ...]
    flow: bool = False
    axes: tuple[int, ...] | None = None
    omit: bool = False
    closed: bool = True
    squares: bool = False

    def __reduce__(self) -> Any:
        """Pickle without the names of fields, because every task has a grid."""
        return Grid, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def shape(self) -> tuple[int, ...]:
        """The entries of the table along each coordinate."""
        return tuple(bins.n + 2 * self.flow for bins in self.bins)

    @property
    def entries(self) -> int:
        """The number of entries of the table for each line."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of coordinates of a sample."""
        return len(self.bins)

    @property
    def has_lines(self) -> bool:
        """Whether samples are counted over some axes only."""
        return self.axes is not None

    @property
    def numberings(self) -> list[Numbering]:
        """The numbers of bins along each coordinate."""
        if not self.flow:
            return [Numbering()] * len(self.bins)
        # A sample on the only edge of no bins is above it.
        return [
            Numbering(
                0, n := bins.n + 1, -1 if self.omit else n, 1, closed=self.closed and bins.n > 0
            )
            for bins in self.bins
        ]

    def lines(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the axes of a chunk of `shape` into those kept and those counted over."""
        axes = tuple(range(len(shape))) if self.axes is None else self.axes
        return tuple(axis for axis in range(len(shape)) if axis not in axes), axes


@dataclass(frozen=True)
class Integers:
    """The bins of `numpy.bincount`: an entry for every integer from 0 on.

    Attributes
    ----------
    minlength : int
        The least number of entries.
    """

    minlength: int

    #: Unknown until the largest sample is known.
    entries: ClassVar[None] = None
    ndim: ClassVar[int] = 1
    flow: ClassVar[bool] = False
    has_lines: ClassVar[bool] = False

    @property
    def n(self) -> int:
        """The least number of entries."""
        return self.minlength

    def lines(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the axes of a chunk of `shape` as `Grid.lines` does: all are counted over."""
        return (), tuple(range(len(shape)))


#: The bins of a histogram.
BinSpec = Grid | Integers | Digits


@dataclass(frozen=True)
class Steps:
    """The bins of `numpy.digitize`, and their numbers."""

    bins: Bins
    numbering: Numbering


def find_steps(edges: Any, right: bool, dtype: np.dtype[Any]) -> Steps:
    """Return the bins and numbers that `numpy.digitize` uses for samples of `dtype`.

    Raises
    ------
    TypeError, ValueError
        With NumPy's message where NumPy raises; also for NaN edges.
    """
    edges = np.asarray(edges)
    np.digitize(np.empty(0, dtype), edges, right)
    refuse_nan(edges)
    edges = edges.astype(np.result_type(dtype, edges), copy=False)
    n, falls = len(edges), bool(len(edges) and edges[0] > edges[-1])
    edges = edges[::-1] if falls else edges
    if right:
        # x > edge is the same as x >= the next number after the edge.
        is_float = edges.dtype.kind == "f"
        edges = edges[edges < (np.inf if is_float else np.iinfo(edges.dtype).max)]
        edges = np.nextafter(edges, edges.dtype.type(np.inf)) if is_float else edges + 1
    above = len(edges)
    if falls:
        numbering = Numbering(n, n - above, 0, n - 1, -1, False)
    else:
        numbering = Numbering(0, above, n, 1, 1, False)
    if above < 2:
        # Bins need two edges; nothing lies between equal ones.
        edges = np.repeat(edges, 2) if above else np.zeros(2, edges.dtype)
    return Steps(given_bins(edges), numbering)


def find_coordinate_bins(bins: Any, limits: Any, dtype: np.dtype[Any], number: int = 0) -> Bins:
    """Return the bins that `numpy.histogramdd` would use for coordinates of `dtype`.

    Their edges may have another dtype than those of `find_bins`, which has the same parameters and
    errors. `number` is the coordinate's number in messages.
    """
    if np.ndim(bins) == 0:
        limits = (0, 1) if limits is None else tuple(limits)
    refuse_nan(bins, f"bins[{number}]")
    many = _are_many(bins)
    try:
        _, (edges,) = np.histogramdd(np.empty((0, 1), dtype), [1 if many else bins], [limits])
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("bins[0]", f"bins[{number}]")) from None
    if np.ndim(bins) == 0 and (edges[:-1] > edges[1:]).any():
        # Rounding to float16 or float32 unsorted them; NumPy would search them all the same.
        raise ValueError(f"Too many bins for data range. Cannot create {bins} bins.")
    if np.ndim(bins) or not (edges[:-1] < edges[1:]).all():
        return given_bins(edges)
    first, last = limits
    if first == last:
        first, last = first - 0.5, last + 0.5
    result = Bins(operator.index(bins), edges.dtype, None, (first, last))
    return check_increase(result) if many else _keep(result, edges)
