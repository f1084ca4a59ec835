"""Reuse the host memory of results that were dropped.

The system clears a page of new memory at the first write, which takes longer than copying a result
into memory that was in use before.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def host_bytes() -> int:
    """Return the bytes of memory of this machine; 0 if they are unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


class HostMemory:
    """A pool of free memory, the oldest first.

    Parameters
    ----------
    most : int
        Most bytes to keep.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: list[Array] = []
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Number of bytes kept."""
        return sum(memory.nbytes for memory in self._free)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array in C order, whose memory returns to the pool with its last view."""
        owner = _Owner(self, self._take(int(np.prod(shape, dtype="i8")) * dtype.itemsize))
        return np.asarray(owner).view(dtype).reshape(shape)

    def clear(self) -> None:
        """Free the memory of the pool."""
        with self._lock:
            self._free.clear()

    def forget(self) -> None:
        """Start anew in a forked process: another thread may have held the lock at the fork."""
        self._lock = threading.Lock()
        self._free = []

    def _take(self, nbytes: int) -> Array:
        """Return `nbytes` of memory: the last returned to the pool, or new."""
        with self._lock:
            for i in reversed(range(len(self._free))):
                if self._free[i].nbytes == nbytes:
                    return self._free.pop(i)
        # NumPy requests huge pages for it.
        return np.empty(nbytes, "u1")

    def give_back(self, memory: Array) -> None:
        """Keep memory that is no longer used, and free the oldest if there is too much."""
        # Garbage collection may call this while this thread holds the lock: then just free it.
        if memory.nbytes <= self._most and self._lock.acquire(blocking=False):
            try:
                self._free.append(memory)
                while self.nbytes > self._most:
                    del self._free[0]
            finally:
                self._lock.release()


class _Owner:
    """The base object of all arrays and views of one block of memory."""

    def __init__(self, pool: HostMemory, memory: Array) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._pool = pool
        self._memory = memory

    def __del__(self) -> None:
        self._pool.give_back(self._memory)
