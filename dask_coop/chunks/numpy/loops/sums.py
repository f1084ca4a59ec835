"""The loops of adding.py, compiled by Numba."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.compiled.jit import jit, jit_inner_reassociated

Array = Any

#: Elements that are added in any order before their total is added to the sum.
_BLOCK = 4096

#: Columns whose sums stay in a cache.
_COLUMNS = 4096

#: Elements of a line that are multiplied as eight runs of neighbours, side by side.
_RUNS = 1024


@jit_inner_reassociated
def add(
    part: Array, keep: Array, skip: Any, square: Any, truth: Any, total: Any
) -> tuple[int, Any]:
    """Add the elements of a block that count, or their squares, or ones for nonzero, to `total`."""
    count, zero = 0, total - total
    for i in range(len(part)):
        value = zero + (part[i] if truth is None else part[i] != 0)
        if square is not None:
            value *= value
        if skip is not None or keep is not None:
            counts = True
            if skip is not None:
                counts = part[i] == part[i]
            if keep is not None:
                counts &= keep[i]
            value = value if counts else zero
            count += counts
        total += value
    return count, total


@jit_inner_reassociated
def _count(part: Array) -> Any:
    """Return the number of nonzero elements in a block, in an integer as wide as most elements."""
    count = np.int32(0)
    for i in range(len(part)):
        count = np.int32(count + np.int32(part[i] != 0))
    return count


def _add_rows(
    x: Array,
    step: int,
    n: int,
    keep: Array,
    skip: Any,
    square: Any,
    truth: Any,
    counts: Array,
    sums: Array,
) -> None:
    some, zero = None, sums.dtype.type(0)
    for line in range(len(sums)):
        count, total = n, zero
        if skip is not None or keep is not None:
            count = 0
        for start in range(0, n, _BLOCK):
            part = x[line * step + start :][: min(_BLOCK, n - start)]
            if keep is not None:
                some = keep[line * n + start :][: len(part)]
            if truth is not None and skip is None and keep is None:
                total += _count(part)
                continue
            found, added = add(part, some, skip, square, truth, zero)
            count += found
            total += added
        counts[line], sums[line] = count, total


@jit_inner_reassociated
def _add_row(
    part: Array, keep: Array, skip: Any, square: Any, truth: Any, counts: Array, sums: Array
) -> None:
    zero = sums.dtype.type(0)
    for i in range(len(part)):
        value = zero + (part[i] if truth is None else part[i] != 0)
        if square is not None:
            value *= value
        if skip is not None or keep is not None:
            adds = True
            if skip is not None:
                adds = part[i] == part[i]
            if keep is not None:
                adds &= keep[i]
            value = value if adds else zero
            counts[i] += adds
        sums[i] += value


def _add_columns(
    x: Array,
    line_step: int,
    step: int,
    n: int,
    inner: int,
    keep: Array,
    skip: Any,
    square: Any,
    truth: Any,
    counts: Array,
    sums: Array,
) -> None:
    some = None
    if skip is None and keep is None:
        counts[:] = n
    for begin in range(0, len(sums), inner):
        for column in range(0, inner, _COLUMNS):
            width = min(_COLUMNS, inner - column)
            found, total = counts[begin + column :][:width], sums[begin + column :][:width]
            for row in range(n):
                part = x[begin // inner * line_step + row * step + column :][:width]
                if keep is not None:
                    some = keep[begin * n + row * inner + column :][:width]
                _add_row(part, some, skip, square, truth, found, total)


def _multiply_rows(x: Array, step: int, n: int, products: Array) -> None:
    # Multiply neighbours with neighbours: every other element, or lane, may be huge.
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
        # Each result is read and written once for four rows.
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


#: Write the sums of lines of `n` elements, which start `step` elements apart, and the counts of
#: elements that `keep` holds for and, unless `skip` is None, that are not NaN. Unless they are
#: None, `square` sums squares instead, and `truth` counts nonzero elements.
add_rows: Final = jit(_add_rows)

#: Do the same for `inner` neighbouring lines, whose elements are `step` elements apart. Counts and
#: sums are zero at first.
add_columns: Final = jit(_add_columns)

#: Write the products of lines.
multiply_rows: Final = jit(_multiply_rows)

#: Write the sums, or products, of neighbouring lines, in `n` rows of them that are `step` elements
#: apart.
combine_columns: Final = jit(_combine_columns)
