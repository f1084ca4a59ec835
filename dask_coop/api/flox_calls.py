"""Functions with the signatures and options of flox's `groupby_reduce` and `groupby_scan`.

They raise Refused for options that this library lacks, and for those that flox rejects. Code that
puts these functions in place of flox's then calls flox's, which serve the call or report what is
wrong with it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from dask.array.core import asanyarray
from dask.base import is_dask_collection

from dask_coop.algebra.monoids import sum_dtype
from dask_coop.api.call.public import strict
from dask_coop.api.groups import reduce as grouped
from dask_coop.api.groups import scan as group_scans
from dask_coop.api.groups.labels import find_labels
from dask_coop.api.groups.statistics import missing
from dask_coop.errors import Refused
from dask_coop.graph.grouped import Known

#: Reductions that return one element of each group, in the dtype of the array.
_PICKING = {"min", "max", "nanmin", "nanmax", "first", "last", "nanfirst", "nanlast"}

#: flox's reductions.
_REDUCTIONS = _PICKING | {"any", "all", "count"}
_REDUCTIONS |= {
    f"{nan}{name}"
    for nan in ("", "nan")
    for name in [
        "sum",
        "prod",
        "mean",
        "var",
        "std",
        "argmin",
        "argmax",
        "median",
        "quantile",
        "mode",
    ]
}

#: Sums and products of no elements.
_EMPTY = {"sum": 0, "nansum": 0, "prod": 1, "nanprod": 1}

_SCANS = {"cumsum", "nancumsum", "ffill", "bfill"}


def groupby_reduce(
    array: Any,
    *by: Any,
    func: Any,
    expected_groups: Any = None,
    sort: bool = True,
    isbin: Any = False,
    axis: Any = None,
    fill_value: Any = None,
    dtype: Any = None,
    min_count: int | None = None,
    method: str | None = None,
    engine: str | None = None,
    reindex: Any = None,
    finalize_kwargs: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """Return the results of ``flox.groupby_reduce``, by :func:`dask_coop.groupby_reduce`.

    `method`, `engine` and `reindex` choose how flox works; here they choose nothing.

    Raises
    ------
    Refused
        If this library, or flox itself, does not support the call.
    """
    _require_known(func, _REDUCTIONS, "reduction")
    array, labels = _plain(array), [*map(_plain, by)]
    _refuse_reindexing(reindex, func)
    if func in _PICKING and ("first" in func or "last" in func):
        _refuse_several_axes(func, axis, labels)
    if func in _PICKING and array.dtype.kind == "b" and not (fill_value is None and dtype is None):
        raise Refused(f"{func} of bool stays bool in flox, whatever fill_value and dtype are")
    if array.dtype.kind == "c" and func.endswith(("var", "std")):
        raise Refused(f"{func} of {array.dtype} is complex in flox, and real here")
    if dtype is not None and (_is_na(fill_value) or array.dtype.kind in "mM"):
        raise Refused(
            f"flox returns other values of {array.dtype} with dtype={dtype} than this library"
        )
    if func in ("any", "all") and array.dtype.kind == "f" and _has_numbagg(engine):
        raise Refused(f"flox has numbagg find {func} of {array.dtype}, and NaN is false there")
    bins = expected_groups, isbin
    try:
        if _is_na(fill_value):
            fill_value, dtype = _na(func, array, labels, bins)
        elif min_count == 0 and fill_value is not None and func in _EMPTY:
            if _has_tables_of_all(labels, axis):
                output = sum_dtype(array.dtype) if dtype is None else dtype
                fill_value, dtype = _EMPTY[func], np.result_type(output, fill_value)
            elif _misses_groups(func, array, labels, bins):
                raise Refused(
                    f"whether flox's {func} of a group without elements is {_EMPTY[func]} or "
                    f"{fill_value} depends on its chunks"
                )
        result, *groups = strict(grouped.groupby_reduce)(
            array,
            *labels,
            func=func,
            expected_groups=expected_groups,
            sort=sort,
            isbin=isbin,
            axis=axis,
            fill_value=fill_value,
            dtype=dtype,
            min_count=min_count,
            finalize_kwargs=finalize_kwargs,
        )
    except Refused:
        raise
    except (TypeError, ValueError, LookupError, NotImplementedError) as error:
        raise Refused(str(error)) from error
    wanted = expected_groups if isinstance(expected_groups, tuple) else (expected_groups,)
    if expected_groups is None:
        wanted = (None,) * len(groups)
    of_each = zip(groups, labels, wanted, strict=True)
    return result, *(_named(values, label, expected, sort) for values, label, expected in of_each)


def groupby_scan(
    array: Any,
    *by: Any,
    func: Any,
    expected_groups: Any = None,
    axis: Any = -1,
    dtype: Any = None,
    method: str | None = None,
    engine: str | None = None,
) -> Any:
    """Return the result of ``flox.groupby_scan``, by :func:`dask_coop.groupby_scan`.

    `method` chooses how flox works; here it chooses nothing.

    Raises
    ------
    Refused
        As for :func:`groupby_reduce`.
    """
    _require_known(func, _SCANS, "scan")
    array = _plain(array)
    axes = tuple(axis) if np.ndim(axis) else (axis,)
    if len(axes) != 1:
        raise Refused(f"groups are scanned along one axis, not along {len(axes)}")
    if engine is not None:
        raise Refused("scans of groups have no engine")
    if func in ("ffill", "bfill") and array.dtype.kind != "f":
        raise Refused(f"flox fills no gaps of dtype {array.dtype}")
    labels = [_with_missing(_plain(label), len(by)) for label in by]
    if func == "nancumsum" and _are_alone(labels):
        # flox returns the array unchanged, with its NaN.
        func = "cumsum"
    try:
        return strict(group_scans.groupby_scan)(
            array, *labels, func=func, expected_groups=expected_groups, axis=axes[0], dtype=dtype
        )
    except Refused:
        raise
    except (TypeError, ValueError, LookupError, NotImplementedError) as error:
        raise Refused(str(error)) from error


def _require_known(func: Any, known: set[str], kind: str) -> None:
    if not isinstance(func, str):
        raise Refused(
            f"a {kind} must be a name, got an object of type {type(func).__name__}, "
            "which only flox takes"
        )
    if func not in known:
        raise Refused(f"groups have no {kind} {func!r}; there are {', '.join(sorted(known))}")


def _has_numbagg(engine: str | None) -> bool:
    # Callers of flox, or of ours in its place, have imported it.
    return engine in (None, "numbagg") and getattr(
        sys.modules.get("flox.core"), "HAS_NUMBAGG", False
    )


def _refuse_reindexing(reindex: Any, func: str) -> None:
    """Refuse sparse results, and reductions that flox does not reindex."""
    if getattr(getattr(reindex, "array_type", None), "name", "AUTO") not in ("AUTO", "NUMPY"):
        raise Refused("results of groups are not sparse")
    if reindex is True and ("arg" in func or "first" in func or "last" in func):
        raise Refused(f"flox does not reindex blocks of {func}")


def _refuse_several_axes(func: str, axis: Any, labels: list[Any]) -> None:
    along = np.size(axis) if axis is not None else max(map(np.ndim, labels), default=0)
    if along > 1:
        raise Refused(f"flox has {func} along one axis, not along {along}")


def _is_na(fill_value: Any) -> bool:
    """Return whether a fill value is flox's NA, which is the missing value of any dtype."""
    return type(fill_value).__name__ == "ReprObject" and repr(fill_value) == "<NA>"


def _na(func: str, array: Any, labels: list[Any], bins: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the fill value and the dtype that flox uses for NA."""
    dtype = array.dtype
    if func in _PICKING and dtype.kind in "iu":
        if not _misses_groups(func, array, labels, bins):
            return missing(dtype), None
        if "min" in func or "max" in func:
            raise Refused(f"whether flox makes floats of {dtype} by {func} depends on its chunks")
        return math.nan, np.dtype("f4" if dtype.itemsize <= 2 else "f8")
    if dtype.kind in "mM":
        return missing(dtype), None
    if dtype.kind in "fc" and "arg" not in func and func not in ("any", "all", "count"):
        # As a Python float, which does not make results wider.
        return math.nan, None
    raise Refused(f"{func} of dtype {dtype} has nothing that stands for what is missing")


def _has_tables_of_all(labels: list[Any], axis: Any) -> bool:
    """Return whether flox makes tables of all groups, which start from the sum of no elements."""
    some_axes = axis is not None and np.size(axis) < max(map(np.ndim, labels))
    return some_axes or any(map(is_dask_collection, labels))


def _misses_groups(func: str, array: Any, labels: list[Any], bins: tuple[Any, Any]) -> bool:
    """Return whether some expected group has no label."""
    if any(map(is_dask_collection, labels)):
        raise Refused(
            f"{func} of {array.dtype} by lazy labels may return other values than in flox"
        )
    codes, groups = find_labels("groupby_reduce", labels, asanyarray(array), *bins, False)
    assert isinstance(codes, Known)
    return len(np.unique(codes.codes[codes.codes >= 0])) < math.prod(map(len, groups))


def _plain(x: Any) -> Any:
    """Return the array within an xarray object; convert other values to arrays if needed."""
    if hasattr(x, "dims") and hasattr(x, "data"):
        x = x.data
    return x if is_dask_collection(x) or hasattr(x, "__array_function__") else np.asarray(x)


def _with_missing(label: Any, count: int) -> Any:
    """Return a label in which missing values form a group, as they do in flox's scans."""
    if is_dask_collection(label) or label.dtype.kind not in "fcmMO":
        return label
    if label.dtype.kind == "O" or count > 1:
        raise Refused("scans of groups take one label of numbers or dates")
    codes = np.unique(label, return_inverse=True)[1]
    return codes.reshape(label.shape)


def _are_alone(labels: list[Any]) -> bool:
    """Return whether flox, by its own tests, finds no group of two elements."""
    first = labels[0]
    if any(map(is_dask_collection, labels)):
        return False
    alone = len(labels) == first.ndim == 1 and len(np.unique(first)) == first.size
    return bool(alone or max(labels, key=np.ndim).shape[-1:] == (1,))


def _named(groups: Any, label: Any, expected: Any, sort: bool) -> Any:
    """Return groups in flox's form: that of pandas where they are expected."""
    if expected is None:
        return groups.astype(label.dtype, copy=False) if label.dtype.kind == "O" else groups
    if groups.dtype.kind == "O":
        return groups
    from pandas import Index, RangeIndex  # type: ignore[import-untyped]

    index = expected if isinstance(expected, Index) else Index(np.asarray(expected))
    index = index.sort_values() if sort else index
    return index if isinstance(index, RangeIndex) else index.to_numpy()
