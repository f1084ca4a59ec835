"""Statistics of windows over CuPy chunks, by kernel_window.cuh.

The kernels hold a window of each line in shared memory. Longer windows take a few steps over the
whole chunk (window_steps.py).
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.windows import Window
from dask_coop.chunks import window_steps
from dask_coop.chunks.cupy.arrays import aligned, contiguous
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import window as programs

Array = Any

#: Shared memory of a block, in bytes, that leaves a processor room for others.
_FAVOURED = 44 << 10

#: The fewest neighbouring columns that are worth a warp.
_NARROW = 16

#: Blocks for each processor, and tiles of a line that are so many windows long, so that little is
#: read twice.
_BLOCKS, _WINDOWS = 32, 8

#: Elements that a step works on at a time.
_ROOM = 1 << 26


def move(window: Window, x: Array, halo: Array, base: State | None = None) -> Array:
    """Reduce the window that ends at each element of the chunk `x` to a statistic.

    Parameters
    ----------
    window : Window
    x : cupy.ndarray
        Of any strides and any real dtype.
    halo : cupy.ndarray
        What comes before it along the axis: fewer elements than a window has.
    base : tuple of arrays, optional
        What windows keep of what lies between these two.
    """
    with x.device:
        element, result = window.element(x.dtype), window.result(x.dtype)
        x, halo = (a.astype(element, copy=False) for a in (x, halo))
        if not x.size:
            return cupy.empty(x.shape, result)
        inner = math.prod(x.shape[window.axis + 1 :])
        if 1 < inner < _NARROW:
            order = [*(d for d in range(x.ndim) if d != window.axis), window.axis]
            along = Window(window.statistic, x.ndim - 1, *_numbers(window))
            moved = _move(along, x.transpose(order), halo.transpose(order), base)
            moved = moved.transpose(np.argsort(order))
        else:
            moved = _move(window, x, halo, base)
        return moved.astype(result, copy=False)


def _numbers(window: Window) -> tuple[int, int, int]:
    return window.length, window.min_count, window.ddof


def _move(window: Window, x: Array, halo: Array, base: State | None) -> Array:
    """Do what `move` does, of float32 or float64, along an axis that has no few columns."""
    x, halo = (aligned(contiguous(a)) for a in (x, halo))
    axis, n = window.axis, x.shape[window.axis]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    given = (window.statistic, x.dtype, window.length)
    gpu = device(cupy.cuda.runtime.getDevice())
    plan: tuple[str, int, int, int, tuple[Any, ...]] | None
    if inner == 1:
        plan = _plan_rows(given, outer, n, halo.shape[axis], gpu.shared_bytes)
    else:
        wanted = _BLOCKS * gpu.processors
        plan = _plan_columns(given, outer, n, inner, halo.shape[axis], gpu.shared_bytes, wanted)
    if plan is None or window.length >= 1 << 31:
        return window_steps.move(window, x, halo, base, _ROOM)
    source, blocks, threads, shared, own = plan
    y = cupy.empty_like(x)
    fields = _fields(base, outer * inner)
    addresses = [0 if a is None else a.data.ptr for a in fields]
    numbers = np.int32(window.length), np.int32(window.min_count), np.int32(window.ddof)
    arguments = (*addresses, *own, *numbers, np.float64(1 / window.length))
    launch(
        source, blocks, threads, x.data.ptr, halo.data.ptr, y.data.ptr, *arguments, shared=shared
    )
    return y


def _plan_rows(
    given: tuple[str, np.dtype[Any], int], outer: int, n: int, before: int, room: int
) -> tuple[str, int, int, int, tuple[Any, ...]] | None:
    """Return the program of contiguous lines, its grid, shared memory and arguments."""
    length, whole = given[2], -(-n // given[2])
    per_block = programs.row_bytes(*given, 1) - programs.row_bytes(*given, 0)
    rest = programs.row_bytes(*given, 0)
    share = min(whole, max((_FAVOURED - rest) // per_block, min(32, (room - rest) // per_block)))
    # Numbers of elements are divided by the length with one multiplication.
    share = min(share, (1 << 31) // length // length - 1)
    if share < min(whole, 4):
        return None
    parts = -(-whole // share)
    share = -(-whole // parts)
    shared = programs.row_bytes(*given, share)
    magic = np.uint32(min((1 << 32) // length + 1, (1 << 32) - 1))
    own = np.int64(n), np.int32(before), np.int64(parts), np.int32(share), magic
    return programs.rows(*given[:2]), outer * parts, programs.THREADS, shared, own


def _plan_columns(
    given: tuple[str, np.dtype[Any], int],
    outer: int,
    n: int,
    inner: int,
    before: int,
    room: int,
    wanted: int,
) -> tuple[str, int, int, int, tuple[Any, ...]] | None:
    """Return the program of columns, its grid, shared memory and arguments."""
    length, each = given[2], programs.column_bytes(*given)
    fits = [nt for nt in programs.WIDTHS if nt * each <= (_FAVOURED if nt > 32 else room)]
    if not fits:
        return None
    width = next((nt for nt in fits if nt < 2 * inner), fits[-1])
    groups = outer * -(-inner // width)
    tiles = max(1, min(-(-wanted // groups), n // (_WINDOWS * length)))
    tile = -(-n // (tiles * length)) * length
    own = np.int64(n), np.int64(inner), np.int32(before), np.int64(tile)
    blocks = groups * -(-n // tile)
    return programs.columns(*given[:2], width), blocks, width, width * each, own


def _fields(base: State | None, lines: int) -> list[Array | None]:
    """Return what a base has for each line: one or two float64, and a count."""
    if base is None:
        return [None] * 3
    count, *values = (
        cupy.ascontiguousarray(cupy.asarray(field).astype(dtype, copy=False)).reshape(-1)
        for field, dtype in zip(base, ("i8", "f8", "f8"), strict=False)
    )
    assert count.size == lines
    return [values[0], values[1] if len(values) > 1 else None, count]
