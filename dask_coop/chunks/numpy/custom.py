"""NumPy chunks under a user's monoid.

Elements are lifted block by block, so that their states, which may be many times as large, use
only a few MiB.  A ufunc reduces and accumulates by itself; `dask_coop.chunks.states` combines other
states.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec, segmented
from dask_coop.chunks.states import accumulate, as_lines, blocks, reduce_along

Array = np.ndarray[Any, Any]


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None = None) -> State:
    """Reduce the chunk `x` over `axes` to a partial state; with `where`, only where it holds."""
    where = None if where is None else np.broadcast_to(where, x.shape)
    if len(axes) != 1:
        x = as_lines(x, axes)
        where = None if where is None else as_lines(where, axes)
        axes = (x.ndim - 1,)
    (axis,) = axes
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    if x.size == 0:
        return tuple(np.full(shape, value)[()] for value in op.monoid.identity(op.element))
    cuts = blocks(x.shape, axis)
    parts = (_reduce(op, _lift_block(op, x, axis, cut, where), axis) for cut in cuts)
    return tuple(field[()] for field in reduce(op.monoid.combine, parts))


def scan(
    op: Operation,
    x: Array,
    spec: ScanSpec,
    base: State | None,
    heads: Array | None = None,
    where: Array | None = None,
) -> tuple[Array, State]:
    """Scan the chunk `x`, starting from `base`; with `where`, only where it holds.

    Return the results and the state behind them.
    """
    finalize, axis, monoid = op.monoid.finalize, spec.axis, op.monoid
    assert finalize is not None
    if spec.reverse:
        x = np.flip(x, axis)
        where = None if where is None else np.flip(where, axis)
    kept, identity = x.shape[:axis] + x.shape[axis + 1 :], monoid.identity(op.element)
    carry = tuple(np.full(kept, value) for value in identity) if base is None else base
    if heads is not None:
        heads = np.expand_dims(
            heads, [d for d in range(x.ndim) if d != axis][: x.ndim - heads.ndim]
        )
        heads = np.flip(heads, axis) if spec.reverse else heads
        heads, monoid = np.broadcast_to(heads, x.shape), segmented(monoid)
        carry = (*carry, np.zeros(kept, "?"))
    at = (slice(None),) * axis
    result = np.empty(
        (*x.shape[:axis], x.shape[axis] + spec.initial, *x.shape[axis + 1 :]), op.output
    )
    out = np.flip(result, axis) if spec.reverse else result
    before = tuple(np.expand_dims(field, axis) for field in carry)
    with np.errstate(all="ignore"):
        if spec.initial:
            out[(*at, slice(1))] = finalize(before[: len(identity)])
            out = out[(*at, slice(1, None))]
        for block in blocks(x.shape, axis) if x.size else ():
            here = (*at, block)
            states = _lift_block(op, x, axis, block, where)
            if heads is None:
                after = _accumulate(op, states, axis, carry)
            else:
                after = accumulate(monoid.combine, (*states, heads[here]), axis, carry)
            scanned = after
            if spec.exclusive:
                pairs = zip(before, after, strict=True)
                scanned = tuple(np.concatenate([b, a[(*at, slice(-1))]], axis) for b, a in pairs)
                if heads is not None:
                    values = zip(identity, scanned, strict=False)
                    scanned = tuple(np.where(heads[here], *pair) for pair in values)
            out[here] = finalize(scanned[: len(identity)])
            before = tuple(field[(*at, slice(-1, None))] for field in after)
            carry = tuple(field.take(0, axis) for field in before)
    return result, carry[: len(identity)]


def _lift_block(
    op: Operation, x: Array, axis: int, block: slice, where: Array | None = None
) -> State:
    assert op.monoid.lift is not None
    at = (*(slice(None),) * axis, block)
    with np.errstate(all="ignore"):
        states = op.monoid.lift(x[at])
    if where is None:
        return states
    identity = op.monoid.identity(op.element)
    return tuple(np.where(where[at], *pair) for pair in zip(states, identity, strict=True))


def _reduce(op: Operation, states: State, axis: int) -> State:
    if op.monoid.merge is not None:
        return reduce_along(op.monoid.combine, states, axis)
    with np.errstate(all="ignore"):
        return (op.monoid.fields[0].ufunc.reduce(states[0], axis, dtype=states[0].dtype),)


def _accumulate(op: Operation, states: State, axis: int, base: State | None) -> State:
    if op.monoid.merge is not None:
        return accumulate(op.monoid.combine, states, axis, base)
    with np.errstate(all="ignore"):
        scanned = (op.monoid.fields[0].ufunc.accumulate(states[0], axis, dtype=states[0].dtype),)
        if base is None:
            return scanned
        return op.monoid.combine(tuple(np.expand_dims(f, axis) for f in base), scanned)
