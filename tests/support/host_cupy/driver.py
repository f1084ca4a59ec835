"""Stands in for the CUDA driver: copies are made when somebody waits for them, and not before."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np


class FakeDriver:
    """Streams and events are numbers; `addresses` returns what the loops call.

    Parameters
    ----------
    fails : dict
        Errors by the name of a function and the number of its call.
    most_read : int
        What a call reads of a file, at most.
    """

    def __init__(
        self, fails: dict[tuple[str, int], int] | None = None, most_read: int = 1 << 30
    ) -> None:
        self.most_read, self._reads = most_read, 0
        self._streams: dict[int, list[tuple[int, int, int] | None]] = {}
        self._events: dict[int, tuple[int, int]] = {}
        self.log: list[tuple[str, tuple[int, ...]]] = []
        self.fails = fails or {}
        #: The stream of what NumPy does, which is done at once.
        self.current: int | None = None
        self._lock = threading.RLock()
        self._calls: dict[str, int] = {}
        self._made: list[Any] = []

    def addresses(self) -> Any:
        from dask_coop.cuda.copies_numba import Functions

        arity = {"copy": 4, "finish": 1, "follow": 3, "record": 2, "read": 4}
        return Functions(**{name: self._address(name, n) for name, n in arity.items()})

    def _address(self, name: str, arity: int) -> int:
        def call(*arguments: int) -> int:
            with self._lock:
                self._calls[name] = number = self._calls.get(name, 0) + 1
                if error := self.fails.get((name, number)):
                    return error
                self.log.append((name, arguments))
                return int(getattr(self, f"_{name}")(*arguments) or 0)

        kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * arity, use_errno=True)
        self._made.append(kind(call))
        address = ctypes.cast(self._made[-1], ctypes.c_void_p).value
        assert address is not None
        return address

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._streams.setdefault(stream, []).append((target, source, nbytes))

    def _finish(self, event: int) -> None:
        stream, behind = self._events.get(event, (0, 0))
        self.finish_stream(stream, behind)

    def _follow(self, stream: int, event: int, flags: int) -> None:
        """Wait, as NumPy will, if the stream is none of a buffer."""
        assert flags == 0
        if stream == self.current:
            self._finish(event)

    def _record(self, event: int, stream: int) -> None:
        self._events[event] = stream, len(self._streams.get(stream, ()))

    def _read(self, descriptor: int, address: int, nbytes: int, offset: int) -> int:
        """Read no more than the system might, and be interrupted every third time."""
        self._reads += 1
        if self._reads % 3 == 0:
            ctypes.set_errno(errno.EINTR)
            return -1
        memory = (ctypes.c_char * min(nbytes, self.most_read)).from_address(address)
        try:
            return os.preadv(descriptor, [memory], offset)
        except OSError as error:
            ctypes.set_errno(error.errno or 0)
            return -1

    @property
    def waiting(self) -> bool:
        """Whether there is a copy for which nobody has waited."""
        return any(copy is not None for copies in self._streams.values() for copy in copies)

    def finish_stream(self, stream: int, behind: int | None = None) -> None:
        """Make the copies of a stream, or as many as were queued when an event was recorded."""
        with self._lock:
            copies = self._streams.get(stream, [])
            for i, copy in enumerate(copies[:behind]):
                if copy is not None:
                    ctypes.memmove(*copy)
                    copies[i] = None

    def finish_all(self) -> None:
        """Wait for all streams, as whoever uses the arrays on the GPU does."""
        for stream in list(self._streams):
            self.finish_stream(stream)

    def buffer(self, nbytes: int) -> Any:
        """Return a buffer, aligned to pages as pinned memory is, with a stream of its own."""
        memory = np.full(nbytes + 4096, 0xEE, "u1")
        with self._lock:
            self._calls["buffer"] = number = self._calls.get("buffer", 0) + 1
        stream = SimpleNamespace(ptr=number, synchronize=lambda: self.finish_stream(number))
        return SimpleNamespace(
            memory=memory,
            address=memory.ctypes.data + -memory.ctypes.data % 4096,
            stream=stream,
            done=SimpleNamespace(ptr=1000 + number),
        )
