"""The loops of compensated.py, compiled by Numba.

Loops that add have no fastmath, which would simplify the error of an addition to zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.compiled.jit import jit, jit_inner, jit_inner_reassociated

Array = np.ndarray[Any, Any]

#: Independent sums of a line, so that several additions run at a time.
_LANES = 16

#: Elements of a line that are selected at a time.
_BLOCK = 1024

#: The most elements of a line in which every addition is corrected, and not sums of four.
_SHORT = 256

#: Columns whose sums stay in a cache.
_COLUMNS = 2048


@jit_inner
def two_sum(before: Any, x: Any) -> tuple[Any, Any]:
    """Return a sum and its excess over the exact sum."""
    after = before + x
    added = after - before
    return after, (added - x) + ((after - added) - before)


@jit_inner_reassociated
def _select(part: Array, keep: Array, skip: Any, into: Array) -> int:
    """Copy elements, or zeros where they do not count, and return the number that count."""
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


@jit_inner
def _add_block(block: Array, n: int, lanes: Array, errors: Array) -> None:
    """Add a block of a line of `n` numbers to its lanes, and the rounding errors to `errors`."""
    four = len(block) // (4 * _LANES) * 4 * _LANES if n > _SHORT else 0
    for start in range(0, four, 4 * _LANES):
        # One array: with several, the loop would check again and again whether they overlap.
        part = block[start:][: 4 * _LANES]
        for i in range(_LANES):
            a, b = np.float64(part[i]), np.float64(part[i + _LANES])
            c, d = np.float64(part[i + 2 * _LANES]), np.float64(part[i + 3 * _LANES])
            lanes[i], error = two_sum(lanes[i], (a + b) + (c + d))
            errors[i] += error
    for start in range(four, len(block), _LANES):
        part = block[start : start + _LANES]
        for i in range(len(part)):
            lanes[i], error = two_sum(lanes[i], np.float64(part[i]))
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
    parts: int,
    lanes: Array,
    errors: Array,
    space: Array,
) -> None:
    some = None
    for line in range(len(totals) // parts):
        count = n
        if skip is not None or keep is not None:
            count = 0
        for i in range(_LANES):
            lanes[i] = 0
        for i in range(_LANES):
            errors[i] = 0
        for begin in range(0, n, _BLOCK):
            size = _BLOCK if n - begin > _BLOCK else n - begin
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
            # The buffer holds zeros behind a short line.
            half //= 2
        while half >= parts:
            for i in range(half):
                lanes[i], error = two_sum(lanes[i], lanes[half + i])
                errors[i] += errors[half + i] + error
            half //= 2
        for which in range(parts):
            totals[line * parts + which] = lanes[which]
            excesses[line * parts + which] = errors[which]
        counts[line] = count


@jit_inner_reassociated
def _select_row(part: Array, keep: Array, skip: Any, into: Array, counts: Array) -> None:
    """Do the work of `_select` for one row of columns, each with its own count."""
    for i in range(len(part)):
        value, adds = np.float64(part[i]), True
        if skip is not None:
            adds = part[i] == part[i]
        if keep is not None:
            adds &= keep[i]
        into[i] = value if adds else 0.0
        counts[i] += adds


@jit_inner
def _add_rows(x: Array, step: int, rows: int, n: int, total: Array, excess: Array) -> None:
    """Add up to four rows of columns of `n` numbers."""
    width = len(total)
    if rows == 4 and n > _SHORT:
        a, b, c, d = x[:width], x[step:][:width], x[2 * step :][:width], x[3 * step :][:width]
        for i in range(width):
            sums = (np.float64(a[i]) + np.float64(b[i])) + (np.float64(c[i]) + np.float64(d[i]))
            total[i], error = two_sum(total[i], sums)
            excess[i] += error
        return
    for row in range(rows):
        part = x[row * step :][:width]
        for i in range(width):
            total[i], error = two_sum(total[i], np.float64(part[i]))
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
    space: Array,
) -> None:
    some = None
    if skip is None and keep is None:
        for i in range(len(counts)):
            counts[i] = n
    for line in range(len(totals) // inner):
        for column in range(0, inner, _COLUMNS):
            width = _COLUMNS if inner - column > _COLUMNS else inner - column
            place = line * inner + column
            total, excess = totals[place:][:width], excesses[place:][:width]
            for row in range(0, n, 4):
                four = 4 if n - row > 4 else n - row
                at, to = line * line_step + row * step + column, (line * n + row) * inner + column
                if skip is None and keep is None:
                    _add_rows(x[at:], step, four, n, total, excess)
                    continue
                for k in range(four):
                    if keep is not None:
                        some = keep[to + k * inner :][:width]
                    part = x[at + k * step :][:width]
                    _select_row(part, some, skip, space[k * _COLUMNS :], counts[place:])
                _add_rows(space, _COLUMNS, four, n, total, excess)


_of_rows: Any = jit(_sum_rows, allocates=False)
_of_columns: Any = jit(_sum_columns, allocates=False)


# The loops' own memory is made here, as loops that make none compile faster.
# In lines of complex numbers, `parts` are neighbours, and all count.


def sum_rows(*arguments: Any, parts: int = 1) -> None:
    """Write the sums of lines of `n` numbers, their excesses and their counts.

    The lines start `step` numbers apart. Those numbers are counted for which `keep` holds and that
    are not NaN unless `skip` is None.
    """
    _of_rows(*arguments, parts, np.empty(_LANES), np.empty(_LANES), np.empty(_BLOCK))


def sum_columns(*arguments: Any) -> None:
    """Add to the sums of columns, to their excesses and to their counts."""
    _of_columns(*arguments, np.empty(4 * _COLUMNS))
