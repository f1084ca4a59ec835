"""The loops of runs in gaps.py, compiled by Numba.

A statistic counts at the element where a run becomes long enough, so that no step asks whether a
run ends::

    least 2     T T T F T T F      runs 0 1 0 0 0 1 0      elements 0 2 1 0 0 2 0

Contiguous lines are read eight elements at a time. These become the bits of a number, and a table
has the run that each such number begins with, the one that it ends with, and a statistic of all
but the first.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.chunks.numpy.loops.walkers import (
    COLUMNS,
    Placed,
    at,
    enter,
    loop_of,
    scan_columns,
    scan_lines,
)
from dask_coop.compiled.jit import jit, jit_step

Array = np.ndarray[Any, Any]

#: The statistics that loops know, by number: see `algebra/runs.py`.
LONGEST, RUNS, ELEMENTS, FIRST, LAST = range(5)

#: Multiplied with eight bytes of 0 or 1, it has their bits in its highest byte, the first lowest.
_GATHER = np.uint64(0x0102040810204080)


@jit_step
def _begins(x: Array, first: int, step: int, n: int) -> int:
    """Return how many true elements a stretch begins with; from its end with a negative step."""
    i = 0
    while i < n and x[at(first + i * step)]:
        i += 1
    return i


# Arithmetic, since the compiler makes branches of comparisons, which would be taken at random.
@jit_step
def _longer(run: int, element: int) -> int:
    """Return the length of a run behind one more element, 0 or 1."""
    # Less would be negated as a byte.
    return int((run + 1) & -np.int64(element))


@jit_step
def _count(value: int, run: int, kind: int, least: int) -> int:
    """Return the statistic behind an element with which a run is so long."""
    if kind == LONGEST:
        return run if run > value else value
    # All bits are set where the run is just long enough, and where it is long enough.
    reached = ((run ^ least) - 1) >> 63
    if kind == RUNS:
        return value - reached
    return value - ((least - 1 - run) >> 63) + ((least - 1) & reached)


@jit_step
def _counted(length: int, kind: int, least: int) -> int:
    """Return the statistic of one run."""
    enough = ~((length - least) >> 63)
    return enough & (1 if kind == RUNS else length)


def _count_lines(
    source: Placed,
    shape: tuple[int, int],
    kind: int,
    least: int,
    tables: tuple[Array, Array, Array, Array],
    states: tuple[Array, ...],
) -> None:
    (x, place), (n, inner), (begins, ends, values) = source, shape, states
    before, behind, whole, within = tables
    step = place[2]
    eights = n // 8 if step == 1 else 0
    for line in range(len(values)):
        first = place[0] + line // inner * place[1] + line % inner
        run, value = 0, 0
        for i in range(eights):
            j = at(first + 8 * i)
            word = np.uint64(x[j])
            for k in range(1, 8):
                word |= np.uint64(x[j + at(k)]) << at(8 * k)
            bits = (word * _GATHER) >> at(56)
            longer = run + before[bits]
            if kind == LONGEST:
                value = longer if longer > value else value
                value = within[bits] if within[bits] > value else value
            else:
                value += _counted(longer, kind, least) - _counted(run, kind, least) + within[bits]
            run = behind[bits] + (run & whole[bits])
        for i in range(8 * eights, n):
            run = _longer(run, x[at(first + i * step)])
            value = _count(value, run, kind, least)
        begins[line], ends[line], values[line] = _begins(x, first, step, n), run, value


def _count_columns(
    source: Placed, shape: tuple[int, int], kind: int, least: int, states: tuple[Array, ...]
) -> None:
    (x, place), (n, inner), (begins, ends, values) = source, shape, states
    blocks = -(-inner // COLUMNS)
    for tile in range(len(values) // inner * blocks):
        group, column = tile // blocks, tile % blocks * COLUMNS
        line = group * inner + column
        run = ends[line:][: min(COLUMNS, inner - column)]
        value, begin = values[line:][: len(run)], begins[line:][: len(run)]
        few, going = run.dtype.type(least), True
        for row in range(n):
            first = place[0] + group * place[1] + row * place[2] + column
            for i in range(len(run)):
                run[i] = run[i] + 1 if x[at(first + i)] else 0
            if kind == LONGEST:
                for i in range(len(run)):
                    value[i] = run[i] if run[i] > value[i] else value[i]
            elif kind == RUNS:
                for i in range(len(run)):
                    value[i] += run[i] == few
            elif kind == FIRST:
                start = run.dtype.type(row + 1 - least)
                for i in range(len(run)):
                    value[i] = start if (run[i] == few) & (value[i] < 0) else value[i]
            elif kind == LAST:
                for i in range(len(run)):
                    value[i] = row if run[i] >= few else value[i]
            else:
                for i in range(len(run)):
                    reached = few if run[i] == few else run.dtype.type(1)
                    value[i] += reached if run[i] >= few else 0
            if going:
                most = 0
                for i in range(len(run)):
                    begin[i] = run[i] if run[i] > row else begin[i]
                    most += run[i] > row
                going = most > 0


def _find_lines(
    source: Placed, shape: tuple[int, int], least: int, is_last: bool, states: tuple[Array, ...]
) -> None:
    (x, place), (n, inner), (begins, ends, values) = source, shape, states
    step = place[2]
    for line in range(len(values)):
        first = place[0] + line // inner * place[1] + line % inner
        last = first + (n - 1) * step
        begins[line], ends[line] = _begins(x, first, step, n), _begins(x, last, -step, n)
        start, towards = (last, -step) if is_last else (first, step)
        run, i = 0, 0
        while i < n and run < least:
            run = _longer(run, x[at(start + i * towards)])
            i += 1
        if run == least:
            values[line] = n - 1 - (i - least) if is_last else i - least


@jit_step
def _measure(source: Any, target: Any, segment: Any, options: Any, states: Any, line: int) -> None:
    (x, first, step), (out, to, out_step), (n, _) = source, target, segment
    (opened,), (nothing,) = states, options
    length = opened[line]
    for i in range(n):
        place = x[at(first + i * step)]
        length = _longer(length, (place + 1) >> 1)
        out[at(to + i * out_step)] = np.float64(length) + nothing[at(place)]
        length &= -np.int64(place >> 1)
    opened[line] = length


@jit_step
def _measure_row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    (x, first), (out, to), (opened,) = source, target, states
    for i in range(len(opened)):
        place = x[at(first + i)]
        length = opened[i] + 1 if place else 0.0
        out[at(to + i)] = np.nan if place == 2 else length
        opened[i] = length if place == 2 else 0.0


#: Find the true elements that lines begin and end with, and a statistic of their runs, starting
#: from its identity. The first takes numbers and lengths of runs, the third their places.
count_lines: Final = jit(_count_lines, allocates=False)
count_columns: Final = jit(_count_columns, allocates=False)
find_lines: Final = jit(_find_lines, allocates=False)

#: Measure runs of places, starting from the lengths of open runs: integers, or floats of columns.
#: The option of lines has what is added to a length, by place.
measure_lines: Final = loop_of(scan_lines, "measure_lines", run=_measure)
measure_columns: Final = loop_of(scan_columns, "measure_columns", row=_measure_row, enter=enter)
