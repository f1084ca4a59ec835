"""Reductions of CuPy chunks: picks teams, parts and grids for kernel_reduce.cuh."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.chunks import catalogue
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import reduce as programs
from dask_coop.monoids import Operation

Array = Any
Shape = tuple[int, int, int]

#: Blocks of `programs.THREADS` that keep a multiprocessor busy.
_BLOCKS = 8

#: The fewest bytes of a line that are worth a block of their own.
PART_BYTES = 1 << 15


def reduce_lines(op: Operation, x: Array, shape: Shape) -> Array:
    """Reduce `x`, seen as (outer, n, inner), over n.

    Returns
    -------
    cupy.ndarray
        The outer * inner states as bytes, on the GPU.
    """
    functor, layout = catalogue.functor(op), catalogue.layout(op)
    states, parts = _states(functor, layout, x.data.ptr, op.element, shape)
    if parts > 1:
        states, _ = _states(functor, layout, states.data.ptr, None, (shape[0], parts, shape[2]))
    return states


def _states(
    functor: str, layout: np.dtype[Any], x: int, element: np.dtype[Any] | None, shape: Shape
) -> tuple[Array, int]:
    """Reduce every part of every line to a state; without `element` the lines hold states."""
    outer, n, inner = shape
    itemsize = layout.itemsize if element is None else element.itemsize
    parts = 1
    if inner == 1:
        team = next((t for t, most in programs.TEAMS if n <= most), programs.THREADS)
        if team == programs.THREADS and element is not None:
            parts = parts_of(outer, n * itemsize // PART_BYTES)
        blocks = -(-outer * parts // (programs.THREADS // team))
        extra: tuple[Any, ...] = (np.int64(parts),)
        source = (
            programs.merge_rows(functor, layout, team)
            if element is None
            else programs.rows(functor, element, layout, team)
        )
    else:
        # A warp reads at least 128 neighbouring bytes where the line has them.
        width = min(1 << (inner - 1).bit_length(), max(32, 128 // itemsize))
        tiles = -(-inner // width)
        if element is not None:
            parts = parts_of(outer * tiles, n * width // (programs.THREADS * 8))
        blocks = outer * parts * tiles
        extra = (np.int64(inner), np.int64(parts), np.int32(width.bit_length() - 1))
        source = (
            programs.merge_columns(functor, layout)
            if element is None
            else programs.columns(functor, element, layout)
        )
    states = cupy.empty(outer * parts * inner * layout.itemsize, "u1")
    if blocks:
        sizes = (np.int64(outer), np.int64(n))
        launch(source, blocks, programs.THREADS, x, states.data.ptr, *sizes, *extra)
    return states, parts


def parts_of(blocks: int, most: int) -> int:
    """Return into how many parts to cut lines that alone would make `blocks` blocks."""
    busy = device(cupy.cuda.runtime.getDevice()).processors * _BLOCKS
    return max(1, min(-(-busy // max(1, blocks)), most))
