"""Select elements of CuPy chunks by masks, bins and nonzero values, with kernel_select.cuh.

The mask, or the elements that decide, are read once, and so are the tiles with selected elements.
Results are exactly as long as needed.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.monoids import SUM
from dask_coop.algebra.operation import bind
from dask_coop.chunks.cupy.arrays import aligned
from dask_coop.chunks.cupy.bin_lookup import Lookup
from dask_coop.chunks.cupy.scan import scan_lines
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import select as programs
from dask_coop.cuda.programs.base import CTYPES

Array = Any

_COUNTS = bind(SUM, np.dtype("i8"), np.dtype("i8"), "scan")


def compress(x: Array, mask: Array) -> Array:
    """Return the elements of `x` that `mask` selects, in C order along one axis.

    Parameters
    ----------
    x : cupy.ndarray
        Any strides and any dtype.
    mask : cupy.ndarray
        Bool or uint8, of the shape of `x`.
    """
    with x.device:
        if x.itemsize not in programs.SIZES:
            return x[mask.astype("?", copy=False)]
        mark = programs.mark_nonzero(mask.dtype, programs.tile_of(x.itemsize))
        return _select(mark, contiguous(mask), aligned(contiguous(x)))[0]


def flatnonzero(x: Array) -> Array:
    """Return the indices in C order of the nonzero elements of `x`, as int64."""
    with x.device:
        x = aligned(contiguous(x if x.dtype.name in CTYPES else x != 0))
        mark = programs.mark_nonzero(x.dtype, programs.tile_of(None))
        return _select(mark, x, x, values=False, indices=True)[1]


def collect(
    x: Array, lookup: Lookup, values: bool = True, indices: bool = False
) -> tuple[Array | None, Array | None]:
    """Return the elements of `x` that have a bin, and their indices, in C order along one axis.

    Parameters
    ----------
    x : cupy.ndarray
        The dtype of the lookup.
    lookup : Lookup
        Preferably without staged tables, because every block would stage them.
    values, indices : bool
        Whether to return elements and indices; otherwise None takes their place.
    """
    with x.device:
        x = aligned(contiguous(x))
        mark = programs.mark_found(lookup.finder, programs.tile_of(x.itemsize if values else None))
        return _select(mark, x, x, lookup, values=values, indices=indices)


def _select(
    mark: str,
    sources: Array,
    x: Array,
    lookup: Lookup | None = None,
    *,
    values: bool = True,
    indices: bool = False,
) -> tuple[Array | None, Array | None]:
    """Return the elements of `x` that a program marks, and their indices."""
    item = x.itemsize if values else None
    n, tile, total = np.int64(x.size), programs.tile_of(item), 0
    tiles = -(-x.size // tile)
    if tiles:
        write = programs.write(item, indices)
        prepare(mark, write)
        marks = cupy.empty(tiles * tile // 8, "u1")
        counts, ends = cupy.empty((2, tiles), "i8")
        given = sources.data.ptr, n, *(lookup.arguments if lookup else ())
        found, staged = (marks.data.ptr, counts.data.ptr), lookup.staged if lookup else 0
        blocks = programs.mark_blocks(tiles)
        launch(mark, blocks, programs.THREADS, *given, *found, shared=staged)
        scan_lines(_COUNTS, counts, ends, None, (1, tiles, 1))
        total = int(ends[-1:].get()[0])
    kept = cupy.empty(total, x.dtype) if values else None
    places = cupy.empty(total, "i8") if indices else None
    if total:
        results = (0 if y is None else y.data.ptr for y in (kept, places))
        given = x.data.ptr, n, marks.data.ptr, ends.data.ptr
        launch(write, tiles, programs.THREADS, *given, *results)
    return kept, places
