"""The loops of windows.py, compiled by Numba.

A block of lines is loaded as float64, with what its first windows hold besides, and windows of four,
sixteen and so on are made of four neighbours each; those that make up the length that is wanted are
combined::

    length 9 = 1 + 2 * 4      a b c d e f g h i      (a b c d) (e f g h) i

Lines are rows, or some neighbouring columns: there elements of a line are `unit` apart. Where all
elements count, which is looked at first, a window's number of elements is known. Elsewhere NaN and
what lies before the array add nothing to values and counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.jit import jit, jit_inner
from dask_coop.chunks.numpy.scan_numba import at

Array = np.ndarray[Any, Any]
Place = tuple[int, ...]


@jit_inner
def _add(a: Array, b: Array, shift: int, times: int, size: int) -> None:
    """Add to elements of `a` one to three of `b`, `shift` and then `size` elements before."""
    end = len(a)
    if times == 1:
        for i in range(shift, end):
            a[at(i)] += b[at(i - shift)]
    elif times == 2:
        for i in range(shift + size, end):
            a[at(i)] += b[at(i - shift)] + b[at(i - shift - size)]
    else:
        for i in range(shift + 2 * size, end):
            far = b[at(i - shift - size)] + b[at(i - shift - 2 * size)]
            a[at(i)] += b[at(i - shift)] + far


@jit_inner
def _sums(a: Array, b: Array, found: Array, unit: int, w: int) -> None:
    """Put the sums of windows of `a` into `found`; `a` and `b` are used up.

    Those of windows that begin before the first element are not right.
    """
    end, done, size = len(a), 0, unit
    found[:] = 0.0
    while w:
        times = w % 4
        if times:
            _add(found, a, done, times, size)
            done += times * size
        w //= 4
        if w:
            for i in range(3 * size, end):
                far = a[at(i - 2 * size)] + a[at(i - 3 * size)]
                b[at(i)] = (a[at(i)] + a[at(i - size)]) + far
            a, b = b, a
            size *= 4


@jit_inner
def _extremes(a: Array, b: Array, found: Array, unit: int, w: int) -> None:
    """Put the largest elements of windows of `a` into `found`, as `_sums` does."""
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
    # Loops over fewer arrays are compiled to do several elements at a time.
    for i in range(shift, len(mean)):
        away = others[at(i - shift)] - mean[at(i)]
        to_m2[at(i)] = m2[at(i)] + squares[at(i - shift)] + away * away * product
    for i in range(shift, len(mean)):
        to_mean[at(i)] = mean[at(i)] + (others[at(i - shift)] - mean[at(i)]) * share


@jit_inner
def _deviations(a: Array, found: Array, unit: int, w: int, rest: Array) -> None:
    """Put the squared deviations of windows of `a` from their means into `found`.

    `rest` is memory of four times as much to work with.
    """
    n = len(a)
    b, mean = rest[:n], rest[n : 2 * n]
    squares, b_squares = rest[2 * n : 3 * n], rest[3 * n : 4 * n]
    squares[:] = 0.0
    done, size = 0, 1
    while True:
        if w & size:
            if done:
                _join(mean, found, a, squares, done * unit, done, size, mean, found)
            else:
                mean[:], found[:] = a, squares
            done += size
        if done == w:
            break
        _join(a, squares, a, squares, size * unit, size, size, b, b_squares)
        a, b, squares, b_squares = b, a, b_squares, squares
        size *= 2


@jit_inner
def _join_counted(to: Array, others: Array, shift: int, into: Array) -> None:
    """Combine counts, means and squared deviations with those before them, whatever the counts."""
    for i in range(len(to[0])):
        count, mean, m2 = to[0, i], to[1, i], to[2, i]
        if i >= shift and others[0, i - shift] > 0.0:
            more = others[0, i - shift]
            if count > 0.0:
                away, total = others[1, i - shift] - mean, count + more
                mean += away * (more / total)
                m2 += others[2, i - shift] + away * away * (count * more / total)
            else:
                mean, m2 = others[1, i - shift], others[2, i - shift]
            count += more
        into[0, i], into[1, i], into[2, i] = count, mean, m2


@jit_inner
def _counted_deviations(a: Array, found: Array, counts: Array, unit: int, w: int) -> None:
    """Do what `_deviations` does, of windows with as many elements as `counts` will have."""
    n = len(a)
    state, other, result = np.zeros((3, n)), np.empty((3, n)), np.zeros((3, n))
    for i in range(n):
        if a[i] == a[i]:
            state[0, i], state[1, i] = 1.0, a[i]
    done, size = 0, 1
    while True:
        if w & size:
            _join_counted(result, state, done * unit, other)
            result, other = other, result
            done += size
        if done == w:
            break
        _join_counted(state, state, size * unit, other)
        state, other = other, state
        size *= 2
    a[:], found[:], counts[:] = result[1], result[2], result[0]


@jit_inner
def _load(
    x: Array, place: Place, group: int, row: int, rows: int, column: int, unit: int, to: Array
) -> None:
    """Put rows of a group of lines, and so many columns of them, into the memory `to`."""
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
    """Tell whether there is a NaN."""
    found = 0
    for i in range(len(a)):
        found += a[i] != a[i]
    return found > 0


@jit_inner
def _split(a: Array, neutral: float, counts: Array) -> None:
    """Put what changes nothing in the place of NaN, and into `counts` what counts."""
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
    """Load a block and what its first windows hold besides; return how many rows are missing."""
    group, begin, rows, column = tile
    earlier = w - 1
    of_x = min(begin, earlier)
    of_halo = min(before, earlier - of_x)
    lost = earlier - of_x - of_halo
    a[: lost * unit] = np.nan
    _load(halo, halo_place, group, before - of_halo, of_halo, column, unit, a[lost * unit :])
    _load(x, place, group, begin - of_x, of_x + rows, column, unit, a[(lost + of_halo) * unit :])
    return lost


@jit_inner
def _divide(values: Array, by: float) -> None:
    for i in range(len(values)):
        values[at(i)] /= by


@jit_inner
def _divide_counted(values: Array, counts: Array, mean: bool, off: float, least: float) -> None:
    """Divide values by their counts, less `off`, if wanted; leave those of enough elements."""
    for i in range(len(values)):
        count, value = counts[at(i)], values[at(i)]
        value = value / (count - off) if mean else value
        values[at(i)] = value if count >= least else np.nan


@jit_inner
def _merge_base(means: Array, m2: Array, counts: Array, base: Array, first: int, unit: int) -> None:
    """Combine counts, means and squared deviations with those that each line has besides."""
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
        plain = bases.shape[1] == 0 and (lost == 0 or least == w)
        plain = plain and not _missing(a[lost * unit :])
        results = found[(w - 1) * unit :]
        if plain:
            a[: lost * unit] = 0.0
            _sums(a, b, found, unit, w)
            if mean:
                _divide(results, w)
            results[: min(lost, here) * unit] = np.nan
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
        plain = bases.shape[1] == 0 and (lost == 0 or least == w)
        plain = plain and not _missing(a[lost * unit :])
        results = found[(w - 1) * unit :]
        if lowest:
            for i in range(len(a)):
                a[i] = -a[i]
        if plain:
            a[: lost * unit] = 0.0
            _extremes(a, b, found, unit, w)
            for i in range(len(results)):
                results[i] *= sign
            results[: min(lost, here) * unit] = np.nan
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
    counts_memory = np.empty(0)
    down, across = -(-n // rows), -(-inner // lanes)
    for part in range(outer * across * down):
        group, begin = part // (across * down), part % down * rows
        column = part // down % across * lanes
        unit, here = min(lanes, inner - column), min(rows, n - begin)
        a = memory[: (here + w - 1) * unit]
        found = found_memory[: len(a)]
        lost = _gather(x, place, halo, halo_place, before, (group, begin, here, column), w, unit, a)
        plain = bases.shape[1] == 0 and (lost == 0 or least == w)
        plain = plain and not _missing(a[lost * unit :])
        results = found[(w - 1) * unit :]
        if plain:
            a[: lost * unit] = 0.0
            _deviations(a, found, unit, w, rest)
            _divide(results, w - ddof)
        else:
            if len(counts_memory) == 0:
                counts_memory = np.empty(room)
            counts = counts_memory[: len(a)]
            _counted_deviations(a, found, counts, unit, w)
            means, many = a[(w - 1) * unit :], counts[(w - 1) * unit :]
            if bases.shape[1]:
                _merge_base(means, results, many, bases, group * inner + column, unit)
            _divide_counted(results, many, True, ddof, least)
        if root:
            for i in range(len(results)):
                results[i] = np.sqrt(results[i])
        if plain:
            results[: min(lost, here) * unit] = np.nan
        _store(results, here, unit, out, (group * n + begin) * inner + column, inner)


#: Write statistics of windows of lines, (outer, n, inner), into `out`, which is in C order. `bases`
#: has counts and what goes with them that each window of a line has besides, or nothing. A block is
#: so many rows of so many columns.
move_sums = jit(_move_sums)
move_extremes = jit(_move_extremes)
move_deviations = jit(_move_deviations)
