"""Sums, products and truth tests, also ignoring NaN: sum, prod, any, all, count_nonzero."""

from __future__ import annotations

from typing import Any

import dask.array as da
from dask.array.core import asanyarray

from dask_coop.api.arguments import Axis, ReductionArguments, SplitEvery, reduce_statistic
from dask_coop.api.call.public import Engine, like, named, public
from dask_coop.api.dates import reduce_durations


@public("reduction")
@named
def sum(
    name: str,
    /,
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> da.Array:
    """Sum of array elements over the given axes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks, or timedelta64.
    axis : int, tuple of int or None
        The axes to sum over; None stands for all of them.
    dtype : dtype, optional
        The dtype of the result. By default that of `a`, except that bool and integers narrower
        than 64 bits give 64 bits, as in NumPy.
    keepdims : bool
        Whether the reduced axes stay, with length one.
    split_every : int, dict of int to int, or None
        How many partial sums one task combines, in total or per axis; 16 by default.
    out : dask.array.Array, optional
        An array to overwrite with the result.
    initial : number, optional
        The value to start from.
    where : array_like of bool
        The elements to include: a Dask array, or any other, that broadcasts to `a`'s shape.
    reproducible : bool
        Whether the sum has the same bits for every chunking, `split_every`, scheduler, and number
        of workers or GPUs, in NumPy and in CuPy chunks. Integer sums always have.
    engine : {"auto", "collective"}
        "collective" computes the result at once, as NumPy's, on the workers that hold the chunks in
        memory, by messages instead of a graph. "auto" does as the configuration's ``coop.engine``
        says; that, too, is "auto" by default, and the result is lazy. Where "collective" is not
        possible, a graph computes the result at once, and the logger ``dask_coop.api.public`` gives
        the reason at the level INFO. With ``coop.fallback`` in the configuration you get a
        `FallbackWarning` ("warn") or the error `Declined` ("raise") instead. docs/collective.md
        lists the reasons.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s. The shape is `a`'s without the reduced axes.

    Raises
    ------
    TypeError
        If elements of that dtype cannot be summed, or `where` is not bool.
    AxisError, ValueError
        If `axis` is out of bounds or names an axis twice, `split_every` is less than 2, `where`
        does not broadcast to the shape of `a`, or a reproducible sum has more than 2**39 elements.

    Notes
    -----
    float16 and float32 accumulate in float64 and are rounded once; integers wrap.

    A reproducible sum adds fixed-point digits, after J. Demmel and H. D. Nguyen, "Parallel
    Reproducible Summation", IEEE Transactions on Computers 64 (2015). It takes every element to
    within 2**-72 of the largest magnitude, adds these exactly, and rounds once, to the dtype of the
    result. Before that rounding a sum of float16 is exact. An exact zero is +0; the sign and the
    other bits of a NaN may vary.

    Every reduction, scan and histogram leaves out the masked elements of NumPy chunks, along with
    those that `where` excludes. Like :mod:`numpy.ma`, a reduction of a masked array gives a masked
    array, masked where no element is left, even with `initial`. NaN and infinities that are not
    masked count as in any array: they make the mean and the variance NaN, where
    :func:`numpy.ma.mean` masks its result and :func:`numpy.ma.var` leaves them out.

    Here and in every other function of arrays, Dask's function of the same name takes chunks of
    other types (sparse arrays) and other dtypes (object, datetime64, longdouble). The bfloat16 of
    ml_dtypes is reduced and scanned as float32, and results are rounded to bfloat16.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> int(dc.sum(da.arange(10, chunks=4)))
    45
    """
    x = asanyarray(a)
    arguments = ReductionArguments(axis, keepdims, split_every, out, where, initial, reproducible)
    if x.dtype.kind == "m" and name == "sum":
        return reduce_durations(name, x, dtype, arguments)
    return reduce_statistic(name, x, arguments, dtype)


@public("reduction")
@named
def prod(
    name: str,
    /,
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array:
    """Product of array elements over the given axes; 1 where there is no element.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, dtype, keepdims, split_every, out, initial, where
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`sum`.

    Notes
    -----
    float16 and float32 are multiplied in float64 and rounded once; integers wrap.
    """
    arguments = ReductionArguments(axis, keepdims, split_every, out, where, initial)
    return reduce_statistic(name, asanyarray(a), arguments, dtype)


@like(sum)
def nansum() -> None:
    """Sum of array elements over the given axes, ignoring NaN; 0 where no element is left.

    Dask's function of the same name takes durations.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nansum(x))
    4.0
    """


@like(prod)
def nanprod() -> None:
    """Product of array elements over the given axes, ignoring NaN; 1 where no element is left.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nanprod(x))
    3.0
    """


@public("reduction")
@named
def any(
    name: str,
    /,
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array:
    """Test whether any element over the given axes is true, that is, nonzero.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks; NaN is true.
    axis, keepdims, split_every, out, where
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, bool, with chunks of the kind of `a`'s; False where there is no element.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`sum`.
    """
    arguments = ReductionArguments(axis, keepdims, split_every, out, where)
    return reduce_statistic(name, asanyarray(a), arguments)


@like(any)
def all() -> None:
    """Test whether all elements over the given axes are true, that is, nonzero.

    Returns
    -------
    dask.array.Array
        Lazy, bool, with chunks of the kind of `a`'s; True where there is no element.
    """


@public("reduction")
def count_nonzero(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Count the nonzero elements over the given axes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks; NaN is true.
    axis, keepdims, split_every
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, int64, with chunks of the kind of `a`'s.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`sum`.
    """
    arguments = ReductionArguments(axis, keepdims, split_every)
    return reduce_statistic("count_nonzero", asanyarray(a), arguments)
