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

#: Columns whose entries of a few groups stay in a cache.
_COLUMNS = 2048


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
    if skip is not None and value != value:
        return
    if count is not None:
        count[at] += 1
    if total is not None:
        total[at] += value
    if low is not None and (value < low[at] or value != value or low[at] != low[at]):
        # What is NaN stays so, unless it is that of nothing.
        if skip is not None or low[at] == low[at]:
            low[at] = value
    if high is not None and (value > high[at] or value != value or high[at] != high[at]):
        if skip is not None or high[at] == high[at]:
            high[at] = value
    if mean is not None:
        deviation = value - mean[at]
        mean[at] += deviation / count[at]
        m2[at] += deviation * (value - mean[at])


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
    line = 0
    while line + 4 <= lines:
        a, b, c, d = line * step, (line + 1) * step, (line + 2) * step, (line + 3) * step
        p, q = line * code_step, (line + 1) * code_step
        r, s = (line + 2) * code_step, (line + 3) * code_step
        e, f = line % tables * table_step, (line + 1) % tables * table_step
        g, h = (line + 2) % tables * table_step, (line + 3) % tables * table_step
        for i in range(length):
            if codes[p + i] >= 0:
                at = e + codes[p + i]
                _take(x[a + i], at, skip, total, count, low, high, mean, m2)
            if codes[q + i] >= 0:
                at = f + codes[q + i]
                _take(x[b + i], at, skip, total, count, low, high, mean, m2)
            if codes[r + i] >= 0:
                at = g + codes[r + i]
                _take(x[c + i], at, skip, total, count, low, high, mean, m2)
            if codes[s + i] >= 0:
                at = h + codes[s + i]
                _take(x[d + i], at, skip, total, count, low, high, mean, m2)
        line += 4
    for rest in range(line, lines):
        for i in range(length):
            code = codes[rest * code_step + i]
            if code >= 0:
                at = rest % tables * table_step + code
                _take(x[rest * step + i], at, skip, total, count, low, high, mean, m2)


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
