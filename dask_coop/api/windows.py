"""Statistics of moving windows, means of boxes, and arrays coarsened window by window.

A window ends at its element; with ``center=True`` the element is in the middle::

    elements           a b c d e f g h
    window 4           a b c d               the result of d
                         b c d e             the result of e
    center=True        a b c d               the result of c
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import dask.array as da
import numpy as np
from dask.array.blockwise import blockwise
from dask.array.core import asanyarray, map_blocks
from dask.array.utils import validate_axis

from dask_coop import chunks
from dask_coop.algebra.monoids import SUM, accumulator
from dask_coop.algebra.windows import Window
from dask_coop.api import extrema, moments, order, sums
from dask_coop.api.arguments import (
    as_dtype,
    as_integer,
    as_pairs,
    find_axes,
    rechunk,
    require_known_sizes,
)
from dask_coop.api.call.public import like, named, public, strict
from dask_coop.api.call.report import counted
from dask_coop.api.scan_arguments import ScanArguments, scan_array
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import executor
from dask_coop.graph import windows as graph_windows
from dask_coop.graph.joined import joined

#: How to extend an array beyond its border: mirrored, by its outermost elements, or by its other
#: end.
Mode = Literal["reflect", "nearest", "wrap"]

#: The reductions by which this library coarsens, in the place of NumPy's and Dask's.
_REDUCTIONS = {
    name: getattr(module, name)
    for module, names in (
        (sums, "sum prod any all count_nonzero nansum nanprod"),
        (extrema, "min max ptp nanmin nanmax"),
        (moments, "mean var std nanmean nanvar nanstd"),
        (order, "median nanmedian"),
    )
    for name in names.split()
}

#: Reductions of short windows, by slices: the first elements of all windows, the second ones, ...
_BY_SLICES = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}
_SHORT = 16


@public("blockwise", dask=False)
@named
def move_sum(
    name: str,
    /,
    a: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    *,
    center: bool = False,
) -> da.Array:
    """Sum of the elements in a moving window along an axis, ignoring NaN.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks of any lengths.
    window : int
        The number of elements in a window, from 1 to the length of `axis`. Windows may be longer
        than chunks: whatever the window, no task holds more elements than two chunks have.
    min_count : int, optional
        The smallest number of elements other than NaN for a result; with fewer the result is NaN.
        By default `window`.
    axis : int
        The axis along which windows move, by default the last one.
    center : bool
        Whether a window has its element in the middle, or just behind the middle if `window` is
        even, instead of at its end; as in rolling windows of xarray and pandas.

    Returns
    -------
    dask.array.Array
        Lazy, of `a`'s shape and chunks, and of its dtype if that is floating, else float64.

    Raises
    ------
    TypeError
        If `window`, `min_count` or `axis` is not an integer, or `a` is masked or not of real
        numbers.
    AxisError, ValueError
        If `a` has no such axis, `window` or `min_count` is out of range, or the lengths of chunks
        along `axis` are not known.

    Notes
    -----
    Signatures and results are those of bottleneck, except that an element that has left a window,
    such as an infinity or a much larger number, leaves no trace: a sum adds the end of one block as
    long as the window and the beginning of the next, and nothing is ever subtracted. Elements are
    added in float64 and the result is rounded once: it is within ``n * 2**-52`` times the sum of
    the absolute values in the window of n elements.

    M. van Herk, "A fast algorithm for local minimum and maximum filters", 1992; J. Gil and M.
    Werman, "Computing 2-D min, median, and max filters", 1993.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, 2.0, 3.0, float("nan"), 5.0], chunks=2)
    >>> dc.move_sum(x, 2).compute()
    array([nan,  3.,  5., nan, nan])
    >>> dc.move_sum(x, 2, min_count=1).compute()
    array([1., 3., 5., 3., 5.])
    """
    return _move(name, a, window, min_count, axis, center)


@like(move_sum)
def move_mean() -> None:
    """Mean of the elements in a moving window along an axis, ignoring NaN.

    Returns
    -------
    dask.array.Array
        As for :func:`move_sum`, each sum divided by the number of its elements.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.arange(6, chunks=2)
    >>> dc.move_mean(x, 3).compute()
    array([nan, nan,  1.,  2.,  3.,  4.])
    >>> dc.move_mean(x, 3, min_count=1, center=True).compute()
    array([0.5, 1. , 2. , 3. , 4. , 4.5])
    """


@public("blockwise", dask=False)
@named
def move_std(
    name: str,
    /,
    a: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 0,
    *,
    center: bool = False,
) -> da.Array:
    """Compute the standard deviation in a moving window along an axis, ignoring NaN.

    Parameters
    ----------
    a : dask.array.Array or array_like
        As for :func:`move_sum`.
    window, min_count, axis, center
        As for :func:`move_sum`.
    ddof : int
        Subtracted from the number of elements n: the divisor is ``n - ddof``.

    Returns
    -------
    dask.array.Array
        As for :func:`move_sum`. Deviations are from the mean of the window.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`move_sum`, and if `ddof` is negative or not an integer.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.move_std(da.from_array([1.0, 3.0, 3.0, 7.0], chunks=2), 2).compute()
    array([nan,  1.,  0.,  2.])
    """
    return _move(name, a, window, min_count, axis, center, ddof)


@like(move_std)
def move_var() -> None:
    """Variance of the elements in a moving window along an axis, ignoring NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.move_var(da.from_array([1.0, 3.0, 3.0, 7.0], chunks=2), 2).compute()
    array([nan,  1.,  0.,  4.])
    """


@public("blockwise", dask=False)
@named
def move_cov(
    name: str,
    /,
    x: Any,
    y: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 1,
    *,
    center: bool = False,
) -> da.Array:
    """Covariance of two arrays in a moving window along an axis, as pandas' ``rolling(...).cov``.

    Parameters
    ----------
    x, y : dask.array.Array or array_like
        As `a` of :func:`move_sum`, of one shape. A pair with a NaN is left out.
    window, min_count, axis, center
        As for :func:`move_sum`, with pairs for elements.
    ddof : int
        Subtracted from the number of pairs n: the divisor is ``n - ddof``; 1, as in pandas and
        numbagg. Correlations do not depend on it.

    Returns
    -------
    dask.array.Array
        As for :func:`move_sum`, of the common dtype; NaN where there are no more than `ddof` pairs.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`move_std`, and if `x` and `y` differ in shape.

    Notes
    -----
    Nothing is subtracted from a window's state, which has the means, with their rounding errors,
    and the products of deviations from them: T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms
    for Computing the Sample Variance", The American Statistician 37 (1983).

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x, y = da.from_array([[1.0, 3.0, 3.0, 7.0], [2.0, 1.0, 1.0, 3.0]], chunks=2)
    >>> dc.move_cov(x, y, 2).compute()
    array([nan, -1.,  0.,  4.])
    """
    return _move(name, x, window, min_count, axis, center, ddof, other=y)


@like(move_cov)
def move_corr() -> None:
    """Correlation of two arrays in a moving window along an axis, as pandas' ``rolling.corr``.

    Returns
    -------
    dask.array.Array
        As for :func:`move_cov`, from -1 to 1; NaN where either array does not vary.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x, y = da.from_array([[1.0, 3.0, 3.0, 7.0], [2.0, 1.0, 1.0, 3.0]], chunks=2)
    >>> dc.move_corr(x, y, 3).compute().round(4)
    array([nan, nan, -1.,  1.])
    """


@like(move_sum)
def move_min() -> None:
    """Minimum of the elements in a moving window along an axis, ignoring NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.move_min(da.from_array([4, 2, 3, 1], chunks=2), 2).compute()
    array([nan,  2.,  2.,  1.])
    """


@like(move_sum)
def move_max() -> None:
    """Maximum of the elements in a moving window along an axis, ignoring NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.move_max(da.from_array([4, 2, 3, 1], chunks=2), 2).compute()
    array([nan,  4.,  3.,  3.])
    """


@like(move_sum)
def move_median() -> None:
    """Median of the elements in a moving window along an axis, ignoring NaN.

    Returns
    -------
    dask.array.Array
        As for :func:`move_sum`; of an even number of elements, the mean of the two in the middle.

    Notes
    -----
    A task holds a chunk and all elements of its windows. NumPy chunks are sorted in tiles of a few
    windows; each step then takes about the same time, however long the window is.

    J. Suomela, "Median filtering is equivalent to sorting", 2014.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, 5.0, 2.0, float("nan"), 9.0], chunks=2)
    >>> dc.move_median(x, 3, min_count=1).compute()
    array([1. , 3. , 2. , 3.5, 5.5])
    """


@public("blockwise", dask=False)
@named
def move_quantile(
    name: str,
    /,
    a: Any,
    window: int,
    q: float,
    min_count: int | None = None,
    axis: int = -1,
    *,
    center: bool = False,
) -> da.Array:
    """Quantile of the elements in a moving window along an axis, ignoring NaN.

    Parameters
    ----------
    a : dask.array.Array or array_like
        As for :func:`move_sum`.
    window, min_count, axis, center
        As for :func:`move_sum`.
    q : float
        From 0 to 1. Between two elements it is interpolated by NumPy's method "linear"; the
        integers 0 and 1 give the extrema, also beside infinities.

    Returns
    -------
    dask.array.Array
        As for :func:`move_median`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`move_sum`, and if `q` is not one number from 0 to 1.

    Notes
    -----
    As for :func:`move_median`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.move_quantile(da.from_array([4.0, 2.0, 3.0, 8.0], chunks=2), 3, 0.25).compute()
    array([nan, nan, 2.5, 2.5])
    """
    if np.ndim(q) or not isinstance(q, (int, float, np.number, np.ndarray)):
        raise TypeError(f"{name} takes one number for q, got {q!r}")
    if not 0 <= q <= 1:
        raise ValueError(f"{name} takes a q from 0 to 1, got {q}")
    if np.asarray(q).dtype.kind in "iu":
        # NumPy takes the element for a whole q, and interpolates to NaN beside infinities else.
        extremum = "min" if q == 0 else "max"
        return _move(name, a, window, min_count, axis, center, statistic=extremum)
    return _move(name, a, window, min_count, axis, center, q=float(q))


@public("blockwise", dask=False)
@named
def move_rank(
    name: str, /, a: Any, window: int, min_count: int | None = None, axis: int = -1
) -> da.Array:
    """Rank of the last element among those in a moving window along an axis, ignoring NaN.

    Parameters
    ----------
    a : dask.array.Array or array_like
        As for :func:`move_sum`.
    window, min_count, axis
        As for :func:`move_sum`.

    Returns
    -------
    dask.array.Array
        Lazy, of `a`'s shape and chunks: from -1 for the least element to 1 for the greatest; equal
        ones have the mean of their ranks, and a single one has 0. The rank of NaN is NaN. The dtype
        is float32 for floats of up to 32 bits, else float64.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`move_sum`.

    Notes
    -----
    Results are bottleneck's, except that integers are compared as float64: those beyond 2**53 that
    round to the same number are equal.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.move_rank(da.from_array([1, 2, 3, 9, 8, 7], chunks=2), 3).compute()
    array([nan, nan,  1.,  1.,  0., -1.])
    """
    return _move(name, a, window, min_count, axis, False)


@like(move_sum)
def move_argmin() -> None:
    """Index of the minimum in a moving window along an axis, ignoring NaN.

    Returns
    -------
    dask.array.Array
        Lazy, of `a`'s shape and chunks: how many elements before the last one of its window the
        minimum is, the last of several. The dtype is as for :func:`move_rank`, or float64 for
        windows of more than 2**24 elements.

    Notes
    -----
    Results are bottleneck's, which takes NaN for an infinity where a window has no other elements.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.move_argmin(da.from_array([4, 2, 3, 1], chunks=2), 3).compute()
    array([nan, nan,  1.,  0.])
    """


@like(move_argmin)
def move_argmax() -> None:
    """Index of the maximum in a moving window along an axis, ignoring NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.move_argmax(da.from_array([4, 2, 3, 1], chunks=2), 3).compute()
    array([nan, nan,  2.,  1.])
    """


@public("blockwise", dask=False)
def integral_image(x: Any, axes: Sequence[int] = (-2, -1)) -> da.Array:
    """Summed-area table: at each element, the sum of all elements up to it along the given axes.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axes : sequence of int
        The axes to sum along, by default the last two.

    Returns
    -------
    dask.array.Array
        Lazy, in the shape and the chunks of `x`. The dtype is the widest of its kind: a 64-bit
        integer, float64 or complex128.

    Raises
    ------
    TypeError, AxisError, ValueError
        If `x` cannot be summed, has no such axes, or one is named twice.

    Notes
    -----
    Sums are inclusive, as in scikit-image: ``result[i, j]`` is the sum of ``x[: i + 1, : j + 1]``.
    OpenCV's table has a row and a column of zeros before these. Means of boxes computed as
    differences of such sums lose digits; :func:`box_filter` does not.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.integral_image(da.ones((2, 3), chunks=2, dtype="u1")).compute()
    array([[1, 2, 3],
           [2, 4, 6]], dtype=uint64)
    """
    x = asanyarray(x)
    if x.dtype.kind not in "biufc":
        raise TypeError(f"integral_image takes numbers, got dtype {x.dtype}")
    wide = accumulator(x.dtype)
    for axis in find_axes(tuple(axes), x.ndim):
        arguments = ScanArguments(axis, None, "reduce-then-scan", False, False, False, None)
        x = scan_array(SUM, "integral_image", x, x.dtype, wide, arguments)
    return x


@public("blockwise", dask=False)
def box_filter(
    x: Any,
    size: int | Sequence[int],
    axes: Sequence[int] = (-2, -1),
    *,
    mode: Mode = "reflect",
) -> da.Array:
    """Mean of the elements in a box around each element.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    size : int or sequence of int
        The length of the box, for all axes or for each. The element is in the middle, or just
        behind it if the length is even.
    axes : sequence of int
        The axes of the box, by default the last two.
    mode : {"reflect", "nearest", "wrap"}
        How to extend the array beyond its border: mirrored, ``c b a | a b c``; by its outermost
        elements, ``a a a | a b c``; or by its other end, as for longitudes.

    Returns
    -------
    dask.array.Array
        Lazy, in the shape and the chunks of `x`, of its dtype, or float64 for integers. The mean of
        a box that holds a NaN is NaN.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`move_sum`, and if `mode` is none of those above, or a box reaches farther
        beyond the border than the array is long.

    Notes
    -----
    SciPy's ``uniform_filter`` has the same borders and, up to rounding, the same results for
    floats. Here nothing is subtracted from running sums (:func:`move_sum`), so small numbers near
    large ones keep their digits, and an infinity or NaN affects only the boxes that hold it.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([[0.0, 0.0, 9.0], [0.0, 9.0, 0.0]], chunks=2)
    >>> dc.box_filter(x, 3).compute()
    array([[1., 3., 5.],
           [2., 3., 4.]])
    """
    x = asanyarray(x)
    along = find_axes(tuple(axes), x.ndim)
    sizes = tuple(size) if isinstance(size, Sequence) else (size,) * len(along)
    if len(sizes) != len(along):
        raise ValueError(f"box_filter takes one size, or one for each of {axes}, got {size}")
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    named_axes = [validate_axis(axis, x.ndim) for axis in axes]
    for axis, length in sorted(zip(named_axes, sizes, strict=True)):
        x = _means("box_filter", x, axis, as_integer("box_filter", "size", length), mode)
    return x


@public("blockwise", dask=False)
def coarsen(
    reduction: Callable[..., Any],
    x: Any,
    axes: Mapping[int, int],
    trim_excess: bool = False,
    **kwargs: Any,
) -> da.Array:
    """Reduce each window of some elements, one after another, to one element.

    Parameters
    ----------
    reduction : callable
        A function of this library, of NumPy or of Dask, such as ``np.mean``, or any other that
        takes an array and ``axis=``, a tuple.
    x : dask.array.Array or array_like
        What `reduction` takes, in chunks of any sizes.
    axes : mapping of int to int
        The length of windows along each axis that is coarsened.
    trim_excess : bool
        Whether to leave out the last elements along an axis that do not fill a window.
    **kwargs
        Further arguments of `reduction`.

    Returns
    -------
    dask.array.Array
        Lazy, as :func:`dask.array.coarsen` returns it, in about as many chunks as `x`.

    Raises
    ------
    AxisError
        If `x` has no such axis.
    TypeError
        If lengths are not integers, or `reduction` does not take `x`.
    ValueError
        If lengths are less than 1 or, without `trim_excess`, do not divide the array's; or chunk
        sizes are unknown.

    Notes
    -----
    Borders of chunks move to the nearest borders of windows, so that elements of less than a window
    are exchanged between neighbours. The commonest reductions are this library's (:func:`sum`,
    :func:`mean`, :func:`median` and others of their names); others are called with each chunk.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.coarsen(dc.mean, da.arange(6, chunks=4), {0: 3}).compute()
    array([1., 4.])
    """
    array = asanyarray(x)
    lengths: dict[int, int] = {}
    for axis, length in axes.items():
        d = validate_axis(as_integer("coarsen", "axes", axis), array.ndim)
        if (least := as_integer("coarsen", "axes", length)) < 1:
            raise ValueError(f"windows of coarsen must have at least 1 element, got {dict(axes)}")
        lengths[d] = least
    require_known_sizes("coarsen", array)
    if not trim_excess and any(array.shape[d] % length for d, length in lengths.items()):
        raise ValueError(
            f"windows {dict(axes)} do not divide shape {array.shape}; trim_excess=True leaves out "
            "the elements after the last one"
        )
    return _coarsened(reduction, array, lengths, kwargs)


@public("blockwise", dask=False)
def pyramid(
    x: Any,
    levels: int,
    reduction: Callable[..., Any] = np.mean,
    factor: int | Mapping[int, int] = 2,
) -> list[da.Array]:
    """Return ever coarser copies of an array, each made of the one before.

    Parameters
    ----------
    x : dask.array.Array or array_like
        What `reduction` takes, in chunks of any sizes.
    levels : int
        How many copies to make.
    reduction : callable
        As for :func:`coarsen`; a mean, an extremum and a sum of such copies are those of `x`.
    factor : int or mapping of int to int
        The length of windows, along all axes or along some of them.

    Returns
    -------
    list of dask.array.Array
        Lazy, the finest first; computed together, they read `x` once. Elements that do not fill a
        window at the end of an axis are left out.

    Raises
    ------
    AxisError, TypeError, ValueError
        As for :func:`coarsen`, and if an axis is too short for so many levels.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> [level.compute().tolist() for level in dc.pyramid(da.arange(8, chunks=3), 2)]
    [[0.5, 2.5, 4.5, 6.5], [1.5, 5.5]]
    """
    array = asanyarray(x)
    axes = factor if isinstance(factor, Mapping) else dict.fromkeys(range(array.ndim), factor)
    copies = [array]
    for _ in range(as_integer("pyramid", "levels", levels)):
        copies.append(strict(coarsen)(reduction, copies[-1], axes, True))
        if 0 in copies[-1].shape:
            raise ValueError(f"an array of shape {array.shape} has fewer than {levels} levels")
    return copies[1:]


def _coarsened(
    reduction: Callable[..., Any], x: da.Array, lengths: dict[int, int], kwargs: dict[str, Any]
) -> da.Array:
    """Reduce windows by slices, by one of our functions, or by a function of chunks."""
    kept = tuple(slice(n - n % lengths.get(d, 1)) for d, n in enumerate(x.shape))
    sizes = [_aligned(along, lengths.get(d, 1)) for d, along in enumerate(x.chunks)]
    x = rechunk(x[kept], tuple(sizes))
    shrunk = {d: tuple(n // length for n in x.chunks[d]) for d, length in lengths.items()}
    package = str(getattr(reduction, "__module__", None)).partition(".")[0]
    name = str(getattr(reduction, "__name__", None))
    is_ours = package == "dask_coop"
    known = _REDUCTIONS.get(name) if is_ours or package in ("numpy", "cupy", "dask") else None
    plain = x.dtype.kind in "biuf" and chunks.is_common(x.dtype) and not chunks.is_masked(x._meta)
    short = max(lengths.values(), default=1) <= _SHORT
    if known and name in _BY_SLICES and plain and not kwargs and short:
        dtype = getattr(np, name)(np.ones(1, x.dtype)).dtype
        spec = {"function": name, "lengths": sorted(lengths.items()), "to": dtype}
        meta = chunks.zeros_like(x._meta, dtype)
        sizes = [shrunk.get(d, along) for d, along in enumerate(x.chunks)]
        of = joined([x]) if executor.runner() is None else None
        x = x if of is None else of.arrays[id(x)]
        to = [tuple(n // lengths.get(d, 1) for n in along) for d, along in enumerate(x.chunks)]
        options = {"chunks": to, "dtype": dtype, "meta": meta, "token": "coarsen"}
        return rechunk(map_blocks(_by_slices, x, **spec, **declared_by(x), **options), tuple(sizes))
    # An axis of windows, and one within them.
    within = {d: x.ndim + d for d in lengths}
    places = [place for d in range(x.ndim) for place in (d, within.get(d)) if place is not None]
    axis = tuple(places.index(place) for place in within.values())
    split = blockwise(
        _in_windows,
        places,
        *(x, range(x.ndim)),
        lengths=lengths,
        new_axes={within[d]: length for d, length in lengths.items()},
        adjust_chunks=shrunk,
        dtype=x.dtype,
        meta=chunks.zeros_like(x._meta, x.dtype, len(places)),
        token="windows",
        **declared_by(x),
    )
    if known or is_ours:
        lazy: da.Array = strict(known or reduction)(split, axis=axis, **kwargs)
        return lazy
    function = partial(getattr(np, name) if package == "dask" else reduction, axis=axis, **kwargs)
    dtype = function(np.ones_like(split._meta, shape=(1,) * split.ndim)).dtype
    meta = chunks.zeros_like(x._meta, dtype)
    options = {"dtype": dtype, "meta": meta, "token": "coarsen", "concatenate": True}
    return blockwise(function, range(x.ndim), split, places, **options)


def _aligned(sizes: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Return sizes of chunks whose borders are the nearest ones of windows."""
    ends = (np.cumsum(sizes) + length // 2) // length * length
    ends[-1] = sum(sizes) // length * length
    moved = np.diff(np.minimum(ends, ends[-1]), prepend=0)
    return tuple(moved[moved > 0].tolist()) or (0,)


def first_places(
    name: str, x: da.Array, window: int, min_count: int, axis: int, *, center: bool
) -> da.Array:
    """Return the place of the first extremum in windows from their left ends, as xarray does."""
    with counted(name, x):
        return window - 1 - _move(name, x, window, min_count, axis, center, first=True)


def _move(
    name: str,
    a: Any,
    window: int,
    min_count: int | None,
    axis: int,
    center: bool,
    ddof: int = 0,
    other: Any = None,
    **options: Any,
) -> da.Array:
    """Return the moving statistic of the public function `name`, with options of `Window`.

    That of pairs, if there is an `other` array. An option may name another statistic.
    """
    x, y = asanyarray(a), None if other is None else asanyarray(other)
    along = _axis(name, x, axis)
    length = as_integer(name, "window", window)
    least = length if min_count is None else as_integer(name, "min_count", min_count)
    off = as_integer(name, "ddof", ddof)
    n = x.shape[along]
    if not 1 <= length <= n:
        raise ValueError(
            f"{name} takes windows of 1 to {n} elements, all along axis {axis}, got window={window}"
        )
    if not 1 <= least <= length:
        raise ValueError(
            f"{name} takes a min_count of 1 to window={window}, got min_count={min_count}"
        )
    if off < 0:
        raise ValueError(f"{name} takes no negative ddof, got {ddof}")
    statistic = options.pop("statistic", name.removeprefix("move_"))
    spec = Window(statistic, along, length, least, off, **options)
    ahead = (length - 1) // 2 if center else 0
    if y is None:
        return graph_windows.move(x, spec, ahead, name)
    _axis(name, y, axis)
    pairs, output = as_pairs(name, x, y)
    return as_dtype(graph_windows.move(pairs, spec, ahead, name), output)


def _axis(name: str, x: da.Array, axis: Any) -> int:
    """Check that windows can move along an axis of `x`, and return it, counted from the front."""
    if x.ndim == 0:
        raise ValueError(f"{name} moves along an axis, and a has none")
    along: int = validate_axis(as_integer(name, "axis", axis), x.ndim)
    if x.dtype.kind not in "biuf" or x.dtype.itemsize > 8:
        raise TypeError(
            f"{name} takes bool, integers and floats of up to 64 bits, got dtype {x.dtype}"
        )
    chunks.kind(x._meta, "a")
    if chunks.is_masked(x._meta):
        raise TypeError(
            f"{name} does not take masked arrays; da.ma.filled(x.astype(float), numpy.nan) has NaN "
            "in the place of what is masked, which is left out"
        )
    if x.shape[along] != x.shape[along]:
        raise ValueError(
            f"{name} moves along axis {axis}, which has unknown chunksizes; "
            "x.compute_chunk_sizes() finds them"
        )
    return along


def _means(name: str, x: da.Array, axis: int, size: int, mode: Mode) -> da.Array:
    """Return means of boxes along one axis."""
    along = _axis(name, x, axis)
    left, n = size // 2, x.shape[along]
    right = size - 1 - left
    if size < 1 or left > n:
        raise ValueError(
            f"{name} takes boxes of 1 to {2 * n} elements along axis {axis}, got size={size}"
        )

    def slab(begin: int, end: int, step: int = 1) -> da.Array:
        cut = x[(*(slice(None),) * along, slice(begin, end))]
        return cut[(*(slice(None),) * along, slice(None, None, step))]

    match mode:
        case "reflect":
            outside = slab(0, left, -1), slab(n - right, n, -1)
        case "nearest":
            outside = _repeated(slab(0, 1), left, along), _repeated(slab(n - 1, n), right, along)
        case "wrap":
            outside = slab(n - left, n), slab(0, right)
    before, behind = outside
    sides = [side for side in (before, x, behind) if side.shape[along]]
    padded = graph_windows.joined(sides, along, f"{name}-sides")
    spec = Window("mean", along, size, size)
    means = graph_windows.move(padded, spec, right, name)
    # Slicing drops empty chunks.
    return rechunk(means[(*(slice(None),) * along, slice(left, left + n))], x.chunks)


def _repeated(x: da.Array, times: int, axis: int) -> da.Array:
    """Return `x`, of length one along `axis`, repeated `times` times along it."""
    sizes = (*x.chunks[:axis], (times,), *x.chunks[axis + 1 :])
    # There may be empty chunks beside it.
    x = rechunk(x, (*x.chunks[:axis], (1,), *x.chunks[axis + 1 :]))
    return map_blocks(np.repeat, x, times, axis, dtype=x.dtype, chunks=sizes, meta=x._meta)


# Inside the task.


@casts
def _by_slices(
    x: Any, *, function: str, lengths: Sequence[tuple[int, int]], to: np.dtype[Any]
) -> Any:
    """Reduce windows of a chunk by what their elements at each place make together."""
    wide = x.dtype if function in ("min", "max") else np.dtype("f8") if to.kind == "f" else to
    for d, length in lengths:
        slices = [x[(*(slice(None),) * d, slice(i, None, length))] for i in range(length)]
        x = slices[0].astype(wide)
        for some in slices[1:]:
            _BY_SLICES[function](x, some, out=x)
    if function == "mean":
        x /= math.prod(length for _, length in lengths)
    return x.astype(to, copy=False)


@casts
def _in_windows(x: Any, lengths: Mapping[int, int]) -> Any:
    """Return a chunk with an axis of windows, and one within them, for each axis of `lengths`."""
    cut = ((n // lengths[d], lengths[d]) if d in lengths else (n,) for d, n in enumerate(x.shape))
    return x.reshape(tuple(itertools.chain.from_iterable(cut)))
