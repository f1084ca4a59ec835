"""Cumulative sums, products and extrema, and logarithms of cumulative sums of exponentials."""

from __future__ import annotations

from typing import Any

import dask.array as da
from dask.array.core import asanyarray

from dask_coop.algebra.operation import compensated
from dask_coop.algebra.statistics import SCANS
from dask_coop.api.call.public import Engine, like, named, public
from dask_coop.api.scan_arguments import ScanArguments, bind_row, scan_bound


@public("scan")
@named
def cumsum(
    name: str,
    /,
    x: Any,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array:
    """Cumulative sum of array elements along an axis.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks, or timedelta64.
    axis : int or None
        The axis to sum along; None stands for the flattened array, in C order.
    dtype : dtype, optional
        The dtype of the result. By default that of `x`, except that bool and integers narrower
        than 64 bits give 64 bits, as in NumPy.
    out : dask.array.Array, optional
        An array to overwrite with the result.
    method : {"reduce-then-scan", "blelloch", "sequential", "recompute"}
        "reduce-then-scan" sums each chunk, scans the sums to find the start of each chunk, and
        scans each chunk from there; "blelloch", Dask's name for such a method, does the same.
        "sequential" goes from chunk to chunk and reads each once; if every result is stored at
        once, only one is in memory at a time: for arrays larger than memory. "recompute" is
        "reduce-then-scan", but computes each chunk of `x` twice instead of keeping it between the
        passes: for arrays larger than memory that are cheap to read.
    exclusive : bool
        Whether to leave each element out of its own result; the first result is then 0.
    reverse : bool
        Whether to scan from the end of the axis.
    include_initial : bool
        Whether to put a 0 first, or last with `reverse`. The result, and its first or last chunk,
        is then one longer along the axis.
    segments : dask.array.Array or array_like, optional
        Bool, of the shape of `x`, or one-dimensional and as long as the axis: the sum restarts at
        each element that is true here. With `reverse` that element is the last of its segment.
    engine : {"auto", "collective"}
        As for :func:`sum`; results that are computed at once stay on the workers that hold the
        chunks.

    Returns
    -------
    dask.array.Array
        Lazy, with `x`'s chunks along its axes. With ``axis=None`` one-dimensional, in chunks
        about as large as `x`'s.

    Raises
    ------
    TypeError
        If elements of that dtype cannot be summed, or `segments` is not bool or has another kind of
        chunks.
    AxisError, ValueError
        If `axis` is out of bounds, `method` is none of those above, `segments` has another shape,
        or `exclusive` and `include_initial` are both true.

    Notes
    -----
    Scans of masked arrays, in NumPy chunks, skip masked elements and are masked in the same places.

    float16 and float32 accumulate in float64 and every element is rounded once; integers wrap. The
    cross-chunk step is a two-level reduce-then-scan: G. E. Blelloch, "Prefix Sums and Their
    Applications", 1990; D. Merrill and A. Grimshaw, "Parallel Scan for Stream Architectures", 2009.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.ones(5, chunks=2, dtype="i4")
    >>> dc.cumsum(x).compute()
    array([1, 2, 3, 4, 5])
    >>> dc.cumsum(x, segments=[False, False, True, False, False]).compute()
    array([1, 2, 1, 2, 3])
    """
    arguments = ScanArguments(axis, out, method, exclusive, reverse, include_initial, segments)
    return _scan(name, x, dtype, arguments)


@like(cumsum)
def cumprod() -> None:
    """Cumulative product of array elements along an axis.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, dtype, out, method
        As for :func:`cumsum`.
    exclusive, reverse, include_initial, segments
        As for :func:`cumsum`, with 1 in place of 0.
    engine : {"auto", "collective"}
        As for :func:`cumsum`.

    Notes
    -----
    The product of a single chunk may overflow where the cumulative product does not; use
    "sequential" then.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.cumprod(da.arange(1, 6, chunks=2)).compute()
    array([  1,   2,   6,  24, 120])
    """


@like(cumsum)
def nancumsum() -> None:
    """Cumulative sum of array elements along an axis, treating NaN as 0.

    Dask's function of the same name takes durations.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> dc.nancumsum(x).compute()
    array([1., 1., 4.])
    """


@like(cumprod)
def nancumprod() -> None:
    """Cumulative product of array elements along an axis, treating NaN as 1.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> dc.nancumprod(x).compute()
    array([1., 1., 3.])
    """


@public("scan", dask=False)
@named
def cumulative_sum(
    name: str,
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    include_initial: bool = False,
    engine: Engine = "auto",
) -> da.Array:
    """Cumulative sum of array elements along an axis, as in the array API standard.

    Parameters
    ----------
    x : dask.array.Array or array_like
        As for :func:`cumsum`.
    axis : int, optional
        The axis to sum along; optional if `x` has one dimension.
    dtype, out, include_initial
        As for :func:`cumsum`.
    engine : {"auto", "collective"}
        As for :func:`cumsum`.

    Returns
    -------
    dask.array.Array
        As for :func:`cumsum`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`cumsum`, and if `axis` is missing and `x` has several dimensions.
    """
    x, axis = _one_axis(x, axis)
    function = cumsum if name == "cumulative_sum" else cumprod
    return function(x, axis, dtype, out, include_initial=include_initial)


@like(cumulative_sum)
def cumulative_prod() -> None:
    """Cumulative product of array elements along an axis, as in the array API standard.

    Parameters
    ----------
    x : dask.array.Array or array_like
        As for :func:`cumprod`.
    axis : int, optional
        The axis to multiply along; optional if `x` has one dimension.
    dtype, out, include_initial
        As for :func:`cumprod`.
    engine : {"auto", "collective"}
        As for :func:`cumsum`.
    """


@like(cumsum, dask=False)
def cummax() -> None:
    """Cumulative maximum of array elements along an axis.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks, or dates or durations in NumPy chunks.
        NaN and NaT propagate, as in :data:`numpy.maximum`.
    axis, out, method
        As for :func:`dask_coop.cumsum`.
    dtype : dtype, optional
        The dtype of the result; by default that of `x`.
    exclusive, reverse, include_initial, segments
        As for :func:`dask_coop.cumsum`, with the lowest value of the dtype, which is minus infinity
        for floats, in place of 0.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.cummax(da.from_array([3, 1, 4, 1, 5], chunks=2)).compute()
    array([3, 3, 4, 4, 5])
    """


@like(cummax)
def cummin() -> None:
    """Cumulative minimum of array elements along an axis.

    Parameters
    ----------
    x : dask.array.Array or array_like
        As for :func:`cummax`.
    axis, dtype, out, method
        As for :func:`cummax`.
    exclusive, reverse, include_initial, segments
        As for :func:`dask_coop.cumsum`, with the highest value of the dtype in place of 0.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.
    """


@like(cummax)
def logcumsumexp() -> None:
    """Logarithm of the cumulative sum of exponentials of array elements along an axis.

    Equals ``log(cumsum(exp(x)))``, but no exponential overflows or vanishes.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    axis, out, method
        As for :func:`dask_coop.cumsum`.
    dtype : dtype, optional
        A floating dtype for the result; by default that of `x`, or float64 for bool and integers.
    exclusive, reverse, include_initial, segments
        As for :func:`dask_coop.cumsum`, with minus infinity in place of 0.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.

    Notes
    -----
    float16 and float32 accumulate in float64 and every element is rounded once. Infinities and NaN
    propagate as in ``numpy.logaddexp.accumulate``.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.logcumsumexp(da.zeros(3, chunks=2)).compute().round(6)
    array([0.      , 0.693147, 1.098612])
    """


def _scan(name: str, x: Any, dtype: Any, arguments: ScanArguments) -> da.Array:
    op, array = bind_row(SCANS[name], name, asanyarray(x), dtype)
    return scan_bound(compensated(op), name, array, arguments)


def _one_axis(x: Any, axis: int | None) -> tuple[da.Array, int]:
    array = asanyarray(x)
    if array.ndim == 0:
        array = array.reshape(1)
    if axis is None and array.ndim > 1:
        raise ValueError(
            "For arrays which have more than one dimension ``axis`` argument is required."
        )
    return array, 0 if axis is None else axis
