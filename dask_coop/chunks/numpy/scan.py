"""Scans of NumPy chunks, by blocks that stay in the caches.

A chunk has the shape (outer, n, inner), and lines of n elements are scanned. Where Numba is
installed and a chunk is large enough to pay for compiling, one call of a loop of loops/scans.py or
loops/logaddexp.py does the work.

Otherwise a block is lifted, scanned by NumPy from the state that the block before has left, and
written in the result's dtype, so that conversions and the combination with the base cost no extra
pass over memory. compensated.py scans float64 sums that keep rounding errors, with such states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dask_coop.algebra.merges import settle
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec, segmented
from dask_coop.chunks.numpy import compensated, gaps
from dask_coop.chunks.numpy.lines import FEW, aligned, memory_and_place, place, place_heads
from dask_coop.chunks.numpy.loop_table import loops, loops_for
from dask_coop.chunks.states import accumulate

Array = np.ndarray[Any, Any]

#: Elements of a block, and of a line with its own flags, which is scanned alone.
_BLOCK, _LONG = 1 << 15, 1 << 12

#: The fewest columns that are combined row by row, at the cost of a call a row.
_WIDE = 512

#: Elements and results that have a compiled loop.
_LOOPED = {"b1", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"}

#: For each ufunc, the extremum of its loop: whether the least, and whether NaN are left out.
_EXTREMA = {
    np.maximum: (False, False),
    np.minimum: (True, False),
    np.fmax: (False, True),
    np.fmin: (True, True),
}

#: The fewest elements of a segment that are worth a call.
_RUN = 32


class _Loop(NamedTuple):
    """A compiled loop over few lines side by side, one over many, and their options."""

    lines: Callable[..., None]
    columns: Callable[..., None]
    options: tuple[Any, ...]
    #: The state that changes no element, not even a negative zero.
    nothing: State


def scan(
    op: Operation, x: Array, spec: ScanSpec, base: State | None, heads: Array | None
) -> tuple[Array, State]:
    """Scan the chunk `x`, starting from `base`; return the results and the state behind them.

    Parameters
    ----------
    op : Operation
        With a monoid of one field, or with an excess besides.
    x : numpy.ndarray
    spec : ScanSpec
    base : State, optional
        The state before the chunk, in its shape without the axis.
    heads : numpy.ndarray, optional
        Bool, of the shape of `x` or of one line: where the scan restarts.
    """
    axis = spec.axis
    order = sorted(range(x.ndim), key=lambda d: -abs(x.strides[d]))
    at, others = order.index(axis), [d - (d > axis) for d in order if d != axis]
    shape = tuple(x.shape[d] for d in order)
    lines = math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :])
    n = shape[at] + spec.initial
    result = np.empty((*shape[:at], n, *shape[at + 1 :]), op.output)

    def see(a: Array, length: int = lines[1]) -> Array:
        a = a.reshape(lines[0], length, lines[2])
        return a[:, ::-1] if spec.reverse else a

    if heads is not None and heads.ndim < x.ndim:
        heads = heads[::-1] if spec.reverse else heads
        heads = heads[np.newaxis, :, np.newaxis]
    elif heads is not None:
        heads = see(heads.transpose(order))
    dtypes, identity = op.monoid.dtypes(op.element), op.monoid.identity(op.element)
    carry = None
    if base is not None:
        carry = [
            np.asarray(field, dtype).transpose(others).reshape(lines[0], 1, lines[2])
            for field, dtype in zip(base, dtypes, strict=True)
        ]
    out = see(result, n)
    if spec.initial:
        out[:, :1] = identity[0] if carry is None else _result(carry)
        out = out[:, 1:]
    last = [np.full((lines[0], 1, lines[2]), value) for value in identity]
    if not x.size:
        last = last if carry is None else carry
    elif gaps.serves(op.monoid):
        elements = see(aligned(x).astype(op.element, copy=False).transpose(order))
        gaps.scan(op, elements, out, result, carry, heads, last)
    elif (loop := _loop(op, x)) is not None:
        for field, value in zip(last, loop.nothing if carry is None else carry, strict=True):
            field[...] = value
        elements = see(aligned(x).astype(op.element, copy=False).transpose(order))
        _run(loop, elements, out, result, heads, spec.exclusive, last)
        if spec.exclusive and carry is None:
            out[:, :1] = identity[0]
    else:
        # This ufunc warns of NaN in its input.
        logs = op.monoid.fields[0].ufunc is np.logaddexp
        with np.errstate(invalid="ignore" if logs else None):
            _scan_lines(op, see(x.transpose(order)), out, carry, heads, spec.exclusive, last)
    kept = shape[:at] + shape[at + 1 :]
    back = np.argsort(others)
    state = (field.reshape(kept).transpose(back)[()] for field in last)
    return result.transpose(np.argsort(order)), tuple(state)


def _loop(op: Operation, x: Array) -> _Loop | None:
    """Return the loop for a chunk, or None if it is missing or not worth compiling."""
    first, *other_fields = op.monoid.fields
    dtype, identity = op.monoid.dtypes(op.element)[0], op.monoid.identity(op.element)
    if op.monoid.has_excess:
        nothing = compensated.nothing(dtype)
        if compensated.compiled(x) is None:
            return None
        exact = loops("scans")
        return _Loop(exact.keep_lines, exact.keep_columns, (op.skipna, nothing[0]), nothing)
    plain = loops_for("scans", x.size)
    if other_fields or plain is None or x.dtype != op.element:
        return None
    if not {x.dtype.str[1:], op.output.str[1:]} <= _LOOPED:
        return None
    if first.role == "accumulator" and first.ufunc in (np.add, np.multiply):
        multiply = first.ufunc is np.multiply
        start = dtype.type(1 if multiply else -0.0)
        besides = multiply, op.skipna, start, identity[0]
        return _Loop(plain.add_lines, plain.add_columns, besides, (start,))
    if op.skipna:
        return None
    if first.role == "element" and first.ufunc in _EXTREMA:
        nothing = identity[0].view("u1") if dtype.kind == "b" else identity[0]
        options = *_EXTREMA[first.ufunc], nothing
        return _Loop(plain.extreme_lines, plain.extreme_columns, options, identity)
    if first.role == "real" and first.ufunc is np.logaddexp:
        logs = loops("logaddexp")
        return _Loop(logs.scan_lines, logs.scan_columns, tuple(np.empty(logs.SPACE)), identity)
    return None


def _run(
    loop: _Loop,
    x: Array,
    out: Array,
    result: Array,
    heads: Array | None,
    exclusive: bool,
    states: list[Array],
) -> None:
    """Scan (outer, n, inner) into `out`, a view of `result`, from `states`, and update these."""
    _, n, inner = x.shape
    kernel = loop.lines if inner <= FEW else loop.columns
    kernel(
        memory_and_place(x),
        (_numbers(result.reshape(-1)), place(out, result)),
        place_heads(heads),
        (n, inner),
        (exclusive, *loop.options),
        tuple(_numbers(field.reshape(-1)) for field in states),
    )


def _numbers(x: Array) -> Array:
    """Return bools as the integers that loops read."""
    return x.view("u1") if x.dtype.kind == "b" else x


def _scan_lines(
    op: Operation,
    x: Array,
    out: Array,
    carry: list[Array] | None,
    heads: Array | None,
    exclusive: bool,
    last: list[Array],
) -> None:
    """Scan (outer, n, inner) along n into `out`, from `carry` if any; leave the state in `last`."""
    dtype, identity = op.monoid.dtypes(op.element)[0], op.monoid.identity(op.element)[0]
    bare = x.dtype == dtype == op.element and not op.skipna and not 1 < x.shape[2] < _WIDE
    # Two-field bases are added to results, not to elements.
    kept = bare and len(last) == 2 and (x.shape[2] > 1 or x.strides[1] == x.itemsize)
    bare = bare and len(last) == 1
    bare = bare and op.monoid.fields[0].role not in ("count", "truth")
    shared = heads is None or heads.shape[0] == heads.shape[2] == 1
    # Blocks of two fields are larger, because each costs some twenty calls.
    blocks = _blocks(x.shape, shared, 4 * _BLOCK if kept else _BLOCK)
    plain = bare and out.dtype == dtype and not exclusive and x.shape[2] == 1
    if plain and carry is None and heads is None:
        # Elements and results need no conversion, so blocks would save nothing.
        blocks = iter([(slice(None), slice(None), slice(0, x.shape[1]))])
    for lines, columns, steps in blocks:
        if steps.start == 0:
            before = None if carry is None else [field[lines, :, columns] for field in carry]
        target = out[lines, steps, columns]
        into = target if target.dtype == dtype and not exclusive else None
        flags = None
        if heads is not None:
            flags = heads[:, steps] if shared else heads[lines, steps, columns]
        block = x[lines, steps, columns]
        # With nothing before the first element, elements may serve as states.
        if not kept and (before is not None or not bare):
            block = _lift(op, block, dtype, identity)
        after, state = _accumulate(op, block, before, flags, into)
        if exclusive:
            target[:, :1] = identity if before is None else _result(before)
            target[:, 1:] = after[:, :-1]
            if flags is not None:
                np.copyto(target, identity, "unsafe", where=flags)
        elif after is not target:
            target[...] = after
        for field, value in zip(last, state, strict=True):
            field[lines, :, columns] = value
        before = state


def _result(state: list[Array]) -> Array:
    """Return the results of states, which may have an excess."""
    return state[0] if len(state) == 1 else settle(tuple(state))[0]


def _blocks(
    shape: tuple[int, ...], shared: bool, size: int
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield slices of lines, steps and columns: all steps of some lines, then of the next."""
    outer, n, inner = shape
    alone = not shared and inner == 1 and n >= _LONG
    lines = 1 if alone else max(1, min(size // (n * inner), outer))
    columns = min(inner, size // 8)
    length = max(1, size // (lines * columns))
    for line in range(0, outer, lines):
        for column in range(0, inner, columns):
            for step in range(0, n, length):
                yield (
                    slice(line, line + lines),
                    slice(column, column + columns),
                    slice(step, min(step + length, n)),
                )


def _lift(op: Operation, x: Array, dtype: np.dtype[Any], identity: Any) -> Array:
    """Return the states of elements, in a new array that is contiguous along the lines."""
    counted = op.monoid.fields[0].role in ("count", "truth")
    x = x.astype("?" if counted else op.element, copy=False)
    if x.shape[2] >= _WIDE:
        states = np.array(x, dtype)
    else:
        states = np.empty((x.shape[0], x.shape[2], x.shape[1]), dtype).transpose(0, 2, 1)
        states[...] = x
    if op.skipna:
        np.copyto(states, identity, where=np.isnan(states))
    return states


def _accumulate(
    op: Operation,
    x: Array,
    before: list[Array] | None,
    flags: Array | None,
    out: Array | None,
) -> tuple[Array, list[Array]]:
    """Scan states along axis 1; return results, in `out` if possible, and the last state.

    `x` may be overwritten.
    """
    cuts: list[int] = []
    if flags is not None and flags.any():
        if flags.shape[0] * flags.shape[2] == 1:
            cuts = np.flatnonzero(flags).tolist()
        if not 0 < len(cuts) * _RUN <= x.shape[1]:
            return _accumulate_segments(op, x, before, flags)
    before = None if cuts[:1] == [0] else before
    out = np.empty_like(x) if out is None else out
    has_excess = op.monoid.has_excess
    for begin, end in pairwise([*([] if cuts[:1] == [0] else [0]), *cuts, x.shape[1]]):
        if has_excess:
            state = compensated.accumulate(x[:, begin:end], before, out[:, begin:end])
        else:
            state = _accumulate_run(op, x[:, begin:end], before, out[:, begin:end])
        before = None
    return out, state


def _accumulate_run(op: Operation, x: Array, before: list[Array] | None, out: Array) -> list[Array]:
    """Scan states of one field along axis 1 into `out`, and return the last."""
    ufunc = op.monoid.fields[0].ufunc
    if before is not None:
        ufunc(before[0], x[:, :1], out=x[:, :1])
    if x.shape[2] < _WIDE:
        ufunc.accumulate(x, 1, out=out)
    else:
        out[:, 0] = x[:, 0]
        for row in range(1, x.shape[1]):
            ufunc(out[:, row - 1], x[:, row], out=out[:, row])
    return [out[:, -1:]]


def _accumulate_segments(
    op: Operation, x: Array, before: list[Array] | None, flags: Array
) -> tuple[Array, list[Array]]:
    restarts = np.array(np.broadcast_to(flags, x.shape))
    excesses = [np.zeros_like(x) for _ in op.monoid.fields[1:]]
    base = None
    if before is not None:
        base = (*(field[:, 0] for field in before), np.zeros(before[0][:, 0].shape, "?"))
    combine = segmented(op.monoid).combine
    *states, _ = accumulate(combine, (x, *excesses, restarts), 1, base)
    return _result(states), [field[:, -1:] for field in states]
