"""Histograms that know their axes, boost-histogram's and hist's: to_hist.

Samples are counted between the numbers at which boost-histogram turns from one bin to the next,
which are found by asking the axis itself, so that counts are those of its own ``fill``::

    axis --index--> cuts --Grid--> tables of the chunks --tree--> table --entries--> histogram

"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array, asanyarray

from dask_coop import chunks
from dask_coop.algebra.bins import Grid
from dask_coop.algebra.edges import Bins, given_bins, least
from dask_coop.algebra.monoids import COUNTS
from dask_coop.algebra.operation import bind
from dask_coop.api.call.public import Engine, public
from dask_coop.api.histograms.histogram import find_weights, finishing, require_samples, weighing
from dask_coop.api.histograms.histogramdd import find_points, find_samples
from dask_coop.graph import histogram as graph_histogram
from dask_coop.graph.reduce import derive

_F8 = np.dtype("f8")


@public("histogram", dask=False)
def to_hist(sample: Any, bins: Any, weights: Any = None, *, engine: Engine = "auto") -> Any:
    """Fill a histogram of boost-histogram or hist, with its axes and their flow bins.

    Parameters
    ----------
    sample : dask.array.Array or sequence of them
        The samples of one axis, of any number of dimensions; or an array of equal shape for each
        axis, or one of shape ``(N, D)``. Bool, integers or floats, in NumPy or CuPy chunks.
    bins : axis, sequence of axes, or histogram
        Axes of boost-histogram or hist: Regular, also with the transforms log and sqrt, Variable,
        Integer or Boolean. Or a ``boost_histogram.Histogram`` or ``hist.Hist``, which says how
        bins are stored, too, and to whose copy is added. Axes alone are stored as Double, or as
        Weight where there are weights.
    weights : dask.array.Array or array_like, optional
        Of `sample`'s shape, or its number of points: what each sample adds to its bin. Bool,
        integers or floats. Where the storage is Weight, their squares add up to variances.
    engine : {"auto", "collective"}
        As for :func:`histogram`; with "collective" the filled histogram comes back at once.

    Returns
    -------
    dask.delayed.Delayed
        Whose ``compute()`` is the filled histogram, of the class of `bins`, or of hist where the
        axes are hist's.

    Raises
    ------
    ImportError
        If boost-histogram is not installed.
    TypeError
        If `bins` is none of these, an axis is of another kind, grows or is circular, or stores
        means; samples or weights have another dtype, as an Integer axis takes integers and bool,
        and storages of integers take such weights only.
    ValueError
        If there are not as many coordinates as axes, or shapes differ.

    Notes
    -----
    Counts and flow bins are those of ``fill`` to the last sample, for all that float64 holds: bins
    hold their left edges, the last right edge counts as overflow, and so does NaN; an axis without
    overflow holds its right edge in the last bin, and drops what is beyond. That differs from
    :func:`histogram`, which has NumPy's edges, the last bin closed. An axis finds bins by its own
    arithmetic, so that a sample that is a few roundings from an edge may be in another bin than by
    its ``edges``. Integers beyond 32 bits, which ``fill`` refuses on an Integer axis, are below or
    above. Masked samples, and those with masked weights, count nowhere. Weights are summed in
    float64, in another order than ``fill`` does.

    Examples
    --------
    >>> import boost_histogram as bh
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.arange(10, chunks=4) / 10
    >>> filled = dc.to_hist(x, bh.axis.Regular(3, 0, 0.6))
    >>> filled.compute().values(flow=True)
    array([0., 2., 2., 2., 4.])
    >>> filled = dc.to_hist(x, bh.axis.Regular(2, 0, 1), weights=x)
    >>> filled.compute().variances()
    array([0.3 , 2.55])
    """
    package = _boost_histogram()
    empty = _find_histogram(package, bins, weights is not None)
    samples, points = _find_coordinates(sample, len(empty.axes))
    w = None if weights is None else find_weights(weights, points, "sample")
    given = sample if isinstance(sample, list | tuple) else [samples[0]] * len(empty.axes)
    coordinates = [
        _coordinate(package, axis, asanyarray(x).dtype)
        for axis, x in zip(empty.axes, given, strict=True)
    ]
    grid = Grid(tuple(each.bins for each in coordinates), flow=True, closed=False)
    summed = [(weighing(w, "to_hist", _dtype_of_sums(empty, w)), grid)]
    if w is not None and _has_variances(empty):
        summed.append((bind(COUNTS, _F8, _F8, "to_hist"), replace(grid, squares=True)))
    tables = [
        graph_histogram.table(op, samples, w, each, grid.shape, *finishing(op), name="to_hist")
        for op, each in summed
    ]
    entries = tuple(each.entries for each in coordinates)
    return derive("to_hist", partial(_fill, pickle.dumps(empty), entries), *tables)


def _boost_histogram() -> Any:
    try:
        import boost_histogram
    except ImportError as error:
        raise ImportError(
            "to_hist needs boost-histogram, which is not installed here: "
            "pip install 'dask-coop[hist]'"
        ) from error
    return boost_histogram


def _find_histogram(package: Any, bins: Any, weighted: bool) -> Any:
    """Return a copy of the histogram that is to be filled, or an empty one of axes."""
    if isinstance(bins, package.Histogram):
        found = bins.copy()
    else:
        axes = [*bins] if isinstance(bins, list | tuple) else [bins]
        if not axes or not all(isinstance(axis, package.axis.Axis) for axis in axes):
            raise TypeError(
                "bins must be axes of boost_histogram or hist, such as "
                "boost_histogram.axis.Regular(50, 0, 1) or axis.Variable(edges), or a histogram of "
                f"these, got {bins!r}"
            )
        histogram = package.Histogram
        if any(type(axis).__module__.partition(".")[0] == "hist" for axis in axes):
            from hist import Hist as histogram
        storage = package.storage.Weight() if weighted else package.storage.Double()
        found = histogram(*axes, storage=storage)
    view = found.view(flow=True)
    if not found.axes or (view.dtype.names and not _has_variances(found)):
        raise TypeError(
            f"to_hist does not fill a storage of {found.storage_type.__name__} over "
            f"{len(found.axes)} axes; it takes Double, Int64, AtomicInt64, Unlimited and Weight "
            "over one axis or more"
        )
    return found


def _has_variances(histogram: Any) -> bool:
    return bool(histogram.view(flow=True).dtype.names == ("value", "variance"))


def _dtype_of_sums(histogram: Any, weights: Array | None) -> np.dtype[Any] | None:
    if weights is None:
        return None
    whole = histogram.view(flow=True).dtype.kind == "i"
    if weights.dtype.kind not in ("biu" if whole else "biuf"):
        raise TypeError(
            f"a storage of {histogram.storage_type.__name__} does not take weights of dtype "
            f"{weights.dtype}; " + ("take Double or Weight" if whole else "they must be real")
        )
    return np.dtype("i8") if whole else _F8


def _find_coordinates(sample: Any, n: int) -> tuple[list[Array], Array]:
    """Return the coordinates of n axes, or one array with all, and what has weights' shape."""
    if n == 1 and not isinstance(sample, list | tuple):
        x = asanyarray(sample)
        require_samples("to_hist", x)
        return [x], x
    samples, count = find_samples(sample, "to_hist")
    if count != n:
        raise ValueError(f"sample must have a coordinate for each of {n} axes, got {count}")
    return samples, find_points(samples, count)


class _Coordinate(NamedTuple):
    """How the samples of an axis are counted.

    Attributes
    ----------
    bins : Bins
    entries : numpy.ndarray
        Where in the histogram the entries of the table belong: below all bins, in each, and above
        or NaN. What is outside of the axis is dropped.
    """

    bins: Bins
    entries: np.ndarray[Any, Any]


def _coordinate(package: Any, axis: Any, samples: np.dtype[Any]) -> _Coordinate:
    """Return how samples of a dtype are counted into the bins of an axis."""
    kinds, traits = package.axis, axis.traits
    named = f"to_hist does not count into the axis {axis!r}"
    if traits.circular:
        raise TypeError(f"{named}, which is circular; take samples modulo its period")
    if traits.growth:
        raise TypeError(f"{named}, whose bins depend on the samples; give it without growth")
    n, shift = axis.size, int(traits.underflow)
    entries = np.arange(-1, n + 1) + shift
    if isinstance(axis, kinds.Integer | kinds.Boolean):
        if samples.kind not in ("b" if isinstance(axis, kinds.Boolean) else "biu"):
            raise TypeError(f"{named} samples of dtype {samples}; convert them with .astype")
        low = 0 if isinstance(axis, kinds.Boolean) else axis.bin(0)
        return _Coordinate(Bins(n, _F8, None, (float(low), float(low + n))), entries)
    if isinstance(axis, kinds.Variable):
        cuts = axis.edges.copy()
        if not traits.overflow:
            # The last bin holds its right edge.
            if np.isinf(cuts[-1]):
                raise TypeError(f"{named}, which ends at infinity; give it with overflow")
            cuts[-1] = np.nextafter(cuts[-1], np.inf)
        return _Coordinate(given_bins(cuts), entries)
    if not isinstance(axis, kinds.Regular):
        raise TypeError(f"{named}; it takes Regular, Variable, Integer and Boolean axes")
    first, last = axis.edges[[0, -1]].tolist()
    if first > last:
        raise TypeError(f"{named}, whose edges descend; give it from {last} to {first}")
    if axis.transform is None:
        cuts = _cuts(axis, -np.inf)
        return _Coordinate(Bins(n, _F8, None, (first, last), compared=cuts), entries)
    if repr(axis.transform) not in ("log", "sqrt"):
        raise TypeError(
            f"{named}, whose transform is neither log nor sqrt; take "
            "boost_histogram.axis.Variable(axis.edges)"
        )
    # What is negative has no transform, and is where NaN is.
    cuts = np.append(0.0, _cuts(axis, np.nextafter(0.0, -1.0)))
    return _Coordinate(given_bins(cuts), np.append(n, np.arange(-1, n + 1)) + shift)


def _cuts(axis: Any, low: float) -> np.ndarray[Any, Any]:
    """Return the least numbers above `low` that an axis puts into each bin, and behind the last."""

    def reaches(x: Any, at: Any) -> Any:
        return axis.index(x) >= at

    # They are next to the edges, but for few.
    apart, every = 8 * np.spacing(abs(axis.edges).max()), np.arange(axis.size + 1)
    below, above = axis.edges - apart, axis.edges + apart
    below = np.where((below <= low) | reaches(below, every), low, below)
    above = np.where(reaches(above, every), above, np.inf)
    return least(reaches, below, above, axis.size + 1)


# Inside the task.


def _fill(template: bytes, entries: Sequence[Any], *tables: Any) -> Any:
    """Return the histogram of a pickle with tables of sums, and of squares, added."""
    _boost_histogram()
    filled = pickle.loads(template)
    view = filled.view(flow=True)
    sums = [_fold(chunks.asarray(table, "numpy"), entries, view.shape) for table in tables]
    if view.dtype.names:
        view = np.asarray(view)
        view["value"] += sums[0]
        view["variance"] += sums[-1]
    else:
        view += sums[0].astype(view.dtype, copy=False)
    return filled


def _fold(table: Any, entries: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Return a table with its entries where they belong along each axis."""
    for axis, (at, n) in enumerate(zip(entries, shape, strict=True)):
        inside = (at >= 0) & (at < n)
        moved = np.moveaxis(table, axis, 0)
        into = np.zeros((n, *moved.shape[1:]), table.dtype)
        np.add.at(into, at[inside], moved[inside])
        table = np.moveaxis(into, 0, axis)
    return table
