"""Reduce and scan states along an axis, for states that no ufunc combines.

A state is a tuple of arrays of one shape, NumPy's or CuPy's, and ``combine`` takes two such tuples,
the left one first.  Neighbours are combined, many at a time and in their order, so that ``combine``
need only be associative::

    reduce      s0 s1 s2 s3 -> s01 s23 -> s0123
    accumulate  s0 s1 s2 s3 -> s01 s23 -> s01 s0123 -> s0 s01 s012 s0123

`accumulate` walks along the axis in blocks of about `BLOCK` elements a field, so that intermediate
states stay in the caches and their memory does not grow with the arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

State = tuple[Any, ...]
Combine = Callable[[State, State], State]

#: The elements of a field that are combined at a time.
BLOCK = 1 << 16


def reduce_along(combine: Combine, state: State, axis: int) -> State:
    """Combine all states along `axis`, in their order, and drop the axis.

    Parameters
    ----------
    combine : callable
    state : tuple of arrays
        Of one shape, with at least one element along `axis`.
    axis : int
        Not negative.
    """
    while (n := state[0].shape[axis]) > 1:
        even, odd = (_along(state, axis, slice(i, n - n % 2, 2)) for i in (0, 1))
        paired = combine(even, odd)
        state = _join(paired, _along(state, axis, slice(n - 1, n)), axis) if n % 2 else paired
    return tuple(field[(slice(None),) * axis + (0,)] for field in state)


def accumulate(combine: Combine, state: State, axis: int, base: State | None = None) -> State:
    """Return the inclusive scan of states along `axis`.

    Parameters
    ----------
    combine : callable
    state : tuple of arrays
        Of one shape.
    axis : int
        Not negative.
    base : tuple of arrays, optional
        The state before the first one, without `axis`.
    """
    result = tuple(np.empty_like(field) for field in state)
    carry = None if base is None else tuple(np.expand_dims(field, axis) for field in base)
    for block in blocks(state[0].shape, axis):
        states = _along(state, axis, block)
        if carry is not None:
            first = combine(carry, _along(states, axis, slice(1)))
            states = _join(first, _along(states, axis, slice(1, None)), axis)
        _scan(combine, states, axis, _along(result, axis, block))
        carry = _along(result, axis, slice(block.stop - 1, block.stop))
    return result


def blocks(shape: tuple[int, ...], axis: int) -> Iterator[slice]:
    """Yield slices that divide `axis` of an array into blocks of about `BLOCK` elements."""
    lines = math.prod(shape[:axis] + shape[axis + 1 :])
    length = max(1, BLOCK // max(1, lines))
    for begin in range(0, shape[axis], length):
        yield slice(begin, min(begin + length, shape[axis]))


def boxes(shape: tuple[int, ...], room: int) -> Iterator[tuple[slice, ...]]:
    """Yield the slices of blocks of at most `room` elements, each contiguous in C order."""
    steps = []
    for n in reversed(shape):
        steps.append(max(1, min(n, room)))
        room //= max(1, n)
    steps.reverse()
    for index in np.ndindex(*(-(-n // step) for n, step in zip(shape, steps, strict=True))):
        yield tuple(slice(i * step, (i + 1) * step) for i, step in zip(index, steps, strict=True))


def as_lines(x: Any, axes: tuple[int, ...]) -> Any:
    """Return the array `x` with the sorted `axes` joined into one, the last."""
    kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    length = math.prod(x.shape[axis] for axis in axes)
    if axes == tuple(range(len(kept), x.ndim)):
        return x.reshape(*kept, length)
    return np.moveaxis(x, axes, range(len(kept), x.ndim)).reshape(*kept, length)


def _scan(combine: Combine, state: State, axis: int, into: State) -> None:
    """Scan pairs of neighbours, and derive the states in between from them."""
    n = state[0].shape[axis]
    _set(into, axis, slice(1), _along(state, axis, slice(1)))
    if n < 2:
        return
    odd = _along(into, axis, slice(1, None, 2))
    even = _along(state, axis, slice(0, n - n % 2, 2))
    _scan(combine, combine(even, _along(state, axis, slice(1, None, 2))), axis, odd)
    if n > 2:
        between = _along(state, axis, slice(2, None, 2))
        before = _along(odd, axis, slice((n - 1) // 2))
        _set(into, axis, slice(2, None, 2), combine(before, between))


def _along(state: State, axis: int, stretch: slice) -> State:
    index = (*(slice(None),) * axis, stretch)
    return tuple(field[index] for field in state)


def _set(state: State, axis: int, stretch: slice, values: State) -> None:
    for field, value in zip(_along(state, axis, stretch), values, strict=True):
        field[...] = value


def _join(a: State, b: State, axis: int) -> State:
    return tuple(np.concatenate(pair, axis) for pair in zip(a, b, strict=True))
