"""Opens a file as a Dask array that reads one chunk at a time.

====================  =============================================================
``NAME.npy``          memory-mapped
``NAME.zarr``         an array, or one in a group
``NAME.h5, .hdf5``    a dataset
``NAME.png, .jpg,``   a picture, decoded whole, for its format leaves no choice
``.jpeg, .tif, .tiff``
``skimage:NAME``      a picture that comes with scikit-image
====================  =============================================================

NumPy and HDF5 files are opened anew for each chunk, inside the task: what travels in the graph is
a path, so threads, processes and clusters read alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from dask_coop.errors import UserError

PICTURES = (".jpeg", ".jpg", ".png", ".tif", ".tiff")
SUFFIXES = (".npy", ".zarr", ".h5", ".hdf5", *PICTURES)

Chunks = str | int | tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes
    ----------
    name : str
        For titles: the file's name, with the name of the dataset in it.
    stem : str
        The same without suffix and folder separators, to derive file names from.
    path : pathlib.Path
        The file or folder that is read.
    array : dask.array.Array
        Bool, integers or floats in native byte order, not empty, in NumPy chunks.
    """

    name: str
    stem: str
    path: Path
    array: da.Array


def open_source(text: str, dataset: str | None = None, chunks: Chunks = "auto") -> Source:
    """Open a file, or a picture of scikit-image, without reading more than it must.

    Parameters
    ----------
    text : str
        A path that ends in one of `SUFFIXES`, or ``skimage:NAME``.
    dataset : str, optional
        Which array of an HDF5 file or a Zarr group; it may be left out where there is only one.
    chunks : "auto", int or tuple of int
        The chunks' shape; one number stands for every axis.

    Returns
    -------
    Source

    Raises
    ------
    UserError
        If there is no such file or dataset, or nothing in it that can be described.
    """
    if text.startswith("skimage:"):
        path = _skimage_picture(text.removeprefix("skimage:"))
    else:
        path = Path(text)
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(
                f"{text}: the extension {path.suffix!r} is not supported; use one of "
                f"{', '.join(SUFFIXES)}, or skimage:NAME"
            )
        if not path.exists():
            raise UserError(f"{text}: no such file; check the path")
    suffix = path.suffix.lower()
    array: Any
    member = ""
    if dataset is not None and suffix not in (".zarr", ".h5", ".hdf5"):
        raise UserError(
            f"{text}: --dataset {dataset} does not apply; it is for HDF5 files and Zarr groups"
        )
    if suffix == ".npy":
        array = _open_npy(path)
    elif suffix == ".zarr":
        array, member = _open_zarr(path, dataset)
    elif suffix in (".h5", ".hdf5"):
        array, member = _open_hdf5(path, dataset)
    else:
        array = _read_picture(path)
    name = f"{path.name}/{member}" if member else path.name
    stem = "-".join([path.stem, *member.split("/")]) if member else path.stem
    return Source(name, stem, path, _chunked(text, array, chunks))


@dataclass(frozen=True)
class NpyFile:
    """An array in a ``.npy`` file, mapped anew by each access."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the array."""
        return np.lib.format.open_memmap(self.path, mode="r")[index]


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


def _open_npy(path: Path) -> NpyFile:
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot map this file as .npy: {error}") from error
    return NpyFile(path.absolute(), mapped.shape, mapped.dtype)


def _open_zarr(path: Path, dataset: str | None) -> tuple[Any, str]:
    import zarr

    try:
        node = zarr.open(path, mode="r")
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: cannot open this as Zarr: {error}") from error
    if isinstance(node, zarr.Array):
        if dataset is not None:
            raise UserError(f"{path}: --dataset {dataset} does not apply; this is one Zarr array")
        return node, ""
    arrays = {
        name: member
        for name, member in node.members(max_depth=None)
        if isinstance(member, zarr.Array)
    }
    name = _choose(path, list(arrays), dataset)
    return arrays[name], name


def _open_hdf5(path: Path, dataset: str | None) -> tuple[Hdf5Dataset, str]:
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
        name = _choose(path, names, dataset)
        found = file[name]
        if found.shape is None:
            raise UserError(f"{path}: the dataset {name} is empty; there is nothing to describe")
        return Hdf5Dataset(path.absolute(), name, found.shape, found.dtype, found.chunks), name


def _choose(path: Path, names: list[str], dataset: str | None) -> str:
    """Return the dataset to read: the one asked for, or the only one."""
    if not names:
        raise UserError(f"{path}: there is no dataset in it")
    if dataset is None:
        if len(names) == 1:
            return names[0]
        raise UserError(f"{path}: give --dataset NAME, one of {', '.join(sorted(names))}")
    if dataset.strip("/") not in names:
        raise UserError(
            f"{path}: there is no dataset {dataset}; give --dataset NAME, one of "
            f"{', '.join(sorted(names))}"
        )
    return dataset.strip("/")


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


def _chunked(text: str, x: Any, chunks: Chunks) -> da.Array:
    dtype = np.dtype(x.dtype)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise UserError(
            f"{text}: the dtype {dtype} cannot be described; convert the data to bool, integers "
            "or float16 to float64"
        )
    if 0 in x.shape:
        raise UserError(
            f"{text}: the array is empty (shape {x.shape}); there is nothing to describe"
        )
    if isinstance(chunks, tuple) and len(chunks) != len(x.shape):
        raise UserError(
            f"{text}: --chunks {','.join(map(str, chunks))} has {len(chunks)} numbers and the "
            f"array {len(x.shape)} axes (shape {x.shape}); give one number for each axis"
        )
    array = da.from_array(
        x,
        chunks=chunks,
        # HDF5 runs one call at a time anyway, and closing a file must not meet another's reading.
        lock=isinstance(x, Hdf5Dataset),
        meta=np.empty((0,) * len(x.shape), dtype),
    )
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))
