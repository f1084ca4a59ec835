"""Scans of groups: the elements of each group are gathered, and the scan restarts at each group.

::

    x       3 1 4 1 5          3 4 | 1 1 5            3 7 | 1 2 7            3 1 7 2 7
    groups  a b a b b   -->    a a | b b b   --scan-->               -->

Labels in runs need no gathering: each run is a segment of a scan. Other labels are gathered within
each chunk, whose scan continues from the states of its groups in earlier chunks
(graph/group_scans.py). For a user's monoid and in CuPy chunks, known labels are gathered across the
whole array.
"""

from __future__ import annotations

from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, broadcast_to, elemwise, from_array, map_blocks
from dask.array.utils import validate_axis

from dask_coop import chunks
from dask_coop.algebra.fills import fill
from dask_coop.algebra.statistics import SCANS, ScanRow
from dask_coop.api import cumulative, fills
from dask_coop.api.arguments import as_declared, rechunk, reshaped, without_empty
from dask_coop.api.call.public import Engine, public
from dask_coop.api.groups.labels import find_labels
from dask_coop.api.groups.quantiles import of_rows
from dask_coop.api.groups.statistics import missing
from dask_coop.api.monoids.monoid import Monoid, scan
from dask_coop.api.scan_arguments import bind_row
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.labels import Coder
from dask_coop.errors import Declined, Refused
from dask_coop.graph import executor, group_scans
from dask_coop.graph.found_groups import Found
from dask_coop.graph.grouped import Known, Lazy

#: The scans by name.
ROWS = SCANS | dict.fromkeys(("ffill", "bfill"), ScanRow(fill(None), times="mM"))

# fmt: off
ScanName = Literal[
    "cumsum", "nancumsum", "cumprod", "nancumprod", "cummax", "cummin", "logcumsumexp", "ffill",
    "bfill",
]
# fmt: on


@public("scan", dask=False)
def groupby_scan(
    array: Any,
    *by: Any,
    func: ScanName | Monoid,
    expected_groups: Any = None,
    axis: int = -1,
    dtype: Any = None,
    method: None = None,
    engine: Engine = "auto",
) -> da.Array:
    """Scan the elements of each group along an axis.

    Parameters
    ----------
    array : dask.array.Array or array_like
        The elements to scan, in NumPy or CuPy chunks.
    by : array_like or dask.array.Array
        Labels, as for :func:`groupby_reduce`.
    func : str or Monoid
        "cumsum", "nancumsum", "cumprod", "nancumprod", "cummax", "cummin", "logcumsumexp", "ffill",
        "bfill", or a :class:`Monoid`.
    expected_groups : array_like, or tuple with one for each label, optional
        The groups to scan, by default all.
    axis : int
        The axis to scan along, one of the labels'.
    dtype : dtype, optional
        The dtype of the result; "ffill" and "bfill" ignore it.
    method : None
        Only None; part of flox's signature.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.sum`; but the call always runs as a graph, whose tasks gather the
        elements of each group.

    Returns
    -------
    dask.array.Array
        Lazy, with the shape and the kind of chunks of `array`. Elements that belong to no group are
        NaN, NaT or the lowest integer.

    Raises
    ------
    TypeError
        If the scan does not take elements of that dtype, or `func` is a :class:`Monoid` and labels
        are lazy.
    ValueError
        If `func` is unknown, labels do not fit the array, or one of several labels is lazy and
        `expected_groups` is missing.

    Notes
    -----
    Known labels in runs, such as days, cost no more than a scan with segments. Other labels, and
    lazy ones, are sorted within each chunk, whose scan continues from the states of its groups in
    earlier chunks. For a :class:`Monoid` and in CuPy chunks, known labels are sorted across the
    whole array, which moves all its elements there and back.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.groupby_scan(da.arange(5, chunks=2), [0, 1, 0, 1, 1], func="cumsum").compute()
    array([0, 1, 2, 4, 8])
    """
    x = without_empty(asanyarray(array))
    chunks.kind(x._meta, "array")
    chunks.refuse_masked("groupby_scan", x._meta)
    if method is not None:
        raise ValueError(f"method is None in groupby_scan, got {method!r}")
    if not (isinstance(func, Monoid) or func in ROWS):
        raise ValueError(
            f"groupby_scan does not know func={func!r}; it takes {', '.join(ROWS)} or a Monoid"
        )
    axis = validate_axis(axis, x.ndim)
    if executor.runner() is not None:
        raise Declined("the elements of each group are put side by side by tasks")
    if func in ("ffill", "bfill") and x.dtype.kind in "biu":
        return as_declared(x)
    labels, _ = find_labels("groupby_scan", by, x, expected_groups, False, False)
    first = x.ndim - labels.ndim
    if axis < first:
        raise ValueError(f"axis={axis} is not an axis of the labels: {first} to {x.ndim - 1}")
    # Move the axis of the scan behind the other axes of the labels.
    moved = _last(x, axis)
    if isinstance(labels, Known):
        labels = Known(np.moveaxis(labels.codes, axis - first, -1), labels.ndim - 1)
        scanned = _of_known(moved, labels, func, dtype)
    elif isinstance(func, Monoid):
        raise Refused("groupby_scan by a Monoid takes labels that are known; compute them first")
    else:
        scanned = _by_tables(moved, *_lazy_codes(labels, axis - first), func, dtype)
    order = (*range(axis), x.ndim - 1, *range(axis, x.ndim - 1))
    return rechunk(scanned.transpose(order), x.chunks)


def _last(x: da.Array, axis: int) -> da.Array:
    """Return an array with one of its axes last."""
    # Dask skips a transpose that changes nothing if its axes are a tuple, but not a list.
    return x.transpose((*(d for d in range(x.ndim) if d != axis), axis))


def _of_known(x: da.Array, labels: Known, func: Any, dtype: Any) -> da.Array:
    first = x.ndim - labels.ndim
    n = int(labels.codes.max(initial=-1)) + 1
    codes, _ = of_rows(labels, x.shape[first:], n)
    has_runs = bool((codes[1:] >= codes[:-1]).all())
    if not (has_runs or isinstance(func, Monoid)) and chunks.kind(x._meta) == "numpy":
        like_x = x.chunks[first:]
        sizes = tuple(
            (1,) if k == 1 else c for k, c in zip(labels.codes.shape, like_x, strict=True)
        )
        lazy = from_array(labels.codes, chunks=sizes)
        return _by_tables(x, broadcast_to(lazy, x.shape[first:], like_x), True, func, dtype)
    flat = reshaped(x, (*x.shape[:first], codes.size)) if labels.ndim > 1 else x
    order = np.argsort(codes, kind="stable")
    in_runs = codes if has_runs else codes[order]
    result = _by_segments(flat if has_runs else flat[..., order], func, in_runs, dtype)
    if (in_runs < 0).any():
        outside = group_scans.mask(in_runs < 0, result, "no-group")
        result = elemwise(np.where, outside, missing(result.dtype), result).astype(result.dtype)
    if not has_runs:
        result = result[..., np.argsort(order)].rechunk(flat.chunks)
    return reshaped(result, x.shape) if labels.ndim > 1 else result


def _by_segments(x: da.Array, func: Any, codes: np.ndarray[Any, Any], dtype: Any) -> da.Array:
    """Return the scans of groups whose labels are runs."""
    changes, end = np.diff(codes) != 0, np.ones(min(len(codes), 1), "?")
    # Backwards, the last element of a segment begins it.
    heads = np.append(changes, end) if func == "bfill" else np.append(end, changes)
    segments, axis = group_scans.mask(heads, x, "group-begins"), x.ndim - 1
    if isinstance(func, Monoid):
        result: da.Array = scan(x, func, axis=axis, dtype=dtype, segments=segments)
        return result
    options = {} if dtype is None or func in ("ffill", "bfill") else {"dtype": dtype}
    function = getattr(fills if func in ("ffill", "bfill") else cumulative, func)
    return function(x, axis=axis, segments=segments, **options)


def _lazy_codes(labels: Lazy | Found, axis: int) -> tuple[da.Array, bool]:
    """Return lazy labels with the axis of the scan last, and whether they are codes."""
    if isinstance(labels, Found):
        return _last(labels.label, axis), False
    like = chunks.zeros_like(labels.arrays[0]._meta, "i8")
    options = {**declared_by(*labels.arrays), "dtype": "i8", "meta": like}
    codes = map_blocks(_codes, *labels.arrays, coder=labels.coder, **options)
    return _last(codes, axis), True


def _by_tables(x: da.Array, label: da.Array, are_codes: bool, func: str, dtype: Any) -> da.Array:
    """Return the scans of groups whose labels are in any order."""
    if func in ("ffill", "bfill"):
        dtype = None
    op, x = bind_row(ROWS[func], f"groupby_scan by {func}", x, dtype)
    backwards = func == "bfill"
    if backwards:
        x, label = x[..., ::-1], label[..., ::-1]
    outside = missing(op.output)
    result = group_scans.scan(op, x, label, are_codes, outside, f"groupby-{func}")
    return result[..., ::-1] if backwards else result


# Inside the task.


@casts
def _codes(*labels: Any, coder: Coder) -> Any:
    return coder.codes(labels)
