"""The program of kernel_histogram_index.cuh, which computes the bin of each sample."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype
from dask_coop.cuda.programs.histogram import Finder, unit

#: The threads of a block, the blocks of a multiprocessor, and the samples that a thread takes at a
#: time.
THREADS, BLOCKS, UNROLL = 512, 2, 4


@cache
def locate(find: Finder, index: np.dtype[Any]) -> str:
    """Return the program that writes offsets as integers of the dtype `index`."""
    integer = ctype(index)
    numbering = "Numbering{under, over, missing, origin, stride, bool(closed)}"
    call = f"locate<E, {integer}, T, B, {THREADS}, {UNROLL}>"
    return unit(
        "kernel_histogram_index.cuh",
        find,
        "i64 under, i64 over, i64 missing, i64 origin, i64 stride, int closed, i64 count, "
        f"i64 length, i64 distance, {integer}* index",
        f"{call}(x, size, bins, {numbering}, count, length, distance, index);",
        f"{THREADS}, {BLOCKS}",
    )
