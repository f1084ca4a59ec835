"""The loops of windows.py for order statistics, compiled by Numba.

The elements of a tile are sorted once, and each has its number in that order. A window is a set of
these numbers: one comes and one goes at every step, and a mark stays at the quantile, which moves
by a few neighbours. Bits tell which numbers are in the set, and bits of bits which words have any::

    numbers    0 1 2 3 4 5 6 7 8 9       1 goes, 8 comes: the median of five moves from 4 to 5
    window       x     x x   x   x

Ranks count the elements of short windows. For longer ones equal elements have one number, and a
tree has the counts by number (P. M. Fenwick, "A new data structure for cumulative frequency
tables", 1994).

Indices of extrema come from a queue of the elements that no later one beats.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros, trailing_zeros

from dask_coop.chunks.numpy.loops.walkers import at
from dask_coop.compiled.jit import jit, jit_inner

Array = np.ndarray[Any, Any]

_ONE = np.uint64(1)


@jit_inner
def _flip(bits: Array, words: Array, number: int) -> None:
    """Take a number into the set, or out of it."""
    word = number >> 6
    bits[at(word)] ^= _ONE << np.uint64(number & 63)
    mark = _ONE << np.uint64(word & 63)
    if bits[at(word)]:
        words[at(word >> 6)] |= mark
    else:
        words[at(word >> 6)] &= ~mark


@jit_inner
def _following(bits: Array, words: Array, number: int) -> Any:
    """Return the least number of the set from `number` on; there is one."""
    word = number >> 6
    left = bits[at(word)] >> np.uint64(number & 63)
    if left:
        return number + trailing_zeros(left)
    top = (word + 1) >> 6
    left = words[at(top)] >> np.uint64((word + 1) & 63) << np.uint64((word + 1) & 63)
    while not left:
        top += 1
        left = words[at(top)]
    word = (top << 6) + trailing_zeros(left)
    return (word << 6) + trailing_zeros(bits[at(word)])


@jit_inner
def _preceding(bits: Array, words: Array, number: int) -> Any:
    """Return the greatest number of the set up to `number`; there is one."""
    word = number >> 6
    left = bits[at(word)] << np.uint64(63 - (number & 63))
    if left:
        return number - leading_zeros(left)
    top = (word - 1) >> 6
    left = words[at(top)] & ((_ONE << np.uint64(word & 63)) - _ONE if word & 63 else ~np.uint64(0))
    while not left:
        top -= 1
        left = words[at(top)]
    word = (top << 6) + 63 - leading_zeros(left)
    return (word << 6) + 63 - leading_zeros(bits[at(word)])


@jit_inner
def _between(low: Any, high: Any, gammas: Array, count: int) -> Any:
    """Return the quantile of `count` elements from the two beside it; medians have no gammas."""
    if len(gammas) == 0:
        return low if low == high else (low + high) / 2
    distance = high - low
    if gammas[count, 0] >= 0.5:
        return high - distance * gammas[count, 1]
    return low + distance * gammas[count, 0]


def _move_quantiles(
    x: Array, order: Array, w: int, least: int, ranks: Array, gammas: Array, out: Array
) -> None:
    lines, length = x.shape
    before = length - out.shape[1]
    values, numbers = np.empty(length, x.dtype), np.empty(length, np.int32)
    bits = np.empty((length >> 6) + 1, np.uint64)
    words = np.empty((length >> 12) + 2, np.uint64)
    for line in range(lines):
        for k in range(length):
            i = order[line, k]
            values[at(k)] = x[line, i]
            numbers[i] = k if x[line, i] == x[line, i] else -1
        bits[:], words[:] = 0, 0
        # `below` elements of the window come before the mark.
        count = below = mark = 0
        for i in range(length):
            gone, number = numbers[at(i - w)] if i >= w else -1, numbers[at(i)]
            if gone >= 0:
                _flip(bits, words, gone)
                below -= int(gone < mark)
                count -= 1
            if number >= 0:
                _flip(bits, words, number)
                below += int(number < mark)
                count += 1
            if i < before:
                continue
            if count < least:
                out[line, i - before] = np.nan
                continue
            first, second = ranks[count, 0], ranks[count, 1]
            if below > first:
                while below > first:
                    mark = _preceding(bits, words, mark - 1)
                    below -= 1
            else:
                mark = _following(bits, words, mark)
                while below < first:
                    mark = _following(bits, words, mark + 1)
                    below += 1
            low = high = values[at(mark)]
            if second > first:
                high = values[at(_following(bits, words, mark + 1))]
            out[line, i - before] = _between(low, high, gammas, count)


@jit_inner
def _rank(below: int, above: int, count: int) -> float:
    """Return the rank, from -1 to 1, of one of `count` elements."""
    return (below - above) / (count - 1.0) if count > 1 else 0.0


def _rank_short(x: Array, w: int, least: int, out: Array) -> None:
    lines, length = x.shape
    before = length - out.shape[1]
    for line in range(lines):
        for i in range(before, length):
            value = x[line, i]
            below = above = count = 0
            for j in range(max(0, i - w + 1), i + 1):
                other = x[line, at(j)]
                below += int(other < value)
                above += int(other > value)
                count += int(other == other)
            known = value == value and count >= least
            out[line, i - before] = _rank(below, above, count) if known else np.nan


@jit_inner
def _update(tree: Array, distinct: int, number: int, step: int) -> None:
    """Add an element to the tree of counts, or take one out."""
    place = number + 1
    while place <= distinct:
        tree[at(place)] += step
        place += place & -place


def _rank_long(x: Array, order: Array, w: int, least: int, out: Array) -> None:
    lines, length = x.shape
    before = length - out.shape[1]
    numbers = np.empty(length, np.int32)
    tree, times = np.empty(length + 1, np.int32), np.empty(length, np.int32)
    for line in range(lines):
        distinct, last = 0, x.dtype.type(np.nan)
        for k in range(length):
            i = order[line, k]
            value = x[line, i]
            distinct += int(value == value and value != last)
            numbers[i] = distinct - 1 if value == value else -1
            last = value
        tree[:], times[:] = 0, 0
        count = 0
        for i in range(length):
            gone, number = numbers[i - w] if i >= w else -1, numbers[i]
            if gone >= 0:
                _update(tree, distinct, gone, -1)
                times[gone] -= 1
                count -= 1
            if number >= 0:
                _update(tree, distinct, number, 1)
                times[number] += 1
                count += 1
            if i < before:
                continue
            if number < 0 or count < least:
                out[line, i - before] = np.nan
                continue
            below, place = 0, number
            while place:
                below += tree[at(place)]
                place &= place - 1
            out[line, i - before] = _rank(below, count - below - times[number], count)


def _move_places(x: Array, w: int, least: int, lowest: bool, earliest: bool, out: Array) -> None:
    lines, length = x.shape
    before = length - out.shape[1]
    places, best = np.empty(length, np.int64), np.empty(length, x.dtype)
    for line in range(lines):
        first = last = count = 0
        for i in range(length):
            if i >= w:
                count -= int(x[line, i - w] == x[line, i - w])
                first += int(first < last and places[at(first)] == i - w)
            value = x[line, i] if lowest else -x[line, i]
            if value == value:
                count += 1
                while first < last and best[at(last - 1)] >= value:
                    if earliest and best[at(last - 1)] == value:
                        break
                    last -= 1
                places[at(last)], best[at(last)] = i, value
                last += 1
            if i >= before:
                out[line, i - before] = i - places[at(first)] if count >= least else np.nan


#: Write quantiles of the windows of rows, which begin with the elements before the first result,
#: into `out`. `order` sorts each row. A quantile of k elements lies between those at the two
#: `ranks[k]`, the two `gammas[k]` away from them.
move_quantiles: Final = jit(_move_quantiles)
#: Write the ranks of the last elements of windows, from -1 to 1, by counting or by their order.
rank_short: Final = jit(_rank_short)
rank_long: Final = jit(_rank_long)
#: Write how many elements before the last one of a window its extremum is, the earliest of several
#: or the last.
move_places: Final = jit(_move_places)
