"""The loops of groups, compiled by Numba: along lines, and across neighbouring lines.

Along lines, a table has a row for each line, with an entry for each group. Across lines, it has a
row for each group: neighbouring elements go to neighbouring entries, four rows at a time where four
consecutive ones belong to a group. Each block of elements goes into one table after the other while
it is in a cache.

Counts are float64, because processors add to floats in memory sooner than to integers.

A missing table is None. A loop is compiled for each set of tables, and again for `skip`, which
leaves NaN out where it is not None.
"""

from __future__ import annotations

from typing import Any, Final

from dask_coop.chunks.numpy.loops.compensated import two_sum
from dask_coop.compiled.jit import jit, jit_inner

Array = Any

#: Columns whose entries of a few groups stay in a cache, and elements of lines that stay there.
_COLUMNS, _BLOCK = 2048, 1024


@jit_inner
def _add_line(skip: Any, x: Array, codes: Array, total: Array, excess: Array) -> None:
    zero = total.dtype.type(0)
    for i in range(len(x)):
        if codes[i] >= 0:
            before, value = total[codes[i]], x[i] if skip is None or x[i] == x[i] else zero
            total[codes[i]], above = two_sum(before, value)
            if excess is not None:
                excess[codes[i]] += above


@jit_inner
def _count_line(skip: Any, x: Array, codes: Array, count: Array) -> None:
    for i in range(len(x)):
        if codes[i] >= 0:
            count[codes[i]] += 1.0 if skip is None or x[i] == x[i] else 0.0


@jit_inner
def _better(skip: Any, value: Any, so_far: Any, less: Any) -> Any:
    """Return the extremum of two elements: the greater one where `less` is None."""
    better = value > so_far if less is None else value < so_far
    # Where NaN is left out, a NaN in the table means that no element has come.
    return value if better or (value != value if skip is None else so_far != so_far) else so_far


@jit_inner
def _find_in_line(skip: Any, x: Array, codes: Array, found: Array, less: Any) -> None:
    for i in range(len(x)):
        if codes[i] >= 0:
            found[codes[i]] = _better(skip, x[i], found[codes[i]], less)


@jit_inner
def _deviate_in_line(
    skip: Any, x: Array, codes: Array, count: Array, mean: Array, m2: Array
) -> None:
    for i in range(len(x)):
        at = codes[i]
        if at >= 0 and (skip is None or x[i] == x[i]):
            count[at] += 1
            deviation = x[i] - mean[at]
            near = mean[at] + deviation / count[at]
            m2[at] += deviation * (x[i] - near)
            mean[at] = near


def _along(
    x: Array,
    step: int,
    codes: Array,
    code_step: int,
    lines: int,
    length: int,
    table_step: int,
    skip: Any,
    total: Array,
    excess: Array,
    count: Array,
    low: Array,
    high: Array,
    mean: Array,
    m2: Array,
) -> None:
    for line in range(lines):
        table = line * table_step
        for start in range(0, length, _BLOCK):
            size = min(_BLOCK, length - start)
            part = x[line * step + start :][:size]
            own = codes[line * code_step + start :][:size]
            if total is not None:
                above = excess[table:] if excess is not None else None
                _add_line(skip, part, own, total[table:], above)
            if count is not None and mean is None:
                _count_line(skip, part, own, count[table:])
            if low is not None:
                _find_in_line(skip, part, own, low[table:], True)
            if high is not None:
                _find_in_line(skip, part, own, high[table:], None)
            if mean is not None:
                _deviate_in_line(skip, part, own, count[table:], mean[table:], m2[table:])


@jit_inner
def _add(skip: Any, a: Array, b: Array, c: Array, d: Array, total: Array, excess: Array) -> None:
    zero = total.dtype.type(0)
    for i in range(len(total)):
        if skip is None:
            four = ((zero + a[i]) + b[i]) + ((zero + c[i]) + d[i])
        else:
            first = (a[i] if a[i] == a[i] else zero) + (b[i] if b[i] == b[i] else zero)
            four = first + ((c[i] if c[i] == c[i] else zero) + (d[i] if d[i] == d[i] else zero))
        total[i], above = two_sum(total[i], four)
        if excess is not None:
            excess[i] += above


@jit_inner
def _add_one(skip: Any, a: Array, total: Array, excess: Array) -> None:
    zero = total.dtype.type(0)
    for i in range(len(total)):
        total[i], above = two_sum(total[i], a[i] if skip is None or a[i] == a[i] else zero)
        if excess is not None:
            excess[i] += above


@jit_inner
def _count(a: Array, count: Array) -> None:
    for i in range(len(count)):
        count[i] += 1.0 if a[i] == a[i] else 0.0


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
    excess: Array,
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
                    above = excess[entry:][:width] if excess is not None else None
                    if many:
                        _add(
                            skip,
                            x[first:][:width],
                            x[first + step :][:width],
                            x[first + 2 * step :][:width],
                            x[first + 3 * step :][:width],
                            total[entry:][:width],
                            above,
                        )
                    else:
                        _add_one(skip, x[first:][:width], total[entry:][:width], above)
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


@jit_inner
def _pick_row(x: Array, at: int, value: Array, index: Array) -> int:
    """Take elements of a row for groups that lack one; return how many groups still do."""
    without = 0
    for i in range(len(value)):
        missing = value[i] != value[i]
        taken = missing & (x[i] == x[i])
        index[i] = at if taken else index[i]
        value[i] = x[i] if missing else value[i]
        without += missing & (x[i] != x[i])
    return without


def _pick(
    x: Array,
    outer_step: int,
    step: int,
    codes: Array,
    outer: int,
    length: int,
    inner: int,
    n: int,
    backwards: bool,
    value: Array,
    index: Array,
    without: Array,
) -> None:
    for block in range(outer):
        for column in range(0, inner, _COLUMNS):
            width = min(_COLUMNS, inner - column)
            without[:] = width
            for i in range(length):
                at = length - 1 - i if backwards else i
                code = codes[at]
                if code >= 0 and without[code] > 0:
                    first = block * outer_step + at * step + column
                    entry = (block * n + code) * inner + column
                    without[code] = _pick_row(
                        x[first:][:width], at, value[entry:][:width], index[entry:][:width]
                    )


#: Put the elements of `lines` of some `length`, `step` elements apart, into tables by their codes,
#: which begin `code_step` apart; tables begin `table_step` entries apart.
along: Final = jit(_along)

#: Put the elements of `inner` neighbouring lines, for each of `outer` blocks, into tables of `n`
#: rows of `inner` entries. `seen` has room for a number for each group.
across: Final = jit(_across)

#: Find the first or, `backwards`, the last element of each group that is not NaN, and where along
#: the line it is, for lines as of `across`. Tables hold NaN where none has been found; `without` is
#: room for a number for each group.
pick: Final = jit(_pick)
