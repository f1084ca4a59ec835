"""Reduce CuPy chunks: choose a kernel of kernel_reduce.cuh, tiles and a grid."""

from __future__ import annotations

import math
import threading
from functools import lru_cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.algebra.operation import Operation
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.arrays import room_for
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import reduce as programs
from dask_coop.cuda.programs import scan as scans
from dask_coop.cuda.programs.base import Functor

Array = Any
Shape = tuple[int, int, int]

#: The blocks of `programs.THREADS` that keep a multiprocessor busy.
_BLOCKS = 8

#: The fewest bytes of a line that are worth a block of their own.
TILE_BYTES = 1 << 15

#: The most bytes of lines that share a block.
_SHORT_BYTES = 1 << 10

#: The fewest elements of a slab's line that are worth a thread.
_SLAB_SHARE = 32

#: The most bytes of a line that one warp takes: if such lines are too few to fill the GPU, and if
#: they are enough.
_WARP_BYTES, _MOST_WARP_BYTES = 1 << 12, 1 << 16

#: The fewest neighbouring bytes that are worth a load of their own.
_COALESCED_BYTES = 64

#: The most waves of blocks that lines are cut for.
_WAVES = 16

#: The overhead of a block, in bytes that it could have read meanwhile, and of the last blocks, as a
#: fraction of a wave: for contiguous and for strided lines.
_ROW_COSTS, _COLUMN_COSTS = (1 << 13, 0.04), (1 << 15, 0.0)

#: The fewest rows of strided lines that a thread takes, and the bytes of a row that a block takes.
_ROWS, _ROW_BYTES = 16, 512

#: The fewest rows of a tile of strided lines, where their order counts.
_TILE_ROWS = 32


def reduce_lines(op: Operation, x: Array, shape: Shape) -> Array:
    """Reduce `x`, viewed as (outer, n, inner), over n.

    Returns
    -------
    cupy.ndarray
        The outer * inner states as bytes, on the GPU.
    """
    outer, _, inner = shape
    layout = programs_list.layout(op)
    if outer * inner == 0:
        return cupy.empty(0, "u1")
    how = _choose(op, x.data.ptr, shape)
    states, addresses = _meeting(outer * inner, how.tiles, layout, how.meetings)
    launch(how.source, how.blocks, programs.THREADS, x.data.ptr, *addresses, *how.sizes)
    return states


def reduce_pairs(op: Operation, x: Array, y: Array, outer: int, skips: bool) -> Array | None:
    """Reduce `outer` long lines of pairs of elements, whose complex numbers `op` takes.

    Parameters
    ----------
    op : Operation
    x, y : cupy.ndarray
        Of one shape and dtype, contiguous.
    outer : int
    skips : bool
        Whether a pair is ``(0, 0)`` where `x` is NaN.

    Returns
    -------
    cupy.ndarray or None
        The states as bytes, on the GPU; None for short lines, and for vectors that begin apart.
    """
    n = x.size // outer if outer else 0
    if n * x.itemsize < TILE_BYTES or (x.data.ptr - y.data.ptr) % 16:
        return None
    how, layout = _long_rows(op, (outer, n, 1)), programs_list.layout(op)
    states, addresses = _meeting(outer, how.tiles, layout, how.meetings)
    arguments = x.data.ptr, y.data.ptr, *addresses, *how.sizes, np.int32(skips)
    launch(programs.long_pairs(*_of(op)), how.blocks, programs.THREADS, *arguments)
    return states


class _Reduction(NamedTuple):
    """The launch of a reduction of lines.

    Attributes
    ----------
    source : str
        A program of `dask_coop.cuda.programs.reduce`.
    blocks : int
    sizes : tuple
        The kernel's last arguments.
    meetings : int
        The number of groups of blocks that share a line or a slice of columns; 0 for programs that
        cut no lines.
    tiles : int
        The number of tiles of a line.
    """

    source: str
    blocks: int
    sizes: tuple[Any, ...]
    meetings: int = 0
    tiles: int = 1


def _choose(op: Operation, address: int, shape: Shape) -> _Reduction:
    """Return the launch that reduces the lines at an address, at least one."""
    outer, n, inner = shape
    itemsize, layout = programs_list.element(op).itemsize, programs_list.layout(op)
    if inner > 1:
        v = programs.columns_per_thread(programs_list.element(op), layout)
        if inner % v or address % (v * itemsize):
            v = 1
        crowd = 2 * programs.THREADS * _slots(programs.BLOCKS)
        if inner * itemsize >= _COALESCED_BYTES and outer * inner >= v * crowd:
            return _threads(op, shape, v)
        if outer > 1 and n * inner * itemsize <= programs.slab_bytes(layout):
            return _slabs(op, shape)
        return _columns(op, address, shape)
    if outer > 1:
        if n * itemsize <= _SHORT_BYTES:
            return _slabs(op, shape)
        crowd = 2 * programs.THREADS // 32 * _slots(programs.BLOCKS)
        if n * itemsize <= (_WARP_BYTES if outer < crowd else _MOST_WARP_BYTES):
            return _rows(op, shape)
    return _long_rows(op, shape)


def _of(op: Operation) -> tuple[Functor, np.dtype[Any], np.dtype[Any]]:
    """Return the common parameters of all programs."""
    return programs_list.functor(op), programs_list.element(op), programs_list.layout(op)


def _slabs(op: Operation, shape: Shape) -> _Reduction:
    outer, n, inner = shape
    nbytes = max(1, n * inner * programs_list.element(op).itemsize)
    slabs = programs.slab_bytes(programs_list.layout(op)) // nbytes
    # As many threads for a line as have enough to do before they combine their states.
    team = 1
    while team < 32 and _SLAB_SHARE * team <= n and slabs * inner * team < programs.THREADS:
        team *= 2
    sizes = (np.int64(outer), np.int32(n), np.int32(inner), np.int32(slabs), np.int32(team))
    blocks = min(-(-outer // slabs), _slots(programs.BLOCKS))
    return _Reduction(programs.slabs(*_of(op)), blocks, sizes)


def _rows(op: Operation, shape: Shape) -> _Reduction:
    outer, n, _ = shape
    blocks = -(-outer * 32 // programs.THREADS)
    return _Reduction(programs.rows(*_of(op)), blocks, (np.int64(outer), np.int32(n)))


def _long_rows(op: Operation, shape: Shape) -> _Reduction:
    outer, n, _ = shape
    nbytes = n * programs_list.element(op).itemsize
    tiles = _cut(outer, nbytes, nbytes // TILE_BYTES, _slots(programs.BLOCKS), *_ROW_COSTS)
    sizes = (np.int64(n), np.int64(tiles))
    return _Reduction(programs.long_rows(*_of(op)), outer * tiles, sizes, outer, tiles)


def _threads(op: Operation, shape: Shape, v: int) -> _Reduction:
    outer, n, inner = shape
    sizes = (np.int64(outer * inner), np.int32(n), np.int64(inner))
    blocks = -(-outer * inner // (v * programs.THREADS))
    return _Reduction(programs.threads(*_of(op), v), blocks, sizes)


def _columns(op: Operation, address: int, shape: Shape) -> _Reduction:
    outer, n, inner = shape
    element, layout = programs_list.element(op), programs_list.layout(op)
    itemsize, v = element.itemsize, programs.columns_per_thread(element, layout)
    aligned = address % (v * itemsize) == 0 and (outer == 1 or n * inner % v == 0)
    width = math.lcm(inner, v) if aligned else inner
    if not aligned or (width > inner and width > v * programs.THREADS // 2):
        width, v = inner, 1
    lanes, slices = _slices(width // v, n, v * itemsize)
    rows = programs.THREADS // lanes * (width // inner)
    nbytes = n * inner * itemsize // slices
    most, slots = n // (rows * _ROWS), _slots(programs.COLUMN_BLOCKS)
    tiles = _cut(outer * slices, nbytes, most, slots, *_COLUMN_COSTS)
    sizes = (np.int64(n), np.int64(inner), np.int64(width), np.int64(tiles), np.int32(lanes))
    source = programs.long_columns(*_of(op), v)
    return _Reduction(source, outer * slices * tiles, sizes, outer * slices, tiles)


def _slices(vectors: int, n: int, nbytes: int) -> tuple[int, int]:
    """Return how many threads share a row of `vectors`, and in how many slices."""
    if vectors <= programs.THREADS // 2:
        return vectors, 1
    most = max(32, min(128, _ROW_BYTES // nbytes))
    while most < programs.THREADS and n * most < _ROWS * programs.THREADS:
        most *= 2
    slices = -(-vectors // most)
    return -(-vectors // slices), slices


def _slots(blocks: int) -> int:
    """Return how many blocks the current GPU runs at a time, `blocks` on a multiprocessor."""
    return device(cupy.cuda.runtime.getDevice()).processors * blocks


@lru_cache(1024)
def _cut(
    lines: int, nbytes: int, most: int, slots: int, block_bytes: int, straggling: float
) -> int:
    """Return the number of tiles of lines of `nbytes` each, with a block for each tile.

    Blocks run in waves of `slots`; the result minimises the time of the waves, as if they ran in
    step.
    """

    def cost(tiles: int) -> float:
        waves = -(-lines * tiles // slots)
        return (waves + straggling) * (nbytes / tiles + block_bytes)

    cuts = {max(1, min(waves * slots // lines, most)) for waves in range(1, _WAVES + 1)}
    return min(sorted(cuts), key=cost)


def _meeting(
    lines: int, tiles: int, layout: np.dtype[Any], meetings: int
) -> tuple[Array, tuple[int, ...]]:
    """Return memory for the states of lines, and the addresses of states, tiles and tickets."""
    nbytes = lines * layout.itemsize
    # One allocation holds both; a state's size is a multiple of its alignment.
    room = room_for(lines, layout, tiles if tiles > 1 else 0)
    start = room.data.ptr
    if not meetings:
        return room, (start,)
    if tiles == 1:
        return room, (start, 0, 0)
    return room[:nbytes], (start, start + nbytes, _tickets(meetings))


_local = threading.local()


def _tickets(count: int) -> int:
    """Return the address of at least `count` zeros, which the kernels of this stream leave zero.

    Kernels of one stream run in turn, so they may share tickets. Threads do not share them, because
    each may have its own null stream.
    """
    key = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
    kept = _local.__dict__.setdefault("tickets", {})
    if key not in kept or kept[key].size < count:
        kept[key] = cupy.zeros(max(4096, count), "u4")
    return int(kept[key].data.ptr)


def tiles_of(blocks: int, most: int) -> int:
    """Return the number of tiles of a line, given the blocks that whole lines would take."""
    busy = _slots(_BLOCKS)
    return max(1, min(-(-busy // max(1, blocks)), most))


def reduce_in_order(op: Operation, x: Array, shape: Shape) -> Array:
    """Reduce `x`, viewed as (outer, n, inner), over n; return the states as bytes, on the GPU."""
    scan, layout = programs_list.scanned(op), programs_list.layout(op)
    if shape[0] * shape[2] == 0:
        return cupy.empty(0, "u1")
    states, left = _reduce_tiles(scan, layout, x, shape)
    while left[1] > 1:
        states, left = _reduce_tiles(scans.of_states(scan), layout, states, left)
    return states


def _reduce_tiles(
    scan: scans.Scan, layout: np.dtype[Any], x: Array, shape: Shape
) -> tuple[Array, Shape]:
    """Reduce tiles of lines; return their states, and the shape of these as lines of tiles."""
    outer, n, inner = shape
    threads, line_bytes = scans.THREADS, n * scan.element_bytes
    if inner > 1:
        # A thread takes a column of a tile, so few columns need many tiles.
        busy = threads * tiles_of(1, n)
        tiles = max(1, min(busy // (outer * inner), n // _TILE_ROWS))
    else:
        tiles = tiles_of(outer, line_bytes // TILE_BYTES)
    states = room_for(outer * tiles * inner, layout)
    at = states.data.ptr
    if inner > 1:
        columns = np.int64(outer), np.int64(n), np.int64(inner), np.int64(tiles)
        blocks = -(-outer * tiles * inner // threads)
        launch(scans.reduce_columns_in_order(scan), blocks, threads, x.data.ptr, at, 0, *columns)
    else:
        team = 32 if n <= scans.WARP_LINE else threads
        blocks = -(-outer * tiles // (threads // team))
        source = scans.rows(scan, team, write=False)
        rows = np.int64(outer), np.int64(n), np.int64(tiles)
        launch(source, blocks, threads, x.data.ptr, 0, 0, at, *rows)
    return states, (outer, tiles, inner)
