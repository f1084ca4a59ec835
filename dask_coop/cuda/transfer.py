"""Copies of arrays between the host and a GPU, by several threads.

The host's memory is pageable, and a GPU's copy engine reads pinned memory only. So a GPU has some
threads for each way with two pinned buffers each, which take the pieces of an array in turn::

    to the GPU     host array or file --read by the thread--> buffer --copy engine--> GPU array
    to the host    GPU array --copy engine--> buffer --copy by the thread--> host array

Copies of different pieces overlap one another, the copies of other arrays, and those of the other
way. The threads run compiled loops (copies_numba.py), except where an array has to be put in order.
Every buffer has a stream of its own; these wait for what CuPy's current stream has queued before,
and the current stream waits for them, so that an array is used as any other of that stream.
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

from dask_coop.cuda.host_memory import HostMemory
from dask_coop.cuda.ring import Counter, Own, Ring, check_file, cores, runs
from dask_coop.cuda.ring import FileRange as FileRange
from dask_coop.errors import Closed

Array = Any
Host = np.ndarray[Any, Any]
#: The event that copies wait for, and the stream that waits for them, if they can see to that.
Order = tuple[Any, Any]
#: Some of a host array, and where it is in the array of the GPU, in bytes.
Piece = tuple[Host, int]

#: The bytes of a buffer: large enough for the link, small enough for a processor's cache.
BUFFER_BYTES = 4 << 20

#: The bytes of all buffers of a GPU where nothing else is said.
RING_BYTES = 128 << 20

#: Threads that copy for a GPU each way, at most.
THREADS = 8

#: Arrays of fewer bytes are copied by CuPy, which needs no other thread.
SMALL_BYTES = 4 << 20

#: NumPy is faster at copying runs of fewer bytes.
RUN_BYTES = 256

#: The memory of results that were dropped is kept for others, up to so many bytes.
KEPT_BYTES = 1 << 30

_memory = HostMemory(KEPT_BYTES)


def to_device(x: Host, nbytes: int | None = None, file: FileRange | None = None) -> Array:
    """Return a copy of `x` on the current device, which CuPy's current stream may use.

    `x` has been read when this returns. It may be of any byte order and strides; the copy is of the
    machine's byte order, and in Fortran order if `x` is.

    Parameters
    ----------
    x : numpy.ndarray
    nbytes : int, optional
        How much pinned memory the GPU's rings may take, if this is the first copy that needs it; by
        default `RING_BYTES`.
    file : FileRange, optional
        Where the bytes of `x` are, if it is a map of a file: they are read from there, and the
        pages of `x` are left alone. `x` is in C order then, and of the machine's byte order.

    Raises
    ------
    OSError
        If the file cannot be read, or ends before.
    """
    x = np.asarray(x)
    native = x.dtype.newbyteorder("=")
    plain = x.flags.c_contiguous and x.dtype.isnative
    if file is not None and not plain:
        raise ValueError(f"x must be in C order and native to be read from a file, got {x.dtype}")
    small = x.nbytes < SMALL_BYTES and file is None
    if small or x.nbytes == 0 or x.dtype.kind not in "biufc":
        # CuPy would fill an array of no axes, and -0.0 is as good as 0 to it.
        return cupy.asarray(np.atleast_1d(x.astype(native, copy=False))).reshape(x.shape)
    if x.flags.f_contiguous and not x.flags.c_contiguous:
        return to_device(x.T, nbytes).T
    target = cupy.empty(x.shape, native)
    start = cupy.cuda.Event(disable_timing=True)
    current = cupy.cuda.get_current_stream()
    start.record(current)
    # A handle that means another stream in each thread is of no use to the ring's.
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
    """Return a copy of `x` in NumPy, in C order, as CuPy's current stream has it.

    Parameters
    ----------
    x : cupy.ndarray
    nbytes : int, optional
        As for `to_device`.
    out : numpy.ndarray, optional
        An array of the shape of `x`, which is to have the copy, and is returned.
    """
    if out is not None and not (out.shape == x.shape and out.dtype == x.dtype and out.flags.carray):
        out[...] = to_host(x, nbytes)
        return out
    if x.nbytes < SMALL_BYTES or _loops() is None:
        plain: Host = cupy.asnumpy(x, order="C", out=out)
        return plain
    with x.device:
        source = cupy.ascontiguousarray(x)
        ready = cupy.cuda.Event(disable_timing=True)
        ready.record()
        result = _memory.empty(x.shape, x.dtype) if out is None else out
        # Here, and not in the threads, which have other arrays to copy.
        ready.synchronize()
        _with_rings(nbytes, partial(_drain, source, result))
        return result


def _drain(source: Array, result: Host, rings: Rings, threads: int) -> None:
    """Copy an array of the GPU, and wait for that."""
    loops, counter, nbytes = _loops(), Counter(), result.nbytes
    assert loops is not None
    ends = result.ctypes.data, source.data.ptr, nbytes
    job = loops.Job(*ends, BUFFER_BYTES, counter.address, 0)

    def copy(own: Own, holding: Any = (result, source)) -> None:
        driver.check_status(loops.drain(_functions(), job, own.table))

    rings.outward.run(copy, counter, min(threads, math.ceil(nbytes / BUFFER_BYTES)))


def _fill(
    x: Host, target: Array, order: Order, file: FileRange | None, ring: Ring, threads: int
) -> None:
    """Queue copies of an array in long runs, or of its bytes in a file."""
    loops = _loops()
    assert loops is not None
    counter, (start, after) = Counter(), order
    # What is read past the page cache begins and ends on other bytes than the piece does.
    piece = BUFFER_BYTES - (loops.DIRECT_BYTES if file is not None and file.direct else 0)
    read = file or FileRange(-1, 0, False)
    rows, run = runs(x)
    ends = target.data.ptr, x.ctypes.data, x.nbytes
    stream = -1 if after is None else after.ptr
    job = loops.Job(*ends, piece, counter.address, start.ptr, stream)

    def copy(own: Own, holding: Any = (x, target, order)) -> None:
        status = loops.fill(_functions(), job, rows, run, read, own.table)
        check_file(status, read, x.nbytes)
        driver.check_status(status)

    ring.run(copy, counter, min(threads, math.ceil(x.nbytes / piece)))


def _fill_in_order(x: Host, target: Array, order: Order, ring: Ring, threads: int) -> None:
    """Queue copies of an array that NumPy has to put in order."""
    counter, (start, after) = Counter(), order
    every = list(pieces(x, BUFFER_BYTES))
    # A list's iterator gives each item to one thread only.
    todo = iter(every)

    def copy(own: Own) -> None:
        for turn, (source, offset) in enumerate(todo):
            if counter.stopped:
                return
            buffer = own.buffers[turn % len(own.buffers)]
            buffer.done.synchronize()
            staged = buffer.view(target.dtype, source.shape)
            np.copyto(staged, source, casting="equiv")
            buffer.stream.wait_event(start)
            buffer.copy(target.data.ptr + offset, staged.nbytes)
            buffer.done.record(buffer.stream)
            if after is not None:
                after.wait_event(buffer.done)

    ring.run(copy, counter, min(threads, len(every)))


def pieces(x: Host, most: int) -> Iterator[Piece]:
    """Yield views of `x` of up to `most` bytes, and where each is among its elements in C order."""
    x = x.reshape(-1) if x.flags.c_contiguous else x
    # Along the first axis of which an element is no larger than a piece.
    axis = next(d for d in range(x.ndim) if math.prod(x.shape[d + 1 :]) * x.itemsize <= most)
    row = math.prod(x.shape[axis + 1 :]) * x.itemsize
    step = most // row
    for number, index in enumerate(np.ndindex(x.shape[:axis])):
        for begin in range(0, x.shape[axis], step):
            yield x[(*index, slice(begin, begin + step))], (number * x.shape[axis] + begin) * row


class Buffer:
    """Pinned memory, and the stream of its copies."""

    def __init__(self) -> None:
        # First, for whoever drops what had no memory left for it.
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        # Not from CuPy's pool, which would keep it.
        self._memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(BUFFER_BYTES), 0)
        self._bytes = np.frombuffer(self._memory, "u1", BUFFER_BYTES)
        self.address: int = self._memory.ptr
        self.done: Any = cupy.cuda.Event(disable_timing=True)

    def __del__(self) -> None:
        """Wait for the copy engine, which may still read the memory."""
        self.stream.synchronize()

    def copy(self, target: int, nbytes: int) -> None:
        """Queue a copy of its first bytes to an address."""
        runtime.memcpyAsync(target, self.address, nbytes, runtime.memcpyDefault, self.stream.ptr)

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Host:
        """Return its first bytes as an array."""
        return self._bytes[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


class Rings(NamedTuple):
    """Those of a GPU: arrays come in while others go out."""

    inward: Ring
    outward: Ring


_rings: dict[int, Rings] = {}
#: Those of a process that forked this one, which cannot free what the driver gave the other.
_inherited: list[dict[int, Rings]] = []
_lock = threading.Lock()


def _with_rings(nbytes: int | None, copy: Callable[[Rings, int], None]) -> None:
    """Call `copy` with what `_rings_of` returns."""
    try:
        copy(*_rings_of(nbytes))
    except Closed:
        # By another thread meanwhile; where the process ends, so are new ones.
        copy(*_rings_of(nbytes))


def _rings_of(nbytes: int | None) -> tuple[Rings, int]:
    """Return the rings of the current device, and how many threads of each are to copy an array.

    If there are none they are made, of so many bytes together.
    """
    ordinal = runtime.getDevice()
    with _lock:
        if ordinal not in _rings:
            threads = max(1, min(THREADS, (nbytes or RING_BYTES) // (4 * BUFFER_BYTES)))
            ways = [f"dask_coop copies, GPU {ordinal}, {way}" for way in ("in", "out")]
            enter = cupy.cuda.Device(ordinal).use
            _rings[ordinal] = Rings(*(Ring(name, threads, enter, Buffer) for name in ways))
        # Threads of other GPUs use the same processors.
        return _rings[ordinal], max(1, min(THREADS, cores() // len(_rings)))


@cache
def _loops() -> ModuleType | None:
    """Return the loops that Numba compiles, or None where it cannot be imported."""
    try:
        from dask_coop.cuda import copies_numba
    except ImportError:
        return None
    return copies_numba


@cache
def _functions() -> Any:
    """Return the addresses of what the loops call."""
    library = ctypes.CDLL("libcuda.so.1")
    names = ("cuMemcpyAsync", "cuEventSynchronize", "cuStreamWaitEvent", "cuEventRecord")
    called = [*(library[name] for name in names), ctypes.CDLL(None).pread]
    loops = _loops()
    assert loops is not None
    return loops.Functions(*(ctypes.cast(each, ctypes.c_void_p).value for each in called))


def close() -> None:
    """Give back the pinned memory of all GPUs, and what is kept; the next copy takes it again."""
    with _lock:
        for rings in _rings.values():
            for ring in rings:
                ring.close()
        _rings.clear()
    _memory.clear()


def _forget() -> None:
    """Begin anew in a process that was forked: threads and streams are not in it."""
    global _lock
    _lock = threading.Lock()
    _inherited.append(_rings.copy())
    _rings.clear()
    _memory.forget()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
