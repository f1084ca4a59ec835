"""Sums, variances, counts and extrema of many groups of CuPy chunks, with labels in their shape.

None of them depends on the order of the elements::

    sums      a weighted histogram of the codes, or by buckets: kernel_group_sums.cuh
    squares   a weighted histogram of deviations from the means that sums and counts give
    counts    beside sums or extrema, or a histogram of the codes
    extrema   in shared memory, or by buckets: kernel_group_extremes.cuh

Buckets are for elements of up to 4 bytes, which are first dealt to lists by their codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.bins import Integers
from dask_coop.algebra.monoids import (
    ARGMAX,
    ARGMIN,
    COUNT,
    COUNTS,
    MAX,
    MEAN,
    MIN,
    NANMAX,
    NANMIN,
    NO_INDEX,
    SUM,
    VAR,
    State,
    accumulator,
)
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.arrays import aligned
from dask_coop.chunks.cupy.exact import cast
from dask_coop.chunks.cupy.histogram_strategies import Weights, count, counts_beside, weigh
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import grouped as programs
from dask_coop.cuda.programs import histogram

Array = Any

_SUMS = (SUM, COUNTS, COUNT, MEAN)
_EXTREMA = (MIN, MAX, NANMIN, NANMAX, ARGMIN, ARGMAX)

#: The bytes of the lists of elements that are dealt at a time.
_LISTS_BYTES = 1 << 31


def takes(op: Operation, n: int) -> bool:
    """Return whether `reduce` supports an operation for n groups."""
    if op.monoid in _SUMS:
        return op.element.kind in "biuf"
    if op.monoid is VAR:
        return op.element.kind in "biuf" and _is_histogram(n)
    small = op.element.itemsize <= 4 and op.element.kind in "biuf"
    return op.monoid in _EXTREMA and small and (_fits(n) or _takes_buckets(op.element, n, 1))


def _fits(n: int) -> bool:
    """Return whether a block's shared memory has room for a key of each group."""
    return 4 * n <= device(cupy.cuda.runtime.getDevice()).shared_bytes


def _takes_buckets(element: np.dtype[Any], n: int, words: int) -> bool:
    """Return whether elements can be dealt to buckets, with `words` words a group."""
    room = device(cupy.cuda.runtime.getDevice()).shared_bytes
    buckets = -(-n // programs.BUCKET)
    needed = programs.deal_shared_bytes(element, buckets * _copies(buckets))
    fits = max(needed, programs.lists_shared_bytes(words)) <= room
    return fits and element.itemsize <= 4 and n <= programs.MOST_GROUPS


def _copies(buckets: int) -> int:
    """Return the number of counters of a bucket."""
    return max(1, min(16, programs.DEAL_THREADS // buckets))


def _is_histogram(n: int) -> bool:
    """Return whether n groups of a weighted histogram fit half of the shared memory."""
    return n <= device(cupy.cuda.runtime.getDevice()).shared_bytes // 2 - 1024


def reduce(
    ops: Sequence[Operation],
    x: Array,
    codes: Array,
    n: int,
    states: Sequence[State],
    sizes: Array | None,
) -> None:
    """Reduce `x`, of shape (outer, rows, 1), to `states`, whose fields of (outer, n, 1) are zero.

    All operations have the same elements. `sizes`, zero too, gets the number of rows of each group.
    """
    wide = x.dtype.kind in "iu" and x.itemsize > 4
    for line in range(x.shape[0]):
        values = aligned(x[line, :, 0])
        of_line = [tuple(field[line, :, 0] for field in state) for state in states]
        sums: dict[tuple[bool, bool], list[tuple[Operation, State]]] = {}
        for op, tables in zip(ops, of_line, strict=True):
            if op.monoid in _EXTREMA:
                counted = sizes if _fits(2 * n) else None
                _extrema(op, codes, values, n, counted, *tables)
                sizes = sizes if counted is None else None
                continue
            key = op.skipna and op.element.kind == "f", wide and op.monoid in (MEAN, VAR)
            sums.setdefault(key, []).append((op, tables))
        for (skipna, as_floats), those in sums.items():
            elements = cast(values, np.dtype("f8")) if as_floats else values
            counted = None if skipna else sizes
            _sums(those, codes, elements, n, skipna, counted)
            sizes = sizes if counted is None else None
    if sizes is not None:
        count_rows(codes, n, sizes)


def _fields(those: Sequence[tuple[Operation, State]], *roles: str) -> Iterator[Array]:
    """Yield the tables of the fields with some roles."""
    for op, tables in those:
        for field, table in zip(op.monoid.fields, tables, strict=True):
            if field.role in roles:
                yield table


def _sums(
    those: Sequence[tuple[Operation, State]],
    codes: Array,
    values: Array,
    n: int,
    skipna: bool,
    sizes: Array | None,
) -> None:
    """Write sums, counts and variances of the same elements, in one read, or two for variances."""
    squares = [tables for op, tables in those if op.monoid is VAR]
    totals = [
        *_fields(
            [(op, tables) for op, tables in those if op.monoid is not VAR], "accumulator", "float"
        )
    ]
    counts = [*_fields(those, "count"), *([] if sizes is None else [sizes])]
    # Sums of integers of 32 bits are exact in 64.
    exact = accumulator(values.dtype)
    total: Any = next((table for table in totals if table.dtype == exact), None)
    if total is None and (totals or squares):
        total = cupy.zeros(n, exact)
    largest = cupy.zeros(n, "u4") if squares else None
    _add(codes, values, n, skipna, total, counts[0] if counts else None, largest)
    for tables, source in ((totals, total), (counts, counts and counts[0])):
        for table in tables:
            if table is not source:
                table[...] = source
    if not squares:
        return
    count_of, means, deviations = squares[0]
    scales = cupy.empty(n, "u2")
    operands: tuple[Any, ...] = (total, count_of, largest, means, deviations, scales)
    source, threads = histogram.average(exact, values.itemsize == 8), histogram.THREADS
    pointers = (table.data.ptr for table in operands)
    launch(source, -(-n // threads), threads, *pointers, np.int32(n))
    at = means.data.ptr, scales.data.ptr
    weigh(codes, Weights(values, "squares", at), n, deviations)
    for others in squares[1:]:
        for table, source_of in zip(others, squares[0], strict=True):
            table[...] = source_of


def _add(
    codes: Array,
    values: Array,
    n: int,
    skipna: bool,
    total: Array | None,
    counts: Array | None,
    largest: Array | None,
) -> None:
    """Add values to `total` and their numbers to `counts`, and write the sizes of the `largest`."""
    if total is None and not skipna:
        count_rows(codes, n, counts)
    elif _is_histogram(n) or not _takes_buckets(values.dtype, n, 3):
        beside = skipna or largest is not None or (counts is not None and counts_beside(n))
        term: histogram.Term = (
            "weights" if not beside else "counted" if largest is None else "sized"
        )
        at = tuple(0 if table is None else table.data.ptr for table in (counts, largest) * beside)
        table = cupy.zeros(n, "f8") if total is None else total
        weigh(codes, Weights(values, term, at, skipna), n, table)
        if counts is not None and not beside:
            count_rows(codes, n, counts)
    else:
        if skipna:
            nan = cupy.isnan(values)
            values = cupy.where(nan, 0, values).astype(values.dtype, copy=False)
            codes = cupy.where(nan, -1, codes).astype(np.int32, copy=False)
        if counts is not None:
            count_rows(codes, n, counts)
        if total is not None:
            _sum_by_buckets(codes, values, n, total)


def count_rows(codes: Array, n: int, sizes: Array) -> None:
    """Add the number of rows of each group to `sizes`."""
    count(codes.view("u4"), None, Integers(n), sizes)


def _sum_by_buckets(codes: Array, values: Array, n: int, total: Array) -> None:
    gpu = device(cupy.cuda.runtime.getDevice())
    is_float = values.dtype.kind == "f"
    largest, deal = programs.largest(values.dtype), programs.deal(values.dtype)
    add, settle = programs.add(values.dtype), programs.settle(total.dtype)
    prepare(deal, add, settle)
    words = cupy.zeros((2 + programs.APART_WORDS * is_float) * n + 1, "u8")
    high = words.data.ptr
    low, exponent, apart = high + 8 * n, high + 16 * n, high + 16 * n + 8
    dealt = _dealt_at_a_time(values, n)
    if is_float and values.size > dealt:
        rest = values[dealt:]
        size = np.int64(rest.size)
        launch(largest, 2 * gpu.processors, programs.BUCKET_THREADS, rest.data.ptr, size, exponent)
    given = exponent, total.data.ptr, high, low, apart
    _by_buckets(codes, values, n, add, 3, exponent if is_float else 0, *given)
    settled = total.data.ptr, high, low, apart, exponent, np.int32(n)
    launch(settle, -(-n // programs.SETTLE_THREADS), programs.SETTLE_THREADS, *settled)


def _extrema(
    op: Operation, codes: Array, values: Array, n: int, sizes: Array | None, *out: Array
) -> None:
    """Write the extrema of groups, and the indices of the first; identities for empty groups."""
    gpu = device(cupy.cuda.runtime.getDevice())
    keys, settle = programs_list.extremes(op)
    table = cupy.zeros(n, "u4")
    v = 1 if values.data.ptr % (4 * values.itemsize) or codes.data.ptr % 16 else 4
    blocks = max(1, min(gpu.processors, values.size // (programs.BUCKET_THREADS * 4)))
    arguments = values.data.ptr, codes.data.ptr, np.int64(values.size), np.int32(n), table.data.ptr
    if _fits(n):
        counted = sizes is not None
        source = programs.extremes(op.element, keys, v, counted)
        counts = np.int64(0) if sizes is None else sizes.data.ptr
        prepare(source, settle)
        shared = 4 * n * (1 + counted)
        launch(source, blocks, programs.BUCKET_THREADS, *arguments, counts, shared=shared)
    else:
        source = programs.extremes_of_lists(op.element, keys)
        prepare(programs.deal(op.element), source, settle)
        _by_buckets(codes, values, n, source, 1, 0, table.data.ptr)
    if op.monoid.positional:
        out[1].fill(NO_INDEX)
        finder = programs.find_extremes(op.element, keys, v)
        launch(finder, 2 * blocks, programs.BUCKET_THREADS, *arguments, out[1].data.ptr)
    settled = table.data.ptr, out[0].data.ptr, np.int32(n)
    launch(settle, -(-n // programs.SETTLE_THREADS), programs.SETTLE_THREADS, *settled)


def _dealt_at_a_time(values: Array, n: int) -> int:
    """Return how many elements are dealt at a time, in whole tiles."""
    tile = programs.DEAL_THREADS * programs.DEAL_ITEMS
    buckets = -(-n // programs.BUCKET)
    most = max(1, _LISTS_BYTES // (tile * (2 + values.itemsize) + 4 * buckets))
    return int(tile * min(-(-values.size // tile), most))


def _by_buckets(
    codes: Array, values: Array, n: int, source: str, words: int, exponent: int, *arguments: Any
) -> None:
    """Deal values to buckets, and launch the program that reduces them.

    If the address `exponent` is not 0, the largest exponent of the dealt values is written there.
    """
    gpu = device(cupy.cuda.runtime.getDevice())
    element, size = values.dtype, values.size
    buckets = -(-n // programs.BUCKET)
    copies = _copies(buckets)
    tile = programs.DEAL_THREADS * programs.DEAL_ITEMS
    most = _dealt_at_a_time(values, n) // tile
    lists = cupy.empty(most * tile * (2 + element.itemsize), "u1")
    extents = cupy.empty(most * buckets, "u4")
    at = lists.data.ptr, lists.data.ptr + 2 * most * tile, extents.data.ptr
    blocks = gpu.processors
    if buckets > blocks // 2:
        # More blocks, so that those of a large bucket do not start last and end long after others.
        blocks = 4 * blocks + buckets
    for begin in range(0, size, most * tile):
        some = min(size - begin, most * tile)
        tiles, work = -(-some // tile), cupy.zeros(buckets, "u4")
        given = values.data.ptr + begin * element.itemsize, codes.data.ptr + begin * 4
        room = *at, work.data.ptr, np.int32(buckets)
        launch(
            programs.deal(element),
            tiles,
            programs.DEAL_THREADS,
            *(*given, np.int64(some), np.int32(n), *room, np.int32(copies), exponent),
            shared=programs.deal_shared_bytes(element, buckets * copies),
        )
        launch(
            source,
            blocks,
            programs.BUCKET_THREADS,
            *(*room, np.int64(tiles), np.int32(n), *arguments),
            shared=programs.lists_shared_bytes(words),
        )
