"""The loops of chunks/compensated.py and chunks/numpy_scan.py, compiled by Numba.

An addition and its error, by A. Neumaier; without fastmath, which would find that there is none::

    sum    = large + small     (in magnitude)
    excess = (sum - large) - small
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.jit import jit

Array = np.ndarray[Any, Any]

#: Sums of a line that are independent of one another, so that several are added to at a time.
_LANES = 32

#: The most elements of a line that are added up one by one.
_SHORT = 256

#: Columns whose sums stay in a cache.
_COLUMNS = 2048


@jit
def _add(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a sum and its excess."""
    total = a + b
    small_first = abs(a) < abs(b)
    large, small = (b, a) if small_first else (a, b)
    return total, (total - large) - small


def _sum_rows(x: Array, step: int, n: int, parts: int, totals: Array, excesses: Array) -> None:
    lanes, errors = np.empty(_LANES), np.empty(_LANES)
    wide = totals.dtype.type
    for line in range(len(totals) // parts):
        begin = line * step
        if n > _SHORT:
            lanes[:] = 0
            errors[:] = 0
            for start in range(begin, begin + n, _LANES):
                part = x[start : min(start + _LANES, begin + n)]
                for i in range(len(part)):
                    lanes[i], error = _add(lanes[i], wide(part[i]))
                    errors[i] += error
        for which in range(parts):
            total, excess = 0.0, 0.0
            if n > _SHORT:
                for i in range(which, _LANES, parts):
                    total, error = _add(total, lanes[i])
                    excess += errors[i] + error
            else:
                for i in range(begin + which, begin + n, parts):
                    total, error = _add(total, wide(x[i]))
                    excess += error
            totals[line * parts + which], excesses[line * parts + which] = total, excess


def _sum_columns(
    x: Array, line_step: int, step: int, n: int, inner: int, totals: Array, excesses: Array
) -> None:
    wide = totals.dtype.type
    for line in range(len(totals) // inner):
        for column in range(0, inner, _COLUMNS):
            width = min(_COLUMNS, inner - column)
            total = totals[line * inner + column :][:width]
            excess = excesses[line * inner + column :][:width]
            for row in range(n):
                part = x[line * line_step + row * step + column :][:width]
                for i in range(width):
                    total[i], error = _add(total[i], wide(part[i]))
                    excess[i] += error


#: Write the sums of lines of `n` numbers, the first of which are `step` numbers apart, and their
#: excesses; of lines of complex numbers, `parts` of which are neighbours.
sum_rows = jit(_sum_rows)

#: Add to the sums of columns and to their excesses.
sum_columns = jit(_sum_columns)
