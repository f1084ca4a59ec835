"""Stands in for the CUDA driver: copies are made when somebody waits for them, and not before."""

from __future__ import annotations

import ctypes
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
    """

    def __init__(self, fails: dict[tuple[str, int], int] | None = None) -> None:
        self._streams: dict[int, list[tuple[int, int, int] | None]] = {}
        self._events: dict[int, tuple[int, int]] = {}
        self.log: list[tuple[str, tuple[int, ...]]] = []
        self.fails = fails or {}
        self._lock = threading.RLock()
        self._calls: dict[str, int] = {}
        self._made: list[Any] = []

    def addresses(self) -> Any:
        from dask_coop.cuda.copies_numba import Driver

        arity = {"copy": 4, "finish": 1, "follow": 3, "record": 2}
        return Driver(**{name: self._address(name, n) for name, n in arity.items()})

    def _address(self, name: str, arity: int) -> int:
        def call(*arguments: int) -> int:
            with self._lock:
                self._calls[name] = number = self._calls.get(name, 0) + 1
                if error := self.fails.get((name, number)):
                    return error
                self.log.append((name, arguments))
                getattr(self, f"_{name}")(*arguments)
                return 0

        self._made.append(ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * arity)(call))
        address = ctypes.cast(self._made[-1], ctypes.c_void_p).value
        assert address is not None
        return address

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._streams.setdefault(stream, []).append((target, source, nbytes))

    def _finish(self, event: int) -> None:
        stream, behind = self._events.get(event, (0, 0))
        self.finish_stream(stream, behind)

    def _follow(self, stream: int, event: int, flags: int) -> None:
        assert flags == 0

    def _record(self, event: int, stream: int) -> None:
        self._events[event] = stream, len(self._streams.get(stream, ()))

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
