"""Histogram bins by NumPy's rules, found once and used by every chunk."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_coop.algebra.digits import Digits
from dask_coop.algebra.edges import MANY, Bins, check_increase, given_bins

#: The most bytes of a table: beyond any GPU's memory.
MOST_BYTES = 1 << 40


def require_room(shape: tuple[float, ...]) -> None:
    """Refuse tables that are larger than `MOST_BYTES`, at 8 bytes an entry."""
    entries = math.prod(shape)
    if 8 * entries > MOST_BYTES:
        raise ValueError(
            f"a table of {entries:,} entries takes {8 * entries:,} bytes, and more than "
            f"{MOST_BYTES:,} are refused; take fewer bins"
        )


def find_bins(bins: Any, limits: Any, dtype: np.dtype[Any]) -> Bins:
    """Return the bins that NumPy would use for samples of `dtype`.

    Parameters
    ----------
    bins : int or array_like
        The number of bins of equal width, or all their edges.
    limits : tuple of two numbers or None
        The outer edges; None stands for a sequence of edges, or for no sample at all.
    dtype : numpy.dtype
        The dtype of the samples.

    Raises
    ------
    TypeError, ValueError
        In NumPy's words, for what NumPy refuses; for edges that are NaN, and for more bins than a
        table may have.
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
    found = Bins(operator.index(bins), edges.dtype, None, (first, last), True)
    return check_increase(found) if many else _keep(found, edges)


def _are_many(bins: Any) -> bool:
    """Tell whether all edges would be too much to make, only to look at them."""
    if np.ndim(bins) or not hasattr(bins, "__index__") or operator.index(bins) <= MANY:
        return False
    require_room((operator.index(bins),))
    return True


def _keep(bins: Bins, edges: np.ndarray[Any, Any]) -> Bins:
    bins.__dict__["_kept"] = edges
    return bins


def refuse_nan(bins: Any, name: str = "bins") -> None:
    """Refuse edges of which one is NaN: NumPy, which compares neighbours, lets them pass."""
    if np.ndim(bins) != 1:
        return
    edges = np.asarray(bins)
    if edges.dtype.kind == "f" and (found := np.flatnonzero(np.isnan(edges))).size:
        raise ValueError(f"{name} must be monotonic, got NaN at position {found[0]}")


class Numbering(NamedTuple):
    """The numbers that stand for bins: a sample in bin i gets ``first + step * i``.

    Attributes
    ----------
    below, above, missing : int
        What samples outside the bins and NaN get; negative for what counts nowhere.
    first, step : int
    closed : bool
        Whether the last bin holds its right edge; else that is above.
    """

    below: int = -1
    above: int = -1
    missing: int = -1
    first: int = 0
    step: int = 1
    closed: bool = True


@dataclass(frozen=True)
class Grid:
    """What a histogram counts into.

    Attributes
    ----------
    bins : tuple of Bins
        One for each coordinate of a sample.
    flow : bool
        Whether each has an entry more for what is below its first edge, and one for what is above
        its last, NaN among it.
    axes : tuple of int, optional
        The axes that samples are counted over, sorted; by default all of them. The others are the
        first axes of the table.
    omit : bool
        Whether NaN counts nowhere, `flow` or not.
    closed : bool
        Whether the last bins hold their right edges; without that, which needs `flow`, these count
        as above.
    squares: bool
        Whether weights are squared, in float64, before they add up.
    """

    bins: tuple[Bins, ...]
    flow: bool = False
    axes: tuple[int, ...] | None = None
    omit: bool = False
    closed: bool = True
    squares: bool = False

    def __reduce__(self) -> Any:
        """Pickle without the names of fields: every task has one."""
        return Grid, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def shape(self) -> tuple[int, ...]:
        """The entries of the table along each coordinate."""
        return tuple(bins.n + 2 * self.flow for bins in self.bins)

    @property
    def entries(self) -> int:
        """How many the table has for each line."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """How many coordinates a sample has."""
        return len(self.bins)

    @property
    def has_lines(self) -> bool:
        """Whether there are axes that samples are not counted over."""
        return self.axes is not None

    @property
    def numberings(self) -> list[Numbering]:
        """The numbers that samples get along each coordinate."""
        if not self.flow:
            return [Numbering()] * len(self.bins)
        # On the one edge that bounds no bin is above it.
        return [
            Numbering(
                0, n := bins.n + 1, -1 if self.omit else n, 1, closed=self.closed and bins.n > 0
            )
            for bins in self.bins
        ]

    def lines(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the axes of a chunk of `shape` in those that are kept and those counted over."""
        axes = tuple(range(len(shape))) if self.axes is None else self.axes
        return tuple(axis for axis in range(len(shape)) if axis not in axes), axes


@dataclass(frozen=True)
class Integers:
    """What `numpy.bincount` counts into: an entry for every integer from 0 on.

    Attributes
    ----------
    minlength : int
        The entries that there are whatever the integers.
    """

    minlength: int

    #: Not known before the samples are: it is the largest integer that counts.
    entries: ClassVar[None] = None
    ndim: ClassVar[int] = 1
    flow: ClassVar[bool] = False
    has_lines: ClassVar[bool] = False

    @property
    def n(self) -> int:
        """The number of entries."""
        return self.minlength

    def lines(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the axes of a chunk of `shape` as `Grid.lines` does: all are counted over."""
        return (), tuple(range(len(shape)))


#: What a histogram may count into.
BinSpec = Grid | Integers | Digits


@dataclass(frozen=True)
class Steps:
    """What `numpy.digitize` makes of samples: bins and what stands for them."""

    bins: Bins
    numbering: Numbering


def find_steps(edges: Any, right: bool, dtype: np.dtype[Any]) -> Steps:
    """Return what `numpy.digitize` makes of samples of `dtype`.

    Raises
    ------
    TypeError, ValueError
        In NumPy's words, for what NumPy refuses; and for edges that are NaN.
    """
    edges = np.asarray(edges)
    np.digitize(np.empty(0, dtype), edges, right)
    refuse_nan(edges)
    edges = edges.astype(np.result_type(dtype, edges), copy=False)
    n, falls = len(edges), bool(len(edges) and edges[0] > edges[-1])
    edges = edges[::-1] if falls else edges
    if right:
        # To be greater than an edge is to be no less than the number that follows.
        is_float = edges.dtype.kind == "f"
        edges = edges[edges < (np.inf if is_float else np.iinfo(edges.dtype).max)]
        edges = np.nextafter(edges, edges.dtype.type(np.inf)) if is_float else edges + 1
    above = len(edges)
    if falls:
        numbering = Numbering(n, n - above, 0, n - 1, -1, False)
    else:
        numbering = Numbering(0, above, n, 1, 1, False)
    if above < 2:
        # Bins have two edges; between equal ones there is nothing.
        edges = np.repeat(edges, 2) if above else np.zeros(2, edges.dtype)
    return Steps(given_bins(edges), numbering)


def find_coordinate_bins(bins: Any, limits: Any, dtype: np.dtype[Any], number: int = 0) -> Bins:
    """Return the bins that `numpy.histogramdd` would use for coordinates of `dtype`.

    Their edges may have another dtype than those of `find_bins`. Parameters and errors are its, and
    `number` is that of the coordinate in messages.
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
        # Rounded to float16 or float32; NumPy would search them as if they were sorted.
        raise ValueError(f"Too many bins for data range. Cannot create {bins} bins.")
    if np.ndim(bins) or not (edges[:-1] < edges[1:]).all():
        return given_bins(edges)
    first, last = limits
    if first == last:
        first, last = first - 0.5, last + 0.5
    found = Bins(operator.index(bins), edges.dtype, None, (first, last))
    return check_increase(found) if many else _keep(found, edges)
