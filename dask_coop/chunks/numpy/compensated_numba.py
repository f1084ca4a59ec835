"""The loops of compensated.py, compiled by Numba.

Those that add are without fastmath, which would find that the error of an addition is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.jit import jit, jit_reassociated

Array = np.ndarray[Any, Any]

#: Sums of a line that are independent of one another, so that several are added to at a time.
_LANES = 32

#: Elements of a line that are selected at a time.
_BLOCK = 1024

#: The most elements of a line whose every addition is corrected. Of more, sums of four are.
_SHORT = 256

#: Columns whose sums stay in a cache.
_COLUMNS = 2048


@jit
def _add(before: Any, x: Any) -> tuple[Any, Any]:
    """Return a sum and its excess."""
    after = before + x
    added = after - before
    return after, (added - x) + ((after - added) - before)


@jit
def _settle(total: Any, excess: Any) -> Any:
    exact = total - excess
    return exact if exact - exact == 0 else total


@jit_reassociated
def _select(part: Array, keep: Array, skip: Any, into: Array) -> int:
    """Copy elements, or zeros where they do not count, and return how many do."""
    count = 0
    for i in range(len(part)):
        value, counts = np.float64(part[i]), True
        if skip is not None:
            counts = part[i] == part[i]
        if keep is not None:
            counts &= keep[i]
        into[i] = value if counts else 0.0
        count += counts
    return count


@jit
def _add_block(block: Array, n: int, lanes: Array, errors: Array) -> None:
    """Add a block of a line of `n` numbers to its lanes, and what that rounds off to `errors`."""
    four = len(block) // (4 * _LANES) * 4 * _LANES if n > _SHORT else 0
    for start in range(0, four, 4 * _LANES):
        a, b = block[start:][:_LANES], block[start + _LANES :][:_LANES]
        c, d = block[start + 2 * _LANES :][:_LANES], block[start + 3 * _LANES :][:_LANES]
        for i in range(_LANES):
            sums = (np.float64(a[i]) + np.float64(b[i])) + (np.float64(c[i]) + np.float64(d[i]))
            lanes[i], error = _add(lanes[i], sums)
            errors[i] += error
    for start in range(four, len(block), _LANES):
        part = block[start : min(start + _LANES, len(block))]
        for i in range(len(part)):
            lanes[i], error = _add(lanes[i], np.float64(part[i]))
            errors[i] += error


def _sum_rows(
    x: Array,
    step: int,
    n: int,
    keep: Array,
    skip: Any,
    counts: Array,
    totals: Array,
    excesses: Array,
    parts: int = 1,
) -> None:
    lanes, errors, space = np.empty(_LANES), np.empty(_LANES), np.empty(_BLOCK)
    some = None
    for line in range(len(totals) // parts):
        count = n
        if skip is not None or keep is not None:
            count = 0
        lanes[:] = 0
        errors[:] = 0
        for begin in range(0, n, _BLOCK):
            size = min(_BLOCK, n - begin)
            part = x[line * step + begin :][:size]
            if keep is not None:
                some = keep[line * n + begin :][:size]
            if skip is None and keep is None:
                _add_block(part, n, lanes, errors)
            else:
                count += _select(part, some, skip, space)
                _add_block(space[:size], n, lanes, errors)
        half = _LANES // 2
        while half > n:
            # What is behind a short line is zero.
            half //= 2
        while half >= parts:
            for i in range(half):
                lanes[i], error = _add(lanes[i], lanes[half + i])
                errors[i] += errors[half + i] + error
            half //= 2
        for which in range(parts):
            totals[line * parts + which] = lanes[which]
            excesses[line * parts + which] = errors[which]
        counts[line] = count


@jit_reassociated
def _select_row(part: Array, keep: Array, skip: Any, into: Array, counts: Array) -> None:
    """Do what `_select` does for one row of columns, each of which has its own count."""
    for i in range(len(part)):
        value, adds = np.float64(part[i]), True
        if skip is not None:
            adds = part[i] == part[i]
        if keep is not None:
            adds &= keep[i]
        into[i] = value if adds else 0.0
        counts[i] += adds


@jit
def _add_rows(x: Array, step: int, rows: int, n: int, total: Array, excess: Array) -> None:
    """Add up to four rows of columns of `n` numbers."""
    width = len(total)
    if rows == 4 and n > _SHORT:
        a, b, c, d = x[:width], x[step:][:width], x[2 * step :][:width], x[3 * step :][:width]
        for i in range(width):
            sums = (np.float64(a[i]) + np.float64(b[i])) + (np.float64(c[i]) + np.float64(d[i]))
            total[i], error = _add(total[i], sums)
            excess[i] += error
        return
    for row in range(rows):
        part = x[row * step :][:width]
        for i in range(width):
            total[i], error = _add(total[i], np.float64(part[i]))
            excess[i] += error


def _sum_columns(
    x: Array,
    line_step: int,
    step: int,
    n: int,
    inner: int,
    keep: Array,
    skip: Any,
    counts: Array,
    totals: Array,
    excesses: Array,
) -> None:
    space, some = np.empty((4, _COLUMNS)), None
    if skip is None and keep is None:
        counts[:] = n
    for line in range(len(totals) // inner):
        for column in range(0, inner, _COLUMNS):
            width = min(_COLUMNS, inner - column)
            place = line * inner + column
            total, excess = totals[place:][:width], excesses[place:][:width]
            for row in range(0, n, 4):
                four = min(4, n - row)
                at, to = line * line_step + row * step + column, (line * n + row) * inner + column
                if skip is None and keep is None:
                    _add_rows(x[at:], step, four, n, total, excess)
                    continue
                for k in range(four):
                    if keep is not None:
                        some = keep[to + k * inner :][:width]
                    part = x[at + k * step :][:width]
                    _select_row(part, some, skip, space[k], counts[place:])
                _add_rows(space.ravel(), _COLUMNS, four, n, total, excess)


@jit
def _scan_eights(
    row: Array, into: Array, begin: int, nothing: Any, total: Any, excess: Any
) -> tuple[Any, ...]:
    """Scan eight elements at a time from `begin` on, while sums are finite.

    The eight are added to one another, and then to the total, all at the same time. Return where
    that ends, and the state there.
    """
    end = begin + (len(row) - begin) // 8 * 8
    for i in range(begin, end, 8):
        # What changes nothing makes a float64 of a float32.
        a = nothing + row[i]
        b = a + row[i + 1]
        c = b + row[i + 2]
        d = c + row[i + 3]
        e = d + row[i + 4]
        f = e + row[i + 5]
        g = f + row[i + 6]
        h = g + row[i + 7]
        after, error = _add(total, h)
        error += excess
        a, b, c = (a - excess) + total, (b - excess) + total, (c - excess) + total
        d, e, f = (d - excess) + total, (e - excess) + total, (f - excess) + total
        g, h = (g - excess) + total, after - error
        # Where one is not finite, neither is the sum.
        checked = ((a + b) + (c + d)) + ((e + f) + (g + h))
        if checked - checked != 0:
            return i, total, excess
        into[i], into[i + 1], into[i + 2], into[i + 3] = a, b, c, d
        into[i + 4], into[i + 5], into[i + 6], into[i + 7] = e, f, g, h
        total, excess = after, error
    return end, total, excess


def _scan_rows(
    x: Array,
    out: Array,
    heads: Array,
    flagged: bool,
    skip: bool,
    exclusive: bool,
    nothing: Any,
    totals: Array,
    excesses: Array,
) -> None:
    wide = totals.dtype.type
    zero = wide(0)
    n = x.shape[1]
    for line in range(len(totals)):
        total, excess = totals[line], excesses[line]
        row, into, at = x[line], out[line], 0
        while at < n:
            if exclusive and not skip and not flagged:
                into[at] = _settle(total, excess)
                at, total, excess = _scan_eights(row[:-1], into[1:], at, nothing, total, excess)
            elif not skip and not flagged:
                at, total, excess = _scan_eights(row, into, at, nothing, total, excess)
            end = min(at + 8, n)
            for i in range(at, end):
                value = wide(row[i])
                if skip and value != value:
                    value = zero
                restart = flagged and heads[line, i]
                if restart:
                    total, excess = nothing, zero
                if exclusive:
                    into[i] = zero if restart else _settle(total, excess)
                total, error = _add(total, value)
                excess += error
                if not exclusive:
                    into[i] = _settle(total, excess)
            at = end
        totals[line], excesses[line] = total, excess


def _scan_columns(
    x: Array,
    first: int,
    line_step: int,
    step: int,
    out: Array,
    out_first: int,
    out_line_step: int,
    out_step: int,
    n: int,
    inner: int,
    heads: Array,
    flagged: bool,
    skip: bool,
    exclusive: bool,
    nothing: Any,
    totals: Array,
    excesses: Array,
) -> None:
    wide = totals.dtype.type
    zero = wide(0)
    for line in range(len(totals) // inner):
        for column in range(0, inner, _COLUMNS):
            width = min(_COLUMNS, inner - column)
            total = totals[line * inner + column :][:width]
            excess = excesses[line * inner + column :][:width]
            for row in range(n):
                part = x[first + line * line_step + row * step + column :][:width]
                into = out[out_first + line * out_line_step + row * out_step + column :][:width]
                if flagged:
                    for i in range(width):
                        if heads[line, row, column + i]:
                            total[i], excess[i] = nothing, zero
                if exclusive:
                    for i in range(width):
                        into[i] = _settle(total[i], excess[i])
                        if flagged and heads[line, row, column + i]:
                            into[i] = zero
                for i in range(width):
                    value = wide(part[i])
                    value = zero if skip and value != value else value
                    total[i], error = _add(total[i], value)
                    excess[i] += error
                if not exclusive:
                    for i in range(width):
                        into[i] = _settle(total[i], excess[i])


#: Write the sums of lines of `n` numbers, the first of which are `step` numbers apart, their
#: excesses and how many numbers count: those that `keep` holds for and, unless `skip` is None, that
#: are not NaN. Of lines of complex numbers `parts` are neighbours, of which all count.
sum_rows = jit(_sum_rows)

#: Add to the sums of columns, to their excesses and to their counts.
sum_columns = jit(_sum_columns)

#: Scan the rows of `x` into those of `out`, from `totals` and `excesses` on, which become those of
#: all. Sums restart from `nothing` at `heads`, if `flagged`. With `skip`, NaN are zero.
scan_rows = jit(_scan_rows)

#: Scan `inner` lines that are neighbours. `first` is where in memory the first element of a scan
#: is; steps are in elements, from one group of such lines to the next, and along a line.
scan_columns = jit(_scan_columns)
