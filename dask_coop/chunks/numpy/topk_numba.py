"""The loops that select the best elements of lines, compiled by Numba.

A line has room for twice the k elements that are wanted.  When that is full, the k-th best in it is
found, and what is worse goes; from then on elements that are no better than that one are passed by,
many at a time, which in random data is nearly all of them::

    elements --better than the k-th best?--> room for 2k --full--> the k best, in their order

Elements are read as integers, of which the largest is the best (`key`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.jit import jit, jit_inner

Array = Any

#: Neighbours in memory that are compared with what is known at a time.
_BLOCK = 512
#: As many columns, each of which has been compared with another number.
_COLUMNS = 32


@jit_inner
def key(value: Any, how: Array) -> Any:
    """Return an integer that is the larger the better an element is.

    `how` has, of the same dtype: what is flipped of all, what is subtracted, what is flipped of
    negative ones, the bits of infinity, whether minus one is zero, what is flipped at last.
    """
    integer = how.dtype.type
    value = integer(integer(value ^ how[0]) - how[1])
    value = integer(value ^ (how[2] if value < 0 else integer(0)))
    nan = (value > how[3]) | (value < ~how[3])
    value = integer(0) if (value == integer(-1)) & (how[4] != 0) else value
    value = integer(np.iinfo(integer).max) if nan else value
    return integer(value ^ how[5])


@jit_inner
def _kth(keys: Array, k: int) -> Any:
    """Return the k-th largest of some keys, which are put into another order."""
    low, high, at = 0, len(keys) - 1, k - 1
    while low < high:
        a, b, c = keys[low], keys[(low + high) // 2], keys[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while keys[i] > pivot:
                i += 1
            while keys[j] < pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if at <= j:
            high = j
        elif at >= i:
            low = i
        else:
            break
    return keys[at]


@jit_inner
def _shrink(keys: Array, places: Array, count: int, k: int, space: Array) -> Any:
    """Keep the `k` best of `count` elements, in their order; return the key of the last of them."""
    space[:count] = keys[:count]
    least = _kth(space[:count], k)
    room = k
    for i in range(count):
        room -= keys[i] > least
    kept = 0
    for i in range(count):
        if keys[i] > least or (keys[i] == least and room > 0):
            room -= keys[i] == least
            keys[kept], places[kept] = keys[i], places[i]
            kept += 1
    return least


def _best_of_rows(
    x: Array, step: int, n: int, k: int, how: Array, room: int, bits: Array, indices: Array
) -> None:
    integer = how.dtype.type
    keys, space = np.empty(room, how.dtype), np.empty(room, how.dtype)
    places = np.empty(room, np.int64)
    for line in range(len(bits)):
        count, least, full = 0, integer(0), False
        for start in range(0, n, _BLOCK):
            part = x[line * step + start :][: min(_BLOCK, n - start)]
            if full:
                best = integer(np.iinfo(integer).min)
                for i in range(len(part)):
                    best = max(best, key(part[i], how))
                if best <= least:
                    continue
            for i in range(len(part)):
                mine = key(part[i], how)
                if full and mine <= least:
                    continue
                keys[count], places[count] = mine, start + i
                count += 1
                if count == room:
                    least, count, full = _shrink(keys, places, count, k, space), k, True
        if count > k:
            _shrink(keys, places, count, k, space)
        for i in range(k):
            bits[line, i], indices[line, i] = x[line * step + places[i]], places[i]


def _best_of_columns(
    x: Array,
    line_step: int,
    step: int,
    n: int,
    inner: int,
    k: int,
    how: Array,
    room: int,
    width: int,
    bits: Array,
    indices: Array,
) -> None:
    integer = how.dtype.type
    keys, space = np.empty((width, room), how.dtype), np.empty(room, how.dtype)
    places, counts = np.empty((width, room), np.int64), np.empty(width, np.int64)
    least = np.empty(width, how.dtype)
    for group in range(0, len(bits) // inner * ((inner + width - 1) // width)):
        begin = group % ((inner + width - 1) // width) * width
        line = group // ((inner + width - 1) // width)
        columns = min(width, inner - begin)
        counts[:] = 0
        for row in range(n):
            for first in range(0, columns, _COLUMNS):
                some = min(_COLUMNS, columns - first)
                at = line * line_step + row * step + begin + first
                part, limits = x[at:][:some], least[first:][:some]
                better = row < room
                if not better:
                    for i in range(some):
                        better |= key(part[i], how) > limits[i]
                    if not better:
                        continue
                for i in range(some):
                    mine, c = key(part[i], how), first + i
                    if row >= room and mine <= least[c]:
                        continue
                    count = counts[c]
                    keys[c, count], places[c, count] = mine, row
                    count += 1
                    if count == room:
                        least[c], count = _shrink(keys[c], places[c], count, k, space), k
                    counts[c] = count
        for c in range(columns):
            if counts[c] > k:
                _shrink(keys[c], places[c], counts[c], k, space)
            at, mine = line * line_step + begin + c, line * inner + begin + c
            for i in range(k):
                bits[mine, i], indices[mine, i] = x[at + places[c, i] * step], places[c, i]


#: Write the elements that are the `k` best of lines of `n` integers, and their indices, in their
#: order; `n` is more than `k`. Lines are `step` integers apart, and `room` is more than `k`.
best_of_rows = jit(_best_of_rows)

#: Do it for `inner` lines that are neighbours, whose integers are `step` integers apart, `width`
#: of them at a time.
best_of_columns = jit(_best_of_columns)
