"""The loops of adding.py, compiled by Numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.jit import jit

Array = np.ndarray[Any, Any]

#: Sums of a line that are independent of one another, so that several are added to at a time.
_LANES = 256

#: Elements of a line that are multiplied as eight runs of neighbours, side by side.
_RUNS = 1024


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


def _multiply_rows(x: Array, step: int, n: int, products: Array) -> None:
    # Neighbours are multiplied with neighbours: every other element, or lane, may be huge.
    for line in range(len(products)):
        total = products.dtype.type(1)
        for start in range(line * step, line * step + n, _RUNS):
            part = x[start : min(start + _RUNS, line * step + n)]
            run = len(part) // 8
            a, b = total, products.dtype.type(1)
            c = d = e = f = g = h = b
            for i in range(run):
                a *= part[i]
                b *= part[run + i]
                c *= part[2 * run + i]
                d *= part[3 * run + i]
                e *= part[4 * run + i]
                f *= part[5 * run + i]
                g *= part[6 * run + i]
                h *= part[7 * run + i]
            total = ((a * b) * (c * d)) * ((e * f) * (g * h))
            for i in range(8 * run, len(part)):
                total *= part[i]
        products[line] = total


def _combine_columns(x: Array, step: int, n: int, results: Array, multiply: bool) -> None:
    results[:] = 1 if multiply else 0
    wide, width = results.dtype.type, len(results)
    for row in range(0, n - 3, 4):
        # A result is read and written once for four rows.
        a, b = x[row * step :][:width], x[(row + 1) * step :][:width]
        c, d = x[(row + 2) * step :][:width], x[(row + 3) * step :][:width]
        for i in range(width):
            if multiply:
                results[i] *= (wide(a[i]) * b[i]) * (wide(c[i]) * d[i])
            else:
                results[i] += (wide(a[i]) + b[i]) + (wide(c[i]) + d[i])
    for row in range(n // 4 * 4, n):
        a = x[row * step :][:width]
        for i in range(width):
            results[i] = results[i] * a[i] if multiply else results[i] + a[i]


#: Write the sums of lines of `n` elements, the first of which are `step` elements apart.
add_rows = jit(_add_rows)

#: Write their products.
multiply_rows = jit(_multiply_rows)

#: Write the sums, or products, of lines that are neighbours, in `n` rows of them that are `step`
#: elements apart.
combine_columns = jit(_combine_columns)
