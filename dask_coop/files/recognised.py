"""Recognise arrays of files that Dask and xarray read lazily, and read them as stored arrays.

::

    zarr.Array                                             -> StoredArray
    xarray's arrays, within one another:
      adapter(decoding(lazy index(a backend's array)))     -> adapter(decoding(lazy index(Backend)))

A chain of xarray's arrays is copied down to that of its backend, so that decoding and indexing stay
xarray's own code; only packed numbers are unpacked in one pass (`unpacking`). Libraries are
recognised by the modules of their classes, and not imported.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_coop.files.hdf5 import Dataset, Hdf5Array
from dask_coop.files.stored import StoredArray
from dask_coop.files.unpacking import Unpacking, is_unpacking

#: The modules of xarray's arrays that only change what they get from the array within.
_CHAIN = ("xarray.core.indexing", "xarray.coding.")
#: The arrays of xarray's backends, and h5py's.
_ZARR = ("xarray.backends.zarr", "ZarrArrayWrapper")
_NETCDF = {
    ("xarray.backends.h5netcdf_", "H5NetCDFArrayWrapper"),
    ("xarray.backends.netCDF4_", "NetCDF4ArrayWrapper"),
}
_H5PY = ("h5py._hl.dataset", "Dataset")


class Reader(NamedTuple):
    """How Dask's tasks read an array.

    Attributes
    ----------
    concurrency : int
        The most requests of a process at a time, to stores other than local files.
    sizes : tuple of tuples of int, optional
        Their chunks, if known.
    """

    concurrency: int
    sizes: tuple[tuple[int, ...], ...] | None


def recognised(source: Any, reader: Reader) -> Any:
    """Return an array with the values of `source` that this library reads; None if it is not sure.

    Parameters
    ----------
    source : object
        What Dask's tasks index.
    reader : Reader
    """
    kind = type(source)
    if kind.__module__.startswith("zarr.") and kind.__name__ == "Array":
        return _of_zarr(source, reader)
    if (kind.__module__, kind.__name__) == _H5PY:
        return _of_h5py(source, reader)
    if kind.__module__ == _CHAIN[0]:
        return _of_chain(source, reader)
    return None


def _chain(source: Any) -> Iterator[Any]:
    """Yield an array and those within it, down to a stored one or to one that is not known."""
    yield source
    while not isinstance(source, StoredArray | Hdf5Array):
        if type(source).__module__ == f"{__package__}.lazy":
            source = source.stored
        elif type(source).__module__.startswith(_CHAIN) and hasattr(source, "array"):
            source = source.array
        else:
            return
        yield source


def stored_in(source: Any) -> StoredArray | Hdf5Array | None:
    """Return the stored array that an array reads, which may be a chain of xarray's."""
    *_, last = _chain(source)
    return last if isinstance(last, StoredArray | Hdf5Array) else None


#: xarray's arrays that only pass on what they get, and ours in the place of a backend's.
_PASSING = {
    "Backend",
    "CopyOnWriteArray",
    "ImplicitToExplicitIndexingAdapter",
    "LazilyIndexedArray",
    "_ElementwiseFunctionArray",
}


def _passes(source: Any) -> bool:
    return type(source).__name__ in _PASSING


def _unpacks(source: Any) -> bool:
    return isinstance(getattr(source, "func", None), Unpacking | None)


def only_reads(source: Any) -> bool:
    """Return whether a stored array, or a chain with one, does no more than read and unpack."""
    *outer, stored = _chain(source)
    is_stored = isinstance(stored, StoredArray | Hdf5Array)
    return is_stored and all(_passes(of) and _unpacks(of) for of in outer)


def elements_of(source: Any, index: Any) -> tuple[StoredArray | Hdf5Array, Any] | None:
    """Return the stored array behind an array and its elements at an index; None if not known."""
    *outer, stored = _chain(source)
    if not isinstance(stored, StoredArray | Hdf5Array) or not all(map(_passes, outer)):
        return None
    for of in outer:
        if type(of).__name__ == "LazilyIndexedArray":
            whole = index if isinstance(index, tuple) else (index,)
            if not all(map(_is_basic, whole)):
                return None
            from xarray.core.indexing import BasicIndexer

            # It puts its own index before the given one, and reads nothing.
            index = of[BasicIndexer(whole)].key.tuple
    return stored, index


def _is_basic(index: Any) -> bool:
    return isinstance(index, slice | int | np.integer)


def can_lend(source: Any) -> bool:
    """Return whether `lend` takes an array."""
    *outer, stored = _chain(source)
    if not isinstance(stored, StoredArray) or not only_reads(source):
        return False
    # Zarr's own arrays have elements that lists select.
    return all(all(map(_is_basic, of.key.tuple)) for of in outer if hasattr(of, "key"))


def lend(source: Any, indices: list[tuple[slice, ...]]) -> Iterator[Any]:
    """Yield elements of a stored array, or of a chain with one, in memory that the next ones take.

    Parameters
    ----------
    source : object
        An array that `can_lend` knows.
    indices : list of tuple of slice
    """
    *outer, stored = _chain(source)
    inner_first = [getattr(of, "func", None) for of in reversed(outer)]
    functions = [function for function in inner_first if isinstance(function, Unpacking)]
    pairs = (elements_of(source, index) for index in indices)
    within = [pair[1] for pair in pairs if pair is not None]
    assert len(within) == len(indices)
    for block in stored.lend(within):
        unpacked = block
        for function in functions:
            unpacked = function(unpacked)
        yield unpacked


def _of_zarr(array: Any, reader: Reader) -> StoredArray | None:
    stored = StoredArray(array, reader.concurrency)
    if stored.why_not:
        return None
    # Where the ends of chunks are not known, cells may be cut; those taken whole cost nothing.
    sizes = _sizes_of(reader, stored.shape)
    stored.is_cut = sizes is None or stored.is_cut_by(sizes)
    return stored


def _of_h5py(dataset: Any, reader: Reader) -> Hdf5Array | None:
    # A closed one is false, and one without a name is nowhere in its file.
    if not dataset or dataset.name is None:
        return None
    file = dataset.file
    if file.mode != "r" or file.driver != "sec2" or not os.path.isfile(file.filename):
        return None
    named = Dataset(os.path.abspath(file.filename), dataset.name)
    sizes = _sizes_of(reader, dataset.shape)
    stored = Hdf5Array(named, dataset.shape, dataset.dtype, sizes, dataset)
    return None if stored.why_not else stored


def _of_netcdf(theirs: Any, reader: Reader) -> Hdf5Array | None:
    """Return the array of a variable; the task that reads it first looks how it is stored."""
    store = theirs.datastore
    path, is_new = store._filename, store.format.startswith("NETCDF4")
    if not (isinstance(path, str) and os.path.isfile(path) and is_new and store._mode == "r"):
        return None
    name = "/".join(["", *(store._group or "").strip("/").split("/"), theirs.variable_name])
    named = Dataset(os.path.abspath(path), name.replace("//", "/"))
    return Hdf5Array(named, theirs.shape, theirs.dtype, _sizes_of(reader, theirs.shape))


def _sizes_of(reader: Reader, shape: tuple[int, ...]) -> Any:
    """Return the chunks that tasks take of a whole array; None if they are not known."""
    is_whole = reader.sizes is not None and tuple(map(sum, reader.sizes)) == shape
    return reader.sizes if is_whole else None


def _of_chain(source: Any, reader: Reader) -> Any:
    """Return a copy of xarray's arrays down to that of a backend, with ours in its place."""
    chain = [source]
    while type(chain[-1]).__module__.startswith(_CHAIN):
        if (inner := getattr(chain[-1], "array", None)) is None:
            return None
        chain.append(inner)
    *outer, theirs = chain
    stored: StoredArray | Hdf5Array | None = None
    name = type(theirs).__module__, type(theirs).__name__
    if name == _ZARR:
        stored = _of_zarr(theirs.get_array(), reader)
    elif name in _NETCDF:
        stored = _of_netcdf(theirs, reader)
    if stored is None or stored.shape != theirs.shape or stored.dtype != theirs.dtype:
        return None
    from dask_coop.files.lazy import Backend

    array: Any = Backend(stored, theirs)
    for wrapper in reversed(outer):
        within, array = array, copy.copy(wrapper)
        if is_unpacking(function := getattr(wrapper, "func", None)):
            steps = getattr(within, "func", None)
            if isinstance(steps, Unpacking):
                array.func, within = steps.then(function), within.array
            else:
                array.func = Unpacking((function,))
        array.array = within
    return array
