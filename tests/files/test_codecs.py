"""Decoders fill buffers of a known size, or say what is wrong, and touch nothing else."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numcodecs
import numpy as np
import pytest

from dask_coop.errors import NotSupported
from dask_coop.files import codecs
from dask_coop.files.codecs import chain

WORDS = np.frombuffer(b"to be or not to be, " * 50, "u1")


def bytes_of(data: Any) -> Any:
    return np.frombuffer(data, "u1")


def frame(content: bytes, size: int | None) -> bytes:
    """Return a frame of Zstd with one block that is not compressed; None leaves out its size."""
    head = b"\0\x38" if size is None else b"\xa0" + size.to_bytes(4, "little")
    block = (len(content) << 3 | 1).to_bytes(3, "little")
    return bytes.fromhex("28b52ffd") + head + block + content


inflate_zlib = partial(codecs.inflate, window=15)
inflate_gzip = partial(codecs.inflate, window=31)
unshuffle = partial(codecs.unshuffle, size=4)

ENCODED: dict[str, tuple[Callable[..., Any], bytes]] = {
    "zstd": (codecs.decode_zstd, numcodecs.Zstd().encode(WORDS)),
    "zstd without size": (codecs.decode_zstd, frame(WORDS.tobytes(), None)),
    "zstd twice": (codecs.decode_zstd, frame(b"to be", 5) + frame(WORDS[5:].tobytes(), 995)),
    "zstd twice, one without": (
        codecs.decode_zstd,
        frame(b"to be", 5) + frame(WORDS[5:].tobytes(), None),
    ),
    "zstd behind what is skipped": (
        codecs.decode_zstd,
        bytes.fromhex("502a4d1803000000616263") + frame(WORDS.tobytes(), 1000),
    ),
    "lz4": (codecs.decode_lz4, numcodecs.LZ4().encode(WORDS)),
    "blosc": (codecs.decode_blosc, numcodecs.Blosc().encode(WORDS)),
    "blosc, copied": (codecs.decode_blosc, numcodecs.Blosc(clevel=0).encode(WORDS)),
    "zlib": (inflate_zlib, zlib.compress(WORDS)),
    "gzip": (inflate_gzip, gzip.compress(WORDS)),
    "gzip with zeros behind": (inflate_gzip, gzip.compress(WORDS) + bytes(9)),
    "gzip of members": (inflate_gzip, gzip.compress(b"to be") + gzip.compress(WORDS[5:])),
    "shuffle": (unshuffle, numcodecs.Shuffle(4).encode(WORDS).tobytes()),
}


@pytest.mark.parametrize("name", ENCODED)
def test_decoders_fill_the_buffer_and_nothing_else(name: str) -> None:
    decode, data = ENCODED[name]
    memory = np.full(3000, 7, "u1")
    decode(bytes_of(data), memory[1000:2000])
    np.testing.assert_array_equal(memory[1000:2000], WORDS)
    assert (memory[:1000] == 7).all()
    assert (memory[2000:] == 7).all()


@pytest.mark.parametrize("nbytes", [0, 1, 996, 999, 1001, 1004, 5000])
@pytest.mark.parametrize("name", ENCODED)
def test_another_size_is_refused_and_nothing_else_touched(name: str, nbytes: int) -> None:
    decode, data = ENCODED[name]
    memory = np.full(8000, 7, "u1")
    with pytest.raises((ValueError, RuntimeError)):
        decode(bytes_of(data), memory[1000 : 1000 + nbytes])
    assert (memory[:1000] == 7).all()
    assert (memory[1000 + nbytes :] == 7).all()


@pytest.mark.parametrize("name", ENCODED)
def test_what_is_cut_off_is_refused(name: str) -> None:
    decode, data = ENCODED[name]
    # Zeros behind a gzip file are none of it.
    whole = len(data) - 9 if "zeros" in name else len(data)
    for n in {0, 1, 3, 5, 17, whole // 2, whole - 1}:
        with pytest.raises((ValueError, RuntimeError, zlib.error)):
            decode(bytes_of(data[:n]), np.empty(1000, "u1"))


def test_bombs_are_refused_in_little_memory() -> None:
    zeros = bytes(16 << 20)
    block = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    bombs: list[tuple[Callable[..., Any], bytes]] = [
        (inflate_zlib, zlib.compress(zeros)),
        (inflate_gzip, gzip.compress(zeros)),
        (codecs.decode_zstd, bytes.fromhex("28b52ffd0038") + block * 4000),
        (codecs.decode_lz4, (2**31 - 1).to_bytes(4, "little") + b"\xff" * 1000),
        (codecs.decode_blosc, bytes.fromhex("02012104ffffff7f0000100014000000") + bytes(4)),
    ]
    tracemalloc.start()
    try:
        for decode, data in bombs:
            with pytest.raises((ValueError, RuntimeError)):
                decode(bytes_of(data), np.empty(1000, "u1"))
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()


def test_inflating_takes_little_memory_besides() -> None:
    content = np.arange(4 << 20, dtype="u1")
    data, out = bytes_of(gzip.compress(content)), np.empty(4 << 20, "u1")
    tracemalloc.start()
    inflate_gzip(data, out)
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()
    np.testing.assert_array_equal(out, content)


def test_very_many_members_take_no_time_of_their_square() -> None:
    data = gzip.compress(b"") * 5_000 + gzip.compress(WORDS)
    out = np.empty(1000, "u1")
    inflate_gzip(bytes_of(data), out)
    np.testing.assert_array_equal(out, WORDS)


def test_blosc_headers_that_lie() -> None:
    data = numcodecs.Blosc("lz4", blocksize=64).encode(WORDS)
    for at, number in [(4, 1 << 30), (8, 0), (8, 1 << 31), (12, 1 << 30), (12, 0), (16, 1 << 30)]:
        lying = bytes(data[:at]) + number.to_bytes(4, "little") + bytes(data[at + 4 :])
        with pytest.raises((ValueError, RuntimeError)):
            codecs.decode_blosc(bytes_of(lying), np.empty(1000, "u1"))


def test_checksums() -> None:
    data = bytes_of(b"123456789" + (0xE3069283).to_bytes(4, "little"))
    assert codecs.check_crc32c(data).tobytes() == b"123456789"
    for n in range(13):
        with pytest.raises(ValueError, match="checksum"):
            codecs.check_crc32c(data[:n])


def test_chains_that_are_not_supported() -> None:
    for given, why in [
        ([("lzma", {})], "the codec 'lzma'"),
        ([("bytes", {}), ("zstd", {}), ("shuffle", {"elementsize": 4})], "behind another one"),
        ([("bytes", {}), ("transpose", {"order": (0,)})], "the codec 'transpose'"),
        ([("bytes", {}), ("shuffle", {"elementsize": 7})], "elements of 7 bytes"),
    ]:
        with pytest.raises(NotSupported, match=why):
            chain(given, (10,), np.dtype("f4"))
    for dtype in ("O", "V3", "S0"):
        with pytest.raises(NotSupported, match="dtype"):
            chain([], (10,), np.dtype(dtype))


def test_no_step_writes_where_it_reads() -> None:
    """Views between steps must not make two of them share a buffer."""
    steps = [("bytes", {}), *[("shuffle", {"elementsize": 4}), ("crc32c", {})] * 2]
    x = np.arange(100, dtype="f4")
    made = chain(steps, (100,), x.dtype)
    data = x.view("u1")
    import google_crc32c

    for name, _ in steps[1:]:
        if name == "shuffle":
            data = numcodecs.Shuffle(4).encode(data)
        else:
            data = np.append(data, bytes_of(google_crc32c.value(data).to_bytes(4, "little")))
    buffers = {number: np.zeros(1000, "u1") for number in range(3)}
    buffers[0][: data.size] = data

    def scratch(number: int, nbytes: int) -> Any:
        return buffers[number][:nbytes]

    got = made.decode(buffers[0][: data.size], None, scratch)
    np.testing.assert_array_equal(got, x)
    assert made.names == "crc32c, shuffle, crc32c, shuffle"
    assert not made.is_plain
