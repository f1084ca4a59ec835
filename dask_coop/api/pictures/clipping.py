"""Statistics that few outliers do not move: sigma clipping, and deviations from the median.

Where lines along the axes fit a chunk, blocks of whole lines are gathered, and one task does all
rounds of a block. Longer lines take a round of reductions for each round of clipping::

    x --gather--> lines --> bounds --> clip --> bounds --> ... --> result        one task a block

    x --> bounds of x --> x within them --> bounds of these --> ... --> result   reductions
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, NamedTuple

import dask.array as da
import numpy as np
from dask import config
from dask.array.core import asanyarray, blockwise, map_blocks
from dask.array.routines import where
from dask.utils import parse_bytes

from dask_coop import chunks
from dask_coop.api.arguments import (
    Axis,
    as_dtype,
    as_integer,
    find_axes,
    rechunk,
    require_known_sizes,
    without_empty,
)
from dask_coop.api.call.public import public
from dask_coop.api.moments import nanmean, nanstd
from dask_coop.api.order import median, nanmedian
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.errors import Refused
from dask_coop.graph import line_quantiles

#: The bytes of an array that one task does sooner than several.
_SMALL = 1 << 20

#: The deviation of normal numbers for each unit of their median absolute deviation, 1 / Phi(0.75).
_NORMAL = 1.482602218505602


class Clip(NamedTuple):
    """How elements are clipped: the axes, the deviations allowed, the rounds and the statistics.

    `forgets` is whether bounds of no element are NaN, which clip nothing, or those of the round
    before.
    """

    axes: tuple[int, ...]
    lower: float
    upper: float
    rounds: float
    center: str
    spread: str
    forgets: bool


@public("blockwise", dask=False)
def sigma_clip(
    data: Any,
    sigma: float = 3.0,
    sigma_lower: float | None = None,
    sigma_upper: float | None = None,
    maxiters: int | None = 5,
    cenfunc: Literal["median", "mean"] = "median",
    stdfunc: Literal["std", "mad_std"] = "std",
    axis: Axis = None,
    masked: bool = True,
    return_bounds: bool = False,
) -> Any:
    """Perform sigma clipping along an axis: remove elements far from the centre, repeatedly.

    Parameters
    ----------
    data : dask.array.Array or array_like
        Integers or floats, in NumPy or CuPy chunks. NaN and infinities are clipped from the start.
    sigma : float
        The number of deviations from the centre beyond which elements are clipped, at least 0.
    sigma_lower, sigma_upper : float, optional
        The numbers below and above the centre; by default `sigma`.
    maxiters : int, optional
        The number of rounds, each of the elements that are left; a round that clips nothing is the
        last. None goes on until then, along axes in lines that fit a chunk.
    cenfunc : {"median", "mean"}
        The centre.
    stdfunc : {"std", "mad_std"}
        The deviation: standard, or from the median (:func:`mad_std`).
    axis : int, tuple of int or None
        The axes along which lines lie; by default all elements are one line.
    masked : bool
        Whether to return a masked array, in NumPy chunks; otherwise clipped elements are NaN.
    return_bounds : bool
        Whether to return the bounds of the last round, too.

    Returns
    -------
    result : dask.array.Array
        Lazy, in the shape of `data` and of its dtype; with ``masked=False`` integers become
        float32. Chunks hold whole lines where lines were gathered.
    lower, upper : dask.array.Array
        The bounds, float64, without the axes; with `return_bounds`.

    Raises
    ------
    TypeError
        If `data` is masked or not of real numbers, or `maxiters` is not an integer.
    ValueError
        If an argument is out of range, chunk sizes are unknown, or `maxiters` is None and lines do
        not fit a chunk.
    Refused
        If `masked` is true and chunks are CuPy's, which has no masked arrays.

    Notes
    -----
    Results are those of ``astropy.stats.sigma_clip``, in float64; with ``axis=None`` and
    ``masked=False`` its result lacks clipped elements, and here they are NaN. As there, with
    ``axis=None`` and ``masked=True`` nothing is masked if a round before the last clips all
    elements: the next bounds are NaN. Lines are gathered up
    to the ``array.chunk-size`` of Dask's configuration. Longer lines take `maxiters` rounds of
    reductions, in which the chunks are kept in memory.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, 2.0, 1.5, 1.8, 50.0], chunks=2)
    >>> dc.sigma_clip(x, 2, masked=False).compute()
    array([1. , 2. , 1.5, 1.8, nan])
    """
    x = _real("sigma_clip", data)
    kind = chunks.kind(x._meta)
    if masked and kind != "numpy":
        raise Refused("sigma_clip of CuPy chunks takes masked=False; CuPy has no masked arrays")
    for name, value, known in (
        ("cenfunc", cenfunc, ("median", "mean")),
        ("stdfunc", stdfunc, ("std", "mad_std")),
    ):
        if value not in known:
            raise ValueError(f"{name} of sigma_clip must be {' or '.join(known)}, got {value!r}")
    rounds = math.inf if maxiters is None else as_integer("sigma_clip", "maxiters", maxiters)
    if rounds < 1:
        raise ValueError(f"maxiters of sigma_clip must be at least 1, got {maxiters}")
    low, high = (sigma if side is None else side for side in (sigma_lower, sigma_upper))
    sides = ("sigma_lower", sigma_lower, low), ("sigma_upper", sigma_upper, high)
    for argument, side, deviations in sides:
        # Not NaN, either.
        if not deviations >= 0:
            argument = "sigma" if side is None else argument
            raise ValueError(
                f"{argument} of sigma_clip is a number of deviations, at least 0, got "
                f"{deviations!r}"
            )
    axes, forgets = find_axes(axis, x.ndim), axis is None and masked
    clip = Clip(axes, float(low), float(high), rounds, cenfunc, stdfunc, forgets)
    sizes, x = x.chunks, without_empty(x)
    kept = tuple(0 if d in clip.axes else slice(None) for d in range(x.ndim))
    lines = _gathered(x, clip.axes)
    if lines is not None:
        result = _clipped(lines, (), partial(_clipped_lines, clip=clip, masked=masked), masked)
        if return_bounds:
            lower, upper = (
                _of_lines(lines, partial(_bounds_of_lines, clip=clip, which=i), clip.axes, "f8")
                for i in (0, 1)
            )
            return result, lower, upper
    elif maxiters is None:
        raise ValueError(
            f"sigma_clip with maxiters=None gathers lines along axes {clip.axes}, which are too "
            "long for a chunk; give a number of rounds"
        )
    else:
        bounds = _bounds_by_rounds(x, clip)
        cut = partial(_clipped_block, masked=masked)
        result = rechunk(_clipped(x, bounds, cut, masked), sizes)
        if return_bounds:
            return (result, *(bound[kept] for bound in bounds))
    return result


@public("blockwise", dask=False)
def median_abs_deviation(
    x: Any, axis: Axis = 0, *, scale: float | str = 1.0, nan_policy: str = "propagate"
) -> da.Array:
    """Compute the median absolute deviation along the given axes.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Integers or floats, in NumPy or CuPy chunks.
    axis : int, tuple of int or None
        The axes along which lines lie; None for all.
    scale : float or "normal"
        A divisor of the result, not 0; "normal" makes it the standard deviation of normal numbers.
    nan_policy : {"propagate", "omit"}
        Whether a NaN makes the result of its line NaN, or is left out.

    Returns
    -------
    dask.array.Array
        Lazy, of the dtype of `x` if that is floating, else float64.

    Raises
    ------
    TypeError
        If `x` is masked or not of real numbers.
    ValueError
        If there are no elements, chunk sizes are unknown, or an argument has another value.

    Notes
    -----
    Results are those of ``scipy.stats.median_abs_deviation``. Lines that fit a chunk are gathered,
    as by :func:`sigma_clip`; of longer ones, and of whole arrays, two medians are found.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.median_abs_deviation(da.from_array([1, 2, 4, 90], chunks=2)))
    1.5
    """
    divisor = scale if scale != "normal" else 1 / _NORMAL
    if nan_policy not in ("propagate", "omit"):
        raise ValueError(f"nan_policy must be 'propagate' or 'omit', got {nan_policy!r}")
    if isinstance(divisor, str):
        raise ValueError(f"scale is a number or 'normal', got {scale!r}")
    if divisor == 0:
        raise ValueError(f"scale of median_abs_deviation divides, and cannot be 0; got {scale!r}")
    return _deviation("median_abs_deviation", x, axis, 1 / divisor, nan_policy == "omit")


@public("blockwise", dask=False)
def mad_std(data: Any, axis: Axis = None, *, ignore_nan: bool = False) -> da.Array:
    """Estimate a robust standard deviation from the median absolute deviation.

    Parameters
    ----------
    data : dask.array.Array or array_like
        Integers or floats, in NumPy or CuPy chunks.
    axis : int, tuple of int or None
        The axes along which lines lie; by default all elements are one line.
    ignore_nan : bool
        Whether NaN are left out; otherwise a NaN makes the result of its line NaN.

    Returns
    -------
    dask.array.Array
        As for :func:`median_abs_deviation`.

    Raises
    ------
    TypeError, ValueError
        As for :func:`median_abs_deviation`.

    Notes
    -----
    Results are those of ``astropy.stats.mad_std``: 1.4826 times the median of the deviations.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> round(float(dc.mad_std(da.from_array([1, 2, 4, 90], chunks=2))), 4)
    2.2239
    """
    return _deviation("mad_std", data, axis, _NORMAL, ignore_nan)


def _deviation(name: str, data: Any, axis: Axis, factor: float, omit: bool) -> da.Array:
    """Return a multiple of the median absolute deviation."""
    x = _real(name, data)
    axes = find_axes(axis, x.ndim)
    if any(not x.shape[d] for d in axes):
        raise ValueError(f"{name} of no element: shape {x.shape}, axes {axes}")
    x = without_empty(x if x.dtype.kind == "f" else as_dtype(x, "f8"))
    # Medians of one long line count digits, which takes less time than a sort.
    is_long = len(axes) == x.ndim and x.nbytes > _SMALL
    lines = None if is_long else _gathered(x, axes)
    if lines is not None:
        deviation = partial(_deviation_of_lines, axes=axes, omit=omit, factor=factor)
        return _of_lines(lines, deviation, axes, x.dtype)
    middle = nanmedian if omit else median
    away = _apart(x, middle(x, axis=axes, keepdims=True))
    result = middle(away, axis=axes)
    return result.map_blocks(np.multiply, factor, dtype=result.dtype) if factor != 1 else result


def _real(name: str, data: Any) -> da.Array:
    """Return an array of real numbers that `name` takes."""
    x = asanyarray(data)
    chunks.kind(x._meta, "data")
    chunks.refuse_masked(name, x._meta)
    if x.dtype.kind not in "iuf" or x.dtype.itemsize > 8:
        raise TypeError(f"{name} takes integers and floats of up to 64 bits, got dtype {x.dtype}")
    require_known_sizes(name, x)
    return x if x.dtype.isnative else as_dtype(x, x.dtype.newbyteorder("="))


def _gathered(x: da.Array, axes: tuple[int, ...]) -> da.Array | None:
    """Return `x` in blocks of whole lines along `axes`, or None if these are too long."""
    if all(x.numblocks[d] == 1 for d in axes) or not x.size:
        return x
    limit = parse_bytes(config.get("array.chunk-size"))
    # A whole array in one task would leave the others without work.
    most = limit if len(axes) < x.ndim else _SMALL
    fits = math.prod(x.shape[d] for d in axes) * x.dtype.itemsize <= most
    return line_quantiles.gathered(x, axes) if fits else None


def _of_lines(x: da.Array, function: Any, axes: tuple[int, ...], dtype: Any) -> da.Array:
    """Return a function of whole lines, from blocks that hold them; `axes` are dropped."""
    every = tuple(range(x.ndim))
    kept = tuple(d for d in every if d not in axes)
    meta = chunks.zeros_like(x._meta, np.dtype(dtype), len(kept))
    return blockwise(function, kept, x, every, dtype=dtype, meta=meta, **declared_by(x))


def _bounds_by_rounds(x: da.Array, clip: Clip) -> tuple[da.Array, ...]:
    """Return the bounds of the last round, each of reductions of the array."""
    meta = chunks.zeros_like(x._meta, np.dtype("f8"))
    y = map_blocks(_finite, x, dtype="f8", meta=meta, **declared_by(x))
    bounds = _bounds(y, clip)
    for _ in range(int(clip.rounds) - 1):
        y = _clipped(y, bounds, partial(_clipped_block, masked=False), False)
        later = _bounds(y, clip)
        stay = [where(new == new, new, old) for new, old in zip(later, bounds, strict=True)]
        bounds = later if clip.forgets else tuple(stay)
    return bounds


def _bounds(y: da.Array, clip: Clip) -> tuple[da.Array, ...]:
    """Return the bounds of a round, with the axes of length 1."""
    along: dict[str, Any] = {"axis": clip.axes, "keepdims": True}
    center = (nanmedian if clip.center == "median" else nanmean)(y, **along)
    if clip.spread == "std":
        spread = nanstd(y, **along)
    else:
        spread = nanmedian(_apart(y, nanmedian(y, **along)), **along) * _NORMAL
    return center - clip.lower * spread, center + clip.upper * spread


def _with_bounds(x: da.Array, *bounds: da.Array) -> list[Any]:
    """Return the arguments of blockwise: an array, and others of length 1 along some axes."""
    every = tuple(range(x.ndim))
    sizes = [
        tuple((1,) if n == 1 else length for n, length in zip(b.shape, x.chunks, strict=True))
        for b in bounds
    ]
    arrays = x, *(rechunk(b, size) for b, size in zip(bounds, sizes, strict=True))
    return [argument for array in arrays for argument in (array, every)]


def _apart(x: da.Array, center: da.Array) -> da.Array:
    """Return the distances of elements from the centres of their lines."""
    options: dict[str, Any] = {"dtype": x.dtype, "meta": x._meta, "align_arrays": False}
    return blockwise(
        _distance, tuple(range(x.ndim)), *_with_bounds(x, center), **options, **declared_by(x)
    )


def _clipped(x: da.Array, bounds: tuple[da.Array, ...], function: Any, masked: bool) -> da.Array:
    """Return an array with elements outside of bounds masked, or NaN, by a function of a block."""
    dtype = x.dtype if masked or x.dtype.kind == "f" else np.dtype("f4")
    meta = chunks.zeros_like(x._meta, dtype)
    return blockwise(
        function,
        tuple(range(x.ndim)),
        *_with_bounds(x, *bounds),
        dtype=dtype,
        meta=np.ma.array(meta) if masked else meta,
        align_arrays=False,
        **declared_by(x),
    )


# Inside the tasks.


@casts
def _finite(x: Any) -> Any:
    x = x.astype("f8")
    return np.where(np.isfinite(x), x, np.nan)


@casts
def _distance(x: Any, center: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.abs(x - center.astype(x.dtype, copy=False))


@casts
def _clipped_block(x: Any, lower: Any, upper: Any, *, masked: bool) -> Any:
    with np.errstate(all="ignore"):
        wide = x.astype("f8", copy=False)
        outside = ~np.isfinite(wide) | (wide < lower) | (wide > upper)
        if masked:
            # Or whoever writes to the result would write to a chunk that others hold.
            return np.ma.array(x, mask=outside, copy=True)
        x = x if x.dtype.kind == "f" else x.astype("f4")
        return np.where(outside, x.dtype.type(np.nan), x)


@casts
def _clipped_lines(x: Any, *, clip: Clip, masked: bool) -> Any:
    """Return a block with elements outside of the bounds of their lines masked, or NaN."""
    return _clipped_block(x, *_bounds_in(x, clip), masked=masked)


@casts
def _bounds_of_lines(x: Any, *, clip: Clip, which: int) -> Any:
    """Return the lower or the upper bounds of lines."""
    x = _only_block(x)
    return _bounds_in(x, clip)[which].squeeze(clip.axes)


def _bounds_in(x: Any, clip: Clip) -> tuple[Any, Any]:
    """Return the bounds of the last round of each line, with the axes of length 1.

    Elements that are left lie side by side in a sorted line, from `first` to `last`.
    """
    lines, shape = _as_lines(_finite(x), clip.axes)
    lines = chunks.backend_of(lines).sort(lines, 1, False)
    place = np.arange(lines.shape[1], like=lines)
    first, last = np.zeros_like(lines, "i8", shape=(len(lines),)), (lines == lines).sum(1)
    number, changed = 0, True
    lower = upper = np.full_like(lines, np.nan, shape=(len(lines),))
    with np.errstate(all="ignore"):
        while changed and number < clip.rounds and lines.size:
            number += 1
            kept = (place >= first[:, np.newaxis]) & (place < last[:, np.newaxis])
            count = last - first
            mean = np.where(kept, lines, 0).sum(1) / count
            center = mean if clip.center == "mean" else _middle(lines, first, last)
            if clip.spread == "std":
                away = np.where(kept, lines - mean[:, np.newaxis], 0)
                spread = np.sqrt((away * away).sum(1) / count)
            else:
                away = np.abs(lines - _middle(lines, first, last)[:, np.newaxis])
                away = chunks.backend_of(away).sort(np.where(kept, away, np.nan), 1, False)
                spread = _middle(away, np.zeros_like(count), count) * _NORMAL
            changes = (count > 0) | clip.forgets
            lower = np.where(changes, center - clip.lower * spread, lower)
            upper = np.where(changes, center + clip.upper * spread, upper)
            below = (kept & (lines < lower[:, np.newaxis])).sum(1)
            above = (kept & (lines > upper[:, np.newaxis])).sum(1)
            first, last = first + below, last - above
            changed = bool((below + above).any())
    return lower.reshape(shape), upper.reshape(shape)


@casts
def _deviation_of_lines(x: Any, *, axes: tuple[int, ...], omit: bool, factor: float) -> Any:
    """Return a multiple of the median absolute deviation of lines."""
    x = _only_block(x)
    lines, shape = _as_lines(x, axes)
    valid = lines == lines
    count, backend = valid.sum(1), chunks.backend_of(lines)
    nothing = np.zeros_like(count)
    with np.errstate(all="ignore"):
        center = _middle(backend.sort(lines, 1, False), nothing, count)
        away = np.abs(lines - center[:, np.newaxis])
        # The centre of infinities is further from these than any number, or NaN.
        away = backend.sort(away, 1, False)
        result = _middle(away, nothing, count)
        if not omit:
            result = np.where(valid.all(1), result, np.nan)
        return (result * factor).astype(x.dtype, copy=False).reshape(shape).squeeze(axes)


def _only_block(x: Any) -> Any:
    """Return the block in nested lists of one, by which Dask passes whole lines."""
    while isinstance(x, list):
        (x,) = x
    return x


def _as_lines(x: Any, axes: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """Return lines as rows, and the shape of results, in which `axes` have length 1."""
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    moved = np.moveaxis(x, axes, tuple(range(x.ndim - len(axes), x.ndim)))
    length = math.prod(x.shape[d] for d in axes)
    return moved.reshape(math.prod(shape), length), shape


def _middle(lines: Any, first: Any, last: Any) -> Any:
    """Return the medians of sorted lines from `first` to `last`, NaN of none."""
    if not lines.size:
        return np.full_like(lines, np.nan, shape=(len(lines),))
    ends = np.stack([(first + last - 1) // 2, (first + last) // 2], 1)
    low, high = np.take_along_axis(lines, np.clip(ends, 0, lines.shape[1] - 1), 1).T
    # Two float16 may add up to more than float16 has, and are halved in float32 as by NumPy.
    wide = np.promote_types(lines.dtype, "f4")
    middle = np.where(low == high, low, (low.astype(wide) + high) / 2)
    return np.where(last > first, middle, np.nan).astype(lines.dtype, copy=False)
