"""Statistics of windows over CuPy chunks, by kernel_window.cuh and kernel_window_order.cuh.

The kernels hold a window of each line in shared memory, or for columns with longer windows in
device memory. Rows with windows too long for shared memory take a few steps over the chunk
(window_steps.py). Order statistics have a window of each block of a line in shared memory; longer
windows are laid out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.algebra.merges import cast
from dask_coop.algebra.monoids import State
from dask_coop.algebra.windows import Window
from dask_coop.chunks import window_steps
from dask_coop.chunks.cupy.arrays import aligned
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import window as programs

Array = Any

#: The shared memory of a block of columns, in bytes, that leaves room for other blocks.
_FAVOURED = 44 << 10

#: The fewest neighbouring columns that are worth a warp.
_NARROW = 16

#: The blocks for each processor, and the length of a tile in windows, so that little is read twice.
_BLOCKS, _WINDOWS = 32, 8

#: The blocks for each processor if each has device memory.
_SPILLED = 8

#: The elements that a step works on at a time.
_ROOM = 1 << 26


class _Plan(NamedTuple):
    """A launch: program, grid, shared memory, own arguments, and the memory that these point to."""

    source: str
    blocks: int
    threads: int
    shared: int
    own: tuple[Any, ...]
    memory: Sequence[Array] = ()


def move(window: Window, x: Array, halo: Array, base: State | None = None) -> Array:
    """Return a statistic of the window that ends at each element of the chunk `x`.

    Parameters
    ----------
    window : Window
    x : cupy.ndarray
        Any strides and any real dtype.
    halo : cupy.ndarray
        Earlier elements along the axis, fewer than a window has.
    base : tuple of arrays, optional
        The state of the elements between these two.
    """
    with x.device:
        if window.is_ordered:
            return _move_ordered(window, x, halo)
        element, result = window.element(x.dtype), window.result(x.dtype)
        x, halo = (a.astype(element, copy=False) for a in (x, halo))
        if not x.size:
            return cupy.empty(x.shape, result)
        if window.is_paired:
            return window_steps.move(window, x, halo, base, _ROOM)
        x, halo, base = window_steps.recentred(window, x, halo, base)
        inner = math.prod(x.shape[window.axis + 1 :])
        if 1 < inner < _NARROW:
            order = [*(d for d in range(x.ndim) if d != window.axis), window.axis]
            along = replace(window, axis=x.ndim - 1)
            moved = _move(along, x.transpose(order), halo.transpose(order), base)
            moved = moved.transpose(np.argsort(order))
        else:
            moved = _move(window, x, halo, base)
        return moved.astype(result, copy=False)


def _move_ordered(window: Window, x: Array, halo: Array) -> Array:
    """Return order statistics of windows along lines that are contiguous, or made so."""
    axis, w, element = window.axis, window.length, window.element(x.dtype)
    result, shared = window.result(x.dtype), programs.order_bytes(element, w)
    if not x.size:
        return cupy.empty(x.shape, result)
    if shared > device(cupy.cuda.runtime.getDevice()).shared_bytes:
        return window_steps.move_ordered(window, x, halo, _ROOM)
    rows, earlier = (
        aligned(contiguous(cupy.moveaxis(a, axis, -1).astype(element, copy=False)))
        for a in (x, halo)
    )
    n, before = rows.shape[-1], earlier.shape[-1]
    parts = -(-n // (programs.ORDER_THREADS * programs.STRETCH))
    y = cupy.empty_like(rows)
    source = programs.order(programs.order_functor(window.statistic, element, w), element)
    q = -1.0 if window.q is None else window.q
    numbers = np.int32(w), np.int32(window.min_count), np.int32(window.first), np.float64(q)
    lines = rows.data.ptr, earlier.data.ptr, y.data.ptr, np.int64(n), np.int32(before)
    blocks = rows.size // n * parts
    launch(source, blocks, programs.ORDER_THREADS, *lines, np.int64(parts), *numbers, shared=shared)
    return cupy.moveaxis(y, -1, axis).astype(result, copy=False)


def _move(window: Window, x: Array, halo: Array, base: State | None) -> Array:
    """Do what `move` does, for float32 or float64, along an axis with one column or many."""
    x, halo = (aligned(contiguous(a)) for a in (x, halo))
    axis, n = window.axis, x.shape[window.axis]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    given = (window.statistic, x.dtype, window.length)
    gpu = device(cupy.cuda.runtime.getDevice())
    if inner == 1:
        plan = _plan_rows(given, outer, n, halo.shape[axis], gpu.shared_bytes)
    else:
        plan = _plan_columns(given, (outer, n, inner), halo.shape[axis], gpu)
    if plan is None or window.length >= 1 << 31:
        return window_steps.move(window, x, halo, base, _ROOM)
    y = cupy.empty_like(x)
    fields = _fields(base, outer * inner)
    addresses = [0 if a is None else a.data.ptr for a in fields]
    numbers = np.int32(window.length), np.int32(window.min_count), np.int32(window.ddof)
    given_to_all = (x.data.ptr, halo.data.ptr, y.data.ptr, *addresses, *plan.own, *numbers)
    inverse = np.float64(1 / window.length)
    launch(plan.source, plan.blocks, plan.threads, *given_to_all, inverse, shared=plan.shared)
    return y


def _plan_rows(
    given: tuple[str, np.dtype[Any], int], outer: int, n: int, before: int, room: int
) -> _Plan | None:
    """Return the launch of the program of contiguous lines; None if windows are too long."""
    vt = programs.row_values(given[2])
    threads = min(programs.THREADS, -(-n // (32 * vt)) * 32)
    shared = programs.row_bytes(*given, threads)
    if shared > room:
        return None
    parts = -(-n // (threads * vt))
    own = np.int64(n), np.int32(before), np.int64(parts)
    return _Plan(programs.rows(*given[:2], vt), outer * parts, threads, shared, own)


def _plan_columns(
    given: tuple[str, np.dtype[Any], int],
    shape: tuple[int, int, int],
    before: int,
    gpu: Device,
) -> _Plan | None:
    """Return the launch of the program of columns; None if windows are too long."""
    (outer, n, inner), room = shape, gpu.shared_bytes
    length, parts = given[2], programs.column_bytes(*given)
    fits = [nt for nt in programs.WIDTHS if nt * sum(parts) <= min(_FAVOURED, room)]
    spilled = not fits
    fits = fits or [programs.WIDTHS[0]]
    width = next((nt for nt in fits if nt < 2 * inner), fits[-1])
    if spilled and length * width >= 1 << 31:
        return None
    groups = outer * -(-inner // width)
    wanted = gpu.processors * (_SPILLED if spilled else _BLOCKS)
    tiles = max(1, min(-(-wanted // groups), n // (_WINDOWS * length)))
    tile = -(-n // (tiles * length)) * length
    blocks = groups * -(-n // tile)
    sizes = [blocks * width * part if spilled else 0 for part in parts[1:]]
    spill = [cupy.empty(size, "u1") for size in sizes]
    addresses = [memory.data.ptr for memory in spill]
    own = (np.int64(n), np.int64(inner), np.int32(before), np.int64(tile), *addresses)
    shared = width * (parts[0] if spilled else sum(parts))
    source = programs.columns(*given[:2], width, spilled)
    return _Plan(source, blocks, width, shared, own, spill)


def _fields(base: State | None, lines: int) -> list[Array | None]:
    """Return the fields of a base for each line: one or two float64, and a count."""
    if base is None:
        return [None] * 3
    count, *values = (
        cupy.ascontiguousarray(cast(cupy.asarray(field), np.dtype(dtype))).reshape(-1)
        for field, dtype in zip(base, ("i8", "f8", "f8"), strict=False)
    )
    assert count.size == lines
    return [values[0], values[1] if len(values) > 1 else None, count]
