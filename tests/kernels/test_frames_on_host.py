"""The decoders of kernels, compiled for the host: as the libraries, and within their memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numcodecs
import numpy as np
import pytest
from support import host_kernels

from dask_coop.files.gpu import frames_numba as headers

#: Bytes around an output, which stay as they are.
GUARD = 64

pytestmark = pytest.mark.skipif(host_kernels.COMPILER is None, reason="there is no compiler of C++")


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the library of the decoders."""
    return host_kernels.build(tmp_path_factory.mktemp("frames"))


def address(x: Any) -> Any:
    return ctypes.c_void_p(x.ctypes.data)


def of_zstd(decoders: Any, frame: Any, size: int) -> Any:
    """Return the content of a frame, None if it is refused, and "host" if it is left out."""
    data = np.zeros(frame.size + 16, "u1")
    data[: frame.size] = frame
    frames = np.array([[0, frame.size, 0, size, 0]])
    firsts, table = np.zeros(2, "i8"), np.zeros((1, len(headers.FIELDS)), "i8")
    blocks, literals, sequences = headers.blocks_of(data, frames, table, firsts)
    if blocks > len(table):
        table = np.zeros((blocks, table.shape[1]), "i8")
        assert headers.blocks_of(data, frames, table, firsts)[0] == blocks
    if blocks < 0:
        return "host"
    memory = [np.full(n + GUARD, 165, "u1") for n in (literals, 12 * sequences, size)]
    ends = np.zeros((blocks, 4), "u4")
    scratch = (address(memory[0]), address(memory[1]), address(ends))
    n, failed = ctypes.c_longlong(blocks), np.zeros(1, "i4")
    decoders.zstd_blocks_of(address(table), n, address(data), *scratch)
    outputs = np.array([[0, 0, size], [blocks, 0, 0]])
    decoders.zstd_frames_of(
        address(outputs),
        ctypes.c_longlong(1),
        address(table),
        address(data),
        *scratch,
        address(memory[2]),
        address(failed),
    )
    for buffer in memory:
        assert (buffer[-GUARD:] == 165).all()
    return None if failed[0] else memory[2][:size]


def of_lz4(decoders: Any, block: Any, size: int) -> Any:
    """Return the content of a block behind its size; None if it is refused."""
    if block.size < 4 or int(block[:4].view("u4")[0]) != size:
        return "host"
    data, out = block[4:].copy(), np.full(size + GUARD, 165, "u1")
    rows, failed = np.array([[0, data.size, 0, size, 0]]), np.zeros(1, "i4")
    n = ctypes.c_longlong(1)
    decoders.lz4_blocks_of(address(rows), n, address(data), address(out), address(failed))
    assert (out[-GUARD:] == 165).all()
    return None if failed[0] else out[:size]


def contents(rng: Any) -> Any:
    """Return bytes that compress in one way or another."""
    n = int(rng.choice([1, 5, 100, 4096, 65536, 300_001]))
    match rng.integers(6):
        case 0:
            x = np.round(rng.standard_normal(n // 4 + 1) * 20, 1).astype("f4").view("u1")
        case 1:
            x = rng.integers(0, 256, n)
        case 2:
            x = np.full(n, rng.integers(256))
        case 3:
            x = rng.integers(0, 4, n)
        case 4:
            x = np.cumsum(rng.integers(-3, 4, n // 2 + 1)).astype("i2").view("u1")
        case _:
            x = np.repeat(rng.integers(0, 256, n // 50 + 1), 50)
    return np.ascontiguousarray(x[:n].astype("u1"))


def damaged(frame: Any, rng: Any) -> Any:
    """Return a frame with some wrong bytes, or without its end."""
    frame = frame.copy()
    match rng.integers(5):
        case 0:
            return frame[: rng.integers(1, frame.size + 1)]
        case 1:
            frame[rng.integers(min(40, frame.size))] ^= 1 << rng.integers(8)
        case 2:
            places = rng.integers(0, frame.size, rng.integers(1, 20))
            frame[places] = rng.integers(0, 256, places.size)
        case 3:
            frame[rng.integers(frame.size)] ^= 1 << rng.integers(8)
        case _:
            begin = rng.integers(frame.size)
            frame[begin : begin + rng.integers(1, 64)] = rng.choice([0, 255])
    return frame


@pytest.mark.parametrize("name", ["zstd", "lz4"])
@pytest.mark.parametrize("seed", range(4))
def test_frames(decoders: Any, name: str, seed: int) -> None:
    """Contents of every kind and level, and 3,000 damaged frames in all."""
    rng = np.random.default_rng(seed)
    decode = {"zstd": of_zstd, "lz4": of_lz4}[name]
    accepted = refused = 0
    for _ in range(60):
        x = contents(rng)
        levels = {"level": int(rng.choice([-5, 1, 3, 9, 19]))} if name == "zstd" else {}
        codec = numcodecs.get_codec({"id": name, **levels})
        frame = np.frombuffer(codec.encode(x), "u1")
        np.testing.assert_array_equal(decode(decoders, frame, x.size), x)
        for _ in range(7):
            other, want = damaged(frame, rng), np.empty(x.size, "u1")
            try:
                codec.decode(other.tobytes(), want)
            except (RuntimeError, ValueError):
                want = None
            got = decode(decoders, other, x.size)
            if got is None:
                refused += 1
            elif not isinstance(got, str):
                # Never a content that the library does not find.
                assert want is not None
                np.testing.assert_array_equal(got, want)
                accepted += 1
    assert accepted > 20
    assert refused > 20


def test_chunks_of_blosc_are_described() -> None:
    """Rows of streams lie within the chunk, also of damaged ones, and make all of its bytes."""
    rng = np.random.default_rng(1)
    for turn in range(300):
        x = np.round(rng.standard_normal(70_000) * 9).astype(rng.choice(["i2", "f4", "f8"]))
        codec = numcodecs.Blosc(
            cname=str(rng.choice(["lz4", "zstd", "lz4hc"])),
            clevel=int(rng.integers(0, 9)),
            shuffle=int(rng.integers(0, 2)),
        )
        chunk = np.frombuffer(codec.encode(x), "u1")
        chunk = damaged(chunk, rng) if turn % 2 else chunk
        data, rows = np.concatenate([chunk, np.zeros(16, "u1")]), np.zeros((4000, 5), "i8")
        chunks = np.array([[0, chunk.size, 0, x.nbytes, 0]])
        n, codec_of, block = headers.streams_of(data, chunks, x.itemsize, rows)
        if n < 0:
            assert turn % 2
            continue
        rows = rows[:n]
        assert (rows[:, headers.BEGIN] >= 0).all()
        assert (rows[:, headers.END] <= chunk.size).all()
        assert (rows[:, headers.BEGIN] <= rows[:, headers.END]).all()
        targets = rows[:, headers.TARGET]
        assert (targets + rows[:, headers.SIZE] <= x.nbytes).all()
        if not turn % 2:
            assert rows[:, headers.SIZE].sum() == x.nbytes
            assert codec_of in (headers.LZ4, headers.ZSTD, headers.LEFT_OUT)
            assert block >= 0
