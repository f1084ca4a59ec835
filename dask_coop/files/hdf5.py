"""Read datasets of HDF5 and NetCDF-4 files by the thread that indexes them, without HDF5's lock.

HDF5 runs one call of a process at a time, decompression included. Here it only tells where chunks
are, once for each file::

    h5py: filters, chunk -> offset, length        kept until the file changes
                 |
    thread 1: preadv, inflate, unshuffle    thread 2: preadv, inflate, unshuffle    ...

The file is to the layout one shard whose index is known. Elements of a dataset without chunks lie
in the file as in memory, and are read in runs as long as an index allows.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dask_coop.errors import NotSupported
from dask_coop.files.codecs import Bytes, Chain, Config, chain
from dask_coop.files.layout import ABSENT, Layout, Shards
from dask_coop.files.rates import added
from dask_coop.files.stored import blaming, cuts, elements, selected
from dask_coop.files.stores import (
    LocalFiles,
    Request,
    bytes_at,
    is_settled,
    state_of,
)

#: HDF5's numbers of filters, and the names of codecs here; those of 4 bytes are checksums.
_CODECS = {1: "zlib", 2: "shuffle", 3: "fletcher32", 32015: "zstd"}
#: Runs that are closer than this are read as one, with the elements between them.
_GAP_BYTES = 16 << 10
#: The most bytes of a run that has more elements than are needed.
_RUN_BYTES = 8 << 20
#: So many layouts are remembered.
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Contiguous:
    """How a dataset without chunks is stored.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    offset : int
        Of the first element in the file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class Dataset(NamedTuple):
    """A dataset of a local file.

    Attributes
    ----------
    path : str
    name : str
        Within the file.
    """

    path: str
    name: str


def layout_of_hdf5(dataset: Any) -> Layout | Contiguous:
    """Return the layout of a dataset.

    Parameters
    ----------
    dataset : h5py.Dataset
        Of a file that is open for reading.

    Raises
    ------
    NotSupported
        If only HDF5 can read it; the message says why.
    """
    from h5py import h5d, h5t

    file, shape, dtype = dataset.file, dataset.shape, dataset.dtype
    if file.mode != "r" or file.driver != "sec2" or file.swmr_mode or file.userblock_size:
        raise NotSupported("files that are open for writing, or not local, or with a user block")
    stored = dataset.id.get_type()
    is_number = stored.get_class() in (h5t.INTEGER, h5t.FLOAT) and dtype.itemsize <= 8
    # Bits may be fewer than those of the bytes, or in another order.
    if not is_number or not stored.equal(h5t.py_create(dtype)):
        raise NotSupported(f"elements of dtype {dtype}, as they are stored")
    if not shape or not all(shape):
        raise NotSupported(f"the shape {shape}")
    properties = dataset.id.get_create_plist()
    kind = properties.get_layout()
    if kind == h5d.CONTIGUOUS and not properties.get_external_count():
        offset = dataset.id.get_offset()
        if offset is None or dataset.id.get_storage_size() != dataset.nbytes:
            raise NotSupported("elements that are not in the file yet")
        return Contiguous(shape, dtype, offset)
    if kind != h5d.CHUNKED:
        raise NotSupported("elements that are in no chunks of the file")
    decoders = chain(_configs(properties, dtype), dataset.chunks, dtype)
    places = _places(dataset)
    if (places == ABSENT).any() and not _has_fill(properties):
        raise NotSupported("chunks that are not stored, without a fill value")
    if decoders.steps and _may_be_unfiltered(places, shape, dataset.chunks, decoders.nbytes):
        raise NotSupported("chunks beyond the end of an axis that may not be filtered")
    shards = Shards(places.shape[:-1], decoders, 0, 0, places)
    name = os.path.basename(dataset.name)
    return Layout(shape, dtype, decoders, lambda _: name, dataset.fillvalue, shards)


def _configs(properties: Any, dtype: np.dtype[Any]) -> Iterator[Config]:
    """Yield the names of codecs and their configurations, in the order of encoding."""
    for number in range(properties.get_nfilters()):
        code, _, values, label = properties.get_filter(number)
        if (name := _CODECS.get(code)) is None:
            raise NotSupported(f"the filter {code} ({label.decode(errors='replace')})")
        size = (values[0] if values else dtype.itemsize) if name == "shuffle" else None
        yield name, {} if size is None else {"elementsize": size}


def _has_fill(properties: Any) -> bool:
    """Return whether chunks that are not stored have a known content."""
    from h5py import h5d

    is_defined = properties.fill_value_defined() != h5d.FILL_VALUE_UNDEFINED
    return bool(is_defined and properties.get_fill_time() != h5d.FILL_TIME_NEVER)


def _may_be_unfiltered(
    places: Any, shape: tuple[int, ...], sizes: tuple[int, ...], nbytes: int
) -> bool:
    """Return whether a chunk that ends beyond the dataset has as many bytes as its elements.

    Such chunks may lack filters (`H5Pset_chunk_opts`), of which nothing else tells.
    """
    last = [
        slice(-1, None) if n % size else slice(0, 0) for n, size in zip(shape, sizes, strict=True)
    ]
    lengths = places[..., 1]
    return any(
        bool((lengths[(slice(None),) * axis + (end,)] == nbytes).any())
        for axis, end in enumerate(last)
    )


def _places(dataset: Any) -> np.ndarray[Any, Any]:
    """Return the offset and length of each chunk in the file, of shape (*chunks, 2)."""
    sizes = dataset.chunks
    cells = tuple(-(-n // size) for n, size in zip(dataset.shape, sizes, strict=True))
    places = np.full((*cells, 2), ABSENT, "u8")
    filtered = False

    def note(chunk: Any) -> None:
        nonlocal filtered
        number = tuple(at // size for at, size in zip(chunk.chunk_offset, sizes, strict=True))
        if all(i < n for i, n in zip(number, cells, strict=True)):
            places[number] = chunk.byte_offset, chunk.size
        filtered |= bool(chunk.filter_mask)

    if hasattr(dataset.id, "chunk_iter"):
        dataset.id.chunk_iter(note)
    else:
        for i in range(dataset.id.get_num_chunks()):
            note(dataset.id.get_chunk_info(i))
    if filtered:
        raise NotSupported("chunks that filters have left out")
    return places


class Hdf5Array:
    """A dataset of an HDF5 file, read without HDF5 where that can be.

    Parameters
    ----------
    dataset : Dataset
    shape, dtype
        Those that it had when the graph was built.
    sizes : tuple of tuples of int, optional
        The chunks that tasks take, if known.
    theirs : h5py.Dataset, optional
        What else reads it.
    """

    def __init__(
        self,
        dataset: Dataset,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        sizes: Any = None,
        theirs: Any = None,
    ) -> None:
        self.dataset = dataset
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.ndim: int = len(self.shape)
        self.source: _OpenFile = _OpenFile(dataset)
        self._theirs, self._sizes = theirs, sizes

    def __reduce__(self) -> Any:
        """Return how to make the array where a task runs."""
        return type(self), (self.dataset, self.shape, self.dtype, self._sizes)

    def __repr__(self) -> str:
        """Return the file and the name of the dataset."""
        return f"{type(self).__name__}({self.source.name!r})"

    @property
    def chain(self) -> Chain | None:
        """The codecs of its chunks; None if it has no chunks."""
        with self.source.open() as file:
            layout = self._layout_in(file)
        return layout.chain if isinstance(layout, Layout) else None

    @property
    def codecs(self) -> str:
        """The names of its codecs, in the order of decoding."""
        chain = self.chain
        return chain.names if chain else "no codec"

    @property
    def why_not(self) -> str:
        """Why HDF5 itself reads it; empty if it does not."""
        try:
            with self.source.open() as file:
                self._layout_in(file)
        except (NotSupported, OSError, ImportError) as error:
            return str(error) or type(error).__name__
        return ""

    def _layout_in(self, file: _OpenFile) -> Layout | Contiguous:
        layout = _known(self.dataset, file)
        if layout.shape != self.shape or layout.dtype != self.dtype:
            raise NotSupported(f"{layout.dtype} of shape {layout.shape}, which it was not before")
        return layout

    def __getitem__(self, index: Any) -> Any:
        """Return elements; HDF5 itself has indices other than slices and integers."""
        taken = selected(index, self.shape)
        if taken is None or (self._theirs is not None and self.why_not):
            return self._by_hdf5(index)
        ranges, steps = taken
        if not all(map(len, ranges)):
            return np.empty([*map(len, ranges)], self.dtype)[steps]
        with self.source.open() as file:
            layout = self._layout_in(file)
            if isinstance(layout, Contiguous):
                out = np.empty([*map(len, ranges)], self.dtype)
                _read_runs(file, layout, ranges, out)
            else:
                is_cut = self._sizes is None or cuts(self._sizes, layout.chain.shape)
                out = elements(file, layout, ranges, is_cut)
        return out[steps]

    def _by_hdf5(self, index: Any) -> Any:
        if self._theirs is not None:
            return self._theirs[index]
        import h5py

        with h5py.File(self.dataset.path, "r") as file:
            return file[self.dataset.name][index]


class _OpenFile(LocalFiles):
    """A file that holds a dataset; while it is open, its descriptor.

    Parameters
    ----------
    dataset : Dataset
    descriptor : int, optional
    """

    def __init__(self, dataset: Dataset, descriptor: int = -1) -> None:
        super().__init__(f"{dataset.path}{dataset.name}")
        self.dataset = dataset
        self._descriptor = descriptor

    @contextmanager
    def open(self) -> Iterator[_OpenFile]:
        """Open the file, so that all that is read is of one state of it."""
        descriptor = os.open(self.dataset.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield type(self)(self.dataset, descriptor)
        finally:
            os.close(descriptor)

    def state(self) -> tuple[int, ...]:
        """Return the time of its modification, its size and its inode."""
        return state_of(os.fstat(self._descriptor))

    def stamp(self, key: str) -> tuple[int, ...] | None:
        """Return the state of the file; None if it may be changing just now."""
        state = self.state()
        return state if is_settled(state[0]) else None

    def bytes_at(self, begin: int, nbytes: int, out: Bytes | None = None) -> Bytes:
        """Return bytes of the file, in `out` if there is one."""
        return bytes_at(self._descriptor, begin, nbytes, out)

    def _read(self, request: Request) -> Bytes:
        _, begin, nbytes, out, _ = request
        return self.bytes_at(begin, nbytes or 0, out)


#: By dataset: the state of its file, and its layout or the reason why HDF5 reads it.
_layouts: OrderedDict[Dataset, tuple[Any, Layout | Contiguous | str]] = OrderedDict()
_lock = threading.Lock()


def _known(dataset: Dataset, file: _OpenFile) -> Layout | Contiguous:
    """Return the layout of a dataset in a file that is open."""
    state = file.stamp("")
    with _lock:
        if (known := _layouts.get(dataset)) is None or known[0] is None or known[0] != state:
            try:
                layout: Layout | Contiguous | str = _find(dataset, file)
            except NotSupported as error:
                layout = str(error)
            known = _layouts[dataset] = state, layout
            if len(_layouts) > _MOST:
                _layouts.popitem(last=False)
    if isinstance(known[1], str):
        raise NotSupported(known[1])
    return known[1]


def _find(dataset: Dataset, file: _OpenFile) -> Layout | Contiguous:
    """Return the layout of a dataset, by h5py."""
    import h5py

    before = file.state()
    # Where h5py and netCDF4 share a library, this lock is what keeps threads from it.
    locks = sys.modules.get("xarray.backends.locks")
    with getattr(locks, "HDF5_LOCK", nullcontext()):
        try:
            opened = h5py.File(dataset.path, "r")
        except OSError as error:
            raise NotSupported(f"h5py cannot open it: {error}") from error
        with opened:
            folder, _, name = dataset.name.rpartition("/")
            group = opened.get(folder or "/", ())
            # HDF5 has the dimension by this name, if a variable of NetCDF has the same.
            if name not in group or f"_nc4_non_coord_{name}" in group:
                raise NotSupported(f"HDF5 has no dataset {dataset.name!r}")
            member = group[name]
            if not isinstance(member, h5py.Dataset) or member.file.filename != opened.filename:
                raise NotSupported("links to other files")
            layout = layout_of_hdf5(member)
    if before != state_of(os.stat(dataset.path)):
        raise NotSupported("files that change meanwhile")
    return layout


def _read_runs(file: _OpenFile, of: Contiguous, ranges: list[range], out: Any) -> None:
    """Fill `out` with the elements of a dataset without chunks."""
    itemsize = of.dtype.itemsize
    strides = [math.prod(of.shape[axis + 1 :]) * itemsize for axis in range(len(ranges))]
    steps = [taken.step * stride for taken, stride in zip(ranges, strides, strict=True)]
    # A run has `span` bytes, and all that is taken along the axes from `first` on.
    first, span, is_dense = len(ranges), itemsize, True
    while first:
        gap = steps[first - 1] - span if len(ranges[first - 1]) > 1 else 0
        joined = span + (len(ranges[first - 1]) - 1) * steps[first - 1]
        if gap > _GAP_BYTES or (joined > _RUN_BYTES and (gap or not is_dense)):
            break
        first, span, is_dense = first - 1, joined, is_dense and not gap
    lengths = [*map(len, ranges[first:])]
    begin = of.offset + sum(t.start * n for t, n in zip(ranges, strides, strict=True))
    with added(file.name) as rate:
        for row in np.ndindex(*map(len, ranges[:first])):
            at = begin + sum(i * step for i, step in zip(row, steps, strict=False))
            # With an ellipsis, because an array without axes would give a scalar.
            target = out[(*row, ...)]
            start = time.perf_counter()
            with blaming(file.name, f"from byte {at:,}"):
                data = file.bytes_at(at, span, target.reshape(-1).view("u1") if is_dense else None)
            rate.reading += time.perf_counter() - start
            rate.stored += span
            if not is_dense:
                target[...] = np.ndarray(lengths, of.dtype, data.data, 0, steps[first:])
        rate.decoded += out.nbytes
