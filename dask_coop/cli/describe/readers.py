"""Open a file as a Dask array that reads one chunk at a time.

====================  =============================================================
``NAME.npy``          memory-mapped
``NAME.zarr``         an array, or one in a group
``NAME.h5, .hdf5``    a dataset
``NAME.nc``           a variable of a netCDF file, of format 4 (which is HDF5) or 3
``NAME.png, .jpg,``   a picture, which each read decodes as a whole, as its format
``.jpeg, .tif, .tiff``  requires; held in memory if it is larger than a chunk
``skimage:NAME``      a picture that comes with scikit-image
====================  =============================================================

Tasks open NumPy, HDF5 and netCDF files: the graph holds a path, so threads, processes and clusters
read alike. A separate process reads HDF5. Numbers that are packed by the attributes of an array are
unpacked (decoding.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.base import is_dask_collection

from dask_coop.api.transfer import from_npy
from dask_coop.chunks.files import NpyArray, open_npy
from dask_coop.cli.describe.claims import require_feasible
from dask_coop.cli.describe.codes import Codes, find_codes
from dask_coop.cli.describe.decoding import decode, packing
from dask_coop.cli.describe.hdf5 import open_hdf5
from dask_coop.cli.describe.members import Members, choose
from dask_coop.cli.describe.netcdf3 import is_netcdf3, open_netcdf3
from dask_coop.cli.describe.pictures import PICTURES, open_picture, skimage_picture
from dask_coop.cli.describe.zarrs import open_zarr
from dask_coop.errors import UserError

#: Files of several arrays with attributes.
CONTAINERS = (".zarr", ".h5", ".hdf5", ".nc")
SUFFIXES = (".npy", ".npz", *CONTAINERS, ".csv", *PICTURES)

Chunks = str | int | tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes
    ----------
    text : str
        The source as the user typed it.
    name : str
        For titles: the name of the file, and of the dataset in it.
    stem : str
        The same without suffix and folder separators, to derive file names from.
    path : pathlib.Path
        The file or folder to read.
    array : dask.array.Array
        Bool, integers, floats, dates or durations in native byte order, not empty, in NumPy
        chunks.
    notes : tuple of str
        Lines on the decoding, for people.
    codes : Codes, optional
        What the file stores in the place of the elements, if there are few different ones.
    """

    text: str
    name: str
    stem: str
    path: Path
    array: da.Array
    notes: tuple[str, ...] = ()
    codes: Codes | None = None


@contextmanager
def as_user_errors(source: Source) -> Iterator[None]:
    """Turn errors of the file, raised while a source is read, into UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source.text}: {error}") from error
    except OSError as error:
        raise UserError(f"{source.text}: cannot read all of it: {error}") from error
    except (ValueError, TypeError, OverflowError) as error:
        # Damaged numbers may stand for no date.
        if not any(note.startswith("decoded: ") for note in source.notes):
            raise
        raise UserError(f"{source.text}: cannot decode its numbers: {error}") from error


def open_source(text: str, dataset: str | None = None, chunks: Chunks = "auto") -> Source:
    """Open a file of one array, or one array of several, as `open_file` does."""
    opened = open_file(text, dataset, chunks)
    if len(opened) > 1:
        names = ", ".join(source.name for source in opened)
        raise UserError(f"{text}: it has several arrays ({names}); name one of them")
    return opened[0]


def open_file(
    text: str, dataset: str | None = None, chunks: Chunks = "auto", path: Path | None = None
) -> list[Source]:
    """Open the arrays of a file, or a picture of scikit-image, and read no more than necessary.

    Parameters
    ----------
    text : str
        A path that ends in one of `SUFFIXES` except .npz and .csv, or ``skimage:NAME``.
    dataset : str, optional
        The name of an array in an HDF5 or netCDF file or a Zarr group; by default all that can be
        described and are no coordinates.
    chunks : "auto", int or tuple of int
        The chunks' shape; one number stands for every axis.
    path : pathlib.Path, optional
        The path of the file, if it is not `text`.

    Returns
    -------
    list of Source
        The notes of the first name the arrays that are left out.

    Raises
    ------
    UserError
        If there is no such file or dataset, or its data cannot be described.
    """
    remote = "://" in text and Path(text).suffix.lower() == ".zarr"
    if text.startswith("skimage:"):
        path = skimage_picture(text.removeprefix("skimage:"))
    else:
        path = Path(text) if path is None else path
        require_known(text, path)
        if not (remote or path.exists()):
            raise UserError(f"{text}: no such file; check the path")
    suffix = ".zarr" if is_zarr(path) else path.suffix.lower()
    if dataset is not None and suffix not in CONTAINERS:
        raise UserError(
            f"{text}: --dataset {dataset} does not apply; it is for HDF5 and netCDF files, Zarr "
            "groups, .npz and .csv"
        )
    if suffix not in CONTAINERS:
        array: Any = _open_npy(path) if suffix == ".npy" else open_picture(path, chunks)
        return [make_source(text, path, "", array, chunks)]
    if suffix == ".zarr":
        members = open_zarr(text if remote else path, dataset)
    elif suffix == ".nc" and is_netcdf3(path):
        members = open_netcdf3(path)
    else:
        members = open_hdf5(path)
    return _open_members(text, path, members, dataset, chunks)


def _open_members(
    text: str, path: Path, members: Members, dataset: str | None, chunks: Chunks
) -> list[Source]:
    names = choose(path, members.names, dataset, members.along)
    sources, left_out = [], {}
    if dataset is None:
        left_out = {name: "coordinates" for name in members.names if name not in names}
    for name in names:
        try:
            array, attributes = members.open(name)
            sources.append(make_source(text, path, name, array, chunks, attributes))
        except UserError as error:
            if len(names) == 1:
                raise
            left_out[name] = reason(error, text, f"{text}: {name}")
    if not sources:
        raise UserError(f"{text}: none of its arrays can be described: {listed(left_out)}")
    if left_out:
        note = f"left out: {listed(left_out)}"
        sources[0] = replace(sources[0], notes=(*sources[0].notes, note))
    return sources


def reason(error: UserError, *starts: str) -> str:
    """Return the cause in a message, without the source's name in front and the advice behind."""
    cause = str(error).partition(";")[0]
    for start in sorted(starts, key=len, reverse=True):
        cause = cause.removeprefix(f"{start}: ")
    return cause


def listed(reasons: Mapping[str, str], most: int = 100) -> str:
    """Return names with the reasons why they are left out, at most `most` names of each."""
    names: dict[str, list[str]] = {}
    for name, why in reasons.items():
        names.setdefault(why, []).append(name)
    for of in names.values():
        of[most:] = [f"{len(of) - most} more"] if len(of) > most else []
    return ", ".join(f"{', '.join(of)} ({why})" for why, of in names.items())


def require_known(text: str, path: Path) -> None:
    """Raise UserError if a path does not have one of the known extensions."""
    if path.suffix.lower() not in SUFFIXES and not is_zarr(path):
        raise UserError(
            f"{text}: the extension {path.suffix!r} is not supported; use one of "
            f"{', '.join(SUFFIXES)}, or skimage:NAME, or make a .npy of it by numpy.save"
        )


def is_zarr(path: Path) -> bool:
    """Return whether a folder holds Zarr, by its name or its files."""
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
    """Return the source of an opened array.

    Parameters
    ----------
    text : str
        The source as the user typed it.
    path : pathlib.Path
        The file of the array.
    member : str
        The array's name in the file, or "".
    array : array_like or dask.array.Array
    chunks : "auto", int or tuple of int
        The chunks' shape.
    attributes : dict, optional
        Attributes that may tell how the numbers are packed.
    notes : tuple of str
        Lines for people.

    Returns
    -------
    Source

    Raises
    ------
    UserError
        If the array cannot be described.
    """
    name = f"{path.name}/{member}" if member else path.name
    stem = "-".join([path.stem, *member.split("/")]) if member else path.stem
    # Messages on one of several arrays have its name.
    shown = f"{text}: {member}" if member else text
    chunked, decoded, codes = _chunked(shown, array, chunks, attributes or {})
    return Source(text, name, stem, path, chunked, (*notes, *decoded), codes)


def _open_npy(path: Path) -> NpyArray:
    try:
        return open_npy(path)
    except OSError as error:
        raise UserError(f"{path}: cannot map this file as .npy: {error}") from error
    except ValueError as error:
        raise UserError(str(error)) from error


def _chunked(
    text: str, x: Any, chunks: Chunks, attributes: dict[str, Any]
) -> tuple[da.Array, list[str], Codes | None]:
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
    blocks = None if is_dask_collection(x) else getattr(x, "chunks", None)
    require_feasible(text, x.shape, dtype, chunks, blocks)
    packed = packing(attributes, dtype)
    if packed and chunks == "auto":
        # Decoded numbers are larger.
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
            # HDF5 takes only slices and integers.
            fancy=False,
            meta=np.empty((0,) * len(x.shape), dtype),
        )
    if packed:
        try:
            decoded, notes, applied = decode(array, packed)
        except UserError as error:
            raise UserError(f"{text}: {error}") from error
        except OSError as error:
            raise UserError(f"{text}: cannot read it: {error}") from error
        # Dates are summed by their ticks, in their unit.
        codes = find_codes(array, applied) if decoded.dtype.kind in "biuf" else None
        return decoded, notes, codes
    array = array if dtype.isnative else array.astype(dtype.newbyteorder("="))
    return array, [], find_codes(array)
