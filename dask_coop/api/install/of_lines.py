"""xarray's functions of whole lines, which it refuses where a line lies in several chunks.

xarray passes a function of NumPy arrays, and the dimensions that it needs whole, to one function,
which this module replaces for the functions in a table::

    x.interpolate_na("time")  --.                            .--> ours, chunk by chunk
    x.interp(time=t)          ----> apply_variable_ufunc  ---|
    x.rank("time")            --'                            '--> xarray's, of gathered lines
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array, asanyarray
from dask.base import is_dask_collection

from dask_coop.api import fills, interpolation, ranks, windows
from dask_coop.api.arguments import as_dtype
from dask_coop.api.call.fallback import dasks, is_left_to_dask
from dask_coop.api.call.planning import with_expressions
from dask_coop.api.call.public import strict, taking_arrays
from dask_coop.api.call.report import counted, differing
from dask_coop.api.topk import is_too_long
from dask_coop.errors import Refused
from dask_coop.graph.line_quantiles import gathered


class Lines(NamedTuple):
    """A function of lines.

    Attributes
    ----------
    name : str
        The method of xarray that applies it.
    ours : callable
        Takes the function with its keywords, the keywords of xarray's call, and the arrays, and
        returns the result of a Dask array. It raises `Refused` for calls that it does not support.
    gathers : bool
        Whether lines are gathered if `ours` refuses a call; xarray gathers others itself.
    differs : str
        How results may differ from xarray's, for `report`.
    """

    name: str
    ours: Callable[..., Any]
    gathers: bool = True
    differs: str = ""


def _fill(function: Any, options: dict[str, Any], y: Any, x: Any) -> Any:
    """Return an array with its gaps interpolated."""
    others = {key: value for key, value in function.keywords.items() if value is not None}
    method = others.pop("method", None)
    if method not in ("linear", "nearest") or others:
        raise Refused(f"gaps are not interpolated by {method} with {others}")
    return interpolation.fill_between(y, x, method)


def may_fill(arr: Any, dim: Any, limit: int) -> Any:
    """Return which elements `limit=` leaves to `interpolate_na`: not those after so many gaps."""
    missing = arr.isnull()
    axis = arr.get_axis_num(dim)
    with differing("chunks are the array's, where xarray cuts others"):
        counts = strict(windows.move_sum)(missing.data, limit + 1, 1, axis)
    return missing.copy(data=counts <= limit)


def lengths(obj: Any, dim: Any, index: Any) -> Any:
    """Return the length of the gap that each element is in, for `max_gap=` of `interpolate_na`."""
    x = obj.transpose(..., dim)
    of_gaps = taking_arrays(interpolation.fill_between)(x.data, np.asarray(index), "length")
    return x.copy(data=of_gaps).transpose(*obj.dims)


def fills_lazily(x: Any, *args: Any) -> bool:
    """Return whether `may_fill` and `lengths` concern an array."""
    return _is_lazy(x) and not is_left_to_dask()


def _interpolate(function: Any, options: dict[str, Any], *arrays: Any) -> Any:
    """Return values between positions."""
    if len(arrays) != 3 or options["vectorize"]:
        raise Refused("interp takes one dimension at a time")
    y, *positions = arrays
    x, at = map(_known, positions)
    if function.keywords["interp_kwargs"].get("method") not in ("linear", "nearest"):
        raise Refused("interp is linear or nearest; other methods look at all elements")
    (dtype,) = options["output_dtypes"]
    return interpolation.values_at(function, y, x, at, np.dtype(dtype))


def _known(positions: Any) -> Any:
    """Return positions that are in memory as NumPy's; xarray has them in a chunk of Dask's."""
    if isinstance(positions, np.ndarray):
        return positions
    held = [value for value in dict(positions.dask).values() if hasattr(value, "shape")]
    array: Any = held[0] if len(held) == positions.npartitions == 1 else None
    in_memory = (np.ndarray, sys.modules["pandas"].Index)
    while hasattr(array, "array") and not isinstance(array, in_memory):
        array = array.array
    if not isinstance(array, in_memory) or len(positions.dask) > 2:
        raise Refused("interp takes positions that are in memory")
    return positions.compute(scheduler="sync")


def _exponential(function: Any, options: dict[str, Any], *arrays: Any) -> Any:
    """Return an exponentially weighted statistic of an array, or of two."""
    if function.keywords.keys() != {"alpha", "axis"}:
        raise Refused("exponential windows have no min_weight")
    # numbagg's dtypes depend on its version.
    of_numbagg = function(*(np.zeros(1, x.dtype) for x in arrays)).dtype
    name = function.func.__name__.removeprefix("move_exp_nan")
    converted = (as_dtype(asanyarray(x), of_numbagg) for x in arrays)
    return strict(_WEIGHTED[name])(*converted, axis=-1, alpha=function.keywords["alpha"])


def _rank(function: Any, options: dict[str, Any], y: Any) -> Any:
    """Return ranks, NaN for NaN."""
    if not is_too_long(y, y.ndim - 1):
        raise Refused("bottleneck ranks lines faster that are short enough to gather")
    return strict(ranks.rankdata)(y, axis=-1, nan_policy="omit")


def _none(function: Any, options: dict[str, Any], *arrays: Any) -> Any:
    raise Refused("the function takes whole lines")


#: The methods of `rolling_exp`, and our functions.
_WEIGHTED: dict[str, Callable[..., Any]] = {
    "mean": fills.ewm_mean,
    "sum": fills.ewm_sum,
    "var": fills.ewm_var,
    "std": fills.ewm_std,
    "cov": fills.ewm_cov,
    "corr": fills.ewm_corr,
}

#: By package and name.
_TABLE = {
    ("xarray", "func_interpolate_na"): Lines("interpolate_na", _fill),
    ("xarray", "_interpnd"): Lines(
        "interp", _interpolate, False, "chunks are those that the positions lie in"
    ),
    ("xarray", "_weighted_quantile_1d"): Lines("weighted.quantile", _none),
    ("bottleneck", "rankdata"): Lines("rank", _rank),
    ("bottleneck", "nanrankdata"): Lines("rank", _rank),
    **{
        ("numbagg", f"move_exp_nan{name}"): Lines(f"rolling_exp.{name}", _exponential)
        for name in _WEIGHTED
    },
}


def concerns(function: Any, *args: Any, signature: Any, dask: str = "", **options: Any) -> bool:
    """Return whether a call is of a function in the table, with lines in several chunks."""
    return (
        dask == "parallelized"
        and _row(function) is not None
        and not is_left_to_dask()
        and any(True for _ in _split(args, signature))
    )


def apply(function: Any, *args: Any, signature: Any, **options: Any) -> Any:
    """Apply a function in the table to lines in several chunks."""
    row = _row(function)
    if row is None:
        raise Refused("the table does not have the function")
    original = dasks(sys.modules["xarray.computation.apply_ufunc"].apply_variable_ufunc)
    x, _ = next(_split(args, signature))
    with differing(row.differs), counted(row.name, x):
        try:
            ours = with_expressions(partial(row.ours, _as_partial(function), options))
            changed = {**options, "dask": "allowed", "vectorize": False}
            return original(ours, *args, signature=signature, **changed)
        except (Refused, TypeError, ValueError):
            if not row.gathers:
                raise
            return _gather(original, function, args, signature, options)


def begins_without_numbagg(self: Any, obj: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether exponential windows of lazy arrays begin where numbagg is missing."""
    return is_dask_collection(obj) and not is_left_to_dask() and find_spec("numbagg") is None


def begin_exponential(
    self: Any, obj: Any, windows: Any, window_type: str = "span", min_weight: float = 0.0
) -> None:
    """Begin `rolling_exp(...)` without numbagg, which xarray requires for it."""
    if min_weight:
        raise Refused("exponential windows have no min_weight")
    self.obj, self.min_weight = obj, min_weight
    self.dim, window = next(iter(windows.items()))
    self.alpha = sys.modules["xarray.computation.rolling_exp"]._get_alpha(**{window_type: window})


def averages_without_numbagg(self: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether `begin_exponential` has begun these windows."""
    return begins_without_numbagg(self, self.obj)


def weigh_exponentially(name: str) -> Callable[..., Any]:
    """Return the method `name` of `rolling_exp(...)` without numbagg."""

    def of_one(self: Any, keep_attrs: bool | None = None) -> Any:
        if keep_attrs is None:
            keep_attrs = sys.modules["xarray"].get_options()["keep_attrs"] in ("default", True)
        return _apply_weights(name, self, [self.obj], keep_attrs)

    def of_its_attributes(self: Any) -> Any:
        return _apply_weights(name, self, [self.obj], True)

    def of_two(self: Any, other: Any) -> Any:
        return _apply_weights(name, self, [self.obj, other], True)

    methods: dict[str, Callable[..., Any]] = {"mean": of_one, "sum": of_one}
    methods |= {"cov": of_two, "corr": of_two}
    return methods.get(name, of_its_attributes)


def _apply_weights(name: str, windows: Any, objects: list[Any], keep_attrs: bool) -> Any:
    with counted(f"rolling_exp.{name}", windows.obj):
        lines = [[windows.dim]]
        return (
            sys.modules["xarray"]
            .apply_ufunc(
                with_expressions(partial(_weigh, name, windows.alpha)),
                *objects,
                input_core_dims=lines * len(objects),
                output_core_dims=lines,
                keep_attrs=keep_attrs,
                on_missing_core_dim="copy",
                dask="allowed",
            )
            .transpose(*windows.obj.dims)
        )


def _weigh(name: str, alpha: float, *arrays: Any) -> Any:
    lines = (as_dtype(asanyarray(x), "f8") for x in arrays)
    result = strict(_WEIGHTED[name])(*lines, axis=-1, alpha=alpha)
    is_lazy = any(isinstance(x, Array) for x in arrays)
    return result if is_lazy else result.compute(scheduler="sync")


def _gather(
    original: Callable[..., Any],
    function: Any,
    args: tuple[Any, ...],
    signature: Any,
    options: dict[str, Any],
) -> Any:
    """Gather lines for a function of xarray; results with lines get the array's chunks."""
    x, whole = next(_split(args, signature))
    axes = tuple(x.dims.index(dim) for dim in whole)
    sizes = dict(zip(x.dims, gathered(x.data, axes).chunks, strict=True))
    # Other arrays may have the same dimensions.
    blocks = [a.chunk({d: sizes.get(d, -1) for d in a.dims}) if _is_lazy(a) else a for a in args]
    result = original(function, *blocks, signature=signature, **options)
    if not {*whole} <= {*getattr(result, "dims", ())}:
        return result
    return result.chunk({d: n for d, n in zip(x.dims, x.data.chunks, strict=True)})


def _split(args: tuple[Any, ...], signature: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the arrays that have lines in several chunks, with the dimensions of these."""
    for x, dims in zip(args, signature.input_core_dims, strict=True):
        if _is_lazy(x) and any(x.data.numblocks[x.dims.index(dim)] > 1 for dim in dims):
            yield x, tuple(dims)


def _is_lazy(x: Any) -> bool:
    # Also of the package dask-array.
    return hasattr(getattr(x, "data", None), "numblocks")


def _as_partial(function: Any) -> Any:
    """Return a function as a `partial`, whose keywords may be none."""
    return function if isinstance(function, partial) else partial(function)


def _row(function: Any) -> Lines | None:
    """Return the row of a function, or of one that has been given keywords."""
    while isinstance(function, partial):
        function = function.func
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    return _TABLE.get((package, str(getattr(function, "__name__", ""))))
