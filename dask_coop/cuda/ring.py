"""Threads with buffers of their own, which copy an array together.

What a buffer is, and what a thread does with its own, is for others to say. Here is what happens
when one fails, or when the caller is interrupted: all stop, and nobody uses the arrays any more.
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

#: The fewest threads that copy an array beside others, if there are as many.
SHARE = 2

#: The counter of an array that nobody is to copy from any more; each thread may add as much to it.
STOPPED = 1 << 56

#: What a loop returns if a file has no more bytes; no `errno` is so large.
ENDED = -(1 << 30)


class FileRange(NamedTuple):
    """Where the bytes of an array are in a file.

    Parameters
    ----------
    descriptor : int
        Of a file that is open and stays so.
    offset : int
        Of the first byte.
    direct : bool
        Whether it was opened with ``O_DIRECT``, to be read past the page cache.
    """

    descriptor: int
    offset: int
    direct: bool


class Buffer(Protocol):
    """Memory, the stream of its copies, and the event behind the last one."""

    address: int
    stream: Any
    done: Any


class Counter:
    """Where the next piece of an array begins, which all threads share."""

    def __init__(self) -> None:
        self._value = np.zeros(1, "i8")
        self.address: int = self._value.ctypes.data

    @property
    def stopped(self) -> bool:
        """Whether no piece is to be taken any more."""
        return bool(self._value[0] >= STOPPED)

    def stop(self) -> None:
        """Let every thread end after the piece that it is at."""
        self._value[0] = STOPPED


class Own(NamedTuple):
    """The buffers of a thread, as objects and as the rows that a compiled loop reads."""

    buffers: list[Any]
    table: np.ndarray[Any, Any]


class Ring:
    """Threads with two buffers each: one is filled while the other is emptied.

    Parameters
    ----------
    name : str
        Of its threads.
    threads : int
    enter : callable
        Called by each thread before it makes its buffers. What it raises is the caller's error, and
        the thread's next copy calls it again.
    make : callable
        Returns a buffer; called by the thread that needs it.
    """

    def __init__(
        self, name: str, threads: int, enter: Callable[[], None], make: Callable[[], Buffer]
    ) -> None:
        self.buffers: list[Buffer] = []
        self._threads = threads
        self._enter, self._make = enter, make
        self._own = threading.local()
        self._callers: set[object] = set()
        self._pool = ThreadPoolExecutor(threads, name)

    def run(self, copy: Callable[[Own], None], counter: Counter, threads: int) -> None:
        """Call `copy` in up to so many threads, and wait for them.

        Several callers share the threads, each of which takes the pieces of one array at a time.

        Parameters
        ----------
        copy : callable
            Takes pieces, of which `counter` counts, until there are no more; it is given the
            thread's buffers, and holds on to all that it uses.
        counter : Counter
        threads : int

        Raises
        ------
        Exception
            One that `copy` raised, once nothing is copied any more.
        Closed
            If the ring is closed; some may have been copied.
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
            share = max(SHARE, -(-self._threads // len(self._callers)))
            for _ in range(min(self._threads, threads, share)):
                working.append(self._submit(work))
            for each in working:
                each.result()
        except BaseException:
            # An interrupt, too: the arrays may be gone once this is out.
            counter.stop()
            for each in working:
                each.cancel()
            wait(working)
            for buffer in list(self.buffers):
                buffer.stream.synchronize()
            raise
        finally:
            self._callers.discard(me)

    def close(self) -> None:
        """End the threads and forget the buffers, once no copy needs them."""
        self._pool.shutdown()
        self.buffers.clear()

    def _submit(self, work: Callable[[], None]) -> Future[None]:
        try:
            return self._pool.submit(work)
        except RuntimeError as error:
            raise Closed(f"the threads that copy have ended: {error}") from error

    def _buffers(self) -> Own:
        """Return the buffers of this thread, which are made by the first copy."""
        if not hasattr(self._own, "own"):
            self._enter()
            buffers = [self._make(), self._make()]
            rows = [[each.address, each.stream.ptr, each.done.ptr] for each in buffers]
            self._own.own = Own(buffers, np.array(rows, "i8"))
            self.buffers.extend(buffers)
        own: Own = self._own.own
        return own


def runs(x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
    """Return how an array lies in memory.

    Returns
    -------
    rows : numpy.ndarray
        How many runs there are along each of the outer axes, and the bytes from one to the next.
    run : int
        The bytes of a run, which are in one piece.
    """
    run, axes = x.itemsize, list(zip(x.shape, x.strides, strict=True))
    while axes and (axes[-1][1] == run or axes[-1][0] == 1):
        run *= axes.pop()[0]
    return np.array(axes, "i8").reshape(-1, 2), run


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_file(status: int, file: FileRange, nbytes: int) -> None:
    """Raise what a loop that read `nbytes` of a file returned, if that is an error of the file."""
    if status >= 0:
        return
    what = f"{nbytes} bytes from offset {file.offset} of file descriptor {file.descriptor}"
    if status == ENDED:
        raise OSError(errno.ENODATA, f"the file ends before {what} are read")
    raise OSError(-status, f"cannot read {what}: {os.strerror(-status)}")
