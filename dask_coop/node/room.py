"""How much of a GPU's memory tasks may take that come from the host.

What a task needs is not known before it has run. So the first of a name runs alone, and the most
that one of them had at a time is what the next ones are taken to need. Tasks that work on what has
come have no gate; what a few of them make, before what they needed is gone, has to find room, too::

    0                                                                              limit
    | CuPy's pool, and what is outside of it | what begun tasks may yet take | next |
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dask.utils import format_bytes, parse_bytes

#: How much of a GPU may be taken where nothing is said.
FRACTION = 0.8

#: Finished tasks, of a thread and a graph, that `get_async` may not have seen yet.
MOST_UNSEEN = 4

#: The name, among those of tasks, of all that have no gate.
_OTHERS = ""


class Room:
    """The memory of one GPU.

    Parameters
    ----------
    gpus : module
        `dask_coop.cuda.peers`, or what stands in for it.
    ordinal : int
    limit : int
        The most bytes that may be taken for a task to begin.
    """

    def __init__(self, gpus: Any, ordinal: int, limit: int) -> None:
        self._gpus, self._ordinal, self._limit = gpus, ordinal, limit
        self._outside = gpus.outside(ordinal)
        self._begun: set[Gate] = set()
        self._lock = threading.Lock()
        self._waited = self._exceeded = 0

    def gate(self, name: str, most: dict[str, int]) -> Gate:
        """Return the gate of a task; `most` is what those of a name have needed."""
        return Gate(self, name, most)

    def enter(self, gate: Gate, may_exceed: bool) -> bool:
        """Keep room for a task, and return whether there is."""
        with self._lock:
            need = gate.most.get(gate.name)
            known = need is not None or may_exceed
            # Another graph's task of that name may wait for this one.
            if not known and any(other.name == gate.name for other in self._begun):
                return False
            # Of others nothing is known before the first has run; they mostly make as much again.
            others = gate.most.get(_OTHERS, max(gate.most.values(), default=0))
            # One that takes nothing may let others give something back.
            if need != 0 and not self._has((need or 0) + MOST_UNSEEN * others):
                if not may_exceed:
                    self._waited += not gate.has_waited
                    gate.has_waited = True
                    return False
                self._exceeded += not self._has(need or 0)
            self._begun.add(gate)
            return True

    def leave(self, gate: Gate) -> None:
        """Keep no more room for a task, which has ended."""
        with self._lock:
            self._begun.remove(gate)
            if gate.name not in gate.most:
                # The first of a name loads its kernels, which stay.
                self._outside = self._gpus.outside(self._ordinal)
            gate.most[gate.name] = max(gate.most.get(gate.name, 0), gate.watch.most)

    def watch(self) -> Any:
        """Return a block that watches what the calling thread takes of the GPU."""
        return self._gpus.watch(self._ordinal)

    @contextmanager
    def without_gate(self, most: dict[str, int]) -> Iterator[None]:
        """Watch what the calling thread, which does a task that has no gate, takes of the GPU."""
        with self.watch() as watch:
            yield
        with self._lock:
            most[_OTHERS] = max(most.get(_OTHERS, 0), watch.most)

    def _has(self, need: int) -> bool:
        yet = (max(0, gate.most.get(gate.name, 0) - gate.watch.now) for gate in self._begun)
        left = self._limit - self._outside - sum(yet) - need
        if self._gpus.used(self._ordinal) > left:
            return False
        if self._gpus.held(self._ordinal) > left:
            # Free pieces in CuPy's pool are taken, too, and may be of no use to what comes.
            self._gpus.trim(self._ordinal)
        return bool(self._gpus.held(self._ordinal) <= left)

    def explain(self) -> str:
        """Tell what the limit has done since it was last asked, if anything."""
        with self._lock:
            waited, exceeded, self._waited, self._exceeded = self._waited, self._exceeded, 0, 0
        if not waited and not exceeded:
            return ""
        told = f"{waited} tasks waited until less than {format_bytes(self._limit)} was taken"
        return f"{told}, {exceeded} began although more was" if exceeded else told


class Gate:
    """What a task waits for, which may fill a GPU."""

    def __init__(self, room: Room, name: str, most: dict[str, int]) -> None:
        self.name: str = name
        self.most: dict[str, int] = most
        self.has_waited = False
        self._room = room
        self.watch: Any = Nothing

    def opens(self, stalled: bool) -> bool:
        """Return whether the task may begin; it must, if there is nothing else to wait for."""
        return self._room.enter(self, may_exceed=stalled)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Watch what the calling thread, which does the task, takes of the GPU."""
        try:
            with self._room.watch() as self.watch:
                yield
        finally:
            self._room.leave(self)


class Nothing:
    """What a task has taken that has not begun."""

    now = most = 0


def parsed_limit(given: Any, total: int) -> int:
    """Return the bytes of a limit, which may be a fraction of the `total`.

    Raises
    ------
    TypeError, ValueError
        If it is neither bytes nor a fraction, or not positive.
    """
    if given is None:
        return int(FRACTION * total)
    problem = f"memory_limit must be bytes, such as '8 GiB', or a fraction up to 1, got {given!r}"
    if isinstance(given, bool) or not isinstance(given, str | float | int):
        raise TypeError(problem)
    try:
        nbytes = given * total if isinstance(given, float) and given <= 1 else parse_bytes(given)
    except (ValueError, OverflowError) as error:
        raise ValueError(problem) from error
    if nbytes <= 0:
        raise ValueError(problem)
    return int(nbytes)
