"""Histograms of one coordinate: histogram."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from dask.array.core import Array, asanyarray, map_blocks

from dask_coop import chunks
from dask_coop.algebra import reproducible as digits
from dask_coop.algebra.bins import Grid
from dask_coop.algebra.monoids import COUNTS, State
from dask_coop.algebra.operation import Operation, bind, reproducible
from dask_coop.api.arguments import (
    find_axes,
    has_unknown_size,
    rechunk,
    refuse_many,
    require_one_kind,
)
from dask_coop.api.call.public import Engine, public
from dask_coop.api.call.results import Histogram
from dask_coop.api.histograms.lazy_bins import Nan, find_binning, leaves_nan_out
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.errors import Refused, remedy
from dask_coop.graph import histogram as graph_histogram


@public("histogram")
def histogram(
    a: Any,
    bins: Any = 10,
    range: Any = None,
    normed: bool = False,
    weights: Any = None,
    density: bool | None = None,
    *,
    axis: int | tuple[int, ...] | None = None,
    flow: bool = False,
    nan: Nan = "raise",
    reproducible: bool = False,
    engine: Engine = "auto",
) -> Histogram:
    """Histogram of all elements of an array, or of those along some axes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks, of any number of dimensions.
    bins : int, 1-D array_like, str, dask.array.Array or Delayed
        The number of bins of equal width; or all edges, ascending, where the last bin is closed on
        the right and the others are half open; or NumPy's rule for the number: "rice", "sqrt",
        "sturges" or, of integers and float64, "scott". A number or edges may be lazy.
    range : (float, float), optional
        The outer edges, which may be lazy; samples outside are left out. Without it and without
        edges, the least and the greatest sample of all, found in the same graph.
    normed : bool
        As in Dask, only False is taken; use `density`.
    weights : dask.array.Array or array_like, optional
        Of `a`'s shape: what each sample adds to its bin. Bool, integers, floats or complex.
    density : bool, optional
        Whether the result is the probability density, which integrates to one.
    axis : int or tuple of int, optional
        The axes to count over: one histogram, of the same bins, for each position along the others.
    flow : bool
        Whether there is an entry more before the bins, for samples below the first edge, and one
        behind them, for samples above the last edge and NaN, so that every sample counts.
    nan : {"raise", "omit"}
        What NaN does to a range, or a rule's number of bins, that is found in the data: computing
        raises, or they are those of the other samples. With "omit", NaN counts nowhere, not even
        with `flow`; where all is NaN, the bins are those of no sample, between 0 and 1.
    reproducible : bool
        Whether sums of weights have the same bits for every chunking, scheduler, and number of
        workers or GPUs, in NumPy and in CuPy chunks. Counts and sums of integers have in any case.
    engine : {"auto", "collective"}
        As for :func:`sum`, of both results.

    Returns
    -------
    counts : dask.array.Array
        Lazy, with the axes of `a` that are not in `axis`, in their chunks, then one of ``number of
        bins (+ 2 with flow)``, of nan where that is not known yet. In chunks of the kind of `a`'s:
        int64 counts, or sums with the dtype of `weights`, or float64 densities (complex128 where
        weights are complex).
    edges : numpy.ndarray or dask.array.Array
        Of shape ``(number of bins + 1,)``; lazy if they had to be found or were given so, or if
        there are more than 2**22 bins of equal width, whose edges are made chunk by chunk. The two
        are a named tuple, `Histogram`, which draws itself by `plot`.

    Raises
    ------
    TypeError
        If `a` or `weights` have another dtype, or `bins` or `range` are of no such type, or
        reproducible weights are complex.
    ValueError
        In NumPy's words: edges that do not increase, a range that is not finite, more bins than
        the dtype can tell apart, weights of another shape; or edges that are NaN, a rule that is
        not supported, a density with `flow`, or another `nan`; or a table of more than 2**40 bytes,
        beyond any GPU's memory. If `range` is found in the data and that holds an infinity, or NaN
        that is not left out, computing raises.

    Notes
    -----
    The counts are those of `numpy.histogram` to the last sample, for every dtype, in either kind of
    chunk: samples and edges are compared in NumPy's dtype, where int64 and uint64 beyond 2**53 are
    rounded to float64, and limits that are integers as integers. Where NumPy fails for limits
    beyond int64, counts are those of the same limits as uint64. Without `flow`, NaN is left out.
    Weights are summed in float64 or 64-bit integers and rounded once. Samples that are masked, or
    whose weights are, count nowhere, also with `flow`, and have no part in a range.

    Reproducible sums are those of :func:`sum`, of at most 2**39 samples, but every weight is taken
    to within 2**-72 of the largest one of the histogram, not of its bin; a weight counts as largest
    also where its sample is in no bin. Chunks are counted four times, a digit at a time.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.arange(10, chunks=4)
    >>> counts, edges = dc.histogram(x, bins=3, range=(0, 9))
    >>> counts.compute()
    array([3, 3, 4])
    >>> dc.histogram(x, bins=[3, 5, 8], flow=True)[0].compute()
    array([3, 2, 4, 1])
    >>> dc.histogram(x.reshape(2, 5), bins=[0, 2, 10], axis=1)[0].compute()
    array([[2, 3],
           [0, 5]])
    """
    x = asanyarray(a)
    if normed:
        raise ValueError("normed is not supported; use density=True")
    if density and flow:
        raise ValueError("density=True needs flow=False: what is outside the bins has no width")
    omit = leaves_nan_out(nan)
    require_samples("histogram", x)
    if isinstance(bins, str) and weights is not None:
        raise TypeError(
            "Automated estimation of the number of bins is not supported for weighted data"
        )
    w = None if weights is None else find_weights(weights, x)
    op = weighing(w, "histogram")
    axes = find_axes(axis, x.ndim)
    whole = len(axes) == x.ndim
    make = partial(_make_grid, flow, None if whole else axes, omit)
    known = x
    if w is not None and chunks.is_masked(w._meta):
        meta = np.ma.array(np.zeros((0,) * x.ndim, x.dtype), mask=True)
        known = map_blocks(_mask_both, x, w, **declared_by(x, w), dtype=x.dtype, meta=meta)
    grid, n, edges = find_binning(bins, range, known, make, omit)
    if reproducible and w is not None:
        op = reproducibly(op, "histogram", w, axes)
    finalize, dtype = finishing(op, density)
    shape = (n + 2 * flow,)
    counts = graph_histogram.table(op, [x], w, grid, shape, finalize, dtype, axes=axes)
    return Histogram(counts, edges)


@casts
def _mask_both(x: Any, weights: Any) -> Any:
    return np.ma.array(x, mask=np.ma.getmaskarray(x) | np.ma.getmaskarray(weights))


def _make_grid(flow: bool, axes: tuple[int, ...] | None, omit: bool, bins: Any) -> Grid:
    return Grid(bins, flow, axes, omit)


def require_samples(name: str, x: Array) -> None:
    """Refuse samples that the function `name` does not take."""
    if x.dtype.kind not in "biuf" or x.dtype.itemsize > 8:
        raise Refused(
            f"{name} does not take samples of dtype {x.dtype}; it takes bool, integers and "
            f"float16 to float64; {remedy(x.dtype, 'biuf')}"
        )


def find_weights(weights: Any, x: Array, name: str = "a") -> Array:
    """Return weights in the chunks of the samples `x`, which the caller calls `name`."""
    w = asanyarray(weights)
    if w.shape != x.shape and not (has_unknown_size(w) or has_unknown_size(x)):
        raise ValueError(f"weights should have the same shape as {name}: {w.shape} and {x.shape}")
    require_one_kind(name, x, "weights", w)
    return match_chunks(w, x)


def match_chunks(y: Array, x: Array) -> Array:
    """Return `y` in the chunks of `x`."""
    if has_unknown_size(x) or has_unknown_size(y):
        if y.numblocks != x.numblocks:
            raise ValueError(f"unknown chunks must be as many: {y.numblocks} and {x.numblocks}")
        return y
    return rechunk(y, x.chunks)


def weighing(weights: Array | None, name: str, dtype: Any = None) -> Operation:
    """Return the operation that counts, or adds up weights, to `dtype` or theirs."""
    if weights is None:
        return bind(COUNTS, np.dtype("i8"), np.dtype("i8"), name)
    result = np.dtype(weights.dtype if dtype is None else dtype)
    return bind(COUNTS, weights.dtype, result, f"{name} with weights")


def reproducibly(op: Operation, name: str, weights: Array, axes: tuple[int, ...]) -> Operation:
    """Return the operation that adds up weights as `op` does, to the same bits in any order."""
    if op.output.kind == "c":
        raise TypeError(f"{name} with reproducible=True does not take complex weights")
    if op.output.kind != "f":
        return op
    refuse_many(name, weights, axes)
    return reproducible(op)


def finishing(
    op: Operation, density: bool | None = False
) -> tuple[Callable[[State, Any], Any], np.dtype[Any]]:
    """Return what makes the result of the last state, and the dtype of that."""
    steady = op.monoid.has_digits
    if density:
        dtype = np.dtype("c16" if op.output.kind == "c" else "f8")
        return as_reproducible_density if steady else as_density, dtype
    return partial(as_sums, op.output) if steady else as_counts, op.output


def as_counts(state: State, grid: Any) -> Any:
    """Return the table of a state."""
    return state[0]


def as_density(state: State, grid: Grid) -> Any:
    """Return the density of a table: along its last axes it integrates to one."""
    (counts,) = state
    return _divide(counts, counts.sum(_last_axes(grid), keepdims=True), grid)


def as_sums(output: np.dtype[Any], state: State, grid: Any) -> Any:
    """Return the sums that tables of digits stand for."""
    return digits.total(state, output)


def as_reproducible_density(state: State, grid: Grid) -> Any:
    """Return the density of sums, of which the whole is rounded once."""
    f8 = np.dtype("f8")
    total = digits.total(digits.whole(state, _last_axes(grid)), f8)
    return digits.narrow(_divide(digits.total(state, f8), total, grid), f8)


def _last_axes(grid: Grid) -> tuple[int, ...]:
    return tuple(range(-len(grid.bins), 0))


def _divide(counts: Any, total: Any, grid: Grid) -> Any:
    ndim = len(grid.bins)
    for axis, bins in enumerate(grid.bins):
        widths = chunks.asarray(np.diff(bins.edges).astype("f8"), chunks.kind(counts))
        counts = counts / widths.reshape((-1,) + (1,) * (ndim - 1 - axis))
    return counts / total
