"""Datasets of HDF5 are read without HDF5, with the same values, or left to it."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_coop as dc
from dask_coop.api.call import reading
from dask_coop.errors import NotSupported
from dask_coop.files import hdf5, rates
from dask_coop.files.hdf5 import Contiguous, Dataset, Hdf5Array, layout_of_hdf5
from dask_coop.files.layout import Layout

h5py = pytest.importorskip("h5py")

SHAPE = (23, 10, 7)
CHUNKED = {"chunks": (8, 4, 7)}
KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": CHUNKED,
    "larger chunks": {"chunks": (30, 12, 8), "maxshape": (None, None, None)},
    "deflate": {**CHUNKED, "compression": "gzip"},
    "shuffle": {**CHUNKED, "compression": "gzip", "shuffle": True},
    "only shuffle": {"chunks": (23, 5, 7), "shuffle": True},
    "checksum": {**CHUNKED, "fletcher32": True},
    "all": {**CHUNKED, "compression": 9, "shuffle": True, "fletcher32": True},
}
DTYPES = ["<i2", ">i4", "u1", "<f4", ">f8", "f2", "i8"]


def numbers(dtype: str, shape: tuple[int, ...] = SHAPE) -> Any:
    rng = np.random.default_rng(3)
    return np.round(rng.normal(60, 20, shape)).clip(0, 120).astype(dtype)


def old(path: Path) -> None:
    """Have a file seem to be written a minute ago."""
    then = time.time() - 60
    os.utime(path, (then, then))


def written(path: Path, values: Any, **options: Any) -> Hdf5Array:
    with h5py.File(path, "w") as file:
        file.create_dataset("group/values", data=values, **options)
    old(path)
    return Hdf5Array(Dataset(str(path), "/group/values"), values.shape, values.dtype)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    hdf5._layouts.clear()
    yield
    hdf5._layouts.clear()


INDICES = [
    (),
    (Ellipsis,),
    (slice(8, 16), slice(4, 8)),
    (slice(3, 21), slice(None), slice(2, 5)),
    (slice(None, None, 5), slice(1, None, 3), slice(None, None, 2)),
    (slice(None, None, -2), 3),
    (-1, slice(None), 0),
    (22, 9, 6),
    (slice(5, 5),),
    (slice(2, 20), slice(None, None, -1), 6),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_elements_are_those_that_were_written(tmp_path: Path, kind: str, dtype: str) -> None:
    values = numbers(dtype)
    x = written(tmp_path / "x.h5", values, **KINDS[kind])
    assert x.why_not == ""
    for index in INDICES:
        got = x[index]
        assert got.dtype == values[index].dtype
        np.testing.assert_array_equal(got, values[index])


def test_chunks_that_filters_may_have_left_out_are_left_to_hdf5(tmp_path: Path) -> None:
    """HDF5 can leave out filters of chunks that end beyond the dataset; h5py cannot make such."""
    values = numbers("i4")
    x = written(tmp_path / "x.h5", values, **CHUNKED, shuffle=True)
    assert "may not be filtered" in x.why_not
    lazy = da.from_array(h5py.File(tmp_path / "x.h5")["group/values"], chunks=(8, 4, 7))
    np.testing.assert_array_equal(dc.cumsum(lazy, 0).compute(), values.cumsum(0))


def test_what_codecs_are_called(tmp_path: Path) -> None:
    names = {
        kind: written(tmp_path / f"{kind}.h5", numbers("i4"), **options).codecs
        for kind, options in KINDS.items()
    }
    assert names["contiguous"] == names["chunked"] == "no codec"
    assert names["shuffle"] == "zlib, shuffle"
    assert names["all"] == "fletcher32, zlib, shuffle"


def test_zstd(tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    values = numbers("i4")
    x = written(tmp_path / "x.h5", values, **CHUNKED, **hdf5plugin.Zstd(3), shuffle=True)
    assert x.codecs == "zstd, shuffle"
    np.testing.assert_array_equal(x[2:, ::3], values[2:, ::3])


@given(data=st.data())
def test_any_index_of_any_layout(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 40)] * data.draw(st.integers(1, 3))), "shape")
    chunks = data.draw(st.none() | st.tuples(*[st.integers(1, n) for n in shape]), "chunks")
    path = tmp_path_factory.mktemp("any") / "x.h5"
    values = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    x = written(path, values, **({} if chunks is None else {"chunks": chunks}))
    for _ in range(4):
        along = [st.slices(n) | st.integers(-n, n - 1) for n in shape]
        index = data.draw(st.tuples(*along), "index")
        np.testing.assert_array_equal(x[index], values[index])


@pytest.mark.parametrize("most", [(0, 1 << 20), (1 << 20, 1 << 20), (64, 512)])
def test_runs_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: tuple[int, int]
) -> None:
    monkeypatch.setattr(hdf5, "_GAP_BYTES", most[0])
    monkeypatch.setattr(hdf5, "_RUN_BYTES", most[1])
    values = numbers("f8")
    x = written(tmp_path / "x.h5", values)
    for index in INDICES:
        np.testing.assert_array_equal(x[index], values[index])


def test_little_is_read_of_what_is_not_needed(tmp_path: Path) -> None:
    values = np.arange(1 << 22, dtype="f4").reshape(64, -1)
    x = written(tmp_path / "x.h5", values)
    np.testing.assert_array_equal(x[:, 7], values[:, 7])
    rate = rates.of(x.source.name)
    assert rate is not None
    assert rate.stored == 64 * 4


@pytest.mark.parametrize("fill", [None, 7, -3.5])
def test_chunks_that_are_not_stored(tmp_path: Path, fill: Any) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("values", (20, 20), "f4", chunks=(6, 5), fillvalue=fill)
        dataset[7:9, 3:8] = 1
    with h5py.File(path, "r") as file:
        expected = file["values"][:]
    x = Hdf5Array(Dataset(str(path), "/values"), (20, 20), np.dtype("f4"))
    np.testing.assert_array_equal(x[:], expected)
    assert x.why_not == ""


def test_datasets_that_grew_and_shrank(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("values", data=np.arange(40), chunks=(7,), maxshape=(None,))
        dataset.resize((90,))
        dataset.resize((33,))
        dataset.resize((50,))
        expected = dataset[:]
    x = Hdf5Array(Dataset(str(path), "/values"), (50,), np.dtype("i8"))
    np.testing.assert_array_equal(x[:], expected)


def make_odd(file: Any, name: str) -> None:
    """Make a dataset that is left to HDF5."""
    values = np.arange(12.0)
    match name:
        case "other filter":
            file.create_dataset("values", data=values, chunks=(4,), compression="lzf")
        case "scaleoffset":
            file.create_dataset("values", data=np.arange(12), chunks=(4,), scaleoffset=0)
        case "strings":
            file.create_dataset("values", data=[b"a", b"bc"] * 6, dtype="S2")
        case "variable length":
            file.create_dataset("values", data=["a", "bc"] * 6, dtype=h5py.string_dtype())
        case "compound":
            file.create_dataset("values", data=np.zeros(12, "i4,f8"))
        case "bool":
            file.create_dataset("values", data=values > 4)
        case "complex":
            file.create_dataset("values", data=values + 1j)
        case "bits":
            kind = h5py.h5t.NATIVE_INT32.copy()
            kind.set_precision(20)
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_chunk((4,))
            properties.set_filter(h5py.h5z.FILTER_NBIT)
            space = h5py.h5s.create_simple((12,))
            h5py.h5d.create(file.id, b"values", kind, space, properties)
            file["values"][:] = np.arange(-6, 6)
        case "external":
            external = [(f"{file.filename}.raw", 0, 96)]
            file.create_dataset("values", (12,), "f8", external=external)[:] = values
        case "virtual":
            file.create_dataset("source", data=values)
            layout = h5py.VirtualLayout((12,), "f8")
            layout[:] = h5py.VirtualSource(file["source"])
            file.create_virtual_dataset("values", layout)
        case "compact":
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((12,))
            h5py.h5d.create(file.id, b"values", h5py.h5t.NATIVE_DOUBLE, space, properties)
            file["values"][:] = values
        case "unwritten":
            file.create_dataset("values", (12,), "f8", fillvalue=3)
        case "scalar":
            file["values"] = 3.5
        case "filter left out":
            dataset = file.create_dataset("values", (12,), "f8", chunks=(4,), compression="gzip")
            dataset.id.write_direct_chunk((0,), values[:4].tobytes(), 1)
            dataset[4:] = values[4:]
        case "no fill":
            dataset = file.create_dataset("values", (12,), "f8", chunks=(4,), fill_time="never")
            dataset[4:] = values[4:]


ODD = (
    "other filter",
    "scaleoffset",
    "strings",
    "variable length",
    "compound",
    "bool",
    "complex",
    "bits",
    "external",
    "virtual",
    "compact",
    "unwritten",
    "scalar",
    "filter left out",
    "no fill",
)


@pytest.mark.parametrize("name", ODD)
def test_what_is_left_to_hdf5(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        make_odd(file, name)
    with h5py.File(path, "r") as file:
        with pytest.raises(NotSupported):
            layout_of_hdf5(file["values"])
        if name != "scalar":
            x = da.from_array(file["values"], chunks=5)
            assert reading.read_by_us(x) is x


def test_files_open_for_writing_or_not_local_are_left_to_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    values = numbers("i4")
    written(path, values, **CHUNKED)
    for options in ({"mode": "r+"}, {"mode": "r", "driver": "core"}):
        with h5py.File(path, **options) as file:
            x = da.from_array(file["group/values"])
            assert reading.read_by_us(x) is x
    with open(path, "rb") as opened, h5py.File(opened, "r") as file:
        x = da.from_array(file["group/values"])
        assert reading.read_by_us(x) is x
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["values"] = h5py.ExternalLink(str(path), "/group/values")
    with h5py.File(tmp_path / "y.h5", "r") as file:
        x = Hdf5Array(Dataset(str(tmp_path / "y.h5"), "/values"), values.shape, values.dtype)
        assert "other files" in x.why_not
    with h5py.File(tmp_path / "z.h5", "w", userblock_size=512) as file:
        file["values"] = values
    with h5py.File(tmp_path / "z.h5", "r") as file, pytest.raises(NotSupported):
        layout_of_hdf5(file["values"])


def test_layouts(tmp_path: Path) -> None:
    values = numbers("i4")
    x = written(tmp_path / "x.h5", values)
    y = written(tmp_path / "y.h5", values, **KINDS["shuffle"])
    with h5py.File(x.dataset.path, "r") as file:
        assert isinstance(layout_of_hdf5(file["group/values"]), Contiguous)
    with h5py.File(y.dataset.path, "r") as file:
        layout = layout_of_hdf5(file["group/values"])
    assert isinstance(layout, Layout)
    assert layout.shards is not None
    assert layout.shards.known.shape == (3, 3, 1, 2)
    assert layout.chain.shape == (8, 4, 7)


def test_chunks_are_looked_up_once_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    find = hdf5._find
    monkeypatch.setattr(hdf5, "_find", lambda *args: calls.append(args) or find(*args))
    path, values = tmp_path / "x.h5", numbers("i4")
    x = written(path, values, **KINDS["all"])
    for _ in range(3):
        np.testing.assert_array_equal(x[:], values)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x))[3:], values[3:])
    assert len(calls) == 1
    # Written anew, with chunks elsewhere and of other sizes.
    written(path, values + 1, chunks=(5, 5, 5))
    os.utime(path)
    np.testing.assert_array_equal(x[:], values + 1)
    assert len(calls) == 2


def test_a_dataset_of_another_shape_is_not_read(tmp_path: Path) -> None:
    path, values = tmp_path / "x.h5", numbers("i4")
    x = written(path, values, **CHUNKED)
    written(path, values[:-1], **CHUNKED)
    assert "which it was not before" in x.why_not
    path.unlink()
    assert "No such file" in x.why_not


@pytest.mark.parametrize("kind", ["contiguous", "shuffle"])
@pytest.mark.parametrize("inline", [False, True])
def test_arrays_of_h5py(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, inline: bool
) -> None:
    values = numbers("f4")
    path = written(tmp_path / "x.h5", values, **KINDS[kind]).dataset.path
    with h5py.File(path, "r") as file:
        x = da.from_array(file["group/values"], chunks=(5, 10, 4), inline_array=inline)
        np.testing.assert_array_equal(dc.cumsum(x, 0), np.cumsum(values, 0))
        total = dc.sum(x)
        row = dc.explain(total)[0]
        assert row.served_by == "dask_coop"
        with monkeypatch.context() as patch:
            patch.setattr(h5py.Dataset, "__getitem__", lambda *_: pytest.fail("h5py was asked"))
            assert total.compute() == values.sum(dtype="f8")
        # Lists of indices are h5py's, in Dask's fused tasks too.
        assert dc.sum(x[[1, 4, 9]]).compute() == values[[1, 4, 9]].sum(dtype="f8")


def test_damaged_chunks_say_where(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 99, 4000)
    x = written(tmp_path / "x.h5", values, chunks=(1000,), compression="gzip", fletcher32=True)
    places = {}
    with h5py.File(x.dataset.path, "r") as file:
        file["group/values"].id.chunk_iter(lambda c: places.update({c.chunk_offset: c}))
    with open(x.dataset.path, "r+b") as file:
        file.seek(places[(2000,)].byte_offset + 20)
        file.write(b"\0\1\2\3")
    np.testing.assert_array_equal(x[:2000], values[:2000])
    with pytest.raises(OSError, match=r"x\.h5/group/values: cannot read the chunk 'values'"):
        x[:]
    with open(x.dataset.path, "r+b") as file:
        file.truncate(places[(3000,)].byte_offset + 5)
    with pytest.raises((OSError, NotSupported)):
        x[3000:]
