"""Statistics of values in bins of coordinates: the groups are the bins.

The task that reads the coordinates of a chunk numbers their bins as SciPy does, with one before and
one after those of each axis, and the values are reduced by these numbers::

    x, y --> numbers of bins -+
                              +-groupby_reduce--> statistics of all bins --> those within the range
    values -------------------+
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, blockwise, broadcast_to
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.algebra.bins import Grid, Steps
from dask_coop.api.arguments import as_dtype, require_known_sizes
from dask_coop.api.call.public import public
from dask_coop.api.groups.reduce import groupby_reduce
from dask_coop.api.histograms.histogramdd import find_grid, find_samples
from dask_coop.chunks.dtypes import casts, declared_by

BinStatistic = Literal["mean", "std", "median", "count", "sum", "min", "max"]


class BinnedStatistic(NamedTuple):
    """A statistic of each bin, or a list of several; the edges; and the bin of each point."""

    statistic: Any
    bin_edges: Any
    binnumber: Any


class BinnedStatistic2D(NamedTuple):
    """The same in two dimensions, with the edges along each."""

    statistic: Any
    x_edge: Any
    y_edge: Any
    binnumber: Any


@public("blockwise", dask=False)
def binned_statistic(
    x: Any,
    values: Any,
    statistic: BinStatistic | Sequence[BinStatistic] = "mean",
    bins: Any = 10,
    range: Any = None,
) -> BinnedStatistic:
    """Compute statistics of the values in each bin of a coordinate.

    Parameters
    ----------
    x : dask.array.Array or array_like
        The coordinates: bool, integers or floats, in NumPy or CuPy chunks of any shape.
    values : dask.array.Array or array_like
        The values: bool, integers or floats, in the shape of `x`, or with further axes in front,
        each position along which has a result.
    statistic : {"mean", "std", "median", "count", "sum", "min", "max"}, or list of these
        The statistic of each bin. Several of a list are computed from the same chunks.
    bins : int or 1-D array_like
        The number of bins of equal width, or their edges.
    range : (float, float), optional
        The outer edges; by default the extrema of `x`, found in the same graph.

    Returns
    -------
    statistic : dask.array.Array or list of dask.array.Array
        Lazy, float64, of shape ``(bins,)`` behind further axes of `values`: NaN in bins without
        points, where counts and sums are 0.
    bin_edges : dask.array.Array
        Of shape ``(bins + 1,)``.
    binnumber : dask.array.Array
        The number of each point's bin, int64, in the shape of `x`: from 1 on, 0 and ``bins + 1``
        for points outside of all. The three form a named tuple.

    Raises
    ------
    TypeError
        If `x` or `values` have another dtype or are masked, or `bins` are lazy.
    ValueError
        If a statistic is unknown, `values` do not fit `x`, `x` has no axis, the lengths of chunks
        are unknown, or as :func:`histogramdd` for `bins` and
        `range`.

    Notes
    -----
    Signature and results are those of ``scipy.stats.binned_statistic``. Bins are those of
    :func:`histogramdd`: the last one includes its right edge, exactly, where SciPy includes points
    up to a millionth of a bin beyond it. A NaN among the values makes the results of its bin NaN.
    Callables are not taken; :func:`groupby_reduce` by `binnumber` takes a :class:`Monoid`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x, values = da.from_array([0.1, 0.2, 1.0, 1.5], chunks=2), da.arange(4, chunks=2)
    >>> dc.binned_statistic(x, values, "mean", bins=[0, 1, 2, 3]).statistic.compute()
    array([0.5, 2.5, nan])
    """
    limits = [range] if range is not None and np.ndim(range[0]) == 0 else range
    bins = bins if np.ndim(bins) == 0 else [bins]
    results, edges, numbers = _binned("binned_statistic", [x], values, statistic, bins, limits)
    return BinnedStatistic(results, edges[0], numbers)


@public("blockwise", dask=False)
def binned_statistic_2d(
    x: Any,
    y: Any,
    values: Any,
    statistic: BinStatistic | Sequence[BinStatistic] = "mean",
    bins: Any = 10,
    range: Any = None,
) -> BinnedStatistic2D:
    """Compute statistics of the values in each bin of two coordinates.

    Parameters
    ----------
    x, y : dask.array.Array or array_like
        The coordinates, of equal shapes, as for :func:`binned_statistic`.
    values, statistic
        As for :func:`binned_statistic`.
    bins : int or 1-D array_like, or two of them
        The number of bins or the edges, for both coordinates or for each.
    range : two of (float, float), optional
        The outer edges along each coordinate.

    Returns
    -------
    statistic : dask.array.Array or list of dask.array.Array
        As for :func:`binned_statistic`, of shape ``(bins along x, bins along y)``.
    x_edge, y_edge : dask.array.Array
        The edges along each coordinate.
    binnumber : dask.array.Array
        The number of each point's bin among ``(bins along x + 2) * (bins along y + 2)``, in C
        order.

    Raises
    ------
    TypeError, ValueError
        As for :func:`binned_statistic`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x, y = da.array([1, 1, 3, 3]), da.array([1, 3, 3, 3])
    >>> result = dc.binned_statistic_2d(x, y, da.arange(4), "max", bins=[[0, 2, 4], [0, 2, 4]])
    >>> result.statistic.compute()
    array([[ 0.,  1.],
           [nan,  3.]])
    """
    if isinstance(bins, list | tuple | np.ndarray) and len(bins) not in (1, 2):
        bins = [bins, bins]
    name = "binned_statistic_2d"
    results, edges, numbers = _binned(name, [x, y], values, statistic, bins, range)
    return BinnedStatistic2D(results, edges[0], edges[1], numbers)


@public("blockwise", dask=False)
def binned_statistic_dd(
    sample: Any,
    values: Any,
    statistic: BinStatistic | Sequence[BinStatistic] = "mean",
    bins: Any = 10,
    range: Any = None,
) -> BinnedStatistic:
    """Compute statistics of the values in each bin of several coordinates.

    Parameters
    ----------
    sample : dask.array.Array or sequence of them
        An array of shape ``(N, D)``, one point per row; or D arrays of equal shapes, one per
        coordinate.
    values, statistic
        As for :func:`binned_statistic`.
    bins, range
        As for :func:`histogramdd`.

    Returns
    -------
    statistic : dask.array.Array or list of dask.array.Array
        As for :func:`binned_statistic`, with an axis for each coordinate.
    bin_edges : list of dask.array.Array
        The edges along each coordinate.
    binnumber : dask.array.Array
        As for :func:`binned_statistic_2d`.

    Raises
    ------
    TypeError, ValueError
        As for :func:`binned_statistic`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> points = da.from_array([[1, 1], [1, 3], [3, 3]], chunks=2)
    >>> dc.binned_statistic_dd(points, da.ones(3), "sum", bins=2).statistic.compute()
    array([[1., 1.],
           [0., 1.]])
    """
    if not isinstance(sample, list | tuple):
        x = asanyarray(sample)
        if x.ndim != 2:
            raise ValueError(
                f"sample of binned_statistic_dd has a row for each point, got shape {x.shape}"
            )
        sample = [x[:, i] for i in _numbers(x.shape[1])]
    name = "binned_statistic_dd"
    return BinnedStatistic(*_binned(name, sample, values, statistic, bins, range))


#: The builtin, which parameters named `range` shadow.
_numbers = range


def _binned(
    name: str, sample: Sequence[Any], values: Any, statistic: Any, bins: Any, limits: Any
) -> tuple[Any, list[Any], da.Array]:
    """Return statistics of bins, the edges, and the bins of the points."""
    samples, n = find_samples(sample, name)
    for x in samples:
        chunks.refuse_masked(name, x._meta)
    values = asanyarray(values)
    if not samples[0].ndim:
        raise ValueError(
            f"{name} takes coordinates of one axis or more, got shape (); x.reshape(1) has one"
        )
    require_known_sizes(name, *samples, values)
    names = [*statistic] if isinstance(statistic, list | tuple) else [statistic]
    for wanted in names:
        if wanted not in get_args(BinStatistic):
            known = ", ".join(get_args(BinStatistic))
            raise ValueError(f"{name} takes the statistics {known}; got {wanted!r}")
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{name} takes values that are real numbers, got dtype {values.dtype}")
    behind = values.shape[max(0, values.ndim - samples[0].ndim) :]
    if behind != samples[0].shape:
        raise ValueError(
            f"values of {name} have the shape of the coordinates, {samples[0].shape}, as their "
            f"last axes; got {values.shape}"
        )
    if isinstance(bins, list | tuple | np.ndarray):
        # SciPy's edges are floats.
        dtype = samples[0].dtype if samples[0].dtype.kind == "f" else np.dtype("f8")
        bins = [
            b if is_dask_collection(b) or not np.ndim(b) else np.asarray(b, dtype) for b in bins
        ]
    grid, shape, edges = find_grid(samples, n, bins, limits, omit=False)
    sizes = tuple(length + 2 for length in shape)
    axes = tuple(_numbers(samples[0].ndim))
    numbers = blockwise(
        _numbered,
        axes,
        *(argument for x in samples for argument in (x, axes)),
        grid=grid,
        token="binnumber",
        dtype="i8",
        meta=chunks.zeros_like(samples[0]._meta, np.dtype("i8")),
        align_arrays=False,
        **declared_by(*samples),
    )
    results = [
        _within(result, sizes) for result in _reduced(values, numbers, names, math.prod(sizes))
    ]
    return results if isinstance(statistic, list | tuple) else results[0], edges, numbers


def _within(result: da.Array, sizes: tuple[int, ...]) -> da.Array:
    """Return the results of the bins within the range, from those of all on the last axis."""
    lead = result.ndim - 1
    shape = tuple(n - 2 for n in sizes)
    return result.map_blocks(
        _within_block,
        sizes,
        drop_axis=lead,
        new_axis=[*_numbers(lead, lead + len(sizes))],
        chunks=(*result.chunks[:lead], *((n,) for n in shape)),
        dtype=result.dtype,
        meta=chunks.zeros_like(result._meta, result.dtype, lead + len(sizes)),
    )


def _reduced(values: da.Array, numbers: da.Array, names: list[str], n: int) -> list[da.Array]:
    """Return statistics of the values by the numbers of their bins, in float64."""
    groups = np.arange(n)
    results: dict[str, da.Array] = {}
    if "count" in names:
        # Integers, because values may be NaN, which is not counted.
        counts, _ = groupby_reduce(numbers, numbers, func="count", expected_groups=groups)
        counts = as_dtype(counts, "f8")
        lead = (*values.shape[: values.ndim - numbers.ndim], n)
        results["count"] = counts if len(lead) == 1 else broadcast_to(counts, lead)
    if "sum" in names:
        zero: dict[str, Any] = {"fill_value": 0, "min_count": 0, "dtype": "f8"}
        results["sum"], _ = groupby_reduce(
            values, numbers, func="sum", expected_groups=groups, **zero
        )
    others: list[Any] = [name for name in dict.fromkeys(names) if name not in results]
    if others:
        if {*others} & {"min", "max", "median"}:
            values = as_dtype(values, "f8")
        arrays, _ = groupby_reduce(
            values, numbers, func=others, expected_groups=groups, dtype=np.dtype("f8")
        )
        results |= dict(zip(others, arrays, strict=True))
    return [results[name] for name in names]


# Inside the tasks.


def _within_block(result: Any, sizes: tuple[int, ...]) -> Any:
    inside = (..., *(slice(1, -1) for _ in sizes))
    return result.reshape(*result.shape[:-1], *sizes)[inside]


@casts
def _numbered(*samples: Any, grid: Grid) -> Any:
    """Return the numbers of the bins of points, of which each axis has one more at either end."""
    numbers: Any = None
    numberings = replace(grid, flow=True).numberings
    for x, bins, numbering in zip(samples, grid.bins, numberings, strict=True):
        numbers = chunks.backend_of(x).digitize(x, Steps(bins, numbering), numbers)
    return numbers
