"""Define the methods that call a public function along dimensions, each by a row of a table.

::

    da.coop.mean("time", ddof=1)  -->  dask_coop.nanmean(da, axis=0, ddof=1)  -->  a DataArray

The public function keeps the labels (`api/call/labelled.py`). A method finds the axes, leaves NaN
out as xarray does, and computes results of data that is not lazy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from dask.base import is_dask_collection

import dask_coop
from dask_coop.api.call.names import check_keywords, no_attribute
from dask_coop.xarray.documented import docstring_of, signature_of
from dask_coop.xarray.objects import (
    as_installed,
    each_variable,
    find_dim,
    find_dims,
    finish,
    leaves_nan_out,
    xr,
)

P = ParamSpec("P")
R = TypeVar("R")


class Method(NamedTuple):
    """A method: the name of its public function, and its positional parameters."""

    name: str
    positional: tuple[str, ...] = ("dim",)


#: Methods over one, several or all dimensions.
_REDUCTIONS = (
    *map(Method, ("sum", "prod", "mean", "var", "std", "min", "max", "argmin", "argmax", "median")),
    *map(Method, ("any", "all", "count_nonzero", "ptp", "norm", "skew", "kurtosis")),
    Method("moment", ("order", "dim")),
    Method("quantile", ("q", "dim")),
    Method("percentile", ("q", "dim")),
    Method("reduce", ("monoid", "dim")),
    Method("mode"),
    Method("nunique"),
    Method("longest_run"),
    *(
        Method(name, ("dim", "min_length"))
        for name in ("count_runs", "count_in_runs", "first_run", "last_run")
    ),
)
#: Methods along one dimension.
_ALONG = (
    *map(Method, ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")),
    *map(Method, ("ewm_mean", "ewm_sum", "ewm_var", "ewm_std")),
    *(Method(name, ("y", "dim")) for name in ("ewm_cov", "ewm_corr")),
    Method("scan", ("monoid", "dim")),
    Method("ffill", ("dim", "limit")),
    Method("bfill", ("dim", "limit")),
    *(
        Method(f"move_{name}", ("dim", "window", "min_count"))
        for name in ("sum", "mean", "std", "var", "min", "max", "median", "rank")
    ),
    *(Method(f"move_{name}", ("y", "dim", "window", "min_count")) for name in ("cov", "corr")),
    Method("run_lengths"),
    Method("run_events", ("dim", "values", "min_length")),
    Method("move_argmin", ("dim", "window", "min_count")),
    Method("move_argmax", ("dim", "window", "min_count")),
    Method("move_quantile", ("dim", "window", "q", "min_count")),
    Method("topk", ("k", "dim")),
    Method("argtopk", ("k", "dim")),
    Method("sort"),
    Method("argsort"),
    Method("rankdata"),
)
#: Methods along several dimensions, one after another.
_SEVERAL = (Method("integral_image"),)

ROWS = (*_REDUCTIONS, *_ALONG, *_SEVERAL)

#: Methods of arrays alone: variables of a Dataset hold no tuples.
_OF_TUPLES = {"mode", "run_events"}

#: Methods of xarray's, served as by `dask_coop.install`, along a dimension in several chunks too.
XARRAYS = {
    "interpolate_na": "Fill gaps by interpolation along a dimension.",
    "interp": "Interpolate at other coordinates.",
    "interp_like": "Interpolate at the coordinates of another object.",
    "rank": "Rank the elements along a dimension.",
    "polyfit": "Fit polynomials along a dimension.",
}

#: Methods that xarray also applies to variables of a Dataset without the dimensions, over no axes.
_OVER_NO_AXES = {"std", "var", "any", "all"}


class Named:
    """A base of accessors, which names the method that was meant if there is no such one."""

    # Type checkers would take any name for one of the accessor's.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError with the name that was meant."""
            methods = [method for method in dir(type(self)) if not method.startswith("_")]
            raise no_attribute(f"{type(self).__name__!r} object", name, methods, "x.coop")


def checked(method: Callable[P, R]) -> Callable[P, R]:
    """Return a written-out method that names the keyword that was meant."""
    parameters = dict(inspect.signature(method).parameters)
    parameters.pop("self")

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check_keywords(method.__name__, parameters, kwargs)
        return method(*args, **kwargs)

    return call


def add_methods(of_array: type[Any], of_dataset: type[Any]) -> None:
    """Give the accessors of arrays and of Datasets a method for each row."""
    for row in ROWS:
        for owner, method in zip((of_array, of_dataset), _methods(row), strict=True):
            if owner is of_array or row.name not in _OF_TUPLES:
                method.__qualname__ = f"{owner.__name__}.{row.name}"
                setattr(owner, row.name, method)
    for name in XARRAYS:
        setattr(of_array, name, _served(xr.DataArray, name, of_array))
        setattr(of_dataset, name, _served(xr.Dataset, name, of_dataset))


def _served(cls: type[Any], name: str, owner: type[Any]) -> Callable[..., Any]:
    """Return a method of xarray's that is called as if this library were installed."""
    theirs = getattr(cls, name)
    signature = inspect.signature(theirs)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return as_installed(_obj_of(self), theirs, *args, **kwargs)

    called: Any = method
    called.__name__, called.__module__ = name, __name__
    called.__qualname__, called.__signature__ = f"{owner.__name__}.{name}", signature
    known = [p for p in signature.parameters.values() if p.name != "self"]
    # numpydoc has keywords of any name apart.
    lines = [", ".join(p.name for p in known if p.kind is not p.VAR_KEYWORD)]
    lines += [f"**{p.name}" for p in known if p.kind is p.VAR_KEYWORD]
    told = f"\n        As for :meth:`xarray.{cls.__name__}.{name}`.\n    "
    called.__doc__ = f"""{XARRAYS[name]}

    Parameters
    ----------
    {told.join([*lines, ""]).rstrip()}

    Returns
    -------
    {"Dataset" if name == "polyfit" else cls.__name__}
        That of xarray's method; the dimension may lie in several chunks.

    Raises
    ------
    TypeError, ValueError
        As there.
    """
    return method


def _methods(row: Method) -> Iterator[Callable[..., Any]]:
    """Yield the method of arrays, and that of Datasets."""
    function = getattr(dask_coop, row.name)
    without_nan = getattr(dask_coop, f"nan{row.name}", None)
    signature: Any = signature_of(function, row.positional, without_nan is not None)

    def of_array(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        arguments = _bound(row.name, signature, self, args, kwargs)
        return _call(row, _obj_of(arguments.pop("self")), arguments)

    def of_dataset(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        arguments = _bound(row.name, signature, self, args, kwargs)
        ds, dim = _obj_of(arguments.pop("self")), arguments.get("dim")
        dims = () if dim is None or dim is ... else find_dims(ds, dim)

        def convert(x: xr.DataArray) -> xr.DataArray:
            of_x = dims if row not in _REDUCTIONS else tuple(d for d in dims if d in x.dims)
            return _call(row, x, {**arguments, "dim": of_x if dims else None})

        required = () if row.name in _OVER_NO_AXES else dims
        return each_variable(ds, required, convert, arguments.get("keep_attrs"))

    for method in (of_array, of_dataset):
        named: Any = method
        named.__name__, named.__module__ = row.name, __name__
        named.__signature__, named.__doc__ = signature, docstring_of(function, signature)
        yield method


def _bound(
    name: str, signature: Any, accessor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name; raise TypeError if they do not fit the method."""
    check_keywords(
        name, {key: p for key, p in signature.parameters.items() if key != "self"}, kwargs
    )
    try:
        arguments: dict[str, Any] = signature.bind(accessor, *args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None
    return arguments


def _obj_of(accessor: Any) -> Any:
    return accessor._obj


def _call(row: Method, x: xr.DataArray, arguments: dict[str, Any]) -> xr.DataArray:
    """Call the public function of a row with the arguments of its method."""
    arguments = dict(arguments)
    dim, keep_attrs = arguments.pop("dim", None), arguments.pop("keep_attrs", None)
    skipna = arguments.pop("skipna", None)
    if isinstance(arguments.get("split_every"), dict):
        split = arguments["split_every"].items()
        arguments["split_every"] = {x.dims.index(find_dim(x, d)): n for d, n in split}
    if row.name in ("quantile", "percentile") and not is_dask_collection(arguments["q"]):
        # As in xarray, where quantiles are float64.
        arguments["q"] = np.asarray(arguments["q"], "f8")
    name = row.name
    if leaves_nan_out(x, skipna):
        if hasattr(dask_coop, f"nan{name}"):
            name = f"nan{name}"
        elif "nan_policy" in inspect.signature(getattr(dask_coop, name)).parameters:
            arguments["nan_policy"] = "omit"
    if row in _ALONG:
        arguments["axis"] = x.dims.index(find_dim(x, dim))
    else:
        axes = tuple(x.dims.index(d) for d in find_dims(x, dim))
        if row in _SEVERAL:
            arguments["axes"] = axes
        else:
            # Some functions take only one axis, or None.
            some = axes if len(axes) != 1 else axes[0]
            arguments["axis"] = None if len(axes) == x.ndim else some
    return finish(x, getattr(dask_coop, name)(x, **arguments), keep_attrs)
