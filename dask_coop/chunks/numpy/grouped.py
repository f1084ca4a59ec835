"""Reductions of groups of NumPy chunks: a state for each group, by several operations at a time.

Whatever there is no compiled loop for goes by sorting, which any monoid takes::

    elements  a b c d e    sorted by group, in their order    a c | b d e
    groups    0 1 0 1 1    states of one element each         A C | B D E
                           neighbours of a group combined     AC | BD E
                           until each group has one           AC | BDE

So a group is combined as a tree of its elements, and its digits depend on its elements alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import NO_INDEX, State
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.blocks import blocks
from dask_coop.chunks.numpy.reduce import lift

Array = np.ndarray[Any, Any]

#: Elements whose states are made at a time, at most, unless one line has more.
_BLOCK = 1 << 18


def lift_groups(ops: Sequence[Operation], x: Array, codes: Array, n: int) -> list[State]:
    """Reduce the elements of each group of the chunk `x` to states, by several operations."""
    x, codes = np.asarray(x), np.asarray(codes)
    return [*_sorted(ops, x, codes, n)]


def _sorted(ops: Sequence[Operation], x: Array, codes: Array, n: int) -> list[State]:
    """Reduce groups by sorting their elements, once for all operations."""
    kept = x.shape[: x.ndim - codes.ndim]
    states = [identities(op, (*kept, n)) for op in ops]
    flat = codes.reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[np.searchsorted(flat[order], 0) :]
    groups, lengths = np.unique(flat[order], return_counts=True)
    if not x.size or not order.size:
        return states
    for at in blocks(kept, max(1, _BLOCK // order.size)):
        block = x[at]
        part = block.reshape(*block.shape[: len(kept)], flat.size)[..., order]
        for op, state in zip(ops, states, strict=True):
            for field, found in zip(state, _by_runs(op, part, order, lengths), strict=True):
                field[at][..., groups] = found
    return states


def identities(op: Operation, shape: tuple[int, ...]) -> State:
    """Return the state of nothing for each group."""
    dtypes, values = op.monoid.dtypes(op.element), op.monoid.identity(op.element)
    return tuple(np.full(shape, value, dtype) for value, dtype in zip(values, dtypes, strict=True))


def _by_runs(op: Operation, part: Array, order: Array, lengths: Array) -> State:
    """Combine the elements of each run of the last axis, of which `order` tells the indices."""
    shape = part.shape
    found = lift(op, part[..., np.newaxis], (part.ndim,))
    state = tuple(np.broadcast_to(field, shape) for field in found)
    if op.monoid.positional:
        value, index, *rest = state
        state = (value, np.where(index == NO_INDEX, index, order), *rest)
    while lengths.max() > 1:
        starts = np.cumsum(lengths) - lengths
        within = np.arange(state[0].shape[-1]) - np.repeat(starts, lengths)
        left = np.flatnonzero(within % 2 == 0)
        paired = within[left] + 1 < np.repeat(lengths, (lengths + 1) // 2)
        first = left[paired]
        combined = op.monoid.combine(
            tuple(field[..., first] for field in state),
            tuple(field[..., first + 1] for field in state),
        )
        after = tuple(field[..., left] for field in state)
        for field, values in zip(after, combined, strict=True):
            field[..., paired] = values
        state, lengths = after, (lengths + 1) // 2
    return state
