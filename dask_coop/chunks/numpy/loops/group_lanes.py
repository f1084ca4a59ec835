"""The loop that reduces groups along eight lines at a time, compiled by Numba.

Elements of eight lines are transposed to lie side by side, and so are the entries of a group in a
table of these lines. Elements without a group have an entry behind all others.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.chunks.numpy.loops.lanes import (
    LANES,
    expect,
    load,
    minus,
    plus,
    splat,
    store,
    turn_in,
    turn_out,
    where_known,
    where_less,
)
from dask_coop.chunks.numpy.loops.walkers import at
from dask_coop.compiled.jit import jit, jit_inner

Array = Any

#: Elements of each line that are transposed at a time.
_ROWS = 64


@jit_inner
def _fill(table: Array, value: float) -> None:
    for i in range(len(table)):
        table[at(i)] = value


@jit_inner
def _turn(x: Array, places: Array, row: int, rows: int, tile: Array) -> None:
    done = 0
    while done + LANES <= rows:
        turn_in(x, places, 0, row + done, tile, done * LANES)
        for k in range(LANES):
            expect(x, places[at(k)] + row + done + _ROWS)
        done += LANES
    for r in range(done, rows):
        for k in range(LANES):
            tile[at(r * LANES + k)] = x[at(places[at(k)] + row + r)]


@jit_inner
def _hand_over(table: Array, n: int, places: Array, to: Array) -> None:
    done = 0
    while done + LANES <= n:
        turn_out(table, done * LANES, to, places, 0, done)
        done += LANES
    for i in range(done, n):
        for k in range(LANES):
            to[at(places[at(k)] + i)] = to.dtype.type(table[at(i * LANES + k)])


def _in_lanes(
    x: Array,
    codes: Array,
    lines: int,
    length: int,
    n: int,
    skip: bool,
    empty: tuple[float, float],
    total: Array,
    excess: Array,
    count: Array,
    low: Array,
    high: Array,
) -> None:
    tile, size = np.empty(_ROWS * LANES), (n + 1) * LANES
    totals = np.empty(size if total is not None else 0)
    excesses = np.empty(size if excess is not None else 0)
    counts = np.empty(size if count is not None else 0)
    lows = np.empty(size if low is not None else 0)
    highs = np.empty(size if high is not None else 0)
    places, entries = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    zero, one = splat(0.0), splat(1.0)
    for first in range(0, lines, LANES):
        for k in range(LANES):
            line = min(first, lines - LANES) + k
            places[k], entries[k] = line * length, line * n
        _fill(totals, 0.0)
        _fill(excesses, 0.0)
        _fill(counts, 0.0)
        _fill(lows, empty[0])
        _fill(highs, empty[1])
        for row in range(0, length, _ROWS):
            rows = min(_ROWS, length - row)
            _turn(x, places, row, rows, tile)
            for r in range(rows):
                value, entry = load(tile, at(r * LANES)), at(codes[at(row + r)] * LANES)
                if total is not None:
                    added = where_known(value, value, value, zero) if skip else value
                    before = load(totals, entry)
                    after = plus(before, added)
                    store(after, totals, entry)
                    if excess is not None:
                        above = _excess(before, added, after)
                        store(plus(load(excesses, entry), above), excesses, entry)
                if count is not None:
                    known = where_known(value, value, one, zero)
                    store(plus(load(counts, entry), known), counts, entry)
                if low is not None:
                    store(_better(skip, value, load(lows, entry), True), lows, entry)
                if high is not None:
                    store(_better(skip, value, load(highs, entry), None), highs, entry)
        if total is not None:
            _hand_over(totals, n, entries, total)
        if excess is not None:
            _hand_over(excesses, n, entries, excess)
        if count is not None:
            _hand_over(counts, n, entries, count)
        if low is not None:
            _hand_over(lows, n, entries, low)
        if high is not None:
            _hand_over(highs, n, entries, high)


@jit_inner
def _excess(before: Any, x: Any, after: Any) -> Any:
    """Return the excess of sums over the exact sums."""
    added = minus(after, before)
    return plus(minus(added, x), minus(minus(after, added), before))


@jit_inner
def _better(skip: bool, value: Any, so_far: Any, less: Any) -> Any:
    """Return the extrema of elements: the greater ones where `less` is None."""
    if less is None:
        found = where_less(so_far, value, value, so_far)
    else:
        found = where_less(value, so_far, value, so_far)
    # Where NaN is left out, a NaN in the table means that no element has come.
    return (
        where_known(so_far, so_far, found, value)
        if skip
        else where_known(value, value, found, value)
    )


#: Write statistics of the groups of each of eight or more contiguous lines into tables of `n`
#: entries a line. Codes are those of a line, `n` where an element has no group; `empty` has the
#: values of groups without elements in the tables of the smallest and of the largest.
in_lanes: Final = jit(_in_lanes)
