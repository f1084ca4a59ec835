"""Histograms of boost-histogram and hist: to_hist.

The axis itself yields the numbers at which its bins change. Samples are counted between these, so
that counts equal those of the axis' own ``fill``::

    axis --index--> cuts --Grid--> tables of the chunks --tree--> table --entries--> histogram

"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array, asanyarray

from dask_coop import chunks
from dask_coop.algebra.bins import Grid
from dask_coop.algebra.edges import Bins, given_bins, least
from dask_coop.algebra.monoids import COUNTS
from dask_coop.algebra.operation import bind
from dask_coop.api.call.planning import columns_of
from dask_coop.api.call.public import Engine, public
from dask_coop.api.histograms.filled import fill_by_chunks, fills_itself
from dask_coop.api.histograms.histogram import find_weights, finishing, require_samples, weighing
from dask_coop.api.histograms.histogramdd import find_points, find_samples
from dask_coop.errors import pip_install
from dask_coop.graph import histogram as graph_histogram
from dask_coop.graph.reduce import derive

_F8 = np.dtype("f8")


def _by_columns(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `to_hist` that also takes the columns of a frame or a mapping, by their names."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        columns = columns_of(args[0] if args else options.get("sample"))
        if columns is None:
            return function(*args, **options)

        def column(name: Any) -> Any:
            if name not in columns:
                raise ValueError(f"sample has no column {name!r}, only {[*columns]}")
            return columns[name]

        arguments = inspect.signature(function).bind(*args, **options).arguments
        bins = arguments["bins"]
        axes = getattr(bins, "axes", bins if isinstance(bins, list | tuple) else [bins])
        names = [getattr(axis, "name", "") for axis in axes]
        if not any(names):
            names = [*columns]
        elif not all(names):
            raise ValueError(f"axes of a frame's columns all have a name, or none has; got {names}")
        for key in ("weights", "values"):
            if isinstance(arguments.get(key), str):
                arguments[key] = column(arguments[key])
        arguments["sample"] = [column(name) for name in names]
        return function(**arguments)

    return call


@public("histogram", dask=False, around=_by_columns)
def to_hist(
    sample: Any, bins: Any, weights: Any = None, *, values: Any = None, engine: Engine = "auto"
) -> Any:
    """Fill a histogram of boost-histogram or hist, including its flow bins.

    Parameters
    ----------
    sample : dask.array.Array, sequence or mapping of them, or frame
        For one axis, an array of any number of dimensions; for several axes, one array each, of
        equal shapes, or an array of shape ``(N, D)``. Bool, integers or floats, in NumPy or CuPy
        chunks, and strings for a StrCategory. A mapping, or a frame of dask.dataframe or pandas,
        has a column for each axis: that of the axis' name, or in their order if axes have no names.
    bins : axis, sequence of axes, or histogram
        Axes of boost-histogram or hist, of any kind, but no Variable that grows. Or a
        ``boost_histogram.Histogram`` or ``hist.Hist``: samples are added to a copy of it, in its
        storage. Axes alone get the storage Double, or Weight if there are weights, Mean if there
        are values, WeightedMean if there are both.
    weights : dask.array.Array or array_like, optional
        The weight that each sample adds to its bin, in the shape of a coordinate or ``(N,)``, or
        the name of a column. Bool, integers or floats. In the storage Weight, the variances are the
        sums of their squares.
    values : dask.array.Array or array_like, optional
        The numbers whose mean and variance a bin of the storages Mean and WeightedMean has, in the
        shape of weights, or the name of a column: ``sample=`` of ``fill``.
    engine : {"auto", "collective"}
        As for :func:`histogram`; "collective" returns the filled histogram itself.

    Returns
    -------
    dask.delayed.Delayed
        Its ``compute()`` returns the filled histogram, of the class of `bins`, or a ``hist.Hist``
        for axes of hist.

    Raises
    ------
    ImportError
        If boost-histogram is not installed.
    TypeError
        If `bins` has another type, or is a Variable axis that grows, whose edges depend on the
        order of samples. Also if samples, weights or values have another dtype: Integer and
        IntCategory axes take integers and bool, and storages of integers take only weights of
        these; and if `values` are given to a storage without means, or not to such with means.
    ValueError
        If the number of coordinates is not that of the axes, shapes differ, or a column is missing.

    Notes
    -----
    Counts and flow bins equal those of ``fill`` to the last sample, for all numbers that float64
    holds. Bins include their left edges; the last right edge and NaN count as overflow. The last
    bin of an axis without overflow includes its right edge, and samples beyond are dropped. That
    differs from :func:`histogram`, whose last bin includes its right edge, as NumPy's. An axis
    finds bins by its own arithmetic, so that a sample a few roundings from an edge may fall into
    another bin than its ``edges`` suggest. On an Integer axis, integers beyond 32 bits, which
    ``fill`` refuses, count as underflow or overflow. Samples that are masked, or whose weights are,
    are not counted. Weights are summed in float64, in another order than by ``fill``.

    Where there are categories, axes that turn or grow, other transforms than log and sqrt, or
    means, every chunk fills a copy, on the host, and the copies are added: categories are in the
    order of the samples along one dimension, in that of the chunks along several.

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
    >>> means = dc.to_hist(x, bh.axis.Regular(2, 0, 1), values=10 * x)
    >>> means.compute().values()
    array([2., 7.])
    """
    package = _boost_histogram()
    weighted = weights is not None
    empty = _find_histogram(package, bins, weighted, values is not None)
    n, means = len(empty.axes), _has_means(empty)
    if means != (values is not None):
        raise TypeError(
            f"a storage of {empty.storage_type.__name__} "
            + (
                "needs values=, the numbers that it averages"
                if means
                else "takes no values=; take Mean or WeightedMean"
            )
        )
    if means or any(fills_itself(package, axis) for axis in empty.axes):
        samples = _columns(sample, n)
        w = None if weights is None else find_weights(weights, samples[0], "sample")
        _dtype_of_sums(empty, w)
        v = None if values is None else find_weights(values, samples[0], "sample")
        if v is not None and v.dtype.kind not in "biuf":
            raise TypeError(f"values must be real numbers, got {v.dtype}")
        return fill_by_chunks(package, empty, samples, w, v)
    samples, points = _find_coordinates(sample, n)
    w = None if weights is None else find_weights(weights, points, "sample")
    columns = sample if isinstance(sample, list | tuple) else [samples[0]] * n
    coordinates = [
        _coordinate(package, axis, asanyarray(x).dtype)
        for axis, x in zip(empty.axes, columns, strict=True)
    ]
    grid = Grid(tuple(c.bins for c in coordinates), flow=True, closed=False)
    summed = [(weighing(w, "to_hist", _dtype_of_sums(empty, w)), grid)]
    if w is not None and _has_variances(empty):
        summed.append((bind(COUNTS, _F8, _F8, "to_hist"), replace(grid, squares=True)))
    if w is not None:
        # By a weight it learns that variances are no counts.
        nothing = np.zeros(0, "i8")
        package.Histogram.fill(empty, *[nothing] * n, weight=nothing)
    tables = [
        graph_histogram.table(op, samples, w, bins, grid.shape, *finishing(op), name="to_hist")
        for op, bins in summed
    ]
    entries = tuple(c.entries for c in coordinates)
    return derive("to_hist", partial(_fill, pickle.dumps(empty), entries), *tables)


def _boost_histogram() -> Any:
    try:
        import boost_histogram
    except ImportError as error:
        raise ImportError(
            "to_hist needs boost-histogram, which is not installed here; "
            f"run `{pip_install('hist')}`"
        ) from error
    return boost_histogram


def _find_histogram(package: Any, bins: Any, weighted: bool, means: bool) -> Any:
    """Return a copy of the histogram to fill, or an empty one with the given axes."""
    if isinstance(bins, package.Histogram):
        result = bins.copy()
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
        storages = package.storage
        plain = storages.Weight if weighted else storages.Double
        averaged = storages.WeightedMean if weighted else storages.Mean
        result = histogram(*axes, storage=(averaged if means else plain)())
    if not result.axes:
        raise TypeError("to_hist fills a histogram of an axis or more, and this one has none")
    return result


def _has_means(histogram: Any) -> bool:
    return bool(histogram.storage_type.__name__.endswith("Mean"))


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
    """Return the coordinates of n axes, or one array with all, and an array of weights' shape."""
    if n == 1 and not isinstance(sample, list | tuple):
        x = asanyarray(sample)
        require_samples("to_hist", x)
        return [x], x
    samples, count = find_samples(sample, "to_hist")
    if count != n:
        raise ValueError(f"sample must have a coordinate for each of {n} axes, got {count}")
    return samples, find_points(samples, count)


def _columns(sample: Any, n: int) -> list[Array]:
    """Return the arrays of n coordinates, of any dtypes, in equal chunks."""
    if isinstance(sample, list | tuple):
        samples = [*map(asanyarray, sample)]
    else:
        x = asanyarray(sample)
        samples = [x] if n == 1 else [x[:, i] for i in range(x.shape[1] if x.ndim == 2 else 0)]
    if len(samples) != n:
        raise ValueError(f"sample must have a coordinate for each of {n} axes, got {len(samples)}")
    first, *others = samples
    return [first, *(find_weights(x, first, "sample", "coordinates") for x in others)]


class _Coordinate(NamedTuple):
    """The bins of an axis, and their positions in its histogram.

    Attributes
    ----------
    bins : Bins
    entries : numpy.ndarray
        The position in the histogram of each entry of the table: below all bins, in each bin, and
        above or NaN. Entries at positions outside the axis are dropped.
    """

    bins: Bins
    entries: np.ndarray[Any, Any]


def _coordinate(package: Any, axis: Any, samples: np.dtype[Any]) -> _Coordinate:
    """Return the bins of an axis for samples of a dtype, and their positions."""
    kinds, traits = package.axis, axis.traits
    named = f"to_hist does not count into the axis {axis!r}"
    n, shift = axis.size, int(traits.underflow)
    entries = np.arange(-1, n + 1) + shift
    if isinstance(axis, kinds.Integer | kinds.Boolean):
        if samples.kind not in ("b" if isinstance(axis, kinds.Boolean) else "biu"):
            to = "bool" if isinstance(axis, kinds.Boolean) else "i8"
            raise TypeError(f"{named} samples of dtype {samples}; convert them by .astype({to!r})")
        low = 0 if isinstance(axis, kinds.Boolean) else axis.bin(0)
        return _Coordinate(Bins(n, _F8, None, (float(low), float(low + n))), entries)
    if isinstance(axis, kinds.Variable):
        cuts = axis.edges.copy()
        if not traits.overflow:
            # The last bin includes its right edge.
            cuts[-1] = np.nextafter(cuts[-1], np.inf)
        return _Coordinate(given_bins(cuts), entries)
    first, last = axis.edges[[0, -1]].tolist()
    if axis.transform is None:
        cuts = _cuts(axis, -np.inf)
        return _Coordinate(Bins(n, _F8, None, (first, last), compared=cuts), entries)
    # Negative numbers have no transform and count with NaN.
    cuts = np.append(0.0, _cuts(axis, np.nextafter(0.0, -1.0)))
    return _Coordinate(given_bins(cuts), np.append(n, np.arange(-1, n + 1)) + shift)


def _cuts(axis: Any, low: float) -> np.ndarray[Any, Any]:
    """Return the least number above `low` in each bin of an axis, and in the overflow."""

    def reaches(x: Any, bins: Any) -> Any:
        return axis.index(x) >= bins

    # Nearly all of them lie next to the edges.
    apart, every = 8 * np.spacing(abs(axis.edges).max()), np.arange(axis.size + 1)
    below, above = axis.edges - apart, axis.edges + apart
    below = np.where((below <= low) | reaches(below, every), low, below)
    above = np.where(reaches(above, every), above, np.inf)
    return least(reaches, below, above, axis.size + 1)


# Inside the task.


def _fill(template: bytes, entries: Sequence[Any], *tables: Any) -> Any:
    """Return the pickled histogram with the tables of sums, and of their squares, added."""
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
    """Return a table with its entries added up at their positions along each axis."""
    for axis, (positions, n) in enumerate(zip(entries, shape, strict=True)):
        inside = (positions >= 0) & (positions < n)
        moved = np.moveaxis(table, axis, 0)
        into = np.zeros((n, *moved.shape[1:]), table.dtype)
        np.add.at(into, positions[inside], moved[inside])
        table = np.moveaxis(into, 0, axis)
    return table
