"""The loops of gaps.py, compiled by Numba: see loops/scans.py for where lines are in memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.algebra.fills import LEAST
from dask_coop.chunks.numpy.loops.scans import BLOCK, COLUMNS, at, find_segment, restart
from dask_coop.compiled.jit import jit, jit_inner

Array = np.ndarray[Any, Any]
Place = tuple[int, ...]


@jit_inner
def _fill_run(
    x: Array,
    first: int,
    step: int,
    out: Array,
    to: int,
    out_step: int,
    n: int,
    limit: int,
    value: Any,
    gap: int,
) -> tuple[Any, int]:
    nothing, missing = x.dtype.type(np.nan), 0
    if limit < 0:
        for i in range(n):
            element = x[at(first + i * step)]
            value = element if element == element else value
            out[at(to + i * out_step)] = value
        return value, gap
    for i in range(n):
        element = x[at(first + i * step)]
        value = element if element == element else value
        missing += element != element
        out[at(to + i * out_step)] = value
    if missing == 0:
        return value, 0
    # By itself, and so without a branch that would be taken at random.
    for i in range(n):
        element = x[at(first + i * step)]
        gap = (gap + 1) * int(element != element)
        if gap > limit:
            out[at(to + i * out_step)] = nothing
    return value, gap


def _fill_lines(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    limit: int,
    values: Array,
    gaps: Array,
) -> None:
    nothing = x.dtype.type(np.nan)
    blocks = -(-n // BLOCK)
    for part in range(len(values) * blocks):
        group, column = part // (inner * blocks), part % inner
        line = group * inner + column
        begin = part // inner % blocks * BLOCK
        first = place[0] + group * place[1] + column
        to = out_place[0] + group * out_place[1] + column
        mark = flag_place[0] + group * flag_place[1] + column * flag_place[3]
        value, stop = values[line], min(begin + BLOCK, n)
        gap = int(gaps[line]) if limit >= 0 else 0
        while begin < stop:
            end, head = find_segment(flags, mark, flag_place[2], begin, stop)
            value, gap = _fill_run(
                x,
                first + begin * place[2],
                place[2],
                out,
                to + begin * out_place[2],
                out_place[2],
                end - begin,
                limit,
                nothing if head else value,
                gap,
            )
            begin = end
        values[line] = value
        if limit >= 0:
            values[line] = value if gap <= limit else nothing
            gaps[line] = min(gap, limit + 1)


def _fill_columns(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    limit: int,
    values: Array,
    gaps: Array,
) -> None:
    nothing = x.dtype.type(np.nan)
    most = gaps.dtype.type(limit + 1)
    blocks = -(-inner // COLUMNS)
    for part in range(len(values) // inner * blocks):
        group, column = part // blocks, part % blocks * COLUMNS
        value = values[group * inner + column :][: min(COLUMNS, inner - column)]
        gap = gaps[group * inner + column :][: len(value)]
        for row in range(n):
            first = place[0] + group * place[1] + row * place[2] + column
            to = out_place[0] + group * out_place[1] + row * out_place[2] + column
            mark = flag_place[0] + group * flag_place[1] + row * flag_place[2]
            restart(flags, mark + column * flag_place[3], flag_place[3], value, nothing)
            if limit < 0:
                for i in range(len(value)):
                    element = x[at(first + i)]
                    value[i] = element if element == element else value[i]
                    out[at(to + i)] = value[i]
                continue
            for i in range(len(value)):
                element = x[at(first + i)]
                is_valid = element == element
                gap[i] = 0 if is_valid else min(gap[i] + 1, most)
                kept = value[i] if gap[i] < most else nothing
                value[i] = element if is_valid else kept
                out[at(to + i)] = value[i]


def _last_lines(
    x: Array, place: Place, n: int, inner: int, limit: int, values: Array, gaps: Array
) -> None:
    for line in range(len(values)):
        last = place[0] + line // inner * place[1] + line % inner + (n - 1) * place[2]
        gap = 0
        while gap < n and (limit < 0 or gap <= limit):
            element = x[at(last - gap * place[2])]
            if element == element:
                values[line] = element
                break
            gap += 1
        if limit >= 0:
            gaps[line] = gap


def _last_columns(
    x: Array, place: Place, n: int, inner: int, limit: int, values: Array, gaps: Array
) -> None:
    blocks = -(-inner // COLUMNS)
    for part in range(len(values) // inner * blocks):
        group, column = part // blocks, part % blocks * COLUMNS
        value = values[group * inner + column :][: min(COLUMNS, inner - column)]
        gap = gaps[group * inner + column :][: len(value)]
        row, left = n - 1, len(value)
        while row >= 0 and left > 0 and (limit < 0 or n - 1 - row <= limit):
            first = place[0] + group * place[1] + row * place[2] + column
            left = 0
            for i in range(len(value)):
                value[i] = x[at(first + i)] if value[i] != value[i] else value[i]
                left += value[i] != value[i]
            if limit >= 0:
                for i in range(len(value)):
                    gap[i] += value[i] != value[i]
            row -= 1


#: Fill lines of `x` into those of `out`, from `values` and `gaps` on, which become those behind the
#: last elements; with a negative limit there are no gaps.
fill_lines: Final = jit(_fill_lines)
fill_columns: Final = jit(_fill_columns)

#: Find the last valid elements of lines, and how many missing ones are behind: from the end on.
last_lines: Final = jit(_last_lines)
last_columns: Final = jit(_last_columns)


@jit_inner
def _mean_run(
    x: Array,
    first: int,
    step: int,
    out: Array,
    to: int,
    out_step: int,
    n: int,
    kept: float,
    start: float,
    adjust: bool,
    ignore: bool,
    mean: float,
    weight: float,
    left: float,
) -> tuple[float, float, float]:
    # Nothing waits for a division but what comes behind a gap.
    total, in_gap, writes = 0.0, True, len(out) > 0
    for i in range(n):
        element = np.float64(x[at(first + i * step)])
        if element == element:
            before = weight * kept
            if weight == 0:
                total, weight = element * start, start
            elif not in_gap:
                total, weight = total * kept + element, before + 1
            else:
                before = max(before * left, LEAST)
                total, weight = mean * before + element, before + 1
                if not adjust:
                    total, weight = total / weight * start, start
            mean = total / weight
            left, in_gap = 1.0, False
        elif not ignore:
            left, in_gap = left * kept, True
        if writes:
            out[at(to + i * out_step)] = mean if weight > 0 else np.nan
    return mean, weight, left


def _mean_lines(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    alpha: float,
    adjust: bool,
    ignore: bool,
    means: Array,
    weights: Array,
    gaps: Array,
) -> None:
    kept, start = max(1 - alpha, LEAST), 1.0 if adjust else 1 / alpha
    blocks = -(-n // BLOCK)
    for part in range(len(means) * blocks):
        group, column = part // (inner * blocks), part % inner
        line = group * inner + column
        begin = part // inner % blocks * BLOCK
        first = place[0] + group * place[1] + column
        to = out_place[0] + group * out_place[1] + column
        mark = flag_place[0] + group * flag_place[1] + column * flag_place[3]
        mean, weight, left = means[line], weights[line] * start, gaps[line]
        stop = min(begin + BLOCK, n)
        while begin < stop:
            end, head = find_segment(flags, mark, flag_place[2], begin, stop)
            mean, weight, left = _mean_run(
                x,
                first + begin * place[2],
                place[2],
                out,
                to + begin * out_place[2],
                out_place[2],
                end - begin,
                kept,
                start,
                adjust,
                ignore,
                0.0 if head else mean,
                0.0 if head else weight,
                left,
            )
            begin = end
        means[line], weights[line], gaps[line] = mean, weight / start, left


def _mean_columns(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    alpha: float,
    adjust: bool,
    ignore: bool,
    means: Array,
    weights: Array,
    gaps: Array,
) -> None:
    kept = max(1 - alpha, LEAST)
    new = 1.0 if adjust else alpha
    blocks = -(-inner // COLUMNS)
    for part in range(len(means) // inner * blocks):
        group, column = part // blocks, part % blocks * COLUMNS
        mean = means[group * inner + column :][: min(COLUMNS, inner - column)]
        weight = weights[group * inner + column :][: len(mean)]
        gap = gaps[group * inner + column :][: len(mean)]
        for row in range(n):
            first = place[0] + group * place[1] + row * place[2] + column
            to = out_place[0] + group * out_place[1] + row * out_place[2] + column
            mark = flag_place[0] + group * flag_place[1] + row * flag_place[2]
            mark += column * flag_place[3]
            restart(flags, mark, flag_place[3], mean, 0.0)
            restart(flags, mark, flag_place[3], weight, 0.0)
            for i in range(len(mean)):
                element = np.float64(x[at(first + i)])
                is_valid = element == element
                before = max(weight[i] * (gap[i] * kept), LEAST) if weight[i] > 0 else 0.0
                own = new if weight[i] > 0 else 1.0
                after = before + own
                moved = (before * mean[i] + own * element) / after
                mean[i] = moved if is_valid else mean[i]
                left = gap[i] if ignore else gap[i] * kept
                gap[i] = 1.0 if is_valid else left
                weight[i] = (after if adjust else 1.0) if is_valid else weight[i]
            if len(out):
                for i in range(len(mean)):
                    out[at(to + i)] = mean[i] if weight[i] > 0 else np.nan


@jit_inner
def _advance(
    element: float,
    alpha: float,
    ignore: bool,
    first: float,
    shared: float,
    rest: float,
    lead: float,
    weight: float,
) -> tuple[float, float, float, float, float]:
    kept = 1 - alpha
    if element == element:
        if shared == 0:
            return element, 1.0, 0.0, lead * kept, 1.0
        before = max(weight * kept, LEAST)
        share = before / (before + alpha)
        rest = share * rest + alpha / (before + alpha) * element
        # Arithmetic is slow where numbers are smaller.
        shared = shared * share if shared > 1e-307 else shared
        return first, shared, rest, lead, 1.0
    if ignore:
        return first, shared, rest, lead, weight
    if shared == 0:
        return first, shared, rest, lead * kept, weight
    return first, shared, rest, lead, max(weight * kept, LEAST)


def _lift_lines(
    x: Array, place: Place, n: int, inner: int, alpha: float, ignore: bool, states: Array
) -> None:
    for line in range(states.shape[1]):
        at_first = place[0] + line // inner * place[1] + line % inner
        state = 0.0, 0.0, 0.0, 1.0, 0.0
        for i in range(n):
            element = np.float64(x[at(at_first + i * place[2])])
            state = _advance(element, alpha, ignore, *state)
        for field in range(5):
            states[field, line] = state[field]


def _lift_columns(
    x: Array, place: Place, n: int, inner: int, alpha: float, ignore: bool, states: Array
) -> None:
    states[:] = 0
    states[3] = 1
    first, shared, rest, lead, weight = states
    for group in range(states.shape[1] // inner):
        for row in range(n):
            here = place[0] + group * place[1] + row * place[2]
            for i in range(inner):
                line = group * inner + i
                element = np.float64(x[at(here + i)])
                (first[line], shared[line], rest[line], lead[line], weight[line]) = _advance(
                    element,
                    alpha,
                    ignore,
                    first[line],
                    shared[line],
                    rest[line],
                    lead[line],
                    weight[line],
                )


#: Put exponentially weighted means of lines of `x` into those of `out`, unless that is empty, from
#: `means`, their `weights` and what `gaps` leave of these on, which become those of the last.
mean_lines: Final = jit(_mean_lines)
mean_columns: Final = jit(_mean_columns)

#: Make states of lines of `x` by which recursive means combine.
lift_lines: Final = jit(_lift_lines)
lift_columns: Final = jit(_lift_columns)
