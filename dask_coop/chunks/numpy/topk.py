"""The best elements of the lines of NumPy chunks: by compiled loops, or by NumPy's partition."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.topk import find_best
from dask_coop.chunks.numpy import adding
from dask_coop.chunks.numpy.lines import find_layout, read

Array = np.ndarray[Any, Any]

#: The least room that loops have for the best elements of a line, and what all lines that they work
#: on at a time may have.
_LEAST_ROOM, _ROOM = 64, 1 << 16


@cache
def _load() -> ModuleType:
    from dask_coop.chunks.numpy import topk_numba

    return topk_numba


def lift(op: Operation, x: Array, axes: tuple[int, ...]) -> State:
    """Return the best elements of a chunk of `op.element` along one axis, and their indices."""
    (axis,), k, indices = axes, op.monoid.k, op.monoid.positional
    if abs(k) >= x.shape[axis]:
        lines = np.moveaxis(x, axis, -1)
        at = np.broadcast_to(np.arange(lines.shape[-1]), lines.shape)
        return (lines, at) if indices else (lines,)
    worth = adding.WORTH_COMPILING >> 3
    if k and x.size >= max(worth, 1) and x.flags.aligned and adding._loops() is not None:
        values, at = _compiled(x, axis, k)
        return (values, at) if indices else (values,)
    return largest(np.moveaxis(x, axis, -1), k, indices)


def largest(x: Array, k: int, indices: bool) -> State:
    """Return the `k` largest elements along the last axis, or the smallest ones, and their indices.

    There are more than `k`. Equal ones are in their order.
    """
    if not indices:
        part = np.partition(x, -k if k > 0 else -k - 1, -1) if k else x
        return (part[..., x.shape[-1] - k :] if k > 0 else part[..., :-k],)
    at = find_best(x, k)
    return np.take_along_axis(x, at, -1), at


def _compiled(x: Array, axis: int, k: int) -> tuple[Array, Array]:
    """Return the best elements of lines along an axis, as the last one, and their indices."""
    layout, integer = find_layout(x, (axis,)), np.dtype(f"i{x.itemsize}")
    lines, count, loops = read(layout, x, None), abs(k), _load()
    bits, indices = np.empty((lines.count, count), integer), np.empty((lines.count, count), "i8")
    room = max(2 * count, _LEAST_ROOM)
    given = count, _steps(x.dtype, k), room
    memory = lines.memory.view(integer)
    if lines.inner == 1:
        loops.best_of_rows(memory, lines.steps[0], lines.n, *given, bits, indices)
    else:
        width = min(lines.inner, max(loops._COLUMNS, _ROOM // room))
        rest = *lines.steps, lines.n, lines.inner, *given, width, bits, indices
        loops.best_of_columns(memory, *rest)
    kept = layout.order[: layout.start] + layout.order[layout.stop :]
    back = (*np.argsort(kept), len(kept))
    shape = (*(x.shape[d] for d in kept), count)
    bits, indices = (field.reshape(shape).transpose(back) for field in (bits, indices))
    return bits.view(x.dtype), indices


def _steps(dtype: np.dtype[Any], k: int) -> Array:
    """Return how loops make keys of elements: as `topk_numba.key` takes it."""
    integer = np.dtype(f"i{dtype.itemsize}")
    low, most = np.iinfo(integer).min, np.iinfo(integer).max
    floats = dtype.kind == "f"
    infinity = int(np.array(np.inf, dtype).view(integer)) if floats else most
    flipped, less = low if dtype.kind in "bu" else 0, int(dtype.kind in "mM")
    last = -1 if k < 0 else 0
    return np.array([flipped, less, most if floats else 0, infinity, floats, last], integer)
