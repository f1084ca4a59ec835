"""Ranks, and how often elements repeat: lexsort, rankdata, mode, nunique, percentiles."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, map_blocks, stack
from dask.array.creation import empty_like
from dask.array.routines import where
from dask.array.utils import validate_axis
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.algebra.operation import Operation, bind
from dask_coop.algebra.registers import MOST_BITS, bits_for, estimate, registers
from dask_coop.api.arguments import (
    Axis,
    SplitEvery,
    as_integer,
    find_axes,
    rechunk,
    require_known_sizes,
    require_one_kind,
    without_empty,
)
from dask_coop.api.call.public import Engine, public
from dask_coop.api.call.results import ModeResult
from dask_coop.api.scan_arguments import flatten
from dask_coop.api.sums import count_nonzero
from dask_coop.api.topk import argsort, is_too_long, whole_lines
from dask_coop.api.unique import sortable
from dask_coop.chunks.distinct import distinct
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.ranks import METHODS, Ties, ranks_of_lines
from dask_coop.chunks.repeats import Repeats
from dask_coop.errors import Declined, Refused
from dask_coop.graph import executor, line_quantiles
from dask_coop.graph.reduce import reduction
from dask_coop.graph.sorting import ranks as graph_ranks
from dask_coop.graph.unique import MERGED


@public("blockwise", dask=False)
def lexsort(keys: Any, axis: int = -1) -> da.Array:
    """Return the indices that sort by several keys: by the last one, equal ones by that before it.

    Parameters
    ----------
    keys : sequence of dask.array.Array or array_like
        Arrays of one shape with known chunk sizes, all in NumPy or all in CuPy chunks: bool,
        numbers, dates or durations, strings or bytes. An array of more axes has its keys along the
        first.
    axis : int
        The axis to sort along, by default the last one.

    Returns
    -------
    dask.array.Array
        Lazy, int64, as :func:`numpy.lexsort` returns them: equal elements keep their order, and NaN
        and NaT are last. Chunks are those of :func:`argsort`.

    Raises
    ------
    TypeError
        If there is no key, or elements have another dtype, or are masked, or are complex numbers or
        strings in lines that are too long to gather.
    ValueError
        If keys have different shapes, or chunk sizes are unknown.
    AxisError
        If keys have no such axis.

    Notes
    -----
    Lines of up to ``array.chunk-size`` in Dask's configuration are gathered, and sorted by one key
    after another. In longer ones ranks (:func:`rankdata`) replace the elements of each key, the
    ranks of all keys are joined in one integer, and :func:`argsort` sorts these.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> day = da.from_array([2, 1, 2, 1], chunks=2)
    >>> name = da.from_array([20, 40, 10, 30], chunks=2)
    >>> dc.lexsort((name, day)).compute()
    array([3, 1, 2, 0])
    """
    arrays = [sortable("lexsort", key, "keys") for key in keys]
    if not arrays:
        raise TypeError("lexsort needs at least one key")
    *others, last = arrays
    for x in arrays:
        require_known_sizes("lexsort", x)
        if x.shape != last.shape:
            raise ValueError(f"keys of lexsort must have one shape, got {x.shape} and {last.shape}")
        require_one_kind("keys", x, "keys", last)
    along = validate_axis(as_integer("lexsort", "axis", axis), last.ndim)
    if not any(is_too_long(x, along) for x in arrays):
        last = whole_lines(last, along)
        lines = [*(rechunk(x, last.chunks) for x in others), last]
        meta = chunks.zeros_like(last._meta, np.dtype("i8"))
        options = {"axis": along, "dtype": "i8", "meta": meta, "token": "lexsort"}
        return map_blocks(_lexsort_block, *lines, **declared_by(*lines), **options)
    if any(x.dtype.kind not in "biufmM" for x in arrays):
        raise Refused(
            "lexsort of lines longer than array.chunk-size takes only real numbers and dates"
        )
    return argsort(_joined_ranks(arrays, along), axis=along, stable=True)


@public("blockwise", dask=False)
def rankdata(
    a: Any,
    method: Ties = "average",
    *,
    axis: int | None = None,
    nan_policy: Literal["propagate", "omit"] = "propagate",
) -> da.Array:
    """Assign ranks to the elements along an axis or of the whole array, beginning at 1.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats, dates or durations, in NumPy or CuPy chunks, of known chunk sizes.
    method : {"average", "min", "max", "dense", "ordinal"}
        The rank of equal elements: the mean, the least or the greatest of the ranks that they would
        have in their order; the next number after that of the elements before, "dense"; or each
        its own, in the order of the elements.
    axis : int or None
        The axis to rank along; None for the flattened array.
    nan_policy : {"propagate", "omit"}
        Whether all ranks of a line with NaN or NaT are NaN, or only those of its NaN.

    Returns
    -------
    dask.array.Array
        Lazy, in `a`'s chunks, or flattened. float64, as :func:`scipy.stats.rankdata` returns it;
        int64 for integers and bool, unless `method` is "average".

    Raises
    ------
    TypeError
        If elements have another dtype, or are masked.
    ValueError
        If `method` or `nan_policy` has another value, or chunk sizes are unknown.
    AxisError
        If `a` has no such axis.

    Notes
    -----
    Lines of up to ``array.chunk-size`` in Dask's configuration are gathered. Longer ones are sorted
    across chunks as by :func:`sort`, and their ranks are exchanged by the places of the elements.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.rankdata(da.from_array([30, 10, 20, 10], chunks=2)).compute()
    array([4. , 1.5, 3. , 1.5])
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    _check_policy(nan_policy)
    x = sortable("rankdata", a)
    if x.dtype.kind not in "biufmM":
        raise Refused(f"rankdata does not take dtype {x.dtype}; it takes real numbers and dates")
    require_known_sizes("rankdata", x)
    if axis is None:
        x, axis = flatten(x), 0
    along = validate_axis(as_integer("rankdata", "axis", axis), x.ndim)
    counts = method != "average" and x.dtype.kind in "biu"
    return _ranked(x, along, method, nan_policy == "omit", np.dtype("i8" if counts else "f8"))


@public("blockwise", dask=False)
def percentileofscore(
    a: Any,
    score: Any,
    kind: Literal["rank", "weak", "strict", "mean"] = "rank",
    nan_policy: Literal["propagate", "omit"] = "propagate",
) -> da.Array:
    """Return the percentage of all elements that are less than a score.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks, of any shape.
    score : array_like
        Numbers that are known, not lazy. Elements are compared with them one score at a time, so
        there should be few.
    kind : {"rank", "weak", "strict", "mean"}
        The elements that count: those less than the score and, of those equal to it, half and one
        half more, "rank"; all, "weak"; none, "strict"; or half, "mean".
    nan_policy : {"propagate", "omit"}
        Whether percentages are NaN if an element is, or NaN are left out.

    Returns
    -------
    dask.array.Array
        Lazy, float64, of the shape of `score`, as :func:`scipy.stats.percentileofscore` returns it.

    Raises
    ------
    TypeError
        If elements or scores have another dtype, or are masked or lazy.
    ValueError
        If `kind` or `nan_policy` has another value.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.percentileofscore(da.from_array([1, 2, 3, 4], chunks=2), 3))
    75.0
    """
    if kind not in ("rank", "weak", "strict", "mean"):
        raise ValueError(f"kind must be one of rank, weak, strict, mean, got {kind!r}")
    _check_policy(nan_policy)
    x = sortable("percentileofscore", a)
    if x.dtype.kind not in "biuf":
        raise Refused(f"percentileofscore does not take dtype {x.dtype}; it takes real numbers")
    if is_dask_collection(score):
        raise TypeError("score must be known, not lazy; compute it first")
    scores = np.asarray(score)
    if scores.dtype.kind not in "biuf":
        raise TypeError(f"score takes real numbers, got dtype {scores.dtype}")
    size, missing = _count(x, operator.eq), _count(x, operator.ne)
    percentages = []
    for one_score in scores.reshape(-1):
        below = _count(x, operator.lt, one_score)
        upto = below if kind == "strict" else _count(x, operator.le, one_score)
        counts = {"rank": below + upto + (below < upto), "mean": below + upto}
        of_kind = counts[kind] * 50.0 if kind in counts else upto * 100.0
        lacks = (size == 0) | bool(one_score != one_score)
        if nan_policy == "propagate":
            lacks = lacks | (missing > 0)
        percentages.append(where(lacks, np.nan, of_kind / where(size > 0, size, 1)))
    if not scores.ndim:
        return percentages[0]
    if not percentages:
        return empty_like(x, shape=scores.shape, chunks=scores.shape, dtype="f8")
    return stack(percentages).reshape(scores.shape)


@public("reduction", dask=False)
def mode(
    a: Any,
    axis: Axis = 0,
    nan_policy: Literal["propagate", "omit"] = "propagate",
    keepdims: bool = False,
    *,
    engine: Engine = "auto",
) -> ModeResult:
    """Return the most common element along an axis or of the whole array, and its count.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, numbers, dates or durations, in NumPy or CuPy chunks.
    axis : int, tuple of int or None
        The axes to search, by default the first one; None for all of them.
    nan_policy : {"propagate", "omit"}
        "propagate" takes NaN or NaT for an element like any other, the largest, as
        :func:`scipy.stats.mode` does; "omit" leaves it out.
    keepdims : bool
        Whether reduced axes stay, with length one.
    engine : {"auto", "collective"}
        As for :func:`sum`; the call runs as a graph in any case.

    Returns
    -------
    ModeResult
        Two lazy arrays: `mode`, of `a`'s dtype, the least of the most frequent elements; and
        `count`, int64. Lines of only NaN that are left out have the mode NaN, 0 times.

    Raises
    ------
    TypeError
        If elements have another dtype, or are masked.
    ValueError
        If `nan_policy` has another value, or there is no element.
    AxisError
        As for :func:`sum`.

    Notes
    -----
    All elements: sorted distinct values with their counts, merged up a tree. Along some axes: tasks
    gather whole lines as for :func:`quantile`, and sort them, once for each of both results.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> found = dc.mode(da.from_array([3, 1, 3, 2], chunks=2))
    >>> int(found.mode), int(found.count)
    (3, 2)
    """
    _check_policy(nan_policy)
    skipna = nan_policy == "omit"
    x, axes = _checked("mode", a, axis)
    if any(x.shape[d] == 0 for d in axes):
        raise ValueError(f"mode of no element: shape {x.shape}, axes {axes}")
    specs = [Repeats("mode", skipna), Repeats("count", skipna)]
    return ModeResult(*_found("mode", x, axes, specs, keepdims))


@public("reduction", dask=False)
def nunique(
    a: Any,
    axis: Axis = None,
    dropna: bool = True,
    keepdims: bool = False,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Count the distinct elements along an axis or of the whole array.

    Parameters
    ----------
    a : dask.array.Array or array_like
        As for :func:`mode`.
    axis : int, tuple of int or None
        The axes to count along; None for all of them.
    dropna : bool
        Whether NaN and NaT are left out, as in pandas; otherwise all of them are one element.
    keepdims : bool
        Whether reduced axes stay, with length one.
    engine : {"auto", "collective"}
        As for :func:`sum`; the call runs as a graph in any case.

    Returns
    -------
    dask.array.Array
        Lazy, int64.

    Raises
    ------
    TypeError, AxisError
        As for :func:`mode`.

    Notes
    -----
    As for :func:`mode`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> int(dc.nunique(da.from_array([3, 1, 3, 2], chunks=2)))
    3
    """
    x, axes = _checked("nunique", a, axis)
    (counts,) = _found("nunique", x, axes, [Repeats("nunique", bool(dropna))], keepdims)
    return counts


@public("reduction", dask=False)
def approx_nunique(
    a: Any,
    axis: Axis = None,
    error: float = 0.01,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Count the distinct elements of lines or of the whole array approximately, in one read.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats, dates or durations, in NumPy or CuPy chunks. All NaN are one
        element, all NaT too, and so are -0.0 and 0.0.
    axis, keepdims, split_every
        As for :func:`sum`.
    error : float
        The standard error, relative to the number of distinct elements, from 0.0021 on: two of
        three results are within it, 19 of 20 within twice as much.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, int64. It has the same bits for every chunking, in NumPy and in CuPy chunks.

    Raises
    ------
    TypeError
        If elements are of another dtype, or masked.
    AxisError, ValueError
        As for :func:`sum`, and if `error` is not positive, or too small.

    Notes
    -----
    HyperLogLog: the leading bits of an element's hash choose one of ``1.08 / error ** 2`` bytes,
    rounded up to a power of two: 16 KiB for 0.01, a state of each line. P. Flajolet et al.,
    "HyperLogLog: the analysis of a near-optimal cardinality estimation algorithm", AofA 2007; with
    the estimate of O. Ertl, "New cardinality estimation algorithms for HyperLogLog sketches",
    arXiv:1702.01284, 2017.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> int(dc.approx_nunique(da.arange(1000, chunks=100) % 7))
    7
    """
    x = asanyarray(a)
    chunks.kind(x._meta)
    if chunks.is_masked(x._meta):
        raise TypeError("approx_nunique takes no masked array; fill it, by da.ma.filled(x, value)")
    bits = bits_for(error) if 0 < error < math.inf else 0
    if not 0 < bits <= MOST_BITS:
        raise ValueError(
            f"approx_nunique counts to within an error of 0.0021 or more, got {error}; nunique "
            "counts exactly"
        )
    op = bind(registers(bits), x.dtype, x.dtype, "approx_nunique", times="mM")
    axes = find_axes(axis, x.ndim)
    outputs = {"approx_nunique": (_of_registers, np.dtype("i8"))}
    (counts,) = reduction(op, x, axes, False, split_every, outputs)
    if not keepdims:
        return counts
    options: Any = {"new_axis": [*axes], "dtype": counts.dtype, "token": "approx_nunique-kept"}
    meta = chunks.zeros_like(counts._meta, counts.dtype, x.ndim)
    return map_blocks(np.expand_dims, counts, axes, meta=meta, **options)


def _joined_ranks(keys: Sequence[da.Array], axis: int) -> da.Array:
    """Return integers in the order of keys, of which the last one comes first."""
    n, long = keys[0].shape[axis], np.dtype("i8")
    if (n + 2) ** 2 > np.iinfo("i8").max:
        raise Refused(f"lexsort takes lines of up to 3e9 elements, got {n}")
    meta = chunks.zeros_like(keys[0]._meta, long)
    joined: list[da.Array] = []
    for key in keys:
        ranks = (_ranked(x, axis, "min", True, np.dtype("f8")) for x in (key, *joined))
        alike = [rechunk(x, keys[0].chunks) for x in ranks]
        joined = [map_blocks(_join_ranks, *alike, n=n, dtype=long, meta=meta, token="join")]
    return joined[0]


def _check_policy(nan_policy: str) -> None:
    if nan_policy not in ("propagate", "omit"):
        raise ValueError(f"nan_policy must be 'propagate' or 'omit', got {nan_policy!r}")


def _count(x: da.Array, by: Callable[[Any, Any], Any], score: Any = None) -> da.Array:
    """Count the elements that compare to a score, by default to themselves."""
    # Dask's own comparison repeats an axis of length 1 for each of its chunks, empty ones included.
    compared = map_blocks(
        partial(_compared, by=by, score=score),
        x,
        **declared_by(x),
        dtype="?",
        meta=chunks.zeros_like(x._meta, np.dtype("?")),
        token="compare",
    )
    return count_nonzero(compared)


def _ranked(x: da.Array, axis: int, method: Ties, omit: bool, dtype: np.dtype[Any]) -> da.Array:
    """Return the ranks of lines, in the chunks of `x`."""
    if is_too_long(x, axis):
        if x.ndim > 1:
            other = 0 if axis else 1
            planes = (x[(slice(None),) * other + (i,)] for i in range(x.shape[other]))
            along = max(axis - 1, 0)
            lines = stack([_ranked(y, along, method, omit, dtype) for y in planes], other)
            return rechunk(lines, x.chunks)
        return rechunk(graph_ranks.ranks(without_empty(x), method, omit, dtype), x.chunks)
    lines = x
    if x.numblocks[axis] > 1:
        whole = tuple((n,) for n in x.shape)
        lines = line_quantiles.gathered(x, (axis,)) if x.size else rechunk(x, whole)
    ranks = map_blocks(
        partial(_rank_block, axis=axis, method=method, omit=omit, to=dtype),
        lines,
        **declared_by(lines),
        dtype=dtype,
        meta=chunks.zeros_like(x._meta, dtype),
        token="rank",
    )
    return rechunk(ranks, x.chunks)


def _checked(name: str, a: Any, axis: Axis) -> tuple[da.Array, tuple[int, ...]]:
    """Return an array and the axes to reduce; refuse elements that the function does not take."""
    x = sortable(name, a)
    if x.dtype.kind in "SU":
        raise Refused(f"{name} does not take dtype {x.dtype}; value_counts counts strings")
    return x, find_axes(axis, x.ndim)


def _found(
    name: str, x: da.Array, axes: tuple[int, ...], specs: list[Repeats], keepdims: bool
) -> list[da.Array]:
    """Return the results of lines, or of the whole array."""
    if executor.runner() is not None:
        raise Declined(f"the states of {name} have any length")
    if len(axes) < x.ndim or x.size == 0:
        if any(x.numblocks[d] > 1 for d in axes) and math.isnan(x.size):
            raise ValueError(
                f"{name} gathers lines along axes {axes}, which needs known chunk sizes; "
                "x.compute_chunk_sizes() finds them"
            )
        return [
            line_quantiles.quantiles(
                f"{name}-{spec.wanted}", x, axes, spec, None, (), spec.result(x.dtype), keepdims
            )
            for spec in specs
        ]
    op = Operation(distinct(counts=True), x.dtype, x.dtype)
    outputs = {
        f"{name}-{spec.wanted}": (partial(_of_distinct, spec), spec.result(x.dtype))
        for spec in specs
    }
    results = reduction(op, x, axes, False, MERGED, outputs)
    return [y.reshape((1,) * x.ndim) for y in results] if keepdims else results


# Inside the task.


@casts
def _compared(x: Any, *, by: Callable[[Any, Any], Any], score: Any) -> Any:
    return by(x, x if score is None else score)


@casts
def _lexsort_block(*keys: Any, axis: int) -> Any:
    sort = chunks.backend_of(keys[0]).argsort
    order = sort(keys[0], axis, True)
    for key in keys[1:]:
        step = sort(np.take_along_axis(key, order, axis), axis, True)
        order = np.take_along_axis(order, step, axis)
    return order


def _join_ranks(ranks: Any, *joined: Any, n: int) -> Any:
    # NaN have no rank, and come last.
    ranks = np.where(ranks == ranks, ranks, n + 1).astype("i8") * (n + 1)
    return ranks + joined[0].astype("i8") if joined else ranks


@casts
def _rank_block(x: Any, *, axis: int, method: Ties, omit: bool, to: np.dtype[Any]) -> Any:
    ranks = ranks_of_lines(np.moveaxis(x, axis, -1), method, omit, to)
    return np.moveaxis(ranks, -1, axis)


def _of_registers(state: Any) -> Any:
    return np.rint(estimate(chunks.asarray(state[0], "numpy")))


def _of_distinct(spec: Repeats, state: Any) -> Any:
    return spec.of_distinct(state)
