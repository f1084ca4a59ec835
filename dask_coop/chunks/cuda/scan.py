"""Scans of CuPy chunks: two-level reduce-then-scan inside a GPU, by kernel_scan.cuh."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.chunks import catalogue
from dask_coop.chunks.cuda.reduce import PART_BYTES, Shape, parts_of
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import reduce, scan
from dask_coop.monoids import Operation

Array = Any

#: The most parts of a strided line: one thread scans their states.
_COLUMN_PARTS = 4096


def scan_lines(op: Operation, x: Array, y: Array, base: Array | None, shape: Shape) -> None:
    """Scan `x`, seen as (outer, n, inner), along n into `y`."""
    outer, n, inner = shape
    functor, layout = catalogue.functor(op), catalogue.layout(op)
    bases = base.data.ptr if base is not None else 0
    threads = scan.THREADS
    sizes: tuple[Any, ...] = (np.int64(outer), np.int64(n))
    if inner == 1:
        team = 32 if n <= 4096 else threads
        parts = parts_of(outer, n * x.itemsize // PART_BYTES) if team == threads else 1
        blocks = -(-outer * parts // (threads // team))
        source = scan.rows(functor, op.element, op.output, layout, team)
        upsweep = reduce.rows(functor, op.element, layout, threads)
        spine, spine_blocks = scan.spine_rows(functor, layout), outer
        columns: tuple[Any, ...] = ()
    else:
        width = min(1 << (inner - 1).bit_length(), 32)
        parts = min(_COLUMN_PARTS, parts_of(-(-outer * inner // threads), n // 64))
        blocks = -(-outer * parts * inner // threads)
        source = scan.columns(functor, op.element, op.output, layout)
        upsweep = reduce.columns(functor, op.element, layout)
        spine, spine_blocks = scan.spine_columns(functor, layout), -(-outer * inner // threads)
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
