"""CuPy chunks and states in the form that kernels read and write.

Chunks are contiguous and aligned. States are arrays of C structs on the GPU, and tuples of fields
elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.transpose import contiguous

Array = Any

#: States up to this many bytes travel as NumPy arrays; larger ones stay on the GPU.
HOST_STATE_BYTES = 1 << 18


def is_plain(x: Array) -> bool:
    """Return whether an array is in C order, contiguous, and aligned for its dtype.

    This check needs no GPU, so callers do it before they make the chunk's GPU the current one.
    """
    return bool(x.flags.c_contiguous and x.data.ptr % x.itemsize == 0)


def owners(xs: Sequence[Array]) -> dict[int, list[int]]:
    """Return the numbers of the chunks on each GPU, by the GPU's ordinal."""
    found: dict[int, list[int]] = {}
    for i, x in enumerate(xs):
        found.setdefault(x.data.device_id, []).append(i)
    return found


def dense(x: Array) -> tuple[Array, list[int]]:
    """Return `x` as a C-contiguous array with its axes in some order, and that order.

    Chunks in another dense order (transposed ones) are read in place; others are copied.
    """
    if x.size and not x.flags.c_contiguous:
        order = sorted(range(x.ndim), key=lambda d: -x.strides[d])
        if x.transpose(order).flags.c_contiguous:
            return aligned(x.transpose(order)), order
    return aligned(contiguous(x)), list(range(x.ndim))


def aligned(x: Array) -> Array:
    """Return the contiguous `x`, copied if its address is not a multiple of its item size."""
    if x.data.ptr % x.dtype.itemsize == 0:
        return x
    copy = cupy.empty_like(x)
    copy.data.copy_from_device_async(x.data, x.nbytes)
    return copy


def room_for(states: int, layout: np.dtype[Any], tiles: int = 0) -> Array:
    """Return memory, as bytes, for states, followed by the states of `tiles` tiles of each.

    Gaps between the fields of states that go to the host are zero.
    """
    nbytes = states * layout.itemsize
    room = cupy.empty(nbytes * (1 + tiles), "u1")
    if 0 < nbytes <= HOST_STATE_BYTES and programs_list.has_gaps(layout):
        room.data.memset_async(0, nbytes)
    return room


def deliver(x: Array) -> Any:
    """Return a small array on the host, a large one unchanged."""
    return cupy.asnumpy(x)[()] if x.nbytes <= HOST_STATE_BYTES else x


def deliver_all(rooms: list[tuple[Array, bool]]) -> list[Any]:
    """Return arrays of bytes, those that go to the host there, after one wait for the GPU."""
    moved = [room for room, to_host in rooms if to_host and room.nbytes]
    host, nbytes = np.empty(0, "u1"), sum(room.nbytes for room in moved)
    if moved:
        memory = cupy.cuda.alloc_pinned_memory(nbytes)
        stream, at = cupy.cuda.get_current_stream(), memory.ptr
        for room in moved:
            kind = runtime.memcpyDeviceToHost
            runtime.memcpyAsync(at, room.data.ptr, room.nbytes, kind, stream.ptr)
            at += room.nbytes
        stream.synchronize()
        # Copied, as pinned memory serves others once it is dropped.
        host = np.frombuffer(memory, "u1", nbytes).copy()
    delivered: list[Any] = []
    at = 0
    for room, to_host in rooms:
        delivered.append(host[at : at + room.nbytes] if to_host else room)
        at += room.nbytes * to_host
    return delivered


def fields_of(op: Operation, states: Array, kept: tuple[int, ...]) -> State:
    """Return the fields of `states`, given as bytes, each in the shape `kept`."""
    layout = programs_list.layout(op)
    host = deliver(states)
    if host is not states:
        records = host.view(layout).reshape(kept)
        return tuple(records[field.name][()] for field in op.monoid.fields)
    return views(layout, states, kept)


def pack(op: Operation, state: State, order: list[int]) -> Array:
    """Return states on the GPU with their axes in `order`; states of several fields as bytes."""
    layout = programs_list.layout(op)
    fields = [
        cupy.ascontiguousarray(cupy.asarray(field, dtype).transpose(order))
        for field, (dtype, _) in zip(state, programs_list.offsets(layout), strict=True)
    ]
    if len(fields) == 1:
        return fields[0]
    packed = cupy.empty((fields[0].size, layout.itemsize), "u1")
    for field, (dtype, offset) in zip(fields, programs_list.offsets(layout), strict=True):
        values = field.view("u1").reshape(field.size, dtype.itemsize)
        packed[:, offset : offset + dtype.itemsize] = values
    return packed


def views(layout: np.dtype[Any], states: Array, shape: tuple[int, ...]) -> State:
    """Return the fields of states on the GPU, each in `shape`."""
    if 0 in shape:
        # CuPy cannot offset a null pointer.
        return tuple(cupy.empty(shape, dtype) for dtype, _ in programs_list.offsets(layout))
    strides = tuple(layout.itemsize * math.prod(shape[d + 1 :]) for d in range(len(shape)))
    return tuple(
        field_of(shape, dtype, states.data + offset, strides)
        for dtype, offset in programs_list.offsets(layout)
    )


def field_of(shape: tuple[int, ...], dtype: np.dtype[Any], at: Any, strides: Any) -> Array:
    """Return a field of states on the GPU; the CuPy pointer `at` points to its first entry."""
    if dtype.kind != "c" or (at.ptr | strides[-1]) % dtype.itemsize == 0:
        return cupy.ndarray(shape, dtype, memptr=at, strides=strides)
    # CuPy reads only complex numbers that are aligned as a whole.
    half = dtype.itemsize // 2
    parts = cupy.ndarray((*shape, 2), f"f{half}", memptr=at, strides=(*strides, half))
    return cupy.ascontiguousarray(parts).view(dtype)[..., 0]
