"""Reductions of NumPy chunks by one compiled loop each, which reads a chunk once.

NumPy's steps, of reduce.py, take a pass and an array as large as the chunk for each thing that they
do: leave out NaN or what is masked, subtract the mean, square. Here that is done to one element
after the other. What is too small to be worth compiling a loop for is left to NumPy, and so is what
Numba has no loop for: complex numbers, float16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import VAR, MonoidRow, State
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.numpy import adding
from dask_coop.chunks.numpy.lines import Lines, find_layout, read

Array = np.ndarray[Any, Any]


@cache
def _loops() -> ModuleType | None:
    try:
        from dask_coop.chunks.numpy import moments_numba
    except ImportError:
        return None
    return moments_numba


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None) -> State | None:
    """Return the state of a chunk of `op.element`, or None where it is left to NumPy."""
    make = _LIFTS.get(op.monoid)
    worth = adding.WORTH_COMPILING >> 3
    if make is None or x.size < max(worth, 1) or x.dtype.kind not in "biuf" or x.dtype == "f2":
        return None
    if not x.flags.aligned or _loops() is None:
        return None
    layout = find_layout(x, axes)
    x = x.view("u1") if x.dtype.kind == "b" else x
    keep = None if where is None else np.broadcast_to(where, x.shape)
    lines = read(layout, x, keep)
    # Of groups of columns that have few elements each, loops would begin more often than work.
    if lines.inner > 1 and lines.n * lines.inner < worth >> 4:
        return None
    return tuple(layout.join(field, x.shape) for field in make(op, lines))


def _skip(op: Operation, lines: Lines) -> bool | None:
    """Return what has NaN left out, where there may be any: None is no loop's."""
    return True if op.skipna and lines.memory.dtype.kind == "f" else None


def _variance(op: Operation, lines: Lines) -> State:
    loops, state = _loops(), np.zeros((4, lines.count))
    assert loops is not None
    space = (np.empty((4, loops.COLUMNS)),) if lines.inner > 1 else ()
    lines.call(loops.lift_rows, loops.lift_columns, _skip(op, lines), state, *space)
    count, total, squares, centre = state
    with np.errstate(all="ignore"):
        rest = total / np.maximum(count, 1)
        return count.astype("i8"), centre + rest, squares - rest * total


_LIFTS: dict[MonoidRow, Callable[[Operation, Lines], State]] = {VAR: _variance}
