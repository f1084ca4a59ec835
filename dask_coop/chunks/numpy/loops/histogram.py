"""The loop over the samples of a NumPy chunk, compiled by Numba, which is optional.

Blocks of samples get slots for their bins. The slots along all coordinates and the line of each
sample make up an index in the flat table. These are counted, weighted or returned. The loop runs
once a chunk and releases the GIL. It is compiled for each set of arguments that are None, so that a
call waits only for the code that it needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.loops.bin_index import (
    CELLS,
    LINE,
    TABLE,
    VALUES,
    compare,
    compare_on_line,
    find_by_values,
    guess_by_cells,
    guess_nothing,
    guess_on_line,
    list_doubtful,
    mark_missing,
    put_in_order,
)
from dask_coop.chunks.numpy.loops.strided import (
    FIRST_INTEGER,
    load_f8,
    load_floats,
    load_i8,
    load_integers,
    offsets,
    widen,
)
from dask_coop.compiled.jit import jit, jit_inner

Array = Any


@jit_inner
def _load(row: Array, at: int, floating: Any, whole: Any, integers: Array, out: Array) -> None:
    """Write elements of a row in float64, and integers also to `integers`."""
    if floating is not None and (whole is None or row[0] < FIRST_INTEGER):
        load_floats(row, at, out)
    if whole is not None and (floating is None or row[0] >= FIRST_INTEGER):
        load_integers(row, at, integers)
        widen(integers, row[0], out)


@jit_inner
def _guess_in_table(x: Array, finder: Any, slots: Array) -> Any:
    if finder.kind == CELLS:
        return guess_by_cells(x, finder, slots)
    if finder.kind == TABLE:
        return guess_on_line(x, finder, slots)
    guess_nothing(slots)
    return True


@jit_inner
def _refine(slots: Array, shift: int, count: int, fresh: Any, index: Array) -> None:
    """Extend `index`, which is 0 for nowhere, to a table of `count` times the entries.

    With `fresh`, the index has no content yet, as if it were 1 everywhere.
    """
    first, n, one = np.int32(shift), np.int32(count), np.int32(1)
    for i in range(len(index)):
        so_far = one if fresh else index[i]
        number = np.int32(slots[i] - first)
        further = np.int32(np.int32(np.int32(so_far - one) * n) + np.int32(number + one))
        inside = (so_far > 0) & (number >= 0) & (number < n)
        index[i] = further if inside else np.int32(0)


@jit_inner
def _add(index: Array, copies: int, table: Array) -> None:
    """Add ones to entries of the table.

    The table has several copies of itself, which are used in turn, because an addition waits for
    the one before it to the same address.
    """
    n, m = np.uint64(len(table) // copies), len(index)
    second, third = n * np.uint64(copies > 1), n * np.uint64(copies > 2) * np.uint64(2)
    fourth, one = n * np.uint64(copies - 1), np.uint64(1)
    four, done = np.uint64(4), np.uint64(m & ~3)
    # Unsigned: Numba counts negative indices from the end.
    for i in range(np.uint64(0), done, four):
        table[np.uint32(index[i])] += 1
        table[second + np.uint32(index[i + one])] += 1
        table[third + np.uint32(index[i + one + one])] += 1
        table[fourth + np.uint32(index[i + one + one + one])] += 1
    for i in range(done, np.uint64(m)):
        table[np.uint32(index[i])] += 1


@jit_inner
def _add_weights(index: Array, weights: Array, copies: int, table: Array) -> None:
    """Add weights to entries of the table, as `_add` adds ones."""
    n, m = np.uint64(len(table) // copies), len(index)
    second, third = n * np.uint64(copies > 1), n * np.uint64(copies > 2) * np.uint64(2)
    fourth, one = n * np.uint64(copies - 1), np.uint64(1)
    four, done = np.uint64(4), np.uint64(m & ~3)
    for i in range(np.uint64(0), done, four):
        table[np.uint32(index[i])] += weights[i]
        table[second + np.uint32(index[i + one])] += weights[i + one]
        table[third + np.uint32(index[i + one + one])] += weights[i + one + one]
        table[fourth + np.uint32(index[i + one + one + one])] += weights[i + one + one + one]
    for i in range(done, np.uint64(m)):
        table[np.uint32(index[i])] += weights[i]


@jit_inner
def _number(slots: Array, n: int, numbers: Array, out: Array) -> None:
    """Write the bin numbers of slots."""
    below, above, missing, first, step = numbers
    for i in range(len(slots)):
        number = first + step * (slots[i] - 1)
        number = number if slots[i] <= n else above
        number = number if slots[i] <= n + 1 else missing
        out[i] = number if slots[i] > 0 else below


@jit
def tally(x: Array, table: Array) -> int:
    """Add ones to the entries that integers index; return the number of integers out of range."""
    n, others = np.uint64(len(table)), 0
    for i in range(len(x)):
        # Negative ones, read as unsigned, exceed any table.
        v = np.uint64(x[i])
        if v < n:
            table[v] += 1
        else:
            others += 1
    return others


@jit
def count(
    x: Any,
    weights: Any,
    rows: Any,
    summed: Any,
    exact: Any,
    finders: Array,
    on_line: Any,
    in_table: Any,
    by_value: Any,
    floating: Any,
    whole: Any,
    lines: Any,
    entries: Any,
    start: int,
    end: int,
    copies: int,
    table: Any,
    numbers: Any,
    floats: Array,
    integers: Array,
    places: Array,
    first: Array,
    along: Array,
) -> None:
    """Count samples `start` to `end` into a table, or write their bin numbers to it.

    Parameters
    ----------
    x : tuple of array, or None
        The samples' coordinates, one-dimensional and contiguous, of one dtype.
    weights : array or None
        As many weights, in the same layout.
    rows : array or None
        The records of loops/strided.py: of each coordinate if there is no `x`, then of the weights.
    summed, exact : bool or None
        Whether `rows` has weights, and whether these are summed as integers.
    finders : array of FINDER
        One for each coordinate.
    on_line, in_table, by_value : bool or None
        Whether there are finders of these kinds.
    floating, whole : bool or None
        Whether `rows` has floats; whether it has integers, or samples are compared as integers.
    lines : array or None
        The record of an array whose addresses are lines of the table, counted from 1.
    entries : array or None
        The slot of the first entry and the number of entries along each coordinate, if there are
        several coordinates or `lines`. The table then begins with an entry for samples in no bin.
    copies : int
        The number of copies in the table: 1, 2 or 4.
    table : array
    numbers : array or None
        The bin numbers to write to `table` instead: for samples below, above, NaN, and in bins the
        first number and the step.
    floats, integers, places, first, along : array
        Room for the samples of a block: float64, int64, and three times int32.
    """
    block = len(first)
    for at in range(start, end, block):
        n = block if end - at > block else end - at
        index = first[:n]
        if lines is not None:
            offsets(lines, at, index)
        for c in range(len(finders)):
            finder, slots = finders[c], index
            kind = finder.kind
            if entries is not None:
                slots = along[:n]
            if x is not None:
                v = x[c][at : at + n]
            if rows is not None:
                v = floats[:n]
                _load(rows[c], at, floating, whole, integers[:n], v)
            if on_line is not None and kind == LINE and guess_on_line(v, finder, slots):
                compare_on_line(v, finder, places[: list_doubtful(slots, places)], slots)
            if in_table is not None and LINE < kind < VALUES and _guess_in_table(v, finder, slots):
                those = places[: list_doubtful(slots, places)]
                if whole is not None and finder.whole:
                    if x is not None:
                        put_in_order(v, finder.flip, integers)
                    if rows is not None:
                        put_in_order(integers[:n], finder.flip, integers)
                    compare(integers, load_i8, finder, those, slots)
                else:
                    compare(v, load_f8, finder, those, slots)
            if by_value is not None and kind >= VALUES:
                if x is not None:
                    find_by_values(v, finder, slots)
                if rows is not None:
                    find_by_values(integers, finder, slots)
            if finder.missing:
                mark_missing(v, finder.missing, slots)
            if entries is not None:
                _refine(slots, entries[c, 0], entries[c, 1], lines is None and c == 0, index)
        if numbers is not None:
            _number(index, finders[0].n, numbers, table[at : at + n])
        if numbers is None:
            if weights is None and summed is None:
                _add(index, copies, table)
            if weights is not None:
                part = weights[at : at + n]
                _add_weights(index, part, copies, table)
            if summed is not None:
                row = rows[len(finders)]
                if exact is None:
                    _load(row, at, floating, whole, integers[:n], floats[:n])
                    _add_weights(index, floats[:n], copies, table)
                if exact is not None:
                    load_integers(row, at, integers[:n])
                    _add_weights(index, integers[:n], copies, table)
