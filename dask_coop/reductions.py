"""Reductions: sum, min, max, mean, describe."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.core import handle_out
from dask.array.utils import validate_axis

from dask_coop import monoids, spine
from dask_coop.monoids import MAX, MEAN, MIN, MOMENTS, SUM, State

Axis = int | tuple[int, ...] | None
SplitEvery = int | dict[int, int] | None


def sum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
) -> da.Array:
    """Sum of array elements over the given axes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis : int, tuple of int or None
        The axes to sum over; None stands for all of them.
    dtype : dtype, optional
        The dtype of the result. By default that of `a`, except that bool and integers narrower
        than 64 bits give 64 bits, as in NumPy.
    keepdims : bool
        Whether the reduced axes stay, with length one.
    split_every : int, dict of int to int, or None
        How many partial sums one task combines, in all or by axis; 16 by default.
    out : dask.array.Array, optional
        An array to overwrite with the result.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s. The shape is `a`'s without the reduced axes.

    Raises
    ------
    TypeError
        If elements of that dtype cannot be summed.
    AxisError, ValueError
        If `axis` is out of bounds or named twice, or `split_every` is less than 2.

    Notes
    -----
    float16 and float32 accumulate in float64 and are rounded once; integers wrap.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> int(dc.sum(da.arange(10, chunks=4)))
    45
    """
    x = da.asanyarray(a)
    output = np.dtype(dtype) if dtype is not None else _sum_dtype(x.dtype)
    return _reduce(SUM, "sum", _only, x, output, axis, keepdims, split_every, out)


def min(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
) -> da.Array:
    """Minimum of array elements over the given axes; NaN where there is one.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    axis, keepdims, split_every, out
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, of `a`'s dtype, with chunks of the kind of `a`'s.

    Raises
    ------
    TypeError
        If elements of that dtype have no order.
    AxisError, ValueError
        As for :func:`sum`, and where there is no element to take the minimum of.
    """
    return _extremum(MIN, "min", a, axis, keepdims, split_every, out)


def max(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
) -> da.Array:
    """Maximum of array elements over the given axes; NaN where there is one.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    axis, keepdims, split_every, out
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, of `a`'s dtype, with chunks of the kind of `a`'s.

    Raises
    ------
    TypeError
        If elements of that dtype have no order.
    AxisError, ValueError
        As for :func:`sum`, and where there is no element to take the maximum of.
    """
    return _extremum(MAX, "max", a, axis, keepdims, split_every, out)


def mean(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
) -> da.Array:
    """Arithmetic mean of array elements over the given axes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, keepdims, split_every, out
        As for :func:`sum`.
    dtype : dtype, optional
        The dtype of the result. By default that of `a`, and float64 for bool and integers.

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
    The mean is taken in float64 (complex128) and rounded once.
    """
    x = da.asanyarray(a)
    output = np.dtype(dtype) if dtype is not None else _mean_dtype(x.dtype)
    return _reduce(MEAN, "mean", _quotient, x, output, axis, keepdims, split_every, out)


class Description(NamedTuple):
    """What :func:`describe` returns: one lazy array for each statistic.

    ``dask.compute(*description)`` computes all of them in one read of the data.
    """

    count: Any  #: elements that are not NaN, int64
    nans: Any  #: NaN elements, int64
    min: Any  #: the least element
    max: Any  #: the greatest element
    sum: Any  #: with the dtype of :func:`sum`
    mean: Any  #: with the dtype of :func:`mean`
    var: Any  #: of the population (no degree of freedom taken off), with the dtype of the mean
    std: Any  #: the square root of the variance


def describe(
    a: Any, axis: Axis = None, keepdims: bool = False, split_every: SplitEvery = None
) -> Description:
    """Count, NaN count, minimum, maximum, sum, mean, variance and standard deviation in one read.

    NaN is counted and otherwise left out; infinities are elements like any other.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    axis, keepdims, split_every
        As for :func:`sum`.

    Returns
    -------
    Description
        A named tuple of lazy arrays. Where every element is NaN or there is none, the count is 0,
        the sum 0, and the other statistics NaN.

    Raises
    ------
    TypeError
        If the dtype has no order.
    AxisError, ValueError
        As for :func:`sum`, and for bool or integers where there is no element, since a minimum of
        that dtype cannot be NaN.

    Notes
    -----
    Each chunk is reduced to its count, mean and sum of squared deviations, and these are combined
    as in T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for Computing the Sample Variance",
    The American Statistician 37 (1983), which does not cancel.

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
    x = da.asanyarray(a)
    axes = _axes(axis, x.ndim)
    op = monoids.bind(MOMENTS, x.dtype, x.dtype, "describe")
    if x.dtype.kind != "f":
        _require_elements("describe", x, axes)
    total, average = _sum_dtype(x.dtype), _mean_dtype(x.dtype)
    dtypes = ("i8", "i8", x.dtype, x.dtype, total, average, average, average)
    outputs = {
        name: (partial(_statistic, name), np.dtype(dtype))
        for name, dtype in zip(Description._fields, dtypes, strict=True)
    }
    return Description(*spine.reduction(op, x, axes, keepdims, split_every, outputs))


def _extremum(
    monoid: monoids.Monoid,
    name: str,
    a: Any,
    axis: Axis,
    keepdims: bool,
    split_every: SplitEvery,
    out: da.Array | None,
) -> da.Array:
    x = da.asanyarray(a)
    _require_elements(name, x, _axes(axis, x.ndim))
    if any(n != n for n in x.shape):
        # Whether there is an element is not known before the counts are.
        finalize = partial(_counted_extremum, name)
        return _reduce(MOMENTS, name, finalize, x, x.dtype, axis, keepdims, split_every, out)
    return _reduce(monoid, name, _only, x, x.dtype, axis, keepdims, split_every, out)


def _reduce(
    monoid: monoids.Monoid,
    name: str,
    finalize: spine.Finalize,
    x: da.Array,
    output: np.dtype[Any],
    axis: Axis,
    keepdims: bool,
    split_every: SplitEvery,
    out: da.Array | None,
) -> da.Array:
    op = monoids.bind(monoid, x.dtype, output, name)
    outputs = {name: (finalize, op.output)}
    (result,) = spine.reduction(op, x, _axes(axis, x.ndim), keepdims, split_every, outputs)
    return handle_out(out, result)


def _axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = validate_axis(axis if isinstance(axis, tuple) else (axis,), ndim)
    if len(set(axes)) != len(axes):
        raise ValueError(f"duplicate value in 'axis': {axis}")
    return tuple(sorted(axes))


def _require_elements(name: str, x: da.Array, axes: tuple[int, ...]) -> None:
    if any(x.shape[axis] == 0 for axis in axes):
        raise ValueError(
            f"zero-size array to reduction operation {name} which has no identity: "
            f"shape {x.shape}, axes {axes}"
        )


def _sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return monoids.accumulator(dtype) if dtype.kind in "biu" else dtype


def _mean_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("f8") if dtype.kind in "biu" else dtype


# From the last state to the result, inside the task.


def _only(state: State) -> Any:
    return state[0]


def _counted_extremum(name: str, state: State) -> Any:
    count, nans, low, high, *_ = state
    if np.any(count + nans == 0):
        raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
    value = low if name == "min" else high
    return np.where(nans > 0, np.nan, value) if value.dtype.kind == "f" else value


def _quotient(state: State) -> Any:
    total, count = state
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count


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
    return np.where(count > 0, value, np.nan) if value.dtype.kind == "f" else value
