"""Sums and products, also of what is not NaN, and truths: sum, prod, any, all, count_nonzero."""

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
        How many partial sums one task combines, in all or by axis; 16 by default.
    out : dask.array.Array, optional
        An array to overwrite with the result.
    initial : number, optional
        What the reduction starts from.
    where : array_like of bool
        Which elements take part: a Dask array or any other that broadcasts to `a`'s shape.
    reproducible : bool
        Whether the sum has the same bits for every chunking, `split_every`, scheduler, and number
        of workers or GPUs, in NumPy and in CuPy chunks. Integer sums have in any case.
    engine : {"auto", "collective"}
        Whether the result is lazy; or is computed at once on the workers that have the chunks in
        memory, by messages instead of a graph, and is NumPy's. By default what the configuration's
        ``coop.engine`` says, which is "auto": lazy. What "collective" cannot do a graph does, at
        once, and the reason is told: by the logger ``dask_coop.api.public`` at the level INFO, or
        as the configuration's ``coop.fallback`` says, by a `FallbackWarning` ("warn") or the error
        `Declined` ("raise"). docs/collective.md lists the reasons.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s. The shape is `a`'s without the reduced axes.

    Raises
    ------
    TypeError
        If elements of that dtype cannot be summed, or `where` is not bool.
    AxisError, ValueError
        If `axis` is out of bounds or named twice, `split_every` is less than 2, `where` does not
        broadcast to the shape of `a`, or a reproducible sum has more than 2**39 elements.

    Notes
    -----
    float16 and float32 accumulate in float64 and are rounded once; integers wrap.

    A reproducible sum is that of fixed-point digits, after J. Demmel and H. D. Nguyen, "Parallel
    Reproducible Summation", IEEE Transactions on Computers 64 (2015): every element is taken to
    within 2**-72 of the largest one, in magnitude, and the sum of that is exact and rounded once,
    to the dtype of the result. A sum of float16 is exact before that. An exact zero is +0, and of
    NaN neither the sign nor the other bits are promised.

    Of masked arrays, in NumPy chunks, what is masked is left out, here and in every reduction, scan
    and histogram, along with what `where` leaves out. As those of :mod:`numpy.ma`, a reduction
    gives a masked array, masked where no element was left, also with `initial`. NaN and infinities
    that are not masked count as in any array: the mean and the variance are then NaN, which
    :func:`numpy.ma.mean` masks and :func:`numpy.ma.var` leaves out.

    Chunks of other types (sparse arrays) and dtypes (object, datetime64, longdouble) are left to
    Dask's function of the same name, here and in every other function of arrays. The bfloat16 of
    ml_dtypes is reduced and scanned as float32, and results are rounded to it.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> int(dc.sum(da.arange(10, chunks=4)))
    45
    """
    x = asanyarray(a)
    given = ReductionArguments(axis, keepdims, split_every, out, where, initial, reproducible)
    if x.dtype.kind == "m" and name == "sum":
        return reduce_durations(name, x, dtype, given)
    return reduce_statistic(name, x, given, dtype)


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
    given = ReductionArguments(axis, keepdims, split_every, out, where, initial)
    return reduce_statistic(name, asanyarray(a), given, dtype)


@like(sum)
def nansum() -> None:
    """Sum of the elements over the given axes that are not NaN; 0 where there is none.

    Durations are left to Dask's function of that name.

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
    """Product of the elements over the given axes that are not NaN; 1 where there is none.

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
    """Whether any element over the given axes is true: neither zero nor False.

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
    given = ReductionArguments(axis, keepdims, split_every, out, where)
    return reduce_statistic(name, asanyarray(a), given)


@like(any)
def all() -> None:
    """Whether all elements over the given axes are true: neither zero nor False.

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
    """Count the elements over the given axes that are true: neither zero nor False.

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
    given = ReductionArguments(axis, keepdims, split_every)
    return reduce_statistic("count_nonzero", asanyarray(a), given)
