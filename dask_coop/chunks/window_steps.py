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
from dask_coop.chunks.blocks import blocks

Array = Any


def move(window: Window, x: Array, halo: Array, base: State | None, room: int) -> Array:
    """Return what `ChunkBackend.move` does, of floats, in blocks of about `room` elements."""
    axis = window.axis
    rows, before = np.moveaxis(x, axis, -1), np.moveaxis(halo, axis, -1)
    result = np.empty_like(x)
    out = np.moveaxis(result, axis, -1)
    lines = rows.shape[:-1]
    room = max(1, room // max(1, rows.shape[-1] + before.shape[-1]))
    for part in blocks(lines, room) if math.prod(lines) else ():
        states = window.lift(np.concatenate([before[part], rows[part]], -1))
        found = tuple(field[..., before.shape[-1] :] for field in _windows(window, states))
        if base is not None:
            inner = tuple(np.expand_dims(np.asanyarray(field), -1) for field in base)
            inner = tuple(np.broadcast_to(field, (*lines, 1))[part] for field in inner)
            found = window.combine(inner, found)
        out[part] = cast(window.finish(found), result.dtype)
    return result


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
