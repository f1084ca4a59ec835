"""Series with gaps in NumPy chunks: the last valid elements, weighted means, and runs of masks.

Where Numba is installed and a chunk is large enough to pay for compiling, one call of a loop of
loops/gaps.py or loops/runs.py does the work. Otherwise the last valid elements are found by their
indices, block by block, and `dask_coop.chunks.states` combines the states of all elements to means
and to runs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from dask_coop.algebra.fills import (
    LEAST,
    Fill,
    WeightedMean,
    WeightedSpread,
    WeightedSum,
    missing,
)
from dask_coop.algebra.merges import BEGUN, FALSE, ONE_TRUE, run_lengths
from dask_coop.algebra.monoids import RUN_LENGTHS, RUN_PLACES, MonoidRow, State, floating
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.runs import Runs, Statistic, runs
from dask_coop.algebra.scan_spec import segmented
from dask_coop.chunks.numpy.lines import (
    FEW,
    NO_HEADS,
    aligned,
    find_layout,
    memory_and_place,
    place,
    place_heads,
)
from dask_coop.chunks.numpy.loop_table import loops_for
from dask_coop.chunks.states import accumulate, as_lines, blocks, reduce_along

Array = np.ndarray[Any, Any]

_OF_SERIES = Fill | WeightedMean | WeightedSum | WeightedSpread | Runs

#: The elements of lines whose runs loops do not count in 32 bits.
_WIDE = 1 << 31


def serves(monoid: MonoidRow) -> bool:
    """Return whether this module lifts and scans chunks for a monoid."""
    of_runs = monoid is RUN_PLACES or monoid is RUN_LENGTHS
    return of_runs or isinstance(monoid, _OF_SERIES)


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None) -> State:
    """Reduce the chunk `x` over sorted `axes` to a partial state, where `where` holds."""
    if op.monoid is RUN_PLACES:
        return _lift_places(op, x, axes[0], where)
    if op.monoid is RUN_LENGTHS:
        return _lift_lengths(x, axes[0])
    if isinstance(op.monoid, Runs):
        return _lift_runs(op, op.monoid, x, axes)
    if where is not None:
        x = np.where(where, x, missing(op.element))
    if len(axes) > 1:
        # Elements are in C order along these axes.
        x = as_lines(x, axes)
        axes = (x.ndim - 1,)
    loops = loops_for("gaps", x.size) if x.dtype.char in "fdFD" else None
    is_recursive = isinstance(op.monoid, WeightedSpread) and not op.monoid.adjust
    if loops is None or is_recursive:
        return _lift(op, x, *axes)
    x = aligned(x)
    layout = find_layout(x, axes)
    lines = layout.split(x)
    outer, n, inner = lines.shape
    of_lines = inner <= FEW
    source, shape = memory_and_place(lines), (n, inner)
    nowhere: Any = np.empty(0, x.real.dtype), (0, 0, 0)
    identity = op.monoid.identity(op.element)
    states = [np.full(outer * inner, value) for value in identity]
    match op.monoid:
        case Fill(limit=limit):
            find = loops.last_lines if of_lines else loops.last_columns
            find(source, shape, *_held(limit, states))
        case WeightedMean(alpha=alpha, adjust=False, ignore_na=ignore):
            states = [*np.zeros((5, outer * inner))]
            states[3][:] = 1
            make = loops.lift_lines if of_lines else loops.lift_columns
            make(source, nowhere, NO_HEADS, shape, (float(alpha), ignore), tuple(states))
        case WeightedSum(alpha=alpha, ignore_na=ignore):
            make = loops.total_lines if of_lines else loops.total_columns
            options = 1 - alpha, ignore
            make(source, nowhere, NO_HEADS, shape, options, (states[0], states[2]))
            steps = np.count_nonzero(lines == lines, 1).reshape(-1) if ignore else n
            states[1][:] = np.power(1 - alpha, steps)
        case WeightedSpread():
            make = loops.spread_lines if of_lines else loops.spread_columns
            moments = np.zeros((8, outer * inner))
            moments[7] = 1
            make(source, nowhere, NO_HEADS, shape, _spread(op.monoid, loops), tuple(moments))
            states[:-2] = _as_products(op.monoid, moments)
            states[-1][:] = moments[7]
            states[-2][:], states[-1][states[0] == 0] = _decay(op.monoid, lines, moments[7]), 1
        case WeightedMean(alpha=alpha, ignore_na=ignore):
            make = loops.mean_lines if of_lines else loops.mean_columns
            options = _weights(alpha, True, ignore)
            make(source, nowhere, NO_HEADS, shape, options, (*states[:2], states[3]))
            steps = np.count_nonzero(lines == lines, 1).reshape(-1)
            if not ignore:
                behind = np.zeros(outer * inner, "i4")
                find = loops.last_lines if of_lines else loops.last_columns
                find(source, shape, n, (np.full(outer * inner, np.nan, x.dtype), behind))
                steps = np.where(steps, n - behind, n)
            states[2][:] = np.power(1 - alpha, steps)
            # A line without valid elements decays by all of its steps.
            states[3][states[1] == 0] = 1
    return tuple(layout.join(field, x.shape) for field in states)


def scan(
    op: Operation,
    x: Array,
    out: Array,
    result: Array,
    carry: list[Array] | None,
    heads: Array | None,
    last: list[Array],
) -> None:
    """Scan (outer, n, inner) along n into `out`, a view of `result`; leave the state in `last`."""
    for field, value in zip(last, last if carry is None else carry, strict=True):
        field[...] = value
    if op.monoid is RUN_PLACES:
        _scan_places(x, out, heads, last)
        return
    if op.monoid is RUN_LENGTHS:
        _scan_lengths(op, x, out, result, last)
        return
    plain = x.dtype.char in "fdFD" and out.dtype.char in "fdFD"
    loops = loops_for("gaps", x.size) if plain else None
    if loops is None:
        _scan(op, x, out, heads, last)
        return
    _, n, inner = x.shape
    to = result.reshape(-1), place(out, result)
    arguments = memory_and_place(x), to, place_heads(heads), (n, inner)
    states = [field.reshape(-1) for field in last]
    match op.monoid:
        case Fill(limit=limit):
            fill = loops.fill_lines if inner <= FEW else loops.fill_columns
            most, kept = _held(limit, states)
            fill(*arguments, (most,), kept)
        case WeightedMean(alpha=alpha, adjust=adjust, ignore_na=ignore):
            mean = loops.mean_lines if inner <= FEW else loops.mean_columns
            means = op.monoid.results(tuple(states))
            seen = states[1] if adjust else (states[1] > 0).astype("f8")
            averages = np.where(seen > 0, means, 0), seen, states[3 if adjust else 4]
            mean(*arguments, _weights(alpha, adjust, ignore), averages)
            _leave(op.monoid, averages, states)
        case WeightedSum(alpha=alpha, ignore_na=ignore):
            add_up = loops.total_lines if inner <= FEW else loops.total_columns
            add_up(*arguments, (1 - alpha, ignore), (states[0], states[2]))
        case WeightedSpread():
            spread = loops.spread_lines if inner <= FEW else loops.spread_columns
            moments = _as_means(op.monoid, states)
            spread(*arguments, _spread(op.monoid, loops), tuple(moments))
            behind = _as_products(op.monoid, moments)
            if op.monoid.adjust:
                states[:-2] = behind
            else:
                states[: len(behind)] = behind
                states[len(behind) :] = np.zeros((len(states) - len(behind), moments.shape[1]))
                states[-2][:], moments[7] = 1, np.maximum(moments[7], LEAST)
            states[-1][:] = np.where(moments[0] > 0, moments[7], float(op.monoid.adjust))
            for field, value in zip(last, states, strict=True):
                field[...] = value.reshape(field.shape)


def _spread(monoid: WeightedSpread, loops: Any) -> tuple[Any, ...]:
    """Return the options of loops of weighted moments."""
    new, kind = 1.0 if monoid.adjust else monoid.alpha, getattr(loops, monoid.statistic.upper())
    return 1 - monoid.alpha, new, monoid.adjust, monoid.ignore_na, kind, monoid.bias


def _as_means(monoid: WeightedSpread, states: list[Array]) -> Array:
    """Return the moments of states as loops take them, with means of products."""
    moments, order = np.zeros((8, len(states[0]))), [0, 1, 2, 3, 4, 5, 6]
    order = order if monoid.pairs else [0, 1, 2, 4]
    moments[order] = monoid.all_moments(tuple(states))
    moments[4:7] /= np.where(moments[0] > 0, moments[0], 1)
    moments[7] = np.where(moments[0] > 0, states[-1], 1)
    return moments


def _as_products(monoid: WeightedSpread, moments: Array) -> list[Array]:
    """Return the moments of states, with sums of products."""
    sums = [*moments[:4], *(moments[4:7] * moments[0])]
    return sums if monoid.pairs else [*sums[:3], sums[4]]


def _decay(monoid: WeightedSpread, lines: Array, gap: Array) -> Array:
    """Return the product of steps of lines up to their last valid elements."""
    valid = lines == lines
    last = lines.shape[1] - np.argmax(valid[:, ::-1], 1)
    steps = valid.sum(1) if monoid.ignore_na else np.where(valid.any(1), last, lines.shape[1])
    decay: Array = np.power(1 - monoid.alpha, steps)
    return decay.reshape(-1)


def _held(limit: int | None, states: list[Array]) -> tuple[int, tuple[Array, ...]]:
    """Return the limit and states as loops expect them, with gaps even where states have none."""
    return (-1, (*states, np.empty(0, "i4"))) if limit is None else (limit, tuple(states))


def _weights(alpha: float, adjust: bool, ignore: bool) -> tuple[Any, ...]:
    """Return the options of loops that say how means weigh elements."""
    start, new = (1.0, 1.0) if adjust else (1 / alpha, float(alpha))
    return max(1 - alpha, LEAST), start, new, adjust, ignore


def _leave(monoid: WeightedMean, held: tuple[Array, ...], states: list[Array]) -> None:
    """Replace `states` by the states of their elements alone."""
    mean, weight, _ = held
    states[0][:] = mean
    if not monoid.adjust:
        states[1][:], states[2][:], states[3][:] = weight > 0, 0, 1


def _lift_runs(op: Operation, monoid: Runs, x: Array, axes: tuple[int, ...]) -> State:
    loops, n = loops_for("runs", x.size), x.shape[axes[0]]
    if loops is None or n >= _WIDE:
        return _lift(op, x, *axes)
    layout = find_layout(x, axes)
    lines = layout.split(x)
    outer, _, inner = lines.shape
    # Half as wide numbers are twice as many at a time.
    value = np.full(outer * inner, monoid.identity(op.element)[3], "i4")
    states = np.zeros(len(value), "i4"), np.zeros(len(value), "i4"), value
    kind = getattr(loops, monoid.statistic.upper())
    least, source = min(monoid.least, n + 1), memory_and_place(lines)
    if inner > FEW:
        loops.count_columns(source, (n, inner), kind, least, states)
    elif kind >= loops.FIRST:
        loops.find_lines(source, (n, inner), least, kind == loops.LAST, states)
    else:
        tables = _tables(monoid.statistic, least)
        loops.count_lines(source, (n, inner), kind, least, tables, states)
    return (np.int64(n), *(layout.join(field.astype("i8"), x.shape) for field in states))


@lru_cache(64)
def _tables(statistic: Statistic, least: int) -> tuple[Array, ...]:
    """Return tables of eight elements, by their bits from the lowest on.

    These are the run that they begin with, the run that they end with, a number with all bits set
    if all elements are true, and the statistic of all runs but the first of such beginnings.
    """
    monoid = runs(statistic, least)
    op = Operation(monoid, np.dtype("?"), np.dtype("i8"))
    elements = np.arange(256)[:, np.newaxis] >> np.arange(8) & 1 > 0
    _, begins, ends, _ = _lift(op, elements, 1)
    later = elements & (np.arange(8) >= begins[:, np.newaxis])
    return begins, ends, np.where(begins == 8, -1, 0), _lift(op, later, 1)[3]


def _lift_places(op: Operation, x: Array, axis: int, where: Array | None) -> State:
    """Return the last two elements of each line, of which `where` may leave out all but one."""
    n = x.shape[axis]
    if n == 0:
        return _lift(op, x, axis)
    last = np.take(x, n - 1, axis)
    ending = last + np.uint8(1)
    if n > 1:
        ending = np.where(last, BEGUN + np.take(x, n - 2, axis), FALSE).astype("u1")
        if where is not None:
            alone = ~np.take(np.broadcast_to(where, x.shape), n - 2, axis)
            ending = np.where(alone, last + np.uint8(1), ending)
    return (ending[()],)


def _lift_lengths(x: Array, axis: int) -> State:
    n = x.shape[axis]
    if n == 0:
        return tuple(
            np.full(np.delete(x.shape, axis), v)[()] for v in RUN_LENGTHS.identity(x.dtype)
        )
    last = np.take(x, n - 1, axis)
    before = np.flip(np.delete(x, n - 1, axis), axis) != 2
    behind = np.argmax(before, axis) if n > 1 else np.zeros(last.shape, "i8")
    behind = np.where(before.any(axis), behind, n - 1)
    length = np.where(last, behind + 1, 0)
    return length[()], (length == n)[()], (last == 2)[()]


def _scan_places(x: Array, out: Array, heads: Array | None, last: list[Array]) -> None:
    (ending,) = last
    longer = np.empty(x.shape, "?")
    np.logical_and(x[:, 1:], x[:, :-1], out=longer[:, 1:])
    longer[:, :1] = x[:, :1] & ((ending == ONE_TRUE) | (ending >= BEGUN))
    if heads is not None:
        longer &= ~heads
    np.add(x.view("u1"), longer.view("u1"), out=out)
    ending[...] = FALSE + x[:, -1:]


def _scan_lengths(op: Operation, x: Array, out: Array, result: Array, last: list[Array]) -> None:
    length, joined, is_open = last
    loops = loops_for("runs", x.size)
    if loops is None:
        _scan(op, x, out, None, last)
        return
    _, n, inner = x.shape
    of_lines = inner <= FEW
    opened = np.where(is_open, length, 0).astype("i8" if of_lines else "f8").reshape(-1)
    measure = loops.measure_lines if of_lines else loops.measure_columns
    to = result.reshape(-1), place(out, result)
    nothing = (np.array([0, 0, np.nan]),)
    measure(memory_and_place(x), to, NO_HEADS, (n, inner), nothing, (opened,))
    length[...], joined[...] = np.maximum(opened.reshape(length.shape), x[:, -1:] > 0), False
    is_open[...] = x[:, -1:] == 2


# Without compiled loops.


def _lift(op: Operation, x: Array, axis: int) -> State:
    if x.shape[axis] == 0:
        kept = x.shape[:axis] + x.shape[axis + 1 :]
        return tuple(np.full(kept, value)[()] for value in op.monoid.identity(op.element))
    if not isinstance(op.monoid, Fill):
        along = (slice(None),) * axis
        states = [
            reduce_along(op.monoid.combine, _states(op, x[(*along, block)]), axis)
            for block in blocks(x.shape, axis)
        ]
        return tuple(field[()] for field in op.combine(states))
    gap = np.argmax(np.flip(x == x, axis), axis, keepdims=True)
    value = np.take_along_axis(x, x.shape[axis] - 1 - gap, axis)
    if op.monoid.fields[1:]:
        gap = np.where(value == value, gap, x.shape[axis])
        gap, value = _limit(op, gap, value)
        return value.squeeze(axis)[()], gap.squeeze(axis)[()]
    return (value.squeeze(axis)[()],)


def _limit(op: Operation, gap: Array, value: Array) -> tuple[Array, Array]:
    assert isinstance(op.monoid, Fill)
    limit = op.monoid.limit
    assert limit is not None
    dtype = op.monoid.fields[1].dtype(op.element)
    return np.minimum(gap, limit + 1).astype(dtype), np.where(
        gap > limit, missing(op.element), value
    )


def _states(op: Operation, x: Array) -> State:
    """Return a state for every element."""
    monoid = op.monoid
    if isinstance(monoid, Runs):
        true, (*_, nothing) = x.astype("i8"), monoid.identity(op.element)
        short = monoid.least > 1 and monoid.statistic != "longest"
        value = np.full_like(true, nothing) if short else true + nothing
        return np.ones_like(true), true, true, value
    if monoid is RUN_LENGTHS:
        return (x > 0).astype("i8"), x > 0, x == 2
    assert isinstance(monoid, WeightedMean | WeightedSum | WeightedSpread)
    valid = x == x
    values, weights = np.where(valid, x, 0).astype(floating(x.dtype)), valid.astype("f8")
    step = np.where(valid | (not monoid.ignore_na), 1 - monoid.alpha, 1.0)
    nothing = np.zeros_like(weights)
    if isinstance(monoid, WeightedSum):
        return values, step, weights
    if isinstance(monoid, WeightedSpread):
        pair = (values.real, values.imag) if monoid.pairs else (values,)
        if monoid.adjust:
            products = (nothing,) * (3 if monoid.pairs else 1)
            return weights, nothing, *pair, *products, step, np.ones_like(step)
        return *(nothing,) * monoid.moments, *pair, weights, step, weights
    if monoid.adjust:
        return values, weights, step, np.ones_like(values)
    return values, weights, np.zeros_like(values), step, weights.copy()


def _scan(op: Operation, x: Array, out: Array, heads: Array | None, last: list[Array]) -> None:
    for block in blocks(x.shape, 1):
        elements = x[:, block].astype(op.element, copy=False)
        flags = None
        if heads is not None:
            flags = np.broadcast_to(heads[:, block], elements.shape)
        step = _fill if isinstance(op.monoid, Fill) else _mean
        results = step(op, elements, flags, [field[:, 0] for field in last])
        with np.errstate(over="ignore"):
            out[:, block] = results[0]
        for field, value in zip(last, results[1], strict=True):
            field[:, 0] = value


def _fill(
    op: Operation, x: Array, flags: Array | None, before: list[Array]
) -> tuple[Array, list[Array]]:
    """Return elements with missing ones filled, and the state behind them."""
    along = np.arange(x.shape[1])[:, np.newaxis]
    valid = np.maximum.accumulate(np.where(x == x, along, -1), 1)
    value = np.take_along_axis(x, np.maximum(valid, 0), 1)
    none, gap = valid < 0, along - valid
    carried = np.broadcast_to(before[0][:, np.newaxis], x.shape)
    if flags is not None:
        start = np.maximum.accumulate(np.where(flags, along, -1), 1)
        carried = np.where(start < 0, carried, missing(op.element))
        value = np.where(valid < start, carried, value)
    value = np.where(none, carried, value)
    if before[1:]:
        gap = np.where(none, gap + before[1][:, np.newaxis], gap)
        gap, value = _limit(op, gap, value)
        return value, [value[:, -1], gap[:, -1]]
    return value, [value[:, -1]]


def _mean(
    op: Operation, x: Array, flags: Array | None, before: list[Array]
) -> tuple[Array, list[Array]]:
    """Return the mean up to each element, and the state behind them."""
    monoid, states, base = op.monoid, _states(op, x), tuple(before)
    combine = monoid.combine
    if flags is not None:
        combine = segmented(monoid).combine
        states, base = (*states, np.array(flags)), (*base, np.zeros(base[0].shape, "?"))
    combined = accumulate(combine, states, 1, base)[: len(before)]
    results = getattr(monoid, "results", run_lengths)
    return results(combined), [field[:, -1] for field in combined]
