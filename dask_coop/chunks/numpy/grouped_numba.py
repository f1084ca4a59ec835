"""The loops of groups, compiled by Numba: along lines, and across lines that are neighbours.

A table has a row for each line or block of columns, and in it an entry for each group. Along lines
four are read side by side, each with entries of its own, for an addition has to wait for the one
before it in the same entry. Across lines, elements of neighbours go to entries that are neighbours,
four at a time where as many follow one another in a group.

What there is no table for is None, and a loop is compiled for the tables that there are, and anew
for `skip`, which leaves NaN out where it is not None.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.jit import jit, jit_inner

Array = Any

#: Columns whose entries of a few groups stay in a cache, and elements of lines that do.
_COLUMNS, _BLOCK = 2048, 1024


@jit_inner
def _add_four(skip: Any, xs: Any, codes: Any, totals: Any) -> None:
    a, b, c, d = xs
    p, q, r, s = codes
    e, f, g, h = totals
    for i in range(len(a)):
        if p[i] >= 0 and (skip is None or a[i] == a[i]):
            e[p[i]] += a[i]
        if q[i] >= 0 and (skip is None or b[i] == b[i]):
            f[q[i]] += b[i]
        if r[i] >= 0 and (skip is None or c[i] == c[i]):
            g[r[i]] += c[i]
        if s[i] >= 0 and (skip is None or d[i] == d[i]):
            h[s[i]] += d[i]


@jit_inner
def _count_four(skip: Any, xs: Any, codes: Any, counts: Any) -> None:
    a, b, c, d = xs
    p, q, r, s = codes
    e, f, g, h = counts
    for i in range(len(a)):
        if p[i] >= 0:
            e[p[i]] += skip is None or a[i] == a[i]
        if q[i] >= 0:
            f[q[i]] += skip is None or b[i] == b[i]
        if r[i] >= 0:
            g[r[i]] += skip is None or c[i] == c[i]
        if s[i] >= 0:
            h[s[i]] += skip is None or d[i] == d[i]


@jit_inner
def _better(skip: Any, value: Any, so_far: Any, less: Any) -> Any:
    """Return the extremum of two elements: the greater one where `less` is None."""
    better = value > so_far if less is None else value < so_far
    # Where NaN is left out, one that is there stands for nothing.
    return value if better or (value != value if skip is None else so_far != so_far) else so_far


@jit_inner
def _find_four(skip: Any, xs: Any, codes: Any, found: Any, less: Any) -> None:
    a, b, c, d = xs
    p, q, r, s = codes
    e, f, g, h = found
    for i in range(len(a)):
        if p[i] >= 0:
            e[p[i]] = _better(skip, a[i], e[p[i]], less)
        if q[i] >= 0:
            f[q[i]] = _better(skip, b[i], f[q[i]], less)
        if r[i] >= 0:
            g[r[i]] = _better(skip, c[i], g[r[i]], less)
        if s[i] >= 0:
            h[s[i]] = _better(skip, d[i], h[s[i]], less)


@jit_inner
def _deviate_from(skip: Any, value: Any, at: int, count: Array, mean: Array, m2: Array) -> None:
    if skip is None or value == value:
        count[at] += 1
        deviation = value - mean[at]
        near = mean[at] + deviation / count[at]
        m2[at] += deviation * (value - near)
        mean[at] = near


@jit_inner
def _deviate_four(skip: Any, xs: Any, codes: Any, counts: Any, means: Any, m2s: Any) -> None:
    a, b, c, d = xs
    p, q, r, s = codes
    for i in range(len(a)):
        if p[i] >= 0:
            _deviate_from(skip, a[i], p[i], counts[0], means[0], m2s[0])
        if q[i] >= 0:
            _deviate_from(skip, b[i], q[i], counts[1], means[1], m2s[1])
        if r[i] >= 0:
            _deviate_from(skip, c[i], r[i], counts[2], means[2], m2s[2])
        if s[i] >= 0:
            _deviate_from(skip, d[i], s[i], counts[3], means[3], m2s[3])


@jit_inner
def _from(array: Array, starts: Any) -> Any:
    """Return what an array has from each of four places on."""
    a, b, c, d = starts
    return array[a:], array[b:], array[c:], array[d:]


@jit_inner
def _blocks(array: Array, starts: Any, at: int, size: int) -> Any:
    a, b, c, d = starts
    return (
        array[a + at :][:size],
        array[b + at :][:size],
        array[c + at :][:size],
        array[d + at :][:size],
    )


@jit_inner
def _take(
    value: Any,
    at: int,
    skip: Any,
    total: Array,
    count: Array,
    low: Array,
    high: Array,
    mean: Array,
    m2: Array,
) -> None:
    """Put an element into an entry of each table."""
    if skip is None or value == value:
        if total is not None:
            total[at] += value
        if count is not None and mean is None:
            count[at] += 1
    if low is not None:
        low[at] = _better(skip, value, low[at], True)
    if high is not None:
        high[at] = _better(skip, value, high[at], None)
    if mean is not None:
        _deviate_from(skip, value, at, count, mean, m2)


@jit_inner
def _take_four(
    skip: Any,
    x: Array,
    codes: Array,
    firsts: Any,
    length: int,
    total: Array,
    count: Array,
    low: Array,
    high: Array,
    mean: Array,
    m2: Array,
) -> None:
    """Put elements of four lines into tables, each block of them into one after the other."""
    of_x, of_codes, of_tables = firsts
    for i in range(0, length, _BLOCK):
        size = min(_BLOCK, length - i)
        xs, own = _blocks(x, of_x, i, size), _blocks(codes, of_codes, i, size)
        if total is not None:
            _add_four(skip, xs, own, _from(total, of_tables))
        if count is not None and mean is None:
            _count_four(skip, xs, own, _from(count, of_tables))
        if low is not None:
            _find_four(skip, xs, own, _from(low, of_tables), True)
        if high is not None:
            _find_four(skip, xs, own, _from(high, of_tables), None)
        if mean is not None:
            counts, means = _from(count, of_tables), _from(mean, of_tables)
            _deviate_four(skip, xs, own, counts, means, _from(m2, of_tables))


def _along(
    x: Array,
    step: int,
    codes: Array,
    code_step: int,
    lines: int,
    length: int,
    table_step: int,
    tables: int,
    skip: Any,
    total: Array,
    count: Array,
    low: Array,
    high: Array,
    mean: Array,
    m2: Array,
) -> None:
    for line in range(0, lines, 4):
        few = lines - line < 4
        for one in range(lines - line if few else 1):
            # A line that is alone is cut into four, and what is left has one element each.
            a, p = (line + one) * step, (line + one) * code_step
            e = (line + one) % tables * table_step
            f = g = h = e
            x_step, c_step, size = length // 4, length // 4, length // 4
            if not few:
                x_step, c_step, size = step, code_step, length
                f = (line + 1) % tables * table_step
                g = (line + 2) % tables * table_step
                h = (line + 3) % tables * table_step
            b, c, d = a + x_step, a + 2 * x_step, a + 3 * x_step
            q, r, s = p + c_step, p + 2 * c_step, p + 3 * c_step
            firsts = ((a, b, c, d), (p, q, r, s), (e, f, g, h))
            _take_four(skip, x, codes, firsts, size, total, count, low, high, mean, m2)
            if few:
                for i in range(4 * size, length):
                    if codes[p + i] >= 0:
                        k = e + codes[p + i]
                        _take(x[a + i], k, skip, total, count, low, high, mean, m2)


@jit_inner
def _add(skip: Any, a: Array, b: Array, c: Array, d: Array, total: Array) -> None:
    zero = total.dtype.type(0)
    for i in range(len(total)):
        if skip is None:
            total[i] += ((zero + a[i]) + b[i]) + ((zero + c[i]) + d[i])
        else:
            first = (a[i] if a[i] == a[i] else zero) + (b[i] if b[i] == b[i] else zero)
            total[i] += first + ((c[i] if c[i] == c[i] else zero) + (d[i] if d[i] == d[i] else zero))


@jit_inner
def _add_one(skip: Any, a: Array, total: Array) -> None:
    zero = total.dtype.type(0)
    for i in range(len(total)):
        total[i] += a[i] if skip is None or a[i] == a[i] else zero


@jit_inner
def _count(a: Array, count: Array) -> None:
    for i in range(len(count)):
        count[i] += a[i] == a[i]


@jit_inner
def _find(skip: Any, a: Array, low: Array, high: Array) -> None:
    if low is not None:
        for i in range(len(low)):
            if skip is None:
                low[i] = a[i] if (a[i] < low[i]) | (a[i] != a[i]) else low[i]
            else:
                low[i] = a[i] if (a[i] < low[i]) | (low[i] != low[i]) else low[i]
    if high is not None:
        for i in range(len(high)):
            if skip is None:
                high[i] = a[i] if (a[i] > high[i]) | (a[i] != a[i]) else high[i]
            else:
                high[i] = a[i] if (a[i] > high[i]) | (high[i] != high[i]) else high[i]


@jit_inner
def _deviate(skip: Any, a: Array, seen: int, count: Array, mean: Array, m2: Array) -> None:
    if skip is None:
        share = 1.0 / seen
        for i in range(len(mean)):
            deviation = a[i] - mean[i]
            near = mean[i] + deviation * share
            m2[i] += deviation * (a[i] - near)
            mean[i] = near
    else:
        for i in range(len(mean)):
            deviation = a[i] - mean[i] if a[i] == a[i] else 0.0
            near = mean[i] + deviation / max(count[i], 1)
            m2[i] += deviation * (a[i] - near) if a[i] == a[i] else 0.0
            mean[i] = near


def _across(
    x: Array,
    outer_step: int,
    step: int,
    codes: Array,
    outer: int,
    length: int,
    inner: int,
    n: int,
    skip: Any,
    total: Array,
    count: Array,
    low: Array,
    high: Array,
    mean: Array,
    m2: Array,
    seen: Array,
) -> None:
    for block in range(outer):
        for column in range(0, inner, _COLUMNS):
            width = min(_COLUMNS, inner - column)
            seen[:] = 0
            i = 0
            while i < length:
                code = codes[i]
                if code < 0:
                    i += 1
                    continue
                first = block * outer_step + i * step + column
                entry = (block * n + code) * inner + column
                many = i + 3 < length and codes[i + 1] == code
                many = many and codes[i + 2] == code and codes[i + 3] == code
                if total is not None:
                    if many:
                        _add(
                            skip,
                            x[first:][:width],
                            x[first + step :][:width],
                            x[first + 2 * step :][:width],
                            x[first + 3 * step :][:width],
                            total[entry:][:width],
                        )
                    else:
                        _add_one(skip, x[first:][:width], total[entry:][:width])
                for k in range(4 if many else 1):
                    part = x[first + k * step :][:width]
                    own = None
                    if count is not None:
                        own = count[entry:][:width]
                        _count(part, own)
                    if low is not None:
                        _find(skip, part, low[entry:][:width], None)
                    if high is not None:
                        _find(skip, part, None, high[entry:][:width])
                    if mean is not None:
                        seen[code] += 1
                        near, squares = mean[entry:][:width], m2[entry:][:width]
                        _deviate(skip, part, seen[code], own, near, squares)
                i += 4 if many else 1


#: Put the elements of `lines` of some `length`, the first of which are `step` elements apart, into
#: tables by their codes, which begin `code_step` apart. Tables begin `table_step` entries apart; the
#: lines take turns with them.
along = jit(_along)

#: Put the elements of `inner` lines that are neighbours, for each of `outer` blocks of them, into
#: tables of `n` rows of `inner` entries. `seen` is room for a number for each group.
across = jit(_across)
