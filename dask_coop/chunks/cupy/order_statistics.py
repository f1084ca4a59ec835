"""Order statistics of the lines of CuPy chunks.

============= ==================================== =============================
who           lines of                             are read
============= ==================================== =============================
a thread      up to 64 keys, or 32 of 8 bytes      once, as they lie
a warp        up to 1,024 keys                     once, as they lie
a block       as many as fit in its shared memory  once, if they are contiguous
many blocks   more                                 once a digit, if contiguous
============= ==================================== =============================

Other lines are transposed first, one slab after the other. The elements of groups are gathered into
lines in the same way.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.chunks.cupy.arrays import aligned
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.chunks.states import boxes
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import order_statistics as programs

Array = Any

#: The bytes of a slab, and of the counts of digits at a time.
_SLAB, _TALLIES = 128 << 20, 64 << 20

#: The most bytes of a row of a tile; a tile takes 1 / _SHARE of a processor's shared memory.
_ROW, _SHARE = 256, 3

#: The fewest neighbouring columns that are gathered by tiles.
_COLUMNS = 16

#: The contiguous lines that the warps of a block take.
_ROWS = 4 * programs.BY_WARPS // 32

#: The bytes of shared memory that blocks need besides the keys of a line.
_BESIDES = 512

#: The least elements of a line for each block that shares it, and the blocks of a processor.
_PART, _RESIDENT = 1 << 15, 8


class _Wanted(NamedTuple):
    """The ranks to find in all lines, and the arrays for the results, on the GPU."""

    ranks: Array
    step: int
    values: Array
    counts: Array


def order_statistics(
    x: Array, axes: tuple[int, ...], ranks: np.ndarray[Any, Any], index: Array | None = None
) -> tuple[Array, Array]:
    """Return elements by rank among those of their lines that are not NaN.

    -0.0 is below 0.0. NaN results have one bit pattern. With `index`, lines are those of
    ``x[..., index]``.
    """
    with x.device:
        if index is not None:
            first = _first_of_neighbours(index)
            if first is None:
                return _of_indexed(x, ranks, index)
            x = x[..., first : first + index.size].reshape(*x.shape[:-1], *index.shape)
        order = sorted(range(x.ndim), key=lambda d: -abs(x.strides[d]))
        kept = [d for d in order if d not in axes]
        across = [d for d in order if d in axes]
        shape, n = [x.shape[d] for d in kept], math.prod(x.shape[d] for d in axes)
        wanted = _wanted(x.dtype, n, math.prod(shape), ranks)
        if n and wanted.counts.size:
            _select(x, order, kept, across, wanted)
        values, counts = wanted.values, wanted.counts
        back = np.argsort(kept)
        values = values.reshape(ranks.shape[1], *shape).transpose([0, *(back + 1)])
        return values, counts.reshape(shape).transpose(back)


def _wanted(dtype: np.dtype[Any], n: int, lines: int, ranks: np.ndarray[Any, Any]) -> _Wanted:
    """Return the ranks of lines of `n` elements; the results of lines without elements are set."""
    # Kernels read the row of the number of elements that are not NaN.
    assert len(ranks) == n + 1
    values = cupy.empty((ranks.shape[1], lines), dtype)
    counts = cupy.empty(lines, "i8")
    if n == 0:
        values.fill(np.nan if dtype.kind == "f" else 0)
        counts.fill(0)
    # All rows of a broadcast table are one.
    step = ranks.shape[1] if ranks.strides[0] else 0
    rows = np.ascontiguousarray(ranks if step else ranks[:1], "i8")
    return _Wanted(cupy.asarray(rows), step, values, counts)


def _first_of_neighbours(index: Array) -> int | None:
    """Return the first position of an index on the host if the others follow it one by one."""
    if not isinstance(index, np.ndarray):
        return None
    first = int(index.flat[0])
    follow = np.array_equal(index.reshape(-1), np.arange(first, first + index.size))
    return first if follow else None


def _of_indexed(x: Array, ranks: np.ndarray[Any, Any], index: Array) -> tuple[Array, Array]:
    """Return the order statistics of the lines ``x[..., index]``, gathered slab by slab."""
    order = sorted(range(x.ndim), key=lambda d: -abs(x.strides[d]))
    axis = order.index(x.ndim - 1)
    lies = aligned(contiguous(x.transpose(order)))
    shape = [x.shape[d] for d in order]
    outer, n, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    shape[axis], length = index.shape
    wanted, begin = _wanted(x.dtype, length, math.prod(shape), ranks), 0
    index = cupy.ascontiguousarray(cupy.asarray(index, "i8"))
    for at in boxes((outer, shape[axis], inner), max(1, _SLAB // (length * x.itemsize))):
        slab = _gathered(lies.reshape(outer, n, inner), index, at)
        _launch(slab, length, 1, begin, wanted)
        begin += slab.size // length
    back = np.argsort(order)
    values = wanted.values.reshape(ranks.shape[1], *shape).transpose([0, *(back + 1)])
    return values, wanted.counts.reshape(shape).transpose(back)


def _gathered(x: Array, index: Array, at: tuple[slice, ...]) -> Array:
    """Return the lines of a box, contiguous: of outer positions, groups and columns of `x`."""
    _, n, inner = x.shape
    corner, groups = x[at[0], 0, at[2]], index[at[1]]
    outer, columns = corner.shape
    length, nbytes = index.shape[1], x.itemsize
    lines = cupy.empty((outer, len(groups), columns, length), x.dtype)
    sides = map(np.int64, (n, inner, len(groups), columns, length))
    arguments = (corner.data.ptr, lines.data.ptr, groups.data.ptr, *sides)
    threads, tiles = programs.BY_GATHERS, columns >= _COLUMNS
    if tiles:
        side = programs.SIDE
        blocks = outer * len(groups) * -(-columns // side) * -(-length // side)
    else:
        blocks, arguments = -(-lines.size // threads), (*arguments, np.int64(lines.size))
    launch(programs.gather(nbytes, tiles), blocks, threads, *arguments)
    return lines


def _select(x: Array, order: list[int], kept: list[int], across: list[int], to: _Wanted) -> None:
    """Find the ranks of the lines of `x`, whose axes are in the order of their strides."""
    n = math.prod(x.shape[d] for d in across)
    lies, first = x.transpose(order), order.index(across[0]) if across else x.ndim
    if lies.flags.c_contiguous and order[first : first + len(across)] == across:
        inner = math.prod(lies.shape[first + len(across) :])
        if inner == 1 or n <= programs.OF_WARPS:
            _launch(aligned(lies), n, inner, 0, to)
            return
    lines = x.transpose(kept + across)
    shape, begin = lines.shape[: len(kept)], 0
    for at in boxes(shape, max(1, _SLAB // (n * x.itemsize))):
        slab = contiguous(lines[at])
        _launch(slab, n, 1, begin, to)
        begin += slab.size // n


def _launch(x: Array, n: int, inner: int, first: int, to: _Wanted) -> None:
    """Find the ranks of lines of `n` elements of `x`, of shape (outer, n, inner)."""
    gpu, dtype, lines = device(cupy.cuda.runtime.getDevice()), x.dtype, x.size // n
    key_bytes = programs.key_bytes(dtype)
    if n > programs.OF_WARPS and n * key_bytes + _BESIDES > gpu.shared_bytes:
        _by_digits(x, n, first, to, gpu)
        return
    own: tuple[Any, ...] = np.int32(n), np.int64(inner)
    if vt := programs.thread_keys(dtype, n):
        source, threads = programs.by_threads(dtype, vt), programs.BY_THREADS
        count = -(-lines // threads)
        shared = _skewed(threads * n) * dtype.itemsize if inner == 1 else 0
    elif vt := programs.lane_keys(n):
        source, threads = programs.by_warps(dtype, vt), programs.BY_WARPS
        width, pad = _tile(dtype, n, inner, gpu)
        own += np.int32(width), np.int32(pad)
        count = -(-lines // width) if inner == 1 else lines // inner * -(-inner // width)
        shared = n * (width + pad) * dtype.itemsize if inner > 1 else 0
    else:
        threads, count = programs.block_threads(n), lines
        source = programs.by_blocks(dtype, threads)
        own = own[:1]
        shared = n * key_bytes + _BESIDES
    where = _arguments(first, lines, to)
    launch(source, count, threads, x.data.ptr, *own, *where, shared=shared)


def _arguments(first: int, lines: int, to: _Wanted) -> tuple[Any, ...]:
    """Return the kernels' arguments for `lines` lines from number `first` on."""
    m, distance = to.values.shape
    return (
        np.int64(lines),
        to.ranks.data.ptr,
        np.int64(to.step),
        np.int32(m),
        np.int64(distance),
        to.values.data.ptr + first * to.values.itemsize,
        to.counts.data.ptr + first * to.counts.itemsize,
    )


def _skewed(size: int) -> int:
    """Return the room for elements with a gap of one after every 32."""
    return size + size // 32


def _tile(dtype: np.dtype[Any], n: int, inner: int, gpu: Device) -> tuple[int, int]:
    """Return how many lines a block takes, and the gap in shared memory after each row of them."""
    pad = max(1, 4 // dtype.itemsize)
    if inner == 1:
        return _ROWS, 0
    width = 1
    while (
        width < inner
        and 2 * width * dtype.itemsize <= _ROW
        and n * (2 * width + pad) * dtype.itemsize <= gpu.shared_bytes // _SHARE
    ):
        width *= 2
    return width, pad


def _by_digits(x: Array, n: int, first: int, to: _Wanted, gpu: Device) -> None:
    """Find the ranks of contiguous lines, with a launch for every digit of their keys."""
    m = to.values.shape[0]
    at_once = max(1, _TALLIES // (8 * programs.BINS * max(1, m)))
    for begin in range(0, x.size // n, at_once):
        lines = min(at_once, x.size // n - begin)
        groups = lines * max(1, m)
        tallies = cupy.zeros(groups * programs.BINS + lines, "u8")
        tickets = cupy.zeros(groups, "u4")
        digits = cupy.empty((2, groups, 2), "u8")
        parts = max(1, min(n // _PART, -(-gpu.processors * _RESIDENT // lines)))
        start = x.data.ptr + begin * n * x.itemsize
        for number, (shift, width) in enumerate(programs.digits(x.dtype)):
            if number and not m:
                break
            launch(
                programs.by_digits(x.dtype),
                parts * (groups if number else lines),
                programs.BY_DIGITS,
                start,
                *(np.int64(n), np.int32(shift), np.int32(width), np.int32(number == 0)),
                np.int32(parts),
                *_arguments(first + begin, lines, to),
                digits[number % 2].data.ptr,
                digits[1 - number % 2].data.ptr,
                tallies.data.ptr,
                tallies.data.ptr + groups * programs.BINS * 8,
                tickets.data.ptr,
            )
