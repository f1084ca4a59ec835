"""The loops of windows.py for extrema, and for windows of any length, compiled by Numba.

Sums and variances of most windows have a faster loop (loops/window_sums.py).

A block of lines is loaded as float64, with the elements before it that its first windows contain.
Windows of 2, 4, 8, ... elements are built by pairing neighbours; those whose lengths add up to the
wanted one are combined::

    length 5 = 1 + 4      a b c d e      (a b c d) e

Lines are rows, or some neighbouring columns, whose elements are `unit` apart. If a check finds that
all elements count, the number of elements of a window is known. Otherwise NaN, and elements before
the array, add nothing to values and counts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.chunks.numpy.loops.walkers import at
from dask_coop.compiled.jit import jit, jit_inner

Array = np.ndarray[Any, Any]
Place = tuple[int, ...]


@jit_inner
def _fill(a: Array, value: float) -> None:
    # Numba compiles this sooner than an assignment to a slice.
    for i in range(len(a)):
        a[at(i)] = value


@jit_inner
def _copy(a: Array, to: Array) -> None:
    for i in range(len(a)):
        to[at(i)] = a[at(i)]


@jit_inner
def _sums(a: Array, b: Array, found: Array, unit: int, w: int) -> None:
    """Write the sums of windows of `a` to `found`; `a` and `b` are overwritten.

    Sums of windows that begin before the first element are not right.
    """
    done, size = 0, 1
    while True:
        if w & size:
            if done:
                for i in range(done * unit, len(a)):
                    found[at(i)] += a[at(i - done * unit)]
            else:
                _copy(a, found)
            done += size
        if done == w:
            break
        for i in range(size * unit, len(a)):
            b[at(i)] = a[at(i)] + a[at(i - size * unit)]
        a, b = b, a
        size *= 2


@jit_inner
def _extremes(a: Array, b: Array, found: Array, unit: int, w: int) -> None:
    """Write the largest elements of windows of `a` to `found`, as `_sums` does."""
    end, size = len(a), unit
    while 2 * size <= w * unit:
        for i in range(size, end):
            x, y = a[at(i)], a[at(i - size)]
            b[at(i)] = x if x > y else y
        a, b = b, a
        size *= 2
    rest = w * unit - size
    for i in range(rest, end):
        x, y = a[at(i)], a[at(i - rest)]
        found[at(i)] = x if x > y else y


@jit_inner
def _join(
    mean: Array,
    m2: Array,
    others: Array,
    squares: Array,
    shift: int,
    count: float,
    more: float,
    to_mean: Array,
    to_m2: Array,
) -> None:
    """Combine means and squared deviations of `count` elements with those of `more` before them."""
    share, product = more / (count + more), count * more / (count + more)
    # Loops over fewer arrays are vectorized.
    for i in range(shift, len(mean)):
        away = others[at(i - shift)] - mean[at(i)]
        to_m2[at(i)] = m2[at(i)] + squares[at(i - shift)] + away * away * product
    for i in range(shift, len(mean)):
        to_mean[at(i)] = mean[at(i)] + (others[at(i - shift)] - mean[at(i)]) * share


@jit_inner
def _deviations(a: Array, found: Array, unit: int, w: int, rest: Array) -> None:
    """Write the squared deviations of windows of `a` from their means to `found`.

    `rest` is working memory of four times that size.
    """
    n = len(a)
    b, mean = rest[:n], rest[n : 2 * n]
    squares, b_squares = rest[2 * n : 3 * n], rest[3 * n : 4 * n]
    for i in range(n):
        # Not 0 for infinity, which has no deviation from itself.
        squares[at(i)] = a[at(i)] - a[at(i)]
    done, size = 0, 1
    while True:
        if w & size:
            if done:
                _join(mean, found, a, squares, done * unit, done, size, mean, found)
            else:
                _copy(a, mean)
                _copy(squares, found)
            done += size
        if done == w:
            break
        _join(a, squares, a, squares, size * unit, size, size, b, b_squares)
        a, b, squares, b_squares = b, a, b_squares, squares
        size *= 2


@jit_inner
def _join_counted(a: Array, b: Array, shift: int, to: Array) -> None:
    """Combine counts, means and squared deviations `a` with those of `b` before, for any counts."""
    n = len(a) // 3
    for i in range(n):
        count, mean, m2 = a[i], a[n + i], a[2 * n + i]
        if i >= shift and b[i - shift] > 0.0:
            more, other, squares = b[i - shift], b[n + i - shift], b[2 * n + i - shift]
            if count > 0.0:
                away, total = other - mean, count + more
                mean += away * (more / total)
                m2 += squares + away * away * (count * more / total)
                count = total
            else:
                count, mean, m2 = more, other, squares
        to[i], to[n + i], to[2 * n + i] = count, mean, m2


@jit_inner
def _counted_deviations(a: Array, unit: int, w: int) -> Array:
    """Return the counts, means and squared deviations of windows, with NaN left out."""
    n = len(a)
    states, other, found = np.zeros(3 * n), np.zeros(3 * n), np.zeros(3 * n)
    for i in range(n):
        if a[i] == a[i]:
            # Not 0 for infinity, which has no deviation from itself.
            states[i], states[n + i], states[2 * n + i] = 1.0, a[i], a[i] - a[i]
    done, size = 0, 1
    while True:
        if w & size:
            _join_counted(found, states, done * unit, other)
            found, other = other, found
            done += size
        if done == w:
            break
        _join_counted(states, states, size * unit, other)
        states, other = other, states
        size *= 2
    return found


@jit_inner
def _load(
    x: Array, place: Place, group: int, row: int, rows: int, column: int, unit: int, to: Array
) -> None:
    """Load rows of a group of lines, in so many columns, into the memory `to`."""
    first = place[0] + group * place[1] + row * place[2] + column
    if unit == 1 and place[2] == 1:
        for j in range(rows):
            to[at(j)] = x[at(first + j)]
    else:
        for j in range(rows):
            for i in range(unit):
                to[at(j * unit + i)] = x[at(first + j * place[2] + i)]


@jit_inner
def _store(found: Array, rows: int, unit: int, out: Array, to: int, inner: int) -> None:
    if unit == inner:
        for i in range(rows * unit):
            out[at(to + i)] = found[at(i)]
    else:
        for j in range(rows):
            for i in range(unit):
                out[at(to + j * inner + i)] = found[at(j * unit + i)]


@jit_inner
def _missing(a: Array) -> bool:
    """Return whether any element is NaN."""
    found = 0
    for i in range(len(a)):
        found += a[i] != a[i]
    return found > 0


@jit_inner
def _split(a: Array, neutral: float, counts: Array) -> None:
    """Replace NaN by a neutral element, and write to `counts` which elements count."""
    for i in range(len(a)):
        valid = a[i] == a[i]
        counts[i] = 1.0 if valid else 0.0
        a[i] = a[i] if valid else neutral


@jit_inner
def _gather(
    x: Array,
    place: Place,
    halo: Array,
    halo_place: Place,
    before: int,
    tile: Place,
    w: int,
    unit: int,
    a: Array,
) -> int:
    """Load a block and the elements before it; return the number of missing rows."""
    group, begin, rows, column = tile
    earlier = w - 1
    of_x = min(begin, earlier)
    of_halo = min(before, earlier - of_x)
    lost = earlier - of_x - of_halo
    _fill(a[: lost * unit], np.nan)
    for k in range(2):
        # One call of a function that takes long to compile.
        source, where = (x, place) if k else (halo, halo_place)
        row, count = (begin - of_x, of_x + rows) if k else (before - of_halo, of_halo)
        to = (lost + of_halo if k else lost) * unit
        _load(source, where, group, row, count, column, unit, a[to:])
    return lost


@jit_inner
def _divide(values: Array, by: float) -> None:
    for i in range(len(values)):
        values[at(i)] /= by


@jit_inner
def _divide_counted(values: Array, counts: Array, mean: bool, off: float, least: float) -> None:
    """Divide values by counts less `off`, if `mean`; make windows of too few elements NaN."""
    for i in range(len(values)):
        count, value = counts[at(i)], values[at(i)]
        value = value / (count - off) if mean else value
        values[at(i)] = value if count >= least else np.nan


@jit_inner
def _merge_base(means: Array, m2: Array, counts: Array, base: Array, first: int, unit: int) -> None:
    """Combine counts, means and squared deviations with the base of each line."""
    for i in range(len(m2)):
        more, count = base[0, first + i % unit], counts[i]
        if more > 0.0:
            away, total = base[1, first + i % unit] - means[i], more + count
            share = away * away * (more * count / total) if count > 0.0 else 0.0
            m2[i] += base[2, first + i % unit] + share
            counts[i] = total


def _move_sums(
    x: Array,
    place: Place,
    halo: Array,
    halo_place: Place,
    out: Array,
    shape: Place,
    before: int,
    w: int,
    mean: bool,
    least: float,
    bases: Array,
    block: Place,
) -> None:
    outer, n, inner = shape
    rows, lanes = block
    room = (rows + w - 1) * lanes
    memory, b_memory, found_memory = np.empty(room), np.empty(room), np.empty(room)
    counts_memory = np.empty(0)
    down, across = -(-n // rows), -(-inner // lanes)
    for part in range(outer * across * down):
        group, begin = part // (across * down), part % down * rows
        column = part // down % across * lanes
        unit, here = min(lanes, inner - column), min(rows, n - begin)
        a = memory[: (here + w - 1) * unit]
        b, found = b_memory[: len(a)], found_memory[: len(a)]
        lost = _gather(x, place, halo, halo_place, before, (group, begin, here, column), w, unit, a)
        plain = bases.shape[1] == 0 and (least == w or (least < w and lost == 0))
        plain = plain and not _missing(a[lost * unit :])
        results = found[(w - 1) * unit :]
        if plain:
            _fill(a[: lost * unit], 0.0)
            _sums(a, b, found, unit, w)
            if mean:
                _divide(results, w)
            _fill(results[: min(lost, here) * unit], np.nan)
        else:
            if len(counts_memory) == 0:
                counts_memory = np.empty(2 * room)
            valid, counts = counts_memory[: len(a)], counts_memory[room:][: len(a)]
            _split(a, 0.0, valid)
            _sums(a, b, found, unit, w)
            _sums(valid, b, counts, unit, w)
            many = counts[(w - 1) * unit :]
            if bases.shape[1]:
                of = group * inner + column
                for i in range(len(results)):
                    results[i] += bases[1, of + i % unit]
                    many[i] += bases[0, of + i % unit]
            _divide_counted(results, many, mean, 0.0, least)
        _store(results, here, unit, out, (group * n + begin) * inner + column, inner)


def _move_extremes(
    x: Array,
    place: Place,
    halo: Array,
    halo_place: Place,
    out: Array,
    shape: Place,
    before: int,
    w: int,
    lowest: bool,
    least: float,
    bases: Array,
    block: Place,
) -> None:
    outer, n, inner = shape
    rows, lanes = block
    room = (rows + w - 1) * lanes
    memory, b_memory, found_memory = np.empty(room), np.empty(room), np.empty(room)
    counts_memory = np.empty(0)
    sign = -1.0 if lowest else 1.0
    down, across = -(-n // rows), -(-inner // lanes)
    for part in range(outer * across * down):
        group, begin = part // (across * down), part % down * rows
        column = part // down % across * lanes
        unit, here = min(lanes, inner - column), min(rows, n - begin)
        a = memory[: (here + w - 1) * unit]
        b, found = b_memory[: len(a)], found_memory[: len(a)]
        lost = _gather(x, place, halo, halo_place, before, (group, begin, here, column), w, unit, a)
        plain = bases.shape[1] == 0 and (least == w or (least < w and lost == 0))
        plain = plain and not _missing(a[lost * unit :])
        results = found[(w - 1) * unit :]
        if lowest:
            for i in range(len(a)):
                a[i] = -a[i]
        if plain:
            _fill(a[: lost * unit], 0.0)
            _extremes(a, b, found, unit, w)
            for i in range(len(results)):
                results[i] *= sign
            _fill(results[: min(lost, here) * unit], np.nan)
        else:
            if len(counts_memory) == 0:
                counts_memory = np.empty(2 * room)
            valid, counts = counts_memory[: len(a)], counts_memory[room:][: len(a)]
            _split(a, -np.inf, valid)
            _extremes(a, b, found, unit, w)
            _sums(valid, b, counts, unit, w)
            many = counts[(w - 1) * unit :]
            if bases.shape[1]:
                of = group * inner + column
                for i in range(len(results)):
                    if bases[0, of + i % unit] > 0.0:
                        results[i] = max(results[i], sign * bases[1, of + i % unit])
                        many[i] += bases[0, of + i % unit]
            for i in range(len(results)):
                results[i] = sign * results[i] if many[i] >= least else np.nan
        _store(results, here, unit, out, (group * n + begin) * inner + column, inner)


def _move_deviations(
    x: Array,
    place: Place,
    halo: Array,
    halo_place: Place,
    out: Array,
    shape: Place,
    before: int,
    w: int,
    root: bool,
    least: float,
    ddof: float,
    bases: Array,
    block: Place,
) -> None:
    outer, n, inner = shape
    rows, lanes = block
    room = (rows + w - 1) * lanes
    memory, found_memory, rest = np.empty(room), np.empty(room), np.empty(4 * room)
    down, across = -(-n // rows), -(-inner // lanes)
    for part in range(outer * across * down):
        group, begin = part // (across * down), part % down * rows
        column = part // down % across * lanes
        unit, here = min(lanes, inner - column), min(rows, n - begin)
        a = memory[: (here + w - 1) * unit]
        found = found_memory[: len(a)]
        lost = _gather(x, place, halo, halo_place, before, (group, begin, here, column), w, unit, a)
        plain = bases.shape[1] == 0 and (least == w or (least < w and lost == 0))
        plain = plain and not _missing(a[lost * unit :])
        results = found[(w - 1) * unit :]
        if plain:
            _fill(a[: lost * unit], 0.0)
            _deviations(a, found, unit, w, rest)
            _divide(results, w - ddof)
        else:
            states = _counted_deviations(a, unit, w)
            skip = (w - 1) * unit
            many, means = states[skip : len(a)], states[len(a) + skip : 2 * len(a)]
            _copy(states[2 * len(a) + skip :], results)
            if bases.shape[1]:
                _merge_base(means, results, many, bases, group * inner + column, unit)
            _divide_counted(results, many, True, ddof, least)
        if root:
            for i in range(len(results)):
                results[i] = np.sqrt(results[i])
        if plain:
            _fill(results[: min(lost, here) * unit], np.nan)
        _store(results, here, unit, out, (group * n + begin) * inner + column, inner)


#: Write statistics of windows of lines, (outer, n, inner), into `out`, which is in C order. `bases`
#: has the counts and fields that each window of a line includes besides, or is empty. A block is so
#: many rows of so many columns.
move_sums: Final = jit(_move_sums)
move_extremes: Final = jit(_move_extremes)
move_deviations: Final = jit(_move_deviations)
