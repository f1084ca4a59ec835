"""The loops of scan.py for sums, products and extrema, and for sums with their rounding errors.

The latter have no fastmath, which would simplify the error of an addition to zero.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.chunks.numpy.loops.compensated import two_sum
from dask_coop.chunks.numpy.loops.walkers import (
    at,
    enter_two,
    loop_of,
    restart,
    restart_inline,
    scan_columns,
    scan_lines,
)
from dask_coop.compiled.jit import jit_step

Array = np.ndarray[Any, Any]


@jit_step
def _add(source: Any, target: Any, segment: Any, options: Any, states: Any, line: int) -> None:
    (x, first, step), (out, start, out_step), (n, head) = source, target, segment
    exclusive, multiply, skip, nothing, identity = options
    total, to, neutral = nothing if head else states[0][line], start, x.dtype.type(multiply)
    # Eight elements are added to one another and then to the total, all at the same time. A product
    # of eight may overflow where that with the total does not.
    eights = 0 if exclusive or multiply or skip else n // 8 * 8
    for i in range(first, first + eights * step, 8 * step):
        # Adding the identity converts float32 to float64.
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
    if head and exclusive:
        out[at(start)] = identity
    states[0][line] = total


@jit_step
def _add_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    (x, first), (out, to), (total,) = source, target, states
    exclusive, multiply, skip, nothing, identity = options
    neutral = x.dtype.type(multiply)
    restart(heads, total, nothing)
    for i in range(len(total)):
        value, before = x[at(first + i)], total[i]
        value = neutral if skip and value != value else value
        total[i] = before * value if multiply else before + value
        out[at(to + i)] = before if exclusive else total[i]
    if exclusive:
        restart(heads, out[to:][: len(total)], identity)


@jit_step
def _extreme(source: Any, target: Any, segment: Any, options: Any, states: Any, line: int) -> None:
    (x, first, step), (out, to, out_step), (n, head) = source, target, segment
    exclusive, least, ignore, identity = options
    best, i = identity if head else states[0][line], 0
    if best != best and ignore:
        while i < n and best != best:
            before, best = best, x[at(first + i * step)]
            out[at(to + i * out_step)] = before if exclusive else best
            i += 1
    stop = i if best != best else n
    # Select without a branch; two loops make each selection a single instruction.
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
        # Behind a NaN that counts, all results are NaN.
        before = best
        best = best if best != best else x[at(first + k * step)]
        out[at(to + k * out_step)] = before if exclusive else best
    states[0][line] = best


@jit_step
def _extreme_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    (x, first), (out, to), (best,) = source, target, states
    exclusive, least, ignore, identity = options
    restart(heads, best, identity)
    for i in range(len(best)):
        value, before = x[at(first + i)], best[i]
        nan = before != before if ignore else value != value
        better = value < before if least else value > before
        best[i] = value if better or nan else before
        out[at(to + i)] = before if exclusive else best[i]


@jit_step
def _settle(total: Any, excess: Any) -> Any:
    exact = total - excess
    return exact if exact - exact == 0 else total


@jit_step
def _element(x: Array, i: int, skip: bool, nothing: Any) -> Any:
    # Converts float32 to float64 without a change; NaN becomes a positive zero.
    value = nothing + x[at(i)]
    return nothing - nothing if skip and value != value else value


@jit_step
def _eights(
    source: Any, target: Any, n: int, options: Any, total: Any, excess: Any
) -> tuple[Any, ...]:
    """Scan eight elements at a time while sums are finite.

    The eight are added to one another and then to the total, all at the same time. Return the
    number of scanned elements, and the state there.
    """
    (x, first, step), (out, to, out_step), (_, skip, nothing) = source, target, options
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
        # If an element is not finite, neither is the sum.
        checked = ((a + b) + (c + d)) + ((e + f) + (g + h))
        if checked - checked != 0:
            return done, total, excess
        out[at(k)], out[at(k + out_step)] = a, b
        out[at(k + 2 * out_step)], out[at(k + 3 * out_step)] = c, d
        out[at(k + 4 * out_step)], out[at(k + 5 * out_step)] = e, f
        out[at(k + 6 * out_step)], out[at(k + 7 * out_step)] = g, h
        total, excess = after, error
    return n // 8 * 8, total, excess


@jit_step
def _keep(source: Any, target: Any, segment: Any, options: Any, states: Any, line: int) -> None:
    (x, first, step), (out, to, out_step), (n, head) = source, target, segment
    exclusive, skip, nothing = options
    zero, done = states[0].dtype.type(0), 0
    total, excess = nothing if head else states[0][line], zero if head else states[1][line]
    while done < n:
        if exclusive:
            # Sums of all but the last element, shifted by one.
            out[at(to + done * out_step)] = _settle(total, excess)
        shift = done + exclusive
        elements, results = (x, first + done * step, step), (out, to + shift * out_step, out_step)
        scanned, total, excess = _eights(elements, results, n - shift, options, total, excess)
        done += scanned
        for i in range(done, min(done + 8, n)):
            if exclusive:
                out[at(to + i * out_step)] = _settle(total, excess)
            total, error = two_sum(total, _element(x, first + i * step, skip, nothing))
            excess += error
            if not exclusive:
                out[at(to + i * out_step)] = _settle(total, excess)
        done = min(done + 8, n)
    if head and exclusive:
        out[at(to)] = zero
    states[0][line], states[1][line] = total, excess


@jit_step
def _keep_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    (x, first), (out, to), (total, excess) = source, target, states
    exclusive, skip, nothing = options
    zero = total.dtype.type(0)
    restart_inline(heads, total, nothing)
    restart_inline(heads, excess, zero)
    for i in range(len(total)):
        before = _settle(total[i], excess[i])
        total[i], error = two_sum(total[i], _element(x, first + i, skip, nothing))
        excess[i] += error
        out[at(to + i)] = before if exclusive else _settle(total[i], excess[i])
    if exclusive:
        restart(heads, out[to:][: len(total)], zero)


#: Restart from `nothing` at flags, where an exclusive result is `identity`. The options are
#: ``exclusive, multiply, skip, nothing, identity``: multiply instead of add; skip NaN.
add_lines: Final = loop_of(scan_lines, "add_lines", run=_add)
add_columns: Final = loop_of(scan_columns, "add_columns", row=_add_row)

#: Scan for the largest element, or with `least` the smallest; `ignore` leaves NaN out. The options
#: are ``exclusive, least, ignore, identity``.
extreme_lines: Final = loop_of(scan_lines, "extreme_lines", run=_extreme)
extreme_columns: Final = loop_of(scan_columns, "extreme_columns", row=_extreme_row)

#: Scan for sums and their excesses over the exact sums. With `skip`, NaN are zero. The options are
#: ``exclusive, skip, nothing``.
keep_lines: Final = loop_of(scan_lines, "keep_lines", run=_keep)
keep_columns: Final = loop_of(scan_columns, "keep_columns", row=_keep_row, enter=enter_two)
