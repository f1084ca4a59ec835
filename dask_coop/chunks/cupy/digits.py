"""Radix selection in CuPy chunks: collect samples by digits of their keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.digits import Digits
from dask_coop.chunks.cupy.arrays import dense, owners
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import select as programs

Array = Any

#: At most 1 / _MOST of a chunk is collected; a chunk with more samples to collect stays as it is.
_MOST = 4

#: The bytes on a GPU for samples being collected, which limit the chunks at a time.
_ROOM = 2 << 30


def collect(x: Array, digits: Digits) -> Array:
    """Return the samples of the chunk `x` that `digits` counts, or `x` if these are many.

    They come on one axis, in any order.
    """
    (found,) = collect_all([x], digits)
    return found


def collect_all(xs: Sequence[Array], digits: Digits) -> list[Array]:
    """Return the results of `collect` for several chunks; all GPUs work at the same time."""
    results: list[Any] = [None] * len(xs)
    batches = (_batches(xs, own) for own in owners(xs).values())
    for at_once in zip_longest(*batches):
        batch = [_Batch(xs, own, digits) for own in at_once if own]
        for one in batch:
            for i, found in one.results(xs):
                results[i] = found
    return results


def _batches(xs: Sequence[Array], own: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of the numbers of one GPU's chunks."""
    batch: list[int] = []
    taken = 0
    for i in own:
        if batch and taken + xs[i].nbytes // _MOST > _ROOM:
            yield batch
            batch, taken = [], 0
        batch.append(i)
        taken += xs[i].nbytes // _MOST
    yield batch


class _Batch:
    """Chunks of one GPU whose samples are being collected."""

    def __init__(self, xs: Sequence[Array], own: Sequence[int], digits: Digits) -> None:
        self._own = own
        with xs[own[0]].device:
            prefixes: tuple[Array, ...] = ()
            if len(digits.prefixes) > 1:
                prefixes = (cupy.asarray(np.array(digits.prefixes, "u8")),)
                prefixes += (cupy.asarray(digits.begins),)
            self._sizes = cupy.zeros(len(own), "u8")
            sizes = (self._sizes[at : at + 1] for at in range(len(own)))
            self._found = [
                _begin(xs[i], digits, prefixes, size) for i, size in zip(own, sizes, strict=True)
            ]

    def results(self, xs: Sequence[Array]) -> Iterator[tuple[int, Array]]:
        """Wait, and yield chunk numbers with collected samples; whole chunks if these are many."""
        with self._sizes.device:
            sizes = self._sizes.get().tolist()
            for i, room, size in zip(self._own, self._found, sizes, strict=True):
                # A copy, so that the rest of the room is freed.
                yield i, xs[i] if size > room.size else room[:size].copy()


def _begin(x: Array, digits: Digits, prefixes: tuple[Array, ...], size: Array) -> Array:
    """Launch the collection; return the room for samples, whose number will be in `size`."""
    x = dense(x)[0]
    if not x.size or not digits.prefixes:
        return cupy.empty(0, x.dtype)
    found = cupy.empty(x.size // _MOST + 1, x.dtype)
    pointers = (np.int32(len(digits.prefixes)), *(table.data.ptr for table in prefixes))
    room = programs.COLLECT_BYTES // x.itemsize
    # Tiles whose collected samples usually fit, but at least one tile for every block.
    blocks = 2 * device(cupy.cuda.runtime.getDevice()).processors
    fitting = room * digits.left / 2 / max(digits.share, 1e-9)
    tile = -(-min(int(fitting), -(-x.size // blocks)) // 64) * 64
    launch(
        programs.collect(x.dtype, bool(prefixes)),
        min(blocks, -(-x.size // tile)),
        programs.COLLECT_THREADS,
        x.data.ptr,
        *(np.int64(x.size), np.int32(digits.shift + digits.width), np.uint64(digits.prefixes[0])),
        *(pointers if prefixes else ()),
        np.int64(tile),
        np.uint32(room),
        found.data.ptr,
        np.uint64(found.size),
        size.data.ptr,
        shared=programs.COLLECT_BYTES + programs.FILTER_BYTES,
    )
    return found
