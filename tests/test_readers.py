"""Files as Dask arrays: what is read, when it is read, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dask_coop.readers import UserError, open_source

VALUES = np.arange(60, dtype="i4").reshape(5, 12)


def _zarr() -> Any:
    # A Zarr that lacks one of its own needs raises another ImportError.
    return pytest.importorskip("zarr", exc_type=ImportError)


def save_npy(path: Path, x: Any = VALUES) -> None:
    np.save(path, x)


def save_zarr(path: Path) -> None:
    zarr = _zarr()
    zarr.save_array(path, VALUES)


def save_zarr_group(path: Path) -> None:
    zarr = _zarr()
    group = zarr.open_group(path, mode="w")
    group.create_array("raw/first", data=VALUES, chunks=(2, 5))
    group.create_array("second", data=VALUES[0])


def save_hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_dataset("raw/first", data=VALUES, chunks=(2, 5))


def save_picture(path: Path) -> None:
    io = pytest.importorskip("skimage.io")
    io.imsave(path, VALUES.astype("u1"), check_contrast=False)


@pytest.mark.parametrize("chunks", ["auto", 3, (2, 5), 100])
@pytest.mark.parametrize(
    ("name", "save", "dataset"),
    [
        ("x.npy", save_npy, None),
        ("x.zarr", save_zarr, None),
        ("x.zarr", save_zarr_group, "raw/first"),
        ("x.h5", save_hdf5, None),
        ("x.h5", save_hdf5, "/raw/first"),
        ("x.HDF5", save_hdf5, None),
        ("x.png", save_picture, None),
        ("x.tif", save_picture, None),
        ("x.tiff", save_picture, None),
    ],
)
def test_values_are_those_of_the_file(
    tmp_path: Path, name: str, save: Any, dataset: str | None, chunks: Any
) -> None:
    save(tmp_path / name)
    source = open_source(str(tmp_path / name), dataset, chunks)
    if chunks == (2, 5):
        assert source.array.chunks == ((2, 2, 1), (5, 5, 2))
    assert type(source.array._meta) is np.ndarray
    for scheduler in ("synchronous", "threads"):
        found = source.array.compute(scheduler=scheduler)
        np.testing.assert_array_equal(found, VALUES)
        assert found.dtype == source.array.dtype


def test_a_jpeg_is_read(tmp_path: Path) -> None:
    io = pytest.importorskip("skimage.io")
    grey = np.full((16, 16), 128, "u1")
    for name in ("x.jpg", "x.jpeg"):
        io.imsave(tmp_path / name, grey, check_contrast=False)
        found = open_source(str(tmp_path / name)).array.compute(scheduler="synchronous")
        assert np.abs(found.astype(int) - 128).max() <= 2


def test_pictures_of_skimage() -> None:
    pytest.importorskip("skimage")
    moon = open_source("skimage:moon")
    assert (moon.name, moon.stem) == ("moon.png", "moon")
    assert (moon.array.shape, moon.array.dtype) == ((512, 512), np.dtype("u1"))
    assert open_source("skimage:hubble_deep_field").array.shape == (872, 1000, 3)
    with pytest.raises(UserError, match=r"it has astronaut, .*moon"):
        open_source("skimage:sun")


@pytest.mark.parametrize("dtype", ["?", "u1", "i8", "f2", "f4", "f8", ">f4", ">i2", ">u8"])
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    values = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    save_npy(tmp_path / "x.npy", values)
    array = open_source(str(tmp_path / "x.npy"), chunks=2).array
    assert array.dtype.isnative
    found = array.compute(scheduler="synchronous")
    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 4, 5)])
def test_shapes_and_orders_of_npy(tmp_path: Path, shape: tuple[int, ...], order: Any) -> None:
    values = np.asarray(np.random.default_rng(0).random(shape), order=order)
    save_npy(tmp_path / "x.npy", values)
    array = open_source(str(tmp_path / "x.npy"), chunks=2).array
    np.testing.assert_array_equal(array.compute(scheduler="synchronous"), values)


def test_a_file_larger_than_memory_opens_and_gives_a_chunk(tmp_path: Path) -> None:
    shape = (2**20, 2**17)  # 1 TiB, a hole in the file
    np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype="f8", shape=shape).flush()
    array = open_source(str(tmp_path / "x.npy")).array
    assert array.shape == shape
    assert array[-1, -1].compute(scheduler="synchronous") == 0


@pytest.mark.parametrize(("name", "save"), [("x.npy", save_npy), ("x.h5", save_hdf5)])
def test_what_travels_is_a_path(tmp_path: Path, name: str, save: Any) -> None:
    save(tmp_path / name)
    with dask.config.set(scheduler="synchronous"):
        array = pickle.loads(pickle.dumps(open_source(str(tmp_path / name), chunks=3).array))
        assert len(pickle.dumps(array)) < 10_000
        np.testing.assert_array_equal(array, VALUES)


def test_the_only_dataset_needs_no_name(tmp_path: Path) -> None:
    save_hdf5(tmp_path / "x.h5")
    source = open_source(str(tmp_path / "x.h5"))
    assert (source.name, source.stem) == ("x.h5/raw/first", "x-raw-first")


@pytest.mark.parametrize("dataset", [None, "third", "raw"])
def test_the_datasets_are_listed(tmp_path: Path, dataset: str | None) -> None:
    save_zarr_group(tmp_path / "x.zarr")
    with pytest.raises(UserError, match="--dataset NAME, one of raw/first, second"):
        open_source(str(tmp_path / "x.zarr"), dataset)
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["raw/first"], file["second"] = VALUES, VALUES
    with pytest.raises(UserError, match="--dataset NAME, one of raw/first, second"):
        open_source(str(tmp_path / "x.h5"), dataset)


def test_zarr_of_either_format(tmp_path: Path) -> None:
    zarr = _zarr()
    for version in (2, 3):
        path = tmp_path / f"{version}.zarr"
        zarr.create_array(path, data=VALUES, chunks=(2, 5), zarr_format=version)
        array = open_source(str(path)).array
        np.testing.assert_array_equal(array.compute(scheduler="threads"), VALUES)


def save_text(path: Path) -> None:
    path.write_text("this is no array")


def save_half_a_picture(path: Path) -> None:
    save_picture(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def save_hdf5_without_data(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["nothing"] = h5py.Empty("f4")


def save_hdf5_without_datasets(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    h5py.File(path, "w").close()


def save_hdf5_text(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["names"] = ["a", "b"]


def empty_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "save", "options", "message"),
    [
        ("x.npy", None, {}, "no such file"),
        ("x", save_text, {}, "extension '' is not supported; use one of .npy, .zarr"),
        ("x.csv", save_text, {}, "extension '.csv' is not supported; use one of .npy, .zarr"),
        ("x.npy", save_text, {}, "cannot map this file as .npy"),
        ("x.npy", empty_folder, {}, "cannot map this file as .npy"),
        ("x.zarr", empty_folder, {}, "cannot open this as Zarr"),
        ("x.zarr", save_text, {}, "cannot open this as Zarr"),
        ("x.h5", save_text, {}, "cannot open this as HDF5"),
        ("x.png", save_half_a_picture, {}, "cannot read this as a picture"),
        ("x.tif", save_text, {}, "cannot read this as a picture"),
        ("x.h5", save_hdf5_without_data, {}, "nothing to describe"),
        ("x.h5", save_hdf5_without_datasets, {}, "there is no dataset in it"),
        ("x.h5", save_hdf5_text, {}, "dtype object cannot be described"),
        ("x.npy", save_npy, {"dataset": "a"}, "--dataset a does not apply"),
        ("x.zarr", save_zarr, {"dataset": "a"}, "--dataset a does not apply"),
        ("x.npy", save_npy, {"chunks": (2, 3, 4)}, "has 3 numbers and the array 2 axes"),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, name: str, save: Any, options: dict[str, Any], message: str
) -> None:
    if name.endswith(".zarr"):
        _zarr()
    if save:
        save(tmp_path / name)
    with pytest.raises(UserError, match=message):
        open_source(str(tmp_path / name), **options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array(["a", "b"]), "dtype <U1 cannot be described"),
        (np.array([1j]), "dtype complex128 cannot be described"),
        (np.array([(1, 2)], dtype="i4,f4"), "cannot be described"),
        (np.array(["2020-01-01"], "M8[D]"), "cannot be described"),
        (np.array([1], "g"), "dtype float128 cannot be described"),
        (np.empty((0, 3)), r"the array is empty \(shape \(0, 3\)\)"),
        (np.array([None]), "Python objects"),
    ],
)
def test_what_cannot_be_described_is_refused(tmp_path: Path, values: Any, message: str) -> None:
    save_npy(tmp_path / "x.npy", values)
    with pytest.raises(UserError, match=message):
        open_source(str(tmp_path / "x.npy"))
