"""Keep chunks that were copied to a GPU, for later tasks that need the same ones.

A task looks here before it reads. Chunks are kept by GPU and by key, up to a limit, and the least
recently used go first. `room`, `Node` and CuPy's allocator (cuda/pressure.py) drop them when a GPU
has too little memory for something else::

    task --find--> chunk                                          nothing is read
              '--> None: read, copy, put --> least recently used chunks go

A chunk that was read of files is held to their stamps (sources.py): when they have changed, it is
dropped. Tasks must not write into their inputs, which is Dask's rule, too.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from dask_coop.meters import DROPPED, FOUND, KEPT, count

#: The GPU that holds a chunk, and what else identifies it.
Key = tuple[int, Hashable]


class _Entry(NamedTuple):
    chunk: Any
    source: Hashable


class Kept:
    """Chunks on the GPUs of this process."""

    def __init__(self) -> None:
        #: Numbers of chunks that were not read again, and of those that were kept.
        self.hits: int = 0
        self.puts: int = 0
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked process: another thread may have held the lock at the fork."""
        # Reentrant, because the garbage collector may allocate memory meanwhile.
        self._lock = threading.RLock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._nbytes: dict[int, int] = {}

    def nbytes(self, gpu: int) -> int:
        """Return the bytes of the chunks on a GPU."""
        return self._nbytes.get(gpu, 0)

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self._entries)

    def of(self, keys: Iterable[Hashable]) -> tuple[int, int]:
        """Return the number of chunks of some keys, on any GPU, and their bytes."""
        wanted = {*keys}
        with self._lock:
            sizes = [int(e.chunk.nbytes) for (_, key), e in self._entries.items() if key in wanted]
        return len(sizes), sum(sizes)

    def find(self, gpu: int, key: Hashable, source: Hashable) -> Any:
        """Return the chunk of a key, or None if it is not kept or its source has changed."""
        with self._lock:
            entry = self._entries.get((gpu, key))
            if entry is None:
                return None
            if entry.source != source:
                dropped = self._drop((gpu, key))
            else:
                dropped = None
                self._entries.move_to_end((gpu, key))
                self.hits += 1
        if dropped is not None:
            return None
        count(FOUND)
        count(FOUND, entry.chunk.nbytes, "bytes")
        return entry.chunk

    def put(self, gpu: int, key: Hashable, source: Hashable, chunk: Any, limit: int) -> None:
        """Keep a chunk, and drop others until those of the GPU have at most `limit` bytes."""
        nbytes = int(chunk.nbytes)
        if nbytes > limit:
            return
        with self._lock:
            dropped = [self._drop((gpu, key))] if (gpu, key) in self._entries else []
            dropped += self._shrink(gpu, limit - nbytes)
            self._entries[gpu, key] = _Entry(chunk, source)
            self._nbytes[gpu] = self.nbytes(gpu) + nbytes
            self.puts += 1
        count(KEPT)
        count(KEPT, nbytes, "bytes")

    def free(self, gpu: int, nbytes: float = float("inf")) -> int:
        """Drop chunks of a GPU until `nbytes` are free, or none is left; return their bytes."""
        with self._lock:
            before = self.nbytes(gpu)
            dropped = self._shrink(gpu, before - nbytes)
            freed = before - self.nbytes(gpu)
        # Their memory is freed here, without the lock.
        del dropped
        return freed

    def clear(self) -> None:
        """Drop all chunks."""
        for gpu in list(self._nbytes):
            self.free(gpu)

    def _shrink(self, gpu: int, limit: float) -> list[_Entry]:
        """Drop the least recently used chunks of a GPU down to `limit` bytes; return them."""
        dropped: list[_Entry] = []
        for key in list(self._entries):
            if self.nbytes(gpu) <= max(limit, 0):
                break
            if key[0] == gpu:
                dropped.append(self._drop(key))
        return dropped

    def _drop(self, key: Key) -> _Entry:
        entry = self._entries.pop(key)
        self._nbytes[key[0]] -= int(entry.chunk.nbytes)
        count(DROPPED)
        count(DROPPED, entry.chunk.nbytes, "bytes")
        return entry


#: The chunks of this process.
KEPT_CHUNKS = Kept()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=KEPT_CHUNKS.forget)
