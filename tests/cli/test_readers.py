"""Files as Dask arrays: what is read, when it is read, and what is refused."""

from __future__ import annotations

import pickle
import re
import struct
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dask_coop.cli.describe.readers import UserError, as_user_errors, open_source
from dask_coop.errors import pip_install

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


@pytest.mark.parametrize(
    "dtype",
    [
        "?",
        "u1",
        "i8",
        "f2",
        "f4",
        "f8",
        ">f4",
        ">i2",
        ">u8",
        "M8[ns]",
        ">M8[D]",
        "m8[s]",
        ">m8[us]",
    ],
)
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
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


@pytest.mark.parametrize("dataset", ["third", "raw"])
def test_the_datasets_are_listed(tmp_path: Path, dataset: str) -> None:
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


def save_cdf5(path: Path) -> None:
    path.write_bytes(b"CDF\x05" + bytes(40))


def save_half_a_netcdf(path: Path) -> None:
    pytest.importorskip("scipy")
    path.write_bytes(b"CDF\x01" + bytes(9))


def empty_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "save", "options", "message"),
    [
        ("x.npy", None, {}, "no such file"),
        ("x", save_text, {}, "extension '' is not supported; use one of .npy, .npz"),
        ("x.txt", save_text, {}, "extension '.txt' is not supported; use one of .npy, .npz"),
        ("x.npy", save_text, {}, "cannot map this file as .npy"),
        ("x.npy", empty_folder, {}, "cannot map this file as .npy"),
        ("x.zarr", empty_folder, {}, "cannot open this as Zarr"),
        ("x.zarr", save_text, {}, "cannot open this as Zarr"),
        ("x.h5", save_text, {}, "cannot open this as HDF5"),
        ("x.nc", save_text, {}, "cannot open this as HDF5"),
        ("x.nc", save_cdf5, {}, "CDF-5, which SciPy does not read; run `nccopy -k nc4"),
        ("x.nc", save_half_a_netcdf, {}, "cannot open this as netCDF 3"),
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
        (np.zeros(1, "i8").view("M8"), "dtype datetime64 cannot be described, as it has no unit"),
        (np.array([1], "g"), "dtype float128 cannot be described"),
        (np.empty((0, 3)), r"the array is empty \(shape \(0, 3\)\)"),
        (np.array([None]), "Python objects"),
    ],
)
def test_what_cannot_be_described_is_refused(tmp_path: Path, values: Any, message: str) -> None:
    save_npy(tmp_path / "x.npy", values)
    with pytest.raises(UserError, match=message):
        open_source(str(tmp_path / "x.npy"))


F8 = np.float64
PACKED = {
    "scaled": (
        "i2",
        {"scale_factor": F8(0.01), "add_offset": F8(273.15), "_FillValue": np.int16(-9)},
    ),
    "in float32": ("i2", {"scale_factor": np.float32(0.5), "_FillValue": np.int16(7)}),
    "only an offset": ("i4", {"add_offset": F8(10)}),
    "missing_value": ("f4", {"missing_value": np.float32(7)}),
    "two fill values": ("i4", {"missing_value": np.int32(7), "_FillValue": np.int32(8)}),
    "unsigned": ("i1", {"_Unsigned": "true", "_FillValue": np.int8(-1), "scale_factor": F8(2)}),
    "dates": ("i4", {"units": "hours since 1999-12-31 12:00", "_FillValue": np.int32(7)}),
    "fractions of days": ("f8", {"units": "days since 1900-01-01", "calendar": "standard"}),
    "durations": ("i8", {"units": "seconds", "dtype": "timedelta64[s]"}),
    "truths": ("i1", {"dtype": "bool"}),
    "a mask, and a unit": ("i2", {"units": "days", "_FillValue": np.int16(7)}),
}
PLAIN = {
    "nothing": {},
    "a unit": {"units": "K", "long_name": "temperature", "valid_range": np.array([0, 5], "f4")},
    "a fill value that is NaN": {"_FillValue": np.float32("nan")},
}
NUMBERS = np.array([[0, 1, 7, 8, -1, -9], [2, 3, 7, 100, -128, 4]])


def save_hdf5_with(path: Path, values: Any, attributes: Any) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["x"] = values
        for name, value in attributes.items():
            # As netCDF writes them.
            is_text = isinstance(value, str)
            file["x"].attrs[name] = np.bytes_(value) if is_text else np.atleast_1d(value)


def save_netcdf3_with(path: Path, values: Any, attributes: Any) -> None:
    netcdf = pytest.importorskip("scipy.io").netcdf_file
    if values.dtype == "i8":
        values = values.astype("i4")
    with netcdf(path, "w", version=2) as file:
        for name, n in zip("ab", values.shape, strict=True):
            file.createDimension(name, n)
        x = file.createVariable("x", values.dtype, ("a", "b"))
        x[:] = values
        for name, value in attributes.items():
            setattr(x, name, value)


def save_zarr_with(path: Path, values: Any, attributes: Any, version: int = 3) -> None:
    plain = {
        name: getattr(value, "tolist", lambda v=value: v)() for name, value in attributes.items()
    }
    group = _zarr().open_group(path, mode="w", zarr_format=version)
    group.create_array("x", data=values, attributes=plain)


SAVED = {
    "x.h5": save_hdf5_with,
    "x.nc": save_hdf5_with,
    "3.nc": save_netcdf3_with,
    "x.zarr": save_zarr_with,
}


def as_xarray_decodes(values: Any, attributes: Any) -> Any:
    """Return what xarray makes of values, all at once; of counts of days, plain numbers."""
    xarray = pytest.importorskip("xarray")
    if attributes.get("units") == "days":
        attributes = {name: value for name, value in attributes.items() if name != "units"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xarray.decode_cf(xarray.Dataset({"x": (("a", "b"), values, attributes)})).x.values


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("name", SAVED)
def test_packed_numbers_are_what_xarray_makes_of_them(
    tmp_path: Path, name: str, packed: str
) -> None:
    dtype, attributes = PACKED[packed]
    values = (NUMBERS != 0 if packed == "truths" else NUMBERS).astype(dtype)
    SAVED[name](tmp_path / name, values, attributes)
    expected = as_xarray_decodes(values, attributes)
    for chunks in ("auto", 2):
        source = open_source(str(tmp_path / name), "x", chunks)
        assert (len(source.notes), source.notes[0][:9]) == (1, "decoded: ")
        found = source.array.compute(scheduler="threads")
        assert source.array.dtype == found.dtype
        if name != "x.zarr":  # whose attributes are JSON's, float64
            assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_the_example_of_the_issue(tmp_path: Path) -> None:
    kelvin = np.array([[270.15, 280.15], [np.nan, 289.67]])
    packed = np.where(np.isnan(kelvin), -32767, np.rint((kelvin - 273.15) / 0.01)).astype("i2")
    attributes = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32767}
    save_zarr_with(tmp_path / "x.zarr", packed, attributes)
    pytest.importorskip("xarray")
    source = open_source(str(tmp_path / "x.zarr"))
    np.testing.assert_allclose(source.array.compute(), kelvin, rtol=1e-12)
    said = "_FillValue -32767, scale_factor 0.01, add_offset 273.15 (int16 to float64)"
    assert source.notes == (f"decoded: {said}",)


@pytest.mark.parametrize("version", [2, 3])
def test_what_xarray_writes_is_read_as_xarray_reads_it(tmp_path: Path, version: int) -> None:
    xarray, _ = pytest.importorskip("xarray"), _zarr()
    days = np.datetime64("2001-03-01", "ns") + np.arange(12).astype("m8[D]")
    values = np.where(NUMBERS == 7, np.nan, NUMBERS / 4)
    made = xarray.Dataset({"x": (("y", "z"), values), "time": days, "plain": (("y", "z"), values)})
    encoding = {"x": {"dtype": "i2", "scale_factor": 0.25, "_FillValue": -999}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of formats to come
        made.to_zarr(tmp_path / "x.zarr", encoding=encoding, zarr_format=version)
        made.to_netcdf(tmp_path / "x.nc", engine="scipy", encoding=encoding)
    for file in ("x.zarr", "x.nc"):
        for name in made.variables:
            found = open_source(str(tmp_path / file), name).array
            np.testing.assert_array_equal(found.compute(), made[name].values)


@pytest.mark.parametrize("plain", PLAIN)
@pytest.mark.parametrize("name", SAVED)
def test_without_packing_nothing_changes_and_xarray_is_not_needed(
    tmp_path: Path, name: str, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = NUMBERS.astype("f4")
    SAVED[name](tmp_path / name, values, PLAIN[plain])
    monkeypatch.setitem(sys.modules, "xarray", None)
    source = open_source(str(tmp_path / name))
    assert source.notes == ()
    np.testing.assert_array_equal(source.array.compute(), values)


def test_without_xarray_packed_numbers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_hdf5_with(tmp_path / "x.h5", NUMBERS, {"scale_factor": 0.5})
    monkeypatch.setitem(sys.modules, "xarray", None)
    words = r"packed \(scale_factor 0.5\), and xarray.*; run `" + re.escape(pip_install("cli"))
    with pytest.raises(UserError, match=words):
        open_source(str(tmp_path / "x.h5"))


def test_dates_that_numpy_does_not_have_are_numbers_and_said_to_be(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    attributes = {"units": "days since 1850-01-01", "calendar": "noleap"}
    save_hdf5_with(tmp_path / "x.h5", NUMBERS, attributes)
    source = open_source(str(tmp_path / "x.h5"))
    np.testing.assert_array_equal(source.array.compute(), NUMBERS)
    (note,) = source.notes
    assert note.startswith("not decoded: units days since 1850-01-01, calendar noleap (NumPy has")
    save_hdf5_with(tmp_path / "y.h5", NUMBERS, {**attributes, "scale_factor": 0.5})
    source = open_source(str(tmp_path / "y.h5"))
    np.testing.assert_array_equal(source.array.compute(), NUMBERS / 2)
    assert [note[:7] for note in source.notes] == ["decoded", "not dec"]


def test_the_only_variable_that_is_no_coordinate_needs_no_name(tmp_path: Path) -> None:
    h5py, xarray = pytest.importorskip("h5py"), pytest.importorskip("xarray")
    with h5py.File(tmp_path / "4.nc", "w") as file:
        file["t2m"], file["lat"], file["time"] = VALUES, np.arange(5.0), np.arange(12)
        for axis, name in enumerate(("lat", "time")):
            file[name].make_scale()
            file["t2m"].dims[axis].attach_scale(file[name])
    coordinates = {"lat": np.arange(5.0), "time": np.arange(12)}
    made = xarray.Dataset({"t2m": (("lat", "time"), VALUES)}, coordinates)
    made.to_netcdf(tmp_path / "3.nc", engine="scipy")
    made.to_zarr(tmp_path / "x.zarr", consolidated=False)
    for name in ("4.nc", "3.nc", "x.zarr"):
        source = open_source(str(tmp_path / name), chunks=3)
        assert source.name == f"{name}/t2m"
        np.testing.assert_array_equal(source.array.compute(scheduler="threads"), VALUES)
        assert open_source(str(tmp_path / name), "lat").array.shape == (5,)


def test_netcdf3_travels_as_a_path(tmp_path: Path) -> None:
    save_netcdf3_with(tmp_path / "x.nc", NUMBERS.astype("i4"), {})
    array = open_source(str(tmp_path / "x.nc"), chunks=2).array
    assert len(pickle.dumps(array)) < 10_000
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)).compute(), NUMBERS)


def h5py_file(path: Path, mode: str = "w") -> Any:
    return pytest.importorskip("h5py").File(path, mode)


def refused(path: Path, dataset: str | None = None, chunks: Any = "auto") -> str:
    with pytest.raises(UserError) as caught:
        open_source(str(path), dataset, chunks)
    return str(caught.value)


def test_hdf5_does_not_lead_to_other_files(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    secret, other, path = tmp_path / "secret.bin", tmp_path / "other.h5", tmp_path / "x.h5"
    secret.write_bytes(bytes(60))
    with h5py_file(other) as file:
        file["y"] = VALUES
    layout = h5py.VirtualLayout(VALUES.shape, "i4")
    layout[:] = h5py.VirtualSource(other, "y", VALUES.shape)
    # A source in the file itself, which is a link.
    linked = h5py.VirtualLayout(VALUES.shape, "i4")
    linked[:] = h5py.VirtualSource(".", "link", VALUES.shape)
    with h5py_file(path) as file:
        file["own"] = VALUES
        file.create_dataset("stored", (60,), "u1", external=[(str(secret), 0, 60)])
        file.create_virtual_dataset("virtual", layout)
        file.create_virtual_dataset("linked", linked)
        file["link"] = h5py.ExternalLink(other, "/y")
        file["folder"] = h5py.ExternalLink(other, "/")
        file["soft"] = h5py.SoftLink("/link")
        # This is what they would lead to.
        assert file["linked"][0, 1] == VALUES[0, 1]
    assert f"lie in other files ({secret})" in refused(path, "stored")
    assert f"is virtual, made of datasets of other files ({other})" in refused(path, "virtual")
    assert "is virtual" in refused(path, "linked")
    for name in ("link", "folder/y", "soft"):
        assert f"there is no dataset {name}" in refused(path, name)
    np.testing.assert_array_equal(open_source(str(path), "own").array.compute(), VALUES)


def claim_npy(path: Path, shape: tuple[int, ...]) -> None:
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(64))


@pytest.mark.parametrize("shape", [(10**15,), (2**32, 2**32), (2**62, 8), (-8,)])
def test_a_npy_file_that_claims_what_it_has_not_is_refused(tmp_path: Path, shape: Any) -> None:
    path = tmp_path / "x.npy"
    claim_npy(path, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "cannot map this file as .npy" in refused(path)


@pytest.mark.parametrize("kind", ["h5", "h5 in chunks", "zarr", "zarr of one chunk"])
def test_an_array_that_claims_what_nobody_can_read_is_refused(tmp_path: Path, kind: str) -> None:
    suffix, _, layout = kind.partition(" ")
    path, n = tmp_path / f"x.{suffix}", 10**15
    if suffix == "h5":
        with h5py_file(path) as file:
            file.create_dataset("x", (n,), "f8", chunks=(1 << 16,) if layout else None)
    else:
        chunks = (n,) if layout else (1 << 16,)
        _zarr().open(path, mode="w", shape=(n,), chunks=chunks, dtype="f8")
    # Chunks that are asked for count as those that are found; what is allocated is measured.
    for given, count in (("auto", -(-8 * n // (128 << 20))), (1000, n // 1000), ((1000,), 10**12)):
        tracemalloc.start()
        said = refused(path, chunks=given)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert "says that it has 1,000,000,000,000,000 elements (float64, shape" in said
        assert f"which are {count:,} chunks" in said
        assert peak < 64 << 20


def test_numbers_that_stand_for_no_date_are_one_message(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    values = np.array([[0.0, 1.0], [1e300, 2.0]])
    save_netcdf3_with(tmp_path / "x.nc", values, {"units": "days since 2000-01-01"})
    source = open_source(str(tmp_path / "x.nc"), chunks=1)
    with (
        pytest.raises(UserError, match=r"x\.nc: cannot decode its numbers: "),
        as_user_errors(source),
    ):
        source.array.compute(scheduler="synchronous")
    # Of what is not decoded such an error is a fault of this library.
    np.save(tmp_path / "x.npy", values)
    with (
        pytest.raises(ValueError, match="ours"),
        as_user_errors(open_source(str(tmp_path / "x.npy"))),
    ):
        raise ValueError("ours")


def test_directories_of_a_tiff_fit_into_it(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "x.tif"
    for options in ({}, {"bigtiff": True}):
        tifffile.imwrite(path, VALUES, **options)
        tifffile.imwrite(path, VALUES + 1, append=True)
        assert open_source(str(path)).array.shape[-2:] == VALUES.shape
        with tifffile.TiffFile(path) as file:
            first, kind = file.pages[0].offset, file.tiff
        whole = bytearray(path.read_bytes())
        count = int.from_bytes(whole[first : first + kind.tagnosize], "little")
        link, size = first + kind.tagnosize + count * kind.tagsize, kind.offsetsize
        for target, said in ((first, "lead back to one before"), (2**20, "cannot read this as")):
            whole[link : link + size] = target.to_bytes(size, "little")
            path.write_bytes(whole)
            assert said in refused(path)
        path.unlink()
    # Of one tag each, every six bytes: each ends in the one after the next.
    tifffile.imwrite(path, VALUES)
    with tifffile.TiffFile(path) as file:
        first = file.pages[0].offset
    whole = bytearray(path.read_bytes())
    link = first + 2 + 12 * int.from_bytes(whole[first : first + 2], "little")
    whole[link : link + 4] = len(whole).to_bytes(4, "little")
    begin = len(whole)
    for i in range(2000):
        whole += struct.pack("<HI", 1, begin + 6 * (i - 1))
    path.write_bytes(whole)
    assert "its directories are longer than the file" in refused(path)


def test_a_small_tiff_that_claims_much_is_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "x.tif"
    for rows, said in ((None, "says that it has 480,000,000 bytes"), (1, "more strips or tiles")):
        tifffile.imwrite(path, VALUES, rowsperstrip=rows)
        with tifffile.TiffFile(path) as file:
            tags = file.pages[0].tags
            claims = {tags["ImageLength"]: 10**7 if rows is None else 60_000}
            if rows is None:
                claims[tags["RowsPerStrip"]] = 10**7
        whole = bytearray(path.read_bytes())
        for tag, number in claims.items():
            at, size = tag.valueoffset, tag.valuebytecount
            whole[at : at + size] = number.to_bytes(size, "little")
        path.write_bytes(whole)
        assert said in refused(path)
