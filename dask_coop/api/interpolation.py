"""Interpolate lines that lie in several chunks: gaps of them, and values between their positions.

Gaps are filled from both sides. A chunk gets the nearest valid element before it and behind it,
with its position, from the ends of all others::

    y     1 . . | . . 4 | . 6 .        chunks along the last axis
    ends  1   1 | .   . | 6   6        the first and the last valid element of each chunk
    fill  1 2 3 | 4 ...                between a chunk's elements, and those of its neighbours
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from dask.array.core import Array, blockwise, concatenate, from_array, map_blocks

from dask_coop import chunks
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.masks import is_masked
from dask_coop.errors import Refused

#: How a gap is filled: on the line between its neighbours, by the nearer one, or by its length, the
#: distance of its neighbours, where all else is 0.
Method = Literal["linear", "nearest", "length"]

#: The elements around a chunk that decide on values between its positions, as for xarray.
_MARGIN = 2


def fill_between(y: Array, x: Any, method: Method) -> Array:
    """Return an array whose gaps along the last axis are interpolated.

    Parameters
    ----------
    y : dask.array.Array
        NaN is missing. Elements before the first valid one and after the last one stay missing;
        their lengths are the distances to the ends of the line.
    x : numpy.ndarray
        The positions along the last axis, which increase, as float64.
    method : {"linear", "nearest", "length"}
        The first two as NumPy's ``interp`` and SciPy's ``interp1d`` of a line's valid elements.

    Raises
    ------
    Refused
        Unless elements are floats of up to 64 bits, and not masked.
    """
    if y.dtype.kind in "biu" and method != "length":
        return y
    if y.ndim == 1:
        return fill_between(y[np.newaxis], x, method)[0]
    if y.dtype.kind != "f" or y.dtype.itemsize > 8:
        raise Refused(f"gaps of {y.dtype} are not interpolated")
    if is_masked(y._meta):
        raise Refused("gaps of masked arrays are not interpolated")
    places = from_array(np.asarray(x, "f8"), chunks=(y.chunks[-1],))
    index, count = tuple(range(y.ndim)), y.numblocks[-1]
    options: Any = {"dtype": "f8", "meta": chunks.zeros_like(y._meta, "f8"), "align_arrays": False}
    # Four numbers of each chunk: its first valid element and its last one, with their positions.
    ends = blockwise(
        _ends,
        index,
        *(y, index, places, index[-1:]),
        adjust_chunks={index[-1]: (4,) * count},
        **declared_by(y),
        **options,
        token="interpolate-ends",
    )
    around = map_blocks(_around, ends.rechunk({-1: -1}), dtype="f8", meta=options["meta"])
    return blockwise(
        _fill_block,
        index,
        *(y, index, places, index[-1:], around.rechunk({-1: 4}), index),
        **declared_by(y),
        **(options if method == "length" else {**options, "dtype": y.dtype, "meta": y._meta}),
        method=method,
        limits=(float(x[0]), float(x[-1])) if len(x) else (0.0, 0.0),
        token="interpolate",
    )


def values_at(
    function: Callable[..., Any], y: Array, x: Any, at: Any, dtype: np.dtype[Any]
) -> Array:
    """Return values of lines at given positions, each from the chunk that has it.

    Parameters
    ----------
    function : callable
        Interpolates: takes a block, its positions along the last axis, and those that are wanted,
        and looks at no more than two positions on either side of each.
    y : dask.array.Array
    x : numpy.ndarray
        The positions along the last axis.
    at : numpy.ndarray
        The positions that are wanted, of up to one dimension.
    dtype : dtype
        The dtype of the result.

    Raises
    ------
    Refused
        Unless both kinds of positions increase, and some are wanted.
    """
    n = len(x)
    if at.ndim > 1 or not at.size or not _increase(x, strictly=True) or not _increase(at):
        raise Refused("interp takes positions that increase, along one dimension")
    bounds = np.cumsum((0, *y.chunks[-1]))
    # The chunk of the first element that is not before a position.
    of_chunk = np.searchsorted(bounds, np.clip(np.searchsorted(x, at), 0, n - 1), "right") - 1
    pieces = []
    for chunk in np.unique(of_chunk):
        begin, end = max(bounds[chunk] - _MARGIN, 0), min(bounds[chunk + 1] + _MARGIN, n)
        lines = y[..., begin:end].rechunk({-1: -1})
        wanted = at if at.ndim == 0 else at[of_chunk == chunk]
        sizes: Any = {"drop_axis": y.ndim - 1}
        if at.ndim:
            sizes = {"chunks": (*y.chunks[:-1], (len(wanted),))}
        pieces.append(
            map_blocks(
                partial(_call, function, x[begin:end], wanted),
                lines,
                dtype=dtype,
                meta=chunks.zeros_like(y._meta, dtype, y.ndim - (at.ndim == 0)),
                token="interpolate-at",
                **sizes,
            )
        )
    return pieces[0] if at.ndim == 0 else concatenate(pieces, axis=-1)


def _increase(x: Any, strictly: bool = False) -> bool:
    """Return whether positions increase; NaN and NaT do not."""
    flat = x.ravel()
    following = flat[1:] > flat[:-1] if strictly else flat[1:] >= flat[:-1]
    return bool(following.all() and (flat == flat).all())


# Inside tasks.


def _call(function: Callable[..., Any], x: Any, at: Any, block: Any) -> Any:
    return function(block, x, at)


@casts
def _ends(y: Any, x: Any) -> Any:
    """Return the first and the last valid element of each line, each with its position; or NaN."""
    result = np.full_like(y, np.nan, "f8", shape=(*y.shape[:-1], 4))
    n = y.shape[-1]
    if not n:
        return result
    x = chunks.asarray(x, chunks.kind(y))
    valid = ~np.isnan(y)
    some = valid.any(-1)
    for place, at in ((0, valid.argmax(-1)), (2, n - 1 - valid[..., ::-1].argmax(-1))):
        value = np.take_along_axis(y, at[..., np.newaxis], -1)[..., 0]
        result[..., place] = value
        result[..., place + 1] = np.where(some, x[at], np.nan)
    return result


def _around(ends: Any) -> Any:
    """Return, by chunks' ends, the nearest valid element before each chunk and behind it."""
    first, last = np.moveaxis(ends.reshape(*ends.shape[:-1], -1, 2, 2), -2, 0)
    result = np.full_like(ends, np.nan, shape=(*first.shape[:-1], 4))
    for near, into, steps in ((last, slice(0, 2), 1), (first, slice(2, 4), -1)):
        before = result[..., ::steps, into]
        sources = near[..., ::steps, :]
        for chunk in range(1, sources.shape[-2]):
            source = sources[..., chunk - 1, :]
            some = ~np.isnan(source[..., 1:])
            before[..., chunk, :] = np.where(some, source, before[..., chunk - 1, :])
    return result.reshape(ends.shape)


@casts
def _fill_block(y: Any, x: Any, around: Any, method: Method, limits: tuple[float, float]) -> Any:
    # In the order of lines, so that those of a gap follow one another.
    at = np.flatnonzero(np.isnan(y))
    if not len(at):
        return np.zeros_like(y, "f8") if method == "length" else y
    x, n = chunks.asarray(x, chunks.kind(y)), y.shape[-1]
    line, place = np.divmod(at, n)
    begins = np.ones_like(at, "?")
    begins[1:] = (at[1:] != at[:-1] + 1) | (place[1:] == 0)
    (first,) = np.nonzero(begins)
    last = np.append(first[1:], len(at)) - 1
    of_gap = np.unravel_index(line[first], y.shape[:-1])

    def neighbour(index: Any, outside: int) -> tuple[Any, Any]:
        """Return the element beside each gap and its position, of other chunks at the ends."""
        inside = (index >= 0) & (index < n)
        index = np.where(inside, index, 0)
        of_others = around[of_gap]
        value = np.where(inside, y[(*of_gap, index)], of_others[:, outside])
        return value, np.where(inside, x[index], of_others[:, outside + 1])

    gap = np.cumsum(begins) - 1
    low, left = neighbour(place[first] - 1, 0)
    high, right = neighbour(place[last] + 1, 2)
    low, left, high, right = (side[gap] for side in (low, left, high, right))
    with np.errstate(all="ignore"):
        if method == "length":
            begin, end = np.isnan(left), np.isnan(right)
            values = np.where(end, limits[1], right) - np.where(begin, limits[0], left)
            values[begin & end] = np.nan
        elif method == "nearest":
            # As SciPy's bounds between two positions, which belong to the left one.
            values = np.where(x[place] <= left / 2 + right / 2, low, high)
            values = np.where(np.isnan(low) | np.isnan(high), np.nan, values)
        else:
            values = _on_line(low, left, high, right, x[place])
        result = np.zeros_like(y, "f8") if method == "length" else y.copy(order="K")
        result[(*np.unravel_index(line, y.shape[:-1]), place)] = values
    return result


def _on_line(low: Any, left: Any, high: Any, right: Any, place: Any) -> Any:
    """Return values between two neighbours as NumPy's `interp`, beside infinities, too."""
    slope = (high - low) / (right - left)
    values = slope * (place - left) + low
    values = np.where(np.isnan(values), slope * (place - right) + high, values)
    return np.where(np.isnan(values) & (low == high), low, values)
