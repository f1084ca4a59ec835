"""Transposed copies of CuPy chunks, and chunks joined: kernel_transpose.cuh, kernel_join.cuh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.strategies import AUTO, refusal
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import transpose as programs
from dask_coop.errors import DoesNotApply

Array = Any

#: The most bytes of joined chunks; and how many times as large a GPU's memory must be, also for
#: those that are sorted.
_JOINED_BYTES, _JOINED_TIMES, _SORTED_TIMES = 1 << 30, 64, 16

#: Fewer bytes take no longer to copy than to launch the copy.
_SMALL_BYTES = 1 << 20


def transpose(x: Array, axes: Sequence[int] | None = None, strategy: str = AUTO) -> Array:
    """Return a copy of the chunk `x` in C order, with its axes in another order.

    Parameters
    ----------
    x : cupy.ndarray
        With any strides.
    axes : sequence of int, optional
        ``result.shape == tuple(x.shape[axis] for axis in axes)``; by default the axes reversed.
    strategy : str
        "auto", or a name of `algebra.strategies.TRANSPOSE`.

    Raises
    ------
    ValueError
        If `axes` is not a permutation of the axes of `x`, or the strategy does not apply.
    """
    with x.device:
        view = x.transpose(axes)
        result = cupy.empty(view.shape, x.dtype)
        starts = (x.data.ptr, result.data.ptr)
        named = None if strategy == AUTO else strategy
        try:
            steps = [*programs.plan(view.shape, view.strides, x.itemsize, starts, named)]
        except DoesNotApply as error:
            raise refusal("transpose", strategy, str(error)) from None
        for step in steps:
            addresses = (start + offset for start, offset in zip(starts, step.offsets, strict=True))
            launch(step.source, step.blocks, step.threads, *addresses, *step.arguments)
        return result


def contiguous(x: Array) -> Array:
    """Return `x` if it is in C order, otherwise a copy in C order."""
    if x.flags.c_contiguous:
        return x
    # CuPy has compiled its copies of small arrays for others already.
    small = x.nbytes < _SMALL_BYTES
    return cupy.ascontiguousarray(x) if small else transpose(x, range(x.ndim))


def most_joined(x: Array, ordered: bool) -> int:
    """Return the most bytes of chunks to join on the GPU of the chunk `x`."""
    memory = _memory(x.data.device_id)
    return memory // _SORTED_TIMES if ordered else min(_JOINED_BYTES, memory // _JOINED_TIMES)


@cache
def _memory(ordinal: int) -> int:
    """Return the bytes of a GPU's memory."""
    with cupy.cuda.Device(ordinal) as gpu:
        return int(gpu.mem_info[1])


def join(blocks: Sequence[Array], grid: tuple[int, ...]) -> Array:
    """Return the array of blocks in C order, of which there are `grid` along each axis."""
    ndim = len(grid)
    strides = [math.prod(grid[d + 1 :]) for d in range(ndim)]
    ends = [
        [0, *accumulate(blocks[i * strides[d]].shape[d] for i in range(grid[d]))]
        for d in range(ndim)
    ]
    with blocks[0].device:
        whole = cupy.empty([along[-1] for along in ends], blocks[0].dtype)
        if not whole.size:
            return whole
        if any(n > 1 for n in grid[2:]):
            for place, x in zip(np.ndindex(*grid), blocks, strict=True):
                whole[tuple(slice(*ends[d][i : i + 2]) for d, i in enumerate(place))] = x
            return whole
        blocks = [contiguous(x) for x in blocks]
        if all(n == 1 for n in grid[1:]):
            sizes = [x.nbytes for x in blocks]
            places = [
                (end - size, size, 1) for end, size in zip(accumulate(sizes), sizes, strict=True)
            ]
            pitch = 0
        else:
            line, pitch = whole.strides[1], whole.strides[0]
            places = [
                (i * pitch + j * line, (after - j) * line, below - i)
                for i, below in pairwise(ends[0])
                for j, after in pairwise(ends[1])
            ]
        _join_rows([x.data.ptr for x in blocks], places, pitch, whole)
        return whole


def _join_rows(
    addresses: list[int], places: list[tuple[int, int, int]], pitch: int, out: Array
) -> None:
    """Copy chunks to their places in an array, in bytes: begin, length of a row, number of rows."""
    size = math.gcd(16, pitch, out.data.ptr, *addresses, *(n for at in places for n in at[:2]))
    chunks = np.empty((len(addresses), 4), np.uint64)
    chunks[:, 0] = addresses
    chunks[:, 1:] = places
    chunks[:, 1:3] //= size
    largest = max(row * rows for _, row, rows in places) // size
    tiles = max(1, min(-(-largest // programs.JOINED_TILE), 1 << 20))
    table = cupy.asarray(chunks)
    numbers = np.int64(tiles), np.int64(pitch // size)
    blocks = len(addresses) * tiles
    launch(programs.join(size), blocks, programs.THREADS, table.data.ptr, *numbers, out.data.ptr)
