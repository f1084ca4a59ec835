"""Scans of groups: elements side by side with those of their group, scanned with restarts.

::

    x       3 1 4 1 5          3 4 | 1 1 5            3 7 | 1 2 7            3 1 7 2 7
    groups  a b a b b   -->    a a | b b b   --scan-->               -->

Labels in runs are segments of a scan as they are. Elsewhere that is done within each chunk, from
what the groups are before it (graph/group_scans.py); but for one's own monoid, and in chunks on a
GPU, with all elements of known labels.
"""

from __future__ import annotations

from typing import Any

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

#: The scans that there are by name.
ROWS = SCANS | dict.fromkeys(("ffill", "bfill"), ScanRow(fill(None), times="mM"))


@public("scan", dask=False)
def groupby_scan(
    array: Any,
    *by: Any,
    func: Any,
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
        Elements that the scan takes, in NumPy or CuPy chunks.
    by : array_like or dask.array.Array
        Labels, as for :func:`groupby_reduce`.
    func : str or Monoid
        "cumsum", "nancumsum", "cumprod", "nancumprod", "cummax", "cummin", "logcumsumexp", "ffill",
        "bfill", or a :class:`Monoid`.
    expected_groups : array_like, or tuple with one for each label, optional
        The groups that are scanned, by default all.
    axis : int
        The axis to scan along, one of the labels'.
    dtype : dtype, optional
        That of the result; filled elements keep theirs.
    method : None
        For flox's signature.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.sum`, but that a graph always takes over: the elements of a group
        are put side by side by tasks, and so is what says where scans restart.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape of `array`, with chunks of the kind of its. Elements that are in no group
        are NaN, or the lowest integer.

    Raises
    ------
    TypeError
        If the scan does not take elements of that dtype, or is that of a :class:`Monoid` and labels
        are lazy.
    ValueError
        If there is no such scan, labels do not fit the array, or one of several that is lazy comes
        without `expected_groups`.

    Notes
    -----
    Known labels in runs, such as days, cost no more than a scan with segments. Others, and lazy
    ones, are sorted within each chunk, which is scanned from what each group is before it; of a
    :class:`Monoid`, and in CuPy chunks, all elements of a known group are put side by side, and
    back, which moves the array.

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
        raise ValueError(f"axis={axis} is none that labels are along, {first} to {x.ndim - 1}")
    # The axis of the scan is the last one, and the others of the labels are before it.
    moved = _last(x, axis)
    if isinstance(labels, Known):
        labels = Known(np.moveaxis(labels.codes, axis - first, -1), labels.ndim - 1)
        found = _of_known(moved, labels, func, dtype)
    elif isinstance(func, Monoid):
        raise Refused("groupby_scan by a Monoid takes labels that are known; compute them first")
    else:
        found = _by_tables(moved, *_lazy_codes(labels, axis - first), func, dtype)
    order = (*range(axis), x.ndim - 1, *range(axis, x.ndim - 1))
    return rechunk(found.transpose(order), x.chunks)


def _last(x: da.Array, axis: int) -> da.Array:
    """Return an array with one of its axes behind the others."""
    # A tuple of axes that stay where they are is no work for Dask, and a list is.
    return x.transpose((*(d for d in range(x.ndim) if d != axis), axis))


def _of_known(x: da.Array, labels: Known, func: Any, dtype: Any) -> da.Array:
    first = x.ndim - labels.ndim
    n = int(labels.codes.max(initial=-1)) + 1
    codes, _ = of_rows(labels, x.shape[first:], n)
    has_runs = bool((codes[1:] >= codes[:-1]).all())
    if not (has_runs or isinstance(func, Monoid)) and chunks.kind(x._meta) == "numpy":
        like_x = x.chunks[first:]
        own = tuple((1,) if k == 1 else c for k, c in zip(labels.codes.shape, like_x, strict=True))
        lazy = from_array(labels.codes, chunks=own)
        return _by_tables(x, broadcast_to(lazy, x.shape[first:], like_x), True, func, dtype)
    flat = reshaped(x, (*x.shape[:first], codes.size)) if labels.ndim > 1 else x
    order = np.argsort(codes, kind="stable")
    in_runs = codes if has_runs else codes[order]
    found = _by_segments(flat if has_runs else flat[..., order], func, in_runs, dtype)
    if (in_runs < 0).any():
        outside = group_scans.mask(in_runs < 0, found, "no-group")
        found = elemwise(np.where, outside, missing(found.dtype), found).astype(found.dtype)
    if not has_runs:
        found = found[..., np.argsort(order)].rechunk(flat.chunks)
    return reshaped(found, x.shape) if labels.ndim > 1 else found


def _by_segments(x: da.Array, func: Any, codes: np.ndarray[Any, Any], dtype: Any) -> da.Array:
    """Return scans of labels in runs."""
    changes, end = np.diff(codes) != 0, np.ones(min(len(codes), 1), "?")
    # Backwards, an element that begins a segment is the last of it.
    heads = np.append(changes, end) if func == "bfill" else np.append(end, changes)
    segments, axis = group_scans.mask(heads, x, "group-begins"), x.ndim - 1
    if isinstance(func, Monoid):
        result: da.Array = scan(x, func, axis=axis, dtype=dtype, segments=segments)
        return result
    given = {} if dtype is None or func in ("ffill", "bfill") else {"dtype": dtype}
    function = getattr(fills if func in ("ffill", "bfill") else cumulative, func)
    return function(x, axis=axis, segments=segments, **given)


def _lazy_codes(labels: Lazy | Found, axis: int) -> tuple[da.Array, bool]:
    """Return lazy labels with the axis of the scan last, and whether they are codes."""
    if isinstance(labels, Found):
        return _last(labels.label, axis), False
    like = chunks.zeros_like(labels.arrays[0]._meta, "i8")
    given = {**declared_by(*labels.arrays), "dtype": "i8", "meta": like}
    codes = map_blocks(_codes, *labels.arrays, coder=labels.coder, **given)
    return _last(codes, axis), True


def _by_tables(x: da.Array, label: da.Array, are_codes: bool, func: str, dtype: Any) -> da.Array:
    """Return scans of labels in any order."""
    if func in ("ffill", "bfill"):
        dtype = None
    op, x = bind_row(ROWS[func], f"groupby_scan by {func}", x, dtype)
    backwards = func == "bfill"
    if backwards:
        x, label = x[..., ::-1], label[..., ::-1]
    outside = missing(op.output)
    found = group_scans.scan(op, x, label, are_codes, outside, f"groupby-{func}")
    return found[..., ::-1] if backwards else found


# Inside the task.


@casts
def _codes(*labels: Any, coder: Coder) -> Any:
    return coder.codes(labels)
