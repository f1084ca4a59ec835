"""Put tables of the states of groups together, and make results of them.

A table is a list with the states of each operation, arrays whose last axis is the groups. Groups
that one table alone has are copied, and the others combined, in the order of the tables::

    table 0   a b c        merged   a b+d c e
    table 1     d   e
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.backend import asarray, kind

Codes = np.ndarray[Any, Any]
Ops = tuple[Operation, ...]

#: Makes an array of the states of a block, one for each operation, and of a mask of the groups
#: without elements.
Finalize = Callable[[list[State], Codes | None], Any]

#: Positions of groups in a table: an array, or a slice if they are neighbours.
Places = Codes | slice


class Finished(NamedTuple):
    """A table of the groups that other tables have, too, and the results of the others."""

    states: list[State]
    result: Any


#: So many groups are finalized at a time: their states stay in a processor's cache.
_BLOCK = 1 << 16


def as_slice(places: Codes) -> Places:
    """Return ascending positions, as a slice if they are neighbours."""
    if len(places) and places[-1] - places[0] == len(places) - 1:
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def count(places: Places) -> int:
    """Return the number of positions."""
    return places.stop - places.start if isinstance(places, slice) else len(places)


def merge_tables(
    *, ops: Ops, states: list[list[State]], places: list[tuple[Places, Places]] | None, n: int
) -> list[State]:
    """Merge tables in their order."""
    if places is None:
        alike = _on_one_side(states)
        return [op.combine([table[i] for table in alike]) for i, op in enumerate(ops)]
    return [_merged(op, [table[i] for table in states], places, n) for i, op in enumerate(ops)]


def _merged(
    op: Operation, states: list[State], places: list[tuple[Places, Places]], n: int
) -> State:
    total, begun = empty(op, states[0], n), np.zeros(n, "?")
    for state, (source, target) in zip(states, places, strict=True):
        again = begun[target]
        if again.any() and not again.all():
            sources, targets = np.arange(state[0].shape[-1])[source], np.arange(n)[target]
            _put(total, state, as_slice(sources[~again]), as_slice(targets[~again]))
            put_in(op, total, state, as_slice(sources[again]), as_slice(targets[again]))
        elif again.any():
            put_in(op, total, state, source, target)
        else:
            _put(total, state, source, target)
        begun[target] = True
    return total


def _on_one_side(tables: list[list[State]]) -> list[list[State]]:
    """Return tables on the GPU if one is there: small ones of CuPy chunks are on the host."""
    kinds = {kind(state[0]) for table in tables for state in table}
    if len(kinds) == 1:
        return tables
    (to,) = kinds - {"numpy"}
    return [[tuple(asarray(field, to) for field in state) for state in table] for table in tables]


def _put(total: State, state: State, source: Places, target: Places) -> None:
    """Copy groups of a table into groups of a larger one."""
    for to, field in zip(total, state, strict=True):
        to[..., target] = asarray(field[..., source], kind(to))


def empty(op: Operation, like: State, n: int) -> State:
    """Return the states of `n` groups without elements, in the kind and dtypes of `like`."""
    shape = (*like[0].shape[:-1], n)
    return tuple(
        np.full_like(field, value, shape=shape)
        for field, value in zip(like, op.monoid.identity(op.element), strict=True)
    )


def put_in(op: Operation, total: State, state: State, source: Places, target: Places) -> None:
    """Combine groups of a table into groups of a larger one, as its right operand."""
    so_far = tuple(field[..., target] for field in total)
    fields = (asarray(field[..., source], kind(total[0])) for field in state)
    combined = op.monoid.combine(so_far, tuple(fields))
    for field, values in zip(total, combined, strict=True):
        field[..., target] = values


def finalized(finalize: Finalize, states: list[State], absent: Codes | None, dtype: Any) -> Any:
    """Finalize states; large ones of NumPy block by block, in the order of their memory."""
    first = states[0][0]
    fields = [field for state in states for field in state]
    if first.size < 2 * _BLOCK or not all(
        type(field) is np.ndarray and field.shape == first.shape for field in fields
    ):
        return finalize(states, absent).astype(dtype, copy=False)
    axis = int(np.argmax(first.strides))
    step = max(1, first.shape[axis] * _BLOCK // first.size)
    result = np.empty_like(first, dtype)
    for start in range(0, first.shape[axis], step):
        block = slice(start, start + step)
        at = (*(slice(None),) * axis, block)
        taken = [tuple(field[at] for field in state) for state in states]
        some = absent if absent is None or axis < first.ndim - 1 else absent[block]
        result[at] = finalize(taken, some)
    return result


def finish_alone(states: list[State], alone: Codes, finalize: Finalize, dtype: Any) -> Finished:
    """Finalize the groups of a table that a mask has."""
    inside, others = as_slice(np.flatnonzero(alone)), np.flatnonzero(~alone)
    taken = [tuple(field[..., inside] for field in state) for state in states]
    result = finalized(finalize, taken, None, dtype)
    # Copies: a view would keep the whole table in memory.
    return Finished([tuple(field[..., others] for field in state) for state in states], result)


def finish(
    *,
    ops: Ops,
    states: list[Any],
    places: list[tuple[Places, Places]] | None,
    n: int,
    gaps: tuple[Places, Places] | None,
    finalize: Finalize,
    dtype: Any,
    shape: tuple[int, ...],
    to: str,
    absent: Codes | None = None,
    alone: list[tuple[Places, Places]] | None = None,
) -> Any:
    """Return a block of a result from its tables.

    With `alone`, tables are `Finished`: it has the positions in their results, and in the block.
    """
    results = [] if alone is None else [table.result for table in states]
    states = states if alone is None else [table.states for table in states]
    merged = merge_tables(ops=ops, states=states, places=places, n=n)
    result = finalized(finalize, merged, absent, dtype)
    if gaps is not None:
        present, missing = gaps
        like = results[0] if results else result
        block = np.empty_like(like, shape=(*result.shape[:-1], math.prod(shape)))
        block[..., present] = result
        for (source, target), finished in zip(alone or (), results, strict=True):
            block[..., target] = asarray(finished[..., source], kind(block))
        if count(missing):
            nothing = [empty(op, state, 1) for op, state in zip(ops, merged, strict=True)]
            block[..., missing] = finalize(nothing, np.ones(1, "?")).astype(dtype, copy=False)
        result = block
    result = result.reshape(*result.shape[:-1], *shape)
    return asarray(result, to)
