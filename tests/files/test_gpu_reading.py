"""Stored arrays decoded by kernels have the values that Zarr reads, on a GPU and on the host."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from support import host_kernels

import dask_coop as dc
from dask_coop.files import stored
from dask_coop.files.gpu import rules

zarr = pytest.importorskip("zarr")

RNG = np.random.default_rng(5)
#: An array of some MiB, whose chunks end beyond it.
SHAPE, CHUNKS, SHARDS = (195, 63, 250), (50, 32, 64), (100, 64, 128)

CODECS: dict[str, Any] = {
    "Zstd": "ZstdCodec",
    "Blosc LZ4": ("BloscCodec", {"cname": "lz4", "shuffle": "shuffle"}),
    "Blosc LZ4HC without shuffle": ("BloscCodec", {"cname": "lz4hc", "shuffle": "noshuffle"}),
    "Blosc Zstd": ("BloscCodec", {"cname": "zstd", "shuffle": "shuffle", "clevel": 3}),
}


def compressors(name: str) -> Any:
    """Return the compressors of Zarr's format 3 by a name."""
    kind = CODECS[name]
    kind, options = kind if isinstance(kind, tuple) else (kind, {})
    return [getattr(zarr.codecs, kind)(**options)]


def numbers(dtype: Any, shape: tuple[int, ...] = SHAPE) -> Any:
    """Return numbers that compress somewhat."""
    dtype = np.dtype(dtype)
    x = np.round(np.cumsum(RNG.standard_normal(shape), axis=-1) * 10)
    if dtype.kind == "c":
        return (x + 1j * x[::-1]).astype(dtype)
    return (x % 2 > 0 if dtype.kind == "b" else np.abs(x) if dtype.kind == "u" else x).astype(dtype)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the kernels, compiled for the host."""
    if host_kernels.COMPILER is None:
        pytest.skip("there is no compiler of C++")
    return host_kernels.build(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that reads onto the GPU, or one whose GPU is this host."""
    if request.param == "host":
        names = [f"dask_coop.files.gpu.{name}" for name in ("decoding", "reading")]
        for name, module in host_kernels.modules(request.getfixturevalue("library")).items():
            monkeypatch.setitem(sys.modules, name, module)
        for name in names:
            monkeypatch.delitem(sys.modules, name, raising=False)
        for name in ("decoding", "reading"):
            monkeypatch.delattr(f"dask_coop.files.gpu.{name}", raising=False)
        devices = importlib.import_module("dask_coop.cuda.devices")
        monkeypatch.setattr(devices, "device", lambda ordinal: devices.usual("sm_90"))
    module = importlib.import_module("dask_coop.files.gpu.reading")
    yield module
    if request.param == "host":
        for name in ("decoding", "reading"):
            sys.modules.pop(f"dask_coop.files.gpu.{name}", None)
            vars(importlib.import_module("dask_coop.files.gpu")).pop(name, None)


def read_there(reading: Any, array: Any, *index: slice) -> tuple[Any, Any]:
    """Return elements as a GPU reads them, None if it does not, and as Zarr reads them."""
    source = stored.StoredArray(array, 8)
    assert source._layout is not None
    taken = stored.selected(index, source.shape)
    assert taken is not None
    return reading.read(source.source, source._layout, taken[0]), array[index]


@pytest.mark.each(2)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["u1", ">f4", "f8", "c16", "bool"])
@pytest.mark.parametrize("shards", [None, SHARDS])
def test_decoded_there(reading: Any, codec: str, dtype: str, shards: Any) -> None:
    """All of an array, and a box of it."""
    x = numbers(dtype)
    endian = {"serializer": zarr.codecs.BytesCodec(endian="big")} if dtype[0] == ">" else {}
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=SHAPE,
        chunks=CHUNKS,
        shards=shards,
        dtype=np.dtype(dtype).newbyteorder("="),
        compressors=compressors(codec),
        **endian,
    )
    array[:] = x
    for index in ((), (slice(3, 193), slice(1, 62), slice(5, 249))):
        got, want = read_there(reading, array, *index)
        assert got is not None
        assert got.dtype == want.dtype.newbyteorder("=")
        np.testing.assert_array_equal(got.get(), want)


@pytest.fixture(autouse=True)
def always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode few cells, too, where the host would take less time."""
    monkeypatch.setattr(rules, "fewest_bytes", lambda chain: 1)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_format_2(reading: Any, order: Any, shuffled: bool, name: str) -> None:
    """Filters, orders and missing chunks of format 2."""
    import numcodecs

    filters = [numcodecs.Shuffle(4)] if shuffled else None
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=SHAPE,
        chunks=CHUNKS,
        dtype="i4",
        order=order,
        filters=filters,
        compressors=numcodecs.get_codec({"id": name}),
        zarr_format=2,
        fill_value=-7,
    )
    array[:150] = numbers("i4")[:150]
    got, want = read_there(reading, array)
    if name == "lz4" and array.chunks and np.prod(array.chunks) * 4 > 256 << 10:
        assert got is None
    else:
        np.testing.assert_array_equal(got.get(), want)


def test_checked_frames(reading: Any) -> None:
    """Frames behind checksums are checked by the host, and decoded there."""
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=SHAPE,
        chunks=CHUNKS,
        dtype="f4",
        compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
    )
    array[:] = numbers("f4")
    got, want = read_there(reading, array)
    np.testing.assert_array_equal(got.get(), want)


@pytest.mark.gpu
def test_public_functions_decode_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`to_gpu` of a stored array, by Dask's threads and by Node, and what is kept."""
    cupy = pytest.importorskip("cupy")
    from dask_coop.files.gpu import reading

    x = numbers("f4")
    array = zarr.create_array(tmp_path / "x", data=x, chunks=CHUNKS, shards=SHARDS)
    decoded = []
    read = reading.read
    monkeypatch.setattr(reading, "read", lambda *args: decoded.append(got := read(*args)) or got)
    lazy = dc.to_gpu(dc.from_zarr(str(tmp_path / "x"), chunks=(200, 64, 128)), keep=False)
    np.testing.assert_allclose(float(dc.sum(lazy).compute()), x.sum(dtype="f8"), rtol=1e-6)
    assert decoded
    assert all(type(got) is cupy.ndarray for got in decoded if got is not None)
    assert any(got is not None for got in decoded)
    with dc.Node():
        np.testing.assert_allclose(float(dc.sum(lazy).compute()), x.sum(dtype="f8"), rtol=1e-6)
        np.testing.assert_array_equal(dask.compute(lazy)[0].get(), x)
    assert array.shape == x.shape


@pytest.mark.gpu
def test_an_installed_library_decodes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of xarray, by code that does not name this library."""
    xr = pytest.importorskip("xarray")
    from dask_coop.files.gpu import reading

    x = numbers("f4")
    dims = ("t", "y", "x")
    encoding = {"v": {"chunks": CHUNKS}}
    xr.Dataset({"v": (dims, x)}).to_zarr(tmp_path / "x", encoding=encoding, consolidated=False)
    decoded = []
    read = reading.read
    monkeypatch.setattr(reading, "read", lambda *args: decoded.append(got := read(*args)) or got)
    with dc.installed(chunks="cupy"):
        lazy = xr.open_zarr(tmp_path / "x", consolidated=False).v.std("t")
        found = lazy.compute()
    assert any(got is not None for got in decoded)
    np.testing.assert_allclose(found, x.astype("f8").std(0), rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "encoding",
    [
        {"dtype": "i2", "scale_factor": 0.01, "add_offset": 3.25, "_FillValue": -999},
        {"dtype": "i2", "scale_factor": np.float32(0.1), "_FillValue": -999},
        {"dtype": "u1", "add_offset": np.float32(0.5), "_FillValue": 255},
    ],
)
def test_packed_numbers(tmp_path: Path, encoding: dict[str, Any]) -> None:
    """xarray's packed numbers are unpacked there, to the same bits."""
    xr = pytest.importorskip("xarray")
    from dask_coop.api.call.reading import read_by_us
    from dask_coop.files.gpu import reading

    values = np.round(RNG.uniform(1, 100, (4000, 2000)), 1)
    values[::7, ::3] = np.nan
    data = xr.Dataset({"t": (("y", "x"), values)})
    options = {**encoding, "chunks": (500, 500)}
    data.to_zarr(tmp_path / "t", encoding={"t": options}, consolidated=False)
    opened = xr.open_zarr(tmp_path / "t", chunks={"y": 4000, "x": 2000}, consolidated=False)
    want = opened.t.values
    unpacked = []
    with pytest.MonkeyPatch.context() as patch:
        unpack = reading.unpack
        patch.setattr(reading, "unpack", lambda *args: unpacked.append(1) or unpack(*args))
        got = dc.to_gpu(read_by_us(opened.t.data)).compute(scheduler="sync").get()
    assert unpacked
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.view("u1"), want.view("u1"))


@pytest.mark.parametrize("codec", ["Zstd", "Blosc LZ4", "Blosc Zstd"])
def test_damaged_frames(reading: Any, codec: str) -> None:
    """A frame that lies never gives other values than the host's, and the GPU goes on."""
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(
        store,
        shape=(4, 256 << 10),
        chunks=(1, 256 << 10),
        dtype="i2",
        compressors=compressors(codec),
    )
    x = numbers("i2", (4, 256 << 10))
    array[:] = x
    keys = [key for key in store._store_dict if "c/" in key]
    whole = {key: store._store_dict[key] for key in keys}
    buffers = type(next(iter(whole.values())))
    for turn in range(80):
        key = keys[turn % len(keys)]
        data = np.frombuffer(whole[key].to_bytes(), "u1").copy()
        match turn % 4:
            case 0:
                data = data[: RNG.integers(1, data.size)]
            case 1:
                data[RNG.integers(0, 40)] ^= 1 << RNG.integers(8)
            case 2:
                data[RNG.integers(0, data.size, 9)] = RNG.integers(0, 256, 9)
            case _:
                data[RNG.integers(data.size) :][:64] = 255
        store._store_dict[key] = buffers.from_bytes(data.tobytes())
        source = stored.StoredArray(array, 8)
        try:
            want = source[:]
        except OSError:
            want = None
        got, _ = (None, None) if want is None else read_there(reading, array)
        if want is None:
            assert source._layout is not None
            ranges = [range(n) for n in array.shape]
            got = reading.read(source.source, source._layout, ranges)
            # The damage may be in bytes that only the host checks.
            assert got is None or (got.get() == x).all()
        elif got is not None:
            np.testing.assert_array_equal(got.get(), want)
        store._store_dict[key] = whole[key]
    got, _ = read_there(reading, array)
    np.testing.assert_array_equal(got.get(), x)


@pytest.mark.parametrize("shards", [None, SHARDS])
def test_local_files_and_missing_chunks(reading: Any, tmp_path: Path, shards: Any) -> None:
    """Files are read into the stage; chunks that are not there have the fill value."""
    array = zarr.create_array(
        tmp_path / "x",
        shape=SHAPE,
        chunks=CHUNKS,
        shards=shards,
        dtype="f4",
        fill_value=np.nan,
        compressors=compressors("Zstd"),
    )
    array[:100] = numbers("f4")[:100]
    for index in ((), (slice(0, 100),), (slice(100, 195),)):
        got, want = read_there(reading, array, *index)
        np.testing.assert_array_equal(got.get(), want)


def test_large_chunks_go_to_the_host(reading: Any, tmp_path: Path) -> None:
    """Chunks of Blosc that do not become smaller than the stage are no error."""
    x = RNG.integers(0, 256, 24 << 20).astype("u1")
    array = zarr.create_array(
        tmp_path / "x", data=x, chunks=x.shape, compressors=compressors("Blosc LZ4")
    )
    got, _ = read_there(reading, array)
    assert got is None


@pytest.mark.parametrize("offset", [2**64 - 500, 2**64 - 2**40, 2**63])
def test_places_that_lie(reading: Any, tmp_path: Path, offset: int) -> None:
    """Offsets of a shard's index that no file has are left to the host, which refuses them."""
    array = zarr.create_array(
        tmp_path / "x",
        data=numbers("f4"),
        chunks=CHUNKS,
        shards=SHARDS,
        compressors=compressors("Zstd"),
    )
    source = stored.StoredArray(array, 8)
    layout = source._layout
    assert layout is not None
    assert layout.shards is not None
    places = np.full((2, 2, 2, 2), 2**64 - 1, "u8")
    places[0, 0, 0], places[0, 0, 1] = (0, 100), (offset, 100)
    known = replace(layout, shards=replace(layout.shards, known=places))
    assert reading.read(source.source, known, [range(100), range(63), range(128)]) is None


@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        (("ZstdCodec", {"checksum": True}), "checksum"),
        (("BloscCodec", {"cname": "zlib", "shuffle": "shuffle"}), "zlib"),
        (("BloscCodec", {"cname": "lz4", "shuffle": "bitshuffle"}), "bits shuffled"),
    ],
)
def test_why_not(codec: Any, reason: str) -> None:
    """The rule names codecs that kernels do not decode, before anything is read."""
    kind, options = codec
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=(4,),
        chunks=(4,),
        dtype="f4",
        compressors=[getattr(zarr.codecs, kind)(**options)],
    )
    chain = stored.StoredArray(array, 8).chain
    assert chain is not None
    assert reason in rules.why_not(chain)
