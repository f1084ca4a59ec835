"""Multidimensional histograms: histogram2d, histogramdd."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from dask.array.blockwise import blockwise
from dask.array.core import Array, asanyarray, asarray
from dask.base import is_dask_collection
from dask.delayed import Delayed

from dask_coop import chunks
from dask_coop.algebra.bins import Grid, find_coordinate_bins
from dask_coop.algebra.monoids import MINMAX, State, accumulator
from dask_coop.algebra.operation import bind
from dask_coop.api.arguments import as_dtype, rechunk
from dask_coop.api.call.public import Engine, public
from dask_coop.api.call.results import Histogram, Histogram2D
from dask_coop.api.histograms.histogram import (
    find_weights,
    finishing,
    match_chunks,
    reproducibly,
    require_samples,
    weighing,
)
from dask_coop.api.histograms.lazy_bins import (
    Nan,
    found_limits,
    known_edges,
    lazy_edges,
    leaves_nan_out,
    refuse_axes,
    sample_dtype,
)
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import executor
from dask_coop.graph import histogram as graph_histogram
from dask_coop.graph import reduce as graph_reduce


@public("histogram")
def histogramdd(
    sample: Any,
    bins: Any = 10,
    range: Any = None,
    normed: bool | None = None,
    weights: Any = None,
    density: bool | None = None,
    *,
    nan: Nan = "raise",
    reproducible: bool = False,
    engine: Engine = "auto",
) -> Histogram:
    """Compute the multidimensional histogram of points.

    Parameters
    ----------
    sample : dask.array.Array or sequence of them
        An array of shape ``(N, D)``, one point per row; or D arrays of equal shapes, one per
        coordinate. Bool, integers or floats, in NumPy or CuPy chunks.
    bins : int, or sequence of D int or 1-D array_like
        The number of bins along all coordinates, or for each coordinate its number of bins or its
        edges.
    range : sequence of D (float, float) or None, optional
        The outer edges along each coordinate; by default its minimum and maximum, found in the
        same graph.
    normed : bool, optional
        Another name of `density`.
    weights : dask.array.Array, optional
        The weight that each point adds to its bin, of shape ``(N,)`` or that of the coordinates.
    density : bool, optional
        Whether the result is the probability density, which integrates to one.
    nan : {"raise", "omit"}
        How NaN affects a range that is found in the data. "raise": computing raises an error.
        "omit": the range is that of the points without NaN. A point with NaN along any coordinate
        is never counted.
    reproducible : bool
        As for :func:`histogram`.
    engine : {"auto", "collective"}
        As for :func:`histogram`.

    Returns
    -------
    counts : dask.array.Array
        Lazy, with one dimension for each coordinate, in one chunk of the kind of `sample`'s: counts
        in float64, or sums with the dtype of `weights`, widened to 64 bits for integers and bool,
        or float64 densities (complex128 for complex weights).
    edges : list of dask.array.Array
        Each of shape ``(number of bins + 1,)``. Both results form a named tuple, `Histogram`, whose
        `plot` draws one or two coordinates.

    Raises
    ------
    TypeError
        If samples or weights have another dtype, `weights` are complex while `reproducible` is
        true, or both `normed` and `density` are given.
    ValueError
        With NumPy's message, if NumPy refuses the arguments. Also if coordinates or weights have
        other shapes, edges are NaN, the dtype cannot tell so many bins apart, the table needs more
        than 2**40 bytes, or `nan` has another value. Computing raises if a range is found in data
        that hold an infinity, or NaN without ``nan="omit"``.
    NotImplementedError
        If `bins` or `range` are lazy, as in Dask.

    Notes
    -----
    The counts equal those of `numpy.histogramdd` to the last sample. Coordinates of several dtypes
    are compared in their common dtype.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x, y = da.array([2, 4, 2, 4, 2, 4]), da.array([2, 2, 4, 4, 2, 4])
    >>> counts, edges = dc.histogramdd((x, y), bins=2, range=((0, 6), (0, 6)))
    >>> counts.compute()
    array([[2., 1.],
           [1., 2.]])
    """
    density, omit = _find_density(normed, density), leaves_nan_out(nan)
    samples, n = find_samples(sample)
    w = None if weights is None else find_weights(weights, find_points(samples, n), "sample")
    grid, shape, edges = find_grid(samples, n, bins, range, omit)
    dtype = np.dtype("f8")
    if w is not None and w.dtype.kind in "biuf":
        dtype = accumulator(w.dtype) if w.dtype.kind != "f" else w.dtype
    op = weighing(w, "histogramdd", None if w is None or w.dtype.kind == "c" else dtype)
    if reproducible and w is not None:
        op = reproducibly(op, "histogramdd", w, tuple(_numbers(w.ndim)))
    finalize, result = finishing(op, density)
    # NumPy returns counts in float64.
    dtype = dtype if w is None else result
    hist = graph_histogram.table(op, samples, w, grid, shape, finalize, dtype, name="histogramdd")
    return Histogram(hist, edges)


@public("histogram")
def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,
    normed: bool | None = None,
    weights: Any = None,
    density: bool | None = None,
    *,
    nan: Nan = "raise",
    reproducible: bool = False,
    engine: Engine = "auto",
) -> Histogram2D:
    """Compute the two-dimensional histogram of two coordinates.

    Parameters
    ----------
    x, y : dask.array.Array
        The coordinates, of equal shapes.
    bins : int or 1-D array_like, or sequence of two of them
        The number of bins or the edges, for both coordinates or for each.
    range, normed, weights, density, nan, reproducible
        As for :func:`histogramdd`.
    engine : {"auto", "collective"}
        As for :func:`histogram`.

    Returns
    -------
    counts : dask.array.Array
        As for :func:`histogramdd`, of shape ``(bins along x, bins along y)``.
    xedges, yedges : dask.array.Array
        The edges along each coordinate. The three results form a named tuple, `Histogram2D`, whose
        `plot` draws it.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As for :func:`histogramdd`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x, y = da.array([2, 4, 2, 4, 2, 4]), da.array([2, 2, 4, 4, 2, 4])
    >>> counts, xedges, yedges = dc.histogram2d(x, y, bins=[[0, 3, 6], [0, 6]])
    >>> counts.compute()
    array([[3.],
           [3.]])
    """
    if isinstance(bins, list | tuple | np.ndarray) and len(bins) not in (1, 2):
        bins = [bins, bins]
    counts, edges = histogramdd(
        (x, y), bins, range, normed, weights, density, nan=nan, reproducible=reproducible
    )
    return Histogram2D(counts, *edges)


#: The builtin, which parameters named `range` shadow.
_numbers = range


def _find_density(normed: bool | None, density: bool | None) -> bool:
    if normed is not None and density is not None:
        raise TypeError("Cannot specify both 'normed' and 'density'")
    return bool(normed or density)


def find_samples(sample: Any, name: str = "histogramdd") -> tuple[list[Array], int]:
    """Return the arrays of coordinates, or one array with all, and the number of coordinates."""
    if not isinstance(sample, list | tuple):
        x = asanyarray(sample)
        if x.ndim != 2:
            raise ValueError(f"Single array input to {name} should be columnar")
        if x.shape[1] != x.shape[1] or x.shape[1] == 0:
            raise ValueError(f"sample must have a known number of columns, got {x.shape[1]}")
        require_samples(name, x)
        if x.numblocks[1] > 1:
            x = rechunk(x, (x.chunks[0], (x.shape[1],)))
        if x.shape[1] == 1:
            return [x.reshape(-1) if not x.size else x[:, 0]], 1
        return [x], x.shape[1]
    samples = [asanyarray(x) for x in sample]
    if not samples:
        raise ValueError("sample must have at least one coordinate")
    for x in samples:
        require_samples(name, x)
        if x.ndim != samples[0].ndim or (
            x.shape != samples[0].shape and all(n == n for n in (*x.shape, *samples[0].shape))
        ):
            raise ValueError(
                f"coordinates must have equal shapes, got {[x.shape for x in samples]}"
            )
        if chunks.kind(x._meta) != chunks.kind(samples[0]._meta):
            raise TypeError("coordinates must all have chunks of one kind, NumPy's or CuPy's")
    common = np.result_type(*(x.dtype for x in samples))
    first, *others = (as_dtype(x, common) for x in samples)
    samples = [first, *(match_chunks("sample", x, first) for x in others)]
    return samples, len(samples)


def find_grid(
    samples: list[Array], n: int, bins: Any, limits: Any, omit: bool
) -> tuple[Grid | Delayed, tuple[int, ...], list[Any]]:
    """Return the bins of n coordinates, their numbers, and their edges.

    `bins` and `limits` are the arguments `bins` and `range` of :func:`histogramdd`.
    """
    counts, limits = _find_bins(bins, n), _find_ranges(limits, n)
    dtypes = [sample_dtype(samples[0])] * n
    missing = [
        i
        for i in range(n)
        if np.ndim(counts[i]) == 0 and limits[i] is None and 0 not in samples[0].shape
    ]
    # With any range in place of an unknown one, the other arguments are checked right away.
    known = [(0.0, 1.0) if i in missing else limits[i] for i in range(n)]
    known_bins = [
        find_coordinate_bins(*arguments)
        for arguments in zip(counts, known, dtypes, range(n), strict=True)
    ]
    shape = tuple(bins.n for bins in known_bins)
    grid: Grid | Delayed = Grid(tuple(known_bins))
    edges = [e if executor.runner() else asarray(e) for e in map(known_edges, known_bins)]
    if missing:
        find = partial(_find_grid, counts, limits, dtypes, missing)
        grid = graph_reduce.derive(
            "histogramdd-bins", find, _find_extrema(samples, n, missing, omit)
        )
        for i in missing:
            dtype = dtypes[i] if dtypes[i].kind == "f" else np.dtype("f8")
            edges[i] = lazy_edges(grid, shape[i], dtype, i)
    return grid, shape, edges


def find_points(samples: list[Array], n: int) -> Array:
    """Return an array with one element for each point of n coordinates."""
    return samples[0] if samples[0].ndim == 1 or n == len(samples) else samples[0][:, 0]


def _find_bins(bins: Any, n: int) -> list[Any]:
    refuse_axes(bins)
    if is_dask_collection(bins) or (
        isinstance(bins, list | tuple) and any(map(is_dask_collection, bins))
    ):
        raise NotImplementedError("Passing dask collections to bins=... is not supported.")
    if not isinstance(bins, list | tuple) and np.ndim(bins) == 0:
        return [bins] * n
    if len(bins) != n:
        raise ValueError("The dimension of bins must be equal to the dimension of the sample.")
    return list(bins)


def _find_ranges(ranges: Any, n: int) -> list[Any]:
    if ranges is None:
        return [None] * n
    pairs = [[pair] if pair is None or np.ndim(pair) == 0 else [*pair] for pair in ranges]
    if is_dask_collection(ranges) or any(is_dask_collection(limit) for p in pairs for limit in p):
        raise NotImplementedError("Passing dask collections to range=... is not supported.")
    if len(pairs) != n:
        raise ValueError("range argument requires one entry, a min max pair, per dimension.")
    if not all(len(pair) == 2 or pair == [None] for pair in pairs):
        raise ValueError("range argument should be a sequence of pairs")
    return [pair if len(pair) == 2 else None for pair in pairs]


def _find_extrema(
    samples: Sequence[Array], n: int, missing: list[int], omit: bool
) -> list[Delayed]:
    """Return the limits of the `missing` coordinates, or of all `n` if one array holds them."""
    samples_dtype = sample_dtype(samples[0])
    op = bind(MINMAX, samples_dtype, samples_dtype, "histogramdd", skipna=omit)
    name, in_columns = "histogramdd-limits", n > len(samples)
    if op.skipna and n > 1:
        samples = _spread_nan(samples, in_columns)
    if in_columns:
        return [graph_reduce.value(op, samples[0], name, _as_pairs, axes=(0,))]
    return [graph_reduce.value(op, samples[i], name, found_limits) for i in missing]


def _spread_nan(samples: Sequence[Array], in_columns: bool) -> list[Array]:
    """Return the coordinates, all NaN at points where one is NaN."""
    axes = tuple(_numbers(samples[0].ndim))
    every = [part for x in samples for part in (x, axes)]
    options = {"dtype": samples[0].dtype, "meta": samples[0]._meta, "align_arrays": False}
    make = partial(_spread, in_columns=in_columns)
    return [
        blockwise(make, axes, x, axes, *every, **declared_by(x, *samples), **options)
        for x in samples
    ]


# Inside the task.


@casts
@chunks.keeps_mask
def _spread(x: Any, *points: Any, in_columns: bool) -> Any:
    missing = _isnan(points[0])
    for coordinate in points[1:]:
        missing = missing | _isnan(coordinate)
    if in_columns:
        missing = missing.any(-1, keepdims=True)
    return np.where(missing, x.dtype.type(np.nan), x)


def _isnan(x: Any) -> Any:
    # Masked elements do not count as NaN.
    nans = np.isnan(x)
    return np.ma.filled(nans, False) if chunks.is_masked(nans) else nans


def _as_pairs(state: State) -> list[Any]:
    low, high = (chunks.asarray(field, "numpy") for field in state)
    return [(low[i], high[i]) for i in range(len(low))]


def _find_grid(
    counts: list[Any],
    limits: list[Any],
    dtypes: list[np.dtype[Any]],
    missing: list[int],
    extrema: list[Any],
) -> Grid:
    if extrema and isinstance(extrema[0], list):
        extrema = [found_limits(extrema[0][i]) for i in missing]
    limits = list(limits)
    for i, pair in zip(missing, extrema, strict=True):
        limits[i] = pair
    arguments = zip(counts, limits, dtypes, range(len(counts)), strict=True)
    return Grid(tuple(find_coordinate_bins(*coordinate) for coordinate in arguments))
