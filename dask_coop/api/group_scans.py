"""Scans of groups: elements side by side with those of their group, scanned with restarts.

::

    x       3 1 4 1 5          3 4 | 1 1 5            3 7 | 1 2 7            3 1 7 2 7
    groups  a b a b b   -->    a a | b b b   --scan-->               -->
"""

from __future__ import annotations

import itertools
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array, asanyarray
from dask.array.utils import validate_axis
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task
from dask.tokenize import tokenize
from dask.utils import cached_cumsum

from dask_coop import chunks
from dask_coop.api import cumulative
from dask_coop.api.arguments import without_empty
from dask_coop.api.group_labels import find_labels
from dask_coop.api.group_quantiles import of_rows
from dask_coop.api.group_statistics import missing
from dask_coop.api.monoid import Monoid, scan
from dask_coop.api.public import Engine, public
from dask_coop.errors import Declined
from dask_coop.graph import executor
from dask_coop.graph.grouped import Known

#: The scans that there are by name.
_SCANS = {
    function.__name__: function
    for function in (
        cumulative.cumsum,
        cumulative.cumprod,
        cumulative.nancumsum,
        cumulative.nancumprod,
        cumulative.cummax,
        cumulative.cummin,
        cumulative.logcumsumexp,
    )
}


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
    by : array_like
        Labels that are known, as for :func:`groupby_reduce`.
    func : str or Monoid
        "cumsum", "nancumsum", "cumprod", "nancumprod", "cummax", "cummin", "logcumsumexp", or a
        :class:`Monoid`.
    expected_groups : array_like, or tuple with one for each label, optional
        The groups that are scanned, by default all.
    axis : int
        The axis to scan along, one of the labels'.
    dtype : dtype, optional
        That of the result.
    method : None
        For flox's signature.
    engine : {"auto", "collective"}
        "collective" is declined, so that a graph takes over: the elements of a group are put side
        by side by tasks, and so is what says where scans restart.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape of `array`, with chunks of the kind of its. Elements that are in no group
        are NaN, or the lowest integer.

    Raises
    ------
    TypeError
        If the scan does not take elements of that dtype.
    ValueError
        If there is no such scan, or labels are lazy, or do not fit the array.

    Notes
    -----
    Where the elements of a group are not side by side they are put there, and back, which moves all
    of the array; labels in runs, such as days, cost no more than a scan with segments.

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
    if not (isinstance(func, Monoid) or func in _SCANS):
        raise ValueError(
            f"groupby_scan does not know func={func!r}; it takes {', '.join(_SCANS)} or a Monoid"
        )
    if executor.runner() is not None:
        raise Declined("the elements of each group are put side by side by tasks")
    labels, _ = find_labels("groupby_scan", by, x, expected_groups, False, False)
    if not isinstance(labels, Known):
        raise ValueError("groupby_scan needs labels that are known; compute them first")
    return _scanned(x, labels, func, validate_axis(axis, x.ndim), dtype)


def _scanned(x: da.Array, labels: Known, func: Any, axis: int, dtype: Any) -> da.Array:
    first = x.ndim - labels.ndim
    if axis < first:
        raise ValueError(f"axis={axis} is none that labels are along, {first} to {x.ndim - 1}")
    # The axis of the scan is the last one, and the others of the labels are before it.
    last = axis == x.ndim - 1
    moved = x if last else da.moveaxis(x, axis, -1)
    codes = np.moveaxis(labels.codes, axis - first, -1)
    codes, _ = of_rows(Known(codes, labels.ndim - 1), moved.shape[first:], int(codes.max()) + 1)
    flat = moved.reshape(*moved.shape[:first], -1) if labels.ndim > 1 else moved
    order = np.argsort(codes, kind="stable")
    in_runs = codes if np.array_equal(order, np.arange(len(order))) else codes[order]
    apart = in_runs is not codes
    sorted_ = flat[..., order] if apart else flat
    found = _scan(sorted_, func, np.append(True, np.diff(in_runs) != 0)[: len(in_runs)], dtype)
    if (in_runs < 0).any():
        outside = _of_kind(in_runs < 0, found, "no-group")
        found = da.where(outside, missing(found.dtype), found).astype(found.dtype)
    if apart:
        found = found[..., np.argsort(order)].rechunk(flat.chunks)
    found = found.reshape(moved.shape) if labels.ndim > 1 else found
    return (found if last else da.moveaxis(found, -1, axis)).rechunk(x.chunks)


def _scan(x: da.Array, func: Any, heads: np.ndarray[Any, Any], dtype: Any) -> da.Array:
    segments, axis = _of_kind(heads, x, "group-begins"), x.ndim - 1
    if isinstance(func, Monoid):
        result: da.Array = scan(x, func, axis=axis, dtype=dtype, segments=segments)
        return result
    given = {} if dtype is None else {"dtype": dtype}
    return _SCANS[func](x, axis=axis, segments=segments, **given)


def _of_kind(mask: np.ndarray[Any, Any], x: da.Array, prefix: str) -> da.Array:
    """Return a mask of the host in the chunks of the last axis of `x`, and of its kind."""
    ends = cached_cumsum(x.chunks[-1], initial_zero=True)
    name, to = f"{prefix}-{tokenize(mask, x.chunks[-1])}", chunks.kind(x._meta)
    layer = {
        (name, i): Task((name, i), chunks.asarray, mask[start:stop], to)
        for i, (start, stop) in enumerate(itertools.pairwise(ends))
    }
    graph = HighLevelGraph.from_collections(name, layer)
    meta = chunks.zeros_like(x._meta, "?", 1)
    return Array(graph, name, (x.chunks[-1],), meta=meta)
