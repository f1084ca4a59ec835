"""Reductions of CuPy chunks: picks a kernel of kernel_reduce.cuh, pieces and a grid.

What a mask leaves out becomes a neutral element, or goes along marked. Sums of powers of deviations
are two kernels of ours around CuPy's own arithmetic.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.monoids import (
    MEAN,
    REPRODUCIBLE_COMPLEX_MEAN,
    REPRODUCIBLE_MEAN,
    SUM,
    State,
)
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.arrays import room_for
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import reduce as programs

Array = Any
Shape = tuple[int, int, int]
Lift = Callable[..., State]

#: Blocks of `programs.THREADS` that keep a multiprocessor busy.
_BLOCKS = 8

#: The fewest bytes of a line that are worth a block of their own.
PART_BYTES = 1 << 15

#: The most bytes of a line of which a block takes many.
_SHORT_BYTES = 1 << 10

#: The fewest elements of a line of a slab that are worth a thread.
_SLAB_SHARE = 32

#: The most bytes of a line that one warp takes: where a block each would leave the GPU idle for
#: want of lines, and where there are lines enough.
_WARP_BYTES, _MOST_WARP_BYTES = 1 << 12, 1 << 16

#: The fewest neighbouring bytes that are worth a load of their own.
_COALESCED_BYTES = 64

#: The most waves of blocks that lines are cut for.
_WAVES = 16

#: What a block costs beside the bytes it reads, in bytes that it could have read meanwhile, and how
#: much of a wave the blocks that end last take longer: for contiguous and for strided lines.
_ROW_COSTS, _COLUMN_COSTS = (1 << 13, 0.04), (1 << 15, 0.0)

#: The fewest rows of strided lines that a thread takes, and the bytes of a row that a block takes.
_ROWS, _ROW_BYTES = 16, 512

#: Plain dtypes as large as a Masked<T> of kernels/monoids.cuh, by the size of T.
_PAIRS = {1: "u2", 2: "u4", 4: "u8", 8: "c16"}


def reduce_lines(op: Operation, x: Array, shape: Shape) -> Array:
    """Reduce `x`, seen as (outer, n, inner), over n.

    Returns
    -------
    cupy.ndarray
        The outer * inner states as bytes, on the GPU.
    """
    outer, n, inner = shape
    itemsize, layout = programs_list.element(op).itemsize, programs_list.layout(op)
    if outer * inner == 0:
        return cupy.empty(0, "u1")
    if inner > 1:
        v = programs.columns_per_thread(programs_list.element(op), layout)
        if inner % v or x.data.ptr % (v * itemsize):
            v = 1
        crowd = 2 * programs.THREADS * _slots(programs.BLOCKS)
        if inner * itemsize >= _COALESCED_BYTES and outer * inner >= v * crowd:
            return _threads(op, x, shape, v)
        if outer > 1 and n * inner * itemsize <= programs.slab_bytes(layout):
            return _slabs(op, x, shape)
        return _columns(op, x, shape)
    if outer > 1:
        if n * itemsize <= _SHORT_BYTES:
            return _slabs(op, x, shape)
        crowd = 2 * programs.THREADS // 32 * _slots(programs.BLOCKS)
        if n * itemsize <= (_WARP_BYTES if outer < crowd else _MOST_WARP_BYTES):
            return _rows(op, x, shape)
    return _long_rows(op, x, shape)


def _slabs(op: Operation, x: Array, shape: Shape) -> Array:
    outer, n, inner = shape
    functor, layout = programs_list.functor(op), programs_list.layout(op)
    slabs = programs.slab_bytes(layout) // max(1, n * inner * programs_list.element(op).itemsize)
    # As many threads a line as find enough to do before they combine what they have.
    team = 1
    while team < 32 and _SLAB_SHARE * team <= n and slabs * inner * team < programs.THREADS:
        team *= 2
    source = programs.slabs(functor, programs_list.element(op), layout)
    states = room_for(outer * inner, layout)
    sizes = (np.int64(outer), np.int32(n), np.int32(inner), np.int32(slabs), np.int32(team))
    blocks = min(-(-outer // slabs), _slots(programs.BLOCKS))
    launch(source, blocks, programs.THREADS, x.data.ptr, states.data.ptr, *sizes)
    return states


def _rows(op: Operation, x: Array, shape: Shape) -> Array:
    outer, n, _ = shape
    functor, layout = programs_list.functor(op), programs_list.layout(op)
    source = programs.rows(functor, programs_list.element(op), layout)
    states = room_for(outer, layout)
    sizes = (np.int64(outer), np.int32(n))
    blocks = -(-outer * 32 // programs.THREADS)
    launch(source, blocks, programs.THREADS, x.data.ptr, states.data.ptr, *sizes)
    return states


def _long_rows(op: Operation, x: Array, shape: Shape) -> Array:
    outer, n, _ = shape
    functor, layout = programs_list.functor(op), programs_list.layout(op)
    nbytes = n * programs_list.element(op).itemsize
    parts = _cut(outer, nbytes, nbytes // PART_BYTES, _slots(programs.BLOCKS), *_ROW_COSTS)
    source = programs.long_rows(functor, programs_list.element(op), layout)
    states, addresses = _meeting(outer, parts, layout, outer)
    sizes = (np.int64(n), np.int64(parts))
    launch(source, outer * parts, programs.THREADS, x.data.ptr, *addresses, *sizes)
    return states


def _threads(op: Operation, x: Array, shape: Shape, v: int) -> Array:
    outer, n, inner = shape
    functor, layout = programs_list.functor(op), programs_list.layout(op)
    source = programs.threads(functor, programs_list.element(op), layout, v)
    states = room_for(outer * inner, layout)
    sizes = (np.int64(outer * inner), np.int32(n), np.int64(inner))
    blocks = -(-outer * inner // (v * programs.THREADS))
    launch(source, blocks, programs.THREADS, x.data.ptr, states.data.ptr, *sizes)
    return states


def _columns(op: Operation, x: Array, shape: Shape) -> Array:
    outer, n, inner = shape
    functor, layout = programs_list.functor(op), programs_list.layout(op)
    itemsize = programs_list.element(op).itemsize
    v = programs.columns_per_thread(programs_list.element(op), layout)
    aligned = x.data.ptr % (v * itemsize) == 0 and (outer == 1 or n * inner % v == 0)
    width = math.lcm(inner, v) if aligned else inner
    if not aligned or (width > inner and width > v * programs.THREADS // 2):
        width, v = inner, 1
    lanes, tiles = _tiles(width // v, n, v * itemsize)
    rows = programs.THREADS // lanes * (width // inner)
    nbytes = n * inner * itemsize // tiles
    most, slots = n // (rows * _ROWS), _slots(programs.COLUMN_BLOCKS)
    parts = _cut(outer * tiles, nbytes, most, slots, *_COLUMN_COSTS)
    source = programs.long_columns(functor, programs_list.element(op), layout, v)
    states, addresses = _meeting(outer * inner, parts, layout, outer * tiles)
    sizes = (np.int64(n), np.int64(inner), np.int64(width), np.int64(parts), np.int32(lanes))
    blocks = outer * tiles * parts
    launch(source, blocks, programs.THREADS, x.data.ptr, *addresses, *sizes)
    return states


def _tiles(vectors: int, n: int, nbytes: int) -> tuple[int, int]:
    """Return how many threads stand side by side in a row of `vectors`, and the tiles."""
    if vectors <= programs.THREADS // 2:
        return vectors, 1
    most = max(32, min(128, _ROW_BYTES // nbytes))
    while most < programs.THREADS and n * most < _ROWS * programs.THREADS:
        most *= 2
    tiles = -(-vectors // most)
    return -(-vectors // tiles), tiles


def _slots(blocks: int) -> int:
    """Return how many blocks the current GPU runs at a time, `blocks` on a multiprocessor."""
    return device(cupy.cuda.runtime.getDevice()).processors * blocks


@lru_cache(1024)
def _cut(
    lines: int, nbytes: int, most: int, slots: int, block_bytes: int, straggling: float
) -> int:
    """Return into how many parts to cut lines of so many bytes, each the work of one block.

    Blocks run in waves of `slots`; the cut is the one whose waves end first, were they to run in
    step.
    """

    def cost(parts: int) -> float:
        waves = -(-lines * parts // slots)
        return (waves + straggling) * (nbytes / parts + block_bytes)

    cuts = {max(1, min(waves * slots // lines, most)) for waves in range(1, _WAVES + 1)}
    return min(sorted(cuts), key=cost)


def _meeting(
    lines: int, parts: int, layout: np.dtype[Any], tickets: int
) -> tuple[Array, tuple[int, int, int]]:
    """Return room for the states of lines, and where they, their parts' and the tickets are."""
    nbytes = lines * layout.itemsize
    # One allocation holds both; a state's size is a multiple of its alignment.
    room = room_for(lines, layout, parts if parts > 1 else 0)
    start = room.data.ptr
    return room[:nbytes], (start, start + nbytes, _tickets(tickets)) if parts > 1 else (start, 0, 0)


_local = threading.local()


def _tickets(count: int) -> int:
    """Return the address of at least `count` zeros, which the kernels of this stream leave zero.

    Kernels of one stream take turns, so they may share tickets; threads do not, for each may have
    a null stream of its own.
    """
    key = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
    kept = _local.__dict__.setdefault("tickets", {})
    if key not in kept or kept[key].size < count:
        kept[key] = cupy.zeros(max(4096, count), "u4")
    return int(kept[key].data.ptr)


def parts_of(blocks: int, most: int) -> int:
    """Return into how many parts to cut lines that alone would make `blocks` blocks."""
    busy = _slots(_BLOCKS)
    return max(1, min(-(-busy // max(1, blocks)), most))


def apply_mask(op: Operation, x: Array, where: Array) -> tuple[Operation, Array]:
    """Return an operation and an array that reduce what of `x` is where `where` holds."""
    where = cupy.asarray(where)
    if op.neutral is not None:
        kept = cupy.where(where, x, op.neutral)
        return op, kept.astype(op.element, copy=False)
    pairs = cupy.empty((*x.shape, 2), x.dtype)
    pairs[..., 0] = x
    pairs.view(f"u{x.dtype.itemsize}")[..., 1] = where
    return replace(op, masked=True), pairs.view(_PAIRS[x.dtype.itemsize])[..., 0]


def lift_parts(lift: Lift, op: Operation, x: Array, axes: tuple[int, ...], where: Array) -> State:
    """Reduce the real and the imaginary parts of `x` each, where `where` holds.

    A mask beside a complex128 would be more than one load.
    """
    if op.monoid is REPRODUCIBLE_COMPLEX_MEAN:
        half = replace(op, monoid=REPRODUCIBLE_MEAN, element=x.real.dtype)
        real, imag = (lift(half, part, axes, where) for part in (x.real, x.imag))
        return (_join("float", real[0], imag[0]), *real[1:-1], *imag[1:-1], real[-1])
    part = replace(op, element=x.real.dtype)
    fields = zip(
        op.monoid.fields,
        lift(part, x.real, axes, where),
        lift(part, x.imag, axes, where),
        strict=True,
    )
    return tuple(_join(field.role, real, imag) for field, real, imag in fields)


def _join(role: Any, real: Any, imag: Any) -> Any:
    if role == "count":
        return real
    if role == "real":
        return real + imag
    return np.stack([real, imag], -1).view("c16")[..., 0][()]


def lift_powers(lift: Lift, op: Operation, x: Array, axes: tuple[int, ...]) -> State:
    """Reduce the chunk `x` over `axes` to a state of `dask_coop.algebra.central_moments`."""
    real = np.dtype("f8")
    total, count = lift(Operation(MEAN, op.element, real), x, axes)
    mean = total / np.maximum(count, 1)
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    deviation = x.astype(real) - cupy.asarray(mean).reshape(kept)
    power = deviation
    sums: list[Any] = []
    for _ in op.monoid.fields[2:]:
        power = power * deviation
        sums += lift(Operation(SUM, real, real), power, axes)
    fields = (count, mean, *sums)
    # States differ in size, so some may have stayed on the GPU; all go where one is.
    if any(isinstance(field, cupy.ndarray) for field in fields):
        return tuple(map(cupy.asarray, fields))
    return fields
