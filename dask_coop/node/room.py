"""Limit the memory of a GPU that tasks which bring data from the host may use.

The need of a task is unknown until it has run. So the first task of a name runs alone, and later
ones are assumed to need the most that any task of the name has held at a time. Tasks on data that
is already there have no gate, but there must be room for the output of a few of them, made before
their inputs are freed. Chunks that are only kept for later (chunks/kept.py) make room::

    0                                                                              limit
    | CuPy's pool, and memory outside of it | rest of the running tasks' needs | next |
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dask.utils import format_bytes, parse_bytes

from dask_coop.chunks.kept import KEPT_CHUNKS

#: Default fraction of a GPU's memory that may be in use.
FRACTION = 0.8

#: Most finished tasks, per thread and graph, that `get_async` may not have seen yet.
MOST_UNSEEN = 4

#: The name under which all tasks without a gate are counted.
_OTHERS = ""


class Room:
    """The memory of one GPU.

    Parameters
    ----------
    gpus : module
        `dask_coop.cuda.peers`, or a stand-in.
    ordinal : int
    limit : int
        Most bytes in use, with those of the next task, for it to begin.
    """

    def __init__(self, gpus: Any, ordinal: int, limit: int) -> None:
        self._gpus, self._ordinal, self._limit = gpus, ordinal, limit
        self._outside = gpus.outside(ordinal)
        self._begun: set[Gate] = set()
        self._lock = threading.Lock()
        self._waited = self._exceeded = 0

    def gate(self, name: str, most: dict[str, int]) -> Gate:
        """Return the gate of a task; `most` has the largest need so far, by name."""
        return Gate(self, name, most)

    def enter(self, gate: Gate, may_exceed: bool) -> bool:
        """Reserve room for a task; return whether there was enough."""
        with self._lock:
            need = gate.most.get(gate.name)
            known = need is not None or may_exceed
            # The first of a name runs alone, unless another graph's task may be waiting for it.
            if not known and any(other.name == gate.name for other in self._begun):
                return False
            # Until a task without a gate has run, assume that it makes as much as its input.
            others = gate.most.get(_OTHERS, max(gate.most.values(), default=0))
            # A task that needs nothing may help others to free memory.
            if need != 0 and not self._has((need or 0) + MOST_UNSEEN * others):
                if not may_exceed:
                    self._waited += not gate.has_waited
                    gate.has_waited = True
                    return False
                self._exceeded += not self._has(need or 0)
            self._begun.add(gate)
            return True

    def leave(self, gate: Gate) -> None:
        """Release the room of a task that has ended."""
        with self._lock:
            self._begun.remove(gate)
            if gate.name not in gate.most:
                # The first task of a name loads kernels, which stay in memory.
                self._outside = self._gpus.outside(self._ordinal)
            gate.most[gate.name] = max(gate.most.get(gate.name, 0), gate.watch.most)

    def watch(self) -> Any:
        """Return a context manager that measures the GPU memory of the calling thread."""
        return self._gpus.watch(self._ordinal)

    @contextmanager
    def without_gate(self, most: dict[str, int]) -> Iterator[None]:
        """Measure the GPU memory of a task without a gate, run by the calling thread."""
        with self.watch() as watch:
            yield
        with self._lock:
            most[_OTHERS] = max(most.get(_OTHERS, 0), watch.most)

    def _has(self, need: int) -> bool:
        reserved = (max(0, gate.most.get(gate.name, 0) - gate.watch.now) for gate in self._begun)
        left = self._limit - self._outside - sum(reserved) - need
        excess = self._gpus.used(self._ordinal) - left
        # Kept chunks are in use only as long as nothing else needs their memory.
        # Half of them at least, because freeing memory to the driver waits for the GPU.
        half = KEPT_CHUNKS.nbytes(self._ordinal) / 2
        if excess > 0 and KEPT_CHUNKS.free(self._ordinal, max(excess, half)):
            excess = self._gpus.used(self._ordinal) - left
        if excess > 0:
            return False
        if self._gpus.held(self._ordinal) > left:
            # Free blocks of CuPy's pool also use memory, and may not fit the next task.
            self._gpus.trim(self._ordinal)
        return bool(self._gpus.held(self._ordinal) <= left)

    def explain(self) -> str:
        """Return how many tasks waited since the last call, and how much is kept, if any."""
        with self._lock:
            waited, exceeded, self._waited, self._exceeded = self._waited, self._exceeded, 0, 0
        texts = []
        if waited or exceeded:
            texts.append(
                f"{waited} tasks waited until less than {format_bytes(self._limit)} was taken"
            )
        if exceeded:
            texts.append(f"{exceeded} began although more was")
        if nbytes := KEPT_CHUNKS.nbytes(self._ordinal):
            texts.append(f"{format_bytes(nbytes)} of chunks are kept")
        return ", ".join(texts)


class Gate:
    """The gate at which a task that may fill a GPU waits."""

    def __init__(self, room: Room, name: str, most: dict[str, int]) -> None:
        self.name: str = name
        self.most: dict[str, int] = most
        self.has_waited = False
        self._room = room
        self.watch: Any = NotBegun

    def opens(self, stalled: bool) -> bool:
        """Return whether the task may begin; a stalled graph's always may."""
        return self._room.enter(self, may_exceed=stalled)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Measure the GPU memory of the task, run by the calling thread."""
        try:
            with self._room.watch() as self.watch:
                yield
        finally:
            self._room.leave(self)


class NotBegun:
    """The memory of a task that has not begun."""

    now = most = 0


def parsed_limit(limit: Any, total: int) -> int:
    """Return the bytes of a limit, which may be a fraction of the `total`.

    Raises
    ------
    TypeError, ValueError
        If it is neither bytes nor a fraction, or not positive.
    """
    if limit is None:
        return int(FRACTION * total)
    problem = f"memory_limit must be bytes, such as '8 GiB', or a fraction up to 1, got {limit!r}"
    if isinstance(limit, bool) or not isinstance(limit, str | float | int):
        raise TypeError(problem)
    try:
        nbytes = limit * total if isinstance(limit, float) and limit <= 1 else parse_bytes(limit)
    except (ValueError, OverflowError) as error:
        raise ValueError(problem) from error
    if nbytes <= 0:
        raise ValueError(problem)
    return int(nbytes)
