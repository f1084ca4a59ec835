"""Measure labelled regions of pictures and volumes, by the names of SciPy and dask-image.

Each function is one or few statistics of groups, which come from one read of the picture::

    mean(x, labels, [1, 2])       the mean of the elements labelled 1, and of those labelled 2
    mean(x, labels, 1)            the former alone, without axes
    mean(x, labels)               the mean of all elements with labels above 0
    mean(x)                       the mean of all elements

`labels` are NumPy's, or lazy as of :func:`dask_coop.label`, in the shape of the picture. `index` is
known: numbers of labels in any shape, in any order. Pictures are of bool, integers or floats, in
NumPy or CuPy chunks of any number of dimensions and any lengths. Results are lazy, in the shape of
`index`; statistics are float64. They are those of ``scipy.ndimage``, but where a region has NaN,
which makes its results NaN, and where several elements are extrema, of which the first in C order
has the position.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import dask.array as da
import numpy as np
from dask.array.core import Array, asanyarray, blockwise, broadcast_to, map_blocks
from dask.array.creation import arange
from dask.array.numpy_compat import moveaxis
from dask.array.wrap import zeros
from dask.base import is_dask_collection
from dask.delayed import Delayed, delayed

from dask_coop import chunks
from dask_coop.api.arguments import as_dtype, has_unknown_size
from dask_coop.api.call.planning import call_with_graphs
from dask_coop.api.groups.reduce import groupby_reduce
from dask_coop.api.histograms.histogram import histogram as histogram_of_all
from dask_coop.api.histograms.histogramdd import histogram2d
from dask_coop.api.pictures.label import label
from dask_coop.chunks.dtypes import casts, declared_by

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "area",
    "center_of_mass",
    "extrema",
    "find_objects",
    "histogram",
    "label",
    "maximum",
    "maximum_position",
    "mean",
    "median",
    "minimum",
    "minimum_position",
    "standard_deviation",
    "sum_labels",
    "variance",
]

#: Make the results of regions without elements 0, in any dtype: False widens none.
_ZERO: dict[str, Any] = {"fill_value": False, "min_count": 0}


#: The sections of docstrings that functions of regions have in common.
_SECTIONS = """

Parameters
----------
input : dask.array.Array or array_like
    Bool, integers or floats, in NumPy or CuPy chunks.
labels : array_like or dask.array.Array, optional
    The labels of the elements, in the shape of `input`. By default all elements are one region.
index : int or array_like of int, optional
    The labels of the regions to measure; by default one region of all elements above 0.

Returns
-------
dask.array.Array
    Lazy, in the shape of `index`.

Raises
------
TypeError
    If `input` is masked or not of real numbers, or `index` is lazy.
ValueError
    If `labels` have another shape than `input`, this has no axis, or the lengths of chunks are
    unknown.
"""


def _of_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that also takes arrays of expressions, and then returns such."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return call_with_graphs(function, *args, **kwargs)

    if [*inspect.signature(function).parameters] == ["input", "labels", "index"]:
        call.__doc__ = inspect.cleandoc(function.__doc__ or "") + _SECTIONS
    return call


@_of_graphs
def sum_labels(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the sum of the elements of each region; 0 if there are none."""
    (result,) = _measured("sum_labels", input, labels, index, ["sum"], dtype="f8", **_ZERO)
    return result


@_of_graphs
def area(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the number of elements of each region, int64."""
    x = asanyarray(input)
    like = chunks.zeros_like(x._meta, np.dtype("?"))
    ones = x.map_blocks(np.zeros_like, "?", dtype="?", meta=like)
    (result,) = _measured("area", ones, labels, index, ["count"])
    return result


@_of_graphs
def mean(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the mean of the elements of each region; NaN if there are none."""
    (result,) = _measured("mean", input, labels, index, ["mean"], dtype="f8")
    return result


@_of_graphs
def variance(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the variance of the elements of each region; NaN if there are none."""
    (result,) = _measured("variance", input, labels, index, ["var"], dtype="f8")
    return result


@_of_graphs
def standard_deviation(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the standard deviation of the elements of each region; NaN if there are none."""
    (result,) = _measured("standard_deviation", input, labels, index, ["std"], dtype="f8")
    return result


@_of_graphs
def median(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the median of the elements of each region; NaN if there are none."""
    x = as_dtype(_real("median", input), "f8")
    (result,) = _measured("median", x, labels, index, ["median"])
    return result


@_of_graphs
def minimum(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the smallest element of each region, of the picture's dtype; 0 if there are none."""
    (result,) = _extrema("minimum", input, labels, index, ["min"])
    return result


@_of_graphs
def maximum(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the largest element of each region, of the picture's dtype; 0 if there are none."""
    (result,) = _extrema("maximum", input, labels, index, ["max"])
    return result


@_of_graphs
def minimum_position(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the place of the smallest element of each region; zeros if there are none.

    The last axis has an index for each axis of the picture.
    """
    (at,) = _extrema("minimum_position", input, labels, index, ["argmin"])
    return _places(at, _shape(input))


@_of_graphs
def maximum_position(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the place of the largest element of each region; zeros if there are none.

    The last axis has an index for each axis of the picture.
    """
    (at,) = _extrema("maximum_position", input, labels, index, ["argmax"])
    return _places(at, _shape(input))


@_of_graphs
def extrema(
    input: Any, labels: Any = None, index: Any = None
) -> tuple[da.Array, da.Array, da.Array, da.Array]:
    """Return minima, maxima and the places of both, in one read."""
    funcs = ["min", "max", "argmin", "argmax"]
    low, high, first, last = _extrema("extrema", input, labels, index, funcs)
    shape = _shape(input)
    return low, high, _places(first, shape), _places(last, shape)


@_of_graphs
def center_of_mass(input: Any, labels: Any = None, index: Any = None) -> da.Array:
    """Return the mean place of the elements of each region, weighted by these.

    The last axis has a coordinate for each axis of the picture. Where elements add up to 0, it is
    NaN or infinite.
    """
    x = _real("center_of_mass", input)
    _require_lengths("center_of_mass", input=x)
    axes = tuple(range(x.ndim))
    coordinates = [
        argument
        for axis, sizes in enumerate(x.chunks)
        for argument in (arange(x.shape[axis], chunks=(sizes,)), (axis,))
    ]
    moments = blockwise(
        _moments,
        (x.ndim, *axes),
        *(x, axes, *coordinates),
        new_axes={x.ndim: x.ndim + 1},
        dtype="f8",
        meta=chunks.zeros_like(x._meta, np.dtype("f8"), x.ndim + 1),
        align_arrays=False,
        **declared_by(x),
    )
    options = {"dtype": "f8", **_ZERO}
    (sums,) = _measured("center_of_mass", moments, labels, index, ["sum"], 1, **options)
    centres = sums.map_blocks(_divided, chunks=((x.ndim,), *sums.chunks[1:]), dtype="f8")
    return moveaxis(centres, 0, -1)


@_of_graphs
def histogram(
    input: Any, min: float, max: float, bins: int, labels: Any = None, index: Any = None
) -> da.Array:
    """Return the counts of each region's elements in `bins` bins of equal width.

    The bins are along the last axis. SciPy's result for a label that no element has is None;
    here its counts are 0.
    """
    x, edges = _real("histogram", input), np.linspace(min, max, bins + 1)
    if labels is None:
        counts, _ = histogram_of_all(x, edges)
        return counts
    _require_lengths("histogram", input=x, labels=labels)
    labels, groups, inverse = _wanted("histogram", labels, index)
    if not groups.size:
        return zeros((*inverse.shape, bins), dtype="i8")
    # A bin for each label, and one between any two.
    sides = np.stack([groups, groups + 0.5], 1).reshape(-1)
    beside = broadcast_to(asanyarray(labels), x.shape).rechunk(x.chunks)
    counts, *_ = histogram2d(_alike(beside, x), x, [sides, edges])
    return counts.astype("i8")[::2][inverse.reshape(-1)].reshape(*inverse.shape, bins)


@_of_graphs
def find_objects(labels: Any, max_label: int = 0) -> Delayed:
    """Return a lazy list of the slices around each region, None for labels that do not occur.

    The list ends with `max_label`, or, if that is 0, with the largest label. It is that of
    ``scipy.ndimage.find_objects``, once it is computed.
    """
    x = asanyarray(labels)
    if x.dtype.kind not in "iu":
        raise TypeError(f"find_objects takes labels that are integers, got dtype {x.dtype}")
    _require_axes("find_objects", "labels", x.shape)
    _require_lengths("find_objects", labels=x)
    axes = tuple(range(x.ndim))
    coordinates = [
        argument
        for axis, sizes in enumerate(x.chunks)
        for argument in (arange(x.shape[axis], chunks=(sizes,)), (axis,))
    ]
    places = blockwise(
        _coordinates,
        (x.ndim, *axes),
        *(x, axes, *coordinates),
        new_axes={x.ndim: x.ndim},
        dtype="i8",
        meta=chunks.zeros_like(x._meta, np.dtype("i8"), x.ndim + 1),
        align_arrays=False,
    )
    (first, last), groups = groupby_reduce(places, x, func=["min", "max"])
    return delayed(_slices)(first, last, groups, int(max_label))


def _real(caller: str, input: Any) -> da.Array:
    """Return a picture as a Dask array of real numbers."""
    x = asanyarray(input)
    if x.dtype.kind not in "biuf":
        raise TypeError(f"{caller} takes bool, integers and floats, got dtype {x.dtype}")
    return x


def _require_axes(caller: str, argument: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError for a shape without axes."""
    if not shape:
        raise ValueError(
            f"{caller} takes {argument} of one axis or more, got shape (); x.reshape(1) has one"
        )


def _require_lengths(caller: str, **arguments: Any) -> None:
    """Raise ValueError if the lengths of an argument's chunks are unknown."""
    for argument, x in arguments.items():
        if isinstance(x, Array) and has_unknown_size(x):
            raise ValueError(
                f"{caller} needs to know the lengths of chunks of {argument}; "
                "x.compute_chunk_sizes() finds them"
            )


def _extrema(
    caller: str, input: Any, labels: Any, index: Any, funcs: Sequence[Any]
) -> list[da.Array]:
    return _measured(caller, input, labels, index, funcs, **_ZERO)


def _measured(
    caller: str,
    input: Any,
    labels: Any,
    index: Any,
    funcs: Sequence[Any],
    rows: int = 0,
    **options: Any,
) -> list[da.Array]:
    """Return statistics of regions, in the shape of `index` behind the first `rows` axes."""
    x = _real(caller, input)
    _require_axes(caller, "input", x.shape[rows:])
    _require_lengths(caller, input=x, labels=labels)
    if labels is None:
        labels, groups = np.zeros((1,) * (x.ndim - rows), "i8"), np.zeros(1, "i8")
        inverse = np.zeros((), "i8")
    else:
        labels, groups, inverse = _wanted(caller, labels, index)
    shape = _shape(labels)
    if len(shape) != x.ndim - rows or any(
        n not in (1, length) for n, length in zip(shape, x.shape[rows:], strict=True)
    ):
        raise ValueError(
            f"{caller} takes labels in the shape of the picture, {x.shape[rows:]}, got {shape}"
        )
    if not groups.size:
        return [zeros((*x.shape[:rows], *inverse.shape), dtype="f8") for _ in funcs]
    results, _ = groupby_reduce(x, labels, func=[*funcs], expected_groups=groups, **options)
    before = (slice(None),) * rows
    if not inverse.ndim:
        return [result[(*before, int(inverse))] for result in results]
    flat = inverse.reshape(-1)
    if not np.array_equal(flat, np.arange(len(groups))):
        results = [result[(*before, flat)] for result in results]
    shape = inverse.shape
    return [r if len(shape) == 1 else r.reshape(*r.shape[:rows], *shape) for r in results]


def _wanted(caller: str, labels: Any, index: Any) -> tuple[Any, Any, Any]:
    """Return labels, the distinct labels that are wanted, and where each of `index` is among them.

    Without an index, labels are whether they are above 0.
    """
    labels = labels if is_dask_collection(labels) else np.asarray(labels)
    if index is None and is_dask_collection(labels):
        # Dask's own comparison loses blocks where some are empty.
        like = chunks.zeros_like(labels._meta, np.dtype("?"))
        labels = map_blocks(_positive, labels, dtype="?", meta=like, **declared_by(labels))
        return labels, np.ones(1, "?"), np.zeros((), "i8")
    if index is None:
        return labels > 0, np.ones(1, "?"), np.zeros((), "i8")
    if is_dask_collection(index):
        raise TypeError(f"{caller} takes an index that is known, got {index!r}; compute it first")
    index = np.asarray(index)
    groups, inverse = np.unique(index, return_inverse=True)
    return labels, groups, inverse.reshape(index.shape)


def _shape(x: Any) -> tuple[int, ...]:
    # NumPy's function would look for one of Dask's, which query planning lacks.
    return x.shape if is_dask_collection(x) else np.shape(x)


def _places(at: da.Array, shape: tuple[int, ...]) -> da.Array:
    """Return places in an array of a shape along a new last axis, of its indices in C order."""
    axes = tuple(range(at.ndim))
    return blockwise(
        _unravelled,
        (*axes, at.ndim),
        *(at, axes),
        new_axes={at.ndim: len(shape)},
        shape=shape,
        dtype="i8",
        meta=chunks.zeros_like(at._meta, np.dtype("i8"), at.ndim + 1),
    )


def _alike(labels: da.Array, x: da.Array) -> da.Array:
    """Return labels in chunks of the kind of the picture's."""
    kind = chunks.kind(x._meta)
    if chunks.kind(labels._meta) == kind:
        return labels
    return labels.map_blocks(
        chunks.asarray, kind, dtype=labels.dtype, meta=chunks.zeros_like(x._meta, labels.dtype)
    )


# Inside the tasks.


@casts
def _positive(labels: Any) -> Any:
    return labels > 0


@casts
def _moments(x: Any, *coordinates: Any) -> Any:
    """Return the elements of a block, then their products with each coordinate."""
    x = x.astype("f8", copy=False)
    return np.stack([x, *(x * place for place in _open(x, coordinates))])


def _coordinates(x: Any, *coordinates: Any) -> Any:
    """Return the coordinates of the elements of a block."""
    return np.stack([np.broadcast_to(place, x.shape) for place in _open(x, coordinates)])


def _open(x: Any, coordinates: Sequence[Any]) -> list[Any]:
    """Return coordinates along each axis in shapes that broadcast to a block."""
    kind = chunks.kind(x)
    return [
        chunks.asarray(np.asarray(place), kind).reshape(
            [-1 if d == axis else 1 for d in range(x.ndim)]
        )
        for axis, place in enumerate(coordinates)
    ]


def _divided(sums: Any) -> Any:
    with np.errstate(all="ignore"):
        return sums[1:] / sums[:1]


def _unravelled(at: Any, *, shape: tuple[int, ...]) -> Any:
    # A picture without elements has no places; they are zeros then.
    at, lengths = np.maximum(at, 0), [max(n, 1) for n in shape]
    steps = [math.prod(lengths[axis + 1 :]) for axis in range(len(shape))]
    return np.stack([at // step % n for step, n in zip(steps, lengths, strict=True)], -1)


def _slices(first: Any, last: Any, groups: Any, most: int) -> list[Any]:
    """Return SciPy's list of slices from the first and the last places of each label."""
    low, high, labels = (chunks.asarray(part, "numpy") for part in (first, last, groups))
    places = {
        int(label): tuple(
            slice(int(a), int(b) + 1) for a, b in zip(low[:, i], high[:, i], strict=True)
        )
        for i, label in enumerate(labels)
    }
    count = most or max(places, default=0)
    return [places.get(number) for number in range(1, count + 1)]
