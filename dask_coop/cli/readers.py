"""Opens a file as a Dask array that reads one chunk at a time.

====================  =============================================================
``NAME.npy``          memory-mapped
``NAME.zarr``         an array, or one in a group
``NAME.h5, .hdf5``    a dataset
``NAME.nc``           a variable of a netCDF file, of format 4 (which is HDF5) or 3
``NAME.png, .jpg,``   a picture, decoded whole by each read, for its format leaves no
``.jpeg, .tif, .tiff``  choice; held in memory if it is larger than a chunk
``skimage:NAME``      a picture that comes with scikit-image
====================  =============================================================

NumPy, HDF5 and netCDF files are opened inside the task: what travels in the graph is a path, so
threads, processes and clusters read alike. Numbers that the attributes of an array say are packed
are unpacked (decoding.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.base import is_dask_collection
from dask.utils import parse_bytes

from dask_coop.api.files import from_npy
from dask_coop.chunks.npy import NpyArray, open_npy
from dask_coop.cli.claims import require_feasible, require_within
from dask_coop.cli.decoding import PACKING, TIMES, decode, packing
from dask_coop.errors import UserError

PICTURES = (".jpeg", ".jpg", ".png", ".tif", ".tiff")
#: Files of several arrays, which have attributes.
CONTAINERS = (".zarr", ".h5", ".hdf5", ".nc")
SUFFIXES = (".npy", ".npz", *CONTAINERS, ".csv", *PICTURES)

#: What HDF5 calls the coordinates along an axis.
SCALES = (b"DIMENSION_SCALE", "DIMENSION_SCALE")

Chunks = str | int | tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes
    ----------
    text : str
        What was asked for.
    name : str
        For titles: the file's name, with the name of the dataset in it.
    stem : str
        The same without suffix and folder separators, to derive file names from.
    path : pathlib.Path
        The file or folder that is read.
    array : dask.array.Array
        Bool, integers, floats, dates or durations in native byte order, not empty, in NumPy
        chunks.
    notes : tuple of str
        What was decoded, for people.
    """

    text: str
    name: str
    stem: str
    path: Path
    array: da.Array
    notes: tuple[str, ...] = ()


def open_source(
    text: str, dataset: str | None = None, chunks: Chunks = "auto", path: Path | None = None
) -> Source:
    """Open a file, or a picture of scikit-image, without reading more than it must.

    Parameters
    ----------
    text : str
        A path that ends in one of `SUFFIXES` but .npz and .csv, or ``skimage:NAME``.
    dataset : str, optional
        Which array of an HDF5 or netCDF file or a Zarr group; it may be left out where there is
        only one, or only one that is no coordinate.
    chunks : "auto", int or tuple of int
        The chunks' shape; one number stands for every axis.
    path : pathlib.Path, optional
        Where the file is, if `text` is not its path.

    Returns
    -------
    Source

    Raises
    ------
    UserError
        If there is no such file or dataset, or nothing in it that can be described.
    """
    remote = "://" in text and Path(text).suffix.lower() == ".zarr"
    if text.startswith("skimage:"):
        path = _skimage_picture(text.removeprefix("skimage:"))
    else:
        path = Path(text) if path is None else path
        require_known(text, path)
        if not (remote or path.exists()):
            raise UserError(f"{text}: no such file; check the path")
    suffix = ".zarr" if is_zarr(path) else path.suffix.lower()
    array: Any
    attributes: dict[str, Any] = {}
    member = ""
    if dataset is not None and suffix not in CONTAINERS:
        raise UserError(
            f"{text}: --dataset {dataset} does not apply; it is for HDF5 and netCDF files, Zarr "
            "groups, .npz and .csv"
        )
    if suffix == ".npy":
        array = _open_npy(path)
    elif suffix == ".zarr":
        array, member, attributes = _open_zarr(text if remote else path, dataset)
    elif suffix == ".nc" and _starts_with(path, b"CDF"):
        array, member, attributes = _open_netcdf3(path, dataset)
    elif suffix in CONTAINERS:
        array, member, attributes = _open_hdf5(path, dataset)
    else:
        array = _open_picture(path, chunks)
    return make_source(text, path, member, array, chunks, attributes)


def require_known(text: str, path: Path) -> None:
    """Raise UserError if a path has no extension of those that are read."""
    if path.suffix.lower() not in SUFFIXES and not is_zarr(path):
        raise UserError(
            f"{text}: the extension {path.suffix!r} is not supported; use one of "
            f"{', '.join(SUFFIXES)}, or skimage:NAME, or make a .npy of it by numpy.save"
        )


def is_zarr(path: Path) -> bool:
    """Tell whether a folder holds Zarr, by its name or by what is in it."""
    inside = ("zarr.json", ".zarray", ".zgroup")
    return path.suffix.lower() == ".zarr" or any((path / name).exists() for name in inside)


def make_source(
    text: str,
    path: Path,
    member: str,
    array: Any,
    chunks: Chunks,
    attributes: dict[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> Source:
    """Make a source of an array that was opened.

    Parameters
    ----------
    text : str
        What was asked for.
    path : pathlib.Path
        The file that it is in.
    member : str
        Its name in that file, or "".
    array : array_like or dask.array.Array
    chunks : "auto", int or tuple of int
        The chunks' shape.
    attributes : dict, optional
        Those that may say how its numbers are packed.
    notes : tuple of str
        What there is to be told.

    Returns
    -------
    Source

    Raises
    ------
    UserError
        If it cannot be described.
    """
    name = f"{path.name}/{member}" if member else path.name
    stem = "-".join([path.stem, *member.split("/")]) if member else path.stem
    # What of several arrays is wrong is told by its name.
    shown = f"{text}: {member}" if path.suffix in (".npz", ".csv") else text
    chunked, decoded = _chunked(shown, array, chunks, attributes or {})
    return Source(text, name, stem, path, chunked, (*notes, *decoded))


@dataclass(frozen=True)
class Hdf5Dataset:
    """A dataset of an HDF5 file, which each access opens and closes."""

    path: Path
    dataset: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the dataset."""
        import h5py

        with h5py.File(self.path, "r") as file:
            return file[self.dataset][index]


@dataclass(frozen=True)
class Netcdf3Variable:
    """A variable of a netCDF file of format 3, mapped anew by each access."""

    path: Path
    variable: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the variable."""
        from scipy.io import netcdf_file

        with netcdf_file(self.path, "r", mmap=True) as file:
            # A copy, for the file cannot be closed under a view of it.
            return np.array(file.variables[self.variable][index])


@dataclass(frozen=True)
class Picture:
    """A picture, decoded anew by each access."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the picture."""
        return _read_picture(self.path)[index]


def _open_npy(path: Path) -> NpyArray:
    try:
        return open_npy(path)
    except OSError as error:
        raise UserError(f"{path}: cannot map this file as .npy: {error}") from error
    except ValueError as error:
        raise UserError(str(error)) from error


def _open_zarr(path: Path | str, dataset: str | None) -> tuple[Any, str, dict[str, Any]]:
    import zarr

    try:
        node = zarr.open(path, mode="r")
    # File systems elsewhere have exceptions of their own.
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"{path}: cannot open this as Zarr: {error}") from error
    if isinstance(node, zarr.Array):
        if dataset is not None:
            raise UserError(f"{path}: --dataset {dataset} does not apply; this is one Zarr array")
        return node, "", _zarr_attributes(node)
    arrays = {
        name: member
        for name, member in node.members(max_depth=None)
        if isinstance(member, zarr.Array)
    }
    along = {name for name, array in arrays.items() if _zarr_dimensions(array) == [_last(name)]}
    name = choose(path, list(arrays), dataset, along)
    return arrays[name], name, _zarr_attributes(arrays[name])


def _zarr_dimensions(array: Any) -> list[str]:
    """Return the names of an array's dimensions, where xarray or its like has written them."""
    names = getattr(array.metadata, "dimension_names", None)
    return [*(names or array.attrs.get("_ARRAY_DIMENSIONS", ()))]


def _zarr_attributes(array: Any) -> dict[str, Any]:
    attributes = dict(array.attrs)
    # As xarray does: in format 2 of what has dimensions, Zarr's own fill value is netCDF's.
    if "_ARRAY_DIMENSIONS" in attributes and array.metadata.zarr_format == 2:
        attributes["_FillValue"] = array.fill_value
    return attributes


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _open_netcdf3(path: Path, dataset: str | None) -> tuple[Any, str, dict[str, Any]]:
    from scipy.io import netcdf_file

    if _starts_with(path, b"CDF\x05"):
        raise UserError(
            f"{path}: this is netCDF of format CDF-5, which SciPy does not read; run "
            "`nccopy -k nc4 IN.nc OUT.nc` and describe OUT.nc"
        )
    try:
        file = netcdf_file(path, "r", mmap=True)
    # A file that is cut short fails anywhere in the parser.
    except Exception as error:
        raise UserError(f"{path}: cannot open this as netCDF 3: {error}") from error
    with file:
        # No variable may live on: the file could not be closed.
        facts = {
            name: (v.dimensions, v.shape, np.dtype(v.data.dtype), dict(v._attributes))
            for name, v in file.variables.items()
        }
    along = {name for name, (dimensions, *_) in facts.items() if dimensions == (name,)}
    name = choose(path, list(facts), dataset, along)
    _, shape, dtype, attributes = facts[name]
    return Netcdf3Variable(path.absolute(), name, shape, dtype), name, attributes


def _open_hdf5(path: Path, dataset: str | None) -> tuple[Any, str, dict[str, Any]]:
    import h5py

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"{path}: cannot open this as HDF5: {error}") from error
    with file:
        names: list[str] = []
        file.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
        along = {name for name in names if file[name].attrs.get("CLASS") in SCALES}
        name = choose(path, names, dataset, along)
        found = file[name]
        if found.shape is None:
            raise UserError(f"{path}: the dataset {name} is empty; there is nothing to describe")
        require_within(path, name, found)
        attributes = {key: found.attrs[key] for key in (*PACKING, *TIMES) if key in found.attrs}
        opened = Hdf5Dataset(path.absolute(), name, found.shape, found.dtype, found.chunks)
        return opened, name, attributes


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def choose(
    path: Path | str, names: list[str], dataset: str | None, along: Collection[str] = ()
) -> str:
    """Return the dataset to read: the one asked for, or the only one but for those `along` axes."""
    if not names:
        raise UserError(f"{path}: there is no dataset in it")
    if dataset is None:
        for candidates in (names, [name for name in names if name not in along]):
            if len(candidates) == 1:
                return candidates[0]
        raise UserError(f"{path}: give --dataset NAME, one of {', '.join(sorted(names))}")
    if dataset.strip("/") not in names:
        raise UserError(
            f"{path}: there is no dataset {dataset}; give --dataset NAME, one of "
            f"{', '.join(sorted(names))}"
        )
    return dataset.strip("/")


def _open_picture(path: Path, chunks: Chunks) -> Any:
    """Return what decodes a picture when it is read, if that is as one chunk; else the picture."""
    picture = _read_picture(path)
    if chunks != "auto" or picture.nbytes > parse_bytes(dask.config.get("array.chunk-size")):
        return picture
    return Picture(path.absolute(), picture.shape, picture.dtype)


def _read_picture(path: Path) -> np.ndarray[Any, Any]:
    from skimage.io import imread

    try:
        return np.asarray(imread(path))
    # Each format's decoder has its own exceptions, and none of them is our bug.
    except Exception as error:
        raise UserError(f"{path}: cannot read this as a picture: {error}") from error


def _skimage_picture(name: str) -> Path:
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    pictures = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in PICTURES}
    if name not in pictures:
        raise UserError(
            f"skimage:{name}: scikit-image comes without such a picture; it has "
            f"{', '.join(pictures)}"
        )
    return pictures[name]


def _chunked(
    text: str, x: Any, chunks: Chunks, attributes: dict[str, Any]
) -> tuple[da.Array, list[str]]:
    dtype = np.dtype(x.dtype)
    if dtype.kind not in "biufmM" or dtype.itemsize > 8:
        raise UserError(
            f"{text}: the dtype {dtype} cannot be described; convert the data to bool, integers, "
            "float16 to float64, datetime64 or timedelta64"
        )
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] == "generic":
        raise UserError(f"{text}: the dtype {dtype} cannot be described, as it has no unit")
    if 0 in x.shape:
        raise UserError(
            f"{text}: the array is empty (shape {x.shape}); there is nothing to describe"
        )
    if isinstance(chunks, tuple) and len(chunks) != len(x.shape):
        raise UserError(
            f"{text}: --chunks {','.join(map(str, chunks))} has {len(chunks)} numbers and the "
            f"array {len(x.shape)} axes (shape {x.shape}); give one number for each axis"
        )
    require_feasible(text, x.shape, dtype, chunks)
    packed = packing(attributes, dtype)
    if packed and chunks == "auto":
        # What is decoded is larger.
        before = getattr(x, "chunks", None)
        chunks = normalize_chunks(chunks, x.shape, dtype="f8", previous_chunks=before)
    if is_dask_collection(x):
        array = x if chunks == "auto" else x.rechunk(chunks)
    elif isinstance(x, NpyArray):
        array = from_npy(x.path, chunks)
    else:
        array = da.from_array(
            x,
            chunks=chunks,
            # HDF5 runs one call at a time anyway, and closing a file must not meet a reader.
            lock=isinstance(x, Hdf5Dataset),
            meta=np.empty((0,) * len(x.shape), dtype),
        )
    if packed:
        try:
            return decode(array, packed)
        except UserError as error:
            raise UserError(f"{text}: {error}") from error
        except OSError as error:
            raise UserError(f"{text}: cannot read it: {error}") from error
    return (array if dtype.isnative else array.astype(dtype.newbyteorder("="))), []
