"""Moments, also ignoring NaN: mean, var, std, moment and, all in one, describe."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from numbers import Integral
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array, asanyarray, map_blocks
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.algebra.central_moments import moments_up_to
from dask_coop.algebra.monoids import COUNT_NONZERO, MEAN, MOMENTS, SUM, VAR, State
from dask_coop.algebra.operation import bind
from dask_coop.algebra.statistics import STATISTICS
from dask_coop.api.arguments import (
    Axis,
    ReductionArguments,
    SplitEvery,
    find_axes,
    no_identity,
    reduce_array,
    reduce_statistic,
    require_elements,
)
from dask_coop.api.call.planning import columns_of
from dask_coop.api.call.public import Engine, like, named, public
from dask_coop.api.call.results import Description, Descriptions
from dask_coop.api.dates import describe_dates, reduce_durations
from dask_coop.api.paired.average import weighted
from dask_coop.errors import Refused
from dask_coop.graph import reduce as graph_reduce


@public("reduction")
@named
def mean(
    name: str,
    /,
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    reproducible: bool = False,
    weights: Any = None,
    engine: Engine = "auto",
) -> da.Array:
    """Arithmetic mean of array elements over the given axes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks, or timedelta64.
    axis, keepdims, split_every, out, reproducible
        As for :func:`sum`.
    dtype : dtype, optional
        The dtype of the result. By default that of `a`, and float64 for bool and integers.
    where
        As for :func:`sum`.
    weights
        As for :func:`average`; without `where` and `reproducible`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s; NaN where there is no element.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`sum`.

    Notes
    -----
    The mean is computed in float64 (complex128) and rounded once. A reproducible mean is the
    reproducible sum, in float64, divided by the number of elements.
    """
    x = asanyarray(a)
    arguments = ReductionArguments(
        axis, keepdims, split_every, out, where, reproducible=reproducible
    )
    if weights is not None:
        return weighted(name, x, weights, arguments, dtype)[0]
    if x.dtype.kind == "m" and name == "mean":
        return reduce_durations(name, x, dtype, arguments)
    output = np.dtype(MEAN.output(x.dtype) if dtype is None else dtype).newbyteorder("=")
    if output.kind in "biu" and STATISTICS[name].leaves_out(x.dtype):
        raise Refused(
            f"{name} does not give dtype={output} of dtype {x.dtype}, which has NaN to leave out; "
            "it gives floats, which .astype() converts"
        )
    return reduce_statistic(name, x, arguments, output)


@public("reduction")
@named
def var(
    name: str,
    /,
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Engine = "auto",
) -> da.Array:
    """Variance of array elements over the given axes; NaN if an element is NaN.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, keepdims, split_every, out
        As for :func:`sum`.
    dtype : dtype, optional
        A floating dtype for the result. By default that of `a` or of its real part, and float64 for
        bool and integers.
    ddof : float
        Subtracted from the number of elements n: the divisor is ``n - ddof``.
    where
        As for :func:`sum`.
    weights : dask.array.Array or array_like, optional
        Real numbers that are not negative, of a shape as for :func:`average`; lazy weights are not
        checked. Squared deviations from the weighted mean are averaged with them. `ddof` must be 0:
        frequencies and reliabilities need different corrections, and :func:`cov` has both. Not
        with `where`, nor for complex numbers.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s. Where ``n - ddof`` is not positive it is NaN, or
        masked if `a` is a masked array.

    Raises
    ------
    TypeError
        As for :func:`sum`, and if `dtype` is not floating or `ddof` is not a number.
    AxisError, ValueError
        As for :func:`sum`, and if a weight in memory is negative.

    Notes
    -----
    The array is read once. Count, mean and sum of squared deviations of all chunks are combined in
    float64 as in T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for Computing the Sample
    Variance", The American Statistician 37 (1983), which avoids cancellation; the result is rounded
    once.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.var(da.arange(4, chunks=2), ddof=1).round(3))
    1.667
    """
    x = asanyarray(a)
    arguments = ReductionArguments(axis, keepdims, split_every, out, where)
    if weights is not None:
        if ddof != 0:
            raise Refused(
                f"{name} takes no ddof={ddof} beside weights, for which it has several meanings; "
                "cov has fweights and aweights"
            )
        floats = None if dtype is None else _float(name, dtype)
        result = weighted(name, x, weights, arguments, floats)[0]
        _refuse_negative(name, weights)
        return result
    bind(VAR, x.dtype, x.dtype, name)
    result = _float(name, VAR.output(x.dtype) if dtype is None else dtype)
    masked = chunks.is_masked(x._meta)
    return reduce_statistic(name, x, arguments, result, ddof=float(ddof), masked=masked)


@like(var)
def std() -> None:
    """Compute the standard deviation over the given axes: the square root of :func:`var`."""


@like(mean)
def nanmean() -> None:
    """Arithmetic mean of array elements over the given axes, ignoring NaN.

    Dask's function of the same name takes durations.

    Returns
    -------
    dask.array.Array
        As for :func:`mean`; NaN where every element is NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nanmean(x))
    2.0
    """


@like(var)
def nanvar() -> None:
    """Variance of array elements over the given axes, ignoring NaN, also in the divisor.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nanvar(x))
    1.0
    """


@like(std)
def nanstd() -> None:
    """Compute the standard deviation, ignoring NaN: the square root of :func:`nanvar`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nanstd(x))
    1.0
    """


@public("reduction")
def moment(
    a: Any,
    order: int,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Central moment of array elements over the given axes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    order : int
        The power of the deviations from the mean. The moment of order 0 is 1 and that of order 1
        is 0, both in float64.
    axis, keepdims, split_every, out
        As for :func:`sum`.
    dtype : dtype, optional
        A floating dtype for the result. By default that of `a`, and float64 for bool and integers.
    ddof : float
        Subtracted from the number of elements n: the divisor is ``n - ddof``.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s; NaN where ``n - ddof`` is negative.

    Raises
    ------
    TypeError
        As for :func:`var`.
    AxisError, ValueError
        As for :func:`sum`, and if `order` is negative or not an integer.

    Notes
    -----
    The array is read once. The sums of powers about the mean of each chunk are combined in float64
    by Pebay's formulas (2008).

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.moment(da.arange(5, chunks=2), 4))
    6.8
    """
    if not isinstance(order, Integral) or order < 0:
        raise ValueError(f"Order must be an integer >= 0, got {order!r}")
    x = asanyarray(a)
    result = _float("moment", MEAN.output(x.dtype) if dtype is None else dtype)
    if order < 2:
        monoid, finalize, result = COUNT_NONZERO, partial(_constant, 1 - order), np.dtype("f8")
    else:
        monoid, finalize = moments_up_to(int(order)), partial(_last, float(ddof))
    arguments = ReductionArguments(axis, keepdims, split_every, out)
    return reduce_array(monoid, "moment", finalize, x, arguments, result=result)


@public("reduction")
def skew(
    a: Any,
    axis: Axis = 0,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> da.Array:
    """Compute the skewness over the given axes, as `scipy.stats.skew` does.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    axis, keepdims, split_every
        As for :func:`sum`, but the first axis by default.
    bias : bool
        Whether the third moment is that of the elements; with False, it is corrected for that of
        the population that they are a sample of, where there are three elements or more.
    nan_policy : {"propagate", "omit"}
        Whether the result is NaN if an element is, or NaN are left out. To raise an error would
        take the values while the graph is built.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s, in its dtype, or float64 for bool and integers. NaN
        where elements do not vary but for rounding errors.

    Raises
    ------
    TypeError, AxisError
        As for :func:`moment`.
    ValueError
        As for :func:`sum`, and if `nan_policy` is another.

    Notes
    -----
    The array is read once. Moments are combined as in :func:`moment`, in float64 for all dtypes,
    and the result is rounded once.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.skew(da.from_array([2.0, 8, 0, 4, 1, 9, 9, 0], chunks=3)).round(4))
    0.2651
    """
    arguments = ReductionArguments(axis, keepdims, split_every)
    return _shape("skew", asanyarray(a), arguments, nan_policy, bias=bool(bias))


@public("reduction")
def kurtosis(
    a: Any,
    axis: Axis = 0,
    fisher: bool = True,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> da.Array:
    """Compute the kurtosis over the given axes, as `scipy.stats.kurtosis` does.

    Parameters
    ----------
    a, axis, bias, nan_policy, keepdims, split_every, engine
        As for :func:`skew`; the correction takes four elements.
    fisher : bool
        Whether 3 is subtracted, so that a normal distribution has 0.

    Returns
    -------
    dask.array.Array
        As for :func:`skew`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`skew`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.kurtosis(da.from_array([2.0, 8, 0, 4, 1, 9, 9, 0], chunks=3)).round(4))
    -1.666
    """
    arguments, options = ReductionArguments(axis, keepdims, split_every), {"bias": bool(bias)}
    return _shape("kurtosis", asanyarray(a), arguments, nan_policy, fisher=bool(fisher), **options)


def _shape(
    name: str, x: da.Array, arguments: ReductionArguments, nan_policy: str, **options: bool
) -> da.Array:
    """Return a statistic of the shape of a distribution."""
    if nan_policy not in ("propagate", "omit"):
        raise ValueError(
            f"nan_policy of {name} must be 'propagate' or 'omit', got {nan_policy!r}; 'raise' "
            "would compute the array"
        )
    result = _float(name, MEAN.output(x.dtype))
    statistic = f"nan{name}" if nan_policy == "omit" else name
    return reduce_statistic(statistic, x, arguments, result, **options)


def _each_column(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `describe` that also describes each column of a frame or a dict."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values, *others = args or (kwargs.get("a"),)
        along = others[0] if others else kwargs.get("axis")
        columns = None if along is not None else columns_of(values)
        if columns is None:
            return function(*args, **kwargs)
        options = {name: value for name, value in kwargs.items() if name != "a"}
        arrays = {n: x if hasattr(x, "dtype") else np.asarray(x) for n, x in columns.items()}
        described = {
            name: function(x, *others, **options)
            for name, x in arrays.items()
            if x.dtype.kind in "biufmM"
        }
        if not described:
            raise TypeError(f"a has no column of numbers or dates among {[*columns]}")
        return Descriptions(described)

    return call


@public("reduction", around=_each_column)
def describe(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> Description:
    """Count, NaN count, minimum, maximum, sum, mean, variance and standard deviation in one read.

    NaN elements are counted and otherwise ignored; infinities count like other elements.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks, or datetime64 or timedelta64. A frame
        of dask.dataframe or pandas, or a dict of arrays, has each column of these described,
        nullable numbers as float64; strings and other columns are left out.
    axis, keepdims, split_every
        As for :func:`sum`. With `axis`, a frame is the array of its values.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    Description, or Descriptions for a frame or a dict
        A named tuple of lazy arrays. Where no element is left besides NaN, count and sum are 0 and
        the other statistics NaN. Where every element is masked, all but the two counts are masked.
        Dates have neither sum nor variance, and durations no variance: these are None. Minimum,
        maximum, mean and standard deviation of dates or durations are NaT where there is no
        element.

    Raises
    ------
    TypeError
        If the dtype has no order, or no column of a frame has one.
    AxisError, ValueError
        As for :func:`sum`, and for bool or integers without an element, since their minimum cannot
        be NaN. If chunk sizes are unknown, computing the minimum or the maximum raises it.

    Notes
    -----
    Each chunk is reduced to its count, mean and sum of squared deviations, and these are combined
    as in :func:`var`.

    Dates and durations are summed exactly. Their mean is in their unit: that of dates is rounded
    down, that of durations towards zero, as in NumPy. The standard deviation is rounded to the
    nearest unit.

    Examples
    --------
    >>> import dask, numpy as np
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> d = dc.describe(da.from_array(np.array([1.0, np.nan, 3.0]), chunks=2))
    >>> count, nans, mean = dask.compute(d.count, d.nans, d.mean)
    >>> int(count), int(nans), float(mean)
    (2, 1, 2.0)
    """
    x = asanyarray(a)
    if x.dtype.kind in "mM":
        statistics = describe_dates(x, find_axes(axis, x.ndim), keepdims, split_every)
        description = Description(*map(statistics.get, Description._fields))
    else:
        description = _describe_numbers(x, axis, keepdims, split_every)
    if not chunks.is_masked(x._meta):
        return description
    # Counts are 0, not masked, where every element is masked.
    return description._replace(
        count=_unmasked(description.count), nans=_unmasked(description.nans)
    )


def _describe_numbers(
    x: da.Array, axis: Axis, keepdims: bool, split_every: SplitEvery
) -> Description:
    op = bind(MOMENTS, x.dtype, x.dtype, "describe")
    if x.dtype.kind != "f":
        require_elements("describe", x, axis)
    total, average = SUM.output(op.element), MEAN.output(op.element)
    count = np.dtype("i8")
    dtypes = (count, count, op.element, op.element, total, average, average, average)
    outputs = {
        name: (partial(_statistic, name), dtype)
        for name, dtype in zip(Description._fields, dtypes, strict=True)
    }
    axes = find_axes(axis, x.ndim)
    return Description(*graph_reduce.reduction(op, x, axes, keepdims, split_every, outputs))


def _unmasked(count: Any) -> Any:
    if not isinstance(count, Array):
        return _or_zero(count)
    return map_blocks(_or_zero, count, dtype="i8", meta=np.zeros((0,) * count.ndim, "i8"))


def _refuse_negative(name: str, weights: Any) -> None:
    """Raise ValueError if weights in memory are negative; lazy ones cannot be checked."""
    if is_dask_collection(weights):
        return
    below = np.less(weights, 0)
    if below.any():
        least = np.where(below, weights, 0).min()
        raise ValueError(
            f"weights of {name} cannot be negative, got {least}; leave such elements out with "
            "weights of 0"
        )


def _float(name: str, dtype: Any) -> np.dtype[Any]:
    """Return the dtype of results of the public function `name`; refuse all but floats."""
    result: np.dtype[Any] = np.dtype(dtype)
    if result.kind != "f" or result.itemsize > 8:
        raise Refused(f"{name} does not give dtype={result}; it gives float16 to float64")
    return result.newbyteorder("=")


# From the last state to the result, inside the task.


def _or_zero(count: Any) -> Any:
    return np.ma.filled(count, 0).astype("i8")[()]


def _statistic(name: str, state: State) -> Any:
    count, nans, low, high, total, mean, m2 = state
    match name:
        case "count":
            return count
        case "nans":
            return nans
        case "sum":
            return total
    value = {"min": low, "max": high, "mean": mean}.get(name)
    if value is None:
        variance = m2 / np.maximum(count, 1)
        value = variance if name == "var" else np.sqrt(variance)
    if value.dtype.kind == "f":
        return np.where(count > 0, value, np.nan)
    if np.any(count == 0):
        raise ValueError(no_identity("describe"))
    return value


def _constant(value: float, state: State) -> Any:
    return np.full_like(state[0], value, dtype="f8")


def _last(ddof: float, state: State) -> Any:
    count, power = state[0], state[-2]
    degrees = np.where(count < ddof, np.nan, count - ddof)
    with np.errstate(invalid="ignore", divide="ignore"):
        return power / degrees
