"""Label results as xarray's arrays are: with names, dimensions, coordinates and attributes.

::

    DataArray --its data--> the function --> arrays --> DataArrays
        |                                                   ^
        +------- remaining dimensions and coordinates ------+

xarray itself decides which coordinates remain when dimensions are lost. Results without dimensions
of the array, such as histograms, distinct values and scans of flattened arrays, are Dask arrays.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from dask.array.core import asanyarray, broadcast_to
from dask.array.utils import validate_axis
from dask.base import is_dask_collection
from dask.delayed import Delayed

from dask_coop import chunks
from dask_coop.api.call.planning import call_with_graphs, convert_parts

P = ParamSpec("P")
R = TypeVar("R")

#: Public functions other than reductions and scans whose results have the shape of the array.
_ALIKE = {
    *(f"move_{name}" for name in ("sum", "mean", "std", "var", "min", "max", "median")),
    *(f"move_{name}" for name in ("quantile", "rank", "argmin", "argmax", "cov", "corr")),
    *("box_filter", "integral_image", "groupby_scan", "digitize", "isin", "to_gpu", "to_host"),
}
#: Functions that reorder elements along an axis, so that its coordinates are lost.
_ALONG = {"topk", "argtopk", "sort", "argsort"}
#: Parameters that are aligned with the elements by the names of their dimensions.
_BESIDE = ("where", "weights", "segments", "values", "y")


def with_labels(function: Callable[P, R], kind: str) -> Callable[P, R]:
    """Return a public function whose first argument may also be a DataArray or a Variable."""
    signature = inspect.signature(function)
    first = next(iter(signature.parameters))

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not is_labelled(args[0] if args else kwargs.get(first)):
            return function(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # raises its own TypeError
        result: R = _call(function, kind, bound)
        return result

    return call


def is_labelled(x: Any) -> bool:
    """Tell whether an argument is a DataArray or a Variable, without importing xarray."""
    xarray = sys.modules.get("xarray")
    return isinstance(x, (getattr(xarray, "DataArray", ()), getattr(xarray, "Variable", ())))


def _call(function: Callable[..., Any], kind: str, bound: inspect.BoundArguments) -> Any:
    """Call a public function with the data of its first argument, and label its result."""
    first, *others = bound.arguments
    x = bound.arguments[first]
    for name in others:
        value = bound.arguments[name]
        convert = partial(spread, x) if name in _BESIDE else _data
        if name == "segments" and is_labelled(value):
            axis = bound.arguments.get("axis", bound.signature.parameters["axis"].default)
            # Scans apply the segments of one line to all lines.
            line = () if axis is None else x.dims[axis : axis + 1 or None]
            convert = partial(spread, x, dims=line if line == value.dims else None)
        parts = value if isinstance(value, tuple) else (value,)
        converted = tuple(convert(part) if is_labelled(part) else part for part in parts)
        bound.arguments[name] = converted if isinstance(value, tuple) else converted[0]
    bound.arguments[first] = x.data
    result = function(*bound.args, **bound.kwargs)
    bound.apply_defaults()
    if bound.arguments.get("return_state"):
        return result
    label = _labels(function.__name__, kind, bound.arguments, x)
    if label is None:
        return result
    return convert_parts(lambda part: None if part is None else label(part), result)


def relabel(
    x: Any,
    data: Any,
    lost: Iterable[Hashable],
    dims: Sequence[Hashable],
    coords: Mapping[Hashable, Any] | None = None,
) -> Any:
    """Return a result with the labels of the input array `x`.

    Parameters
    ----------
    x : DataArray or Variable
    data : array_like
    lost : iterable of hashable
        The dimensions of `x` whose coordinates the result does not have.
    dims : sequence of hashable
        The dimensions of `data`.
    coords : mapping, optional
        Coordinates to add to the remaining ones of `x`.
    """
    xarray = sys.modules["xarray"]
    axes = tuple(x.dims.index(dim) for dim in lost)
    remaining = np.broadcast_to(0, [n for d, n in enumerate(x.shape) if d not in axes])
    # xarray decides which coordinates, indexes and attributes remain after a reduction.
    template = x.reduce(lambda *_, **__: remaining, axis=axes)
    variable = xarray.Variable(dims, data, template.attrs)
    if not isinstance(x, xarray.DataArray):
        return variable
    # Through a variable: a DataArray without a name would take the Dask array's name.
    labelled = xarray.DataArray(variable, template.coords, name=x.name)
    return labelled.assign_coords(coords) if coords else labelled


def spread(x: Any, other: Any, dims: Sequence[Hashable] | None = None) -> Any:
    """Return the data of `other` in the shape and the chunks of `x`, along `dims` or all.

    Raises
    ------
    ValueError
        If `other` has a dimension that `x` lacks, or a different index along one.
    """
    xarray = sys.modules["xarray"]
    if unknown := [dim for dim in other.dims if dim not in x.dims]:
        raise ValueError(
            f"an array with dimensions {other.dims} lies beside one with {x.dims}, which has no "
            f"dimension {unknown[0]!r}"
        )
    if isinstance(x, xarray.DataArray) and isinstance(other, xarray.DataArray):
        xarray.align(x, other, join="exact", copy=False)
    dims = x.dims if dims is None else dims
    data = other.transpose(*(dim for dim in dims if dim in other.dims)).data
    missing = [d for d, dim in enumerate(dims) if dim not in other.dims]
    shape = tuple(x.sizes[dim] for dim in dims)
    sizes = None if x.chunks is None else tuple(x.chunksizes[dim] for dim in dims)
    return call_with_graphs(_spread, data, x.data, missing, shape, sizes)


def _spread(
    data: Any, like: Any, missing: Sequence[int], shape: tuple[int, ...], sizes: Any
) -> Any:
    """Return `data` in the kind of chunks of `like`, repeated along the `missing` axes."""
    meta = getattr(like, "_meta", like)
    kind = chunks.kind(meta)
    if chunks.kind(getattr(data, "_meta", data)) != kind:
        # Coordinates are always NumPy's.
        data = asanyarray(data)
        there = chunks.zeros_like(meta, data.dtype, data.ndim)
        data = data.map_blocks(chunks.asarray, kind, dtype=data.dtype, meta=there)
    if not missing:
        return data
    data = asanyarray(data)[tuple(None if d in missing else slice(None) for d in range(len(shape)))]
    if sizes is None:
        return broadcast_to(data, shape)
    unspread = tuple((1,) if d in missing else along for d, along in enumerate(sizes))
    return broadcast_to(data.rechunk(unspread), shape, sizes)


def _data(x: Any) -> Any:
    return x.data


def _labels(
    name: str, kind: str, arguments: Mapping[str, Any], x: Any
) -> Callable[[Any], Any] | None:
    """Return a function that labels results of a public function, or None if no labels remain."""
    axis = arguments.get("axis")
    if kind == "reduction":
        return _labels_of_reduction(name, arguments, x)
    if name == "transpose":
        order = range(x.ndim)[::-1] if arguments["axes"] is None else arguments["axes"]
        moved = x.transpose(*(x.dims[d] for d in order))
        return lambda data: moved.copy(data=data)
    if name in _ALIKE:
        return partial(relabel, x, lost=(), dims=x.dims)
    if (kind == "scan" or name in {"rankdata", *_ALONG}) and (axis is not None or x.ndim == 1):
        along = x.dims[validate_axis(0 if axis is None else axis, x.ndim)]

        def label(data: Any) -> Any:
            # A scan that includes the initial state is longer than its input.
            same = name not in _ALONG and data.shape == x.shape
            return relabel(x, data, () if same else (along,), x.dims)

        return label
    return None


def _labels_of_reduction(name: str, arguments: Mapping[str, Any], x: Any) -> Callable[[Any], Any]:
    axis = arguments["axis"]
    axes = axis if isinstance(axis, tuple | list) else range(x.ndim) if axis is None else (axis,)
    lost = [x.dims[d] for d in validate_axis(tuple(axes), x.ndim)]
    dims = [dim for dim in x.dims if arguments["keepdims"] or dim not in lost]
    if "q" not in arguments:
        return partial(relabel, x, lost=lost, dims=dims)
    q = arguments["q"]
    # A Delayed stands for one number.
    ndim = 0 if isinstance(q, Delayed) else np.ndim(q)
    if ndim > 1:
        raise ValueError(
            f"{name} of an array with labels takes a q of one dimension at most, got {ndim}; its "
            "data takes others"
        )
    dims = ["quantile", *dims] if ndim else dims
    if is_dask_collection(q):
        return partial(relabel, x, lost=lost, dims=dims)
    fractions = np.asarray(q, "f8") / (100 if "percentile" in name else 1)
    coordinate = ("quantile", fractions) if fractions.ndim else fractions
    return partial(relabel, x, lost=lost, dims=dims, coords={"quantile": coordinate})
