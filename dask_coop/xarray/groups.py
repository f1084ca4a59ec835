"""Groups by coordinates: reductions and scans of each group's elements, with labels.

::

    (time, lat, lon) by "time.month"  --transpose-->  (lat, lon, time), and the months of times
                                                           |
    (month, lat, lon)  <--label, transpose--  (lat, lon, groups) of dask_coop.groupby_reduce
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import dask
import numpy as np
import pandas as pd  # type: ignore[import-untyped]

import dask_coop
from dask_coop.api.call.labelled import relabel
from dask_coop.xarray.objects import find_dim, find_dims, is_lazy, leaves_nan_out, xr

#: Statistics and scans that leave NaN out by another name.
_LEAVING = {
    *("sum", "prod", "mean", "var", "std", "min", "max", "argmin", "argmax", "first", "last"),
    *("median", "quantile", "cumsum", "cumprod"),
}


class Asked(NamedTuple):
    """What is asked of groups, in the words of the public function."""

    func: Any
    expected_groups: Any
    isbin: bool | Sequence[bool]
    sort: bool
    fill_value: Any
    dtype: Any
    min_count: int | None
    finalize_kwargs: Mapping[str, Any] | None
    engine: Any


def reduce_groups(
    x: xr.DataArray, by: Sequence[Any], dim: Any, skipna: bool | None, asked: Asked
) -> xr.DataArray | xr.Dataset:
    """Return a statistic of groups with labels, or a Dataset of several."""
    labels = _find_labels(x, by)
    along = _dims_of(x, labels)
    gone = along if dim is None else find_dims(x, dim)
    if not set(along) & set(gone):
        raise ValueError(
            f"groups are reduced along dimensions of their labels, {along}, and perhaps others; "
            f"got dim={dim!r}"
        )
    left = [one for one in x.dims if one not in gone]
    # Behind all others: the dimensions of labels that are left, and those that are reduced.
    order = sorted(x.dims, key=lambda one: (one in gone, one in along))
    core = [one for one in order if one in along or one in gone]
    for one, expected in zip(labels, _expected(asked, len(labels)), strict=True):
        if is_lazy(one) and expected is None:
            raise ValueError(
                f"{one.name!r} is lazy, so that the groups it has are not known: give "
                f"expected_groups, or {one.name}.compute() as labels"
            )
    several = isinstance(asked.func, list | tuple)
    funcs = [_named(x, one, skipna) for one in (asked.func if several else [asked.func])]
    made, *groups = dask_coop.groupby_reduce(
        x.transpose(*order).data,
        *(_data(one, core) for one in labels),
        axis=tuple(range(len(left), x.ndim)),
        **asked._replace(func=funcs)._asdict(),
    )
    if not is_lazy(x, *labels):
        (made,) = dask.compute(made)
    coords = _coordinates(labels, groups, asked)
    if twice := [name for name in coords if name in left]:
        raise ValueError(
            f"groups are along a dimension {twice[0]!r}, and the array keeps one of that name; "
            "rename the labels"
        )
    label = _labeller(x, labels, coords, [one for one in order if one in left], asked)
    found = [label(one) for one in made]
    if not several:
        return found[0]
    names = [str(getattr(one, "name", one)) for one in asked.func]
    return xr.Dataset(dict(zip(names, found, strict=True)))


def scan_groups(
    x: xr.DataArray, by: Sequence[Any], dim: Any, skipna: bool | None, func: Any, **given: Any
) -> xr.DataArray:
    """Return a scan of each group along a dimension, with labels."""
    labels = _find_labels(x, by)
    along = _dims_of(x, labels)
    last = find_dim(x, dim)
    order = sorted(x.dims, key=lambda one: (one == last, one in along))
    core = [one for one in order if one in along or one == last]
    moved = x.transpose(*order)
    beside = [_data(one, core) for one in labels]
    found = dask_coop.groupby_scan(moved, *beside, func=_named(x, func, skipna), axis=-1, **given)
    found = found.transpose(*x.dims)
    return found if is_lazy(x, *labels) else found.compute()


def _find_labels(x: xr.DataArray, by: Sequence[Any]) -> list[xr.DataArray]:
    """Return labels, which are DataArrays or names of coordinates.

    Raises
    ------
    KeyError
        If there is no such coordinate.
    TypeError, ValueError
        If labels have no name or are those of a MultiIndex, or do not fit the array.
    """
    if not by:
        raise TypeError("groups need labels: coop.groupby_reduce('time.month', func='mean')")
    labels = [one if isinstance(one, xr.DataArray) else _coordinate(x, one) for one in by]
    for one in labels:
        if one.name is None:
            raise ValueError(
                "a dimension of groups is named as their labels, and these have no name; "
                "labels.rename('zone') gives one"
            )
        if one.dims == (one.name,) and one.name in one.indexes and one.to_index().nlevels > 1:
            levels = ", ".join(map(repr, one.to_index().names))
            raise TypeError(f"{one.name!r} has a MultiIndex; group by levels of it: {levels}")
        if unknown := [dim for dim in one.dims if dim not in x.dims]:
            raise ValueError(
                f"labels {one.name!r} have the dimensions {one.dims}, and the array, of dimensions "
                f"{x.dims}, has no {unknown[0]!r}"
            )
        xr.align(x, one, join="exact", copy=False)
    return labels


def _coordinate(x: xr.DataArray, name: Hashable) -> xr.DataArray:
    # Anything else than a name would be an index.
    if isinstance(name, str) or name in x.coords:
        with suppress(KeyError):
            return x[name]
    raise KeyError(
        f"there is no coordinate {name!r} to group by; there are {[*x.coords]}, and of dates such "
        "as 'time' also 'time.month'"
    )


def _dims_of(x: xr.DataArray, labels: Sequence[xr.DataArray]) -> list[Hashable]:
    return [dim for dim in x.dims if any(dim in one.dims for one in labels)]


def _data(label: xr.DataArray, dims: Sequence[Hashable]) -> Any:
    """Return the data of a label along `dims`, of length one where it has no such dimension."""
    data = label.transpose(*(dim for dim in dims if dim in label.dims)).data
    return data[tuple(slice(None) if dim in label.dims else None for dim in dims)]


def _named(x: xr.DataArray, func: Any, skipna: bool | None) -> Any:
    leaving = isinstance(func, str) and func in _LEAVING and leaves_nan_out(x, skipna)
    return f"nan{func}" if leaving else func


def _coordinates(
    labels: Sequence[xr.DataArray], groups: Sequence[Any], asked: Asked
) -> dict[Hashable, xr.Variable]:
    """Return the groups of each label as the coordinate of their dimension."""
    count = len(labels)
    bins = [asked.isbin] * count if isinstance(asked.isbin, bool) else [*asked.isbin]
    coords = {}
    for one, values, isbin, of in zip(labels, groups, bins, _expected(asked, count), strict=True):
        binned = isbin or type(of).__name__ == "IntervalIndex"
        name = f"{one.name}_bins" if binned else one.name
        # As an index of intervals, by which values are found that lie in them.
        index = pd.IntervalIndex(values) if binned else values
        coords[name] = xr.Variable(name, index, one.attrs)
    return coords


def _expected(asked: Asked, count: int) -> Sequence[Any]:
    """Return the groups that are expected of each label, or None."""
    given = asked.expected_groups
    return given if isinstance(given, tuple) and len(given) == count else [given] * count


def _labeller(
    x: xr.DataArray,
    labels: Sequence[xr.DataArray],
    coords: Mapping[Hashable, xr.Variable],
    left: Sequence[Hashable],
    asked: Asked,
) -> Callable[[Any], xr.DataArray]:
    """Return what labels results with the dimensions that are `left`, and then those of groups."""
    lost = [dim for dim in x.dims if dim not in left]
    q = dict(asked.finalize_kwargs or {}).get("q")
    order = [*left, *coords]
    if len(labels) == 1 and labels[0].ndim == 1:
        # Groups take the place of what they are of.
        place, name = labels[0].dims[0], next(iter(coords))
        order = [name if dim == place else dim for dim in x.dims if dim in (*left, place)]

    def label(data: Any) -> xr.DataArray:
        if isinstance(data, tuple):
            raise TypeError(
                "a Monoid with several results is taken by dask_coop.groupby_reduce, and has no "
                "array with labels"
            )
        several = data.ndim > len(left) + len(coords)
        dims = ["quantile"] if several else []
        added: dict[Hashable, Any] = dict(coords)
        if several or (q is not None and np.ndim(q) == 0):
            added["quantile"] = ("quantile", np.asarray(q, "f8")) if several else np.float64(q)
        return relabel(x, data, lost, [*dims, *left, *coords], added).transpose(*order, *dims)

    return label
