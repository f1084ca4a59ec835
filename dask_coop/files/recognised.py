"""Recognise arrays of files that Dask and xarray read lazily, and read them as stored arrays.

::

    zarr.Array                                             -> StoredArray
    xarray's arrays, within one another:
      adapter(decoding(lazy index(a backend's array)))     -> adapter(decoding(lazy index(Backend)))

A chain of xarray's arrays is copied down to that of its backend, so that decoding and indexing stay
xarray's own code. Libraries are recognised by the modules of their classes, and not imported.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from dask_coop.files.stored import StoredArray, cuts

#: The modules of xarray's arrays that only change what they get from the array within.
_CHAIN = ("xarray.core.indexing", "xarray.coding.")


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
    if kind.__module__ == _CHAIN[0]:
        return _of_chain(source, reader)
    return None


def stored_in(source: Any) -> StoredArray | None:
    """Return the stored array that an array reads, which may be a chain of xarray's."""
    while not isinstance(source, StoredArray):
        if type(source).__module__ == f"{__package__}.lazy":
            source = source.stored
        elif type(source).__module__.startswith(_CHAIN) and hasattr(source, "array"):
            source = source.array
        else:
            return None
    return source


def _of_zarr(array: Any, reader: Reader) -> StoredArray | None:
    stored = StoredArray(array, reader.concurrency)
    if stored.why_not:
        return None
    if reader.sizes is None or tuple(map(sum, reader.sizes)) != stored.shape:
        # The ends of chunks are not known, and cells that are taken whole cost nothing.
        return StoredArray(array, reader.concurrency, True)
    return StoredArray(array, reader.concurrency, cuts(reader.sizes, stored.cell))


def _of_chain(source: Any, reader: Reader) -> Any:
    """Return a copy of xarray's arrays down to that of a backend, with ours in its place."""
    chain = [source]
    while type(chain[-1]).__module__.startswith(_CHAIN):
        if (inner := getattr(chain[-1], "array", None)) is None:
            return None
        chain.append(inner)
    *outer, theirs = chain
    stored = None
    if (type(theirs).__module__, type(theirs).__name__) == _ZARR:
        stored = _of_zarr(theirs.get_array(), reader)
    if stored is None or stored.shape != theirs.shape or stored.dtype != theirs.dtype:
        return None
    from dask_coop.files.lazy import Backend

    array: Any = Backend(stored, theirs)
    for wrapper in reversed(outer):
        array, within = copy.copy(wrapper), array
        array.array = within
    return array


#: xarray's array of a Zarr array.
_ZARR = ("xarray.backends.zarr", "ZarrArrayWrapper")
