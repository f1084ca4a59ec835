"""Running extrema, logarithms of running sums of exponentials, and the scan of any monoid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray

from dask_coop.algebra.monoids import ALL, ANY, LOGADDEXP, MAX, MIN, Monoid
from dask_coop.api import monoid as custom_monoid
from dask_coop.api import ufuncs
from dask_coop.api.arguments import sum_dtype
from dask_coop.api.cumulative import cumprod, cumsum
from dask_coop.api.planning import takes_expressions
from dask_coop.api.public import Engine, takes_engine
from dask_coop.api.scan_arguments import Options, scan_array, scan_bound


@takes_engine
@takes_expressions
def cummax(
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
    """Cumulative maximum of array elements along an axis.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks, or dates or durations in NumPy chunks.
        NaN and NaT win, as in :data:`numpy.maximum`.
    axis, out, method
        As for :func:`dask_coop.cumsum`.
    dtype : dtype, optional
        The dtype of the result; by default that of `x`.
    exclusive, reverse, include_initial, segments
        As for :func:`dask_coop.cumsum`, with the lowest value of the dtype in the place of 0, which
        is minus infinity for floats.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.

    Returns
    -------
    dask.array.Array
        As of :func:`dask_coop.cumsum`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`dask_coop.cumsum`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.cummax(da.from_array([3, 1, 4, 1, 5], chunks=2)).compute()
    array([3, 3, 4, 4, 5])
    """
    options = Options(exclusive, reverse, include_initial, segments)
    return _extrema(MAX, "cummax", x, axis, dtype, out, method, options)


@takes_engine
@takes_expressions
def cummin(
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
    """Cumulative minimum of array elements along an axis.

    Parameters
    ----------
    x : dask.array.Array or array_like
        As for :func:`cummax`.
    axis, dtype, out, method
        As for :func:`cummax`.
    exclusive, reverse, include_initial, segments
        As for :func:`dask_coop.cumsum`, with the highest value of the dtype in the place of 0.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.

    Returns
    -------
    dask.array.Array
        As of :func:`dask_coop.cumsum`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`dask_coop.cumsum`.
    """
    options = Options(exclusive, reverse, include_initial, segments)
    return _extrema(MIN, "cummin", x, axis, dtype, out, method, options)


@takes_engine
@takes_expressions
def logcumsumexp(
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
    """Logarithm of the cumulative sum of exponentials of array elements along an axis.

    What ``log(cumsum(exp(x)))`` would be if no exponential overflowed or vanished.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    axis, out, method
        As for :func:`dask_coop.cumsum`.
    dtype : dtype, optional
        The dtype of the result, of floats. By default that of `x`, or float64 where it has none.
    exclusive, reverse, include_initial, segments
        As for :func:`dask_coop.cumsum`, with minus infinity in the place of 0.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.

    Returns
    -------
    dask.array.Array
        As of :func:`dask_coop.cumsum`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`dask_coop.cumsum`.

    Notes
    -----
    float16 and float32 accumulate in float64 and every element is rounded once. Infinities and NaN
    pass as through ``numpy.logaddexp.accumulate``.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.logcumsumexp(da.zeros(3, chunks=2)).compute().round(6)
    array([0.      , 0.693147, 1.098612])
    """
    array = asanyarray(x)
    element = np.dtype("f8") if array.dtype.kind in "biu" else array.dtype
    output = element if dtype is None else np.dtype(dtype)
    options = Options(exclusive, reverse, include_initial, segments)
    arguments = axis, element, output, out, method, options
    return scan_array(LOGADDEXP, "logcumsumexp", array, *arguments)


@takes_engine
@takes_expressions
def scan(
    x: Any,
    monoid: Monoid | np.ufunc,
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
) -> da.Array | tuple[da.Array, ...]:
    """Scan of array elements along an axis by any monoid or a ufunc.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Elements that `monoid` takes, in NumPy or CuPy chunks.
    monoid : Monoid or numpy.ufunc
        What combines: one's own :class:`Monoid`; one of NumPy's ufuncs that :func:`reduce` takes,
        with the dtypes that their ``accumulate`` has; or a row of :mod:`dask_coop.monoids` whose
        states are one value: `SUM`, `PROD`, `MIN`, `MAX`, `ANY`, `ALL`, `COUNT_NONZERO`,
        `LOGADDEXP`.
    axis, out, method
        As for :func:`dask_coop.cumsum`.
    dtype : dtype, optional
        The dtype of the result. By default that of what one's own monoid makes of states; else
        that of the states, and that of `x` where float states are wider.
    exclusive, reverse, include_initial, segments
        As for :func:`dask_coop.cumsum`, with the identity of the monoid in the place of 0.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.

    Returns
    -------
    dask.array.Array or tuple of them
        As of :func:`dask_coop.cumsum`; a tuple where the monoid makes several results, each by a
        scan of its own.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`dask_coop.cumsum`, and as for :func:`reduce`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> from dask_coop.monoids import ANY
    >>> dc.scan(da.from_array([0, 0, 3, 0], chunks=2), ANY).compute()
    array([False, False,  True,  True])
    """
    array = asanyarray(x)
    options = Options(exclusive, reverse, include_initial, segments)
    if isinstance(monoid, np.ufunc):
        if monoid in _SCANS:
            function: Callable[..., da.Array] = _SCANS[monoid]
            if dtype is None and monoid is np.logaddexp:
                dtype = ufuncs.logaddexp_dtype(array.dtype)
            return function(array, axis, dtype, out, method, **options._asdict())
        rows: dict[np.ufunc, Monoid] = {np.logical_or: ANY, np.logical_and: ALL}
        monoid = rows.get(monoid) or custom_monoid.Monoid(
            **ufuncs.parts(monoid, array.dtype, "scan")
        )
    if isinstance(monoid, custom_monoid.Monoid):
        op, given = custom_monoid.bind(monoid, array, "scan"), (array, axis, out, method, options)
        parts = [monoid]
        if monoid.several:
            custom_monoid.refuse_out("scan", monoid, out)
            parts = [monoid.part(i) for i in range(len(monoid.results))]
        outputs = [part.result if dtype is None else np.dtype(dtype) for part in parts]
        results = tuple(
            scan_bound(replace(op, monoid=part, output=output), monoid.name, *given)
            for part, output in zip(parts, outputs, strict=True)
        )
        return results if monoid.several else results[0]
    if not isinstance(monoid, Monoid):
        raise ufuncs.refusal("scan", monoid)
    if len(monoid.fields) != 1:
        names = ", ".join(field.name for field in monoid.fields)
        raise TypeError(f"scan takes monoids of one field; {monoid.name} has {names}")
    name = "cum" + monoid.name.replace("_", "-")
    element = array.dtype
    role = monoid.fields[0].role
    if role == "real" and element.kind in "biu":
        element = np.dtype("f8")
    if dtype is not None:
        output = np.dtype(dtype)
    elif role in ("count", "truth"):
        output = monoid.dtypes(element)[0]
    else:
        output = sum_dtype(element) if role == "accumulator" else element
    return scan_array(monoid, name, array, axis, element, output, out, method, options)


_SCANS = {
    np.add: cumsum,
    np.multiply: cumprod,
    np.minimum: cummin,
    np.maximum: cummax,
    np.logaddexp: logcumsumexp,
}


def _extrema(
    monoid: Monoid,
    name: str,
    x: Any,
    axis: int | None,
    dtype: Any,
    out: da.Array | None,
    method: str,
    options: Options,
) -> da.Array:
    array = asanyarray(x)
    output = array.dtype if dtype is None else np.dtype(dtype)
    arguments = axis, array.dtype, output, out, method, options
    return scan_array(monoid, name, array, *arguments, times="mM")
