"""Stored arrays against Zarr's own answers: codecs, formats, dtypes, orders, shards, indices."""

from __future__ import annotations

import pickle
import warnings
import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs.numcodecs
from zarr import codecs

import dask_coop as dc
from dask_coop.files.recognised import Reader, recognised
from dask_coop.files.stored import StoredArray

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::zarr.errors.{name}")
    for name in ("ZarrUserWarning", "UnstableSpecificationWarning")
]


def of_numcodecs(name: str, **options: Any) -> Any:
    """Return a codec of numcodecs for format 3, of which Zarr warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(zarr.codecs.numcodecs, name)(**options)


RNG = np.random.default_rng(42)
SHAPE, CHUNKS, SHARDS = (13, 10), (4, 3), (8, 6)

# fmt: off
DTYPES = [
    "bool", "i1", "u1", "<i2", ">i2", "<i4", ">i4", "<i8", ">u8",
    "<f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c16",
    "<M8[ns]", ">M8[s]", "<m8[D]", "S1", "S5", "<U1", "<U3", ">U3",
]
# fmt: on

BYTES_2: dict[str, Any] = {
    "none": None,
    "zstd": numcodecs.Zstd(3),
    "zstd with checksums": numcodecs.Zstd(3, checksum=True),
    "lz4": numcodecs.LZ4(),
    "zlib": numcodecs.Zlib(),
    "gzip": numcodecs.GZip(),
    **{
        f"blosc {name} {shuffle}": numcodecs.Blosc(name, shuffle=shuffle)
        for name in numcodecs.blosc.list_compressors()
        for shuffle in (0, 1, 2)
    },
}
BYTES_3: dict[str, Any] = {
    "none": None,
    "zstd": codecs.ZstdCodec(level=3),
    "zstd with checksums": codecs.ZstdCodec(level=3, checksum=True),
    "gzip": codecs.GzipCodec(),
    "crc32c": codecs.Crc32cCodec(),
    "zstd, crc32c": [codecs.ZstdCodec(), codecs.Crc32cCodec()],
    "crc32c, zstd": [codecs.Crc32cCodec(), codecs.ZstdCodec()],
    "lz4 of numcodecs": of_numcodecs("LZ4"),
    "zstd of numcodecs": of_numcodecs("Zstd"),
    "zlib of numcodecs": of_numcodecs("Zlib"),
    "gzip of numcodecs": of_numcodecs("GZip"),
    "blosc of numcodecs": of_numcodecs("Blosc", cname="lz4", shuffle=1),
    "shuffle": of_numcodecs("Shuffle", elementsize=1),
    **{
        f"blosc {name} {shuffle}": codecs.BloscCodec(cname=name, shuffle=shuffle)
        for name in ("lz4", "zstd", "blosclz", "zlib", "lz4hc")
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    },
}


def dtypes_for(name: str) -> list[str]:
    """Return every dtype for one chain of codecs, some for the others."""
    return DTYPES if name.startswith("zstd") else DTYPES[zlib.crc32(name.encode()) % 9 :: 9]


def elements(dtype: str, shape: tuple[int, ...] = SHAPE) -> Any:
    """Return an array with runs and repetitions, as compressors like it."""
    numbers = RNG.integers(0, 100, shape) // 3 * 3
    kind = np.dtype(dtype).kind
    if kind in "SU":
        return numbers.astype("U5").astype(dtype)
    if kind in "mM":
        return numbers.astype("i8").view(dtype.lstrip("<>")).astype(dtype)
    return (numbers % 7 / 2 if kind in "fc" else numbers % 2 if kind == "b" else numbers).astype(
        dtype
    )


def store(x: Any, **options: Any) -> Any:
    """Return an array of Zarr, of which some chunks are missing, opened anew."""
    memory = zarr.storage.MemoryStore()
    options = {"shape": x.shape, "dtype": x.dtype, "chunks": CHUNKS, **options}
    array = zarr.create_array(memory, **options)
    # Whatever is behind row 8 is left out, but for a corner: half a shard.
    array[:8] = x[:8]
    array[12:, 9:] = x[12:, 9:]
    return zarr.open_array(memory, mode="r")


INDICES: tuple[Any, ...] = (
    ...,
    (slice(2, 9), slice(1, 8)),
    (slice(None), 5),
    (-1, slice(None, None, 2)),
    (slice(11, 3, -3), slice(None, None, -1)),
    (slice(5, 5), slice(None)),
    (7, 9),
    (slice(None, None, 5),),
    (..., slice(3, 7)),
)


def require_same(array: Any) -> None:
    """Require the elements that Zarr reads; it has no negative steps."""
    stored = StoredArray(array, 4)
    assert stored.why_not == ""
    assert (stored.shape, stored.dtype) == (array.shape, array.dtype)
    whole = array[...]
    for index in INDICES:
        # Scalars of NumPy have dtypes of their own.
        ours, theirs = stored[index], np.asarray(whole[index], whole.dtype)
        assert ours.dtype == whole.dtype
        np.testing.assert_array_equal(ours, theirs, err_msg=str(index))
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", BYTES_2)
def test_chains_of_format_2(name: str, order: str) -> None:
    for dtype in dtypes_for(f"{name} {order}"):
        fill = None if dtype[-1] in "248" else elements(dtype, (1,))[0]
        require_same(
            store(
                elements(dtype),
                zarr_format=2,
                compressors=BYTES_2[name],
                filters=None,
                order=order,
                fill_value=fill,
            )
        )


@pytest.mark.parametrize("name", BYTES_3)
def test_chains_of_format_3(name: str) -> None:
    for i, dtype in enumerate(dtypes_for(name)):
        filters = codecs.TransposeCodec(order=(1, 0)) if i % 2 else "auto"
        require_same(
            store(
                elements(dtype),
                compressors=BYTES_3[name],
                filters=filters,
                fill_value=elements(dtype, (1,))[0],
            )
        )


FILTERS_2: tuple[tuple[str, list[Any]], ...] = (
    ("i4", [numcodecs.Delta("i4")]),
    ("i8", [numcodecs.Delta("i8", "i2"), numcodecs.Shuffle(2)]),
    (">i4", [numcodecs.Delta(">i4")]),
    ("f8", [numcodecs.FixedScaleOffset(1, 4, "f8", "i2")]),
    ("f4", [numcodecs.FixedScaleOffset(1, 4, "f4", "u1"), numcodecs.Delta("u1")]),
    ("f8", [numcodecs.Delta("f8"), numcodecs.Shuffle(8)]),
    ("u2", [numcodecs.Shuffle(2)]),
    ("M8[s]", [numcodecs.Delta("i8")]),
    ("f8", [numcodecs.Shuffle(4)]),
)


@pytest.mark.parametrize(("order", "compressor"), [("C", None), ("F", numcodecs.Blosc())])
@pytest.mark.parametrize(("dtype", "filters"), FILTERS_2)
def test_filters_of_format_2(dtype: str, filters: list[Any], order: Any, compressor: Any) -> None:
    x = elements(dtype)
    options = {"filters": filters, "compressors": compressor, "order": order}
    array = store(x, zarr_format=2, fill_value=0, **options)
    if dtype == "M8[s]":
        assert "delta" in StoredArray(array, 4).why_not
    else:
        require_same(array)


FILTERS_3: tuple[tuple[str, list[Any], list[Any]], ...] = (
    ("i4", [of_numcodecs("Delta", dtype="i4")], []),
    ("f8", [of_numcodecs("FixedScaleOffset", offset=1, scale=4, dtype="f8", astype="i2")], []),
    ("f4", [], [of_numcodecs("Shuffle", elementsize=4)]),
    # Two steps beside each other that need a buffer, and a view between them.
    ("f4", [], [of_numcodecs("Shuffle", elementsize=4), codecs.Crc32cCodec(), codecs.ZstdCodec()]),
    ("f4", [codecs.TransposeCodec(order=(1, 0))], [of_numcodecs("Shuffle", elementsize=4)]),
    ("i2", [codecs.TransposeCodec(order=(1, 0)), of_numcodecs("Delta", dtype="i2")], []),
)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("dtype", "filters", "compressors"), FILTERS_3)
def test_filters_of_format_3(
    dtype: str, filters: list[Any], compressors: list[Any], sharded: bool
) -> None:
    options = {"filters": filters, "compressors": compressors or None, "fill_value": 1}
    require_same(store(elements(dtype), shards=SHARDS if sharded else None, **options))


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("endian", ["little", "big"])
def test_shards(location: Any, checked: bool, endian: Any) -> None:
    index = [codecs.BytesCodec(endian=endian), *[codecs.Crc32cCodec()] * checked]
    for dtype, inner in product(("<f4", ">i8", "bool", "U3"), ([], [codecs.ZstdCodec()])):
        bytes_codec = codecs.BytesCodec(endian=None if dtype == "bool" else endian)
        sharding = codecs.ShardingCodec(
            chunk_shape=CHUNKS,
            codecs=[bytes_codec, *inner],
            index_codecs=index,
            index_location=location,
        )
        require_same(store(elements(dtype), chunks=SHARDS, serializer=sharding, compressors=None))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 3), (5, 1, 6), (2, 3, 2, 3)])
@pytest.mark.parametrize("form", [2, 3])
def test_any_number_of_axes(shape: tuple[int, ...], form: int) -> None:
    x = RNG.normal(size=shape)
    array = zarr.create_array({}, data=x, chunks=tuple(min(max(n, 1), 2) for n in shape))
    stored = StoredArray(array, 4)
    assert stored.why_not == ""
    for index in (..., (), (slice(None, None, -1),) * len(shape)):
        np.testing.assert_array_equal(stored[index], x[index])
    with pytest.raises(IndexError):
        stored[(99,) * max(1, len(shape))]
    with pytest.raises(IndexError):
        stored[(0,) * (len(shape) + 1)]


def test_transposed_twice_and_of_three_axes() -> None:
    x = RNG.integers(0, 99, (4, 6, 5))
    orders = [(1, 2, 0), (0, 2, 1), (2, 0, 1)]
    for chosen in product(orders, repeat=2):
        filters = [codecs.TransposeCodec(order=order) for order in chosen]
        array = zarr.create_array({}, data=x, chunks=(2, 3, 4), filters=filters)
        np.testing.assert_array_equal(StoredArray(array, 4)[:], x)


def test_names_of_chunks() -> None:
    x = np.arange(24).reshape(4, 6)
    for form, name, separator in product((2, 3), ("v2", "default"), "./"):
        if form == 2 and name == "default":
            continue
        encoding = {"name": name, "separator": separator}
        array = zarr.create_array(
            {}, data=x, chunks=(2, 2), zarr_format=form, chunk_key_encoding=encoding
        )
        np.testing.assert_array_equal(StoredArray(array, 4)[:], x)


def _left_to_zarr() -> Iterator[tuple[str, dict[str, Any]]]:
    x = np.arange(24).reshape(4, 6)
    yield "lzma", {"data": x, "zarr_format": 2, "compressors": numcodecs.LZMA()}
    yield "bz2", {"data": x, "zarr_format": 2, "compressors": numcodecs.BZ2()}
    yield "crc32", {"data": x, "zarr_format": 2, "filters": [numcodecs.CRC32()]}
    yield "bz2", {"data": x, "compressors": of_numcodecs("BZ2")}
    yield "string", {"data": x.astype("T")}
    yield "dtype", {"data": x.astype([("a", "i8")]), "zarr_format": 2}
    inner = codecs.ShardingCodec(chunk_shape=(1, 2))
    yield (
        "sharding",
        {
            "data": x,
            "serializer": codecs.ShardingCodec(chunk_shape=(2, 2), codecs=[inner]),
            "compressors": None,
        },
    )
    outer = {
        "serializer": codecs.ShardingCodec(chunk_shape=(2, 2)),
        "compressors": codecs.GzipCodec(),
    }
    yield "around shards", {"data": x, "chunks": (4, 4), **outer}


@pytest.mark.parametrize(("why", "options"), [*_left_to_zarr()])
def test_what_is_left_to_zarr(why: str, options: dict[str, Any]) -> None:
    array = zarr.create_array({}, **{"chunks": (4, 4), **options})
    stored = StoredArray(array, 4)
    assert why in stored.why_not or "dtype" in stored.why_not
    np.testing.assert_array_equal(stored[1:3], array[1:3])


def test_uneven_chunks_are_left_to_zarr() -> None:
    x = np.arange(24).reshape(4, 6)
    lengths = ((1, 3), (2, 2, 2))
    with zarr.config.set({"array.rectilinear_chunks": True}):
        try:
            array = zarr.create_array({}, data=x, chunks=lengths)
        except TypeError as error:
            pytest.skip(f"of newer versions of Zarr: {error}")
        stored = StoredArray(array, 4)
        assert "uneven" in stored.why_not
        np.testing.assert_array_equal(stored[1:3], x[1:3])
        y = dc.from_zarr(array)
        assert y.chunks == lengths
        np.testing.assert_array_equal(y.compute(), x)
        assert recognised(array, Reader(4, lengths)) is None


def test_indices_that_are_left_to_zarr() -> None:
    array = zarr.create_array({}, data=np.arange(24).reshape(4, 6), chunks=(2, 4))
    stored = StoredArray(array, 4)
    np.testing.assert_array_equal(stored[[0, 3]], array[[0, 3]])
    np.testing.assert_array_equal(stored[:, np.array([1, 5])], array[:, np.array([1, 5])])


def test_what_is_pickled_is_the_array() -> None:
    array = store(elements("<f4"))
    stored = pickle.loads(pickle.dumps(StoredArray(array, 4, is_cut=True)))
    assert (stored.concurrency, stored.is_cut) == (4, True)
    np.testing.assert_array_equal(stored[2:], array[2:])
