"""Statistics of windows by a few steps over whole blocks of lines, for chunks of any backend.

Windows of 1, 2, 4 and more elements are combined from two neighbours each, and the wanted length
from those that add up to it::

    length 5 = 1 + 4      a b c d e      (a b c d) (e)
                                         (ab) (cd)
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
    result = np.empty_like(x)
    out = np.moveaxis(result, axis, -1)
    lines = rows.shape[:-1]
    room = max(1, room // max(1, rows.shape[-1] + before.shape[-1]))
    for box in boxes(lines, room) if math.prod(lines) else ():
        elements = window.lift(np.concatenate([before[box], rows[box]], -1))
        states = tuple(field[..., before.shape[-1] :] for field in _windows(window, elements))
        if base is not None:
            inner = tuple(np.expand_dims(field, -1)[box] for field in _beside(x, axis, base))
            states = window.combine(inner, states)
        out[box] = cast(window.finish(states), result.dtype)
    return result


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
        beside = _beside(x, along, base)
        count, mean, m2, short = (np.expand_dims(field, along) for field in beside)
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


def _beside(x: Array, axis: int, base: State) -> State:
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
