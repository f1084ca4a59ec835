"""Check the headers of Blosc chunks before Zarr decodes them.

The decoder trusts the lengths in a chunk's header: it reads and allocates that many bytes, whether
or not they exist. Importing this module replaces Blosc's codecs for all Zarr arrays that this
process opens later by ones that check both lengths.
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

#: A header: versions and flags, then the bytes of the decoded data, of a block, and of the chunk.
_HEADER = struct.Struct("<4xIII")

#: The most bytes that Blosc can decode.
_MOST_BYTES = 1 << 31


def require_true(chunk: Any, most: int) -> None:
    """Raise ValueError if a chunk's header is false, or its decoded data exceed `most` bytes."""
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
        Bytes of a decoded chunk of the array.
    """

    codec_id = "blosc"
    most = _MOST_BYTES

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the decoded bytes of a chunk."""
        require_true(buf, self.most)
        return super().decode(buf, out)


class TrueBloscCodec(BloscCodec):  # type: ignore[misc]
    """Blosc of Zarr's format 3."""

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        nbytes = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        # Room for checksums, which codecs may append.
        require_true(np.ascontiguousarray(chunk_bytes.as_numpy_array()), nbytes + 64)
        return await super()._decode_single(chunk_bytes, chunk_spec)


_NAME = f"{__name__}.{TrueBloscCodec.__name__}"
numcodecs.register_codec(TrueBlosc)
register_codec("blosc", TrueBloscCodec, qualname=_NAME)
zarr.config.set({"codecs.blosc": _NAME})
