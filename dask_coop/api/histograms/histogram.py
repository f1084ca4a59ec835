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
    fitting,
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
    """Compute the histogram of an array, of all elements or along the given axes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks, of any number of dimensions.
    bins : int, 1-D array_like, str, dask.array.Array or Delayed
        The number of bins of equal width; or all edges, ascending, where the last bin includes its
        right edge and the others do not; or NumPy's rule for the number: "rice", "sqrt", "sturges"
        or, for integers and float64, "scott". A number or edges may be lazy.
    range : (float, float), optional
        The outer edges, which may be lazy; samples outside are not counted. By default, if `bins`
        are not edges, the minimum and the maximum of all samples, found in the same graph.
    normed : bool
        Only False is supported, as in Dask; use `density`.
    weights : dask.array.Array or array_like, optional
        The weight that each sample adds to its bin, in `a`'s shape. Bool, integers, floats or
        complex numbers.
    density : bool, optional
        Whether the result is the probability density, which integrates to one.
    axis : int or tuple of int, optional
        The axes to count over, by default all. Each position along the other axes has a histogram
        of its own, with the same bins.
    flow : bool
        Whether to add an entry before the bins for samples below the first edge, and one after
        them for samples above the last edge and NaN, so that every sample counts.
    nan : {"raise", "omit"}
        How NaN affects a range, or a rule's number of bins, that is found in the data. "raise":
        computing raises an error. "omit": NaN is ignored there and never counted, not even with
        `flow`; if all samples are NaN, the bins lie between 0 and 1, as for no samples.
    reproducible : bool
        Whether sums of weights have the same bits for every chunking, scheduler, and number of
        workers or GPUs, in NumPy and in CuPy chunks. Counts and sums of integers always do.
    engine : {"auto", "collective"}
        As for :func:`sum`; it applies to both results.

    Returns
    -------
    counts : dask.array.Array
        Lazy, with the axes of `a` that are not in `axis`, in their chunks, then one axis of length
        ``number of bins (+ 2 with flow)``, or nan if that is not known yet. In chunks of the kind
        of `a`'s: int64 counts, or sums with the dtype of `weights`, or float64 densities
        (complex128 for complex weights).
    edges : numpy.ndarray or dask.array.Array
        Of shape ``(number of bins + 1,)``. Lazy if `bins` or `range` are lazy or found in the
        data, or if there are more than 2**22 bins of equal width, whose edges are made chunk by
        chunk. Both results form a named tuple, `Histogram`, whose `plot` draws it.

    Raises
    ------
    TypeError
        If `a` or `weights` have another dtype, `bins` or `range` another type, or `weights` are
        complex while `reproducible` is true.
    ValueError
        With NumPy's message, if edges do not increase, the range is not finite, the dtype cannot
        tell so many bins apart, or weights have another shape. Also if edges are NaN, the rule is
        not supported, `density` is combined with `flow`, `nan` has another value, or the table
        needs more than 2**40 bytes, beyond any GPU's memory. Computing raises if `range` is found
        in data that hold an infinity, or NaN without ``nan="omit"``.

    Notes
    -----
    The counts equal those of `numpy.histogram` to the last sample, for every dtype and in both
    kinds of chunks. Samples and edges are compared in NumPy's dtype, where int64 and uint64 beyond
    2**53 are rounded to float64; integer limits are compared as integers. Where NumPy fails for
    limits beyond int64, counts are those of the same limits as uint64. Without `flow`, NaN is not
    counted. Weights are summed in float64 or 64-bit integers and rounded once. Samples that are
    masked, or whose weights are, are never counted, not even with `flow`, and do not affect the
    range.

    Reproducible sums work as in :func:`sum`, for at most 2**39 samples, but every weight is rounded
    to within 2**-72 of the largest weight of the histogram, not of its bin. That largest weight may
    belong to a sample outside all bins. Chunks are counted four times, a digit at a time.

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
    """Raise `Refused` if the function `name` does not take samples of this dtype."""
    if x.dtype.kind not in "biuf" or x.dtype.itemsize > 8:
        raise Refused(
            f"{name} does not take samples of dtype {x.dtype}; it takes bool, integers and "
            f"float16 to float64; {remedy(x.dtype, 'biuf')}"
        )


def find_weights(weights: Any, x: Array, name: str = "a", called: str = "weights") -> Array:
    """Return weights, which are `called` so, in the chunks of the samples `x`, called `name`."""
    w = asanyarray(weights)
    if w.shape != x.shape and not (has_unknown_size(w) or has_unknown_size(x)):
        raise ValueError(f"{called} should have the same shape as {name}: {w.shape} and {x.shape}")
    require_one_kind(name, x, called, w)
    return match_chunks(called, w, x)


def match_chunks(name: str, y: Array, x: Array) -> Array:
    """Return the array `y` of the argument `name` in the chunks of `x`."""
    if has_unknown_size(x) or has_unknown_size(y):
        if y.numblocks != x.numblocks:
            raise ValueError(f"unknown chunks must be as many: {y.numblocks} and {x.numblocks}")
        return fitting(name, y, x, range(y.ndim))
    return rechunk(y, x.chunks)


def weighing(weights: Array | None, name: str, dtype: Any = None) -> Operation:
    """Return the operation that counts samples, or sums weights in `dtype`, by default theirs."""
    if weights is None:
        return bind(COUNTS, np.dtype("i8"), np.dtype("i8"), name)
    result = np.dtype(weights.dtype if dtype is None else dtype)
    return bind(COUNTS, weights.dtype, result, f"{name} with weights")


def reproducibly(op: Operation, name: str, weights: Array, axes: tuple[int, ...]) -> Operation:
    """Return `op` with sums of weights that have the same bits in any order."""
    if op.output.kind == "c":
        raise TypeError(f"{name} with reproducible=True does not take complex weights")
    if op.output.kind != "f":
        return op
    refuse_many(name, weights, axes)
    return reproducible(op)


def finishing(
    op: Operation, density: bool | None = False
) -> tuple[Callable[[State, Any], Any], np.dtype[Any]]:
    """Return the function that turns the last state into the result, and the result's dtype."""
    steady = op.monoid.has_digits
    if density:
        dtype = np.dtype("c16" if op.output.kind == "c" else "f8")
        return as_reproducible_density if steady else as_density, dtype
    return partial(as_sums, op.output) if steady else as_counts, op.output


def as_counts(state: State, grid: Any) -> Any:
    """Return the table of a state."""
    return state[0]


def as_density(state: State, grid: Grid) -> Any:
    """Return the density of a table, which integrates to one along the last axes."""
    (counts,) = state
    return _divide(counts, counts.sum(_last_axes(grid), keepdims=True), grid)


def as_sums(output: np.dtype[Any], state: State, grid: Any) -> Any:
    """Return the sums that tables of digits represent."""
    return digits.total(state, output)


def as_reproducible_density(state: State, grid: Grid) -> Any:
    """Return the density of reproducible sums; their total is rounded once."""
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
