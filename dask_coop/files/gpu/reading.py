"""Read elements of a stored array onto the current GPU, and decode them there.

Frames cross the link as they are stored. So a chunk takes less time to copy, and none of the host's
processors to decode::

    store --read--> pinned memory --copy--> frames --decode--> cells --gather--> elements

Frames are decoded here if they are many, as each is the work of one warp (`rules`). If one cannot
be decoded here, the host decodes all, or tells what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from itertools import product, repeat
from time import perf_counter
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import frames as programs
from dask_coop.errors import NotSupported
from dask_coop.files.codecs import Bytes, check_crc32c
from dask_coop.files.gpu import decoding, rules
from dask_coop.files.gpu.frames_numba import BEGIN, END, SIZE, TARGET
from dask_coop.files.layout import ABSENT, Layout
from dask_coop.files.rates import added
from dask_coop.files.stored import GAP_BYTES, REQUEST_BYTES, blaming
from dask_coop.files.stores import LocalFiles, Request, scratch

Array = Any
Host = np.ndarray[Any, Any]

#: A task decodes at most this multiple of the elements that it returns.
_MOST_WASTE = 1.5

#: No file is as long.
_MOST_OFFSET = 1 << 62


def read(source: Any, layout: Layout, ranges: list[range]) -> Array | None:
    """Return elements on the current GPU, ready for any stream; None if the host decodes them.

    Parameters
    ----------
    source : LocalFiles or ZarrStore
    layout : Layout
    ranges : list of range
        Those along each axis.
    """
    chain = layout.chain
    wanted = math.prod(map(len, ranges))
    if not wanted or any(along.step != 1 for along in ranges) or rules.why_not(chain):
        return None
    firsts = [along.start // n for along, n in zip(ranges, chain.shape, strict=True)]
    grid = [
        (along.stop - 1) // n - first + 1
        for along, n, first in zip(ranges, chain.shape, firsts, strict=True)
    ]
    decoded = math.prod(grid) * chain.nbytes
    is_slower = (
        decoded < rules.fewest_bytes(chain) or decoded > _MOST_WASTE * wanted * chain.dtype.itemsize
    )
    if is_slower:
        return None
    try:
        with added(source.name) as rate, decoding.stage() as staged:
            out = cupy.empty([*map(len, ranges)], chain.dtype.newbyteorder("="))
            reading = _Reading(source, layout, firsts, grid, staged, rate)
            reading.run()
            reading.gather(ranges, out)
            if not reading.is_right():
                return None
            rate.decoded += out.nbytes
            return out
    except (NotSupported, MemoryError):
        # The host needs less memory of the GPU.
        return None


def unpack(codes: Array, dtype: Any, fill: Any, scale: Any, offset: Any) -> Array:
    """Return the numbers that codes on the current GPU stand for, as `unpacking` has them.

    Parameters
    ----------
    codes : cupy.ndarray
    dtype : numpy.dtype
        Of the numbers.
    fill : scalar or None
        The code of NaN.
    scale, offset : scalar or None
        In the dtypes in which they are applied.
    """
    out = cupy.empty(codes.shape, dtype)
    if not out.size:
        return out
    applied = [dtype.type(0) if number is None else number for number in (scale, offset)]
    names = [number.dtype.str[1:] for number in applied]
    launch(
        programs.unpack(codes.dtype, dtype, *names),
        _blocks(out),
        programs.THREADS,
        codes.data.ptr,
        np.int64(out.size),
        np.int32(fill is not None),
        codes.dtype.type(0) if fill is None else fill,
        np.int32(scale is not None),
        applied[0],
        np.int32(offset is not None),
        applied[1],
        out.data.ptr,
    )
    return out


def _blocks(out: Array) -> int:
    """Return the number of blocks of a kernel that fills an array."""
    gpu = device(cupy.cuda.runtime.getDevice())
    return int(min(-(-out.size // programs.THREADS), 32 * gpu.processors))


class _Asked(NamedTuple):
    """A request, and the cells in its answer.

    Attributes
    ----------
    request : Request
    cells : array of int64
        Their numbers.
    begins, ends : array of int64
        Where they are in it; it is all one cell if `ends` is None.
    """

    request: Request
    cells: Host
    begins: Host
    ends: Host | None


def _check(data: Bytes) -> None:
    """Raise ValueError if bytes are not those of the checksum behind them."""
    try:
        check_crc32c(data)
    except ValueError as error:
        raise ValueError(f"crc32c: {error}") from error


class _Reading:
    """The reading of all cells in a box of an array's grid.

    Parameters
    ----------
    source, layout
    firsts, grid : list of int
        The first cell along each axis, and how many there are.
    staged : Stage
    rate : Rate
    """

    def __init__(
        self,
        source: Any,
        layout: Layout,
        firsts: list[int],
        grid: list[int],
        staged: decoding.Stage,
        rate: Any,
    ) -> None:
        self._source, self._layout, self._chain = source, layout, layout.chain
        self._firsts, self._grid, self._staged, self._rate = firsts, grid, staged, rate
        names = [step.name for step in self._chain.steps]
        self._is_checked = names[0] == "crc32c"
        self._codec = names[self._is_checked]
        n = math.prod(grid)
        self._cells = cupy.empty(n * self._chain.nbytes, "u1")
        #: Whether each cell is stored.
        self._is_there = np.zeros(n, bool)
        #: Frames of the next batch, the bytes that are staged, and what batches returned.
        self._frames: list[Host] = []
        self._staged_bytes = 0
        self._failed: list[Array] = []
        self._blocks: set[int] = set()

    def run(self) -> None:
        """Read all cells, and queue their decoding."""
        numbers = np.arange(len(self._is_there)).reshape(self._grid)
        asked = [*(self._of_shards(numbers) if self._layout.shards else self._of_chunks(numbers))]
        if isinstance(self._source, LocalFiles):
            for wanted in asked:
                self._add(wanted, self._read_file(wanted.request))
        else:
            # All at a time, as answers take long.
            requests = [wanted.request for wanted in asked]
            with closing(self._source.read(requests)) as answers:
                for wanted in asked:
                    with blaming(self._source.name, wanted.request.key):
                        data = next(answers)
                    self._add(wanted, data)
        self._flush()

    def _of_chunks(self, numbers: Host) -> Iterator[_Asked]:
        """Yield the request of each cell, which is an object."""
        for index, number in np.ndenumerate(numbers):
            cell = tuple(i + first for i, first in zip(index, self._firsts, strict=True))
            request = Request(self._layout.key(cell), most=self._chain.most)
            yield _Asked(request, np.array([number]), np.array([0]), None)

    def _of_shards(self, numbers: Host) -> Iterator[_Asked]:
        """Yield requests for cells of shards."""
        shards = self._layout.shards
        assert shards is not None
        spans = [
            range(first // n, (first + count - 1) // n + 1)
            for first, count, n in zip(self._firsts, self._grid, shards.cells, strict=True)
        ]
        keys = {shard: self._layout.key(shard) for shard in product(*spans)}
        for (shard, key), places in zip(keys.items(), self._places([*keys.values()]), strict=True):
            if places is None:
                continue
            # Where this shard and the box meet, in numbers of cells.
            begins = [
                max(i * n, first)
                for i, n, first in zip(shard, shards.cells, self._firsts, strict=True)
            ]
            ends = [
                min((i + 1) * n, first + count)
                for i, n, first, count in zip(
                    shard, shards.cells, self._firsts, self._grid, strict=True
                )
            ]
            inner = tuple(
                slice(begin - i * n, end - i * n)
                for begin, end, i, n in zip(begins, ends, shard, shards.cells, strict=True)
            )
            outer = tuple(
                slice(begin - first, end - first)
                for begin, end, first in zip(begins, ends, self._firsts, strict=True)
            )
            yield from self._joined(key, numbers[outer].ravel(), places[inner].reshape(-1, 2))

    def _places(self, keys: list[str]) -> Iterator[Host | None]:
        """Yield offset and length of the cells of each shard; None if it is not stored."""
        shards = self._layout.shards
        assert shards is not None
        if shards.known is not None:
            yield from repeat(np.asarray(shards.known), len(keys))
            return
        with closing(self._source.read(map(shards.request, keys))) as answers:
            for key in keys:
                with blaming(self._source.name, key):
                    data = next(answers)
                    places = None if data is None else shards.places(data, scratch)
                yield places

    def _joined(self, key: str, numbers: Host, places: Host) -> Iterator[_Asked]:
        """Yield requests for cells of a shard, which have several of them each."""
        offsets, lengths = places[:, 0], places[:, 1]
        is_stored = (offsets != ABSENT) | (lengths != ABSENT)
        lies = (lengths > self._chain.most) | (offsets >= _MOST_OFFSET)
        if lies[is_stored].any():
            # The host tells which.
            raise NotSupported("a cell that is too long")
        order = np.flatnonzero(is_stored)
        order = order[np.argsort(offsets[order], kind="stable")]
        numbers, begins = numbers[order], offsets[order].astype(np.int64)
        ends = begins + lengths[order].astype(np.int64)
        # Cells may overlap, so the end of all before counts.
        reached = np.maximum.accumulate(ends) if len(ends) else ends
        breaks = np.flatnonzero(begins[1:] > reached[:-1] + GAP_BYTES) + 1
        for run in np.split(np.arange(len(order)), breaks):
            at = 0
            while at < len(run):
                first = run[at]
                n = int(np.searchsorted(reached[run[at:]], begins[first] + REQUEST_BYTES, "right"))
                some = run[at : at + max(1, n)]
                begin = int(begins[first])
                request = Request(key, begin, int(reached[some[-1]]) - begin)
                yield _Asked(request, numbers[some], begins[some] - begin, ends[some] - begin)
                at += len(some)

    def _read_file(self, request: Request) -> Bytes | None:
        """Return bytes of a local file, in the stage if their number is known."""
        room = None
        if request.nbytes is not None and request.nbytes <= decoding.STAGED_BYTES:
            room = self._room(request.nbytes)
        start = perf_counter()
        with (
            blaming(self._source.name, request.key),
            closing(self._source.read([request._replace(out=room)])) as answers,
        ):
            data: Bytes | None = next(answers)
        self._rate.reading += perf_counter() - start
        return data

    def _room(self, nbytes: int) -> Bytes:
        """Return memory of the stage for so many bytes, after those that are there."""
        if nbytes > decoding.STAGED_BYTES - self._staged_bytes:
            self._flush()
        if nbytes > decoding.STAGED_BYTES:
            raise NotSupported("more bytes than the stage has")
        if not self._frames:
            self._staged.wait()
        return self._staged.bytes[self._staged_bytes : self._staged_bytes + nbytes]

    def _add(self, asked: _Asked, data: Bytes | None) -> None:
        """Put an answer into the stage, unless it is there, and note where cells are in it."""
        if data is None:
            return
        room = self._room(data.nbytes)
        if data.ctypes.data != room.ctypes.data:
            room[:] = data
        at, cells = self._staged_bytes, asked.cells
        frames = np.zeros((len(cells), 5), np.int64)
        frames[:, BEGIN] = asked.begins
        frames[:, END] = data.nbytes if asked.ends is None else asked.ends
        if self._is_checked:
            with blaming(self._source.name, asked.request.key):
                for begin, end in frames[:, : END + 1]:
                    _check(room[begin:end])
            frames[:, END] -= 4
        self._rate.stored += data.nbytes
        frames[:, BEGIN] += at + (4 if self._codec == "lz4" else 0)
        frames[:, END] += at
        frames[:, TARGET], frames[:, SIZE] = cells * self._chain.nbytes, self._chain.nbytes
        if self._codec == "lz4" and (
            (frames[:, BEGIN] > frames[:, END]).any() or not self._are_whole(frames)
        ):
            raise NotSupported("a block of LZ4 of another size")
        self._is_there[cells] = True
        self._frames.append(frames)
        # Kernels read words.
        self._staged_bytes = min(-(-(at + data.nbytes) // 16) * 16, decoding.STAGED_BYTES)

    def _are_whole(self, frames: Host) -> bool:
        """Return whether the sizes before blocks of LZ4 are those of cells."""
        places = frames[:, BEGIN, None] - np.arange(4, 0, -1)
        sizes = self._staged.bytes[places].astype(np.int64) << np.arange(0, 32, 8)
        return bool((sizes.sum(axis=1) == self._chain.nbytes).all())

    def _flush(self) -> None:
        """Queue the decoding of the frames that are staged."""
        if not self._frames:
            return
        start = perf_counter()
        frames, n = np.concatenate(self._frames), self._staged_bytes
        width = self._chain.dtype.itemsize
        failed, block = decoding.decode(self._codec, width, frames, self._staged, n, self._cells)
        self._failed.append(failed)
        self._blocks.add(block)
        self._frames, self._staged_bytes = [], 0
        self._rate.decoding += perf_counter() - start

    def gather(self, ranges: list[range], out: Array) -> None:
        """Queue the copy of the elements in `ranges` to `out`."""
        self._staged.follow()
        chain, itemsize = self._chain, out.itemsize
        if len(self._blocks) > 1:
            raise NotSupported("chunks that are shuffled in several ways")
        elements = chain.nbytes // itemsize
        is_shuffled = chain.steps[-1].name == "shuffle"
        block = elements if is_shuffled else max(self._blocks, default=0)
        numbers = np.arange(len(self._is_there), dtype=np.uint64) * np.uint64(chain.nbytes)
        numbers += np.uint64(self._cells.data.ptr)
        with self._staged.stream:
            addresses = cupy.asarray(np.where(self._is_there, numbers, np.uint64(0)))
        strides = dict(
            zip(chain.axes, _strides([chain.shape[axis] for axis in chain.axes]), strict=True)
        )
        axes = [
            (len(along), along.start - first * n, n, count, strides[axis])
            for axis, (along, first, n, count) in enumerate(
                zip(ranges, self._firsts, chain.shape, self._grid, strict=True)
            )
        ]
        dims = next(dims for dims in programs.DIMS if dims >= len(axes))
        axes = [(1, 0, 1, 1, 0)] * (dims - len(axes)) + axes
        fill = np.zeros(16, "u1")
        fill[:itemsize] = np.array([self._layout.fill], out.dtype).view("u1")
        low, high = fill.view(np.uint64)
        with self._staged.stream:
            launch(
                programs.cells(itemsize, dims),
                _blocks(out),
                programs.THREADS,
                addresses.data.ptr,
                *(np.int64(number) for axis in axes for number in axis),
                np.int64(out.size),
                np.int64(elements),
                np.int64(block),
                np.int32(not chain.dtype.isnative),
                low,
                high,
                out.data.ptr,
            )
        self._staged.hold(addresses, out)

    def is_right(self) -> bool:
        """Wait for all work, and return whether all cells could be decoded."""
        start = perf_counter()
        self._staged.finish()
        with self._staged.stream:
            is_right = not any(failed.get().any() for failed in self._failed)
        self._rate.decoding += perf_counter() - start
        return is_right


def _strides(shape: list[int]) -> list[int]:
    """Return how far apart neighbours along each axis of an array in C order are, in elements."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
