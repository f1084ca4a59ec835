"""Reduce CuPy chunks in the order of their elements, for states that do not commute."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.operation import Operation
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.reduce import TILE_BYTES, Shape, tiles_of
from dask_coop.chunks.cupy.states import room_for
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import scan as programs

Array = Any

#: The fewest rows of a tile of strided lines.
_ROWS = 32


def reduce_in_order(op: Operation, x: Array, shape: Shape) -> Array:
    """Reduce `x`, viewed as (outer, n, inner), over n; return the states as bytes, on the GPU."""
    scan, layout = programs_list.scanned(op), programs_list.layout(op)
    if shape[0] * shape[2] == 0:
        return cupy.empty(0, "u1")
    states, left = _reduce_tiles(scan, layout, x, shape)
    while left[1] > 1:
        states, left = _reduce_tiles(programs.of_states(scan), layout, states, left)
    return states


def _reduce_tiles(
    scan: programs.Scan, layout: np.dtype[Any], x: Array, shape: Shape
) -> tuple[Array, Shape]:
    """Reduce tiles of lines; return their states, and the shape of these as lines of tiles."""
    outer, n, inner = shape
    threads, line_bytes = programs.THREADS, n * scan.element_bytes
    if inner > 1:
        # A thread takes a column of a tile, so few columns need many tiles.
        busy = threads * tiles_of(1, n)
        tiles = max(1, min(busy // (outer * inner), n // _ROWS))
    else:
        tiles = tiles_of(outer, line_bytes // TILE_BYTES)
    states = room_for(outer * tiles * inner, layout)
    at = states.data.ptr
    if inner > 1:
        columns = np.int64(outer), np.int64(n), np.int64(inner), np.int64(tiles)
        blocks = -(-outer * tiles * inner // threads)
        launch(programs.reduce_columns_in_order(scan), blocks, threads, x.data.ptr, at, 0, *columns)
    else:
        team = 32 if n <= programs.WARP_LINE else threads
        blocks = -(-outer * tiles // (threads // team))
        source = programs.rows(scan, team, write=False)
        rows = np.int64(outer), np.int64(n), np.int64(tiles)
        launch(source, blocks, threads, x.data.ptr, 0, 0, at, *rows)
    return states, (outer, tiles, inner)
