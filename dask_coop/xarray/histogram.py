"""Histograms of one array, or joint ones of several, that know what their bins are of."""

from __future__ import annotations

import builtins
import math
from collections.abc import Hashable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.array.core import asanyarray, map_blocks
from dask.base import is_dask_collection
from dask.delayed import Delayed

import dask_coop
from dask_coop.api.call.labelled import relabel, spread
from dask_coop.api.call.planning import call_with_graphs
from dask_coop.api.call.public import Engine
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.xarray.objects import find_dims, is_lazy, xr


class Options(NamedTuple):
    """What a histogram is asked for besides samples, bins and dimensions."""

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
    options: Options,
    suffix: str,
) -> xr.DataArray:
    """Return the histogram of one array, or the joint one of several, with labels."""
    names = _names(arrays)
    x, samples = _beside_one_another(arrays)
    bins, range = _each("bins", bins, len(names), True), _each("range", range, len(names), False)
    dims = find_dims(x, dim)
    axes = tuple(x.dims.index(one) for one in dims)
    w = None if weights is None else _weights(x, weights)
    if len(names) == 1:
        made, edges = dask_coop.histogram(
            samples[0], bins[0], range[0], weights=w, axis=axes, **options._asdict()
        )
        found = [edges]
    elif len(axes) == x.ndim:
        made, found = dask_coop.histogramdd(samples, bins, range, weights=w, **options._asdict())
        given = zip(bins, range, found, strict=True)
        found = [one if _is_lazy(*of) else _edges(*of) for *of, one in given]
    else:
        joint = partial(_joint, names=names, bins=bins, range=range, axes=axes, options=options)
        made, found = call_with_graphs(joint, samples, weights=w)
    lazy = is_lazy(*arrays, *([] if weights is None else [weights]))
    if not lazy:
        made, found = dask.compute(made, found)
    elif any(n != n for n in made.shape):
        raise ValueError(
            f"bins={bins[0]!r} tells how many bins there are only when it is computed, and arrays "
            "with labels have a known shape; give a number or edges"
        )
    of_bins = [f"{name}{suffix}" for name in names]
    left = [one for one in x.dims if one not in dims]
    labelled = relabel(x, made, dims, [*left, *of_bins])
    labelled.attrs = {}
    for one, array, edges in zip(of_bins, arrays, found, strict=True):
        labelled = labelled.assign_coords(_coordinates(one, edges, array.attrs))
    return labelled.rename("_".join(["histogram", *map(str, names)]))


def _names(arrays: Sequence[xr.DataArray]) -> list[Hashable]:
    names = [one.name for one in arrays]
    if None in names:
        raise ValueError(
            "a histogram and its bins are named as the arrays, and one has no name; "
            "array.rename('t2m') gives it one"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"arrays of a joint histogram have names of their own, got {names}")
    return names


def _beside_one_another(arrays: Sequence[xr.DataArray]) -> tuple[xr.DataArray, list[Any]]:
    """Return an array with the dimensions of all, and the data of each in its shape and chunks."""
    if len(arrays) == 1:
        return arrays[0], [arrays[0].data]
    aligned = xr.align(*arrays, join="exact", copy=False)
    dims = list(dict.fromkeys(dim for one in aligned for dim in one.dims))
    widest = next((one for one in aligned if len(one.dims) == len(dims)), None)
    if widest is None:
        raise ValueError(
            f"one array of a joint histogram has all its dimensions, {tuple(dims)}; got "
            f"{[tuple(one.dims) for one in aligned]}: xarray.broadcast makes such"
        )
    return widest, [spread(widest, one) for one in aligned]


def _weights(x: xr.DataArray, weights: Any) -> Any:
    if not isinstance(weights, xr.DataArray | xr.Variable):
        raise TypeError(
            "weights of labelled samples are a DataArray, which is broadcast by its dimensions; "
            f"got {type(weights).__name__}"
        )
    return spread(x, weights)


def _each(what: str, given: Any, count: int, numbers: bool) -> list[Any]:
    """Return bins or ranges of each array, of which one stands for all.

    Those of an array are lines of numbers, or None, or, where `numbers` are, a number or its rule.
    """
    single = (int, np.integer, str, Delayed) if numbers else Delayed

    def is_of_one(part: Any) -> bool:
        return part is None or isinstance(part, single) or _ndim(part) == 1

    listed = isinstance(given, list | tuple)
    if listed and len(given) == count and all(map(is_of_one, given)):
        return [*given]
    # Edges in a list might be numbers of bins.
    if not is_of_one(given) or (numbers and count > 1 and listed):
        raise ValueError(
            f"{what} of {count} arrays is one for all of them, edges as an array, or a list with "
            f"one for each; got {given!r}"
        )
    return [given] * count


def _ndim(one: Any) -> int:
    """Return how many dimensions bins or a range have, without a look at what is lazy."""
    if isinstance(one, list | tuple):
        return 1 + (_ndim(one[0]) if one else 0)
    return 0 if isinstance(one, Delayed) else getattr(one, "ndim", 0)


def _joint(
    samples: Sequence[Any],
    weights: Any,
    names: Sequence[Hashable],
    bins: Sequence[Any],
    range: Sequence[Any],
    axes: tuple[int, ...],
    options: Options,
) -> tuple[Any, list[Any]]:
    """Return a joint histogram of each position along some axes, by the index of samples' bins."""
    given = [*zip(bins, range, strict=True)]
    if unknown := [name for name, of in zip(names, given, strict=True) if _is_lazy(*of)]:
        raise ValueError(
            f"a joint histogram that keeps dimensions has to know its bins: give edges, or the "
            f"range of {unknown[0]!r}"
        )
    edges = [_edges(*of) for of in given]
    lengths = [len(one) - 1 for one in edges]
    first, *others = (asanyarray(one) for one in samples)
    arrays = [first, *(one.rechunk(first.chunks) for one in others)]
    behind = [dask_coop.digitize(x, one) for x, one in zip(arrays, edges, strict=True)]
    last = [one[-1] for one in edges]
    index = map_blocks(
        _joint_index,
        *arrays,
        *behind,
        **declared_by(*arrays),
        last=last,
        lengths=lengths,
        dtype="i8",
        meta=behind[0]._meta,
    )
    total = math.prod(lengths)
    counts, _ = dask_coop.histogram(
        index,
        total,
        (0, total),
        weights=weights,
        axis=axes,
        reproducible=options.reproducible,
        engine=options.engine,
    )
    table = counts.reshape(*counts.shape[:-1], *lengths)
    if weights is None:
        # As of joint histograms over all dimensions.
        table = table.astype("f8")
    if options.density:
        inner = tuple(builtins.range(-len(lengths), 0))
        widths = [np.diff(one) for one in edges]
        table = table / table.sum(inner, keepdims=True) / reduce(np.multiply.outer, widths)
    return table, edges


def _is_lazy(bins: Any, limits: Any) -> bool:
    """Tell whether edges have to be found in the samples, or are given as what is not known."""
    return is_dask_collection(bins) or (_ndim(bins) == 0 and limits is None)


def _edges(bins: Any, limits: Any) -> Any:
    if _ndim(bins):
        return np.asarray(bins)
    low, high = limits
    return np.linspace(low, high, int(bins) + 1)


def _coordinates(name: str, edges: Any, attrs: dict[str, Any]) -> xr.Coordinates:
    """Return the centres of bins as the coordinate of their dimension, and their edges."""
    left, right = edges[:-1], edges[1:]
    variables = {
        name: xr.Variable(name, left + (right - left) / 2, attrs),
        f"{name}_left": xr.Variable(name, left, attrs),
        f"{name}_right": xr.Variable(name, right, attrs),
    }
    # An index would have to be computed.
    known = isinstance(edges, np.ndarray)
    return xr.Coordinates(variables) if known else xr.Coordinates(variables, indexes={})


# Inside tasks.


@casts
def _joint_index(*blocks: Any, last: Sequence[Any], lengths: Sequence[int]) -> Any:
    """Return which bin of a table samples are in, in C order, or -1 for none.

    `blocks` are samples along each coordinate, and then how many edges are not behind them.
    """
    index: Any = 0
    inside: Any = True
    count = len(lengths)
    for x, behind, edge, n in zip(blocks[:count], blocks[count:], last, lengths, strict=True):
        # The last bin holds its right edge, and NaN is behind all bins.
        own = behind - (x == edge) - 1
        index, inside = index * n + own, inside & (own >= 0) & (own < n)
    return index * inside - ~inside
