"""Handle dimensions, laziness and attributes of xarray's objects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import dask

from dask_coop.errors import pip_install

try:
    import xarray as xr
except ImportError as _error:
    raise ImportError(
        f"dask_coop.xarray needs xarray, which cannot be imported; run `{pip_install('xarray')}`"
    ) from _error

import dask_coop

__all__ = [
    "as_installed",
    "each_variable",
    "find_dim",
    "find_dims",
    "finish",
    "is_lazy",
    "leaves_nan_out",
    "xr",
]

#: The kinds of elements that reductions of a Dataset include, as in xarray.
_NUMERIC = "biufcmM"


def find_dims(x: xr.DataArray, dim: Any) -> tuple[Hashable, ...]:
    """Return the dimensions that `dim` names; all for None and `...`.

    Raises
    ------
    ValueError
        If the array has no such dimension.
    """
    if dim is None or dim is ...:
        return tuple(x.dims)
    single = isinstance(dim, str) or (isinstance(dim, Hashable) and dim in x.dims)
    named: Iterable[Hashable] = (dim,) if single or not isinstance(dim, Iterable) else dim
    dims = tuple(dict.fromkeys(named))
    for name in dims:
        if name not in x.dims:
            raise ValueError(f"there is no dimension {name!r} among {tuple(x.dims)}")
    return dims


def find_dim(x: xr.DataArray, dim: Any) -> Hashable:
    """Return the single dimension that `dim` names.

    Raises
    ------
    ValueError
        If the array has no such dimension, or `dim` names several.
    """
    dims = find_dims(x, dim)
    if len(dims) != 1 or dim is None or dim is ...:
        raise ValueError(f"dim is one of {tuple(x.dims)}, got {dim!r}")
    return dims[0]


def leaves_nan_out(x: xr.DataArray, skipna: bool | None) -> bool:
    """Return whether to leave NaN out, by xarray's default for `skipna`."""
    return bool(x.dtype.kind in "fc" if skipna is None else skipna)


def is_lazy(*values: Any) -> bool:
    """Return whether any array has Dask's chunks."""
    return any(getattr(value, "chunks", None) is not None for value in values)


def finish(x: Any, result: Any, keep_attrs: bool | None = None, lazy: bool | None = None) -> Any:
    """Return a result, computed unless `x` is lazy, with or without the attributes of `x`."""
    if isinstance(result, tuple):
        parts = [part if part is None else finish(x, part, keep_attrs, True) for part in result]
        return type(result)(*(parts if is_lazy(x) else dask.compute(*parts)))
    if keep_attrs is not None:
        result = result.copy(deep=False)
        for array in result.data_vars.values() if isinstance(result, xr.Dataset) else [result]:
            array.attrs = dict(x.attrs) if keep_attrs else {}
    return result if (is_lazy(x) if lazy is None else lazy) else result.compute()


def as_installed(x: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of `x`; if that is lazy, with this library's functions for xarray's.

    While it builds the graph, they are installed for all threads, as by `dask_coop.installed`.
    """
    if not any(is_lazy(x[name]) for name in x) if isinstance(x, xr.Dataset) else not is_lazy(x):
        return function(x, *args, **kwargs)
    with dask_coop.installed():
        return function(x, *args, **kwargs)


def each_variable(
    ds: xr.Dataset,
    dims: tuple[Hashable, ...],
    function: Callable[[xr.DataArray], Any],
    keep_attrs: bool | None,
) -> xr.Dataset:
    """Apply a function to the variables of a Dataset that have one of `dims`; to all if empty."""
    numeric = [name for name, x in ds.data_vars.items() if x.dtype.kind in _NUMERIC]

    def convert(x: xr.DataArray) -> xr.DataArray:
        return function(x) if not dims or set(dims) & set(x.dims) else x

    result = ds[numeric].map(convert, keep_attrs=keep_attrs)
    # xarray's `map` drops these; its reductions keep them, whatever keep_attrs is.
    result.encoding = dict(ds.encoding)
    for name in result.coords.keys() & ds.coords.keys():
        result[name].attrs = dict(ds[name].attrs)
    return result
