"""Radix selection in CuPy chunks: samples are collected by digits of their keys."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.digits import Digits
from dask_coop.chunks.cupy.arrays import dense
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import select as programs

Array = Any

#: What share of a chunk is collected at most: where more of it is wanted, it stays as it is.
_MOST = 4


def collect(x: Array, digits: Digits) -> Array:
    """Return the samples of the chunk `x` that `digits` counts, or all if they are not few.

    They come on one axis, in any order.
    """
    with x.device:
        x = dense(x)[0]
        if not x.size or not digits.prefixes:
            return x.reshape(-1)[:0].copy()
        several = len(digits.prefixes) > 1
        bits = np.int32(digits.shift + digits.width), np.uint64(digits.prefixes[0])
        tables: tuple[Array, ...] = ()
        if several:
            tables = cupy.asarray(np.array(digits.prefixes, "u8")), cupy.asarray(digits.begins)
        pointers = (np.int32(len(digits.prefixes)), *(table.data.ptr for table in tables))
        found, total = cupy.empty(x.size // _MOST + 1, x.dtype), cupy.zeros(1, "u8")
        room = programs.COLLECT_BYTES // x.itemsize
        # So long that what is found of a tile mostly fits, and a tile at least for every block.
        blocks = 2 * device(cupy.cuda.runtime.getDevice()).processors
        fitting = room * digits.left / 2 / max(digits.share, 1e-9)
        tile = -(-min(int(fitting), -(-x.size // blocks)) // 64) * 64
        launch(
            programs.collect(x.dtype, several),
            min(blocks, -(-x.size // tile)),
            programs.COLLECT_THREADS,
            x.data.ptr,
            np.int64(x.size),
            *bits,
            *(pointers if several else ()),
            np.int64(tile),
            np.uint32(room),
            found.data.ptr,
            np.uint64(found.size),
            total.data.ptr,
            shared=programs.COLLECT_BYTES + programs.FILTER_BYTES,
        )
        size = int(total.get()[0])
        # A copy, so that the room that is left can be used.
        return x if size > found.size else found[:size].copy()
