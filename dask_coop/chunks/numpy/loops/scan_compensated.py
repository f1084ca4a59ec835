"""The loops of scan.py for sums that keep what additions round off, compiled by Numba.

Without fastmath, which would find that the error of an addition is zero. Arrays and their places
are those of loops/scans.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.chunks.numpy.loops.compensated import two_sum
from dask_coop.chunks.numpy.loops.scans import BLOCK, COLUMNS, Place, at, find_segment, restart
from dask_coop.compiled.jit import jit, jit_inner

Array = np.ndarray[Any, Any]


@jit_inner
def _settle(total: Any, excess: Any) -> Any:
    exact = total - excess
    return exact if exact - exact == 0 else total


@jit_inner
def _element(x: Array, i: int, skip: bool, nothing: Any) -> Any:
    # What changes nothing makes a float64 of a float32; less itself, it is a positive zero.
    value = nothing + x[at(i)]
    return nothing - nothing if skip and value != value else value


@jit_inner
def _eights(
    x: Array,
    first: int,
    step: int,
    out: Array,
    to: int,
    out_step: int,
    n: int,
    skip: bool,
    nothing: Any,
    total: Any,
    excess: Any,
) -> tuple[Any, ...]:
    """Scan eight elements at a time while sums are finite.

    The eight are added to one another, and then to the total, all at the same time. Return how
    many were scanned, and the state there.
    """
    for done in range(0, n // 8 * 8, 8):
        i, k = first + done * step, to + done * out_step
        a = _element(x, i, skip, nothing)
        b = a + _element(x, i + step, skip, nothing)
        c = b + _element(x, i + 2 * step, skip, nothing)
        d = c + _element(x, i + 3 * step, skip, nothing)
        e = d + _element(x, i + 4 * step, skip, nothing)
        f = e + _element(x, i + 5 * step, skip, nothing)
        g = f + _element(x, i + 6 * step, skip, nothing)
        h = g + _element(x, i + 7 * step, skip, nothing)
        after, error = two_sum(total, h)
        error += excess
        a, b, c = (a - excess) + total, (b - excess) + total, (c - excess) + total
        d, e, f = (d - excess) + total, (e - excess) + total, (f - excess) + total
        g, h = (g - excess) + total, after - error
        # Where one is not finite, neither is the sum.
        checked = ((a + b) + (c + d)) + ((e + f) + (g + h))
        if checked - checked != 0:
            return done, total, excess
        out[at(k)], out[at(k + out_step)] = a, b
        out[at(k + 2 * out_step)], out[at(k + 3 * out_step)] = c, d
        out[at(k + 4 * out_step)], out[at(k + 5 * out_step)] = e, f
        out[at(k + 6 * out_step)], out[at(k + 7 * out_step)] = g, h
        total, excess = after, error
    return n // 8 * 8, total, excess


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
    skip: bool,
    nothing: Any,
    total: Any,
    excess: Any,
) -> tuple[Any, ...]:
    done = 0
    while done < n:
        if exclusive:
            # Sums of all but the last, one place further on.
            out[at(to + done * out_step)] = _settle(total, excess)
        shift = done + exclusive
        i, k = first + done * step, to + shift * out_step
        scanned, total, excess = _eights(
            x, i, step, out, k, out_step, n - shift, skip, nothing, total, excess
        )
        done += scanned
        for i in range(done, min(done + 8, n)):
            if exclusive:
                out[at(to + i * out_step)] = _settle(total, excess)
            total, error = two_sum(total, _element(x, first + i * step, skip, nothing))
            excess += error
            if not exclusive:
                out[at(to + i * out_step)] = _settle(total, excess)
        done = min(done + 8, n)
    return total, excess


def _scan_lines(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    exclusive: bool,
    skip: bool,
    nothing: Any,
    totals: Array,
    excesses: Array,
) -> None:
    zero = totals.dtype.type(0)
    blocks = -(-n // BLOCK)
    for part in range(len(totals) * blocks):
        group, column = part // (inner * blocks), part % inner
        begin = part // inner % blocks * BLOCK
        stop, number = min(begin + BLOCK, n), group * inner + column
        first = place[0] + group * place[1] + column
        to = out_place[0] + group * out_place[1] + column
        mark = flag_place[0] + group * flag_place[1] + column * flag_place[3]
        total, excess = totals[number], excesses[number]
        while begin < stop:
            end, head = find_segment(flags, mark, flag_place[2], begin, stop)
            total, excess = _add_run(
                x,
                first + begin * place[2],
                place[2],
                out,
                to + begin * out_place[2],
                out_place[2],
                end - begin,
                exclusive,
                skip,
                nothing,
                nothing if head else total,
                zero if head else excess,
            )
            if head and exclusive:
                out[at(to + begin * out_place[2])] = zero
            begin = end
        totals[number], excesses[number] = total, excess


def _scan_columns(
    x: Array,
    place: Place,
    out: Array,
    out_place: Place,
    flags: Array,
    flag_place: Place,
    n: int,
    inner: int,
    exclusive: bool,
    skip: bool,
    nothing: Any,
    totals: Array,
    excesses: Array,
) -> None:
    zero = totals.dtype.type(0)
    blocks = -(-inner // COLUMNS)
    for part in range(len(totals) // inner * blocks):
        group, column = part // blocks, part % blocks * COLUMNS
        width = min(COLUMNS, inner - column)
        total = totals[group * inner + column :][:width]
        excess = excesses[group * inner + column :][:width]
        for row in range(n):
            first = place[0] + group * place[1] + row * place[2] + column
            to = out_place[0] + group * out_place[1] + row * out_place[2] + column
            mark = flag_place[0] + group * flag_place[1] + row * flag_place[2]
            mark += column * flag_place[3]
            restart(flags, mark, flag_place[3], total, nothing)
            restart(flags, mark, flag_place[3], excess, zero)
            for i in range(width):
                before = _settle(total[i], excess[i])
                total[i], error = two_sum(total[i], _element(x, first + i, skip, nothing))
                excess[i] += error
                out[at(to + i)] = before if exclusive else _settle(total[i], excess[i])
            if exclusive:
                restart(flags, mark, flag_place[3], out[to:][:width], zero)


#: Scan lines of `x` into those of `out`, from `totals` and `excesses` on, which become those of
#: all; restart from `nothing` at flags. With `skip`, NaN are zero.
scan_lines: Final = jit(_scan_lines)
scan_columns: Final = jit(_scan_columns)
