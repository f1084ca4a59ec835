"""Runs of a mask: true elements one after another along an axis, across chunks.

The definitions are those of xclim's ``indices.run_length``. Statistics are ordered reductions, of
which a state has the runs at its ends (`algebra/runs.py`); lengths take two scans::

    mask --scan--> place of each element in its run --scan from the end--> lengths at first elements
"""

from __future__ import annotations

from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, concatenate, map_blocks
from dask.array.creation import zeros_like
from dask.array.utils import validate_axis

from dask_coop.algebra.monoids import RUN_LENGTHS, RUN_PLACES
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.runs import Statistic, runs
from dask_coop.api.arguments import SplitEvery, as_integer, placed_along, require_known_sizes
from dask_coop.api.call.public import Engine, like, named, public
from dask_coop.api.call.results import RunEvents
from dask_coop.api.cumulative import cumsum
from dask_coop.api.scan_arguments import ScanArguments, flags_beside, scan_bound
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.masks import refuse_masked
from dask_coop.errors import Declined, Refused
from dask_coop.graph import executor
from dask_coop.graph import reduce as graph_reduce

_STATISTICS: dict[str, Statistic] = {
    "longest_run": "longest",
    "count_runs": "runs",
    "count_in_runs": "elements",
    "first_run": "first",
    "last_run": "last",
}


@public("reduction", dask=False)
def longest_run(
    mask: Any,
    axis: int = -1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Find the length of the longest run of true elements along an axis.

    Parameters
    ----------
    mask : dask.array.Array or array_like
        Bool, in NumPy or CuPy chunks.
    axis : int
        The axis to look along.
    keepdims, split_every
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, int64, 0 where there is no true element.

    Raises
    ------
    TypeError
        If `mask` is not bool, or is a masked array.
    AxisError, ValueError
        If `mask` has no such axis, or `split_every` is less than 2.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> hot = da.from_array([True, False, True, True, True, False], chunks=4)
    >>> int(dc.longest_run(hot))
    3
    """
    return _reduce("longest_run", mask, axis, 1, keepdims, split_every)


@public("reduction", dask=False)
@named
def count_runs(
    name: str,
    /,
    mask: Any,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Count the runs of at least a number of true elements along an axis.

    Parameters
    ----------
    mask : dask.array.Array or array_like
        Bool, in NumPy or CuPy chunks.
    axis : int
        The axis to look along.
    min_length : int
        The smallest number of elements of a run that counts.
    keepdims, split_every
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, int64.

    Raises
    ------
    TypeError
        If `mask` is not bool, or is a masked array, or `min_length` is not an integer.
    AxisError, ValueError
        If `mask` has no such axis, or `min_length` is less than 1, or `split_every` less than 2.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> hot = da.from_array([True, False, True, True, True, False], chunks=4)
    >>> int(dc.count_runs(hot)), int(dc.count_runs(hot, min_length=2))
    (2, 1)
    """
    return _reduce(name, mask, axis, min_length, keepdims, split_every)


@like(count_runs)
def count_in_runs() -> None:
    """Count the elements of runs of at least a number of true elements along an axis.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> hot = da.from_array([True, False, True, True, True, False], chunks=4)
    >>> int(dc.count_in_runs(hot, min_length=2))
    3
    """


@like(count_runs)
def first_run() -> None:
    """Find the index of the first element of the first run that is long enough along an axis.

    Returns
    -------
    dask.array.Array
        Lazy, float64, NaN where there is no such run.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> hot = da.from_array([True, False, True, True, True, False], chunks=4)
    >>> float(dc.first_run(hot, min_length=2))
    2.0
    """


@like(count_runs)
def last_run() -> None:
    """Find the index of the last element of the last run that is long enough along an axis.

    Returns
    -------
    dask.array.Array
        Lazy, float64, NaN where there is no such run.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> hot = da.from_array([True, False, True, True, True, False], chunks=4)
    >>> float(dc.last_run(hot, min_length=2))
    4.0
    """


@public("scan", dask=False)
def run_lengths(
    mask: Any,
    axis: int = -1,
    index: Literal["first", "last"] = "first",
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array:
    """Find the length of each run of true elements along an axis, at its first or last element.

    Parameters
    ----------
    mask : dask.array.Array or array_like
        Bool, in NumPy or CuPy chunks.
    axis : int
        The axis to look along.
    index : {"first", "last"}
        The element of a run that gets its length.
    method : {"reduce-then-scan", "blelloch", "sequential", "recompute"}
        As for :func:`dask_coop.cumsum`.
    segments : dask.array.Array or array_like, optional
        Bool, of the shape of `mask` or of its axis: runs end before an element that is true here,
        such as the first day of a year.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`, but a graph always takes over, since lengths take a scan of
        what tasks make of the chunks.

    Returns
    -------
    dask.array.Array
        Lazy, float64, in `mask`'s chunks: 0 where `mask` is false, NaN at other elements of a run.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`dask_coop.cumsum`, and if `mask` is not bool, or `index` neither word.

    Notes
    -----
    This is xclim's ``rle``. Statistics of runs by group are those of lengths: with `segments` at
    the first elements of years, ``groupby_reduce(lengths, years, func="nanmax")`` finds the longest
    run within each year; without, runs count for the year in which they begin.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> hot = da.from_array([True, True, False, True, True, True], chunks=4)
    >>> dc.run_lengths(hot).compute()
    array([ 2., nan,  0.,  3., nan, nan])
    >>> dc.run_lengths(hot, segments=[False] * 5 + [True]).compute()
    array([ 2., nan,  0.,  2., nan,  1.])
    """
    if index not in ("first", "last"):
        raise ValueError(f'index must be "first" or "last", got {index!r}')
    if executor.runner() is not None:
        raise Declined("lengths of runs take a scan of what tasks make of the chunks")
    x, axis = _as_mask("run_lengths", mask, axis)
    return _lengths(x, axis, index == "last", method, segments)


@public("scan", dask=False)
def run_events(
    mask: Any,
    values: Any = None,
    axis: int = -1,
    min_length: int = 1,
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> RunEvents:
    """Find where runs of true elements begin along an axis, their lengths, and sums over them.

    Parameters
    ----------
    mask : dask.array.Array or array_like
        Bool, in NumPy or CuPy chunks.
    values : dask.array.Array or array_like, optional
        Numbers to add up over each run, of the shape of `mask`.
    axis : int
        The axis to look along.
    min_length : int
        The smallest number of elements of a run that counts.
    method, segments, engine
        As for :func:`run_lengths`.

    Returns
    -------
    RunEvents
        Lazy arrays ``start, length, sum`` in the shape and chunks of `mask`. `start` is true at the
        first element of each run that counts. There `length` is its length and `sum` the sum of
        `values` over it; elsewhere both are 0. Without `values`, `sum` is None.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`run_lengths`; if `values` has another shape than `mask`, or `min_length` is
        not a positive integer.

    Notes
    -----
    The number of events is not known before they are computed. ``select(events.length,
    events.start)`` lists their lengths, ``argwhere(events.start)`` where they begin.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> degrees = da.from_array([31, 20, 33, 35, 32, 18], chunks=4)
    >>> events = dc.run_events(degrees > 30, degrees - 30, min_length=2)
    >>> events.length.compute()
    array([0, 0, 3, 0, 0, 0])
    >>> events.sum.compute()
    array([ 0,  0, 10,  0,  0,  0])
    """
    if executor.runner() is not None:
        raise Declined("lengths of runs take a scan of what tasks make of the chunks")
    x, axis = _as_mask("run_events", mask, axis)
    least = _as_length("run_events", min_length)
    lengths = _lengths(x, axis, False, method, segments)
    options = {"least": least, "token": "run_events"}
    start = map_blocks(_begins, lengths, **options, dtype="?", meta=x._meta)
    kept = {"dtype": "i8", "meta": lengths._meta.astype("i8"), "token": "run_events-length"}
    length = map_blocks(_length, start, lengths, **kept)
    if values is None:
        return RunEvents(start, length, None)
    numbers = asanyarray(values)
    refuse_masked("run_events", numbers._meta)
    require_known_sizes("run_events", x, numbers)
    if numbers.shape != x.shape:
        raise ValueError(f"values must have the shape of mask, {x.shape}, got {numbers.shape}")
    numbers = numbers.rechunk(x.chunks)
    masked = {"dtype": numbers.dtype, "meta": numbers._meta, "token": "run_events-values"}
    within = map_blocks(_where, x, numbers, **declared_by(x, numbers), **masked)
    stops = ~x
    if segments is not None:
        last = _last_of_segments(segments, x, axis)
        stops |= last if last.ndim == x.ndim else placed_along(last, (axis,), x.ndim)
    sums = cumsum(within, axis, reverse=True, segments=stops, method=method)
    summed = {"dtype": sums.dtype, "meta": sums._meta, "token": "run_events-sum"}
    total = map_blocks(_where, start, sums, **declared_by(start, sums), **summed)
    return RunEvents(start, length, total)


def _as_mask(name: str, mask: Any, axis: int) -> tuple[da.Array, int]:
    """Return a mask as a Dask array, and its axis, not negative."""
    x = asanyarray(mask)
    refuse_masked(name, x._meta)
    if x.dtype != np.dtype("?"):
        raise Refused(
            f"{name} takes a mask of bool, got dtype {x.dtype}; compare first, as in x > 0"
        )
    if axis is None and x.ndim != 1:
        raise TypeError(f"{name} looks along one axis, and the mask has {x.ndim}; name one of them")
    along = 0 if axis is None else as_integer(name, "axis", axis)
    return x, validate_axis(along, x.ndim)


def _as_length(name: str, min_length: int) -> int:
    least = as_integer(name, "min_length", min_length)
    if least < 1:
        raise ValueError(f"min_length of {name} must be at least 1, got {least}")
    return least


def _reduce(
    name: str, mask: Any, axis: int, min_length: int, keepdims: bool, split_every: SplitEvery
) -> da.Array:
    x, axis = _as_mask(name, mask, axis)
    monoid = runs(_STATISTICS[name], _as_length(name, min_length))
    output = np.dtype("f8" if name in ("first_run", "last_run") else "i8")
    op = Operation(monoid, x.dtype, output)
    outputs = {name: (monoid.finish, output)}
    (lazy,) = graph_reduce.reduction(op, x, (axis,), keepdims, split_every, outputs)
    return lazy


def _lengths(x: da.Array, axis: int, at_ends: bool, method: str, segments: Any) -> da.Array:
    byte, double = np.dtype("u1"), np.dtype("f8")
    if at_ends and segments is not None:
        segments = _last_of_segments(segments, x, axis)
    arguments = ScanArguments(axis, None, method, False, at_ends, False, segments)
    places = scan_bound(Operation(RUN_PLACES, x.dtype, byte), "run_places", x, arguments)
    arguments = arguments._replace(reverse=not at_ends, segments=None)
    return scan_bound(Operation(RUN_LENGTHS, byte, double), "run_lengths", places, arguments)


def _last_of_segments(segments: Any, x: da.Array, axis: int) -> da.Array:
    """Return the flags of last elements of segments, from those of first ones."""
    heads = flags_beside(x, segments)
    axis = axis if heads.ndim == x.ndim else 0
    first, others = (heads[(slice(None),) * axis + (part,)] for part in (slice(1), slice(1, None)))
    return concatenate([others, zeros_like(first)], axis)


# Inside tasks.


def _begins(lengths: Any, least: int) -> Any:
    return lengths >= least


def _length(chosen: Any, lengths: Any) -> Any:
    return np.where(chosen, lengths, 0).astype("i8")


@casts
def _where(chosen: Any, values: Any) -> Any:
    return np.where(chosen, values, values.dtype.type(0))
