"""Chunks that are CuPy arrays: picks a strategy and launches the kernels.

A chunk is seen as an array of shape (outer, n, inner), of which lines of n are reduced or scanned.
Lines that are contiguous (inner == 1) go to the kernels called *rows*, the others to *columns*.
Where there are fewer lines than the GPU can work on at a time, lines are cut into *parts*: their
states meet in a second launch.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from dask_coop.bins import Bins
from dask_coop.chunks import catalogue
from dask_coop.cuda import programs
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.monoids import Operation, State

Array = Any

#: States up to this many bytes travel as NumPy arrays; larger ones stay on the GPU.
HOST_STATE_BYTES = 1 << 16

#: Blocks of `programs.THREADS` that keep a multiprocessor busy.
_BLOCKS = 8

#: The fewest bytes of a line that are worth a block of their own.
_PART_BYTES = 1 << 15

#: The most parts of a strided line: one thread scans their states.
_COLUMN_PARTS = 4096

Shape = tuple[int, int, int]


def lift(op: Operation, x: Array, axes: tuple[int, ...]) -> State:
    """Reduce the chunk `x` over `axes` to a partial state."""
    with x.device:
        x, order = _dense(x.astype(op.element, copy=False))
        reduced = [d for d in range(x.ndim) if order[d] in axes]
        start, stop = _longest_run(x.shape, reduced)
        shape = (
            math.prod(x.shape[:start]),
            math.prod(x.shape[start:stop]),
            math.prod(x.shape[stop:]),
        )
        fields = _reduce(op, x, shape, x.shape[:start] + x.shape[stop:])
        rest = [d if d < start else d - (stop - start) for d in reduced if not start <= d < stop]
        for axis in reversed(rest):
            fields = _fold(op, fields, axis)
        kept = [order[d] for d in range(x.ndim) if d not in reduced]
        if kept != sorted(kept):
            fields = tuple(field.transpose(np.argsort(kept)) for field in fields)
        return fields


def scan(op: Operation, x: Array, axis: int, base: State | None) -> Array:
    """Return the inclusive scan of the chunk `x` along `axis`, from `base` on."""
    with x.device:
        x, order = _dense(x.astype(op.element, copy=False))
        at = order.index(axis)
        shape = (math.prod(x.shape[:at]), x.shape[at], math.prod(x.shape[at + 1 :]))
        result = cupy.empty(x.shape, op.output)
        if x.size:
            (dtype,) = op.monoid.dtypes(op.element)
            bases = None
            if base is not None:
                # The base has the axes of the chunk but one, in the chunk's own order.
                others = [d - (d > axis) for d in order if d != axis]
                bases = cupy.ascontiguousarray(cupy.asarray(base[0], dtype).transpose(others))
            _scan(op, x, result, bases, shape)
        return result.transpose(np.argsort(order)) if order != sorted(order) else result


def histogram(op: Operation, x: Array, bins: Bins, weights: Array | None) -> State:
    """Count the samples of the chunk `x`, or sum their `weights`, by bin."""
    with x.device:
        (total,) = op.monoid.dtypes(op.element)
        if weights is None:
            x, _ = _dense(x)
        else:
            x = _aligned(_contiguous(x))
            weights = _aligned(_contiguous(weights.astype(op.element, copy=False)))
        if x.dtype.kind == "b":
            x = x.view("u1")
        edge = _comparison_dtype(x.dtype, bins.edges.dtype)
        table = cupy.zeros(bins.n, total)
        if x.size:
            _histogram(x, weights, bins, edge, table)
        return (_deliver(table),)


def transfer(x: Any, to: str) -> Any:
    """Move an array to the host ("numpy") or to the current device ("cupy")."""
    return cupy.asnumpy(x) if to == "numpy" else cupy.asarray(x)


def _dense(x: Array) -> tuple[Array, list[int]]:
    """Return `x` as a C-contiguous array with its axes in some order, and that order.

    Chunks in another dense order (transposed ones) are read as they lie; others are copied.
    """
    if x.size and not x.flags.c_contiguous:
        order = sorted(range(x.ndim), key=lambda d: -x.strides[d])
        if x.transpose(order).flags.c_contiguous:
            return _aligned(x.transpose(order)), order
    return _aligned(_contiguous(x)), list(range(x.ndim))


def _contiguous(x: Array) -> Array:
    # CuPy's ascontiguousarray would turn a 0-d array into a 1-d one.
    return x if x.flags.c_contiguous else cupy.ascontiguousarray(x)


def _aligned(x: Array) -> Array:
    """Return the contiguous `x`, moved where its address is no multiple of its item size."""
    if x.data.ptr % x.dtype.alignment == 0:
        return x
    copy = cupy.empty_like(x)
    copy.data.copy_from_device_async(x.data, x.nbytes)
    return copy


def _longest_run(shape: tuple[int, ...], axes: list[int]) -> tuple[int, int]:
    """Return the bounds of the neighbouring `axes` that hold the most elements."""
    runs, start = [(0, 0)], 0
    for i, axis in enumerate(axes):
        if i == 0 or axis != axes[i - 1] + 1:
            start = axis
        runs.append((start, axis + 1))
    return max(runs, key=lambda run: (run[1] > run[0], math.prod(shape[run[0] : run[1]]), run))


def _fold(op: Operation, fields: State, axis: int) -> State:
    """Combine states along `axis`, neighbours first."""
    n = fields[0].shape[axis]
    at = (slice(None),) * axis
    if n == 0:
        shape = fields[0].shape[:axis] + fields[0].shape[axis + 1 :]
        return tuple(
            np.full_like(field, value, shape=shape)
            for field, value in zip(fields, op.monoid.identity(op.element), strict=True)
        )
    while n > 1:
        even, odd = (tuple(f[(*at, slice(i, n - n % 2, 2))] for f in fields) for i in (0, 1))
        paired = op.monoid.combine(even, odd)
        if n % 2:
            last = (f[(*at, slice(n - 1, n))] for f in fields)
            paired = tuple(np.concatenate(pair, axis) for pair in zip(paired, last, strict=True))
        fields, n = paired, (n + 1) // 2
    return tuple(f[(*at, 0)] for f in fields)


def _deliver(x: Array) -> Any:
    """Return a small array on the host, a large one where it is."""
    return cupy.asnumpy(x)[()] if x.nbytes <= HOST_STATE_BYTES else x


def _reduce(op: Operation, x: Array, shape: Shape, kept: tuple[int, ...]) -> State:
    """Reduce `x`, seen as (outer, n, inner), over n; return the fields in the shape `kept`."""
    functor, layout = catalogue.functor(op), catalogue.layout(op)
    states, parts = _states(functor, layout, x.data.ptr, op.element, shape)
    if parts > 1:
        shape = (shape[0], parts, shape[2])
        states, _ = _states(functor, layout, states.data.ptr, None, shape)
    host = _deliver(states)
    if host is not states:
        records = host.view(layout).reshape(kept)
        return tuple(records[field.name][()] for field in op.monoid.fields)
    strides = np.empty(kept, layout).strides
    return tuple(
        cupy.ndarray(kept, dtype, memptr=states.data + offset, strides=strides)
        for dtype, offset in catalogue.places(layout)
    )


def _states(
    functor: str, layout: np.dtype[Any], x: int, element: np.dtype[Any] | None, shape: Shape
) -> tuple[Array, int]:
    """Reduce every part of every line to a state; without `element` the lines hold states."""
    outer, n, inner = shape
    itemsize = layout.itemsize if element is None else element.itemsize
    parts = 1
    if inner == 1:
        team = next((t for t, most in catalogue.TEAMS if n <= most), programs.THREADS)
        if team == programs.THREADS and element is not None:
            parts = _parts(outer, n * itemsize // _PART_BYTES)
        blocks = -(-outer * parts // (programs.THREADS // team))
        extra: tuple[Any, ...] = (np.int64(parts),)
        source = (
            programs.merge_rows(functor, layout, team)
            if element is None
            else programs.reduce_rows(functor, element, layout, team)
        )
    else:
        # A warp reads at least 128 neighbouring bytes where the line has them.
        width = min(1 << (inner - 1).bit_length(), max(32, 128 // itemsize))
        tiles = -(-inner // width)
        if element is not None:
            parts = _parts(outer * tiles, n * width // (programs.THREADS * 8))
        blocks = outer * parts * tiles
        extra = (np.int64(inner), np.int64(parts), np.int32(width.bit_length() - 1))
        source = (
            programs.merge_columns(functor, layout)
            if element is None
            else programs.reduce_columns(functor, element, layout)
        )
    states = cupy.empty(outer * parts * inner * layout.itemsize, "u1")
    if blocks:
        sizes = (np.int64(outer), np.int64(n))
        launch(source, blocks, programs.THREADS, x, states.data.ptr, *sizes, *extra)
    return states, parts


def _parts(blocks: int, most: int) -> int:
    """Return into how many parts to cut lines that alone would make `blocks` blocks."""
    busy = device(cupy.cuda.runtime.getDevice()).processors * _BLOCKS
    return max(1, min(-(-busy // max(1, blocks)), most))


def _scan(op: Operation, x: Array, y: Array, base: Array | None, shape: Shape) -> None:
    """Scan `x`, seen as (outer, n, inner), along n into `y`."""
    outer, n, inner = shape
    functor, layout = catalogue.functor(op), catalogue.layout(op)
    bases = base.data.ptr if base is not None else 0
    threads = programs.THREADS
    sizes: tuple[Any, ...] = (np.int64(outer), np.int64(n))
    if inner == 1:
        team = 32 if n <= 4096 else threads
        parts = _parts(outer, n * x.itemsize // _PART_BYTES) if team == threads else 1
        blocks = -(-outer * parts // (threads // team))
        source = programs.scan_rows(functor, op.element, op.output, layout, team)
        upsweep = programs.reduce_rows(functor, op.element, layout, threads)
        spine, spine_blocks = programs.spine_rows(functor, layout), outer
        columns: tuple[Any, ...] = ()
    else:
        width = min(1 << (inner - 1).bit_length(), 32)
        parts = min(_COLUMN_PARTS, _parts(-(-outer * inner // threads), n // 64))
        blocks = -(-outer * parts * inner // threads)
        source = programs.scan_columns(functor, op.element, op.output, layout)
        upsweep = programs.reduce_columns(functor, op.element, layout)
        spine, spine_blocks = programs.spine_columns(functor, layout), -(-outer * inner // threads)
        columns = (np.int64(inner),)
    if parts > 1:
        states = cupy.empty(outer * parts * inner * layout.itemsize, "u1")
        at, cut = states.data.ptr, np.int64(parts)
        if inner == 1:
            launch(upsweep, outer * parts, threads, x.data.ptr, at, *sizes, cut)
        else:
            tiles, log_width = -(-inner // width), np.int32(width.bit_length() - 1)
            grid = outer * parts * tiles
            launch(upsweep, grid, threads, x.data.ptr, at, *sizes, *columns, cut, log_width)
        states_sizes = (np.int64(outer), cut, *columns, np.int64(1))
        launch(spine, spine_blocks, threads, at, at, bases, *states_sizes)
        bases = at
    launch(
        source, blocks, threads, x.data.ptr, y.data.ptr, bases, *sizes, *columns, np.int64(parts)
    )


def _comparison_dtype(samples: np.dtype[Any], edges: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which the kernels compare as NumPy does for these two."""
    common = np.result_type(samples, edges)
    if common.kind == "f":
        # float16 compares the same as float32.
        return np.dtype("f4" if common.itemsize <= 4 else "f8")
    return np.dtype("u8" if common.kind == "u" else "i8")


def _histogram(
    x: Array, weights: Array | None, bins: Bins, edge: np.dtype[Any], table: Array
) -> None:
    gpu = device(cupy.cuda.runtime.getDevice())
    edges = cupy.asarray(bins.edges.astype(edge))
    scale, slack = _guess(bins, edge)
    threads = programs.HISTOGRAM_THREADS
    # Counters have 32 bits, so no block may see more samples than they count.
    blocks = max(min(gpu.processors, -(-x.size // (threads * 16))), -(-x.size // (1 << 31)))
    shared = 0
    addresses = [x.data.ptr]
    if weights is not None:
        source = programs.weigh(x.dtype, edge, weights.dtype, table.dtype)
        addresses.append(weights.data.ptr)
    else:
        bytes_needed = bins.n * 4
        fits = bytes_needed <= gpu.shared_bytes
        source = programs.count(x.dtype, edge, fits)
        shared = bytes_needed if fits else 0
    limits = edge.type(bins.edges[0]), edge.type(bins.edges[-1])
    launch(
        source,
        blocks,
        threads,
        *addresses,
        np.int64(x.size),
        edges.data.ptr,
        np.int32(bins.n),
        *limits,
        edge.type(scale),
        edge.type(slack),
        table.data.ptr,
        shared=shared,
    )


def _guess(bins: Bins, edge: np.dtype[Any]) -> tuple[float, float]:
    """Return the bins per unit, 0 where edges are not equidistant, and the slack of the guess.

    The slack bounds, in bins, the distance between ``(x - low) * scale`` in `edge` and the place of
    ``x`` among the rounded edges: a few roundings of numbers up to ``bins.n``, and the rounding of
    the edges themselves.
    """
    low, high = float(bins.edges[0]), float(bins.edges[-1])
    if bins.limits is None or edge.kind != "f":
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        scale = float(np.divide(bins.n, np.subtract(high, low)))
        usable = 0 < float(edge.type(scale)) < np.inf
    if not usable:
        return 0.0, 0.0
    rounding = float(np.finfo(bins.edges.dtype).eps) * max(abs(low), abs(high)) * scale
    return scale, min(1.0, 4 * (rounding + bins.n * float(np.finfo(edge).eps)))
