"""Decode stored chunks, each into a buffer whose size is known before.

A chain undoes the codecs of a chunk in the order of decoding::

    bytes of the store -> [crc32c] -> [Zstd, Blosc, LZ4, zlib or gzip] -> [shuffle] -> elements
                       -> [delta, scale and offset] -> [transpose] -> chunk

Decoders are those of numcodecs and zlib, which release the interpreter's lock. A chain knows how
many bytes each of them has to make, and none makes more: what a frame says of itself is compared
with that first.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dask_coop.errors import NotSupported

#: Bytes, an array of uint8.
Bytes = np.ndarray[Any, Any]
#: The name of a codec, as in Zarr's metadata, and its configuration.
Config = tuple[str, Mapping[str, Any]]

#: Dtypes whose elements are their bytes.
_PLAIN_KINDS = "biufcmMSU"

#: A header of Blosc: versions and flags, then bytes of the decoded data, of a block, of the chunk.
_BLOSC = struct.Struct("<4xIII")
_ZSTD_MAGIC = 0xFD2FB528
#: Codecs of numcodecs that Zarr's format 3 names with a prefix.
_OF_NUMCODECS = {"zstd", "lz4", "blosc", "zlib", "gzip", "shuffle", "delta", "fixedscaleoffset"}
#: Bits of zlib's windows, for the headers of both formats.
_WINDOWS = {"zlib": 15, "gzip": 31}
#: Bytes of headers and checksums, at most.
_OVERHEAD = 64 << 10
#: As many bytes are inflated at a time, and as many come out.
_PORTION, _INFLATED = 128 << 10, 1 << 20


def _wrong(size: int, out: Bytes) -> ValueError:
    return ValueError(f"decoding yields {size:,} bytes or more, and must yield {out.nbytes:,}")


def decode_zstd(data: Bytes, out: Bytes) -> None:
    """Fill `out` with the content of Zstd frames (RFC 8878)."""
    from numcodecs.zstd import decompress

    size = _zstd_content(data)
    if size > out.nbytes:
        raise _wrong(size, out)
    if 0 <= size < out.nbytes:
        # There may be several frames; the decoder refuses a buffer smaller than all of them.
        try:
            decompress(data, out[:-1])
        except (RuntimeError, ValueError):
            pass
        else:
            raise _wrong(size, out)
    decompress(data, out)


def _zstd_content(data: Bytes) -> int:
    """Return how many bytes the first frame says come out; -1 if it does not."""
    head = data[:18].tobytes()
    if len(head) < 6 or int.from_bytes(head[:4], "little") != _ZSTD_MAGIC:
        return 0
    flags = head[4]
    single, width = flags >> 5 & 1, flags >> 6
    if not width and not single:
        return -1
    start = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    nbytes = 1 << width
    size = int.from_bytes(head[start : start + nbytes], "little")
    return size + 256 if width == 1 else size


def decode_lz4(data: Bytes, out: Bytes) -> None:
    """Fill `out` from a block of LZ4 behind its size, as numcodecs writes it."""
    from numcodecs.lz4 import decompress

    if (size := int.from_bytes(data[:4].tobytes(), "little")) != out.nbytes:
        raise _wrong(size, out)
    decompress(data, out)


def decode_blosc(data: Bytes, out: Bytes) -> None:
    """Fill `out` from a chunk of Blosc, whose decoder trusts the lengths in the header."""
    from numcodecs.blosc import decompress

    if data.nbytes < _BLOSC.size:
        raise ValueError(f"it has {data.nbytes} bytes, and a header of Blosc's has {_BLOSC.size}")
    nbytes, _, length = _BLOSC.unpack(data[: _BLOSC.size].tobytes())
    if length > data.nbytes:
        raise ValueError(
            f"its header says that {length:,} bytes are stored, but there are only {data.nbytes:,}"
        )
    if nbytes != out.nbytes:
        raise _wrong(nbytes, out)
    decompress(data, out)


def inflate(data: Bytes, out: Bytes, window: int) -> None:
    """Fill `out` from a stream of zlib, or the members of a gzip file (RFC 1950, RFC 1952)."""
    source, taken, position = data.data, 0, 0
    decoder = zlib.decompressobj(window)
    # In portions, because the decoder copies what lies behind a member, and what it has made.
    while not decoder.eof:
        fed = source[taken : taken + _PORTION]
        # One byte more shows that the stream goes on.
        content = decoder.decompress(fed, min(out.nbytes - position + 1, _INFLATED))
        if not fed and not content:
            raise ValueError("its stream ends early")
        if position + len(content) > out.nbytes:
            raise _wrong(position + len(content), out)
        out[position : position + len(content)] = np.frombuffer(content, "u1")
        position += len(content)
        taken += len(fed) - len(decoder.unconsumed_tail) - len(decoder.unused_data)
        # A gzip file may have several members, and zeros behind them.
        if decoder.eof and window == _WINDOWS["gzip"] and data[taken:].any():
            decoder = zlib.decompressobj(window)
    if position < out.nbytes:
        raise _wrong(position, out)


def unshuffle(data: Bytes, out: Bytes, size: int) -> None:
    """Fill `out` with elements of `size` bytes, whose bytes `data` has side by side."""
    from numcodecs.shuffle import Shuffle

    # The decoder would write behind a buffer that is smaller.
    if data.nbytes != out.nbytes:
        raise _wrong(data.nbytes, out)
    Shuffle(size).decode(data, out)


def check_crc32c(data: Bytes) -> Bytes:
    """Return `data` without the checksum at its end (RFC 3720)."""
    import google_crc32c

    if data.nbytes < 4:
        raise ValueError(f"it has {data.nbytes} bytes, and a checksum has 4")
    content, stored = data[:-4], int.from_bytes(data[-4:].tobytes(), "little")
    if (computed := google_crc32c.value(content)) != stored:
        raise ValueError(f"its checksum is {stored:#010x}, and that of its bytes {computed:#010x}")
    return content


def check_fletcher32(data: Bytes) -> Bytes:
    """Return `data` without the checksum that HDF5 puts at its end."""
    from numcodecs.fletcher32 import Fletcher32

    return np.frombuffer(Fletcher32().decode(data), "u1")


@dataclass(frozen=True, slots=True)
class Step:
    """A codec of bytes.

    Attributes
    ----------
    name : str
    decode : callable
        Fills a buffer; or, if `nbytes` is None, returns a view.
    nbytes : int or None
        How many bytes come out.
    config : mapping
        As in Zarr's metadata, to encode with.
    """

    name: str
    decode: Callable[..., Any]
    nbytes: int | None
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chain:
    """The codecs of the chunks of an array.

    Attributes
    ----------
    shape : tuple of int
        Of a chunk.
    steps : tuple of Step
        Codecs of bytes, in the order of decoding.
    nbytes : int
        What comes out of them.
    stored : numpy.dtype
        The elements that these bytes are.
    filters : tuple
        Codecs of numcodecs for elements in a row, in the order of decoding.
    dtype : numpy.dtype
        The elements that come out of the filters.
    axes : tuple of int
        How the axes of the array lie in a stored chunk, from the outermost to the innermost.
    """

    shape: tuple[int, ...]
    steps: tuple[Step, ...]
    nbytes: int
    stored: np.dtype[Any]
    filters: tuple[Any, ...]
    dtype: np.dtype[Any]
    axes: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the stored bytes are those of the elements."""
        return not self.steps and not self.filters

    @property
    def most(self) -> int:
        """The most bytes that can be stored of a chunk: no codec here makes twice as many."""
        return 2 * max([self.nbytes, *(step.nbytes or 0 for step in self.steps)]) + _OVERHEAD

    @property
    def fills(self) -> bool:
        """Whether the last codec can write the elements where they are to be."""
        return not self.filters and self.axes == tuple(range(len(self.shape)))

    @property
    def names(self) -> str:
        """The names of codecs, in the order of decoding."""
        names = [step.name for step in self.steps]
        names += [type(codec).codec_id for codec in self.filters]
        return ", ".join(names) or "no codec"

    def decode(self, data: Bytes, out: Bytes | None, scratch: Callable[[int, int], Bytes]) -> Any:
        """Return a decoded chunk.

        Parameters
        ----------
        data : array of uint8
            The stored bytes.
        out : array of uint8, optional
            Where its bytes are to be, if the chain `fills` it.
        scratch : callable
            Returns the buffer of a number, of so many bytes; `data` may be in the buffer 0.

        Raises
        ------
        ValueError
            If `data` are not such a chunk; the message has the codec and the reason.
        """
        number = 1
        for step in self.steps:
            try:
                if step.nbytes is None:
                    data = step.decode(data)
                    continue
                is_last = step is self.steps[-1]
                target = out if out is not None and is_last else scratch(number, step.nbytes)
                step.decode(data, target)
                # Views leave the number, so that no step writes where it reads.
                data, number = target, 3 - number
            except MemoryError:
                raise
            except Exception as error:
                raise ValueError(f"{step.name}: {error}") from error
        if data.nbytes != self.nbytes:
            raise ValueError(f"it has {data.nbytes:,} bytes, and should have {self.nbytes:,}")
        if out is not None:
            if data is not out:
                out[:] = data
            return out
        elements = data.view(self.stored)
        for codec in self.filters:
            elements = codec.decode(elements)
        turned = elements.view(self.dtype).reshape([self.shape[axis] for axis in self.axes])
        return turned.transpose(np.argsort(self.axes))


def chain(
    codecs: Iterable[Config], shape: tuple[int, ...], dtype: np.dtype[Any], order: str = "C"
) -> Chain:
    """Return the chain that undoes codecs.

    Parameters
    ----------
    codecs : iterable of (str, mapping)
        In the order of encoding, as in Zarr's metadata.
    shape, dtype
        Of the chunks.
    order : {"C", "F"}
        The order of the elements.

    Raises
    ------
    NotSupported
        If it has a codec that none here undoes, or one in a place of its own.
    """
    if dtype.kind not in _PLAIN_KINDS or not dtype.itemsize or not all(shape):
        raise NotSupported(f"elements of dtype {dtype}")
    axes = tuple(range(len(shape)))
    axes = axes[::-1] if order == "F" else axes
    filters: list[Any] = []
    steps: list[Step] = []
    elements, n = dtype, math.prod(shape)
    nbytes: int | None = None
    for name, config in codecs:
        if name.removeprefix("numcodecs.") in _OF_NUMCODECS:
            name = name.removeprefix("numcodecs.")
        if nbytes is None and not steps and name == "transpose" and not filters:
            axes = tuple(axes[axis] for axis in config["order"])
        elif nbytes is None and not steps and name == "bytes":
            elements = _with_order(elements, config.get("endian"))
            if filters and not elements.isnative:
                raise NotSupported("filters of elements in another byte order")
            dtype = dtype if filters else elements
            nbytes = n * elements.itemsize
        elif not steps and name in ("delta", "fixedscaleoffset"):
            codec = _filter(name, config, elements)
            filters.append(codec)
            elements, nbytes = codec.astype, None if nbytes is None else n * codec.astype.itemsize
        else:
            size = n * elements.itemsize if nbytes is None and not steps else nbytes
            step, nbytes = _step(name, config, size, elements)
            steps.append(step)
    return Chain(
        shape,
        tuple(reversed(steps)),
        n * elements.itemsize,
        elements,
        tuple(reversed(filters)),
        dtype,
        axes,
    )


def _step(
    name: str, config: Mapping[str, Any], size: int | None, elements: np.dtype[Any]
) -> tuple[Step, int | None]:
    """Return the decoder of a codec, and the size of `size` bytes encoded, None if unknown."""
    checks = {"crc32c": check_crc32c, "fletcher32": check_fletcher32}
    if name in checks and "id" not in config:
        return Step(name, checks[name], None, config), None if size is None else size + 4
    if size is None:
        raise NotSupported(f"the codec {name!r} behind another one that compresses")
    if name == "shuffle":
        width = config.get("elementsize") or elements.itemsize
        if size % width:
            raise NotSupported(f"elements of {width} bytes to shuffle in {size:,}")
        return Step(name, partial(unshuffle, size=width), size, config), size
    decoders = {"zstd": decode_zstd, "lz4": decode_lz4, "blosc": decode_blosc}
    if name in _WINDOWS:
        return Step(name, partial(inflate, window=_WINDOWS[name]), size, config), None
    if name in decoders:
        return Step(name, decoders[name], size, config), None
    raise NotSupported(f"the codec {name!r}")


def _with_order(dtype: np.dtype[Any], endian: Any) -> np.dtype[Any]:
    """Return a dtype with the order of bytes that Zarr's metadata say."""
    if endian is None:
        return dtype
    return dtype.newbyteorder("<" if getattr(endian, "value", endian) == "little" else ">")


def _filter(name: str, config: Mapping[str, Any], elements: np.dtype[Any]) -> Any:
    """Return the codec of numcodecs that makes `elements`."""
    import numcodecs

    codec = numcodecs.get_codec({"dtype": elements.str, **config, "id": name})
    if codec.dtype != elements or codec.astype.kind not in _PLAIN_KINDS:
        raise NotSupported(f"the codec {name!r} of dtype {codec.dtype} for {elements}")
    return codec
