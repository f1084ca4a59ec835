"""The functions that `install` puts in the place of xarray's, flox's and xhistogram's.

Most of xarray calls Dask's functions. This module replaces the others: sums that skip missing
elements, filling of gaps, rolling windows, flox's groups, and xhistogram's histograms, of which
those of DataArrays call those of arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from dask.array import array_expr_enabled, reductions
from dask.array.core import asanyarray
from dask.array.wrap import zeros
from dask.base import is_dask_collection

from dask_coop.api import fills, flox_calls, least_squares, sums, windows, xhistogram_calls
from dask_coop.api.arguments import ReductionArguments, as_dtype, in_shape_of, placed_along
from dask_coop.api.call.fallback import is_left_to_dask, left_to_dask, originals
from dask_coop.api.call.planning import with_expressions
from dask_coop.api.call.public import strict, taking_arrays
from dask_coop.api.call.report import counted, differing
from dask_coop.api.install import of_lines
from dask_coop.api.install.substitutes import Row
from dask_coop.api.paired import average, regression
from dask_coop.errors import Refused

#: xarray's rolling functions, and ours.
_MOVED: dict[str, Callable[..., Any]] = {
    "sum": windows.move_sum,
    "mean": windows.move_mean,
    "std": windows.move_std,
    "var": windows.move_var,
    "min": windows.move_min,
    "max": windows.move_max,
    "median": windows.move_median,
}

#: Functions of NumPy for `reduce`, the names of ours, and whether they leave NaN out.
_REDUCED: dict[Any, tuple[str, bool]] = {
    getattr(np, prefix + name): (name, bool(prefix))
    for name in (*_MOVED, "quantile")
    for prefix in ("", "nan")
}


def _nansum(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, min_count: Any = None
) -> Any:
    """Return the sum that skips NaN; xarray's would fill the array with zeros first."""
    if array_expr_enabled():
        raise Refused("xarray's reductions don't take arrays of expressions (array.query-planning)")
    if min_count is not None:
        raise Refused("sums have no min_count")
    if a.dtype.kind not in "biufc":
        raise Refused(f"what is missing of {a.dtype} is no NaN")
    return strict(sums.nansum)(a, axis, dtype)


def _push(array: Any, n: int | None, axis: int, method: Any = None) -> Any:
    """Return an array with its gaps filled."""
    return strict(fills.ffill)(array, axis, n)


def _roll(
    self: Any,
    array_agg_func: Any,
    bottleneck_move_func: Any,
    numbagg_move_func: Any,
    rolling_agg_func: Any,
    keep_attrs: bool,
    fillna: Any,
    **kwargs: Any,
) -> Any:
    """Return the reduction of a `DataArray.rolling(...)`."""
    # For means, xarray passes only `rolling_agg_func`.
    name = (array_agg_func or rolling_agg_func).__name__.strip("_")
    kwargs.pop("sliding_window_view_kwargs", None)
    if name not in (*_MOVED, "argmin", "argmax") or kwargs:
        raise Refused(f"windows have no {', '.join([name, *kwargs])}")
    if name not in _MOVED and self.obj.dtype.kind in "bu":
        # Zeros stand for what is behind an end, and xarray may find one of them.
        raise Refused("windows of unsigned integers have no places")
    return _moved(self, name, self.min_periods or 1, keep_attrs, (name, None))


def _reduce_windows(
    self: Any,
    func: Any,
    keep_attrs: bool | None = None,
    *,
    sliding_window_view_kwargs: Any = None,
    **kwargs: Any,
) -> Any:
    """Return `DataArray.rolling(...).reduce(...)` by a function of NumPy."""
    name, without_nan = _REDUCED[func]
    takes = {"quantile": {"q"}, "std": {"ddof"}, "var": {"ddof"}}.get(name, set())
    # NumPy's numbers may change the dtype of results.
    plain = all(type(value) in (int, float) for value in kwargs.values())
    # NumPy's statistics of bool are bool, or fail.
    plain = plain and self.obj.dtype.kind != "b" and (name != "quantile" or bool(kwargs))
    if not kwargs.keys() <= takes or not plain:
        raise Refused(f"windows have no {name} with {kwargs}")
    (window,) = self.window if len(self.window) == 1 else (0,)
    least = (self.min_periods or 1) if without_nan else window
    keep_attrs = self._get_keep_attrs(keep_attrs)
    return _moved(self, name, least, keep_attrs, ("reduce", func), **kwargs)


def _moved(
    self: Any, name: str, least: int, keep_attrs: bool, method: tuple[str, Any], **kwargs: Any
) -> Any:
    """Return windows' statistics with the labels of a `DataArray.rolling(...)`."""
    if len(self.dim) > 1:
        raise Refused(f"windows move along one dimension, not along {len(self.dim)}")
    (dim,), (window,), (center,) = self.dim, self.window, self.center
    array = self.obj
    axis = array.get_axis_num(dim)
    options = sys.modules["xarray"].get_options()
    choices = options["use_bottleneck"], options["use_numbagg"]
    by_numbagg = name == "median" and method[1] in (None, np.nanmedian)
    if by_numbagg and getattr(reductions, "HAS_NUMBAGG", False):
        # Dask calls it, whose medians are float64.
        dtype: np.dtype[Any] | None = np.dtype("f8")
    else:
        dtype = _xarrays_dtype(method, tuple(kwargs.items()), array.dtype, center, choices)
    x = array.data
    if name in ("median", "quantile") and x.dtype in (np.float16, np.float32) and dtype == "f8":
        x = as_dtype(x, "f8")
    with differing("chunks are the array's, where xarray cuts others"):
        if name in ("argmin", "argmax"):
            places = partial(windows.first_places, f"move_{name}")
            moved = taking_arrays(places)(x, window, least, axis, center=center)
        elif name == "quantile":
            q = kwargs["q"]
            moved = strict(windows.move_quantile)(x, window, q, least, axis, center=center)
        else:
            moved = strict(_MOVED[name])(x, window, least, axis, center=center, **kwargs)
    moved = moved if dtype is None else moved.astype(dtype)
    # Through a variable: a DataArray without a name would take the Dask array's name.
    data = type(array.variable)(array.dims, moved, array.attrs if keep_attrs else None)
    return type(array)(data, array.coords, name=array.name)


def _fit(lhs: Any, rhs: Any, rcond: Any = None, skipna: bool = False) -> Any:
    """Return the coefficients and residuals of `polyfit`."""
    with counted("polyfit", rhs):
        coefficients, residuals = least_squares.fit(lhs, rhs, rcond)
        # xarray squeezes the residual of a single line; Dask fails to squeeze an array of no axes.
        return coefficients, residuals if rhs.ndim > 1 else residuals[np.newaxis]


def _weighted(name: str) -> Any:
    """Return the method of xarray's Weighted of that name, by one read of data and weights."""

    def weigh(self: Any, da: Any, dim: Any = None, skipna: bool | None = None) -> Any:
        weights, method = self.weights, f"_weighted_{name}"
        if not set(weights.dims) <= set(da.dims):
            raise Refused("weights have dimensions that the array lacks")
        dims = _reduced(da, dim)
        _require_alike(da, weights)
        first = [_beginning(x, dims) for x in (da, weights)]
        with left_to_dask():
            like = getattr(type(self)(*first), method)(first[0], dim=dim, skipna=skipna)
        if like.dims != tuple(d for d in da.dims if d not in dims):
            raise Refused("dimensions are in another order")
        skips = skipna or (skipna is None and da.dtype.kind in "cf")
        statistic = f"nan{name}" if skips else name
        order = [d for d in da.dims if d in weights.dims]

        def of_arrays(data: Any, weights: Any) -> Any:
            x, w = asanyarray(data), asanyarray(weights)
            with counted(name, x):
                # Broadcast chunk by chunk: an array as large as the data would lie in the graph.
                w = placed_along(w, da.get_axis_num(order), da.ndim)
                w = in_shape_of("weights", w, x)
                arguments = ReductionArguments(tuple(da.get_axis_num(dims)))
                (result,) = average.weighted(statistic, x, w, arguments, like.dtype)
            return result

        result = taking_arrays(of_arrays)(da.data, weights.variable.transpose(*order).data)
        return like.copy(data=result)

    return weigh


def _weighs_lazily(self: Any, da: Any, *args: Any, **kwargs: Any) -> bool:
    return _is_lazy(da.data, self.weights.data)


def _covary(
    da_a: Any, da_b: Any, weights: Any = None, dim: Any = None, ddof: int = 0, method: Any = None
) -> Any:
    """Return the covariance or correlation of two DataArrays by one read of both."""
    if da_a.dims != da_b.dims or da_a.shape != da_b.shape:
        raise Refused("arrays differ in their dimensions")
    dims = _reduced(da_a, dim)
    _require_alike(da_a, da_b)
    if weights is not None:
        if not set(weights.dims) <= set(da_a.dims):
            raise Refused("weights have dimensions that the arrays lack")
        _require_alike(da_a, weights)
        # xarray refuses weights with NaN, lazy ones once they are computed.
        weights = da_a.weighted(weights).weights
    original = originals.get(sys.modules["xarray.computation.computation"]._cov_corr)
    if original is None:
        raise Refused("xarray's function is not replaced")
    arrays = [da_a, da_b, *([] if weights is None else [weights])]
    first = [_beginning(x, dims) for x in arrays]
    with left_to_dask():
        like = original(*first[:2], *(first[2:] or [None]), dim, ddof, method)
    if like.dims != tuple(d for d in da_a.dims if d not in dims):
        raise Refused("dimensions are in another order")
    axes = tuple(sorted(da_a.get_axis_num(dims)))

    def of_arrays(a: Any, b: Any, w: Any = None) -> Any:
        x, y = asanyarray(a), asanyarray(b)
        with counted(method, x):
            if w is not None:
                w = placed_along(asanyarray(w), da_a.get_axis_num(order), x.ndim)
            return regression.between(method, x, y, axes, ddof, like.dtype, w)

    order = [] if weights is None else [d for d in da_a.dims if d in weights.dims]
    data = [da_a.data, da_b.data]
    data += [] if weights is None else [weights.variable.transpose(*order).data]
    return like.copy(data=taking_arrays(of_arrays)(*data))


def _covaries_lazily(da_a: Any, da_b: Any, weights: Any = None, *args: Any, **kwargs: Any) -> bool:
    return _is_lazy(da_a.data, da_b.data, *([] if weights is None else [weights.data]))


def _reduced(array: Any, dim: Any) -> list[Any]:
    """Return the dimensions of an array that a call reduces."""
    if dim is None or dim is ...:
        return [*array.dims]
    return [dim] if isinstance(dim, str) else [*dim]


def _require_alike(array: Any, other: Any) -> None:
    """Refuse arrays whose indexes differ, or where the second has further coordinates."""
    if other.coords.keys() - array.coords.keys() or any(
        not index.equals(array.indexes[dim])
        for dim, index in other.indexes.items()
        if dim in array.indexes
    ):
        raise Refused("coordinates differ")


def _beginning(array: Any, dims: list[Any]) -> Any:
    """Return an array with a single element along `dims`, whose result has the same labels."""
    return array.isel({dim: slice(1) for dim in dims if dim in array.dims})


def _fits_lazily(lhs: Any, rhs: Any, rcond: Any = None, skipna: bool = False) -> bool:
    # Without NaN, Dask's own function takes chunk by chunk.
    return skipna and rcond is not None and _is_lazy(rhs)


@lru_cache(maxsize=256)
def _xarrays_dtype(
    method: tuple[str, Any],
    kwargs: tuple[tuple[str, Any], ...],
    dtype: np.dtype[Any],
    center: bool,
    choices: tuple[bool, ...],
) -> np.dtype[Any] | None:
    """Return the dtype of xarray's result for windows, or None if xarray does not support them.

    It depends on xarray's version, and on its choices between libraries.
    """
    example = sys.modules["xarray"].DataArray(zeros(1, dtype=dtype, chunks=1), dims="t")
    try:
        with left_to_dask():
            call = getattr(example.rolling(t=1, center=center), method[0])
            positional = () if method[1] is None else method[1:]
            result: np.dtype[Any] = call(*positional, **dict(kwargs)).dtype
    except (TypeError, ValueError, NotImplementedError):
        return None
    return result


def _is_lazy(*arrays: Any, **kwargs: Any) -> bool:
    lazy = any(map(is_dask_collection, arrays)) or is_dask_collection(kwargs.get("weights"))
    return lazy and not is_left_to_dask()


def _rolls_lazily(self: Any, *args: Any, **kwargs: Any) -> bool:
    return _is_lazy(self.obj.data)


def _reduces_lazily(self: Any, func: Any, *args: Any, **kwargs: Any) -> bool:
    return _is_lazy(self.obj.data) and isinstance(func, Hashable) and func in _REDUCED


def rows() -> list[Row]:
    """Return the rows of xarray's, flox's and xhistogram's functions, and ours."""
    return [
        Row("xarray.computation.nanops", "nansum", _nansum, _is_lazy),
        *(
            Row("xarray.computation.weighted", f"Weighted.{f}", _weighted(name), _weighs_lazily)
            for name in ("mean", "var", "std")
            for f in [f"_weighted_{name}"]
        ),
        Row("xarray.computation.computation", "_cov_corr", _covary, _covaries_lazily),
        Row("xarray.core.duck_array_ops", "push", _push, _is_lazy),
        Row("xarray.computation.rolling", "DataArrayRolling._array_reduce", _roll, _rolls_lazily),
        Row(
            "xarray.computation.rolling",
            "DataArrayRolling.reduce",
            _reduce_windows,
            _reduces_lazily,
        ),
        Row("xarray.compat.dask_array_ops", "least_squares", with_expressions(_fit), _fits_lazily),
        Row(
            "xarray.computation.apply_ufunc",
            "apply_variable_ufunc",
            of_lines.apply,
            of_lines.concerns,
        ),
        Row(
            "xarray.core.missing",
            "_get_nan_block_lengths",
            of_lines.lengths,
            of_lines.fills_lazily,
        ),
        Row(
            "xarray.core.missing",
            "_get_valid_fill_mask",
            of_lines.may_fill,
            of_lines.fills_lazily,
        ),
        Row(
            "xarray.computation.rolling_exp",
            "RollingExp.__init__",
            of_lines.begin_exponential,
            of_lines.begins_without_numbagg,
        ),
        *(
            Row(
                "xarray.computation.rolling_exp",
                f"RollingExp.{name}",
                of_lines.weigh_exponentially(name),
                of_lines.averages_without_numbagg,
            )
            for name in ("mean", "sum", "var", "std", "cov", "corr")
        ),
        Row("flox.core", "groupby_reduce", with_expressions(flox_calls.groupby_reduce), _is_lazy),
        Row("flox.scan", "groupby_scan", with_expressions(flox_calls.groupby_scan), _is_lazy),
        Row("xarray_histogram.core", "_histogram_dask", xhistogram_calls.fill, _is_lazy),
        Row("xhistogram.core", "histogram", with_expressions(xhistogram_calls.histogram), _is_lazy),
    ]
