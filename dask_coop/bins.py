"""Histogram bins by NumPy's rules, found once and used by every chunk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

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

    def numpy_arguments(self) -> dict[str, Any]:
        """Return the arguments by which `numpy.histogram` counts into these very bins."""
        if self.limits is None:
            return {"bins": self.edges}
        return {"bins": self.n, "range": self.limits}


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
        In NumPy's words, for what NumPy refuses.
    """
    edges = np.histogram_bin_edges(np.empty(0, dtype), bins, limits)
    if np.ndim(bins) == 1:
        return Bins(edges, None)
    return Bins(edges, (0, 1) if limits is None else tuple(limits))
