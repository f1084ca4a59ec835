"""An array whose chunks are read and decoded by the thread that indexes it.

    x[10:30, 5]  -> cells that it meets -> requests, joined within a shard -> bytes -> elements

A cell that lies whole and without gaps in the result is decoded there, any other one in memory of
the thread's own, from where it is copied. Where Dask's chunks cut cells, each is decoded once for
all of them: see `decoded`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import accumulate, product, repeat
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from dask_coop.errors import NotSupported
from dask_coop.files.codecs import Bytes, Chain
from dask_coop.files.decoded import DECODED, Need
from dask_coop.files.layout import Layout, Shards, layout_of_zarr, place, unit_of
from dask_coop.files.rates import added
from dask_coop.files.stores import LocalFiles, Request, ZarrStore, scratch

#: A request within a shard skips gaps of up to so many bytes, and has up to so many in all.
GAP_BYTES = 64 << 10
REQUEST_BYTES = 8 << 20


#: The number of the buffer of a thread for elements; those of bytes are 0, 1 and 2.
_LENT = 3

#: The files of the metadata of an array, of either format.
_METADATA = ("zarr.json", ".zarray")


class Cell(NamedTuple):
    """The elements of a cell that an index selects.

    Attributes
    ----------
    number : tuple of int
        The place of the cell along each axis.
    source, target : tuple of slice
        The elements in the cell, and their place in the result.
    """

    number: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]


#: Of an array without axes.
_ALL = Cell((), (), ())


class StoredArray:
    """A Zarr array, read without Zarr's event loop where that can be.

    Parameters
    ----------
    array : zarr.Array
    concurrency : int
        The most requests of a process at a time, to stores other than local files.
    is_cut : bool
        Whether Dask's chunks cut stored ones.

    Attributes
    ----------
    why_not : str
        Why Zarr itself reads it; empty if it does not.
    """

    def __init__(self, array: Any, concurrency: int, is_cut: bool = False) -> None:
        self.array = array
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype[Any] = array.dtype
        self.ndim: int = len(self.shape)
        #: A shard has one index, and is one chunk for Dask. Of uneven ones, all lengths.
        unit = unit_of(array.metadata)
        self.chunks: tuple[Any, ...] = array.write_chunk_sizes if unit is None else unit
        self.concurrency = concurrency
        self.is_cut = is_cut
        self._layout: Layout | None = None
        self.why_not: str = ""
        try:
            self._layout = layout_of_zarr(array)
        except NotSupported as error:
            self.why_not = str(error)

    def __reduce__(self) -> Any:
        """Return how to make the array where a task runs."""
        return type(self), (self.array, self.concurrency, self.is_cut)

    def __dask_tokenize__(self) -> Any:
        """Return the values that identify the array in Dask's names."""
        return type(self).__name__, self.array, self.is_cut

    def __repr__(self) -> str:
        """Return the array that is read."""
        return f"{type(self).__name__}({self.array!r})"

    @property
    def chain(self) -> Chain | None:
        """The codecs of its chunks; None if Zarr itself reads it."""
        return self._layout.chain if self._layout else None

    @property
    def codecs(self) -> str:
        """The names of its codecs, in the order of decoding."""
        return self.chain.names if self.chain else ""

    def is_cut_by(self, sizes: tuple[tuple[int, ...], ...]) -> bool:
        """Return whether chunks of these sizes cut the cells, if Zarr itself does not read them."""
        return self._layout is not None and cuts(sizes, self._layout.chain.shape)

    @cached_property
    def source(self) -> LocalFiles | ZarrStore:
        """The store that has its bytes."""
        array = self.array
        root = local_root(array.store)
        if root is None:
            return ZarrStore(array.store, array.path, self.concurrency)
        return LocalFiles(f"{root}/{array.path}".rstrip("/"))

    def states(self, index: Any, most: int) -> Any:
        """Return the states of the files that have elements, as `LocalFiles.states` does.

        None also if Zarr itself reads them, from other stores or from more than `most` files.
        """
        taken = None if self._layout is None else selected(index, self.shape)
        source = self.source
        if self._layout is None or taken is None or not isinstance(source, LocalFiles):
            return None
        along = [
            range(some[0] // n, some[-1] // n + 1) if some else range(0)
            for some, n in zip(taken[0], self.chunks, strict=True)
        ]
        if math.prod(map(len, along)) > most:
            return None
        keys = map(self._layout.key, product(*along))
        return source.states([*_METADATA, *keys])

    def __getitem__(self, index: Any) -> Any:
        """Return elements; Zarr itself has indices other than slices and integers."""
        return self._read(index, np.empty)

    def lend(self, indices: Sequence[tuple[slice, ...]]) -> Generator[Any]:
        """Yield the elements at each index, in memory of this thread that the next ones take."""
        layout, cells = self._layout, None
        if layout is not None and layout.lends and reader() is None:
            cells = _whole(indices, layout.chain.shape)
        if layout is None or cells is None:
            for index in indices:
                yield self._read(index, _lent)
            return
        with closing(Reading(self.source, layout, None, False).lend(cells)) as blocks:
            yield from blocks

    def _read(self, index: Any, empty: Callable[..., Any]) -> Any:
        taken = None if self._layout is None else selected(index, self.shape)
        if self._layout is None or taken is None:
            return self.array[index]
        ranges, steps = taken
        out = elements(self.source, self._layout, ranges, self.is_cut, empty)
        # With an ellipsis, because a scalar of bytes or characters would have a dtype of its own.
        return out[(*steps, ...)]


class Reader(Protocol):
    """How a thread gets elements elsewhere than on the host: the functions of a module."""

    def read(self, source: Any, layout: Layout, ranges: list[range]) -> Any:
        """Return elements, or None if the host reads them."""

    def unpack(self, codes: Any, dtype: Any, fill: Any, scale: Any, offset: Any) -> Any:
        """Return the numbers that codes stand for."""


class _Onto(threading.local):
    """The reader of a thread; None for the host."""

    reader: Reader | None = None


_onto = _Onto()


@contextmanager
def onto(reader: Reader) -> Iterator[None]:
    """Have stored arrays that this thread indexes give the arrays of a reader where it has them."""
    before, _onto.reader = _onto.reader, reader
    try:
        yield
    finally:
        _onto.reader = before


def reader() -> Reader | None:
    """Return the reader of this thread."""
    return _onto.reader


def _lent(shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Return an array in memory that this thread uses for the next one."""
    nbytes = math.prod(shape) * dtype.itemsize
    return scratch(_LENT, nbytes).view(dtype).reshape(shape)


def _is_span(index: Any) -> bool:
    """Return whether an index is a slice of known ends without steps."""
    return (
        isinstance(index, slice)
        and None not in (index.start, index.stop)
        and index.step in (None, 1)
    )


def _whole(indices: Iterable[tuple[slice, ...]], cell: tuple[int, ...]) -> Any:
    """Return the numbers of the cells that blocks are, at some slices; None if one is another."""
    numbers = []
    for index in indices:
        if len(index) != len(cell) or not all(map(_is_span, index)):
            return None
        sides = [(s.start, s.stop, n) for s, n in zip(index, cell, strict=True)]
        if any(end - begin != n or begin % n for begin, end, n in sides):
            return None
        numbers.append(tuple(begin // n for begin, _, n in sides))
    return numbers


def elements(
    source: LocalFiles | ZarrStore,
    layout: Layout,
    ranges: list[range],
    is_cut: bool,
    empty: Callable[..., Any] = np.empty,
) -> Any:
    """Return elements of a stored array, a NumPy array or one of this thread's reader.

    Parameters
    ----------
    source : LocalFiles or ZarrStore
    layout : Layout
    ranges : list of range
        Those along each axis.
    is_cut : bool
        Whether other tasks need other elements of the same cells.
    empty : callable
        Makes the array, of a shape and dtype.
    """
    if _onto.reader and (out := _onto.reader.read(source, layout, ranges)) is not None:
        return out
    out = empty([*map(len, ranges)], layout.dtype)
    if out.size:
        Reading(source, layout, out, is_cut).run(ranges)
    return out


def cuts(sizes: tuple[tuple[int, ...], ...], cell: tuple[int, ...]) -> bool:
    """Return whether chunks of these sizes end within cells."""
    return any(
        any(end % n for end in [*accumulate(lengths)][:-1])
        for lengths, n in zip(sizes, cell, strict=True)
    )


def local_root(store: Any) -> str | None:
    """Return the folder of a store of Zarr; None if it has no local one."""
    if (root := getattr(store, "root", None)) is not None:
        return str(root) if type(store).__name__ == "LocalStore" else None
    # Dask opens local folders by fsspec, too.
    system = getattr(store, "fs", None)
    protocol = getattr(getattr(system, "sync_fs", system), "protocol", ())
    # Some have one name, and "filecache" is none of a local folder.
    protocols = (protocol,) if isinstance(protocol, str) else protocol
    return str(store.path) if "file" in protocols else None


def selected(index: Any, shape: tuple[int, ...]) -> tuple[list[range], tuple[Any, ...]] | None:
    """Return the ascending range of each axis that an index selects, and an index into these.

    None if the index is not made of slices, integers and an ellipsis.
    """
    index = index if isinstance(index, tuple) else (index,)
    if any(i is Ellipsis for i in index):
        before = next(at for at, i in enumerate(index) if i is Ellipsis)
        missing = len(shape) - len(index) + 1
        index = (*index[:before], *[slice(None)] * missing, *index[before + 1 :])
    index = (*index, *[slice(None)] * (len(shape) - len(index)))
    if len(index) != len(shape):
        return None
    ranges: list[range] = []
    then: list[Any] = []
    for i, n in zip(index, shape, strict=True):
        if isinstance(i, slice):
            taken = range(*i.indices(n))
            ranges.append(taken if taken.step > 0 else taken[::-1])
            then.append(slice(None, None, 1 if taken.step > 0 else -1))
        elif isinstance(i, int | np.integer) and not isinstance(i, bool):
            at = range(n)[i]
            ranges.append(range(at, at + 1))
            then.append(0)
        else:
            return None
    return ranges, tuple(then)


def _along(taken: range, size: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield the cells of `size` elements that a range meets: number, source and target."""
    done = 0
    while done < len(taken):
        number, first = divmod(taken[done], size)
        n = len(range(first, min(size, taken.stop - number * size), taken.step))
        source = slice(first, first + (n - 1) * taken.step + 1, taken.step)
        yield number, source, slice(done, done + n)
        done += n


class Reading:
    """The reading of some elements.

    Parameters
    ----------
    source : LocalFiles or ZarrStore
    layout : Layout
    out : array
        Where they are to be.
    is_cut : bool
        Whether other tasks need other elements of the same cells.
    """

    def __init__(
        self, source: LocalFiles | ZarrStore, layout: Layout, out: Any, is_cut: bool
    ) -> None:
        self._source, self._is_cut = source, is_cut
        self._layout, self._chain, self._out = layout, layout.chain, out

    def run(self, ranges: list[range]) -> None:
        """Read the elements in a range of each axis."""
        sizes = self._chain.shape
        along = [[*_along(*of_axis)] for of_axis in zip(ranges, sizes, strict=True)]
        cells = [Cell(*zip(*axes, strict=True)) if axes else _ALL for axes in product(*along)]
        with added(self._source.name) as self._rate:
            if self._is_cut and isinstance(self._source, LocalFiles):
                cells = [cell for cell in cells if not self._is_shared(self._source, cell)]
            for cell, elements in self._decoded(cells):
                self._put(cell, elements)
            self._rate.decoded += self._out.nbytes

    def lend(self, numbers: Sequence[tuple[int, ...]]) -> Generator[Any]:
        """Yield the elements of whole cells, in memory of this thread that the next ones take."""
        chain, key, most = self._chain, self._layout.key, self._chain.most
        block = _lent(chain.shape, chain.dtype)
        room = block.reshape(-1).view("u1")
        # A decoder must not write where it reads.
        into = room if chain.is_plain else None
        requests = [Request(key(number), out=into, most=most) for number in numbers]
        with added(self._source.name) as self._rate, closing(self._read(requests)) as answers:
            for data, request in zip(answers, requests, strict=True):
                if data is None:
                    block[...] = self._layout.fill
                else:
                    with blaming(self._source.name, request.key):
                        chain.decode(data, room, scratch)
                self._rate.decoded += block.nbytes
                start = perf_counter()
                yield block
                # The caller's time is not that of decoding.
                self._rate.decoding -= perf_counter() - start

    def _is_shared(self, files: LocalFiles, cell: Cell) -> bool:
        """Copy a cell that other tasks need, too, into the result; return False for other cells."""
        number, shape = cell.number, self._chain.shape
        ends = [n - i * size for i, size, n in zip(number, shape, self._layout.shape, strict=True)]
        whole = tuple(slice(0, min(pair), 1) for pair in zip(shape, ends, strict=True))
        if cell.source == whole or (stamp := files.stamp(self._key(number)[0])) is None:
            return False

        def make() -> Any:
            ((_, elements),) = self._decoded([Cell(number, whole, ())])
            return elements if elements is None else elements.copy()

        need = Need(_size(cell.source), _size(whole), self._chain.nbytes)
        # The same files may be another array, too.
        mine = (files.name, number, shape, self._chain.dtype)
        self._put(cell, DECODED.take(mine, stamp, need, make))
        return True

    def _put(self, cell: Cell, elements: Any) -> None:
        """Copy a cell into the result, unless it was decoded there."""
        if elements is None:
            self._out[cell.target] = self._layout.fill
        elif elements is not self._out:
            self._out[cell.target] = elements[cell.source]

    def _key(self, number: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Return the name of the object that has a cell, and the cell's index within a shard."""
        if (shards := self._layout.shards) is None:
            return self._layout.key(number), ()
        pairs = [divmod(i, n) for i, n in zip(number, shards.cells, strict=True)]
        return self._layout.key(tuple(i for i, _ in pairs)), tuple(i for _, i in pairs)

    def _decoded(self, cells: list[Cell]) -> Iterator[tuple[Cell, Any]]:
        """Yield cells and their elements, which are valid until the next ones.

        They are None if the cell is not stored, and the result itself if they are there already.
        """
        objects = self._by_object(cells)
        if (shards := self._layout.shards) is not None:
            asked = yield from self._in_shards(shards, objects)
        else:
            # A decoder must not write where it reads.
            is_plain = self._chain.is_plain
            asked = []
            for key, ((cell, _),) in objects.items():
                room = self._room(cell) if is_plain else None
                asked.append((Request(key, out=room, most=self._chain.most), [_Bytes(cell)]))
        with closing(self._read([request for request, _ in asked])) as answers:
            for data, (request, members) in zip(answers, asked, strict=True):
                for cell, begin, end in members:
                    if data is None:
                        yield cell, None
                    else:
                        # All of it is passed on as it is, and so known not to need a copy.
                        mine = data if begin == 0 and end is None else data[begin:end]
                        yield cell, self._elements(request.key, cell, mine)

    def _by_object(self, cells: list[Cell]) -> dict[str, list[_Inner]]:
        """Return the names of objects, and the cells that are in them with their index there."""
        objects: dict[str, list[_Inner]] = {}
        for cell in cells:
            key, inner = self._key(cell.number)
            objects.setdefault(key, []).append((cell, inner))
        return objects

    def _in_shards(
        self, shards: Shards, objects: dict[str, list[_Inner]]
    ) -> Generator[tuple[Cell, None], None, list[_Asked]]:
        """Yield the cells that shards do not have, and return the requests of the others."""
        asked: list[_Asked] = []
        for places, (key, of) in zip(self._places(shards, objects), objects.items(), strict=True):
            stored: list[tuple[Cell, tuple[int, int]]] = []
            with blaming(self._source.name, key):
                for cell, inner in of:
                    span = None if places is None else place(places, inner, self._chain.most)
                    if span is None:
                        yield cell, None
                    else:
                        stored.append((cell, span))
            asked += _joined(key, stored)
        return asked

    def _places(self, shards: Shards, objects: dict[str, list[_Inner]]) -> Iterator[Any]:
        """Yield offset and length of the cells of each shard; None if it is not stored."""
        if shards.known is not None:
            yield from repeat(shards.known, len(objects))
            return
        for data, key in zip(
            self._read([shards.request(key) for key in objects]), objects, strict=True
        ):
            with blaming(self._source.name, key):
                places = None if data is None else shards.places(data, scratch)
            yield places

    def _room(self, cell: Cell) -> Bytes | None:
        """Return the memory of the result where a cell can be decoded; None if nowhere."""
        if not self._chain.fills or self._chain.dtype != self._out.dtype:
            return None
        # With an ellipsis, because an array without axes would give a scalar.
        room = self._out[(*cell.target, ...)]
        is_all = room.shape == self._chain.shape and room.flags.c_contiguous
        return room.reshape(-1).view("u1") if is_all and len(cell.target) == room.ndim else None

    def _elements(self, key: str, cell: Cell, data: Bytes) -> Any:
        """Return the elements of a cell, given its stored bytes."""
        room = self._room(cell)
        with blaming(self._source.name, key):
            elements = self._chain.decode(data, room, scratch)
        return self._out if room is not None else elements

    def _read(self, requests: list[Request]) -> Generator[Bytes | None]:
        with closing(self._source.read(requests)) as answers:
            for request in requests:
                start = perf_counter()
                with blaming(self._source.name, request.key):
                    data = next(answers)
                self._rate.reading += perf_counter() - start
                self._rate.stored += 0 if data is None else data.nbytes
                yield data


@contextmanager
def blaming(name: str, key: str, verb: str = "read") -> Iterator[None]:
    """Add the name of the store and the object to errors raised in a block."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        kind = TimeoutError if isinstance(error, TimeoutError) else OSError
        reason = str(error) or type(error).__name__
        raise kind(f"{name}: cannot {verb} the chunk {key!r}: {reason}") from error


class _Bytes(NamedTuple):
    """Where the bytes of a cell are in an answer; an end of None is that of the answer."""

    cell: Cell
    begin: int = 0
    end: int | None = None


#: A cell, and its index within a shard.
_Inner = tuple[Cell, tuple[int, ...]]
#: A request, and the cells in its answer.
_Asked = tuple[Request, list[_Bytes]]


def _joined(key: str, places: list[tuple[Cell, tuple[int, int]]]) -> Iterator[_Asked]:
    """Yield requests for cells of a shard, and where each is in the answer."""
    members: list[_Bytes] = []
    first = last = 0
    for cell, (offset, nbytes) in sorted(places, key=lambda pair: pair[1]):
        end = offset + nbytes
        if members and (offset > last + GAP_BYTES or end > first + REQUEST_BYTES):
            yield Request(key, first, last - first), members
            members = []
        if not members:
            first = last = offset
        members.append(_Bytes(cell, offset - first, end - first))
        last = max(last, end)
    if members:
        yield Request(key, first, last - first), members


def _size(taken: tuple[slice, ...]) -> int:
    return math.prod(len(range(s.start, s.stop, s.step)) for s in taken)
