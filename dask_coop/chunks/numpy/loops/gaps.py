"""The loops of gaps.py, compiled by Numba."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.algebra.fills import LEAST, TINY
from dask_coop.chunks.numpy.loops.walkers import (
    COLUMNS,
    Placed,
    at,
    enter_three,
    enter_two,
    loop_of,
    restart,
    scan_columns,
    scan_lines,
)
from dask_coop.compiled.jit import jit, jit_step

Array = np.ndarray[Any, Any]

#: The statistics of weighted moments.
VAR, STD, COV, CORR = range(4)


@jit_step
def _fill(source: Any, target: Any, segment: Any, options: Any, states: Any, line: int) -> None:
    (x, first, step), (out, to, out_step), (n, head) = source, target, segment
    (limit,), (values, gaps) = options, states
    nothing, missing = x.dtype.type(np.nan), 0
    value = nothing if head else values[line]
    if limit < 0:
        for i in range(n):
            element = x[at(first + i * step)]
            value = element if element == element else value
            out[at(to + i * out_step)] = value
        values[line] = value
        return
    for i in range(n):
        element = x[at(first + i * step)]
        value = element if element == element else value
        missing += element != element
        out[at(to + i * out_step)] = value
    gap = int(gaps[line]) if missing else 0
    # A loop by itself, without a branch that would be taken at random.
    for i in range(n if missing else 0):
        element = x[at(first + i * step)]
        gap = (gap + 1) * int(element != element)
        if gap > limit:
            out[at(to + i * out_step)] = nothing
    values[line], gaps[line] = value if gap <= limit else nothing, min(gap, limit + 1)


# Written out: as a row of the walk over columns, as other loops are, it took up to twice as long.
def _fill_columns(
    source: Placed,
    target: Placed,
    heads: Placed,
    shape: tuple[int, int],
    options: tuple[int],
    states: tuple[Array, Array],
) -> None:
    (x, place), (out, out_place), (flags, marks) = source, target, heads
    (n, inner), (limit,), (values, gaps) = shape, options, states
    nothing = x.dtype.type(np.nan)
    most = gaps.dtype.type(limit + 1)
    blocks = -(-inner // COLUMNS)
    for tile in range(len(values) // inner * blocks):
        group, column = tile // blocks, tile % blocks * COLUMNS
        value = values[group * inner + column :][: min(COLUMNS, inner - column)]
        gap = gaps[group * inner + column :][: len(value)]
        for row in range(n):
            first = place[0] + group * place[1] + row * place[2] + column
            to = out_place[0] + group * out_place[1] + row * out_place[2] + column
            mark = marks[0] + group * marks[1] + row * marks[2] + column * marks[3]
            restart((flags, mark, marks[3]), value, nothing)
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


def _last_lines(source: Placed, shape: tuple[int, int], limit: int, states: Any) -> None:
    (x, place), (n, inner), (values, gaps) = source, shape, states
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


def _last_columns(source: Placed, shape: tuple[int, int], limit: int, states: Any) -> None:
    (x, place), (n, inner), (values, gaps) = source, shape, states
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


@jit_step
def _average(source: Any, target: Any, segment: Any, options: Any, states: Any, line: int) -> None:
    (x, first, step), (out, to, out_step), (n, head) = source, target, segment
    kept, start, _, adjust, ignore = options
    means, weights, gaps = states
    mean, weight = 0.0 if head else means[line], 0.0 if head else weights[line] * start
    # Only elements behind a gap wait for a division.
    left, total, in_gap, writes = gaps[line], 0.0, True, len(out) > 0
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
    means[line], weights[line], gaps[line] = mean, weight / start, left


@jit_step
def _average_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    (x, first), (out, to), (mean, weight, gap) = source, target, states
    kept, _, new, adjust, ignore = options
    restart(heads, mean, 0.0)
    restart(heads, weight, 0.0)
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
    for i in range(len(mean) if len(out) else 0):
        out[at(to + i)] = mean[i] if weight[i] > 0 else np.nan


@jit_step
def _add_up(source: Any, target: Any, segment: Any, options: Any, states: Any, line: int) -> None:
    (x, first, step), (out, to, out_step), (n, head) = source, target, segment
    (kept, ignore), (totals, some) = options, states
    total, seen, writes = 0.0 if head else totals[line], some[line] > 0 and not head, len(out) > 0
    for i in range(n):
        element = np.float64(x[at(first + i * step)])
        is_valid = element == element
        total = total if ignore and not is_valid else total * kept
        total = total + element if is_valid else total
        seen = seen or is_valid
        if writes:
            out[at(to + i * out_step)] = total if seen else np.nan
    totals[line], some[line] = total, 1.0 if seen else 0.0


@jit_step
def _add_up_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    (x, first), (out, to), (kept, ignore), (totals, some) = source, target, options, states
    restart(heads, totals, 0.0)
    restart(heads, some, 0.0)
    for i in range(len(totals)):
        element = np.float64(x[at(first + i)])
        is_valid = element == element
        faded = totals[i] if ignore and not is_valid else totals[i] * kept
        totals[i] = faded + element if is_valid else faded
        some[i] = 1.0 if is_valid else some[i]
    for i in range(len(totals) if len(out) else 0):
        out[at(to + i)] = totals[i] if some[i] > 0 else np.nan


@jit_step
def _deviate(element: Any, options: Any, state: Any) -> Any:
    """Return the weighted moments of a line after one more element, which may be a pair."""
    kept, new, adjust, ignore, _, _ = options
    weight, cross, x, y, xx, xy, yy, gap = state
    u, v = np.float64(element.real), np.float64(element.imag)
    if u != u or v != v:
        return weight, cross, x, y, xx, xy, yy, gap if ignore else gap * kept
    left = gap * kept
    before = weight * left
    if before < TINY:
        # Zero times an infinite mean is NaN, which the new mean keeps.
        u, v = (u + 0 * x, v + 0 * y) if weight > 0 else (u, v)
        return 1.0, 0.0, u, v, 0.0, 0.0, 0.0, 1.0
    after = before + new
    share, rest, dx, dy = new / after, before / after, u - x, v - y
    x, y = x + share * dx, y + share * dy
    xx, xy = rest * (xx + share * dx * dx), rest * (xy + share * dx * dy)
    yy = rest * (yy + share * dy * dy)
    cross = cross * left * left + 2 * before * new
    if adjust:
        return after, cross, x, y, xx, xy, yy, 1.0
    return 1.0, cross / (after * after), x, y, xx, xy, yy, 1.0


@jit_step
def _spread(state: Any, options: Any) -> Any:
    """Return the statistic of weighted moments."""
    weight, cross, x, y, xx, xy, yy, _ = state
    _, _, _, _, kind, bias = options
    if weight == 0:
        return np.nan
    # NaN unless all elements are finite.
    nothing = 0 * x + 0 * y
    if kind == CORR:
        return xy / np.sqrt(xx * yy) + nothing if xx * yy >= TINY else np.nan
    value = (xy if kind == COV else xx) + nothing
    if not bias:
        value = value * weight * weight / cross if cross > 0 else np.nan
    return np.sqrt(value) if kind == STD else value


@jit_step
def _spread_line(
    source: Any, target: Any, segment: Any, options: Any, states: Any, line: int
) -> None:
    (x, first, step), (out, to, out_step), (n, head) = source, target, segment
    a, b, c, d, e, f, g, h = states
    weight = 0.0 if head else a[line]
    state = weight, b[line], c[line], d[line], e[line], f[line], g[line], h[line]
    for i in range(n):
        state = _deviate(x[at(first + i * step)], options, state)
        if len(out):
            out[at(to + i * out_step)] = _spread(state, options)
    a[line], b[line], c[line], d[line], e[line], f[line], g[line], h[line] = state


@jit_step
def _spread_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    (x, first), (out, to) = source, target
    a, b, c, d, e, f, g, h = states
    restart(heads, a, 0.0)
    for i in range(len(a)):
        state = a[i], b[i], c[i], d[i], e[i], f[i], g[i], h[i]
        state = _deviate(x[at(first + i)], options, state)
        a[i], b[i], c[i], d[i], e[i], f[i], g[i], h[i] = state
        if len(out):
            out[at(to + i)] = _spread(state, options)


@jit_step
def _enter_eight(states: Any, first: int, width: int, options: Any) -> Any:
    a, b, c, d, e, f, g, h = states
    last = first + width
    half = a[first:last], b[first:last], c[first:last], d[first:last]
    return half + (e[first:last], f[first:last], g[first:last], h[first:last])  # noqa: RUF005


@jit_step
def _advance(element: float, options: Any, state: Any) -> Any:
    """Return the state of a line after one more element."""
    (alpha, ignore), (first, shared, rest, lead, weight) = options, state
    kept = 1 - alpha
    if element == element:
        if shared == 0:
            return element, 1.0, 0.0, lead * kept, 1.0
        before = max(weight * kept, LEAST)
        share = before / (before + alpha)
        rest = share * rest + alpha / (before + alpha) * element
        # Arithmetic on subnormal numbers is slow.
        shared = shared * share if shared > 1e-307 else shared
        return first, shared, rest, lead, 1.0
    if ignore:
        return first, shared, rest, lead, weight
    if shared == 0:
        return first, shared, rest, lead * kept, weight
    return first, shared, rest, lead, max(weight * kept, LEAST)


@jit_step
def _lift(source: Any, target: Any, segment: Any, options: Any, states: Any, line: int) -> None:
    (x, first, step), (n, _) = source, segment
    a, b, c, d, e = states
    state = a[line], b[line], c[line], d[line], e[line]
    for i in range(n):
        state = _advance(np.float64(x[at(first + i * step)]), options, state)
    a[line], b[line], c[line], d[line], e[line] = state


@jit_step
def _enter(states: Any, first: int, width: int, options: Any) -> Any:
    return states, first, width


@jit_step
def _lift_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    (x, first), ((a, b, c, d, e), begin, width) = source, states
    for i in range(width):
        line = begin + i
        state = a[line], b[line], c[line], d[line], e[line]
        element = np.float64(x[at(first + i)])
        a[line], b[line], c[line], d[line], e[line] = _advance(element, options, state)


#: Fill gaps, starting from ``values, gaps``, which become the state behind the last elements. The
#: option is the limit; with a negative one, gaps are not counted.
fill_lines: Final = loop_of(scan_lines, "fill_lines", run=_fill)
fill_columns: Final = jit(_fill_columns, allocates=False)

#: Find the last valid elements of lines, from the end on, and the number of missing ones behind.
last_lines: Final = jit(_last_lines)
last_columns: Final = jit(_last_columns)

#: Find exponentially weighted means, starting from ``means, weights, gaps``, and write them if
#: there is room. `gaps` are the factors by which missing elements reduce weights. The options are
#: ``kept, start, new, adjust, ignore``: the factor by which an element reduces earlier weights, the
#: weight of a first element, which is the unit of lines' weights, and the weight of other elements.
mean_lines: Final = loop_of(scan_lines, "mean_lines", run=_average)
mean_columns: Final = loop_of(scan_columns, "mean_columns", row=_average_row, enter=enter_three)

#: Add up by weights, starting from ``totals, some``: sums, and whether there are elements. The
#: options are ``kept, ignore``.
total_lines: Final = loop_of(scan_lines, "total_lines", run=_add_up)
total_columns: Final = loop_of(scan_columns, "total_columns", row=_add_up_row, enter=enter_two)

#: Find a spread, starting from ``weight, cross, x, y, xx, xy, yy, gap``: the sum of weights, twice
#: that of products of two, means, mean products of deviations, and what gaps leave of weights.
#: The options are ``kept, new, adjust, ignore, kind, bias``.
spread_lines: Final = loop_of(scan_lines, "spread_lines", run=_spread_line)
spread_columns: Final = loop_of(scan_columns, "spread_columns", row=_spread_row, enter=_enter_eight)

#: Make the states that combine recursive means, starting from identities.
lift_lines: Final = loop_of(scan_lines, "lift_lines", run=_lift)
lift_columns: Final = loop_of(scan_columns, "lift_columns", row=_lift_row, enter=_enter)
