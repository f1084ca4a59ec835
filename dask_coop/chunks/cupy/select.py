"""What masks, bins and zeros select of CuPy chunks, by kernel_select.cuh.

Two reads of what is asked, the mask or the elements, one of the elements that tiles are kept of,
and one write of the results, which are no longer than they have to be.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.monoids import SUM
from dask_coop.algebra.operation import bind
from dask_coop.chunks.cupy.arrays import aligned, contiguous
from dask_coop.chunks.cupy.bin_lookup import Lookup
from dask_coop.chunks.cupy.scan import scan_lines
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import select as programs
from dask_coop.cuda.programs.base import CTYPES

Array = Any

_COUNTS = bind(SUM, np.dtype("i8"), np.dtype("i8"), "scan")


def compress(x: Array, mask: Array) -> Array:
    """Return the elements of `x` that `mask` holds for, in C order along one axis.

    Parameters
    ----------
    x : cupy.ndarray
        Of any strides and any dtype.
    mask : cupy.ndarray
        Bool or uint8, of the shape of `x`.
    """
    with x.device:
        if x.itemsize not in programs.SIZES:
            return x[mask.astype("?", copy=False)]
        x, mask = aligned(contiguous(x)), contiguous(mask)
        values, _ = _select(programs.masked(x.itemsize), mask, x)
        return values


def flatnonzero(x: Array) -> Array:
    """Return where in C order `x` has elements that are not zero, as int64."""
    with x.device:
        x = aligned(contiguous(x if x.dtype.name in CTYPES else x != 0))
        _, indices = _select(programs.nonzero(x.dtype), x, x)
        return indices


def collect(
    x: Array, lookup: Lookup, values: bool = True, indices: bool = False
) -> tuple[Array | None, Array | None]:
    """Return the elements of `x` that have a bin, and where they are, in C order along one axis.

    Parameters
    ----------
    x : cupy.ndarray
        Of the dtype of the lookup.
    lookup : Lookup
        Bins whose tables are not staged do better: every tile would stage them.
    values, indices : bool
        Which of the two are wanted; the other is None.
    """
    with x.device:
        x = aligned(contiguous(x))
        of = programs.within(lookup.finder, x.itemsize, values, indices)
        return _select(of, x, x, lookup.arguments, lookup.staged)


def _select(
    of: programs.Selection, sources: Array, x: Array, keep: tuple[Any, ...] = (), staged: int = 0
) -> tuple[Array | None, Array | None]:
    """Return what is kept of contiguous arrays, as far as `of` has it written."""
    n, tiles = np.int64(x.size), -(-x.size // of.tile)
    total = 0
    if tiles:
        count, write = programs.count(of), programs.write(of)
        prepare(count, write)
        counts, ends = cupy.empty((2, tiles), "i8")
        blocks = -(-tiles * 32 // programs.THREADS)
        asked = sources.data.ptr, n, *keep, counts.data.ptr
        launch(count, blocks, programs.THREADS, *asked, shared=staged)
        scan_lines(_COUNTS, counts, ends, None, (1, tiles, 1))
        total = int(ends[-1:].get()[0])
    values = cupy.empty(total, x.dtype) if of.values else None
    indices = cupy.empty(total, "i8") if of.indices else None
    if total:
        places = (0 if y is None else y.data.ptr for y in (values, indices))
        asked = sources.data.ptr, x.data.ptr, n, *keep, ends.data.ptr
        launch(write, tiles, programs.THREADS, *asked, *places, shared=staged)
    return values, indices
