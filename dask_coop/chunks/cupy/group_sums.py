"""Sums and counts of many groups of CuPy chunks, whose labels lie as the elements do.

Up to some thousand groups these are weighted histograms of the codes; of more groups elements of up
to 4 bytes are dealt to buckets first, by kernel_group_sums.cuh. Both add integers, in any order.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.bins import Integers
from dask_coop.algebra.monoids import COUNT, COUNTS, MEAN, SUM, State
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.cupy.arrays import aligned
from dask_coop.chunks.cupy.histogram_strategies import count
from dask_coop.chunks.cupy.states import HOST_STATE_BYTES
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import grouped as programs

Array = Any

#: The most groups that are left to weighted histograms, which have them in shared memory.
_HISTOGRAM_GROUPS = 1 << 14

#: Bytes of the lists of elements that are dealt at a time.
_LISTS_BYTES = 1 << 31


def is_sum(op: Operation) -> bool:
    """Tell whether sums of elements and counts make the states of an operation."""
    return op.monoid in (SUM, COUNTS, COUNT, MEAN) and op.element.kind in "biuf"


def count_rows(codes: Array, n: int) -> Array:
    """Return the number of rows of each group."""
    sizes = cupy.zeros(n, "i8")
    if codes.size and n:
        count(codes.view("u4"), None, Integers(n), sizes)
    return sizes


def sums(ops: tuple[Operation, ...], x: Array, codes: Array, n: int) -> list[State]:
    """Return sums and counts of `x`, of shape (outer, rows, 1), as fields of (outer, n, 1)."""
    shape = (x.shape[0], n, 1)
    found = []
    for op in ops:
        fields = [cupy.zeros(shape, dtype) for dtype in op.monoid.dtypes(op.element)]
        for line in range(x.shape[0]):
            values, labels = aligned(x[line, :, 0]), codes
            if op.skipna and op.element.kind == "f":
                nan = cupy.isnan(values)
                values = cupy.where(nan, 0, values).astype(x.dtype, copy=False)
                labels = cupy.where(nan, -1, codes).astype(np.int32, copy=False)
            for field, table in zip(op.monoid.fields, fields, strict=True):
                if field.role == "count":
                    count(labels.view("u4"), None, Integers(n), table[line, :, 0])
                else:
                    _sum(labels, values, n, table[line, :, 0])
        small = sum(field.nbytes for field in fields) <= HOST_STATE_BYTES
        found.append(tuple(map(cupy.asnumpy, fields)) if small else tuple(fields))
    return found


def _sum(codes: Array, values: Array, n: int, total: Array) -> None:
    """Sum values by their codes into `total`, which is zero."""
    if total.dtype.kind == "f" and values.dtype.kind != "f":
        # Sums of integers of 32 bits are exact in 64.
        exact = values.itemsize <= 4
        table = cupy.zeros(n, "i8" if exact else "f8")
        _sum(codes, values if exact else values.astype(np.float64), n, table)
        total[...] = table
    elif values.itemsize <= 4 and _HISTOGRAM_GROUPS < n <= programs.MOST_GROUPS:
        _sum_by_buckets(codes, values, n, total)
    else:
        count(codes.view("u4"), values, Integers(n), total)


def _sum_by_buckets(codes: Array, values: Array, n: int, total: Array) -> None:
    gpu = device(cupy.cuda.runtime.getDevice())
    element, size = values.dtype, values.size
    buckets = -(-n // programs.BUCKET)
    tile = programs.DEAL_THREADS * programs.DEAL_ITEMS
    nbytes = tile * (2 + element.itemsize) + 4 * buckets
    most = min(-(-size // tile), max(1, _LISTS_BYTES // nbytes))
    largest, deal = programs.largest(element), programs.deal(element)
    add, settle = programs.add(element), programs.settle(total.dtype)
    is_float = element.kind == "f"
    prepare(*(largest,) * is_float, deal, add, settle)
    lists = cupy.empty(most * tile * (2 + element.itemsize), "u1")
    extents = cupy.empty(most * buckets, "u4")
    words = cupy.zeros((2 + programs.APART_WORDS * is_float) * n + 1, "u8")
    high = words.data.ptr
    low, exponent, apart = high + 8 * n, high + 16 * n, high + 16 * n + 8
    if is_float:
        arguments = values.data.ptr, np.int64(size), exponent
        launch(largest, 2 * gpu.processors, programs.SUM_THREADS, *arguments)
    at = lists.data.ptr, lists.data.ptr + 2 * most * tile
    for begin in range(0, size, most * tile):
        count_of = min(size - begin, most * tile)
        tiles = -(-count_of // tile)
        work = cupy.zeros(buckets, "u4")
        room = *at, extents.data.ptr, work.data.ptr, np.int32(buckets)
        launch(
            deal,
            tiles,
            programs.DEAL_THREADS,
            values.data.ptr + begin * element.itemsize,
            codes.data.ptr + begin * 4,
            np.int64(count_of),
            np.int32(n),
            *room,
            shared=programs.deal_shared_bytes(element, buckets),
        )
        numbers = np.int64(tiles), np.int32(n)
        launch(
            add,
            gpu.processors + (buckets if buckets > gpu.processors // 2 else 0),
            programs.SUM_THREADS,
            *room,
            *numbers,
            *(exponent, total.data.ptr, high, low, apart),
            shared=programs.add_shared_bytes(),
        )
    settled = total.data.ptr, high, low, apart, exponent, np.int32(n)
    launch(settle, -(-n // programs.THREADS), programs.THREADS, *settled)
