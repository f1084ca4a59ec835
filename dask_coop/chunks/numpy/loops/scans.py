"""The loops of scan.py for sums, products and extrema, compiled by Numba; and what others share.

An array of (outer, n, inner) comes as its memory and its *place* there: where the first element of
a scan is, and how many elements it is to the next group of `inner` lines, and to the next of a
line, which is negative where lines are scanned from their ends. So a loop is compiled once for the
dtypes of elements and results, whatever the layout. Lines of a group are neighbours in memory: few
are scanned one by one, a block at a time, and many side by side, row after row of them.

Head flags have a place with one number more: how many flags it is to the next line of a group.
There are no flags where no line restarts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.compiled.jit import jit, jit_inner

Array = np.ndarray[Any, Any]
Place = tuple[int, ...]

#: Elements of a line that are scanned before those of its neighbours are, and lines whose states
#: stay in a cache.
BLOCK, COLUMNS = 1 << 12, 1 << 11

#: The type of indices into memory: Numba takes a negative one to count from the end.
at = np.uint64


@jit_inner
def restart(flags: Array, first: int, step: int, values: Array, nothing: Any) -> None:
    """Set values of neighbours to `nothing` where their flags are set; or one, with no step."""
    if len(flags) == 0:
        return
    if step:
        for i in range(len(values)):
            values[i] = nothing if flags[at(first + i)] else values[i]
    elif flags[at(first)]:
        values[:] = nothing


@jit_inner
def find_segment(flags: Array, mark: int, step: int, begin: int, stop: int) -> tuple[int, bool]:
    """Return where the next segment of a line begins, or `stop`, and whether one does at `begin`.

    The flags of the line are `step` apart, from `mark` on.
    """
    if len(flags) == 0:
        return stop, False
    end = begin + 1
    while end < stop and not flags[at(mark + end * step)]:
        end += 1
    return end, flags[at(mark + begin * step)] != 0


@jit_inner
def _add_run(
    x: Array,
    first: int,
    step: int,
    out: Array,
    to: int,
    out_step: int,
    n: int,
    exclusive: bool,
    multiply: bool,
    skip: bool,
    nothing: Any,
    total: Any,
) -> Any:
    neutral = x.dtype.type(multiply)
    # Eight are added to one another, and then to the total, all at the same time. A product of
    # eight may overflow where that with the total does not.
    eights = 0 if exclusive or multiply or skip else n // 8 * 8
    for i in range(first, first + eights * step, 8 * step):
        # What changes nothing makes a float64 of a float32.
        a = nothing + x[at(i)]
        b = a + x[at(i + step)]
        c = b + x[at(i + 2 * step)]
        d = c + x[at(i + 3 * step)]
        e = d + x[at(i + 4 * step)]
        f = e + x[at(i + 5 * step)]
        g = f + x[at(i + 6 * step)]
        h = g + x[at(i + 7 * step)]
        out[at(to)], out[at(to + out_step)] = a + total, b + total
        out[at(to + 2 * out_step)], out[at(to + 3 * out_step)] = c + total, d + total
        out[at(to + 4 * out_step)], out[at(to + 5 * out_step)] = e + total, f + total
        out[at(to + 6 * out_step)], out[at(to + 7 * out_step)] = g + total, h + total
        total += h
        to += 8 * out_step
    first += eights * step
    for i in range(n - eights):
        value = x[at(first + i * step)]
        value = neutral if skip and value != value else value
        before = total
        total = total * value if multiply else total + value
        out[at(to + i * out_step)] = before if exclusive else total
    return total


@jit_inner
def _extreme_run(
    x: Array,
    first: int,
    step: int,
    out: Array,
    to: int,
    out_step: int,
    n: int,
    exclusive: bool,
    least: bool,
    ignore: bool,
    best: Any,
) -> Any:
    i = 0
    if best != best and ignore:
        while i < n and best != best:
            before, best = best, x[at(first + i * step)]
            out[at(to + i * out_step)] = before if exclusive else best
            i += 1
    stop = i if best != best else n
    # Without a branch, of which there are two so that each is one instruction.
    if least:
        for k in range(i, stop):
            before, value = best, x[at(first + k * step)]
            if value != value and not ignore:
                stop = k
                break
            best = value if value < best else best
            out[at(to + k * out_step)] = before if exclusive else best
    else:
        for k in range(i, stop):
            before, value = best, x[at(first + k * step)]
            if value != value and not ignore:
                stop = k
                break
            best = value if value > best else best
            out[at(to + k * out_step)] = before if exclusive else best
    for k in range(stop, n):
        # Nothing comes after a NaN that counts.
        before = best
        best = best if best != best else x[at(first + k * step)]
        out[at(to + k * out_step)] = before if exclusive else best
    return best


def _add_lines(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    exclusive: bool,
    multiply: bool,
    skip: bool,
    nothing: Any,
    identity: Any,
    totals: Array,
) -> None:
    blocks = -(-n // BLOCK)
    for part in range(len(totals) * blocks):
        group, column = part // (inner * blocks), part % inner
        begin = part // inner % blocks * BLOCK
        first = place[0] + group * place[1] + column
        to = out_place[0] + group * out_place[1] + column
        mark = flag_place[0] + group * flag_place[1] + column * flag_place[3]
        total, stop = totals[group * inner + column], min(begin + BLOCK, n)
        while begin < stop:
            end, head = find_segment(flags, mark, flag_place[2], begin, stop)
            total = _add_run(
                x,
                first + begin * place[2],
                place[2],
                out,
                to + begin * out_place[2],
                out_place[2],
                end - begin,
                exclusive,
                multiply,
                skip,
                nothing,
                nothing if head else total,
            )
            if head and exclusive:
                out[at(to + begin * out_place[2])] = identity
            begin = end
        totals[group * inner + column] = total


def _extreme_lines(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    exclusive: bool,
    least: bool,
    ignore: bool,
    identity: Any,
    totals: Array,
) -> None:
    blocks = -(-n // BLOCK)
    for part in range(len(totals) * blocks):
        group, column = part // (inner * blocks), part % inner
        begin = part // inner % blocks * BLOCK
        first = place[0] + group * place[1] + column
        to = out_place[0] + group * out_place[1] + column
        mark = flag_place[0] + group * flag_place[1] + column * flag_place[3]
        best, stop = totals[group * inner + column], min(begin + BLOCK, n)
        while begin < stop:
            end, head = find_segment(flags, mark, flag_place[2], begin, stop)
            best = _extreme_run(
                x,
                first + begin * place[2],
                place[2],
                out,
                to + begin * out_place[2],
                out_place[2],
                end - begin,
                exclusive,
                least,
                ignore,
                identity if head else best,
            )
            begin = end
        totals[group * inner + column] = best


def _add_columns(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    exclusive: bool,
    multiply: bool,
    skip: bool,
    nothing: Any,
    identity: Any,
    totals: Array,
) -> None:
    neutral = x.dtype.type(multiply)
    blocks = -(-inner // COLUMNS)
    for part in range(len(totals) // inner * blocks):
        group, column = part // blocks, part % blocks * COLUMNS
        total = totals[group * inner + column :][: min(COLUMNS, inner - column)]
        for row in range(n):
            first = place[0] + group * place[1] + row * place[2] + column
            to = out_place[0] + group * out_place[1] + row * out_place[2] + column
            mark = flag_place[0] + group * flag_place[1] + row * flag_place[2]
            mark += column * flag_place[3]
            restart(flags, mark, flag_place[3], total, nothing)
            for i in range(len(total)):
                value, before = x[at(first + i)], total[i]
                value = neutral if skip and value != value else value
                total[i] = before * value if multiply else before + value
                out[at(to + i)] = before if exclusive else total[i]
            if exclusive:
                restart(flags, mark, flag_place[3], out[to:][: len(total)], identity)


def _extreme_columns(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    exclusive: bool,
    least: bool,
    ignore: bool,
    identity: Any,
    totals: Array,
) -> None:
    blocks = -(-inner // COLUMNS)
    for part in range(len(totals) // inner * blocks):
        group, column = part // blocks, part % blocks * COLUMNS
        best = totals[group * inner + column :][: min(COLUMNS, inner - column)]
        for row in range(n):
            first = place[0] + group * place[1] + row * place[2] + column
            to = out_place[0] + group * out_place[1] + row * out_place[2] + column
            mark = flag_place[0] + group * flag_place[1] + row * flag_place[2]
            restart(flags, mark + column * flag_place[3], flag_place[3], best, identity)
            for i in range(len(best)):
                value, before = x[at(first + i)], best[i]
                nan = before != before if ignore else value != value
                better = value < before if least else value > before
                best[i] = value if better or nan else before
                out[at(to + i)] = before if exclusive else best[i]


#: Scan lines of `x` into those of `out`, from `totals` on, which become those of all; restart from
#: `nothing` at flags, where an exclusive result is `identity`. With `skip`, NaN change no total.
add_lines: Final = jit(_add_lines)
add_columns: Final = jit(_add_columns)

#: Scan for the largest element, or the `least`; with `ignore`, for that among others than NaN.
extreme_lines: Final = jit(_extreme_lines)
extreme_columns: Final = jit(_extreme_columns)
