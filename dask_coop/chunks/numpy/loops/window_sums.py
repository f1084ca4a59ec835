"""The loops of windows.py for sums, means and variances, compiled by Numba.

Eight lines are processed side by side, one row of eight elements after another. Rows are cut into
blocks as long as a window, which is then the end of one block and the beginning of the next::

    a b c d | e f g h      the window of 4 that ends at f:  (c d) seen from the border, and (e f)

A ring has the sums of the older block from each of its rows to the border. A row of the ring is
free once its result is made, and an element of the newer block takes its place. When the block's
last element has come, these elements become such sums. So there is one ring of a window's rows, two
additions an element, and no subtraction.

Squares of deviations are added as sums are. Deviations are from a pivot: the first element of the
newer block, which all windows that end in this block contain, so that large numbers with small
differences lose no digits. After the mean's contribution is subtracted, at least one nth of the sum
of n squares is left. If less than a 1024th is left, the result is -1, for the caller to find
another way, and the loop returns the number of these.

Where NaN are left out, there is also a ring of counts, and each block has a pivot of its own: its
valid element next to the border. The newer block's sums are then re-centred on the older block's
pivot.

Lines are rows of an array; or parts of rows if there are few, with the rows they need before them;
or columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.loops.lanes import (
    LANES,
    expect,
    load,
    minus,
    over,
    plus,
    root,
    splat,
    store,
    times,
    turn_in,
    turn_out,
    where_known,
    where_less,
)
from dask_coop.chunks.numpy.loops.walkers import at
from dask_coop.compiled.jit import jit, jit_inner

Array = np.ndarray[Any, Any]
How = tuple[int, float, float, bool]
Plan = tuple[int, int, int, int]

#: Rows that are loaded at a time, and how many rows ahead they are prefetched.
_ROWS, _AHEAD = 48, 48

#: Numbers of vectors: of the state of eight lines between loads, and of their bases.
_STATE, _BESIDES = 5 * LANES, 4 * LANES

#: Layouts of eight lines: columns side by side, rows, or any.
_COLUMNS, _LINES = 0, 1


@jit_inner
def _fill(a: Array, value: float) -> None:
    for i in range(len(a)):
        a[at(i)] = value


@jit_inner
def _load(
    x: Array,
    places: Array,
    strip: int,
    row: int,
    rows: int,
    step: int,
    layout: int,
    to: Array,
    index: int,
    ahead: int,
) -> None:
    """Load some rows of eight lines."""
    done, lines = 0, strip * LANES
    if layout == _COLUMNS:
        first = places[lines] + row * step
        for r in range(rows):
            store(load(x, at(first + r * step)), to, at(index + r * LANES))
        done = rows
    elif layout == _LINES:
        while done + LANES <= rows:
            turn_in(x, places, lines, row + done, to, index + done * LANES)
            if ahead:
                for k in range(LANES):
                    expect(x, places[at(lines + k)] + row + done + ahead)
            done += LANES
    for r in range(done, rows):
        for k in range(LANES):
            to[at(index + r * LANES + k)] = x[at(places[lines + k] + (row + r) * step)]


@jit_inner
def _store(
    tile: Array, rows: int, out: Array, places: Array, strip: int, row: int, step: int, layout: int
) -> None:
    """Store some rows of eight lines."""
    done, lines = 0, strip * LANES
    if layout == _COLUMNS:
        first = places[lines] + row * step
        for r in range(rows):
            store(load(tile, at(r * LANES)), out, at(first + r * step))
        done = rows
    elif layout == _LINES:
        while done + LANES <= rows:
            turn_out(tile, done * LANES, out, places, lines, row + done)
            for k in range(LANES):
                expect(out, places[at(lines + k)] + row + done + _AHEAD)
            done += LANES
    for r in range(done, rows):
        for k in range(LANES):
            out[at(places[lines + k] + (row + r) * step)] = tile[at(r * LANES + k)]


@jit_inner
def _add_rows(
    tile: Array,
    rows: int,
    rings: Array,
    states: Array,
    strip: int,
    block: int,
    w: int,
    besides: Array,
    own: int,
    divide: bool,
) -> None:
    """Replace rows by the sums of the windows that end there; `block` rows are done."""
    ring, state = strip * (w + 1) * LANES, strip * _STATE
    by, more = load(besides, at(own)), load(besides, at(own + LANES))
    total = load(states, at(state))
    i = 0
    while i < rows:
        if block == 0:
            total = splat(0.0)
            for k in range(w - 1, 0, -1):
                total = plus(total, load(rings, at(ring + k * LANES)))
                store(total, rings, at(ring + k * LANES))
            total = splat(0.0)
        many = rows - i if rows - i < w - block else w - block
        here = ring + block * LANES
        for k in range(many):
            value = load(tile, at((i + k) * LANES))
            total = plus(total, value)
            result = plus(total, load(rings, at(here + (k + 1) * LANES)))
            if divide:
                result = over(plus(result, more), by)
            store(result, tile, at((i + k) * LANES))
            store(value, rings, at(here + k * LANES))
        i += many
        block = block + many if block + many < w else 0
    store(total, states, at(state))


@jit_inner
def _add_valid_rows(
    tile: Array,
    rows: int,
    rings: Array,
    counts: Array,
    states: Array,
    strip: int,
    block: int,
    w: int,
    besides: Array,
    own: int,
    least: float,
    divide: bool,
) -> None:
    """Do the work of `_add_rows` where NaN are left out."""
    ring, state = strip * (w + 1) * LANES, strip * _STATE
    more, before = load(besides, at(own + LANES)), load(besides, at(own + 3 * LANES))
    total, count = load(states, at(state)), load(states, at(state + LANES))
    zero, one, nothing = splat(0.0), splat(1.0), splat(np.nan)
    i = 0
    while i < rows:
        if block == 0:
            total, count = zero, zero
            for k in range(w - 1, 0, -1):
                value = load(rings, at(ring + k * LANES))
                total = plus(total, where_known(value, value, value, zero))
                count = plus(count, where_known(value, value, one, zero))
                store(total, rings, at(ring + k * LANES))
                store(count, counts, at(ring + k * LANES))
            total, count = zero, zero
        many = rows - i if rows - i < w - block else w - block
        here = ring + block * LANES
        for k in range(many):
            value = load(tile, at((i + k) * LANES))
            total = plus(total, where_known(value, value, value, zero))
            count = plus(count, where_known(value, value, one, zero))
            result = plus(plus(total, load(rings, at(here + (k + 1) * LANES))), more)
            known = plus(plus(count, load(counts, at(here + (k + 1) * LANES))), before)
            if divide:
                result = over(result, known)
            result = where_less(known, splat(least), nothing, result)
            store(result, tile, at((i + k) * LANES))
            store(value, rings, at(here + k * LANES))
        i += many
        block = block + many if block + many < w else 0
    store(total, states, at(state))
    store(count, states, at(state + LANES))


@jit_inner
def _unless_lost(result: Any, left: Any, of: Any, whole: Any) -> Any:
    """Return results, or -1 where too little of a sum of squares is left, unless NaN are due."""
    lost = splat(-1.0)
    value = where_less(times(left, splat(1024.0)), of, lost, result)
    value = where_known(left, left, value, lost)
    nothing = minus(whole, whole)
    return where_known(nothing, nothing, value, result)


@jit_inner
def _add_squares(
    tile: Array,
    rows: int,
    rings: Array,
    squares: Array,
    counts: Array,
    states: Array,
    strip: int,
    block: int,
    w: int,
    besides: Array,
    own: int,
    least: float,
    ddof: float,
) -> None:
    """Replace rows by the variances of the windows that end there, with NaN left out."""
    ring, state = strip * (w + 1) * LANES, strip * _STATE
    total, square = load(states, at(state)), load(states, at(state + LANES))
    pivot, older = load(states, at(state + 2 * LANES)), load(states, at(state + 3 * LANES))
    count, before = load(states, at(state + 4 * LANES)), load(besides, at(own + 3 * LANES))
    zero, one, nothing = splat(0.0), splat(1.0), splat(np.nan)
    i = 0
    while i < rows:
        if block == 0:
            total, square, count, older = zero, zero, zero, zero
            for k in range(w - 1, 0, -1):
                element = load(rings, at(ring + k * LANES))
                older = where_less(zero, count, older, where_known(element, element, element, zero))
                value = minus(element, older)
                value = where_known(element, element, value, zero)
                total, square = plus(total, value), plus(square, times(value, value))
                count = plus(count, where_known(element, element, one, zero))
                store(total, rings, at(ring + k * LANES))
                store(square, squares, at(ring + k * LANES))
                store(count, counts, at(ring + k * LANES))
            total, square, count, pivot = zero, zero, zero, zero
        many = rows - i if rows - i < w - block else w - block
        here = ring + block * LANES
        for k in range(many):
            element = load(tile, at((i + k) * LANES))
            pivot = where_less(zero, count, pivot, where_known(element, element, element, zero))
            value = where_known(element, element, minus(element, pivot), zero)
            total, square = plus(total, value), plus(square, times(value, value))
            count = plus(count, where_known(element, element, one, zero))
            others = load(counts, at(here + (k + 1) * LANES))
            # From the older block's pivot, unless it or the newer block has no elements here.
            shift = where_less(zero, others, minus(pivot, older), zero)
            shift = where_less(zero, count, shift, zero)
            moved = times(count, shift)
            whole = plus(plus(total, moved), load(rings, at(here + (k + 1) * LANES)))
            of = plus(square, load(squares, at(here + (k + 1) * LANES)))
            far = times(shift, moved)
            of_both = plus(plus(of, times(plus(shift, shift), total)), far)
            known = plus(count, others)
            mean = over(whole, known)
            mean = where_less(zero, known, mean, zero)
            left = minus(of_both, times(whole, mean))
            base, away = where_less(zero, others, older, pivot), zero
            away = minus(plus(base, mean), load(besides, at(own + LANES)))
            both = plus(known, before)
            away = times(times(away, away), over(times(known, before), both))
            away = where_less(zero, times(known, before), away, zero)
            result = plus(plus(left, load(besides, at(own + 2 * LANES))), away)
            result = over(result, minus(both, splat(ddof)))
            result = _unless_lost(result, left, plus(of, far), whole)
            result = where_less(both, splat(least), nothing, result)
            store(result, tile, at((i + k) * LANES))
            store(element, rings, at(here + k * LANES))
        i += many
        block = block + many if block + many < w else 0
    store(total, states, at(state))
    store(square, states, at(state + LANES))
    store(pivot, states, at(state + 2 * LANES))
    store(older, states, at(state + 3 * LANES))
    store(count, states, at(state + 4 * LANES))


@jit_inner
def _finish(tile: Array, rows: int, root_of: bool) -> int:
    """Take roots if wanted, and return the number of lost results."""
    lost = 0
    for i in range(rows * LANES):
        lost += tile[at(i)] < 0.0
    if root_of:
        for i in range(rows):
            store(root(load(tile, at(i * LANES))), tile, at(i * LANES))
    return lost


@jit_inner
def _start(
    halo: Array,
    earlier: Array,
    strip: int,
    before: int,
    w: int,
    inner: int,
    layout: int,
    rings: Array,
    s: int,
    ahead: int,
) -> None:
    """Load the elements before eight lines into their ring."""
    ring, known = s * (w + 1) * LANES, before if before < w - 1 else w - 1
    lost = (w - known) * LANES
    _fill(rings[ring : ring + lost], np.nan)
    _load(halo, earlier, strip, before - known, known, inner, layout, rings, ring + lost, ahead)
    _fill(rings[ring + w * LANES : ring + (w + 1) * LANES], 0.0)


def _move(
    x: Array,
    halo: Array,
    out: Array,
    before: int,
    inner: int,
    how: How,
    plan: Plan,
    places: Array,
    earlier: Array,
    besides: Array,
    added: Any,
    valid: Any,
    squared: Any,
    rings: Array,
    counts: Array,
    squares: Array,
    states: Array,
    tile: Array,
) -> int:
    w, least, ddof, last = how
    layout, _, length, panel = plan
    strips, lost = len(places) // LANES, 0
    # All lines have the same base if none has any.
    one = len(besides) == _BESIDES
    # Literals would be other types, with functions of their own.
    none: Any = np.int64(0)
    ahead: Any = np.int64(_AHEAD)
    for first in range(0, strips, panel):
        here = panel if panel < strips - first else strips - first
        for s in range(here):
            _start(halo, earlier, first + s, before, w, inner, layout, rings, s, none)
        for row in range(0, length, _ROWS):
            rows, block = _ROWS if length - row > _ROWS else length - row, row % w
            for s in range(here):
                own = 0 if one else (first + s) * _BESIDES
                _load(x, places, first + s, row, rows, inner, layout, tile, none, ahead)
                if added is not None:
                    if valid is not None:
                        _add_valid_rows(
                            tile,
                            rows,
                            rings,
                            counts,
                            states,
                            s,
                            block,
                            w,
                            besides,
                            own,
                            least,
                            last,
                        )
                    else:
                        _add_rows(tile, rows, rings, states, s, block, w, besides, own, last)
                if squared is not None:
                    _add_squares(
                        tile,
                        rows,
                        rings,
                        squares,
                        counts,
                        states,
                        s,
                        block,
                        w,
                        besides,
                        own,
                        least,
                        ddof,
                    )
                    lost += _finish(tile, rows, last)
                _store(tile, rows, out, places, first + s, row, inner, layout)
    return lost


_of_windows: Any = jit(_move, allocates=False)


def move(
    x: Array,
    halo: Array,
    out: Array,
    before: int,
    inner: int,
    how: How,
    plan: Plan,
    places: Array,
    earlier: Array,
    besides: Array,
    which: tuple[Any, Any, Any],
) -> int:
    """Write statistics of windows into `out`, and return the number of lost results.

    Parameters
    ----------
    x, halo, out : numpy.ndarray
        The memory of the elements, of those before them, `before` for each line, and of results.
    before, inner : int
        The number of elements before a line, and of neighbouring lines.
    how : tuple
        The length of windows, the least count, the number subtracted from counts, and whether to
        divide by lines' divisors or to take roots.
    plan : tuple
        The layout of lines, into how many each is cut, their length, and the number of eights done
        at a time.
    places, earlier : numpy.ndarray
        The beginnings of lines in `x` and `out`, and in `halo`.
    besides : numpy.ndarray
        For each eight, or for all: the divisors of sums, and the value, the sum of squares and the
        count that windows include besides.
    which : tuple of True or None
        Whether sums or means are wanted, whether they leave NaN out, and whether variances or
        deviations are wanted. A loop is compiled for each.
    """
    panel = plan[3]
    size = panel * (how[0] + 1) * LANES
    rings, counts = np.empty(size), np.zeros(size)
    squares = np.zeros(0 if which[2] is None else size)
    states, tile = np.zeros(panel * _STATE), np.empty(_ROWS * LANES)
    arrays = x, halo, out, before, inner, how, plan, places, earlier, besides
    memory = rings, counts, squares, states, tile
    return int(_of_windows(*arrays, *which, *memory))
