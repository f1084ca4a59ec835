"""The walks along the lines of a chunk, each written once: `loop_of` makes a loop from one.

A loop is a copy of a walk in which a function such as `run` is one of the loop's own module::

    scan_lines      few lines side by side, a block of one after a block of another: `run`
    scan_columns    many, row after row of them: `row`

Numba does not cache machine code of closures: every process would compile them. It caches that of a
copy with globals and a name of its own.

An array of (outer, n, inner) comes as its memory and its *place* there: the index of the first
element of a scan, the step to the next group of `inner` lines, and the step along a line, which is
negative where lines are scanned from their ends. So a loop is compiled once for the dtypes of
elements and results, for all layouts. Head flags have a place with one more number: the step to the
next line of a group. Without restarts there are no flags.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np

from dask_coop.compiled.jit import jit, jit_step, jit_uncounted

Array = np.ndarray[Any, Any]

#: The memory of an array, and its place there.
Placed = tuple[Array, tuple[int, ...]]

#: Elements of a line that are scanned before the walk turns to the next line, and lines whose
#: states stay in a cache.
BLOCK, COLUMNS = 1 << 12, 1 << 11

#: The type of indices into memory: Numba counts negative indices from the end.
at = np.uint64


def loop_of(walk: Any, name: str, **steps: Any) -> Any:
    """Return a compiled copy of `walk` that calls `steps` instead of the functions here."""
    loop = FunctionType(walk.__code__, {**walk.__globals__, **steps}, name)
    loop.__qualname__ = name
    return jit(loop, allocates=False)


@jit_step
def run(source: Any, target: Any, segment: Any, options: Any, states: Any, line: int) -> None:
    """Scan `n` elements of a line, of which the first may be a head.

    ``(x, first, step), (out, first, step), (n, head)`` are the elements' place, the results' place,
    and the number of elements.
    """


@jit_step
def row(source: Any, target: Any, heads: Any, options: Any, states: Any) -> None:
    """Scan one element of each of some neighbouring lines, whose states `enter` has returned.

    ``(x, first), (out, first), (flags, first, step)`` are the places of elements, results and
    head flags.
    """


@jit_step
def enter(states: Any, first: int, width: int, options: Any) -> Any:
    """Return the one-field states of some neighbouring lines."""
    return (states[0][first:][:width],)


@jit_step
def enter_two(states: Any, first: int, width: int, options: Any) -> Any:
    """Return the two-field states of some neighbouring lines."""
    return states[0][first:][:width], states[1][first:][:width]


@jit_step
def enter_three(states: Any, first: int, width: int, options: Any) -> Any:
    """Return the three-field states of some neighbouring lines."""
    return states[0][first:][:width], states[1][first:][:width], states[2][first:][:width]


@jit_step
def leave(states: Any) -> None:
    """Do nothing with the states of some neighbouring lines behind their last row."""


def _restart(heads: Any, values: Array, nothing: Any) -> None:
    """Set values of neighbours to `nothing` where their flags are set; step 0 repeats one flag."""
    flags, first, step = heads
    if len(flags) == 0:
        return
    if step:
        for i in range(len(values)):
            values[i] = nothing if flags[at(first + i)] else values[i]
    elif flags[at(first)]:
        for i in range(len(values)):
            values[i] = nothing


#: LLVM vectorizes it as a function by itself; with two calls a row, it takes longer than inline.
restart: Any = jit_uncounted(_restart)
restart_inline: Any = jit_step(_restart)


@jit_step
def find_segment(flags: Array, mark: int, step: int, begin: int, stop: int) -> tuple[int, bool]:
    """Return where the next segment of a line begins, or `stop`, and whether one does at `begin`.

    The flags of the line start at `mark` and are `step` apart.
    """
    if len(flags) == 0:
        return stop, False
    end = begin + 1
    while end < stop and not flags[at(mark + end * step)]:
        end += 1
    return end, flags[at(mark + begin * step)] != 0


def scan_lines(
    source: Placed,
    target: Placed,
    heads: Placed,
    shape: tuple[int, int],
    options: Any,
    states: tuple[Array, ...],
) -> None:
    """Scan lines, starting from `states`, which become those behind their last elements."""
    (x, place), (out, out_place), (flags, marks) = source, target, heads
    n, inner = shape
    blocks = -(-n // BLOCK)
    for tile in range(len(states[0]) * blocks):
        group, column = tile // (inner * blocks), tile % inner
        begin = tile // inner % blocks * BLOCK
        stop = begin + BLOCK if begin + BLOCK < n else n
        first = place[0] + group * place[1] + column
        to = out_place[0] + group * out_place[1] + column
        mark = marks[0] + group * marks[1] + column * marks[3]
        while begin < stop:
            end, head = find_segment(flags, mark, marks[2], begin, stop)
            elements = x, first + begin * place[2], place[2]
            results = out, to + begin * out_place[2], out_place[2]
            run(elements, results, (end - begin, head), options, states, group * inner + column)
            begin = end


def scan_columns(
    source: Placed,
    target: Placed,
    heads: Placed,
    shape: tuple[int, int],
    options: Any,
    states: tuple[Array, ...],
) -> None:
    """Do the work of `scan_lines`, a row of up to `COLUMNS` lines at a time."""
    (x, place), (out, out_place), (flags, marks) = source, target, heads
    n, inner = shape
    blocks = -(-inner // COLUMNS)
    for tile in range(len(states[0]) // inner * blocks):
        group, column = tile // blocks, tile % blocks * COLUMNS
        width = COLUMNS if inner - column > COLUMNS else inner - column
        some = enter(states, group * inner + column, width, options)
        for number in range(n):
            first = place[0] + group * place[1] + number * place[2] + column
            to = out_place[0] + group * out_place[1] + number * out_place[2] + column
            mark = marks[0] + group * marks[1] + number * marks[2] + column * marks[3]
            row((x, first), (out, to), (flags, mark, marks[3]), options, some)
        leave(some)
