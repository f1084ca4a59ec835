"""The loops of variances and of higher central moments, compiled by Numba.

Sums of deviations and of their squares are about a centre, which moves to the current mean after
every block. The correction of the squares is then always small, so nothing cancels::

    centre, count, total, squares     about the mean of the elements before this block
    centre + total / count            is the mean of all; `total` keeps its rounding error

If a block has more elements than all blocks before it, its own mean is found first. A loop is
compiled for each of `keep` and `skip` that is not None.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dask_coop.chunks.numpy.loops.extrema import find
from dask_coop.chunks.numpy.loops.sums import add
from dask_coop.compiled.jit import jit, jit_inner, jit_inner_reassociated, jit_step

Array = Any

#: The most elements of a line that are read before the centre moves, and the number at first.
_BLOCK, _LEAST = 4096, 256

#: Rows that are read before the centres of columns move, and columns whose sums stay in a cache.
_ROWS, COLUMNS = 128, 1024


@jit_inner_reassociated
def _gather(part: Array, keep: Array, skip: Any, centre: float) -> tuple[int, float, float]:
    """Return count, sum and sum of squares of the deviations of elements that count."""
    count, total, squares = 0, 0.0, 0.0
    for i in range(len(part)):
        deviation: Any = np.float64(part[i]) - centre
        counts = True
        if skip is not None:
            counts = deviation == deviation
        if keep is not None:
            counts &= keep[i]
        deviation = deviation if counts else 0.0
        count += counts
        total += deviation
        squares += deviation * deviation
    return count, total, squares


@jit_inner
def _merge(
    count: float,
    total: float,
    squares: float,
    centre: float,
    found: float,
    added: float,
    squared: float,
    near: float,
) -> tuple[float, float, float, float]:
    """Add sums about `near` to those about `centre`, and move that to the mean, if it is finite."""
    if found == 0:
        # Sums about no element's mean would lose the digits of those that are there.
        return count, total, squares, centre
    by = near - centre
    squares += squared - by * (2 * total - by * count)
    total += added - by * count
    count += found
    mean = near + total / (count if count > 1.0 else 1.0)
    if mean - mean == 0 and squares - squares == 0:
        by = mean - near
        return count, total - by * count, squares - by * (2 * total - by * count), mean
    return count, total, squares, near


@jit_step
def _size(count: float, left: int) -> int:
    """Return how many elements of a line are read before the centre moves."""
    # Numba compiles each call of min, max and int anew.
    size: Any = np.int64(count)
    size = size if size > _LEAST else _LEAST
    size = size if size < _BLOCK else _BLOCK
    size = size if size < left else left
    return size  # type: ignore[no-any-return]


@jit_inner
def _read(
    part: Array, keep: Array, skip: Any, count: float, total: float, squares: float, centre: float
) -> tuple[float, float, float, float]:
    """Return count, sums and centre with those of a block added."""
    few = count < len(part)
    near = 0.0 if few else centre
    # A literal would be another type, with a function of its own.
    found: Any = np.int64(0)
    added, squared = 0.0, 0.0
    for again in range(1 + few):
        if again:
            near += added / (found if found > 1 else 1)
            near = near if near - near == 0 else 0.0
        found, added, squared = _gather(part, keep, skip, near)
    return _merge(count, total, squares, centre, found, added, squared, near)


def _lift_rows(x: Array, step: int, n: int, keep: Array, skip: Any, state: Array) -> None:
    some = None
    for line in range(state.shape[1]):
        count, total, square, centre = 0.0, 0.0, 0.0, 0.0
        start, size = 0, 0
        while start < n:
            size = _size(count, n - start)
            part = x[line * step + start :][:size]
            if keep is not None:
                some = keep[line * n + start :][:size]
            start += size
            count, total, square, centre = _read(part, some, skip, count, total, square, centre)
        state[0, line], state[1, line] = count, total
        state[2, line], state[3, line] = square, centre


def _describe_rows(
    x: Array,
    step: int,
    n: int,
    keep: Array,
    skip: Any,
    bits: Array,
    limit: Any,
    low: Any,
    high: Any,
    state: Array,
    nans: Array,
    lows: Array,
    highs: Array,
    sums: Array,
) -> None:
    some, zero = None, sums.dtype.type(0)
    for line in range(len(sums)):
        count, total, square, centre = 0.0, 0.0, 0.0, 0.0
        missing, lowest, highest, start = 0, high, low, 0
        while start < n:
            size = _size(count, n - start)
            at = line * step + start
            if keep is not None:
                some = keep[line * n + start :][:size]
            start += size
            part = x[at:][:size]
            count, total, square, centre = _read(part, some, skip, count, total, square, centre)
            _, added = add(part, some, skip, None, None, zero)
            sums[line] += added
            found, a, b = find(bits[at:][:size], some, limit, low, high)
            missing += found
            lowest, highest = a if a < lowest else lowest, b if b > highest else highest
        state[0, line], state[1, line] = count, total
        state[2, line], state[3, line] = square, centre
        nans[line], lows[line], highs[line] = missing, lowest, highest


@jit_inner_reassociated
def _gather_all(
    x: Array, at: int, step: int, rows: int, near: Array, found: Array, added: Array, squared: Array
) -> None:
    """Add the sums of `_gather` for columns, over `rows` rows in which all elements count."""
    width = len(near)
    for row in range(0, rows, 4):
        # Sums are read and written once for four rows; the last rows have factors 1 or 0.
        first, last = at + row * step, rows - 1 - row
        one, two, three = np.float64(last > 0), np.float64(last > 1), np.float64(last > 2)
        a, b = x[first:][:width], x[first + (last if last < 1 else 1) * step :][:width]
        c = x[first + (last if last < 2 else 2) * step :][:width]
        d = x[first + (last if last < 3 else 3) * step :][:width]
        for i in range(width):
            e, f = np.float64(a[i]) - near[i], (np.float64(b[i]) - near[i]) * one
            g, h = (np.float64(c[i]) - near[i]) * two, (np.float64(d[i]) - near[i]) * three
            added[i] += (e + f) + (g + h)
            squared[i] += (e * e + f * f) + (g * g + h * h)
    for i in range(width):
        found[i] += rows


@jit_inner_reassociated
def _gather_some(
    part: Array,
    keep: Array,
    skip: Any,
    near: Array,
    found: Array,
    added: Array,
    squared: Array,
) -> None:
    """Add the sums of `_gather` for columns, over one row."""
    for i in range(len(part)):
        deviation: Any = np.float64(part[i]) - near[i]
        counts = True
        if skip is not None:
            counts = deviation == deviation
        if keep is not None:
            counts &= keep[i]
        deviation = deviation if counts else 0.0
        found[i] += 1.0 if counts else 0.0
        added[i] += deviation
        squared[i] += deviation * deviation


def _lift_columns(
    x: Array,
    line_step: int,
    step: int,
    n: int,
    inner: int,
    keep: Array,
    skip: Any,
    state: Array,
    space: Array,
) -> None:
    some = None
    for begin in range(0, state.shape[1], inner):
        for column in range(0, inner, space.shape[1]):
            width = space.shape[1] if inner - column > space.shape[1] else inner - column
            first, to = begin + column, begin // inner * line_step + column
            near, found, added, squared = space[0, :width], space[1], space[2], space[3]
            for start in range(0, n, _ROWS):
                rows, few = _ROWS if n - start > _ROWS else n - start, False
                for i in range(width):
                    fewer = state[0, first + i] < rows
                    near[i] = 0.0 if fewer else state[3, first + i]
                    few |= fewer
                for again in range(1 + few):
                    for i in range(width):
                        if again and state[0, first + i] < rows:
                            mean = added[i] / (found[i] if found[i] > 1.0 else 1.0)
                            near[i] = mean if mean - mean == 0 else 0.0
                        found[i] = added[i] = squared[i] = 0.0
                    if skip is None and keep is None:
                        _gather_all(x, to + start * step, step, rows, near, found, added, squared)
                    else:
                        for row in range(start, start + rows):
                            part = x[to + row * step :][:width]
                            if keep is not None:
                                some = keep[begin * n + row * inner + column :][:width]
                            _gather_some(part, some, skip, near, found, added, squared)
                for i in range(width):
                    sums = state[:, first + i]
                    sums[0], sums[1], sums[2], sums[3] = _merge(
                        sums[0], sums[1], sums[2], sums[3], found[i], added[i], squared[i], near[i]
                    )


@jit_inner_reassociated
def _gather_powers(part: Array, keep: Array, near: float, powers: Array, space: Array) -> None:
    """Add the count and sums of powers of the deviations of elements that count."""
    deviations, products = space[0, : len(part)], space[1, : len(part)]
    for i in range(len(part)):
        deviation, counts = np.float64(part[i]) - near, True
        if keep is not None:
            counts &= keep[i]
        deviations[i], products[i] = deviation if counts else 0.0, 1.0 if counts else 0.0
    for power in range(len(powers)):
        total = 0.0
        for i in range(len(part)):
            total += products[i]
            products[i] *= deviations[i]
        powers[power] += total


@jit_inner
def _move(powers: Array, by: float) -> None:
    """Move the centre of sums of powers up by `by`."""
    for least in range(1, len(powers)):
        for power in range(len(powers) - 1, least - 1, -1):
            powers[power] -= by * powers[power - 1]


def _powers_of_rows(
    x: Array, step: int, n: int, keep: Array, powers: Array, means: Array, space: Array
) -> None:
    some = None
    for line in range(len(powers)):
        sums, centre = powers[line], 0.0
        for start in range(0, n, space.shape[1]):
            part = x[line * step + start :][: min(space.shape[1], n - start)]
            if keep is not None:
                some = keep[line * n + start :][: len(part)]
            if sums[0] < len(part):
                found, added, _ = _gather(part, some, None, 0.0)
                near = added / found if found else centre
                near = near if near - near == 0 else 0.0
                _move(sums, near - centre)
                centre = near
            _gather_powers(part, some, centre, sums, space)
            mean = centre + sums[1] / max(sums[0], 1.0)
            if mean - mean == 0 and sums[-1] - sums[-1] == 0:
                _move(sums, mean - centre)
                centre = mean
        rest = sums[1] / max(sums[0], 1.0)
        _move(sums, rest)
        means[0, line] = centre + rest
        means[1, line] = rest - (means[0, line] - centre)


#: Write counts, sums and sums of squares of deviations, and their centres, for lines of `n`
#: elements that start `step` elements apart.
lift_rows: Final = jit(_lift_rows, allocates=False)

#: Do the same, and while a block is in a cache also the work of `extrema_of_rows`, on its `bits`,
#: and of `add_rows`. `sums` are zero at first.
describe_rows: Final = jit(_describe_rows, allocates=False)

#: Do the first for `inner` neighbouring lines, whose elements are `step` elements apart. `state` is
#: zero at first.
lift_columns: Final = jit(_lift_columns, allocates=False)

#: Write counts, which are zero at first, sums of powers of deviations from means, and these means
#: and their rounding errors, for lines of `n` elements. `space` has room for a block of a line
#: twice.
powers_of_rows: Final = jit(_powers_of_rows)
