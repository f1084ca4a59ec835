"""Partition a GPU's chunks among the blocks of a multi-chunk launch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

#: The unit of a stretch's length in elements, which keeps stretches aligned as their chunk is.
GRAIN = 1024

#: A stretch of a chunk, as `Stretch` of kernels/kernel_multichunk.cuh.
STRETCH = np.dtype([("x", "u8"), ("y", "u8"), ("n", "i8"), ("first", "i8"), ("chunk", "i8")])


class Cut(NamedTuple):
    """The stretches of the chunks of one GPU, and the blocks that take them.

    Attributes
    ----------
    stretches : numpy.ndarray
        The records that kernels read, without addresses.
    chunk : numpy.ndarray
        The number of each stretch's chunk, among those of the GPU.
    block : numpy.ndarray
        The number of the first stretch of every block, then the number of stretches.
    begin : numpy.ndarray
        The number of the first stretch of every chunk, then the number of stretches.
    """

    stretches: Any
    chunk: Any
    block: Any
    begin: Any


@lru_cache(256)
def cut(numbers: tuple[int, ...], sizes: tuple[int, ...], blocks: int, reverse: bool) -> Cut:
    """Cut chunks into stretches that give each of `blocks` blocks about as many elements.

    Parameters
    ----------
    numbers, sizes : tuples of int
        The numbers of a GPU's chunks in the order of a scan, and their sizes.
    blocks : int
    reverse : bool
        Whether the order is from the end of each chunk to its beginning.
    """
    ends = np.cumsum(sizes, dtype="i8")
    starts, total = ends - np.asarray(sizes), int(ends[-1])
    each = max(1, -(-total // (blocks * GRAIN))) * GRAIN
    bounds = np.arange(each, total, each)
    inside = np.searchsorted(ends, bounds, "right")
    offset = -(-(bounds - starts[inside]) // GRAIN) * GRAIN
    cuts = np.minimum(starts[inside] + offset, ends[inside])
    new = (cuts > starts[inside]) & (cuts < ends[inside])
    at = np.concatenate([starts, cuts[new]])
    chunk = np.concatenate([np.arange(len(sizes)), inside[new]])
    order = np.lexsort((at, chunk))
    at, chunk = at[order], chunk[order]
    stretches = np.zeros(len(chunk), STRETCH)
    stretches["n"] = np.append(at[1:], total) - at
    first = at - starts[chunk]
    # In reverse order, the first stretch of a chunk is at its end.
    stretches["first"] = np.asarray(sizes)[chunk] - first - stretches["n"] if reverse else first
    stretches["chunk"] = np.asarray(numbers)[chunk]
    block = np.full(blocks + 1, len(at), "i4")
    block[0] = 0
    block[1 : len(cuts) + 1] = np.searchsorted(at, cuts)
    begin = np.searchsorted(chunk, np.arange(len(sizes) + 1)).astype("i4")
    return Cut(stretches, chunk, block, begin)
