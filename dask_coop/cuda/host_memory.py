"""Memory of results on the host, used again when a result is dropped.

A page of new memory is cleared by the system when it is first written to, which takes longer than
to copy a result into memory that was in use before.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class HostMemory:
    """Memory that is kept, the oldest first.

    Parameters
    ----------
    most : int
        The most bytes of it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: list[Array] = []
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """How many bytes are kept."""
        return sum(memory.nbytes for memory in self._free)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array in C order, whose memory is kept when nothing refers to it."""
        owner = _Owner(self, self._take(int(np.prod(shape, dtype="i8")) * dtype.itemsize))
        return np.asarray(owner).view(dtype).reshape(shape)

    def clear(self) -> None:
        """Give the free memory back to the system."""
        with self._lock:
            self._free.clear()

    def forget(self) -> None:
        """Begin anew in a process that was forked, maybe while another thread had the lock."""
        self._lock = threading.Lock()
        self._free = []

    def _take(self, nbytes: int) -> Array:
        """Return memory of so many bytes: the last that was given back, or new."""
        with self._lock:
            for i in reversed(range(len(self._free))):
                if self._free[i].nbytes == nbytes:
                    return self._free.pop(i)
        # NumPy asks for huge pages.
        return np.empty(nbytes, "u1")

    def give_back(self, memory: Array) -> None:
        """Keep memory that is no longer used, in the place of the oldest if there is too much."""
        # Garbage may be collected while this thread is in `_take`; what is not kept is freed.
        if memory.nbytes <= self._most and self._lock.acquire(blocking=False):
            try:
                self._free.append(memory)
                while self.nbytes > self._most:
                    del self._free[0]
            finally:
                self._lock.release()


class _Owner:
    """What arrays in some memory refer to, views of them too."""

    def __init__(self, pool: HostMemory, memory: Array) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._pool = pool
        self._memory = memory

    def __del__(self) -> None:
        self._pool.give_back(self._memory)
