"""Copy arrays between the host and a GPU by several threads.

Host memory is pageable, and a GPU's copy engine reads pinned memory only. So each GPU has some
threads for each direction, with two pinned buffers a thread, which take the tiles of an array in
turn::

    to the GPU     host array or file --read by the thread--> buffer --copy engine--> GPU array
    to the host    GPU array --copy engine--> buffer --copy by the thread--> host array

Copies of tiles overlap one another, those of other arrays, and those of the other direction. The
threads run compiled loops (copies_numba.py), unless an array has to be put in order. Every buffer
has a stream of its own, which waits for the earlier work of CuPy's current stream; the current
stream then waits for it, so the result can be used like any array of that stream.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy.cuda import driver, runtime

from dask_coop.cuda.host_memory import HostMemory, host_bytes
from dask_coop.cuda.ring import Counter, Ring, ThreadBuffers, check_file, cores, runs
from dask_coop.cuda.ring import FileRange as FileRange
from dask_coop.errors import Closed

Array = Any
Host = np.ndarray[Any, Any]
#: The event that copies wait for, and the stream that waits for the copies, or None.
Order = tuple[Any, Any]
#: A view of a host array, and its offset in the array of the GPU, in bytes.
Tile = tuple[Host, int]

#: The bytes of a buffer: large enough for the link, small enough for a processor's cache.
BUFFER_BYTES = 4 << 20

#: The default bytes of all buffers of a GPU.
RING_BYTES = 128 << 20

#: Most threads of a GPU for each direction.
THREADS = 8

#: CuPy copies arrays of fewer bytes, which needs no other thread.
SMALL_BYTES = 4 << 20

#: NumPy is faster at copying runs of fewer bytes.
RUN_BYTES = 256

#: Most bytes of dropped results that are kept for others, and the most of the host's memory.
KEPT_BYTES, KEPT_FRACTION = 4 << 30, 1 / 16

_memory = HostMemory(min(KEPT_BYTES, int(KEPT_FRACTION * host_bytes())))


def to_device(x: Host, nbytes: int | None = None, file: FileRange | None = None) -> Array:
    """Return a copy of `x` on the current device, ready for CuPy's current stream.

    All of `x` has been read when this returns. It may have any byte order and strides; the copy has
    the machine's byte order, and its elements in the order of those of `x` where that is faster.

    Parameters
    ----------
    x : numpy.ndarray
    nbytes : int, optional
        Most bytes of pinned memory of the GPU's rings, if this copy makes them; by default
        `RING_BYTES`.
    file : FileRange, optional
        The position of the bytes of `x` if it maps a file: they are read from there, without
        touching the pages of `x`. Then `x` must have C order and the machine's byte order.

    Raises
    ------
    OSError
        If the file cannot be read, or ends too early.
    """
    x = np.asarray(x)
    native = x.dtype.newbyteorder("=")
    plain = x.flags.c_contiguous and x.dtype.isnative
    if file is not None and not plain:
        raise ValueError(f"x must be in C order and native to be read from a file, got {x.dtype}")
    small = x.nbytes < SMALL_BYTES and file is None
    if small or x.nbytes == 0 or x.dtype.kind not in "biufc":
        # One axis at least: CuPy fills arrays without axes, and takes -0.0 for 0 there.
        return cupy.asarray(np.atleast_1d(x.astype(native, copy=False))).reshape(x.shape)
    order = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    if runs(x)[1] < RUN_BYTES <= runs(x.transpose(order))[1]:
        return to_device(x.transpose(order), nbytes).transpose(np.argsort(order))
    target = cupy.empty(x.shape, native)
    start = cupy.cuda.Event(disable_timing=True)
    current = cupy.cuda.get_current_stream()
    start.record(current)
    # This handle means another stream in each thread, so the ring's threads cannot use it.
    after = None if current.ptr == runtime.streamPerThread else current
    in_loops = x.dtype.isnative and (plain or runs(x)[1] >= RUN_BYTES) and _loops() is not None

    def fill(rings: Rings, threads: int) -> None:
        if in_loops:
            _fill(x, target, (start, after), file, rings.inward, threads)
        else:
            _fill_in_order(x, target, (start, after), rings.inward, threads)
        if after is None:
            for buffer in list(rings.inward.buffers):
                current.wait_event(buffer.done)

    _with_rings(nbytes, fill)
    return target


def to_host(x: Array, nbytes: int | None = None, out: Host | None = None) -> Host:
    """Return a copy of `x` as a NumPy array in C order, after the work of CuPy's current stream.

    Parameters
    ----------
    x : cupy.ndarray
    nbytes : int, optional
        As for `to_device`.
    out : numpy.ndarray, optional
        An array of the shape of `x` for the copy, which is then returned.
    """
    is_small = x.nbytes < SMALL_BYTES or _loops() is None
    is_plain = out is None or (out.flags.carray and out.dtype == x.dtype and out.shape == x.shape)
    if out is not None and not is_plain and (is_small or out.dtype != x.dtype):
        out[...] = to_host(x, nbytes)
        return out
    if is_small:
        plain: Host = cupy.asnumpy(x, order="C", out=out)
        return plain
    with x.device:
        source = cupy.ascontiguousarray(x)
        ready = cupy.cuda.Event(disable_timing=True)
        ready.record()
        result = _memory.empty(x.shape, x.dtype) if out is None else out
        # Wait here and not in the threads, which have other arrays to copy.
        ready.synchronize()
        _with_rings(nbytes, partial(_drain if is_plain else _drain_in_order, source, result))
        return result


def empty_on_host(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Host:
    """Return a new host array in C order, in the memory of a dropped result if one fits."""
    return _memory.empty(shape, dtype)


def _drain(source: Array, result: Host, rings: Rings, threads: int) -> None:
    """Copy an array of the GPU to the host, and wait for that."""
    loops, counter, nbytes = _loops(), Counter(), result.nbytes
    assert loops is not None
    ends = result.ctypes.data, source.data.ptr, nbytes
    job = loops.Job(*ends, BUFFER_BYTES, counter.address, 0)

    def copy(buffers: ThreadBuffers, holding: Any = (result, source)) -> None:
        driver.check_status(loops.drain(_functions(), job, buffers.table))

    rings.outward.run(copy, counter, min(threads, math.ceil(nbytes / BUFFER_BYTES)))


def _drain_in_order(source: Array, result: Host, rings: Rings, threads: int) -> None:
    """Copy an array of the GPU into a host array of any strides, and wait for that."""
    counter, every = Counter(), list(tiles(result, BUFFER_BYTES))
    # A list's iterator gives each item to one thread only.
    todo = iter(every)

    def copy(mine: ThreadBuffers) -> None:
        # Other threads copy to the host meanwhile.
        (buffer, *_) = mine.buffers
        for target, offset in todo:
            if counter.stopped:
                return
            buffer.receive(source.data.ptr + offset, target.nbytes)
            buffer.done.record(buffer.stream)
            buffer.done.synchronize()
            np.copyto(target, buffer.view(source.dtype, target.shape))

    rings.outward.run(copy, counter, min(threads, len(every)))


def _fill(
    x: Host, target: Array, order: Order, file: FileRange | None, ring: Ring, threads: int
) -> None:
    """Copy an array with long runs, or its bytes in a file, to the GPU by compiled loops."""
    loops = _loops()
    assert loops is not None
    counter, (start, after) = Counter(), order
    # Aligned reads past the page cache need room around the tile.
    tile = BUFFER_BYTES - (loops.DIRECT_BYTES if file is not None and file.direct else 0)
    read = file or FileRange(-1, 0, False)
    rows, run = runs(x)
    ends = target.data.ptr, x.ctypes.data, x.nbytes
    stream = -1 if after is None else after.ptr
    job = loops.Job(*ends, tile, counter.address, start.ptr, stream)

    def copy(buffers: ThreadBuffers, holding: Any = (x, target, order)) -> None:
        status = loops.fill(_functions(), job, rows, run, read, buffers.table)
        check_file(status, read, x.nbytes)
        driver.check_status(status)

    ring.run(copy, counter, min(threads, math.ceil(x.nbytes / tile)))


def _fill_in_order(x: Host, target: Array, order: Order, ring: Ring, threads: int) -> None:
    """Copy an array that NumPy has to put in order to the GPU."""
    counter, (start, after) = Counter(), order
    every = list(tiles(x, BUFFER_BYTES))
    # A list's iterator gives each item to one thread only.
    todo = iter(every)

    def copy(mine: ThreadBuffers) -> None:
        for turn, (source, offset) in enumerate(todo):
            if counter.stopped:
                return
            buffer = mine.buffers[turn % len(mine.buffers)]
            buffer.done.synchronize()
            staged = buffer.view(target.dtype, source.shape)
            np.copyto(staged, source, casting="equiv")
            buffer.stream.wait_event(start)
            buffer.copy(target.data.ptr + offset, staged.nbytes)
            buffer.done.record(buffer.stream)
            if after is not None:
                after.wait_event(buffer.done)

    ring.run(copy, counter, min(threads, len(every)))


def tiles(x: Host, most: int) -> Iterator[Tile]:
    """Yield views of `x` of up to `most` bytes, and the offset of each in C order, in bytes."""
    x = x.reshape(-1) if x.flags.c_contiguous else x
    # Cut along the first axis with items no larger than a tile.
    axis = next(d for d in range(x.ndim) if math.prod(x.shape[d + 1 :]) * x.itemsize <= most)
    row = math.prod(x.shape[axis + 1 :]) * x.itemsize
    step = most // row
    for number, index in enumerate(np.ndindex(x.shape[:axis])):
        for begin in range(0, x.shape[axis], step):
            yield x[(*index, slice(begin, begin + step))], (number * x.shape[axis] + begin) * row


class Buffer:
    """Pinned memory, and the stream of its copies."""

    def __init__(self) -> None:
        # First, because `__del__` needs it even if there is no memory left for the rest.
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        # Not from CuPy's pool, which would keep it.
        self._memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(BUFFER_BYTES), 0)
        self._bytes = np.frombuffer(self._memory, "u1", BUFFER_BYTES)
        self.address: int = self._memory.ptr
        self.done: Any = cupy.cuda.Event(disable_timing=True)

    def __del__(self) -> None:
        """Wait for the copy engine, which may still be reading the memory."""
        self.stream.synchronize()

    def copy(self, target: int, nbytes: int) -> None:
        """Queue a copy of the buffer's first bytes to an address."""
        runtime.memcpyAsync(target, self.address, nbytes, runtime.memcpyDefault, self.stream.ptr)

    def receive(self, source: int, nbytes: int) -> None:
        """Queue a copy from an address to the buffer's first bytes."""
        runtime.memcpyAsync(self.address, source, nbytes, runtime.memcpyDefault, self.stream.ptr)

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Host:
        """Return the buffer's first bytes as an array."""
        return self._bytes[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


class Rings(NamedTuple):
    """The two rings of a GPU: arrays come in while others go out."""

    inward: Ring
    outward: Ring


_rings: dict[int, Rings] = {}
#: Rings of the parent of a forked process, kept because a child cannot free the driver's memory.
_inherited: list[dict[int, Rings]] = []
_lock = threading.Lock()


def _with_rings(nbytes: int | None, copy: Callable[[Rings, int], None]) -> None:
    """Call `copy` with the result of `_rings_of`."""
    try:
        copy(*_rings_of(nbytes))
    except Closed:
        # Another thread closed them meanwhile. If the process ends, the new ones raise, too.
        copy(*_rings_of(nbytes))


def _rings_of(nbytes: int | None) -> tuple[Rings, int]:
    """Return the rings of the current device, and the number of threads for one array.

    If there are none, make rings of `nbytes` together.
    """
    ordinal = runtime.getDevice()
    with _lock:
        if ordinal not in _rings:
            threads = max(1, min(THREADS, (nbytes or RING_BYTES) // (4 * BUFFER_BYTES)))
            ways = [f"dask_coop copies, GPU {ordinal}, {way}" for way in ("in", "out")]
            enter = cupy.cuda.Device(ordinal).use
            _rings[ordinal] = Rings(*(Ring(name, threads, enter, Buffer) for name in ways))
        # Threads of all GPUs share the processors.
        return _rings[ordinal], max(1, min(THREADS, cores() // len(_rings)))


@cache
def _loops() -> ModuleType | None:
    """Return the module of compiled loops, or None if Numba cannot be imported."""
    try:
        from dask_coop.cuda import copies_numba
    except ImportError:
        return None
    return copies_numba


@cache
def _functions() -> Any:
    """Return the addresses of the C functions that the loops call."""
    library = ctypes.CDLL("libcuda.so.1")
    names = ("cuMemcpyAsync", "cuEventSynchronize", "cuStreamWaitEvent", "cuEventRecord")
    called = [*(library[name] for name in names), ctypes.CDLL(None).pread]
    loops = _loops()
    assert loops is not None
    return loops.Functions(*(ctypes.cast(item, ctypes.c_void_p).value for item in called))


#: Functions that free more pinned memory.
CLOSED_TOO: list[Callable[[], None]] = []


def close() -> None:
    """Free the pinned memory of all GPUs and the kept memory; the next copy allocates it again."""
    for function in CLOSED_TOO:
        function()
    with _lock:
        for rings in _rings.values():
            for ring in rings:
                ring.close()
        _rings.clear()
    _memory.clear()


def _forget() -> None:
    """Start anew in a forked process, which has no threads and streams of its parent."""
    global _lock
    _lock = threading.Lock()
    _inherited.append(_rings.copy())
    _rings.clear()
    _memory.forget()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
