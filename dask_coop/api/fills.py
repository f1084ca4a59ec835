"""Fill gaps in series, smooth series by exponential weights, and integrate them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, map_blocks
from dask.array.utils import validate_axis

from dask_coop.algebra.fills import fill, weighted_mean, weighted_spread, weighted_sum
from dask_coop.algebra.monoids import SUM, MonoidRow
from dask_coop.algebra.operation import bind
from dask_coop.api.arguments import as_declared, as_pairs, rechunk
from dask_coop.api.call.public import Engine, like, named, public
from dask_coop.api.cumulative import cumsum
from dask_coop.api.scan_arguments import ScanArguments, scan_bound
from dask_coop.api.signals.times import MEANS, with_decays
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.masks import is_masked, keeps_mask, refuse_masked
from dask_coop.errors import Declined
from dask_coop.graph import executor, windows

#: The values that each argument of exponential weights may have, and how messages describe them.
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "alpha": (lambda alpha: 0 < alpha <= 1, "above 0 and at most 1"),
    "span": (lambda span: span >= 1, "at least 1"),
    "halflife": (lambda halflife: halflife > 0, "above 0"),
    "com": (lambda com: com >= 0, "at least 0"),
}


@public("scan", dask=False)
@named
def ffill(
    name: str,
    /,
    x: Any,
    axis: int = -1,
    limit: int | None = None,
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array:
    """Replace missing elements by the last valid ones before them along an axis.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Floats or complex numbers, in NumPy or CuPy chunks, or dates or durations, in NumPy chunks.
        NaN and NaT are missing elements. Bool and integers have none and are returned unchanged.
    axis : int
        The axis to fill along.
    limit : int, optional
        The largest number of missing elements in a row to replace, also across chunks.
    method : {"reduce-then-scan", "blelloch", "sequential", "recompute"}
        As for :func:`dask_coop.cumsum`.
    segments : dask.array.Array or array_like, optional
        As for :func:`dask_coop.cumsum`: no element is filled from another segment.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.

    Returns
    -------
    dask.array.Array
        Lazy, with `x`'s dtype and chunks.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`dask_coop.cumsum`, and if `limit` is less than 1.

    Notes
    -----
    Masked elements stay masked and fill no others, but count towards `limit`. Missing elements
    before the first valid one stay missing.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> import numpy as np
    >>> x = da.from_array([1, np.nan, np.nan, np.nan, 5], chunks=2)
    >>> dc.ffill(x, limit=2).compute()
    array([ 1.,  1.,  1., nan,  5.])
    """
    array = asanyarray(x)
    if limit is not None and (not isinstance(limit, Integral) or limit < 1):
        raise ValueError(f"limit must be a positive integer or None, got {limit!r}")
    if array.dtype.kind in "biu":
        validate_axis(axis, array.ndim)
        # Tasks that read the declared dtype, as those of cumsum do, meet it.
        return as_declared(array)
    monoid = fill(None if limit is None else int(limit))
    op = bind(monoid, array.dtype, array.dtype, name, times="mM")
    arguments = ScanArguments(axis, None, method, False, name == "bfill", False, segments)
    return scan_bound(op, name, array, arguments)


@like(ffill)
def bfill() -> None:
    """Replace missing elements by the next valid ones after them along an axis.

    Parameters
    ----------
    x, axis, limit, method, segments, engine
        As for :func:`ffill`; an element that is true in `segments` is the last of its segment, as
        in scans with ``reverse=True``.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> import numpy as np
    >>> dc.bfill(da.from_array([np.nan, 2, np.nan, np.nan], chunks=2)).compute()
    array([ 2.,  2., nan, nan])
    """


@public("scan", dask=False)
def ewm_mean(
    x: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: Any = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    min_periods: int = 0,
    times: Any = None,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array:
    """Exponentially weighted mean of array elements along an axis, as pandas' ``ewm(...).mean()``.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks. NaN has no weight.
    axis : int
        The axis to average along.
    alpha, span, halflife, com : float
        Exactly one of them, unless there are `times`. Each step multiplies the weight of older
        elements by ``1 - alpha``, with ``0 < alpha <= 1``; alpha is also ``2 / (span + 1)``,
        ``1 - exp(-log(2) / halflife)`` or ``1 / (com + 1)``.
    adjust : bool
        Whether the mean weights all elements so far by 1, ``1 - alpha``, ``(1 - alpha)**2`` and so
        on, from the newest back; if False, it is ``alpha`` times the new element plus ``1 - alpha``
        times the mean before it.
    ignore_na : bool
        Whether only elements other than NaN are steps.
    min_periods : int
        The smallest number of elements other than NaN for a mean; with fewer the result is NaN.
    times : dask.array.Array or array_like, optional
        A date or a number for each element along `axis`, in their order. Weights are then halved in
        the time `halflife`: a duration for dates, such as a `numpy.timedelta64` or pandas'
        ``"4 days"``. With `adjust` there may be one of `alpha`, `span` and `com` besides, and
        weights are multiplied by ``1 - alpha`` in that time. Without it, a mean is what is left of
        the weight 1 of the one before, and the new element has the other fraction.
    method, segments
        As for :func:`dask_coop.cumsum`.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`. A graph takes over if `min_periods` is 2 or more or there
        are `times`, since it then scans an array that tasks make from the chunks.

    Returns
    -------
    dask.array.Array
        Lazy, with `x`'s chunks, and its dtype if that is floating, else float64.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`dask_coop.cumsum`, and unless exactly one of `alpha`, `span`, `halflife` and
        `com` is given and in its range; if `times` do not fit, are missing, or `halflife` is no
        duration above 0.

    Notes
    -----
    Means are computed in float64 and rounded once. Once infinities of both signs have occurred,
    means are NaN from there on; pandas takes infinities for NaN. pandas 3.1 departs from its own
    formula if alpha is exactly 0.5 (``com=1``), ``adjust=False`` and ``ignore_na=False``: for
    ``[1, nan, 3]`` it ends with 2.5, and the formula, as here, with 2.3333.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.ewm_mean(da.from_array([0.0, 1.0, 2.0], chunks=2), alpha=0.5).compute().round(4)
    array([0.    , 0.6667, 1.4286])
    """
    if times is not None:
        if executor.runner() is not None:
            raise Declined("pairs are made by tasks, which take chunks of two arrays")
        others = {"alpha": alpha, "span": span, "com": com}
        is_alone = all(value is None for value in others.values())
        if not (is_alone or adjust):
            raise ValueError("ewm_mean takes halflife alone beside times if adjust is False")
        kept = 0.5 if is_alone else 1 - _alpha("ewm_mean", **others)
        array = asanyarray(x)
        element = np.dtype("f8") if array.dtype.kind in "biu" else array.dtype
        bind(weighted_sum(0.5, False), element, element, "ewm_mean")
        along = validate_axis(axis, array.ndim)
        pairs = with_decays("ewm_mean", array, along, times, halflife, kept, bool(ignore_na))
        row = MEANS[bool(adjust)]
        return _weigh("ewm_mean", row, pairs, along, min_periods, method, segments, element)
    weight = _alpha("ewm_mean", alpha=alpha, span=span, halflife=halflife, com=com)
    monoid = weighted_mean(weight, bool(adjust), bool(ignore_na))
    return _weigh("ewm_mean", monoid, asanyarray(x), axis, min_periods, method, segments)


@public("scan", dask=False)
def ewm_sum(
    x: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    ignore_na: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array:
    """Exponentially weighted sum of array elements along an axis, as pandas' ``ewm(...).sum()``.

    Parameters
    ----------
    x, axis, alpha, span, halflife, com, ignore_na, min_periods, method, segments, engine
        As for :func:`ewm_mean`. The newest element has weight 1.

    Returns
    -------
    dask.array.Array
        As for :func:`ewm_mean`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`ewm_mean`.

    Notes
    -----
    Sums are computed in float64 and rounded once. pandas takes infinities for NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.ewm_sum(da.from_array([0.0, 1.0, 2.0], chunks=2), alpha=0.5).compute()
    array([0. , 1. , 2.5])
    """
    weight = _alpha("ewm_sum", alpha=alpha, span=span, halflife=halflife, com=com)
    monoid = weighted_sum(weight, bool(ignore_na))
    return _weigh("ewm_sum", monoid, asanyarray(x), axis, min_periods, method, segments)


@public("scan", dask=False)
@named
def ewm_var(
    name: str,
    /,
    x: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array:
    """Exponentially weighted variance of elements along an axis, as pandas' ``ewm(...).var()``.

    Parameters
    ----------
    x, axis, alpha, span, halflife, com, adjust, ignore_na, min_periods, method, segments, engine
        As for :func:`ewm_mean`.
    bias : bool
        Whether to leave out the factor that makes up for few elements.

    Returns
    -------
    dask.array.Array
        As for :func:`ewm_mean`. Without `bias` it is NaN where there is only one element.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`ewm_mean`.

    Notes
    -----
    Squares of deviations from the mean so far are updated, so that elements far from zero lose no
    digits: T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm
    for Computing Sample Variances", 1979.

    Results are NaN from the first infinity on, where pandas takes infinities for NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.ewm_var(da.from_array([0.0, 1.0, 3.0], chunks=2), alpha=0.5).compute().round(4)
    array([nan, 0.5, 2.5])
    """
    weight = _alpha(name, alpha=alpha, span=span, halflife=halflife, com=com)
    flags = bool(adjust), bool(ignore_na), bool(bias)
    monoid = weighted_spread(name.removeprefix("ewm_"), weight, *flags)
    return _weigh(name, monoid, asanyarray(x), axis, min_periods, method, segments)


@like(ewm_var)
def ewm_std() -> None:
    """Exponentially weighted deviation of elements along an axis, as pandas' ``ewm(...).std()``.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.ewm_std(da.from_array([0.0, 1.0, 3.0], chunks=2), alpha=0.5).compute().round(4)
    array([   nan, 0.7071, 1.5811])
    """


@public("scan", dask=False)
@named
def ewm_cov(
    name: str,
    /,
    x: Any,
    y: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array:
    """Exponentially weighted covariance along an axis, as pandas' ``x.ewm(...).cov(y)``.

    Parameters
    ----------
    x, y : dask.array.Array or array_like
        As `x` of :func:`ewm_mean`, of one shape. A pair with a NaN has no weight.
    axis, alpha, span, halflife, com, adjust, ignore_na, min_periods, method, segments
        As for :func:`ewm_mean`.
    bias : bool
        Whether to leave out the factor that makes up for few elements; correlations are those of
        biased covariances.
    engine : {"auto", "collective"}
        As for :func:`ewm_mean`, but a graph always takes over, since pairs are made by tasks.

    Returns
    -------
    dask.array.Array
        As for :func:`ewm_mean`, with the common dtype.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`ewm_mean`, and if `x` and `y` differ in shape.

    Notes
    -----
    Results are NaN from the first infinity on, where pandas takes infinities for NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x, y = da.from_array([[0.0, 1.0, 3.0], [2.0, 1.0, 0.0]], chunks=2)
    >>> dc.ewm_cov(x, y, alpha=0.5).compute().round(4)
    array([ nan, -0.5, -1.5])
    """
    weight = _alpha(name, alpha=alpha, span=span, halflife=halflife, com=com)
    if executor.runner() is not None:
        raise Declined("pairs are made by tasks, which take chunks of two arrays")
    first, second = asanyarray(x), asanyarray(y)
    for array in (first, second):
        refuse_masked(name, array._meta)
        element = np.dtype("f8") if array.dtype.kind in "biu" else array.dtype
        bind(weighted_sum(weight, False), element, element, name)
    pairs, output = as_pairs(name, first, second)
    flags = bool(adjust), bool(ignore_na), bool(bias)
    monoid = weighted_spread(name.removeprefix("ewm_"), weight, *flags)
    return _weigh(name, monoid, pairs, axis, min_periods, method, segments, output)


@like(ewm_cov)
def ewm_corr() -> None:
    """Exponentially weighted correlation along an axis, as pandas' ``x.ewm(...).corr(y)``.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x, y = da.from_array([[0.0, 1.0, 3.0], [2.0, 1.0, 0.0]], chunks=2)
    >>> dc.ewm_corr(x, y, alpha=0.5).compute().round(4)
    array([    nan, -1.    , -0.9845])
    """


@public("scan", dask=False)
def cumulative_trapezoid(
    y: Any,
    x: Any = None,
    dx: float = 1.0,
    axis: int = -1,
    initial: float | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Cumulative integral of sampled values along an axis by the trapezoidal rule.

    Parameters
    ----------
    y : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    x : dask.array.Array or array_like, optional
        The positions of samples: one-dimensional and as long as the axis, or of the shape of `y`.
    dx : float
        The distance between samples if there is no `x`.
    axis : int
        The axis to integrate along.
    initial : {None, 0}
        With 0, the result begins with a 0; with None it is shorter than `y` by one, and so is its
        first chunk.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`, but a graph always takes over, since the areas between
        samples need tasks that take values of two chunks.

    Returns
    -------
    dask.array.Array
        Lazy, with `y`'s chunks. The dtype is the common one of `y` and `x`, or float64 if that is
        bool or an integer.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`dask_coop.cumsum`; if there is no sample, `x` has another shape, or `initial`
        is neither None nor 0.

    Notes
    -----
    Only the last values of each chunk go to the task of the next one.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.cumulative_trapezoid(da.arange(5, chunks=2), initial=0).compute()
    array([0. , 0.5, 2. , 4.5, 8. ])
    """
    if initial is not None and initial != 0:
        raise ValueError(f"initial must be None or 0, got {initial!r}")
    if executor.runner() is not None:
        raise Declined("areas between samples are made by tasks, which take those of two chunks")
    areas, axis = areas_between("cumulative_trapezoid", y, x, dx, axis)
    return cumsum(areas, axis, include_initial=initial is not None)


def areas_between(name: str, y: Any, x: Any, dx: float, axis: int) -> tuple[da.Array, int]:
    """Return the areas between neighbouring samples, one less than there are, and their axis.

    Parameters
    ----------
    name : str
        The function that integrates them.
    y, x, dx, axis
        As for :func:`cumulative_trapezoid`.
    """
    array = asanyarray(y)
    refuse_masked(name, array._meta)
    bind(SUM, array.dtype, array.dtype, name)
    axis = validate_axis(axis, array.ndim)
    if array.shape[axis] == 0:
        raise ValueError(f"y must have a sample along axis {axis}, got shape {array.shape}")
    array = _without_empty(array, axis)
    places = None if x is None else _places(name, x, array, axis)
    dtype = np.result_type(array.dtype, *([] if places is None else [places.dtype]))
    dtype = np.dtype("f8") if dtype.kind in "biu" else dtype
    prefix = name.replace("_", "-")
    return windows.areas(array, places, float(dx), axis, dtype, prefix), axis


def _weigh(
    name: str,
    monoid: MonoidRow,
    x: da.Array,
    axis: int,
    min_periods: int,
    method: str,
    segments: Any,
    output: Any = None,
) -> da.Array:
    """Scan an array by weights, with NaN where there are fewer elements than `min_periods`."""
    if not isinstance(min_periods, Integral) or min_periods < 0:
        raise ValueError(f"min_periods must be an integer from 0 on, got {min_periods!r}")
    if min_periods > 1 and executor.runner() is not None:
        raise Declined("min_periods takes a scan of what tasks make of the chunks")
    element = np.dtype("f8") if x.dtype.kind in "biu" else x.dtype
    op = bind(monoid, element, element, name)
    arguments = ScanArguments(axis, None, method, False, False, False, segments)
    op = op if output is None else replace(op, output=output)
    results = scan_bound(op, name, x, arguments)
    if min_periods < 2:
        return results
    meta = x._meta.astype("?")
    options = {**declared_by(x), "dtype": "?", "meta": meta, "token": f"{name}-valid"}
    valid = x.map_blocks(_is_valid, **options)
    seen = cumsum(valid, axis, method=method, segments=segments)
    kept = {"dtype": results.dtype, "meta": results._meta, "token": f"{name}-seen"}
    return map_blocks(_where_seen, results, seen, least=int(min_periods), **kept)


def _alpha(name: str, **arguments: float | None) -> float:
    """Return the weight of a new element, from the one argument that is not None."""
    values = {name: value for name, value in arguments.items() if value is not None}
    if len(values) != 1:
        names = ", ".join(arguments)
        raise ValueError(f"{name} takes one of {names}; got {', '.join(values) or 'none of them'}")
    ((argument, value),) = values.items()
    allowed, means = _RANGES[argument]
    if not isinstance(value, Real) or not allowed(value):
        raise ValueError(f"{argument} of {name} must be {means}, got {value!r}")
    match argument:
        case "span":
            return 2 / (value + 1)
        case "halflife":
            return -math.expm1(-math.log(2) / value)
        case "com":
            return 1 / (value + 1)
        case _:
            return float(value)


def _without_empty(x: da.Array, axis: int) -> da.Array:
    """Return `x` without chunks that are empty along `axis`."""
    sizes = tuple(n for n in x.chunks[axis] if n)
    return rechunk(x, (*x.chunks[:axis], sizes, *x.chunks[axis + 1 :]))


def _places(name: str, x: Any, y: da.Array, axis: int) -> da.Array:
    """Return the positions of samples, in the chunks of `y` or of its axis."""
    places = asanyarray(x)
    refuse_masked(name, places._meta)
    bind(SUM, places.dtype, places.dtype, name)
    if places.ndim not in (1, y.ndim):
        raise ValueError(f"x must have 1 dimension, or {y.ndim} as y has, got {places.ndim}")
    line = places.ndim == 1
    wanted = (y.shape[axis],) if line else y.shape
    if places.shape != wanted:
        raise ValueError(f"x must have shape {wanted}, got {places.shape}")
    return rechunk(places, (y.chunks[axis],) if line else y.chunks)


# Inside tasks.


@casts
def _is_valid(x: Any) -> Any:
    return x == x


@keeps_mask
def _where_seen(means: Any, seen: Any, least: int) -> Any:
    seen = seen.data if is_masked(seen) else seen
    return np.where(seen < least, means.dtype.type(np.nan), means)
