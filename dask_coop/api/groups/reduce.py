"""Groups of elements by labels: their statistics, each group's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
from dask.array.core import asanyarray
from dask.array.utils import validate_axis

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.algebra.statistics import STATISTICS
from dask_coop.api.arguments import Axis
from dask_coop.api.call.public import Engine, public
from dask_coop.api.groups import dates as group_dates
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
)
from dask_coop.api.monoids.monoid import Monoid
from dask_coop.api.monoids.monoid import bind as bind_own
from dask_coop.errors import Declined
from dask_coop.graph import executor, found_groups
from dask_coop.graph import grouped as graph_grouped
from dask_coop.graph.found_groups import Found
from dask_coop.graph.grouped import Known, Lazy

#: The statistics that there are by name.
NAMES = (*STATISTICS, *group_quantiles.NAMES)

#: What is passed to some statistics of a list, and not to others.
_ARGUMENTS = {name: set(row.keywords) for name, row in STATISTICS.items()}
_ARGUMENTS |= {name: {"q", "method"} for name in ("quantile", "nanquantile")}


@public("selection", dask=False)
def groupby_reduce(
    array: Any,
    *by: Any,
    func: Any,
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
    """Reduce the elements of each group, by one statistic or by several in one read.

    Parameters
    ----------
    array : dask.array.Array or array_like
        Bool, integers, floats or complex numbers in NumPy or CuPy chunks; dates and durations in
        NumPy chunks, of which `func` tells what there is.
    by : array_like or dask.array.Array
        Labels: integers, floats, dates or strings, NumPy's, CuPy's or Dask's, along the last axes
        of `array`, as long as these or of length 1. Elements whose label is NaN are left out. With
        several labels there is a group for each combination.
    func : str, Monoid or list of these
        What to find of each group: "sum", "prod", "mean", "var", "std", "min", "max", "argmin",
        "argmax", "first", "last", "median", "quantile", or one of these with "nan" before it, which
        leaves NaN out; "any", "all", "count" of elements that are not NaN, "count_nonzero",
        "logsumexp"; a :class:`Monoid`. A list is reduced in one read of the array.
    expected_groups : array_like, or tuple with one for each label, optional
        The groups that there may be; by default those that labels have. One of several labels that
        is lazy needs them.
    sort : bool
        Whether groups are in their order, and not in that in which labels have them, or in which
        they are expected. Groups that a lazy label turns out to have are in their order.
    isbin : bool or sequence of bool
        Whether `expected_groups` are edges of bins, which hold their right edges. A
        `pandas.IntervalIndex` is taken for bins in any case.
    axis : int, tuple of int or None
        Which of the labels' axes to reduce, by default all; the groups of the others have no
        element in common.
    fill_value : object, optional
        What groups get that have no element, or less than `min_count`. By default these are NaN,
        NaT, the lowest integer, False, or 0 for counts, 1 for products and -1 for indices.
    dtype : dtype, optional
        That of the results.
    min_count : int, optional
        How many elements that are not NaN a group has to have. By default 1 where there are a
        `fill_value` and `expected_groups`, or not all axes of labels are reduced, and else 0.
    finalize_kwargs : mapping, optional
        What statistics take besides: `ddof` of variances, `q` and `method` of quantiles.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.sum`. A graph takes over where labels are lazy, or more than 64 MiB;
        for medians, quantiles and dates; and where axes are kept and all tables together are large.

    Returns
    -------
    result : dask.array.Array or tuple of dask.array.Array
        Lazy, with chunks of the kind of `array`'s: the axes that are kept, and then one of groups
        for each of the labels; before them those of `q`. A tuple where `func` is a list.
    *groups : numpy.ndarray or dask.array.Array
        The groups of each label. Those that a lazy label turns out to have are lazy, and of unknown
        length, as the result is along them.

    Raises
    ------
    TypeError
        If elements of that dtype are not what `func` takes, or labels have no order.
    ValueError
        If there is no such `func`, labels do not fit the array, or one of several is lazy and comes
        without `expected_groups`; or, when computed, if a fill value is needed and there is none.
    NotImplementedError
        If a lazy label without `expected_groups` is not reduced along all of its axes.

    Notes
    -----
    The signature is that of ``flox.groupby_reduce``, and so are the results.

    Labels that are known are coded when the graph is built. What a chunk leaves is as long as it
    has groups, and groups that lie within few chunks end there, so that daily means of hourly data
    make no table of all days; the result has then several chunks along the groups. Tables of lazy
    labels have all groups that are expected, or else those that are found in the chunk.

    Floats are added up in float64, and integers in 64 bits; in NumPy chunks sums and means of
    float64 keep what additions round off. Results are the same on every run.
    Medians and quantiles are exact: elements are put next to one another by their groups, in blocks
    no larger than chunks or a group; labels have to be known.

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
    chunks.kind(x._meta, "array")
    chunks.refuse_masked("groupby_reduce", x._meta)
    labels, groups = find_labels("groupby_reduce", by, x, expected_groups, isbin, sort)
    x, labels = _arrange(x, labels, axis)
    if min_count is None:
        given = fill_value is not None and expected_groups is not None
        min_count = int(bool(labels.rows) or given)
    asked = Asked(dtype, fill_value, min_count, isinstance(labels, Lazy) or bool(labels.rows))
    shape = () if isinstance(labels, Found) else tuple(map(len, groups))
    request = Request(x, labels, shape, asked)
    several = isinstance(func, list | tuple)
    funcs = [*func] if several else [func]
    if not funcs:
        raise ValueError("func is an empty list; name at least one statistic")
    kwargs = _shared_out(funcs, dict(finalize_kwargs or {}))
    results = _results(request, funcs, kwargs)
    return (tuple(results) if several else results[0], *groups)


class Request(NamedTuple):
    """What groups there are, none yet if they are found, of which elements, and what is asked."""

    x: da.Array
    labels: Known | Lazy | Found
    shape: tuple[int, ...]
    asked: Asked


def _arrange(
    x: da.Array, labels: Known | Lazy | Found, axis: Axis
) -> tuple[da.Array, Known | Lazy | Found]:
    """Return an array and labels with the axes that are reduced behind the others."""
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
    arrays = tuple(each.transpose(order) for each in labels.arrays)
    return x, Lazy(arrays, labels.coder, len(rows))


def _shared_out(funcs: list[Any], kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each of some functions takes besides, of what was given for all."""
    if len(funcs) == 1:
        return [kwargs]
    takes = [_ARGUMENTS.get(func, set()) if isinstance(func, str) else set() for func in funcs]
    unknown = kwargs.keys() - set().union(*takes)
    if unknown:
        raise TypeError(f"none of {funcs} takes {min(unknown)!r} in finalize_kwargs")
    return [{key: value for key, value in kwargs.items() if key in own} for own in takes]


def _results(request: Request, funcs: list[Any], kwargs: list[dict[str, Any]]) -> list[Any]:
    """Return what several functions find, of which those that can be are reduced together."""
    found: dict[int, Any] = {}
    together: dict[int, Statistic] = {}
    own: dict[int, list[Statistic]] = {}
    for i, (func, rest) in enumerate(zip(funcs, kwargs, strict=True)):
        x, asked = request.x, request.asked
        if isinstance(func, str) and func in group_quantiles.NAMES:
            found[i] = group_quantiles.quantiles(func, *request[:3], asked, rest)
        elif isinstance(func, Monoid):
            own[i] = _of_monoid(func, request)
        elif x.dtype.kind in "mM":
            found[i] = group_dates.reduce_dates(func, request, rest, _reduced)
        else:
            together[i] = find(func, x.dtype, asked, rest)
            if chunks.kind(x._meta) == "numpy":
                # Kernels of sums that keep this take longer.
                together[i] = exactly(together[i])
    numbered = {(i, 0): each for i, each in together.items()}
    numbered |= {(i, j): each for i, parts in own.items() for j, each in enumerate(parts)}
    if numbered:
        arrays = dict(zip(numbered, _reduced(request, [*numbered.values()]), strict=True))
        found |= {i: arrays[i, 0] for i in together}
        for i, parts in own.items():
            each = tuple(arrays[i, j] for j in range(len(parts)))
            found[i] = each if funcs[i].several else each[0]
    return [found[i] for i in range(len(funcs))]


def _reduced(request: Request, statistics: Sequence[Statistic]) -> list[da.Array]:
    """Return several statistics, of one read of the array."""
    ops = tuple(dict.fromkeys(op for each in statistics for op in each.ops))
    outputs = {}
    for number, each in enumerate(statistics):
        at = tuple(ops.index(op) for op in each.ops)
        name = f"groupby-{each.name}" + (f"-{number}" if number else "")
        outputs[name] = partial(finalize, each, at), each.dtype
    x, labels, shape, _ = request
    if isinstance(labels, Found):
        return found_groups.reduction(ops, x, labels, outputs)
    return graph_grouped.reduction(ops, x, labels, shape, outputs)


def _of_monoid(monoid: Monoid, request: Request) -> list[Statistic]:
    """Return what one's own monoid makes of groups."""
    x, labels = request.x, request.labels
    if not monoid.commutative and labels.ndim - labels.rows > 1:
        raise ValueError(
            f"monoid {monoid.name!r} is not commutative, so that it reduces groups along one axis; "
            f"the labels have {labels.ndim - labels.rows}"
        )
    op = bind_own(monoid, x, "groupby_reduce")
    # Without elements the result is that of the identity, if no other is asked for.
    if not monoid.several:
        return [make(monoid.name, op, monoid.finalize, op.output, request.asked, IDENTITY)]
    return [
        make(
            f"{monoid.name}-{i}",
            op,
            partial(_pick, monoid.finalize, i),
            of,
            request.asked,
            IDENTITY,
        )
        for i, of in enumerate(monoid.results)
    ]


# Inside the task.


def _pick(finish: Callable[[State], Any], i: int, state: State) -> Any:
    return finish(state)[i]
