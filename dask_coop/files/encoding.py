"""Encode chunks of elements, by the codecs of a chain in the order opposite to decoding.

    chunk -> [transpose] -> [delta, scale and offset] -> elements -> [shuffle]
          -> [Zstd, Blosc, LZ4, zlib or gzip] -> [crc32c] -> bytes of the store

The encoders are those of numcodecs and zlib, which release the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dask_coop.files.codecs import Bytes, Chain, Step

#: Zarr's format 3 has words for the numbers of Blosc's shuffles.
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}

#: Returns the buffer of a number, of so many bytes.
Scratch = Callable[[int, int], Bytes]


class Encoder:
    """The encoder of the cells of an array.

    Parameters
    ----------
    chain : Chain
    fill : scalar
        The elements of a cell behind the end of the array.
    """

    def __init__(self, chain: Chain, fill: Any) -> None:
        self._chain, self._fill = chain, fill
        width = chain.stored.itemsize
        self._steps = [_encoder(step, width) for step in reversed(chain.steps)]
        self._places = np.argsort(chain.axes)

    def encode(self, elements: Any, scratch: Scratch) -> Any:
        """Return the stored bytes of a cell, a bytes-like object.

        It may be a view of `elements`.

        Parameters
        ----------
        elements : array
            Those of the cell that are within the array.
        scratch : callable
        """
        chain = self._chain
        data = self._flat(elements, scratch)
        for codec in reversed(chain.filters):
            data = codec.encode(data)
        data = np.ascontiguousarray(data).view(chain.stored)
        if data.nbytes != chain.nbytes:
            raise ValueError(f"filters made {data.nbytes:,} bytes instead of {chain.nbytes:,}")
        for encode in self._steps:
            data = encode(data)
        return data if isinstance(data, bytes) else data.view("u1")

    def _flat(self, elements: Any, scratch: Scratch) -> Any:
        """Return the elements of a whole cell in the order and the byte order of the store."""
        chain = self._chain
        turned = elements.transpose(chain.axes)
        is_whole = elements.shape == chain.shape and elements.dtype == chain.dtype
        if is_whole and turned.flags.c_contiguous:
            return turned.reshape(-1)
        # Without codecs the buffer itself is what is written, maybe after others are made.
        nbytes = turned.dtype.itemsize * int(np.prod(chain.shape))
        room = scratch(0, nbytes) if self._steps else np.empty(nbytes, "u1")
        flat = room.view(chain.dtype)
        cell = flat.reshape([chain.shape[axis] for axis in chain.axes]).transpose(self._places)
        if elements.shape != chain.shape:
            cell[...] = self._fill
        cell[tuple(map(slice, elements.shape))] = elements
        return flat


def _encoder(step: Step, width: int) -> Callable[[Any], Any]:
    """Return the function that encodes elements of `width` bytes, or the bytes of a step before."""
    if step.name == "crc32c":
        return _with_crc32c
    import numcodecs

    config: Mapping[str, Any] = {**step.config, "id": step.name}
    if step.name == "shuffle":
        config = {**config, "elementsize": config.get("elementsize") or width}
    if step.name == "blosc":
        config = {**config, "shuffle": _SHUFFLES.get(config["shuffle"], config["shuffle"])}
    encode: Callable[[Any], Any] = numcodecs.get_codec(config).encode
    return encode


def _with_crc32c(data: Any) -> bytes:
    """Return bytes with their checksum behind them (RFC 3720)."""
    import google_crc32c

    content = data if isinstance(data, bytes) else data.tobytes()
    checksum: int = google_crc32c.value(content)
    return content + checksum.to_bytes(4, "little")


def is_fill(elements: Any, fill: Any) -> bool:
    """Return whether all elements have the bits of the fill value, or are NaN as it is."""
    dtype = elements.dtype
    if dtype.kind == "c":
        return is_fill(elements.real, fill.real) and is_fill(elements.imag, fill.imag)
    if dtype.kind == "f" and fill != fill:
        first, are_equal = np.isnan(elements[(0,) * elements.ndim]), np.isnan
        return bool(first) and bool(are_equal(elements).all())
    value = np.asarray(fill, dtype)
    if dtype.kind in "fmM":
        # -0.0 is not 0.0, and NaT is NaT.
        bits = np.dtype(f"u{dtype.itemsize}").newbyteorder(dtype.byteorder)
        elements, value = elements.view(bits), value.view(bits)
    if elements[(0,) * elements.ndim] != value:
        return False
    return bool((elements == value).all())
