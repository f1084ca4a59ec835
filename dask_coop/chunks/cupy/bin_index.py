"""Compute the bin indices of the samples of CuPy chunks, by kernel_histogram_index.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.bins import Grid, Numbering, Steps
from dask_coop.algebra.edges import Bins
from dask_coop.chunks.cupy.bin_lookup import look_up
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import bin_index as programs

Array = Any

#: The most entries of a table, so that offsets fit in uint32.
MOST = (1 << 31) - 1


def find_indices(samples: Sequence[Array], grid: Grid, lines: tuple[int, int] | None) -> Array:
    """Return the offset of each sample in the flat table of a grid, as uint32.

    Parameters
    ----------
    samples : sequence of cupy.ndarray
        The coordinates: contiguous, of equal sizes of at least one, not bool.
    grid : Grid
    lines : tuple of int, optional
        The length of lines with their own tables, and the distance of their elements.

    Returns
    -------
    cupy.ndarray
        One-dimensional. Samples that do not count have the largest uint32.
    """
    index = cupy.empty(samples[0].size, "u4")
    for i, (x, bins, numbers) in enumerate(zip(samples, grid.bins, grid.numberings, strict=True)):
        count = 0 if i == 0 and lines is None else grid.shape[i]
        _locate(x, bins, numbers, count, lines if i == 0 else None, index)
    return index


def find_numbers(x: Array, steps: Steps) -> Array:
    """Return the bin number of each sample of a contiguous chunk, as int64."""
    index = cupy.empty(x.shape, "i8")
    if x.size:
        _locate(x, steps.bins, steps.numbering, 0, None, index)
    return index


def _locate(
    x: Array,
    bins: Bins,
    numbers: Numbering,
    count: int,
    lines: tuple[int, int] | None,
    index: Array,
) -> None:
    gpu = device(cupy.cuda.runtime.getDevice())
    lookup = look_up(gpu, x.dtype, bins, 0)
    tile = programs.THREADS * programs.UNROLL
    launch(
        programs.locate(lookup.finder, index.dtype),
        min(gpu.processors * programs.BLOCKS, -(-x.size // tile)),
        programs.THREADS,
        x.data.ptr,
        np.int64(x.size),
        *lookup.arguments,
        *map(np.int64, numbers[:-1]),
        np.int32(numbers.closed),
        np.int64(count),
        *map(np.int64, lines or (0, 0)),
        index.data.ptr,
        shared=lookup.staged,
    )
