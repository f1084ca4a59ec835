"""The loops of compensated.py, compiled by Numba.

Without fastmath, which would find that the error of an addition is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.jit import jit

Array = np.ndarray[Any, Any]

#: Sums of a line that are independent of one another, so that several are added to at a time.
_LANES = 32

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


def _sum_rows(x: Array, step: int, n: int, parts: int, totals: Array, excesses: Array) -> None:
    lanes, errors = np.empty(_LANES), np.empty(_LANES)
    wide = totals.dtype.type
    four = n // (4 * _LANES) * 4 * _LANES if n > _SHORT else 0
    for line in range(len(totals) // parts):
        begin = line * step
        if n < _LANES:
            for which in range(parts):
                total, excess = 0.0, 0.0
                for i in range(begin + which, begin + n, parts):
                    total, error = _add(total, wide(x[i]))
                    excess += error
                totals[line * parts + which], excesses[line * parts + which] = total, excess
            continue
        lanes[:] = 0
        errors[:] = 0
        for start in range(begin, begin + four, 4 * _LANES):
            a, b = x[start:][:_LANES], x[start + _LANES :][:_LANES]
            c, d = x[start + 2 * _LANES :][:_LANES], x[start + 3 * _LANES :][:_LANES]
            for i in range(_LANES):
                sums = (wide(a[i]) + wide(b[i])) + (wide(c[i]) + wide(d[i]))
                lanes[i], error = _add(lanes[i], sums)
                errors[i] += error
        for start in range(begin + four, begin + n, _LANES):
            part = x[start : min(start + _LANES, begin + n)]
            for i in range(len(part)):
                lanes[i], error = _add(lanes[i], wide(part[i]))
                errors[i] += error
        half = _LANES // 2
        while half >= parts:
            for i in range(half):
                lanes[i], error = _add(lanes[i], lanes[half + i])
                errors[i] += errors[half + i] + error
            half //= 2
        for which in range(parts):
            totals[line * parts + which] = lanes[which]
            excesses[line * parts + which] = errors[which]


def _sum_columns(
    x: Array, line_step: int, step: int, n: int, inner: int, totals: Array, excesses: Array
) -> None:
    wide = totals.dtype.type
    four = n // 4 * 4 if n > _SHORT else 0
    for line in range(len(totals) // inner):
        for column in range(0, inner, _COLUMNS):
            width = min(_COLUMNS, inner - column)
            total = totals[line * inner + column :][:width]
            excess = excesses[line * inner + column :][:width]
            first = line * line_step + column
            for row in range(0, four, 4):
                at = first + row * step
                a, b = x[at:][:width], x[at + step :][:width]
                c, d = x[at + 2 * step :][:width], x[at + 3 * step :][:width]
                for i in range(width):
                    sums = (wide(a[i]) + wide(b[i])) + (wide(c[i]) + wide(d[i]))
                    total[i], error = _add(total[i], sums)
                    excess[i] += error
            for row in range(four, n):
                part = x[first + row * step :][:width]
                for i in range(width):
                    total[i], error = _add(total[i], wide(part[i]))
                    excess[i] += error


#: Write the sums of lines of `n` numbers, the first of which are `step` numbers apart, and their
#: excesses; of lines of complex numbers, `parts` of which are neighbours.
sum_rows = jit(_sum_rows)

#: Add to the sums of columns and to their excesses.
sum_columns = jit(_sum_columns)
