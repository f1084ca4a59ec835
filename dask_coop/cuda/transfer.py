"""Copies of arrays between the host and a GPU, by several threads.

The host's memory is pageable, and a GPU's copy engine reads pinned memory only. So a GPU has some
threads with two pinned buffers each, which take the pieces of an array in turn::

    to the GPU     host array --copy by the thread--> buffer --copy engine--> GPU array
    to the host    GPU array --copy engine--> buffer --copy by the thread--> host array

Copies of different pieces overlap one another, and the copies of other arrays. Every buffer has a
stream of its own; these wait for what CuPy's current stream has queued before, and the current
stream waits for them, so that an array is used as any other of that stream.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

Array = Any
Host = np.ndarray[Any, Any]
#: Some of a host array, and where it is in the array of the GPU, in bytes.
Piece = tuple[Host, int]

#: The bytes of a buffer: large enough for the link, small enough for a processor's cache.
BUFFER_BYTES = 4 << 20

#: The bytes of all buffers of a GPU where nothing else is said.
RING_BYTES = 64 << 20

#: Threads that copy for a GPU, at most.
THREADS = 8

#: Arrays of fewer bytes are copied by CuPy, which needs no other thread.
SMALL_BYTES = 4 << 20


def to_device(x: Host, nbytes: int | None = None) -> Array:
    """Return a copy of `x` on the current device, which CuPy's current stream may use.

    `x` has been read when this returns. It may be of any byte order and strides; the copy is of the
    machine's byte order, and in Fortran order if `x` is.

    Parameters
    ----------
    x : numpy.ndarray
    nbytes : int, optional
        How much pinned memory the GPU's ring may take, if this is the first copy that needs it; by
        default `RING_BYTES`.
    """
    x = np.asarray(x)
    native = x.dtype.newbyteorder("=")
    if x.nbytes < SMALL_BYTES or x.dtype.kind not in "biufc":
        return cupy.asarray(x.astype(native, copy=False))
    if x.flags.f_contiguous and not x.flags.c_contiguous:
        return to_device(x.T, nbytes).T
    target = cupy.empty(x.shape, native)

    def copy(piece: Piece, buffer: Buffer) -> None:
        source, offset = piece
        buffer.stream.synchronize()
        staged = buffer.view(native, source.shape)
        np.copyto(staged, source, casting="equiv")
        buffer.copy(target.data.ptr + offset, buffer.address, staged.nbytes)

    _ring(nbytes).run(copy, pieces(x, BUFFER_BYTES))
    return target


def to_host(x: Array, nbytes: int | None = None) -> Host:
    """Return a copy of `x` in NumPy, in C order, as CuPy's current stream has it.

    Parameters
    ----------
    x : cupy.ndarray
    nbytes : int, optional
        As for `to_device`.
    """
    if x.nbytes < SMALL_BYTES:
        small: Host = cupy.asnumpy(x)
        return small
    with x.device:
        source = cupy.ascontiguousarray(x)
        result = np.empty(x.shape, x.dtype)

        def copy(piece: Piece, buffer: Buffer) -> None:
            target, offset = piece
            staged = buffer.view(x.dtype, target.shape)
            buffer.copy(buffer.address, source.data.ptr + offset, staged.nbytes)
            buffer.stream.synchronize()
            np.copyto(target, staged)

        _ring(nbytes).run(copy, pieces(result, BUFFER_BYTES))
        return result


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
        # Not from CuPy's pool, which would keep it.
        self._memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(BUFFER_BYTES), 0)
        self._bytes = np.frombuffer(self._memory, "u1", BUFFER_BYTES)
        self.address = self._memory.ptr
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.done = cupy.cuda.Event(disable_timing=True)

    def __del__(self) -> None:
        """Wait for the copy engine, which may still read the memory."""
        self.stream.synchronize()

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy between two addresses, of which one is the buffer's."""
        runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDefault, self.stream.ptr)

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Host:
        """Return its first bytes as an array."""
        return self._bytes[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


class Ring:
    """The pinned buffers of a GPU and the threads that fill them, each its own.

    Parameters
    ----------
    ordinal : int
    nbytes : int
        The most bytes of all buffers, which are made as they are needed.
    """

    def __init__(self, ordinal: int, nbytes: int) -> None:
        self.ordinal = ordinal
        self._threads = min(THREADS, nbytes // BUFFER_BYTES, os.cpu_count() or 1)
        # Of two, one is filled while the other is copied; more would leave the processor's cache.
        self._each = min(2, nbytes // BUFFER_BYTES // self._threads)
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(self._threads, f"dask_coop copies, GPU {ordinal}")

    def run(self, copy: Callable[[Piece, Buffer], None], work: Iterator[Piece]) -> None:
        """Copy all pieces; the current stream waits for what is queued when this returns.

        Raises
        ------
        Exception
            The first that a copy raised, once nothing is copied any more.
        """
        current = cupy.cuda.get_current_stream()
        start = cupy.cuda.Event(disable_timing=True)
        start.record(current)
        every = list(work)
        # A list's iterator gives each item to one thread only.
        todo = iter(every)
        used: list[Buffer] = []
        failed = threading.Event()

        def take() -> None:
            with cupy.cuda.Device(self.ordinal):
                mine: list[Buffer] = []
                try:
                    for turn, piece in enumerate(todo):
                        if failed.is_set():
                            return
                        if turn < self._each:
                            mine.append(self._buffer(turn))
                            mine[turn].stream.wait_event(start)
                        copy(piece, mine[turn % self._each])
                    for buffer in mine:
                        buffer.done.record(buffer.stream)
                except BaseException:
                    failed.set()
                    raise
                finally:
                    used.extend(mine)

        copies = [self._pool.submit(take) for _ in range(min(self._threads, len(every)))]
        try:
            for each in copies:
                each.result()
        except BaseException:
            # An interrupt, too: the arrays may be gone once this is out.
            failed.set()
            wait(copies)
            for buffer in used:
                buffer.stream.synchronize()
            raise
        for buffer in used:
            current.wait_event(buffer.done)

    def close(self) -> None:
        """Give the pinned memory back, once no copy needs it."""
        # Buffers belong to the threads and go with them.
        self._pool.shutdown()

    def _buffer(self, number: int) -> Buffer:
        """Return a buffer of this thread."""
        buffers: list[Buffer] = self._own.__dict__.setdefault("buffers", [])
        while len(buffers) <= number:
            buffers.append(Buffer())
        return buffers[number]


_rings: dict[int, Ring] = {}
_lock = threading.Lock()


def _ring(nbytes: int | None) -> Ring:
    """Return the ring of the current device, which is made of so many bytes if there is none."""
    ordinal = runtime.getDevice()
    with _lock:
        if ordinal not in _rings:
            _rings[ordinal] = Ring(ordinal, nbytes or RING_BYTES)
        return _rings[ordinal]


def close() -> None:
    """Give back the pinned memory of all GPUs; the next copy takes it again."""
    with _lock:
        for ring in _rings.values():
            ring.close()
        _rings.clear()


def _forget() -> None:
    """Begin anew in a process that was forked: threads and streams are not in it."""
    global _lock
    _lock = threading.Lock()
    _rings.clear()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
