"""What stands in the place of functions of xarray and flox, when it is installed.

Most of xarray calls Dask's functions. These are the rest: sums that skip what is missing, gaps,
rolling windows, and groups, which are flox's.
"""

from __future__ import annotations

import sys
from typing import Any

from dask.base import is_dask_collection

from dask_coop.api import fills, flox_calls, sums, windows
from dask_coop.api.public import strict
from dask_coop.api.substitutes import Row
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
    """Return xarray's sum of what is not missing, for which it fills an array with zeros."""
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
    """Return `DataArray.rolling(...)` reduced."""
    # Means are those of a method, not of a function of arrays.
    name = (array_agg_func or rolling_agg_func).__name__.strip("_")
    kwargs.pop("sliding_window_view_kwargs", None)
    if name not in _MOVED or kwargs:
        raise Refused(f"windows have no {', '.join([name, *kwargs])}")
    if len(self.dim) > 1:
        raise Refused(f"windows move along one dimension, not along {len(self.dim)}")
    (dim,), (window,), (center,) = self.dim, self.window, self.center
    array = self.obj
    axis, least = array.get_axis_num(dim), self.min_periods or 1
    moved = strict(_MOVED[name])(array.data, window, least, axis, center=center)
    is_small = array.dtype.kind in "iu" and array.dtype.itemsize <= 2
    if center and is_small and sys.modules["xarray"].get_options()["use_bottleneck"]:
        # It is given float32, which can hold the NaN that xarray puts behind the end.
        moved = moved.astype("f4")
    result = array.copy(deep=False, data=moved)
    result.attrs = array.attrs if keep_attrs else {}
    return result


def _is_lazy(array: Any, *args: Any, **kwargs: Any) -> bool:
    return bool(is_dask_collection(array))


def _rolls_lazily(self: Any, *args: Any, **kwargs: Any) -> bool:
    return bool(is_dask_collection(self.obj.data))


def _is_any_lazy(array: Any, *by: Any, **kwargs: Any) -> bool:
    return any(map(is_dask_collection, (array, *by)))


def rows() -> list[Row]:
    """Return functions of xarray and flox, and what serves them."""
    return [
        Row("xarray.computation.nanops", "nansum", _nansum, _is_lazy),
        Row("xarray.core.duck_array_ops", "push", _push, _is_lazy),
        Row("xarray.computation.rolling", "DataArrayRolling._array_reduce", _roll, _rolls_lazily),
        Row("flox.core", "groupby_reduce", flox_calls.groupby_reduce, _is_any_lazy),
        Row("flox.scan", "groupby_scan", flox_calls.groupby_scan, _is_any_lazy),
    ]
