"""Run threads with buffers of their own that together copy an array.

Callers define the buffers and the copying. This module handles failures: when a thread fails, or
the caller is interrupted, all threads stop, and none uses the arrays afterwards.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol

import numpy as np

from dask_coop.errors import Closed

#: Fewest threads that copy an array while others are copied, if there are that many.
FEWEST_THREADS = 2

#: The value of a stopped array's counter; each thread may add as much to it without overflow.
STOPPED = 1 << 56

#: A loop's result if the file ends early; no `errno` is so large.
ENDED = -(1 << 30)


class FileRange(NamedTuple):
    """The position of an array's bytes in a file.

    Parameters
    ----------
    descriptor : int
        Descriptor of the file, which must stay open.
    offset : int
        Offset of the first byte.
    direct : bool
        Whether the file was opened with ``O_DIRECT``, to be read past the page cache.
    """

    descriptor: int
    offset: int
    direct: bool


class Buffer(Protocol):
    """Memory, the stream of its copies, and the event behind the last copy."""

    address: int
    stream: Any
    done: Any


class Counter:
    """The first byte of an array's next tile, which all threads share."""

    def __init__(self) -> None:
        self._value = np.zeros(1, "i8")
        self.address: int = self._value.ctypes.data

    @property
    def stopped(self) -> bool:
        """Whether threads must take no further tile."""
        return bool(self._value[0] >= STOPPED)

    def stop(self) -> None:
        """End every thread after its current tile."""
        self._value[0] = STOPPED


class ThreadBuffers(NamedTuple):
    """The buffers of a thread, as objects and as the rows that a compiled loop reads."""

    buffers: list[Any]
    table: np.ndarray[Any, Any]


class Ring:
    """Threads with two buffers each: one is filled while the other is emptied.

    Parameters
    ----------
    name : str
        Prefix of the threads' names.
    threads : int
    enter : callable
        Called by each thread before it makes its buffers. If it raises, the caller gets the error,
        and the thread's next copy calls it again.
    make : callable
        Returns a buffer; called by the thread that needs it.
    """

    def __init__(
        self, name: str, threads: int, enter: Callable[[], None], make: Callable[[], Buffer]
    ) -> None:
        self.buffers: list[Buffer] = []
        self._threads = threads
        self._enter, self._make = enter, make
        self._local = threading.local()
        self._callers: set[object] = set()
        self._pool = ThreadPoolExecutor(threads, name)

    def run(self, copy: Callable[[ThreadBuffers], None], counter: Counter, threads: int) -> None:
        """Call `copy` in up to `threads` threads, and wait for them.

        Several callers share the threads. A thread takes the tiles of one array at a time.

        Parameters
        ----------
        copy : callable
            Copies tiles by the thread's buffers, its argument, until `counter` has passed the last
            one; keeps everything that it uses alive.
        counter : Counter
        threads : int

        Raises
        ------
        Exception
            An exception of `copy`, after all copying has stopped.
        Closed
            If the ring is closed; some tiles may have been copied.
        """

        def work() -> None:
            try:
                copy(self._buffers())
            except BaseException:
                counter.stop()
                raise

        working: list[Future[None]] = []
        me = object()
        try:
            self._callers.add(me)
            fair = max(FEWEST_THREADS, -(-self._threads // len(self._callers)))
            for _ in range(min(self._threads, threads, fair)):
                working.append(self._submit(work))
            for future in working:
                future.result()
        except BaseException:
            # Also after an interrupt: the arrays may be freed once this function returns.
            counter.stop()
            for future in working:
                future.cancel()
            wait(working)
            for buffer in list(self.buffers):
                buffer.stream.synchronize()
            raise
        finally:
            self._callers.discard(me)

    def close(self) -> None:
        """End the threads and drop the buffers, once no copy needs them."""
        self._pool.shutdown()
        self.buffers.clear()

    def _submit(self, work: Callable[[], None]) -> Future[None]:
        try:
            return self._pool.submit(work)
        except RuntimeError as error:
            raise Closed(f"the threads that copy have ended: {error}") from error

    def _buffers(self) -> ThreadBuffers:
        """Return the buffers of this thread, made at its first copy."""
        if not hasattr(self._local, "buffers"):
            self._enter()
            buffers = [self._make(), self._make()]
            rows = [[b.address, b.stream.ptr, b.done.ptr] for b in buffers]
            self._local.buffers = ThreadBuffers(buffers, np.array(rows, "i8"))
            self.buffers.extend(buffers)
        mine: ThreadBuffers = self._local.buffers
        return mine


def runs(x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
    """Return the contiguous runs that an array's memory consists of.

    Returns
    -------
    rows : numpy.ndarray
        For each of the outer axes, the number of runs and the bytes from one to the next.
    run : int
        The bytes of a run, which is contiguous.
    """
    run, axes = x.itemsize, list(zip(x.shape, x.strides, strict=True))
    while axes and (axes[-1][1] == run or axes[-1][0] == 1):
        run *= axes.pop()[0]
    return np.array(axes, "i8").reshape(-1, 2), run


def cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_file(status: int, file: FileRange, nbytes: int) -> None:
    """Raise OSError if a loop that read `nbytes` of a file returned an error of the file."""
    if status >= 0:
        return
    span = f"{nbytes} bytes from offset {file.offset} of file descriptor {file.descriptor}"
    if status == ENDED:
        raise OSError(errno.ENODATA, f"the file ends before {span} are read")
    raise OSError(-status, f"cannot read {span}: {os.strerror(-status)}")
