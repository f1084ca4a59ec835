"""The loops of extrema, compiled by Numba.

Floats are read as integers, whose total order compilers can vectorize. In negative ones all bits
but the sign are flipped; NaN are then beyond infinity on either side::

    -nan  -inf  -1.0  -0.0  0.0  1.0  inf  nan      as floats
          ~limit       -1    0        limit         as integers
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.compiled.jit import jit, jit_inner

Array = Any

#: Elements of a line whose extrema are found at a time.
_BLOCK = 4096

#: Columns whose extrema stay in a cache.
_COLUMNS = 2048


@jit_inner
def find(part: Array, keep: Array, limit: Any, low: Any, high: Any) -> tuple[int, Any, Any]:
    """Return the number of NaN among elements that `keep` holds for, and extrema of the others."""
    integer, nans, lowest, highest = part.dtype.type, 0, high, low
    for i in range(len(part)):
        value, counts = part[i], True
        if keep is not None:
            counts &= keep[i]
        if limit is not None:
            value = integer(value ^ np.iinfo(integer).max) if value < 0 else value
            number = (value <= limit) & (value >= ~limit)
            nans += counts & (not number)
            counts &= number
        lowest = min(lowest, value if counts else high)
        highest = max(highest, value if counts else low)
    return nans, lowest, highest


def _extrema_of_rows(
    x: Array,
    step: int,
    n: int,
    keep: Array,
    limit: Any,
    low: Any,
    high: Any,
    nans: Array,
    lows: Array,
    highs: Array,
) -> None:
    some = None
    for line in range(len(nans)):
        found, lowest, highest = 0, high, low
        for start in range(0, n, _BLOCK):
            part = x[line * step + start :][: min(_BLOCK, n - start)]
            if keep is not None:
                some = keep[line * n + start :][: len(part)]
            count, a, b = find(part, some, limit, low, high)
            found, lowest, highest = found + count, min(lowest, a), max(highest, b)
        nans[line], lows[line], highs[line] = found, lowest, highest


@jit_inner
def _find_in_row(
    part: Array,
    keep: Array,
    limit: Any,
    low: Any,
    high: Any,
    nans: Array,
    lows: Array,
    highs: Array,
) -> None:
    """Do the work of `find` for columns, in one row."""
    integer = part.dtype.type
    for i in range(len(part)):
        value, counts = part[i], True
        if keep is not None:
            counts &= keep[i]
        if limit is not None:
            value = integer(value ^ np.iinfo(integer).max) if value < 0 else value
            number = (value <= limit) & (value >= ~limit)
            nans[i] += counts & (not number)
            counts &= number
        lows[i] = min(lows[i], value if counts else high)
        highs[i] = max(highs[i], value if counts else low)


def _extrema_of_columns(
    x: Array,
    line_step: int,
    step: int,
    n: int,
    inner: int,
    keep: Array,
    limit: Any,
    low: Any,
    high: Any,
    nans: Array,
    lows: Array,
    highs: Array,
) -> None:
    some = None
    lows[:] = high
    highs[:] = low
    for begin in range(0, len(nans), inner):
        for column in range(0, inner, _COLUMNS):
            width, first = min(_COLUMNS, inner - column), begin + column
            for row in range(n):
                part = x[begin // inner * line_step + row * step + column :][:width]
                if keep is not None:
                    some = keep[begin * n + row * inner + column :][:width]
                _find_in_row(
                    part,
                    some,
                    limit,
                    low,
                    high,
                    nans[first:][:width],
                    lows[first:][:width],
                    highs[first:][:width],
                )


#: Write for lines of `n` integers, `step` integers apart, the number of NaN, which are beyond
#: `limit`, and the extrema of the others, or `high` and `low` if there are no others.
extrema_of_rows: Final = jit(_extrema_of_rows)

#: Do the same for `inner` neighbouring lines, whose integers are `step` integers apart. `nans` are
#: zero at first.
extrema_of_columns: Final = jit(_extrema_of_columns)
