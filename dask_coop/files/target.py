"""A Zarr array whose chunks are encoded and written by the thread that has their elements.

    block -> objects that it has: chunks or shards -> cells -> bytes -> a file, renamed when whole

No two blocks have elements of one object. Where a region ends within an object, its other elements
are read first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import numpy as np

from dask_coop.errors import NotSupported
from dask_coop.files.encoding import Encoder, is_fill
from dask_coop.files.journal import Journal, Start
from dask_coop.files.layout import ABSENT, Layout, Shards, layout_of_zarr
from dask_coop.files.stored import StoredArray, blaming, local_root
from dask_coop.files.stores import LocalFiles, scratch


class StoredTarget:
    """A Zarr array to write, or a region of one.

    Parameters
    ----------
    array : zarr.Array
    origin : tuple of int
        Where the region begins.
    journal : Journal or None
        Where written blocks are noted, if the array is in a local folder.
    sync : bool
        Whether files are on the disk before their block is noted.

    Attributes
    ----------
    why_not : str
        Why Zarr itself writes; empty if it does not.
    """

    def __init__(self, array: Any, origin: Start, journal: Journal | None, sync: bool) -> None:
        self.array = array
        self.origin = origin
        self.journal = journal
        self.sync = sync
        self.dtype: np.dtype[Any] = array.dtype
        self._keeps_empty = bool(array.config.write_empty_chunks)
        self._layout: Layout | None = None
        self.why_not: str = ""
        if (folder := folder_of(array)) is None:
            self.why_not = f"the store is no local folder: {type(array.store).__name__}"
            return
        self._files = LocalFiles(folder)
        try:
            self._layout = layout_of_zarr(array)
        except NotSupported as error:
            self.why_not = str(error)

    def __reduce__(self) -> Any:
        """Return how to make the array where a task runs."""
        return type(self), (self.array, self.origin, self.journal, self.sync)

    def __dask_tokenize__(self) -> Any:
        """Return the values that identify the array in Dask's names."""
        return type(self).__name__, self.array, self.origin, self.journal, self.sync

    @property
    def codecs(self) -> str:
        """The codecs of its chunks, in the order of encoding."""
        names = self._layout.chain.names if self._layout else ""
        return ", ".join(reversed(names.split(", ")))

    @cached_property
    def _cells(self) -> Encoder:
        assert self._layout is not None
        return Encoder(self._layout.chain, self._layout.fill)

    @cached_property
    def _stored(self) -> StoredArray:
        return StoredArray(self.array, 1)

    def write(self, block: Any, start: Start) -> None:
        """Write a block of NumPy's that begins there in the region, and note it."""
        block = np.asarray(block).astype(self.dtype, copy=False)
        at = tuple(map(operator.add, self.origin, start))
        if self._layout is None:
            ends = map(operator.add, at, block.shape)
            self.array[(*map(slice, at, ends), ...)] = block
        elif block.size:
            self._write(self._layout, block, at)
        if self.journal is not None:
            self.journal.add(start)

    def finish(self) -> None:
        """Remove the journal, after all blocks have been written."""
        if self.journal is not None:
            self.journal.end()

    def _write(self, layout: Layout, block: Any, at: Start) -> None:
        size = write_unit(self.array)
        ends = tuple(map(operator.add, at, block.shape))
        numbers = (range(a // n, -(-b // n)) for a, b, n in zip(at, ends, size, strict=True))
        for number in product(*numbers):
            first = tuple(map(operator.mul, number, size))
            last = tuple(min(a + n, m) for a, n, m in zip(first, size, layout.shape, strict=True))
            inner = tuple(
                slice(max(a, b) - b, min(c, d) - b)
                for a, b, c, d in zip(first, at, last, ends, strict=True)
            )
            elements = block[(*inner, ...)]
            if elements.shape != tuple(map(operator.sub, last, first)):
                elements = self._merged(elements, at, inner, first, last)
            self._put(layout, layout.key(number), elements)

    def _merged(
        self, elements: Any, at: Start, inner: tuple[slice, ...], first: Start, last: Start
    ) -> Any:
        """Return the elements of an object, of which the region has some."""
        whole = self._stored[tuple(map(slice, first, last))]
        shifts = map(operator.sub, at, first)
        whole[tuple(slice(i.start + n, i.stop + n) for i, n in zip(inner, shifts, strict=True))] = (
            elements
        )
        return whole

    def _put(self, layout: Layout, key: str, elements: Any) -> None:
        """Write an object, or remove it if nothing is to be stored."""
        with blaming(self._files.name, key, "write"):
            if layout.shards is not None:
                buffers = self._shard(layout, layout.shards, elements)
            else:
                buffers = [*self._encoded(layout, elements)]
            if buffers:
                self._files.write(key, buffers, self.sync)
            else:
                self._files.delete(key)

    def _encoded(self, layout: Layout, elements: Any) -> Iterator[Any]:
        """Yield the bytes of a cell, unless it has the fill value only."""
        if self._keeps_empty or not is_fill(elements, layout.fill):
            yield self._cells.encode(elements, scratch)

    def _shard(self, layout: Layout, shards: Shards, elements: Any) -> list[Any]:
        """Return the bytes of a shard: its index, and its cells in their order."""
        shape = layout.chain.shape
        places = np.full((*shards.cells, 2), ABSENT, "u8")
        offset = shards.nbytes if shards.begin >= 0 else 0
        buffers: list[Any] = []
        counts = (range(-(-n // m)) for n, m in zip(elements.shape, shape, strict=True))
        for cell in product(*counts):
            inner = tuple(slice(i * n, (i + 1) * n) for i, n in zip(cell, shape, strict=True))
            for buffer in self._encoded(layout, elements[(*inner, ...)]):
                nbytes = memoryview(buffer).nbytes
                places[cell] = offset, nbytes
                offset += nbytes
                buffers.append(buffer)
        if not buffers:
            return []
        index = Encoder(shards.index, 0).encode(places, scratch)
        return [index, *buffers] if shards.begin >= 0 else [*buffers, index]


def write_unit(array: Any) -> tuple[int, ...]:
    """Return the shape of an object of the store: a shard, or else a chunk."""
    return tuple(array.shards or array.chunks)


def folder_of(array: Any) -> str | None:
    """Return the local folder of an array; None if it has none."""
    root = local_root(array.store)
    return None if root is None else f"{root}/{array.path}".rstrip("/")


def aligned(
    sizes: tuple[tuple[int, ...], ...], origin: Start, unit: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return chunks that end where objects of the store do, about as large as `sizes`.

    Axes whose chunks do so already stay as they are.

    Parameters
    ----------
    sizes : tuple of tuple of int
        The lengths of chunks along each axis.
    origin : tuple of int
        Where the first one begins.
    unit : tuple of int
        The shape of an object.
    """
    return tuple(map(_aligned, sizes, origin, unit))


def _aligned(lengths: tuple[int, ...], start: int, unit: int) -> tuple[int, ...]:
    ends = np.cumsum(lengths) + start
    if not (ends[:-1] % unit).any():
        return lengths
    step, last = max(unit, max(lengths) // unit * unit), int(ends[-1])
    cuts = [start, *range((start // unit + math.ceil(step / unit)) * unit, last, step), last]
    return tuple(b - a for a, b in pairwise(cuts))
