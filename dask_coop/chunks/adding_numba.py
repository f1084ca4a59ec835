"""The loops of chunks/adding.py and chunks/numpy_scan.py, compiled by Numba when first called.

They release the GIL, and are compiled without fastmath, which would change the order of operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

Array = np.ndarray[Any, Any]

#: Sums of a line that are independent of one another, so that several are added to at a time.
_LANES = 256


def _jit(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(function, nogil=True, cache=True)
    except RuntimeError:
        # There is no folder to keep the machine code in.
        return numba.njit(function, nogil=True)


def _add_rows(x: Array, step: int, n: int, sums: Array) -> None:
    lanes = np.empty(_LANES, sums.dtype)
    for line in range(len(sums)):
        lanes[:] = 0
        for start in range(line * step, line * step + n, _LANES):
            part = x[start : min(start + _LANES, line * step + n)]
            for i in range(len(part)):
                lanes[i] += part[i]
        half = _LANES // 2
        while half:
            for i in range(half):
                lanes[i] += lanes[half + i]
            half //= 2
        sums[line] = lanes[0]


def _add_columns(x: Array, step: int, n: int, sums: Array) -> None:
    sums[:] = 0
    for row in range(n):
        part = x[row * step : row * step + len(sums)]
        for i in range(len(sums)):
            sums[i] += part[i]


def _scan(
    x: Array, out: Array, totals: Array, neutral: Any, multiply: bool, skip: bool, exclusive: bool
) -> None:
    for line in range(x.shape[0]):
        total = totals[line]
        for i in range(x.shape[1]):
            element = x[line, i]
            value = neutral if skip and element != element else element
            before = total
            total = total * value if multiply else total + value
            out[line, i] = before if exclusive else total
        totals[line] = total


#: Write the sums of lines of `n` elements, the first of which are `step` elements apart.
add_rows = _jit(_add_rows)

#: Write the sums of lines that are neighbours, in `n` rows of them that are `step` elements apart.
add_columns = _jit(_add_columns)

#: Scan the rows of `x` into `out`, from `totals` on, which become those of all. With `skip`, NaN
#: are `neutral`.
scan = _jit(_scan)
