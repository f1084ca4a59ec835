"""The loops of scan.py and reduce.py for logarithms of sums of exponentials, compiled by Numba.

The state of some elements is their maximum, the *peak*, and the sum of the exponentials of their
differences from it, which is at least 1. An element adds to the sum, or becomes the next peak and
scales the sum down by its distance to the old one. So an element costs one exponential, of a number
that is not positive, and a result one logarithm, of 1 or more. Both are polynomials, which LLVM
vectorizes. Infinities are peaks as other elements are; a NaN makes the sum NaN.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from dask_coop.chunks.numpy.loops import walkers
from dask_coop.chunks.numpy.loops.compensated import two_sum
from dask_coop.chunks.numpy.loops.walkers import COLUMNS, Placed, at, find_segment, loop_of, restart
from dask_coop.compiled.jit import jit, jit_inner, jit_inner_reassociated, jit_step

Array = np.ndarray[Any, Any]

#: Elements of a line whose exponentials and logarithms are computed at a time.
_BLOCK = 512

#: Taylor coefficients of 2**-x for x up to a half, and of log(m) / t with t = (m - 1) / (m + 1), in
#: powers of t * t, for m from sqrt(1 / 2) to sqrt(2). Omitted terms are below a rounding error.
_POWER = tuple((-math.log(2)) ** k / math.factorial(k) for k in range(14))
_LOGARITHM = tuple(2 / (2 * k + 1) for k in range(11))

_LOG_2, _LOG2_E, _ROOT = math.log(2), 1 / math.log(2), int(np.sqrt(np.float64(0.5)).view("i8"))


@jit_inner_reassociated
def _decay(x: float) -> float:
    """Return ``exp(-x)`` for x >= 0, clipped to the smallest normal float."""
    x *= _LOG2_E
    x = 1022.0 if x > 1022.0 else x
    whole = np.floor(x + 0.5)
    x -= whole
    p = _POWER[12] + x * _POWER[13]
    p = _POWER[10] + x * (_POWER[11] + x * p)
    p = _POWER[8] + x * (_POWER[9] + x * p)
    p = _POWER[6] + x * (_POWER[7] + x * p)
    p = _POWER[4] + x * (_POWER[5] + x * p)
    p = _POWER[2] + x * (_POWER[3] + x * p)
    p = _POWER[0] + x * (_POWER[1] + x * p)
    bits = np.int64(np.int64(np.int32(1023) - np.int32(whole)) << np.int64(52))
    return p * bits.view(np.float64)


@jit_inner_reassociated
def _positive_log(x: float) -> float:
    """Return the logarithm of a number of at least 1, or NaN."""
    bits = np.float64(x).view(np.int64)
    power = np.int64((bits - _ROOT) >> np.int64(52))
    m = np.int64(bits - (power << np.int64(52))).view(np.float64)
    # Numba checks a division by `/` for zero.
    t = np.divide(m - 1, m + 1)
    u = t * t
    p = _LOGARITHM[9] + u * _LOGARITHM[10]
    p = _LOGARITHM[7] + u * (_LOGARITHM[8] + u * p)
    p = _LOGARITHM[5] + u * (_LOGARITHM[6] + u * p)
    p = _LOGARITHM[3] + u * (_LOGARITHM[4] + u * p)
    p = _LOGARITHM[1] + u * (_LOGARITHM[2] + u * p)
    log = np.int32(power) * _LOG_2 + t * (_LOGARITHM[0] + u * p)
    return x if x != x else log


@jit_inner
def _add(gap: float, decay: float, total: float, excess: float) -> tuple[float, float]:
    """Return the sum with one more element, and its excess over the exact sum."""
    if gap > 0:
        return total * decay + 1, excess * decay
    after = total + decay
    return after, excess + ((after - total) - decay)


@jit_inner
def _scan_block(
    x: Array, sums: Array, peaks: Array, peak: float, total: float, excess: float
) -> tuple[float, float, float]:
    """Replace the elements ``x[1:]`` by their results, and ``x[0]`` by the result before them."""
    n, above = len(x) - 1, 0
    peaks[0], sums[0] = peak, total - excess
    for i in range(1, n + 1):
        above += not x[i] <= peak
    # Without a new peak, plain sums are made and added to the total.
    for i in range(1, n + 1 if above else 0):
        # Holds also for equal infinities.
        gap = 0.0 if x[i] == peak else x[i] - peak
        peak = x[i] if gap > 0 else peak
        x[i], peaks[i] = gap, peak
    for i in range(1, 0 if above else n + 1):
        x[i], peaks[i] = 0.0 if x[i] == peak else peak - x[i], peak
    for i in range(1, n + 1):
        sums[i] = _decay(abs(x[i]))
    part = 0.0
    for i in range(1, n + 1 if above else 0):
        total, excess = _add(x[i], sums[i], total, excess)
        sums[i] = total - excess
    for i in range(1, 0 if above else n + 1):
        part += sums[i]
        sums[i] = total + (part - excess)
    total, error = two_sum(total, part)
    for i in range(n + 1):
        x[i] = peaks[i] + _positive_log(sums[i])
    return peak, total, excess + error


# Written out: as runs of the walk over lines these took up to a quarter longer.
def _scan_lines(
    source: Placed,
    target: Placed,
    heads: Placed,
    shape: tuple[int, int],
    options: Any,
    states: tuple[Array],
) -> None:
    (x, place), (out, out_place), (flags, marks) = source, target, heads
    (n, inner), (exclusive, values, sums, peaks), (logs,) = shape, options, states
    for number in range(len(logs)):
        group, column = number // inner, number % inner
        first = place[0] + group * place[1] + column
        to = out_place[0] + group * out_place[1] + column
        mark = marks[0] + group * marks[1] + column * marks[3]
        peak, total, excess, begin = logs[number], 1.0, 0.0, 0
        while begin < n:
            stop = min(begin + _BLOCK, n)
            end, head = find_segment(flags, mark, marks[2], begin, stop)
            if head:
                peak, total, excess = -np.inf, 1.0, 0.0
            part = values[: end - begin + 1]
            for i in range(1, len(part)):
                part[i] = x[at(first + (begin + i - 1) * place[2])]
            peak, total, excess = _scan_block(part, sums, peaks, peak, total, excess)
            for i in range(begin, end):
                out[at(to + i * out_place[2])] = part[i - begin + 1 - exclusive]
            logs[number] = part[end - begin]
            begin = end


@jit_step
def _enter(states: Any, first: int, width: int, options: Any) -> Any:
    """Return the peaks of some neighbouring lines, their sums, and the excesses of these."""
    total, excess = options[1][:width], options[2][:width]
    total[:], excess[:] = 1, 0
    return states[0][first:][:width], total, excess


@jit_step
def _leave(states: Any) -> None:
    peak, total, excess = states
    for i in range(len(peak)):
        peak[i] = peak[i] + _positive_log(total[i] - excess[i])


@jit_step
def _put(value: float, i: int, states: Any) -> None:
    """Add an element to the state of a line."""
    peak, total, excess = states
    gap = 0.0 if value == peak[i] else value - peak[i]
    peak[i] = value if gap > 0 else peak[i]
    total[i], excess[i] = _add(gap, _decay(abs(gap)), total[i], excess[i])


@jit_step
def _scan_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    (x, first), (out, to), (peak, total, excess) = source, target, states
    exclusive = options[0]
    restart(heads, peak, -np.inf)
    restart(heads, total, 1.0)
    restart(heads, excess, 0.0)
    for i in range(len(peak)):
        before = peak[i], total[i] - excess[i]
        _put(np.float64(x[at(first + i)]), i, states)
        top, exact = before if exclusive else (peak[i], total[i] - excess[i])
        out[at(to + i)] = top + _positive_log(exact)


@jit_inner_reassociated
def _sum(x: Array) -> float:
    total = 0.0
    for i in range(len(x)):
        total += x[i]
    return total


def _sum_lines(
    source: Placed,
    target: Placed,
    heads: Placed,
    shape: tuple[int, int],
    options: Any,
    states: tuple[Array],
) -> None:
    (x, place), (n, inner), values, (logs,) = source, shape, options[1], states
    for number in range(len(logs)):
        first = place[0] + number // inner * place[1] + number % inner
        peak, total, excess = logs[number], 1.0, 0.0
        for begin in range(0, n, _BLOCK):
            part, before, above = values[: min(_BLOCK, n - begin)], peak, 0
            for i in range(len(part)):
                part[i] = x[at(first + (begin + i) * place[2])]
                above += not part[i] <= before
            for i in range(len(part) if above else 0):
                peak = part[i] if part[i] > peak else peak
            for i in range(len(part)):
                part[i] = _decay(0.0 if part[i] == peak else peak - part[i])
            if peak > before:
                shrunk = _decay(peak - before)
                total, excess = total * shrunk, excess * shrunk
            added = _sum(part)
            total, error = two_sum(total, added)
            excess += error
        logs[number] = peak + _positive_log(total - excess)


@jit_step
def _sum_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    x, first = source
    for i in range(len(states[0])):
        _put(np.float64(x[at(first + i)]), i, states)


_STATES = {"enter": _enter, "leave": _leave}

#: The shape of the working memory of a line, or of a row.
SPACE = 3, COLUMNS + 8

#: Scan, starting from `logs`, which become those of all elements. ``exclusive`` and rows of `SPACE`
#: are the options.
scan_lines: Final = jit(_scan_lines, allocates=False)
scan_columns: Final = loop_of(walkers.scan_columns, "log_columns", row=_scan_row, **_STATES)

#: Reduce lines, and include `logs`; write the results to `logs`.
sum_lines: Final = jit(_sum_lines, allocates=False)
sum_columns: Final = loop_of(walkers.scan_columns, "log_sum_columns", row=_sum_row, **_STATES)
