"""Identify the sources that a task reads, so that a later change of theirs is noticed.

The stamp of a source changes with it:

===========================================  =============================================
.npy files and read-only maps of files       the file's time of modification, bytes, inode
datasets of h5py that are open for reading,  the same
and files behind xarray's lazy arrays
Zarr arrays in a local folder, also behind   the same, of the files of the chunks that are
xarray's lazy arrays                         read; or, if these are not known, the latest of these
                                             times, and bytes and number of all files
the path of a file or a local folder that a  the same
function gets
small arrays                                 their elements
===========================================  =============================================

Other arrays in memory may change unnoticed, and so may remote Zarr arrays and objects of unknown
classes; they have no stamp. Functions need none: Dask's names promise that they return equal
values. Libraries are recognized by the names of their classes' modules, not imported.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dask_coop.chunks.files import NpyArray
from dask_coop.files.hdf5 import Hdf5Array
from dask_coop.files.recognised import elements_of, stored_in
from dask_coop.files.stored import StoredArray, local_root
from dask_coop.files.stores import is_settled, state_of

#: Most bytes of an array in memory that is compared by its elements.
SMALL_BYTES = 1024

#: Most files of a folder to look at, for each chunk anew.
MOST_FILES = 1024


def stamps(reads: Iterable[tuple[Any, Any]]) -> tuple[Hashable, ...] | None:
    """Return the stamps of sources; None if one has no stamp.

    Parameters
    ----------
    reads : iterable of tuple
        Each a source, and the index of the elements that are read of it; None for the whole.
    """
    # The functions below raise LookupError if a source may change unnoticed.
    try:
        return tuple(stamp for read in reads for stamp in _stamps_of_read(*read))
    except (LookupError, OSError):
        return None


def _stamps_of_read(source: Any, index: Any) -> Iterator[Hashable]:
    if index is not None and (elements := elements_of(source, index)) is not None:
        stored, within = elements
        if isinstance(stored, StoredArray):
            states = stored.states(within, MOST_FILES)
            if states is not None:
                yield stored.source.name, *states
                return
    yield from _stamps(source)


def _stamps(value: Any) -> Iterator[Hashable]:
    if isinstance(value, np.ndarray):
        yield _of_array(value)
    elif isinstance(value, NpyArray):
        yield _of_file(value.path)
    elif isinstance(value, str | os.PathLike):
        yield from _of_path(value)
    elif isinstance(value, partial):
        for argument in (*value.args, *value.keywords.values()):
            yield from _stamps(argument)
    elif all(hasattr(value, name) for name in ("shape", "dtype", "__getitem__")):
        # NumPy's scalars have these attributes, too, and never change.
        yield repr(value) if isinstance(value, np.generic) else _of_reader(value)


def _of_path(value: Any) -> Iterator[Hashable]:
    """Yield the stamp of a local file or folder, such as one that a function reads."""
    if os.path.isdir(value):
        yield _of_folder(os.fspath(value))
    elif os.path.isfile(value):
        yield _of_file(value)


def _of_array(x: np.ndarray[Any, Any]) -> Hashable:
    if type(x) is np.ndarray and x.nbytes <= SMALL_BYTES and not x.dtype.hasobject:
        return x.dtype.str, x.shape, x.tobytes()
    return _of_map(x)


def _of_map(x: np.ndarray[Any, Any]) -> Hashable:
    """Return the stamp of the file that `x` maps and may not write to."""
    owner: Any = x
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        # Copies of memory maps in memory have no name.
        if isinstance(owner, np.memmap) and owner.filename is not None:
            return _of_file(owner.filename)
        owner = owner.base
    raise LookupError


def _of_reader(source: Any) -> Hashable:
    """Return the stamp of an array of another library."""
    if (stored := stored_in(source)) is not None:
        return (
            _of_file(stored.dataset.path)
            if isinstance(stored, Hdf5Array)
            else _of_zarr(stored.array)
        )
    library = type(source).__module__.partition(".")[0]
    if library == "xarray":
        return _of_xarray(source)
    if library == "zarr":
        return _of_zarr(source)
    if library == "h5py" and source.file.mode == "r":
        return _of_file(source.file.filename)
    raise LookupError


def _of_xarray(source: Any) -> Hashable:
    """Return the stamp of a lazy array of xarray, which wraps that of a backend."""
    for name in ("array", "_array"):
        if (inner := getattr(source, name, None)) is not None:
            stamp = tuple(_stamps(inner))
            if not stamp:
                raise LookupError
            return stamp
    store = getattr(source, "datastore", None)
    path = getattr(store, "_filename", None)
    if not isinstance(path, str):
        path = next(iter(getattr(getattr(store, "_manager", None), "_args", ())), None)
    if not isinstance(path, str):
        raise LookupError
    return _of_file(path)


def _of_zarr(source: Any) -> Hashable:
    if (root := local_root(source.store)) is None:
        raise LookupError
    return _of_folder(os.path.join(root, source.path))


def _of_file(path: Any) -> Hashable:
    status = os.stat(path)
    _require_settled(status.st_mtime_ns)
    return os.fspath(path), *state_of(status)


def _of_folder(path: str) -> Hashable:
    latest = number = nbytes = 0
    folders = [path]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                status = entry.stat()
                # Replacing a file changes the time of its folder.
                latest = max(latest, status.st_mtime_ns)
                number, nbytes = number + 1, nbytes + status.st_size
                if number > MOST_FILES:
                    raise LookupError
    _require_settled(latest)
    return path, latest, number, nbytes


def _require_settled(modified: int) -> None:
    """Raise an exception if a file may change once more without another time."""
    if not is_settled(modified):
        raise LookupError
