"""Statistics of the groups that labels make of elements: groupby_reduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import dask.array as da
from dask.array.core import asanyarray
from dask.array.utils import validate_axis

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.algebra.statistics import STATISTICS
from dask_coop.api.arguments import Axis
from dask_coop.api.call.public import Engine, public
from dask_coop.api.groups import dates as group_dates
from dask_coop.api.groups import pairs as group_pairs
from dask_coop.api.groups import quantiles as group_quantiles
from dask_coop.api.groups.labels import find_labels
from dask_coop.api.groups.statistics import (
    IDENTITY,
    Asked,
    Statistic,
    exactly,
    finalize,
    find,
    make,
    refuse_others,
)
from dask_coop.api.monoids.monoid import Monoid
from dask_coop.api.monoids.monoid import bind as bind_own
from dask_coop.errors import Declined
from dask_coop.graph import executor, found_groups
from dask_coop.graph import grouped as graph_grouped
from dask_coop.graph.found_groups import Found
from dask_coop.graph.grouped import Known, Lazy

#: The statistics by name.
NAMES = (*STATISTICS, *group_quantiles.NAMES, *group_pairs.KEYWORDS)

# fmt: off
StatisticName = Literal[
    "sum", "prod", "mean", "var", "std", "min", "max", "argmin", "argmax", "skew", "kurtosis",
    "first", "last", "nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmin", "nanmax",
    "nanargmin", "nanargmax", "nanskew", "nankurtosis", "nanfirst", "nanlast", "any", "all",
    "count", "count_nonzero", "logsumexp",
    "median", "nanmedian", "quantile", "nanquantile", "mode", "nanmode", "nunique",
    "cov", "corr", "slope", "intercept", "pvalue", "stderr", "intercept_stderr",
    "nancov", "nancorr", "nanslope", "nanintercept", "nanpvalue", "nanstderr",
    "nanintercept_stderr",
]
# fmt: on

#: The keywords of finalize_kwargs that each statistic takes.
_ARGUMENTS = {name: set(row.keywords) for name, row in STATISTICS.items()}
_ARGUMENTS |= {name: group_quantiles.WORDS for name in ("quantile", "nanquantile")}
_ARGUMENTS |= group_pairs.KEYWORDS


@public("selection", dask=False)
def groupby_reduce(
    array: Any,
    *by: Any,
    func: StatisticName | Monoid | Sequence[StatisticName | Monoid],
    y: Any = None,
    expected_groups: Any = None,
    sort: bool = True,
    isbin: bool | Sequence[bool] = False,
    axis: Axis = None,
    fill_value: Any = None,
    dtype: Any = None,
    min_count: int | None = None,
    finalize_kwargs: Mapping[str, Any] | None = None,
    engine: Engine = "auto",
) -> tuple[Any, ...]:
    """Reduce the elements of each group by one or several statistics, in one read.

    Parameters
    ----------
    array : dask.array.Array or array_like
        Bool, integers, floats or complex numbers in NumPy or CuPy chunks; dates and durations in
        NumPy chunks, for some statistics only.
    by : array_like or dask.array.Array
        Labels: integers, floats, dates or strings, NumPy's, CuPy's or Dask's, along the last axes
        of `array`, with the same lengths or length 1. Elements whose label is NaN belong to no
        group. Several labels make a group for each combination.
    func : str, Monoid or list of these
        The statistic of each group: "sum", "prod", "mean", "var", "std", "min", "max", "argmin",
        "argmax", "skew", "kurtosis", "first", "last", "median", "quantile", "mode", or one of these
        prefixed by "nan", which ignores NaN; "any", "all", "count" of elements that are not NaN,
        "nunique" of distinct ones, "count_nonzero", "logsumexp"; or a :class:`Monoid`. A list is
        reduced in one read of the array. With `y`, a statistic of pairs: "cov", "corr", or "slope",
        "intercept", "pvalue", "stderr", "intercept_stderr" of the line by which `y` depends on
        `array`, as :func:`linregress` has it; or one of these prefixed by "nan", which leaves out
        pairs with a NaN.
    y : dask.array.Array or array_like, optional
        The second variable: bool, integers or floats in the shape of `array`. Either is broadcast
        to the other.
    expected_groups : array_like, or tuple with one for each label, optional
        The possible groups; by default those that occur in the labels. Required if one of several
        labels is lazy.
    sort : bool
        Whether to sort the groups. Otherwise they are in the order in which they first occur, or of
        `expected_groups`. Groups that are found in a lazy label are always sorted.
    isbin : bool or sequence of bool
        Whether `expected_groups` are edges of bins, which include their right edges. A
        `pandas.IntervalIndex` always stands for bins.
    axis : int, tuple of int or None
        The axes of the labels to reduce, by default all. Each position along the others has groups
        of its own.
    fill_value : object, optional
        The result of groups without elements, or with fewer than `min_count`. By default NaN, NaT,
        the lowest integer, False, or 0 for counts, 1 for products and -1 for indices.
    dtype : dtype, optional
        The dtype of the results.
    min_count : int, optional
        The number of elements other than NaN that a group needs. By default 1 if `fill_value` and
        `expected_groups` are given or some axes of the labels are kept, else 0.
    finalize_kwargs : mapping, optional
        Further arguments of statistics: `ddof` for variances, and for covariances, where it is 1
        by default; `q` and `method` for quantiles; `alternative` for p-values.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.sum`. The call runs as a graph if labels are lazy or larger than
        64 MiB; for medians, quantiles, modes, distinct elements, dates and pairs; and if axes are
        kept and all tables together are large.

    Returns
    -------
    result : dask.array.Array or tuple of dask.array.Array
        Lazy, with chunks of the kind of `array`'s. Its axes are those of `q`, then the kept axes of
        `array`, then one of groups for each label. A tuple if `func` is a list.
    *groups : numpy.ndarray or dask.array.Array
        The groups of each label. Groups that are found in a lazy label are lazy; their number, and
        the length of the result along them, are unknown until computed.

    Raises
    ------
    TypeError
        If `func` does not take elements of that dtype, or labels cannot be sorted.
    ValueError
        If `func` is unknown, labels do not fit the array, or one of several labels is lazy and
        `expected_groups` is missing; or, when computed, if a required fill value is missing.
    NotImplementedError
        If a lazy label without `expected_groups` is not reduced along all of its axes.

    Notes
    -----
    Signature and results are those of ``flox.groupby_reduce``.

    Known labels are turned into codes when the graph is built. The table of a chunk has only the
    chunk's groups, and groups within few chunks are finished there, so that daily means of hourly
    data need no table of all days; the result then has several chunks along the groups. With lazy
    labels, the table of a chunk has all `expected_groups`, or else the groups found in the chunk.

    Floats are added up in float64 and integers in 64 bits; in NumPy chunks, sums and means of
    float64 are compensated for rounding errors. Results are the same on every run.
    Medians and quantiles are exact. By known labels, the elements of each group are gathered, in
    blocks no larger than a chunk or a group. By lazy labels along all axes of the array, the digits
    of keys are counted by group, in several rounds; chunks stay in memory until the end of the
    first. By lazy labels along some axes, blocks hold whole lines along these. "mode", found as
    by :func:`mode`, and "nunique" sort gathered groups or lines.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.arange(6, chunks=4)
    >>> mean, months = dc.groupby_reduce(x, [1, 1, 2, 2, 2, 1], func="mean")
    >>> mean.compute(), months
    (array([2., 3.]), array([1, 2]))
    """
    x = asanyarray(array)
    x = x if y is None else group_pairs.paired_up(x, y)
    chunks.kind(x._meta, "array")
    chunks.refuse_masked("groupby_reduce", x._meta)
    labels, groups = find_labels("groupby_reduce", by, x, expected_groups, isbin, sort)
    x, labels = _arrange(x, labels, axis)
    if min_count is None:
        may_be_empty = fill_value is not None and expected_groups is not None
        min_count = int(bool(labels.rows) or may_be_empty)
    asked = Asked(dtype, fill_value, min_count, isinstance(labels, Lazy) or bool(labels.rows))
    shape = () if isinstance(labels, Found) else tuple(map(len, groups))
    request = Request(x, labels, shape, asked, y is not None)
    several = isinstance(func, list | tuple)
    funcs: list[Any] = [*func] if isinstance(func, list | tuple) else [func]
    if not funcs:
        raise ValueError("func is an empty list; name at least one statistic")
    if not isinstance(finalize_kwargs, Mapping | None):
        raise TypeError(
            "finalize_kwargs maps names of arguments to values, as {'ddof': 1} does; got "
            f"{finalize_kwargs!r}"
        )
    kwargs = _shared_out(funcs, dict(finalize_kwargs or {}))
    results = _results(request, funcs, kwargs)
    return (tuple(results) if several else results[0], *groups)


class Request(NamedTuple):
    """A request for statistics.

    Attributes
    ----------
    x : dask.array.Array
        The elements, or pairs of them as complex numbers.
    labels : Known, Lazy or Found
    shape : tuple of int
        The numbers of groups, none if they are found.
    asked : Asked
    paired : bool
        Whether elements are pairs.
    """

    x: da.Array
    labels: Known | Lazy | Found
    shape: tuple[int, ...]
    asked: Asked
    paired: bool


def _arrange(
    x: da.Array, labels: Known | Lazy | Found, axis: Axis
) -> tuple[da.Array, Known | Lazy | Found]:
    """Return an array and labels with the reduced axes last."""
    first = x.ndim - labels.ndim
    if axis is None:
        return x, labels
    axes = validate_axis(tuple(axis) if isinstance(axis, tuple | list) else (axis,), x.ndim)
    if len(set(axes)) < len(axes) or min(axes) < first:
        raise ValueError(
            f"axis={axis} is to name some of the axes that labels are along, {first} to "
            f"{x.ndim - 1} of the array, each once"
        )
    rows = [d for d in range(first, x.ndim) if d not in axes]
    if not rows:
        return x, labels
    if isinstance(labels, Found):
        raise NotImplementedError(
            f"groups of lazy labels are found along all of their axes, not along {axis} alone; "
            "give expected_groups"
        )
    order = (*range(first), *rows, *sorted(axes))
    if order != tuple(range(x.ndim)) and executor.runner() is not None:
        raise Declined("the axes are put in another order by tasks")
    x = x.transpose(order)
    order = tuple(d - first for d in order[first:])
    if isinstance(labels, Known):
        return x, Known(labels.codes.transpose(order), len(rows))
    arrays = tuple(label.transpose(order) for label in labels.arrays)
    return x, Lazy(arrays, labels.coder, len(rows))


def _shared_out(funcs: list[Any], kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the keyword arguments of each function, from those of all."""
    if len(funcs) == 1:
        return [kwargs]
    takes = [_ARGUMENTS.get(func, set()) if isinstance(func, str) else set() for func in funcs]
    unknown = kwargs.keys() - set().union(*takes)
    if unknown:
        taken = ", ".join(sorted(set().union(*takes))) or "nothing"
        raise TypeError(
            f"none of {funcs} takes {min(unknown, key=str)!r} in finalize_kwargs; they take {taken}"
        )
    return [{key: value for key, value in kwargs.items() if key in names} for names in takes]


def _results(request: Request, funcs: list[Any], kwargs: list[dict[str, Any]]) -> list[Any]:
    """Return the results of several functions; one read serves all but quantiles and dates."""
    results: dict[int, Any] = {}
    builtin: dict[int, Statistic] = {}
    users: dict[int, list[Statistic]] = {}
    for i, (func, options) in enumerate(zip(funcs, kwargs, strict=True)):
        x, asked = request.x, request.asked
        if request.paired:
            builtin[i] = group_pairs.find(func, x.dtype, asked, options)
        elif isinstance(func, str) and func in group_pairs.KEYWORDS:
            raise TypeError(f"func={func!r} takes pairs; pass the second array as y=")
        elif isinstance(func, str) and func in group_quantiles.NAMES:
            results[i] = group_quantiles.quantiles(func, *request[:3], asked, options)
        elif isinstance(func, Monoid):
            refuse_others(func.name, options, ())
            users[i] = _of_monoid(func, request)
        elif x.dtype.kind in "mM":
            results[i] = group_dates.reduce_dates(func, request, options, _reduced)
        else:
            builtin[i] = find(func, x.dtype, asked, options)
            if chunks.kind(x._meta) == "numpy":
                # On GPUs, compensated sums take longer.
                builtin[i] = exactly(builtin[i])
    numbered = {(i, 0): statistic for i, statistic in builtin.items()}
    numbered |= {(i, j): part for i, parts in users.items() for j, part in enumerate(parts)}
    if numbered:
        arrays = dict(zip(numbered, _reduced(request, [*numbered.values()]), strict=True))
        results |= {i: arrays[i, 0] for i in builtin}
        for i, parts in users.items():
            outputs = tuple(arrays[i, j] for j in range(len(parts)))
            results[i] = outputs if funcs[i].several else outputs[0]
    return [results[i] for i in range(len(funcs))]


def _reduced(request: Request, statistics: Sequence[Statistic]) -> list[da.Array]:
    """Return several statistics, from one read of the array."""
    ops = tuple(dict.fromkeys(op for statistic in statistics for op in statistic.ops))
    outputs = {}
    for number, statistic in enumerate(statistics):
        positions = tuple(ops.index(op) for op in statistic.ops)
        name = f"groupby-{statistic.name}" + (f"-{number}" if number else "")
        outputs[name] = partial(finalize, statistic, positions), statistic.dtype
    x, labels, shape, *_ = request
    if isinstance(labels, Found):
        return found_groups.reduction(ops, x, labels, outputs)
    return graph_grouped.reduction(ops, x, labels, shape, outputs)


def _of_monoid(monoid: Monoid, request: Request) -> list[Statistic]:
    """Return the statistics of a user's monoid, one for each of its results."""
    x, labels = request.x, request.labels
    if not monoid.commutative and labels.ndim - labels.rows > 1:
        raise ValueError(
            f"monoid {monoid.name!r} is not commutative, so that it reduces groups along one axis; "
            f"the labels have {labels.ndim - labels.rows}"
        )
    op = bind_own(monoid, x, "groupby_reduce")
    # By default the result of a group without elements is that of the identity.
    if not monoid.several:
        return [make(monoid.name, op, monoid.finalize, op.output, request.asked, IDENTITY)]
    return [
        make(
            f"{monoid.name}-{i}",
            op,
            partial(_pick, monoid.finalize, i),
            dtype,
            request.asked,
            IDENTITY,
        )
        for i, dtype in enumerate(monoid.results)
    ]


# Inside the task.


def _pick(finish: Callable[[State], Any], i: int, state: State) -> Any:
    return finish(state)[i]
