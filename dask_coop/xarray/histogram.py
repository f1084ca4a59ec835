"""Compute histograms of one array, or joint ones of several, with named bins."""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.array.core import asanyarray
from dask.base import is_dask_collection
from dask.delayed import Delayed

import dask_coop
from dask_coop.api.call.labelled import relabel, spread
from dask_coop.api.call.planning import call_with_graphs
from dask_coop.api.call.public import Engine
from dask_coop.api.histograms.joint import joint_counts
from dask_coop.xarray.objects import find_dims, is_lazy, xr


class HistogramOptions(NamedTuple):
    """Parameters of a histogram besides samples, bins and dimensions."""

    density: bool
    nan: str
    reproducible: bool
    engine: Engine


def histogram(
    arrays: Sequence[xr.DataArray],
    bins: Any,
    range: Any,
    dim: Any,
    weights: xr.DataArray | None,
    options: HistogramOptions,
    suffix: str,
) -> xr.DataArray:
    """Return the histogram of one array, or the joint one of several, with labels."""
    names = _names(arrays)
    x, samples = _aligned(arrays)
    bins = _for_each_array("bins", bins, len(names), True)
    range = _for_each_array("range", range, len(names), False)
    dims = find_dims(x, dim)
    axes = tuple(x.dims.index(d) for d in dims)
    w = None if weights is None else _weights(x, weights)
    if len(names) == 1:
        counts, only_edges = dask_coop.histogram(
            samples[0], bins[0], range[0], weights=w, axis=axes, **options._asdict()
        )
        edges = [only_edges]
    elif len(axes) == x.ndim:
        counts, edges = dask_coop.histogramdd(samples, bins, range, weights=w, **options._asdict())
        edges = [
            lazy_edges if _is_lazy(of_array, limits) else _edges(of_array, limits)
            for of_array, limits, lazy_edges in zip(bins, range, edges, strict=True)
        ]
    else:
        joint = partial(_joint, names=names, bins=bins, range=range, axes=axes, options=options)
        counts, edges = call_with_graphs(joint, samples, weights=w)
    lazy = is_lazy(*arrays, *([] if weights is None else [weights]))
    if not lazy:
        counts, edges = dask.compute(counts, edges)
    elif any(n != n for n in counts.shape):
        raise ValueError(
            f"bins={bins[0]!r} tells how many bins there are only when it is computed, and arrays "
            "with labels have a known shape; give a number or edges"
        )
    bin_dims = [f"{name}{suffix}" for name in names]
    left = [d for d in x.dims if d not in dims]
    labelled = relabel(x, counts, dims, [*left, *bin_dims])
    labelled.attrs = {}
    for name, array, of_array in zip(bin_dims, arrays, edges, strict=True):
        labelled = labelled.assign_coords(_coordinates(name, of_array, array.attrs))
    return labelled.rename("_".join(["histogram", *map(str, names)]))


def _names(arrays: Sequence[xr.DataArray]) -> list[Hashable]:
    names = [array.name for array in arrays]
    if None in names:
        raise ValueError(
            "a histogram and its bins are named as the arrays, and one has no name; "
            "array.rename('t2m') gives it one"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"arrays of a joint histogram have names of their own, got {names}")
    return names


def _aligned(arrays: Sequence[xr.DataArray]) -> tuple[xr.DataArray, list[Any]]:
    """Return the array that has all dimensions, and the data of each in its shape and chunks."""
    if len(arrays) == 1:
        return arrays[0], [arrays[0].data]
    aligned = xr.align(*arrays, join="exact", copy=False)
    dims = list(dict.fromkeys(dim for array in aligned for dim in array.dims))
    widest = next((array for array in aligned if len(array.dims) == len(dims)), None)
    if widest is None:
        raise ValueError(
            f"one array of a joint histogram has all its dimensions, {tuple(dims)}; got "
            f"{[tuple(array.dims) for array in aligned]}: xarray.broadcast makes such"
        )
    return widest, [spread(widest, array) for array in aligned]


def _weights(x: xr.DataArray, weights: Any) -> Any:
    if not isinstance(weights, xr.DataArray | xr.Variable):
        raise TypeError(
            "weights of labelled samples are a DataArray, which is broadcast by its dimensions; "
            f"got {type(weights).__name__}"
        )
    return spread(x, weights)


def _for_each_array(name: str, value: Any, count: int, numbers: bool) -> list[Any]:
    """Return the bins or range of each array, from one value for all or a list.

    A value is None or a line of numbers or, if `numbers`, a number or the name of a rule for it.
    """
    single = (int, np.integer, str, Delayed) if numbers else Delayed

    def is_one_value(item: Any) -> bool:
        return item is None or isinstance(item, single) or _ndim(item) == 1

    listed = isinstance(value, list | tuple)
    if listed and len(value) == count and all(map(is_one_value, value)):
        return [*value]
    # A list for several arrays could be edges or numbers of bins.
    if not is_one_value(value) or (numbers and count > 1 and listed):
        raise ValueError(
            f"{name} of {count} arrays is one for all of them, edges as an array, or a list with "
            f"one for each; got {value!r}"
        )
    return [value] * count


def _ndim(value: Any) -> int:
    """Return the number of dimensions of bins or a range, without computing lazy ones."""
    if isinstance(value, list | tuple):
        return 1 + (_ndim(value[0]) if value else 0)
    return 0 if isinstance(value, Delayed) else getattr(value, "ndim", 0)


def _joint(
    samples: Sequence[Any],
    weights: Any,
    names: Sequence[Hashable],
    bins: Sequence[Any],
    range: Sequence[Any],
    axes: tuple[int, ...],
    options: HistogramOptions,
) -> tuple[Any, list[Any]]:
    """Return a joint histogram for each position along the other axes, and its edges."""
    if unknown := [name for name, *of in zip(names, bins, range, strict=True) if _is_lazy(*of)]:
        raise ValueError(
            f"a joint histogram that keeps dimensions has to know its bins: give edges, or the "
            f"range of {unknown[0]!r}"
        )
    edges = [*map(_edges, bins, range)]
    first, *others = map(asanyarray, samples)
    table = joint_counts(
        [first, *(array.rechunk(first.chunks) for array in others)],
        edges,
        weights,
        axes,
        reproducible=options.reproducible,
        engine=options.engine,
    )
    if weights is None:
        # As joint histograms over all dimensions.
        table = table.astype("f8")
    if options.density:
        inner = tuple(builtins.range(-len(edges), 0))
        widths = [*map(np.diff, edges)]
        table = table / table.sum(inner, keepdims=True) / reduce(np.multiply.outer, widths)
    return table, edges


def _is_lazy(bins: Any, limits: Any) -> bool:
    """Return whether edges depend on the samples, or are lazy themselves."""
    return is_dask_collection(bins) or (_ndim(bins) == 0 and limits is None)


def _edges(bins: Any, limits: Any) -> Any:
    if _ndim(bins):
        return np.asarray(bins)
    low, high = limits
    return np.linspace(low, high, int(bins) + 1)


def _coordinates(name: str, edges: Any, attrs: dict[str, Any]) -> xr.Coordinates:
    """Return the coordinate of a dimension of bins, their centres, and those of their edges."""
    left, right = edges[:-1], edges[1:]
    variables = {
        name: xr.Variable(name, left + (right - left) / 2, attrs),
        f"{name}_left": xr.Variable(name, left, attrs),
        f"{name}_right": xr.Variable(name, right, attrs),
    }
    # An index of lazy edges would have to be computed.
    known = isinstance(edges, np.ndarray)
    return xr.Coordinates(variables) if known else xr.Coordinates(variables, indexes={})
