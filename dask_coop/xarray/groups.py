"""Reduce and scan groups by coordinates, with labels.

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

import dask_coop
from dask_coop.api.call.labelled import relabel, spread
from dask_coop.api.groups import reduce as grouped
from dask_coop.api.groups import scan as group_scans
from dask_coop.xarray.objects import find_dim, find_dims, is_lazy, leaves_nan_out, xr

#: Statistics and scans by name.
_NAMES = {*grouped.NAMES, *group_scans.ROWS}


class GroupOptions(NamedTuple):
    """Parameters of `dask_coop.groupby_reduce` besides array and labels."""

    func: Any
    y: Any
    expected_groups: Any
    isbin: bool | Sequence[bool]
    sort: bool
    fill_value: Any
    dtype: Any
    min_count: int | None
    finalize_kwargs: Mapping[str, Any] | None
    engine: Any


def reduce_groups(
    x: xr.DataArray, by: Sequence[Any], dim: Any, skipna: bool | None, options: GroupOptions
) -> xr.DataArray | xr.Dataset:
    """Return a statistic of groups with labels, or a Dataset of several statistics."""
    lazy = is_lazy(x, options.y)
    arrays = [x] if options.y is None else _with_common_dims(x, options.y)
    x = arrays[0]
    labels = _find_labels(x, by)
    along = _dims_of(x, labels)
    reduced = along if dim is None else find_dims(x, dim)
    if not set(along) & set(reduced):
        raise ValueError(
            f"groups are reduced along dimensions of their labels, {along}, and perhaps others; "
            f"got dim={dim!r}"
        )
    left = [d for d in x.dims if d not in reduced]
    # Last come the remaining dimensions of labels, and then the reduced ones.
    order = sorted(x.dims, key=lambda d: (d in reduced, d in along))
    core = [d for d in order if d in along or d in reduced]
    for label, expected in zip(labels, _expected(options, len(labels)), strict=True):
        if is_lazy(label) and expected is None:
            raise ValueError(
                f"{label.name!r} is lazy, so that the groups it has are not known: give "
                f"expected_groups, or {label.name}.compute() as labels"
            )
    several = isinstance(options.func, list | tuple)
    funcs = options.func if several else [options.func]
    skips = any(leaves_nan_out(array, skipna) for array in arrays)
    data = [array.transpose(*order).data for array in arrays]
    options = options._replace(y=data[1] if data[1:] else None)
    results, *groups = dask_coop.groupby_reduce(
        data[0],
        *(_data(label, core) for label in labels),
        axis=tuple(range(len(left), x.ndim)),
        **options._replace(func=[_with_skipna(func, skips) for func in funcs])._asdict(),
    )
    if not lazy and not is_lazy(*labels):
        (results,) = dask.compute(results)
    coords = _coordinates(labels, groups, options)
    if twice := [name for name in coords if name in left]:
        raise ValueError(
            f"groups are along a dimension {twice[0]!r}, and the array keeps one of that name; "
            "rename the labels"
        )
    add_labels = _labeller(x, labels, coords, [d for d in order if d in left], options)
    arrays = [add_labels(result) for result in results]
    if not several:
        return arrays[0]
    names = [str(getattr(func, "name", func)) for func in funcs]
    return xr.Dataset(dict(zip(names, arrays, strict=True)))


def _with_common_dims(x: xr.DataArray, y: xr.DataArray) -> list[xr.DataArray]:
    """Return two arrays with the dimensions of the one that has more, in its chunks."""
    if not isinstance(y, xr.DataArray):
        raise TypeError(
            f"y is a DataArray, whose dimensions are those of the array or some of them; got "
            f"{type(y).__name__}; xr.DataArray(y, dims={x.dims}) is one"
        )
    if set(y.dims) <= set(x.dims):
        return [x, x.copy(data=spread(x, y))]
    data = spread(y, x)
    return [xr.broadcast(x, y)[0].transpose(*y.dims).copy(data=data), y]


def scan_groups(
    x: xr.DataArray, by: Sequence[Any], dim: Any, skipna: bool | None, func: Any, **options: Any
) -> xr.DataArray:
    """Return a scan of each group along a dimension, with labels."""
    labels = _find_labels(x, by)
    along = _dims_of(x, labels)
    last = find_dim(x, dim)
    order = sorted(x.dims, key=lambda d: (d == last, d in along))
    core = [d for d in order if d in along or d == last]
    codes = [_data(label, core) for label in labels]
    func = _with_skipna(func, leaves_nan_out(x, skipna))
    result = dask_coop.groupby_scan(x.transpose(*order), *codes, func=func, axis=-1, **options)
    result = result.transpose(*x.dims)
    return result if is_lazy(x, *labels) else result.compute()


def _find_labels(x: xr.DataArray, by: Sequence[Any]) -> list[xr.DataArray]:
    """Return labels as DataArrays; they may be names of coordinates.

    Raises
    ------
    KeyError
        If there is no such coordinate.
    TypeError, ValueError
        If labels have no name, have a MultiIndex, or do not fit the array.
    """
    if not by:
        raise TypeError("groups need labels: coop.groupby_reduce('time.month', func='mean')")
    labels = [label if isinstance(label, xr.DataArray) else _coordinate(x, label) for label in by]
    for label in labels:
        if label.name is None:
            raise ValueError(
                "a dimension of groups is named as their labels, and these have no name; "
                "labels.rename('zone') gives one"
            )
        if (
            label.dims == (label.name,)
            and label.name in label.indexes
            and label.to_index().nlevels > 1
        ):
            levels = ", ".join(map(repr, label.to_index().names))
            raise TypeError(f"{label.name!r} has a MultiIndex; group by levels of it: {levels}")
        if unknown := [dim for dim in label.dims if dim not in x.dims]:
            raise ValueError(
                f"labels {label.name!r} have the dimensions {label.dims}, and the array, of "
                f"dimensions {x.dims}, has no {unknown[0]!r}"
            )
        xr.align(x, label, join="exact", copy=False)
    return labels


def _coordinate(x: xr.DataArray, name: Hashable) -> xr.DataArray:
    # xarray would take anything but a name for an index.
    if isinstance(name, str) or name in x.coords:
        with suppress(KeyError):
            return x[name]
    raise KeyError(
        f"there is no coordinate {name!r} to group by; there are {[*x.coords]}, and of dates such "
        "as 'time' also 'time.month'"
    )


def _dims_of(x: xr.DataArray, labels: Sequence[xr.DataArray]) -> list[Hashable]:
    return [dim for dim in x.dims if any(dim in label.dims for label in labels)]


def _data(label: xr.DataArray, dims: Sequence[Hashable]) -> Any:
    """Return the data of a label along `dims`, with length one along dimensions it lacks."""
    data = label.transpose(*(dim for dim in dims if dim in label.dims)).data
    return data[tuple(slice(None) if dim in label.dims else None for dim in dims)]


def _with_skipna(func: Any, skips: bool) -> Any:
    return f"nan{func}" if skips and isinstance(func, str) and f"nan{func}" in _NAMES else func


def _coordinates(
    labels: Sequence[xr.DataArray], groups: Sequence[Any], options: GroupOptions
) -> dict[Hashable, xr.Variable]:
    """Return the groups of each label as a coordinate, by the name of its dimension."""
    import pandas as pd  # type: ignore[import-untyped]

    count = len(labels)
    bins = [options.isbin] * count if isinstance(options.isbin, bool) else [*options.isbin]
    coords = {}
    expected = _expected(options, count)
    for label, values, isbin, of_label in zip(labels, groups, bins, expected, strict=True):
        binned = isbin or type(of_label).__name__ == "IntervalIndex"
        name = f"{label.name}_bins" if binned else label.name
        # With an index of intervals, `sel` finds the bin of a value.
        index = pd.IntervalIndex(values) if binned else values
        coords[name] = xr.Variable(name, index, label.attrs)
    return coords


def _expected(options: GroupOptions, count: int) -> Sequence[Any]:
    """Return the expected groups of each label, or None for each."""
    groups = options.expected_groups
    return groups if isinstance(groups, tuple) and len(groups) == count else [groups] * count


def _labeller(
    x: xr.DataArray,
    labels: Sequence[xr.DataArray],
    coords: Mapping[Hashable, xr.Variable],
    left: Sequence[Hashable],
    options: GroupOptions,
) -> Callable[[Any], xr.DataArray]:
    """Return a function that labels results along the `left` dimensions, and those of groups."""
    lost = [dim for dim in x.dims if dim not in left]
    q = dict(options.finalize_kwargs or {}).get("q")
    order = [*left, *coords]
    if len(labels) == 1 and labels[0].ndim == 1:
        # The dimension of groups takes the place of the labels' dimension.
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
