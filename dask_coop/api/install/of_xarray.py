"""The functions that `install` puts in the place of xarray's and flox's.

Most of xarray calls Dask's functions. This module replaces the others: sums that skip missing
elements, filling of gaps, rolling windows, and flox's groups.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np
from dask.array import array_expr_enabled
from dask.array.wrap import zeros
from dask.base import is_dask_collection

from dask_coop.api import fills, flox_calls, least_squares, sums, windows
from dask_coop.api.call.fallback import is_left_to_dask, left_to_dask
from dask_coop.api.call.planning import with_expressions
from dask_coop.api.call.public import strict
from dask_coop.api.call.report import counted, differing
from dask_coop.api.install import of_lines
from dask_coop.api.install.substitutes import Row
from dask_coop.errors import Refused

#: xarray's rolling functions, and ours.
_MOVED = {
    "sum": windows.move_sum,
    "mean": windows.move_mean,
    "std": windows.move_std,
    "var": windows.move_var,
    "min": windows.move_min,
    "max": windows.move_max,
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
    if name not in _MOVED or kwargs:
        raise Refused(f"windows have no {', '.join([name, *kwargs])}")
    if len(self.dim) > 1:
        raise Refused(f"windows move along one dimension, not along {len(self.dim)}")
    (dim,), (window,), (center,) = self.dim, self.window, self.center
    array = self.obj
    axis, least = array.get_axis_num(dim), self.min_periods or 1
    with differing("chunks are the array's, where xarray cuts others"):
        moved = strict(_MOVED[name])(array.data, window, least, axis, center=center)
    options = sys.modules["xarray"].get_options()
    chosen = options["use_bottleneck"], options["use_numbagg"]
    if (dtype := _xarrays_dtype(name, array.dtype, center, *chosen)) is not None:
        moved = moved.astype(dtype)
    # Through a variable: a DataArray without a name would take the Dask array's name.
    data = type(array.variable)(array.dims, moved, array.attrs if keep_attrs else None)
    return type(array)(data, array.coords, name=array.name)


def _fit(lhs: Any, rhs: Any, rcond: Any = None, skipna: bool = False) -> Any:
    """Return the coefficients and residuals of `polyfit`."""
    with counted("polyfit", rhs):
        coefficients, residuals = least_squares.fit(lhs, rhs, rcond)
        # xarray squeezes the residual of a single line; Dask fails to squeeze an array of no axes.
        return coefficients, residuals if rhs.ndim > 1 else residuals[np.newaxis]


def _fits_lazily(lhs: Any, rhs: Any, rcond: Any = None, skipna: bool = False) -> bool:
    # Without NaN, Dask's own function takes chunk by chunk.
    return skipna and rcond is not None and _is_lazy(rhs)


@lru_cache(maxsize=256)
def _xarrays_dtype(
    name: str, dtype: np.dtype[Any], center: bool, use_bottleneck: bool, use_numbagg: bool
) -> np.dtype[Any] | None:
    """Return the dtype of xarray's result for windows, or None if xarray does not support them.

    It depends on xarray's version, and on the options that are arguments.
    """
    example = sys.modules["xarray"].DataArray(zeros(1, dtype=dtype, chunks=1), dims="t")
    try:
        with left_to_dask():
            result: np.dtype[Any] = getattr(example.rolling(t=1, center=center), name)().dtype
    except (TypeError, ValueError, NotImplementedError):
        return None
    return result


def _is_lazy(*arrays: Any, **kwargs: Any) -> bool:
    return not is_left_to_dask() and any(map(is_dask_collection, arrays))


def _rolls_lazily(self: Any, *args: Any, **kwargs: Any) -> bool:
    return _is_lazy(self.obj.data)


def rows() -> list[Row]:
    """Return the rows of xarray's and flox's functions, and ours."""
    return [
        Row("xarray.computation.nanops", "nansum", _nansum, _is_lazy),
        Row("xarray.core.duck_array_ops", "push", _push, _is_lazy),
        Row("xarray.computation.rolling", "DataArrayRolling._array_reduce", _roll, _rolls_lazily),
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
        Row(
            "xarray.computation.rolling_exp",
            "RollingExp.mean",
            of_lines.average_exponentially,
            of_lines.averages_without_numbagg,
        ),
        Row("flox.core", "groupby_reduce", with_expressions(flox_calls.groupby_reduce), _is_lazy),
        Row("flox.scan", "groupby_scan", with_expressions(flox_calls.groupby_scan), _is_lazy),
    ]
