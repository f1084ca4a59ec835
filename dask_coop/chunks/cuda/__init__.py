"""Chunks that are CuPy arrays: picks a strategy and launches the kernels.

A chunk is seen as an array of shape (outer, n, inner), of which lines of n are reduced or scanned.
Lines that are contiguous (inner == 1) go to the kernels called *rows*, the others to *columns*.
Where there are fewer lines than the GPU can work on at a time, lines are cut into *parts*.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from dask_coop.bins import Bins
from dask_coop.chunks import catalogue
from dask_coop.chunks.cuda.histogram import count
from dask_coop.chunks.cuda.matmul import matmul as matmul
from dask_coop.chunks.cuda.reduce import reduce_lines
from dask_coop.chunks.cuda.scan import scan_lines
from dask_coop.chunks.cuda.transpose import transpose as transpose
from dask_coop.monoids import Operation, State

Array = Any

#: States up to this many bytes travel as NumPy arrays; larger ones stay on the GPU.
HOST_STATE_BYTES = 1 << 16


def lift(op: Operation, x: Array, axes: tuple[int, ...]) -> State:
    """Reduce the chunk `x` over `axes` to a partial state."""
    with x.device:
        x = x.astype(op.element, copy=False)
        if op.monoid.positional and len(axes) > 1:
            # Places count in C order, whatever the order in memory.
            x = _contiguous(x)
        x, order = _dense(x)
        reduced = [d for d in range(x.ndim) if order[d] in axes]
        start, stop = _longest_run(x.shape, reduced)
        shape = (
            math.prod(x.shape[:start]),
            math.prod(x.shape[start:stop]),
            math.prod(x.shape[stop:]),
        )
        fields = _fields(op, reduce_lines(op, x, shape), x.shape[:start] + x.shape[stop:])
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
            scan_lines(op, x, result, bases, shape)
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
        table = cupy.zeros(bins.n, total)
        if x.size:
            count(x, weights, bins, table)
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
    if x.data.ptr % x.dtype.itemsize == 0:
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


def _fields(op: Operation, states: Array, kept: tuple[int, ...]) -> State:
    """Return the fields of the bytes `states`, each in the shape `kept`."""
    layout = catalogue.layout(op)
    host = _deliver(states)
    if host is not states:
        records = host.view(layout).reshape(kept)
        return tuple(records[field.name][()] for field in op.monoid.fields)
    strides = np.empty(kept, layout).strides
    return tuple(
        _field(kept, dtype, states.data + offset, strides)
        for dtype, offset in catalogue.places(layout)
    )


def _field(shape: tuple[int, ...], dtype: np.dtype[Any], at: Any, strides: Any) -> Array:
    if dtype.kind != "c" or (at.ptr | strides[-1]) % dtype.itemsize == 0:
        return cupy.ndarray(shape, dtype, memptr=at, strides=strides)
    # CuPy reads complex numbers only where they are aligned as a whole.
    half = dtype.itemsize // 2
    parts = cupy.ndarray((*shape, 2), f"f{half}", memptr=at, strides=(*strides, half))
    return cupy.ascontiguousarray(parts).view(dtype)[..., 0]
