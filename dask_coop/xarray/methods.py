"""Methods that call a public function along dimensions: a row of the table is all there is of each.

::

    da.coop.mean("time", ddof=1)  -->  dask_coop.nanmean(da, axis=0, ddof=1)  -->  a DataArray

The public function keeps the labels (`api/call/labelled.py`); a method finds the axes, leaves NaN
out as xarray does, and computes what is not lazy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from dask.base import is_dask_collection

import dask_coop
from dask_coop.xarray.documented import docstring_of, signature_of
from dask_coop.xarray.objects import each_variable, find_dim, find_dims, finish, leaves_nan_out, xr


class Row(NamedTuple):
    """A method: the public function that it is named as, and what may be given without a name."""

    name: str
    positional: tuple[str, ...] = ("dim",)


#: What works over any dimensions, or all of them.
_REDUCTIONS = (
    *map(Row, ("sum", "prod", "mean", "var", "std", "min", "max", "argmin", "argmax", "median")),
    *map(Row, ("any", "all", "count_nonzero", "ptp", "norm")),
    Row("moment", ("order", "dim")),
    Row("quantile", ("q", "dim")),
    Row("percentile", ("q", "dim")),
    Row("reduce", ("monoid", "dim")),
)
#: What works along one dimension.
_ALONG = (
    *map(Row, ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "ewm_mean")),
    Row("scan", ("monoid", "dim")),
    Row("ffill", ("dim", "limit")),
    Row("bfill", ("dim", "limit")),
    *(
        Row(f"move_{name}", ("dim", "window", "min_count"))
        for name in ("sum", "mean", "std", "var", "min", "max")
    ),
    Row("topk", ("k", "dim")),
    Row("argtopk", ("k", "dim")),
    Row("sort"),
    Row("argsort"),
)
#: What works along each of several.
_SEVERAL = (Row("integral_image"),)

ROWS = (*_REDUCTIONS, *_ALONG, *_SEVERAL)

#: What xarray reduces over no axes where a variable of a Dataset has none of the dimensions.
_OVER_NO_AXES = {"std", "var", "any", "all"}


def add_methods(of_array: type[Any], of_dataset: type[Any]) -> None:
    """Give the accessors of arrays and of Datasets a method for each row."""
    for row in ROWS:
        for owner, method in zip((of_array, of_dataset), _methods(row), strict=True):
            method.__qualname__ = f"{owner.__name__}.{row.name}"
            setattr(owner, row.name, method)


def _methods(row: Row) -> Iterator[Callable[..., Any]]:
    """Yield the method of arrays, and that of Datasets."""
    function = getattr(dask_coop, row.name)
    without_nan = getattr(dask_coop, f"nan{row.name}", None)
    signature: Any = signature_of(function, row.positional, without_nan is not None)

    def of_array(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        return _call(row, _obj_of(given.pop("self")), given)

    def of_dataset(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        ds, dim = _obj_of(given.pop("self")), given.get("dim")
        dims = () if dim is None or dim is ... else find_dims(ds, dim)

        def convert(x: xr.DataArray) -> xr.DataArray:
            own = dims if row not in _REDUCTIONS else tuple(d for d in dims if d in x.dims)
            return _call(row, x, {**given, "dim": own if dims else None})

        of = () if row.name in _OVER_NO_AXES else dims
        return each_variable(ds, of, convert, given.get("keep_attrs"))

    for method in (of_array, of_dataset):
        named: Any = method
        named.__name__, named.__module__ = row.name, __name__
        named.__signature__, named.__doc__ = signature, docstring_of(function, signature)
        yield method


def _obj_of(accessor: Any) -> Any:
    return accessor._obj


def _call(row: Row, x: xr.DataArray, given: dict[str, Any]) -> xr.DataArray:
    """Call the public function of a row with what a method was given."""
    given = dict(given)
    dim, keep_attrs = given.pop("dim", None), given.pop("keep_attrs", None)
    skipna = given.pop("skipna", None)
    if isinstance(given.get("split_every"), dict):
        split = given["split_every"].items()
        given["split_every"] = {x.dims.index(find_dim(x, one)): n for one, n in split}
    if row.name in ("quantile", "percentile") and not is_dask_collection(given["q"]):
        # As xarray's, which makes quantiles float64.
        given["q"] = np.asarray(given["q"], "f8")
    name = row.name
    if leaves_nan_out(x, skipna) and hasattr(dask_coop, f"nan{name}"):
        name = f"nan{name}"
    at: dict[str, Any]
    if row in _ALONG:
        at = {"axis": x.dims.index(find_dim(x, dim))}
    else:
        axes = tuple(x.dims.index(one) for one in find_dims(x, dim))
        # Some take one axis, or all of them.
        some = axes if len(axes) != 1 else axes[0]
        at = {"axes": axes} if row in _SEVERAL else {"axis": None if len(axes) == x.ndim else some}
    return finish(x, getattr(dask_coop, name)(x, **at, **given), keep_attrs)
