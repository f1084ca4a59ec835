"""Stands in for `dask_coop.cuda.peers`: GPUs that are numbers, arrays that know theirs."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np


class Current(threading.local):
    """The GPU that CuPy takes for a thread's, and the thread's stream on each."""

    def __init__(self) -> None:
        self.ordinal = 0
        self.before: list[int] = []
        self.streams: dict[int, Any] = {}


current = Current()


class Device(int):
    """A GPU: its number, and CuPy's current one within a block."""

    id = property(int)

    def use(self) -> None:
        current.ordinal = self

    def __enter__(self) -> None:
        current.before.append(current.ordinal)
        current.ordinal = self

    def __exit__(self, *_: object) -> None:
        current.ordinal = current.before.pop()


class OnGpu(np.ndarray[Any, Any]):
    """An array that lies on a GPU, and so do those that are made of it."""

    device: Any = None

    def __array_finalize__(self, of: Any) -> None:
        """Lie where that lies which this is made of."""
        self.device = of.device if isinstance(of, OnGpu) else None

    @property
    def value(self) -> Any:
        return self.view(np.ndarray)


def on_gpu(value: Any, device: int | None) -> OnGpu:
    """Return a copy of an array of the host on a GPU."""
    x = np.array(value).view(OnGpu)
    x.device = device
    return x


class FakeWatch:
    """Counts what the calling thread takes of a GPU."""

    def __init__(self, thread: threading.local, ordinal: int) -> None:
        self._watches = thread.__dict__.setdefault("watches", [])
        self._ordinal = ordinal
        self.now = self.most = 0

    def __enter__(self) -> FakeWatch:
        self._watches.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watches.remove(self)

    def count(self, device: int, nbytes: int) -> None:
        if device == self._ordinal:
            self.now += nbytes
            self.most = max(self.most, self.now)


class FakeGpus:
    """`n` GPUs; what was asked of them is in `log`, and `most` they had of arrays from `make`.

    `moved` are the bytes that went from one to another.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.log: list[Any] = []
        self._thread = threading.local()
        self._lock = threading.RLock()
        self._used: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        self.puts: list[Any] = []
        self.moved = 0

    def count(self) -> int:
        return self.n

    def name(self, ordinal: int) -> str:
        return "Fake" if ordinal < 4 else "Other"

    def memory(self, ordinal: int) -> tuple[int, int, int, int]:
        return ordinal << 30, 2 << 30, 3 << 30, 4 << 30

    def connect(self, ordinals: Sequence[int]) -> None:
        self.log.append(("connect", tuple(ordinals)))

    def use(self, ordinal: int) -> None:
        self._thread.ordinal = ordinal

    def current(self) -> int:
        """Return the GPU of the calling thread; -1 for none."""
        return int(getattr(self._thread, "ordinal", -1))

    def device_of(self, x: Any) -> int | None:
        return x.device if isinstance(x, OnGpu) else None

    def move(self, arrays: Sequence[OnGpu], ordinal: int) -> list[OnGpu]:
        assert all(x.device != ordinal for x in arrays)
        self.log.append(("move", tuple(x.device for x in arrays), ordinal))
        self.moved += sum(x.nbytes for x in arrays)
        copies = [x.copy() for x in arrays]
        for copy in copies:
            copy.device = ordinal
        return copies

    def follow_caller(self, ordinals: Sequence[int]) -> None:
        self.log.append(("follow", threading.current_thread(), tuple(ordinals)))

    def lead_caller(self, ordinals: Sequence[int]) -> None:
        self.log.append(("lead", threading.current_thread(), tuple(ordinals)))

    @contextmanager
    def on_default_streams(self, ordinals: Sequence[int]) -> Iterator[None]:
        before = self.current()
        try:
            yield
        finally:
            self.use(before)

    def moves(self) -> list[Any]:
        """Return the copies that were made, in order."""
        return [entry[1:] for entry in self.log if entry[0] == "move"]

    def make(self, value: Any, ordinal: int | None = None) -> OnGpu:
        """Return an array on a GPU, the thread's by default, which takes memory while it lives."""
        x = on_gpu(value, self.current() if ordinal is None else ordinal)
        return self.take(x)

    def take(self, x: Any) -> Any:
        """Count an array's memory while it lives, and return it."""
        self._take(x.device, x.nbytes)
        weakref.finalize(x, self._take, x.device, -x.nbytes).atexit = False
        return x

    def put(self, x: Any, beside: OnGpu | None = None, **_: Any) -> Any:
        """Return a copy of an array on the calling thread's GPU, or on that of another array."""
        copy = self.make(x, None if beside is None else beside.device)
        self.puts.append((copy.device, copy.nbytes))
        return copy

    def _take(self, device: int, nbytes: int) -> None:
        with self._lock:
            self._used[device] += nbytes
            self.most[device] = max(self.most[device], self._used[device])
        for watch in getattr(self._thread, "watches", []):
            watch.count(device, nbytes)

    def used(self, ordinal: int) -> int:
        return self._used[ordinal]

    def held(self, ordinal: int) -> int:
        return self._used[ordinal]

    def trim(self, ordinal: int) -> None:
        self.log.append(("trim", ordinal))

    def outside(self, ordinal: int) -> int:
        return 0

    def watch(self, ordinal: int) -> Any:
        return FakeWatch(self._thread, ordinal)

    def add(self, *arrays: OnGpu) -> OnGpu:
        """Return a sum on the calling thread's GPU, where all of `arrays` must lie."""
        assert {x.device for x in arrays} == {self.current()}
        return on_gpu(sum(x.value for x in arrays), self.current())
