"""States of CuPy chunks: arrays of C structs on the GPU, and tuples of fields."""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.cupy import programs_list

Array = Any

#: States up to this many bytes travel as NumPy arrays; larger ones stay on the GPU.
HOST_STATE_BYTES = 1 << 18

#: The bits of a float32 as a number that compares as it does, but for NaN.
_RANK = "__device__ int rank(int x) { return x < 0 ? -(x & 0x7fffffff) : x; }"
_RANKS = {
    "<f4": cupy.ElementwiseKernel("int32 x", "int32 y", "y = rank(x)", "rank_f4", preamble=_RANK),
    # The real part is the lower half.
    "<c8": cupy.ElementwiseKernel(
        "int64 x", "int64 y", "y = rank(x) * (1LL << 32) + rank(x >> 32)", "rank_c8", preamble=_RANK
    ),
}
_BETTER = cupy.ElementwiseKernel(
    "int32 a, int32 b, bool most, bool skip",
    "int32 y",
    """bool a_nan = (a & 0x7fffffff) > 0x7f800000, b_nan = (b & 0x7fffffff) > 0x7f800000;
    bool better = most ? rank(b) > rank(a) : rank(b) < rank(a);
    y = (a_nan ? skip : b_nan ? !skip : better) ? b : a""",
    "extremum_f4",
    preamble=_RANK,
)


def extremum(ufunc: np.ufunc, a: Array, b: Array) -> Array:
    """Return the extrema that a ufunc finds of two arrays, one of which may be NumPy's."""
    if a.dtype != b.dtype or a.dtype != np.float32:
        return ufunc(a, b)
    options = ufunc in (np.maximum, np.fmax), ufunc in (np.fmax, np.fmin)
    return _BETTER(*(cupy.asarray(x).view("i4") for x in (a, b)), *options).view("f4")


def comparable(a: Array, b: Array) -> tuple[Array, Array]:
    """Return integers that compare as two arrays do, or the arrays where CuPy's functions do."""
    rank = _RANKS.get(a.dtype.str)
    if rank is None or a.dtype != b.dtype:
        return a, b
    bits = f"i{a.dtype.itemsize}"
    first, second = (rank(cupy.asarray(x).view(bits)) for x in (a, b))
    return first, second


def room_for(states: int, layout: np.dtype[Any], tiles: int = 0) -> Array:
    """Return room, as bytes, for states, and behind them for those of so many tiles of each.

    What kernels leave out between the fields of states that go to the host is zero.
    """
    nbytes = states * layout.itemsize
    room = cupy.empty(nbytes * (1 + tiles), "u1")
    if 0 < nbytes <= HOST_STATE_BYTES and programs_list.has_gaps(layout):
        room.data.memset_async(0, nbytes)
    return room


def deliver(x: Array) -> Any:
    """Return a small array on the host, a large one where it is."""
    return cupy.asnumpy(x)[()] if x.nbytes <= HOST_STATE_BYTES else x


def fields_of(op: Operation, states: Array, kept: tuple[int, ...]) -> State:
    """Return the fields of the bytes `states`, each in the shape `kept`."""
    layout = programs_list.layout(op)
    host = deliver(states)
    if host is not states:
        records = host.view(layout).reshape(kept)
        return tuple(records[field.name][()] for field in op.monoid.fields)
    return views(layout, states, kept)


def pack(op: Operation, state: State, order: list[int]) -> Array:
    """Return states on the GPU, with their axes in that order; those of several fields as bytes."""
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
    """Return the fields of states on the GPU, each in that shape."""
    if 0 in shape:
        # CuPy moves no pointer that points nowhere.
        return tuple(cupy.empty(shape, dtype) for dtype, _ in programs_list.offsets(layout))
    strides = tuple(layout.itemsize * math.prod(shape[d + 1 :]) for d in range(len(shape)))
    return tuple(
        field_of(shape, dtype, states.data + offset, strides)
        for dtype, offset in programs_list.offsets(layout)
    )


def field_of(shape: tuple[int, ...], dtype: np.dtype[Any], at: Any, strides: Any) -> Array:
    """Return a field of states on the GPU, the first of which is `at` a CuPy pointer."""
    if dtype.kind != "c" or (at.ptr | strides[-1]) % dtype.itemsize == 0:
        return cupy.ndarray(shape, dtype, memptr=at, strides=strides)
    # CuPy reads complex numbers only where they are aligned as a whole.
    half = dtype.itemsize // 2
    parts = cupy.ndarray((*shape, 2), f"f{half}", memptr=at, strides=(*strides, half))
    return cupy.ascontiguousarray(parts).view(dtype)[..., 0]
