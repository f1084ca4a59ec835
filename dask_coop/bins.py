"""Histogram bins by NumPy's rules, found once and used by every chunk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Bins:
    """The bins of a histogram.

    Attributes
    ----------
    edges : numpy.ndarray
        Ascending, shape ``(n + 1,)``, in the dtype in which NumPy compares samples with them.
    limits : tuple of two numbers, optional
        The outer edges as the user or the data gave them, where the bins are of equal width.
    """

    edges: np.ndarray[Any, Any]
    limits: tuple[Any, Any] | None

    @property
    def n(self) -> int:
        """The number of bins."""
        return len(self.edges) - 1

    @cached_property
    def line(self) -> tuple[float, float] | None:
        """``(step, start)`` where the edges but the last are ``i * step + start``; else None.

        The products and sums are float64's, rounded to the dtype of the edges, as `numpy.linspace`
        makes them; kernels that know this need no table of edges.
        """
        if self.limits is None or self.edges.dtype.kind != "f":
            return None
        start, stop = (float(limit) for limit in self.limits)
        with np.errstate(all="ignore"):
            if start == stop:
                start, stop = start - 0.5, stop + 0.5
            step = (stop - start) / self.n
            edges = (np.arange(self.n) * step + start).astype(self.edges.dtype)
        return (step, start) if np.array_equal(edges, self.edges[:-1]) else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the line instead of the edges that are on it: they may be many, and go far."""
        if self.line is None:
            return Bins, (self.edges, self.limits)
        return _on_line, (self.line, self.edges.dtype, self.n, self.edges[-1], self.limits)

    def numpy_arguments(self) -> dict[str, Any]:
        """Return the arguments by which `numpy.histogram` counts into these very bins."""
        if self.limits is None:
            return {"bins": self.edges}
        return {"bins": self.n, "range": self.limits}

    def are_numpys(self, samples: np.dtype[Any]) -> bool:
        """Tell whether `numpy.histogram` makes these edges of `numpy_arguments`."""
        if self.limits is None:
            return True
        edges = np.result_type(*self.limits, np.empty(0, samples))
        return bool(self.edges.dtype == (edges if edges.kind == "f" else np.dtype("f8")))


def _on_line(
    line: tuple[float, float], dtype: np.dtype[Any], n: int, last: Any, limits: Any
) -> Bins:
    step, start = line
    edges = np.empty(n + 1, dtype)
    edges[:-1] = np.arange(n) * step + start
    edges[-1] = last
    bins = Bins(edges, limits)
    bins.__dict__["line"] = line
    return bins


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
        In NumPy's words, for what NumPy refuses; and for edges that are NaN.
    """
    refuse_nan(bins)
    edges = np.histogram_bin_edges(np.empty(0, dtype), bins, limits)
    if np.ndim(bins) == 1:
        return Bins(edges, None)
    return Bins(edges, (0, 1) if limits is None else tuple(limits))


def refuse_nan(bins: Any, name: str = "bins") -> None:
    """Refuse edges of which one is NaN: NumPy, which compares neighbours, lets them pass."""
    if np.ndim(bins) != 1:
        return
    edges = np.asarray(bins)
    if edges.dtype.kind == "f" and (found := np.flatnonzero(np.isnan(edges))).size:
        raise ValueError(f"{name} must be monotonic, got NaN at position {found[0]}")


class Places(NamedTuple):
    """The numbers that samples get: a sample in bin i gets ``first + step * i``.

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
    """

    bins: tuple[Bins, ...]
    flow: bool = False
    axes: tuple[int, ...] | None = None
    omit: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The entries of the table along each coordinate."""
        return tuple(bins.n + 2 * self.flow for bins in self.bins)

    @property
    def places(self) -> list[Places]:
        """The places of samples along each coordinate."""
        if not self.flow:
            return [Places()] * len(self.bins)
        return [Places(0, n := bins.n + 1, -1 if self.omit else n, 1) for bins in self.bins]

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

    @property
    def n(self) -> int:
        """The number of entries."""
        return self.minlength


@dataclass(frozen=True)
class Steps:
    """What `numpy.digitize` makes of samples: bins and what stands for them."""

    bins: Bins
    places: Places


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
        places = Places(n, n - above, 0, n - 1, -1, False)
    else:
        places = Places(0, above, n, 1, 1, False)
    if above < 2:
        # Bins have two edges; between equal ones there is nothing.
        edges = np.repeat(edges, 2) if above else np.zeros(2, edges.dtype)
    return Steps(Bins(edges, None), places)


def find_coordinate_bins(bins: Any, limits: Any, dtype: np.dtype[Any], number: int = 0) -> Bins:
    """Return the bins that `numpy.histogramdd` would use for coordinates of `dtype`.

    Their edges may have another dtype than those of `find_bins`. Parameters and errors are its, and
    `number` is that of the coordinate in messages.
    """
    if np.ndim(bins) == 0:
        limits = (0, 1) if limits is None else tuple(limits)
    refuse_nan(bins, f"bins[{number}]")
    try:
        _, (edges,) = np.histogramdd(np.empty((0, 1), dtype), [bins], [limits])
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("bins[0]", f"bins[{number}]")) from None
    uniform = np.ndim(bins) == 0 and (edges[:-1] < edges[1:]).all()
    return Bins(edges, (float(limits[0]), float(limits[1])) if uniform else None)
