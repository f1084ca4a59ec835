"""The functions of the cores of xhistogram and xarray-histogram, with their signatures and options.

Functions of DataArrays call these, there, and label the results. They raise Refused for what this
library does not serve, and what the originals reject: code that puts them in the originals' places
then calls these.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array, map_blocks

from dask_coop import chunks
from dask_coop.algebra.monoids import sum_dtype
from dask_coop.api.call.planning import call_with_graphs
from dask_coop.api.call.public import strict
from dask_coop.api.call.report import counted
from dask_coop.api.histograms import histogram as histograms
from dask_coop.api.histograms import histogramdd, joint, to_hist
from dask_coop.errors import Refused
from dask_coop.graph.reduce import derive


def histogram(
    *args: Any,
    bins: Any = None,
    range: Any = None,
    axis: Any = None,
    weights: Any = None,
    density: bool = False,
    block_size: Any = "auto",
) -> tuple[Any, Any]:
    """Return the results of ``xhistogram.core.histogram``, by :func:`dask_coop.histogram`.

    `block_size` chooses how xhistogram works; here it chooses nothing.

    Raises
    ------
    Refused
        If this library, or xhistogram itself, does not support the call.
    """
    arrays = [*args, *([] if weights is None else [weights])]
    for x in arrays:
        if not isinstance(x, np.ndarray | da.Array):
            raise Refused(f"samples and weights are arrays, not {type(x).__name__}")
        if chunks.is_masked(getattr(x, "_meta", x)):
            raise Refused("xhistogram counts what is masked")
    edges = _edges(bins, [x.dtype for x in args])
    if range is not None and np.shape(range) not in ((2,), (len(args), 2)):
        raise Refused(f"range is a pair of limits, or one for each array, got {range!r}")
    if not (block_size in (None, "auto") or (isinstance(block_size, int) and block_size > 0)):
        raise Refused(f"block_size is a positive integer, 'auto' or None, got {block_size!r}")
    axes = _axes(axis, args[0].ndim)
    with counted("histogram", args[0]):
        serve = partial(_count, edges, axes, weights is not None, bool(density))
        return call_with_graphs(serve, arrays), edges


def fill(
    *data: Any, axis_loop: Any, axis_agg: Any, weight: bool, flow: bool, histref: Any
) -> Array:
    """Return the values of `histref`, which `to_hist` fills, as those of xarray-histogram's core.

    Raises
    ------
    Refused
        If there is a histogram for each position along some axes.
    """
    if axis_loop:
        raise Refused("histograms of boost-histogram are filled by all samples")
    samples = [*data[:-1]] if weight else [*data]
    filled = to_hist.to_hist(samples, histref, data[-1] if weight else None)
    shape = histref.axes.extent if flow else histref.axes.size
    dtype = "i8" if "Int64" in histref.storage_type.__name__ else "f8"
    values = derive("hist-values", partial(_values, flow, dtype), filled)
    return da.from_delayed(values, shape, dtype)


def _edges(bins: Any, dtypes: Sequence[np.dtype[Any]]) -> Any:
    """Return the edges for each array, in the list that xhistogram returns."""
    edges = [bins] * len(dtypes) if isinstance(bins, np.ndarray) else bins
    if not isinstance(edges, list | tuple) or len(edges) != len(dtypes):
        raise Refused("bins of Dask arrays are edges, for all arrays or in a list for each")
    for of_array, dtype in zip(edges, dtypes, strict=True):
        if not isinstance(of_array, np.ndarray) or of_array.ndim != 1 or of_array.size < 2:
            raise Refused("edges are arrays of one dimension with two numbers or more")
        if of_array.dtype.kind not in "iuf" or of_array.itemsize > 8:
            raise Refused(f"edges are integers or floats, not {of_array.dtype}")
        if {of_array.dtype.kind, dtype.kind} == {"i", "u"} and 8 in (
            of_array.itemsize,
            dtype.itemsize,
        ):
            raise Refused(f"xhistogram compares {dtype} with edges of {of_array.dtype} in two ways")
    return edges


def _axes(axis: Any, ndim: int) -> tuple[int, ...] | None:
    """Return the axes to count over, counted from the first one; None for all."""
    if axis is None:
        return None
    axes = tuple(map(operator.index, np.atleast_1d(axis)))
    axes = tuple(i if i >= 0 else i + ndim for i in axes)
    if not axes or not all(0 <= i < ndim for i in axes):
        raise Refused(f"axis must name axes of the first array, of {ndim} dimensions, got {axis!r}")
    return axes


def _count(
    edges: Sequence[Any],
    axes: tuple[int, ...] | None,
    weighted: bool,
    density: bool,
    arrays: Sequence[Any],
) -> Array:
    """Return the counts, sums of weights, or densities of arrays, the weights last."""
    first, *others = map(da.asanyarray, arrays)
    samples = [*da.broadcast_arrays(first, *others)] if others else [first]
    weights = None
    if weighted:
        weights = samples.pop()
        if weights.dtype.kind not in "biuf":
            raise Refused(f"weights are real, not {weights.dtype}")
        weights = weights.astype(sum_dtype(weights.dtype))
    for x in samples:
        histograms.require_samples("histogram", x)
    every = tuple(np.arange(samples[0].ndim).tolist())
    axes = every if axes is None else axes
    if len(samples) == 1:
        count = strict(histograms.histogram)
        table, _ = count(samples[0], edges[0], weights=weights, axis=axes)
    elif {*axes} == {*every} and _keep_values(samples):
        table, _ = strict(histogramdd.histogramdd)(samples, [*edges], weights=weights)
        table = table if weighted else table.astype("i8")
    else:
        table = joint.joint_counts(samples, edges, weights, axes)
    if not density:
        return table
    areas = reduce(np.multiply.outer, map(np.diff, edges))
    dtype = np.true_divide(np.empty(0, table.dtype), np.empty(0, areas.dtype)).dtype
    return map_blocks(_as_density, table, areas=areas, dtype=dtype, meta=table._meta.astype(dtype))


def _keep_values(samples: Sequence[Array]) -> bool:
    """Return whether the common dtype of samples, in which they are counted, rounds none."""
    common = np.result_type(*(x.dtype for x in samples))
    # float64, and the common dtype of smaller ones, holds all but integers of 64 bits.
    return all(x.dtype == common or x.dtype.itemsize < 8 or x.dtype.kind == "f" for x in samples)


# Inside the task.


def _values(flow: bool, dtype: str, filled: Any) -> Any:
    return filled.values(flow).astype(dtype, copy=False)


def _as_density(table: Any, areas: Any) -> Any:
    """Return a table's density, by xhistogram's formula."""
    inner = tuple(range(-areas.ndim, 0))
    areas = chunks.asarray(areas, chunks.kind(table))
    return table / areas / table.sum(inner, keepdims=True)
