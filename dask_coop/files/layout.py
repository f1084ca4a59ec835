"""Describe how an array is stored: which object has which chunk, and how its bytes are encoded.

    array, cut into cells --> cell (2, 3) --> object "c/1/1", all of it               no shards
                                          --> object "c/0/1", bytes 8192 to 9000      in a shard

A cell is what is decoded at once: a chunk, or in a shard an inner chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_coop.errors import NotSupported
from dask_coop.files.codecs import Bytes, Chain, Config, chain
from dask_coop.files.stores import Request

#: In the index of a shard: offset and length of a chunk that it does not have.
ABSENT = np.iinfo("u8").max


@dataclass(frozen=True, slots=True)
class Shards:
    """How cells lie in the objects of a store.

    Attributes
    ----------
    cells : tuple of int
        The number of cells of a shard along each axis.
    index : Chain
        The codecs of the index, offset and length of each cell.
    begin, nbytes : int
        The place of the index; `begin` may count from the end of the object.
    known : array, optional
        The offset and length of each cell, of shape (*cells, 2), if no index has to be read.
    """

    cells: tuple[int, ...]
    index: Chain
    begin: int
    nbytes: int
    known: Any = None

    def request(self, key: str) -> Request:
        """Return the request of the index of a shard."""
        return Request(key, self.begin, self.nbytes if self.begin >= 0 else None)

    def places(self, data: Bytes, scratch: Callable[[int, int], Bytes]) -> Any:
        """Return the offset and length of each cell, an array of shape (*cells, 2)."""
        if data.nbytes != self.nbytes:
            raise ValueError(f"the index of a shard has {self.nbytes:,} bytes, not {data.nbytes:,}")
        return self.index.decode(data, None, scratch).copy()


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array is stored.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    chain : Chain
        The codecs of a cell, and its shape.
    key : callable
        Returns the name of an object, given the index of a chunk, or of a shard.
    fill : scalar
        The elements of chunks that are not stored.
    shards : Shards or None
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chain: Chain
    key: Callable[[tuple[int, ...]], str]
    fill: Any
    shards: Shards | None

    @property
    def lends(self) -> bool:
        """Whether cells are objects that are decoded to the elements of the array."""
        return self.shards is None and self.chain.fills and self.chain.dtype == self.dtype


def layout_of_zarr(array: Any) -> Layout:
    """Return the layout of a Zarr array.

    Parameters
    ----------
    array : zarr.Array

    Raises
    ------
    NotSupported
        If only Zarr can read it; the message says why.
    """
    from zarr.core.buffer.cpu import NDBuffer
    from zarr.registry import get_ndbuffer_class

    if get_ndbuffer_class() is not NDBuffer:
        raise NotSupported("Zarr's own buffers, as it is configured")
    metadata, dtype = array.metadata, array.dtype
    shape, order = unit_of(metadata), "C"
    if shape is None:
        raise NotSupported("chunks of uneven sizes")
    fill = metadata.fill_value
    if fill is None:
        fill = metadata.dtype.default_scalar()
    shards = None
    if metadata.zarr_format == 2:
        codecs = [codec.get_config() for codec in metadata.filters or ()]
        codecs += [metadata.compressor.get_config()] if metadata.compressor else []
        configs: list[Config] = [(config["id"], config) for config in codecs]
        order = metadata.order
    else:
        configs = _named(codec.to_dict() for codec in metadata.codecs)
        if any(name == "sharding_indexed" for name, _ in configs):
            if len(configs) > 1:
                raise NotSupported("codecs around shards")
            config, unit = configs[0][1], shape
            shape = tuple(config["chunk_shape"])
            cells = tuple(n // m for n, m in zip(unit, shape, strict=True))
            shards, configs = _shards(config, cells), _named(config["codecs"])
    chain_of_cells = chain(configs, shape, dtype, order)
    return Layout(
        tuple(array.shape), dtype, chain_of_cells, metadata.encode_chunk_key, fill, shards
    )


def unit_of(metadata: Any) -> tuple[int, ...] | None:
    """Return the shape of a chunk or shard, which is one object; None if they are uneven."""
    if metadata.zarr_format == 2:
        return tuple(metadata.chunks)
    # As the file has it, because Zarr's classes of grids change.
    grid = metadata.chunk_grid.to_dict()
    return tuple(grid["configuration"]["chunk_shape"]) if grid["name"] == "regular" else None


def _named(codecs: Iterable[Mapping[str, Any]]) -> list[Config]:
    """Return the names and configurations of codecs of Zarr's format 3."""
    return [(codec["name"], codec.get("configuration") or {}) for codec in codecs]


def _shards(config: Mapping[str, Any], cells: tuple[int, ...]) -> Shards:
    shape, dtype = (*cells, 2), np.dtype("u8")
    index = chain(_named(config["index_codecs"]), shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    for step in index.steps:
        if step.nbytes is not None:
            raise NotSupported(f"an index of shards with the codec {step.name!r}")
        nbytes += 4
    begin = 0 if config["index_location"] == "start" else -nbytes
    return Shards(cells, index, begin, nbytes)


def place(places: Any, cell: tuple[int, ...], most: int) -> tuple[int, int] | None:
    """Return the offset and length of a cell of a shard; None if the shard does not have it."""
    offset, nbytes = (int(number) for number in places[cell])
    if offset == nbytes == ABSENT:
        return None
    if nbytes > most:
        raise ValueError(f"{nbytes:,} bytes are stored, and no more than {most:,} can be")
    return offset, nbytes
