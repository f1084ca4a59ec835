"""The loops of weighted sums and variances and of products of two variables, compiled by Numba.

A block is read twice while it is in a cache: for means, and for deviations from them. Its state is
then combined with that of the elements before it, as states of chunks are.

`y` or `w` is None where a state has no second variable, or no weights.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.compiled.jit import jit, jit_inner, jit_inner_reassociated

Array = Any

#: The elements of a block of a line; the rows and columns of a block of columns.
_BLOCK, _ROWS, COLUMNS = 2048, 64, 512


@jit_inner_reassociated
def _totals(x: Array, y: Array, w: Array, skip: Any) -> tuple[float, float, float]:
    """Return the sums of weights and of both variables, for a block of a line."""
    weight, of_x, of_y = 0.0, 0.0, 0.0
    for i in range(len(x)):
        a: Any = np.float64(x[i])
        by: Any = 1.0
        if w is not None:
            by = np.float64(w[i])
        if skip is not None:
            counts = a == a
            if y is not None:
                counts &= y[i] == y[i]
            by = by if counts else 0.0
            a = a if counts else 0.0
        weight += by
        of_x += by * a
        if y is not None:
            b: Any = np.float64(y[i])
            if skip is not None:
                b = b if by != 0.0 else 0.0
            of_y += by * b
    return weight, of_x, of_y


@jit_inner_reassociated
def _products(
    x: Array, y: Array, w: Array, skip: Any, centre: float, other: float
) -> tuple[float, float, float, float, float]:
    """Return the sums of deviations, of their squares and of their products, for a block."""
    of_x, of_y, squares, others, products = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(x)):
        a: Any = np.float64(x[i]) - centre
        by: Any = 1.0
        if w is not None:
            by = np.float64(w[i])
        b: Any = 0.0
        if y is not None:
            b = np.float64(y[i]) - other
        if skip is not None:
            counts = a == a
            if y is not None:
                counts &= b == b
            a, b = a if counts else 0.0, b if counts else 0.0
        of_x += by * a
        squares += by * a * a
        if y is not None:
            of_y += by * b
            others += by * b * b
            products += by * a * b
    return of_x, of_y, squares, others, products


@jit_inner
def _corrected(products: float, by: float) -> float:
    """Return sums of products about means, as `merges.corrected` does."""
    return products - by if by - by == 0.0 else products


@jit_inner
def _meet(
    state: Array, at: int, weight: float, total: float, mean: float, short: float, squares: float
) -> Any:
    """Combine the means and squares of a variable, which begin at `at`; return their distance."""
    before, fraction = state[at], weight / total
    if state[0] == 0.0:
        # With nothing before it, a block keeps all digits of its mean.
        state[at], state[at + 1] = mean, short
        state[at + 2] += squares
        return 0.0
    by = (mean - before) + (short - state[at + 1])
    start, step = before, state[at + 1] + by * fraction
    if weight > state[0]:
        start, step = mean, short - by * (state[0] / total)
    after = start + step
    added = after - start
    state[at], state[at + 1] = after, (step - added) + (start - (after - added))
    state[at + 2] += squares + by * (by * (state[0] * fraction))
    return by


@jit_inner
def _merge(
    state: Array,
    weight: float,
    centre: float,
    other: float,
    of_x: float,
    of_y: float,
    squares: float,
    others: float,
    products: float,
) -> None:
    """Add sums of deviations from `centre` and `other` to a state."""
    some = weight if weight != 0.0 else 1.0
    total = state[0] + weight
    total = total if total != 0.0 else 1.0
    short, other_short = of_x / some, of_y / some
    squares = _corrected(squares, short * of_x)
    by = _meet(state, 1, weight, total, centre, short, squares)
    if len(state) > 4:
        others = _corrected(others, other_short * of_y)
        along = _meet(state, 4, weight, total, other, other_short, others)
        scale = state[0] * (weight / total)
        state[7] += _corrected(products, short * of_y) + by * (along * scale)
    state[0] += weight


def _lift_rows(
    x: Array, steps: Any, n: int, y: Array, w: Array, skip: Any, sums: Any, state: Array
) -> None:
    some, weights = None, None
    for line in range(len(state)):
        for start in range(0, n, _BLOCK):
            part = x[line * steps[0] + start :][: _BLOCK if n - start > _BLOCK else n - start]
            if y is not None:
                some = y[line * steps[1] + start :][: len(part)]
            if w is not None:
                weights = w[line * steps[1] + start :][: len(part)]
            weight, of_x, of_y = _totals(part, some, weights, skip)
            if sums is not None:
                state[line, 0] += of_x
                state[line, 1] += weight
            else:
                divisor = weight if weight != 0.0 else 1.0
                centre, other = of_x / divisor, of_y / divisor
                of_x, of_y, squares, others, products = _products(
                    part, some, weights, skip, centre, other
                )
                _merge(state[line], weight, centre, other, of_x, of_y, squares, others, products)


@jit_inner_reassociated
def _add_totals(x: Array, y: Array, w: Array, skip: Any, space: Array) -> None:
    """Add a row to the sums of weights and of both variables of columns."""
    width = len(x)
    weight, of_x, of_y = space[0, :width], space[1, :width], space[2, :width]
    for i in range(width):
        a: Any = np.float64(x[i])
        by: Any = 1.0
        if w is not None:
            by = np.float64(w[i])
        if skip is not None:
            counts = a == a
            if y is not None:
                counts &= y[i] == y[i]
            by = by if counts else 0.0
            a = a if counts else 0.0
        weight[i] += by
        of_x[i] += by * a
        if y is not None:
            b: Any = np.float64(y[i])
            if skip is not None:
                b = b if by != 0.0 else 0.0
            of_y[i] += by * b


@jit_inner_reassociated
def _add_products(x: Array, y: Array, w: Array, skip: Any, space: Array) -> None:
    """Add a row to the sums of deviations, of their squares and of their products."""
    width = len(x)
    centre, other = space[1, :width], space[2, :width]
    of_x, squares = space[3, :width], space[4, :width]
    of_y, others, products = space[5, :width], space[6, :width], space[7, :width]
    for i in range(width):
        a: Any = np.float64(x[i]) - centre[i]
        by: Any = 1.0
        if w is not None:
            by = np.float64(w[i])
        b: Any = 0.0
        if y is not None:
            b = np.float64(y[i]) - other[i]
        if skip is not None:
            counts = a == a
            if y is not None:
                counts &= b == b
            a, b = a if counts else 0.0, b if counts else 0.0
        of_x[i] += by * a
        squares[i] += by * a * a
        if y is not None:
            of_y[i] += by * b
            others[i] += by * b * b
            products[i] += by * a * b


def _lift_columns(
    x: Array,
    steps: Any,
    n: int,
    inner: int,
    y: Array,
    w: Array,
    skip: Any,
    sums: Any,
    state: Array,
    space: Array,
) -> None:
    some, weights = None, None
    for begin in range(0, len(state), inner):
        group = begin // inner
        for column in range(0, inner, COLUMNS):
            width = COLUMNS if inner - column > COLUMNS else inner - column
            for start in range(0, n, _ROWS):
                stop = start + _ROWS if n - start > _ROWS else n
                space[:] = 0.0
                for again in range(1 if sums is not None else 2):
                    for row in range(start, stop):
                        part = x[group * steps[0] + row * steps[3] + column :][:width]
                        at = group * steps[1] + row * steps[2] + column * steps[4]
                        if y is not None:
                            some = y[at:][:width]
                        if w is not None:
                            weights = w[at:][:width]
                        if again:
                            _add_products(part, some, weights, skip, space)
                        else:
                            _add_totals(part, some, weights, skip, space)
                    if not again and sums is None:
                        for i in range(width):
                            divisor = space[0, i] if space[0, i] != 0.0 else 1.0
                            space[1, i] /= divisor
                            space[2, i] /= divisor
                for i in range(width):
                    line = state[begin + column + i]
                    if sums is not None:
                        line[0] += space[1, i]
                        line[1] += space[0, i]
                    else:
                        _merge(
                            line,
                            space[0, i],
                            space[1, i],
                            space[2, i],
                            space[3, i],
                            space[5, i],
                            space[4, i],
                            space[6, i],
                            space[7, i],
                        )


def _lift_groups(
    pairs: Array,
    outer_step: int,
    step: int,
    codes: Array,
    outer: int,
    length: int,
    inner: int,
    n: int,
    skip: Any,
    state: Array,
) -> None:
    for block in range(outer):
        for again in range(2):
            for i in range(length):
                if codes[i] < 0:
                    continue
                first = 2 * (block * outer_step + i * step)
                entry = (block * n + codes[i]) * inner
                for j in range(inner):
                    a = np.float64(pairs[first + 2 * j])
                    b = np.float64(pairs[first + 2 * j + 1])
                    if skip is not None and (a != a or b != b):
                        continue
                    group = state[entry + j]
                    if again:
                        a, b = a - group[1], b - group[4]
                        group[2] += a
                        group[3] += a * a
                        group[5] += b
                        group[6] += b * b
                        group[7] += a * b
                    else:
                        group[0] += 1.0
                        group[1] += a
                        group[4] += b
            for entry in range(block * n * inner, (block + 1) * n * inner):
                group = state[entry]
                some = group[0] if group[0] != 0.0 else 1.0
                for at in (1, 4):
                    if again:
                        deviations = group[at + 1]
                        group[at + 1] /= some
                        group[at + 2] = _corrected(group[at + 2], group[at + 1] * deviations)
                    else:
                        group[at] /= some
                if again:
                    group[7] = _corrected(group[7], group[2] * (group[5] * some))


#: Write the state of each line of `n` elements, a row of `state`, which is zero at first: sums of
#: weighted elements and of weights if `sums` is True, else the fields of `algebra.paired`. Lines
#: start ``steps[:2]`` elements apart in both arrays.
lift_rows: Final = jit(_lift_rows, allocates=False)

#: Do the same for `inner` neighbouring lines. ``steps[2:4]`` are those along a line, of the second
#: array first, whose rows are all lines' if ``steps[4]`` is 1, else those of any `COLUMNS` lines.
#: `space` has room for eight rows of `COLUMNS`.
lift_columns: Final = jit(_lift_columns, allocates=False)

#: Write the states of `n` groups of pairs, which lie side by side, for the lines of (outer, length,
#: inner) as of `groups.across`: rows of `state`, which are zero at first.
lift_groups: Final = jit(_lift_groups, allocates=False)
