"""Statistics of windows by a few steps over whole blocks of lines, for chunks of any backend.

Windows of 1, 2, 4 and so on are combined of two neighbours each, and those that make up the length
that is wanted of one another::

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
    """Return what `ChunkBackend.move` does, of floats, in blocks of about `room` elements."""
    axis = window.axis
    rows, before = np.moveaxis(x, axis, -1), np.moveaxis(halo, axis, -1)
    result = np.empty_like(x)
    out = np.moveaxis(result, axis, -1)
    lines = rows.shape[:-1]
    room = max(1, room // max(1, rows.shape[-1] + before.shape[-1]))
    for part in boxes(lines, room) if math.prod(lines) else ():
        states = window.lift(np.concatenate([before[part], rows[part]], -1))
        found = tuple(field[..., before.shape[-1] :] for field in _windows(window, states))
        if base is not None:
            inner = tuple(np.expand_dims(field, -1)[part] for field in _beside(x, axis, base))
            found = window.combine(inner, found)
        out[part] = cast(window.finish(found), result.dtype)
    return result


def recentred(
    window: Window, x: Array, halo: Array, base: State | None
) -> tuple[Array, Array, State | None]:
    """Return lines less an element of theirs, if deviations are wanted and the difference is exact.

    So it is where all elements of a line are within a factor of two (Sterbenz). Means of what is
    left are rounded by less.
    """
    if window.statistic not in ("var", "std") or x.dtype != np.float64 or not x.size:
        return x, halo, base
    along = window.axis
    low: Array = np.inf
    high: Array = -np.inf
    for part in (x, halo):
        if part.shape[along]:
            least, greatest = _extrema(part, along)
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
    """Return the least and the greatest element of each line that are not NaN, if there are any."""
    if isinstance(x, np.ndarray):
        return np.fmin.reduce(x, axis, keepdims=True), np.fmax.reduce(x, axis, keepdims=True)
    valid = x == x
    # CuPy's nanmin warns of lines that are all NaN.
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
    """Return the state of what ends at each element, of up to a window's length."""
    length = window.length
    found: State = ()
    done, size = 0, 1
    while length:
        if length & 1:
            found = _before(window, states, found, done) if found else states
            done += size
        length >>= 1
        if length:
            states = _before(window, states, states, size)
        size *= 2
    return found


def _before(window: Window, a: State, b: State, shift: int) -> State:
    """Combine with the states of `b` those of `a` that end `shift` elements before."""
    n = b[0].shape[-1]
    shift = min(shift, n)
    both = window.combine(
        tuple(field[..., : n - shift] for field in a), tuple(field[..., shift:] for field in b)
    )
    return tuple(
        np.concatenate([whole[..., :shift], part], -1) for whole, part in zip(b, both, strict=True)
    )
