"""Blosc as Zarr decodes it, of chunks whose headers are true.

The decoder believes the lengths in a chunk's header: it reads so many bytes, whether or not they
are there, and takes memory for so many. Both are looked at first. Importing this has all of this
process's Zarr arrays that are opened later decoded so.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numcodecs
import numpy as np
import zarr
from numcodecs.blosc import Blosc
from zarr.codecs import BloscCodec
from zarr.registry import register_codec

#: A header: versions and flags, then the length of what comes out, of blocks, and of the chunk.
_HEADER = struct.Struct("<4xIII")

#: Nothing longer comes out of Blosc.
_MOST_BYTES = 1 << 31


def require_true(chunk: Any, most: int) -> None:
    """Raise ValueError if the header of a chunk lies, or more than `most` bytes would come out."""
    data = memoryview(chunk)
    if data.nbytes < _HEADER.size:
        raise ValueError(f"Blosc's chunks have a header, and this has {data.nbytes} bytes")
    nbytes, _, length = _HEADER.unpack(data.cast("B")[: _HEADER.size])
    if length > data.nbytes:
        raise ValueError(f"Blosc's header says {length:,} bytes, and there are {data.nbytes:,}")
    if nbytes > most:
        raise ValueError(f"Blosc's header says {nbytes:,} bytes come out, and {most:,} fit in")


class TrueBlosc(Blosc):  # type: ignore[misc]
    """Blosc of Zarr's format 2, and of numcodecs.

    Attributes
    ----------
    most : int
        The bytes of a chunk of the array.
    """

    codec_id = "blosc"
    most = _MOST_BYTES

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the bytes of a chunk."""
        require_true(buf, self.most)
        return super().decode(buf, out)


class TrueBloscCodec(BloscCodec):  # type: ignore[misc]
    """Blosc of Zarr's format 3."""

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        nbytes = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        # There may be checksums in it.
        require_true(np.ascontiguousarray(chunk_bytes.as_numpy_array()), nbytes + 64)
        return await super()._decode_single(chunk_bytes, chunk_spec)


_NAME = f"{__name__}.{TrueBloscCodec.__name__}"
numcodecs.register_codec(TrueBlosc)
register_codec("blosc", TrueBloscCodec, qualname=_NAME)
zarr.config.set({"codecs.blosc": _NAME})
