"""Statistics of windows by a few steps over whole blocks of lines, for chunks of any backend.

Windows of 1, 2, 4 and more elements are combined from two neighbours each, and the wanted length
from those that add up to it::

    length 5 = 1 + 4      a b c d e      (a b c d) (e)
                                         (ab) (cd)

For order statistics the elements of each window are laid out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_coop.algebra.merges import cast
from dask_coop.algebra.monoids import State
from dask_coop.algebra.windows import Window
from dask_coop.chunks.backend import asarray, kind
from dask_coop.chunks.states import boxes

Array = Any


def move(window: Window, x: Array, halo: Array, base: State | None, room: int) -> Array:
    """Do what `ChunkBackend.move` does, for floats, in blocks of about `room` elements."""
    axis = window.axis
    rows, before = np.moveaxis(x, axis, -1), np.moveaxis(halo, axis, -1)
    result = np.empty_like(x, dtype=window.result(x.dtype))
    out = np.moveaxis(result, axis, -1)
    lines = rows.shape[:-1]
    room = max(1, room // max(1, rows.shape[-1] + before.shape[-1]))
    for box in boxes(lines, room) if math.prod(lines) else ():
        elements = window.lift(np.concatenate([before[box], rows[box]], -1))
        states = tuple(field[..., before.shape[-1] :] for field in _windows(window, elements))
        if base is not None:
            inner = tuple(np.expand_dims(field, -1)[box] for field in _base_of_lines(x, axis, base))
            states = window.combine(inner, states)
        out[box] = cast(window.finish(states), result.dtype)
    return result


def move_ordered(window: Window, x: Array, halo: Array, room: int) -> Array:
    """Return order statistics of windows, of about `room` elements of windows at a time."""
    axis, w = window.axis, window.length
    element, result = window.element(x.dtype), np.empty_like(x, dtype=window.result(x.dtype))
    if not x.size:
        return result
    rows, before = (np.moveaxis(a.astype(element, copy=False), axis, -1) for a in (x, halo))
    short = (*rows.shape[:-1], max(0, w - 1 - before.shape[-1]))
    before = before[..., before.shape[-1] - (w - 1 - short[-1]) :]
    nothing = np.full_like(rows, np.nan, shape=short)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.concatenate([nothing, before, rows], -1), w, -1
    )
    out = np.moveaxis(result, axis, -1)
    for box in boxes(out.shape, max(1, room // w)):
        out[box] = cast(_ordered(window, windows[box]), result.dtype)
    return result


def _ordered(window: Window, elements: Array) -> Array:
    """Return the order statistic of each row of elements."""
    valid = elements == elements
    counts = valid.sum(-1)
    last = elements[..., -1:]
    match window.statistic:
        case "argmin" | "argmax":
            lowest = window.statistic == "argmin"
            worst = elements.dtype.type(np.inf if lowest else -np.inf)
            filled = np.where(valid, elements, worst)
            best = (filled.min if lowest else filled.max)(-1, keepdims=True)
            equal = valid & (elements == best)
            places = equal.argmax(-1) if window.first else equal[..., ::-1].argmax(-1)
            value = (window.length - 1 - places if window.first else places).astype("f8")
        case "rank":
            below, above = ((elements < last).sum(-1), (elements > last).sum(-1))
            value = (below - above).astype("f8") / np.maximum(counts - 1, 1)
            value = np.where(valid[..., -1], value, np.nan)
        case _:
            choice = window.quantiles
            ranks = choice.ranks(np.arange(window.length + 1))
            of_count = (asarray(a, kind(elements))[counts] for a in ranks if a is not None)
            previous, following, *gamma = of_count
            ordered = np.sort(elements, -1)
            low, high = (
                np.take_along_axis(ordered, rank[..., None], -1)[..., 0]
                for rank in (previous, following)
            )
            with np.errstate(all="ignore"):
                value = choice.interpolate(low, high, gamma[0] if gamma else None)
    return np.where(counts >= window.min_count, value, value.dtype.type(np.nan))


def recentred(
    window: Window, x: Array, halo: Array, base: State | None
) -> tuple[Array, Array, State | None]:
    """Return lines minus one of their elements, for deviations, if the difference is exact.

    It is exact if all elements of a line are within a factor of two (Sterbenz). Means of the
    differences have smaller rounding errors.
    """
    if window.statistic not in ("var", "std") or x.dtype != np.float64 or not x.size:
        return x, halo, base
    along = window.axis
    low: Array = np.inf
    high: Array = -np.inf
    for array in (x, halo):
        if array.shape[along]:
            least, greatest = _extrema(array, along)
            low, high = np.fmin(low, least), np.fmax(high, greatest)
    if base is not None:
        fields = _base_of_lines(x, along, base)
        count, mean, m2, short = (np.expand_dims(field, along) for field in fields)
        low = np.where(count > 0, np.minimum(low, mean), low)
        high = np.where(count > 0, np.maximum(high, mean), high)
    with np.errstate(all="ignore"):
        above = (low > 0) & (high <= 2 * low) & (high < np.inf)
        below = (high < 0) & (low >= 2 * high) & (low > -np.inf)
        pivot = np.where(above | below, low, 0.0)
        if base is not None:
            mean = np.where(count > 0, (mean - pivot) + short, 0.0)
            fields = count, mean, m2, np.zeros_like(mean)
            base = tuple(field.squeeze(along) for field in fields)
    return (x - pivot, halo - pivot, base) if pivot.any() else (x, halo, base)


def _extrema(x: Array, axis: int) -> tuple[Array, Array]:
    """Return the least and the greatest element of each line, ignoring NaN if possible."""
    if isinstance(x, np.ndarray):
        return np.fmin.reduce(x, axis, keepdims=True), np.fmax.reduce(x, axis, keepdims=True)
    valid = x == x
    # CuPy's nanmin warns about lines of NaN.
    least = np.where(valid, x, np.inf).min(axis, keepdims=True)
    return least, np.where(valid, x, -np.inf).max(axis, keepdims=True)


def _base_of_lines(x: Array, axis: int, base: State) -> State:
    """Return the fields of a base as arrays of the kind of `x` and the shape of its lines.

    Small states of CuPy chunks are on the host.
    """
    lines, to = (*x.shape[:axis], *x.shape[axis + 1 :]), kind(x)
    fields = (field if hasattr(field, "ndim") else np.asarray(field) for field in base)
    return tuple(np.broadcast_to(asarray(field, to), lines) for field in fields)


def _windows(window: Window, states: State) -> State:
    """Return the state of the window that ends at each element."""
    length = window.length
    result: State = ()
    done, size = 0, 1
    while length:
        if length & 1:
            result = _before(window, states, result, done) if result else states
            done += size
        length >>= 1
        if length:
            states = _before(window, states, states, size)
        size *= 2
    return result


def _before(window: Window, a: State, b: State, shift: int) -> State:
    """Combine states of `a` that end `shift` elements earlier with the states of `b`."""
    n = b[0].shape[-1]
    shift = min(shift, n)
    both = window.combine(
        tuple(field[..., : n - shift] for field in a), tuple(field[..., shift:] for field in b)
    )
    fields = zip(b, both, strict=True)
    return tuple(np.concatenate([first[..., :shift], later], -1) for first, later in fields)
