"""A phase: a cluster of its own, dealt with in one way, and a promise that is to hold in it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from soak.run import counted, difference, outcome
from soak.watch import Watched, stacks_here, wait


@dataclass
class Found:
    """What a phase finds; threads of it add to it at the same time.

    Attributes
    ----------
    faults : list of str
        Broken promises; empty where all is well.
    counts : collections.Counter
        What was done and what came about, how often, in the words of the page.
    reasons : collections.Counter
        Why collectives ran as graphs.
    """

    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, n: int = 1) -> None:
        with self._lock:
            self.counts[what] += n

    def require(self, holds: Any, otherwise: str) -> None:
        """Write down a fault unless something holds."""
        if not holds:
            self.faults.append(otherwise)

    def call(self, name: str, function: Callable[[], Any], expected: Any) -> None:
        """Call a function, and hold its result to NumPy's."""
        found = outcome(function)
        self.count("calls")
        if words := difference(found, expected):
            self.faults.append(f"{name}: {words}")


@dataclass(frozen=True)
class Phase:
    """A phase.

    Attributes
    ----------
    name : str
        That by which ``SOAK_PHASES`` chooses it.
    promise : str
        What holds in it, for the page.
    run : callable
        Gets a thread, to say what it does by, where it writes what it finds, and its size.
    size : int
        How often it does what it does, in a whole run.
    """

    name: str
    promise: str
    run: Callable[[Watched, Found, int], None]
    size: int


def run(phase: Phase, deadline: float, size: int | None = None) -> tuple[dict[str, Any], bool]:
    """Run a phase; return what it found, and whether something in it has no end."""
    found, start = Found(), time.monotonic()
    thread = Watched(phase.name, lambda thread: phase.run(thread, found, size or phase.size))
    with counted({"fell back": found.reasons}):
        late = wait([thread], deadline)
    if late:
        print(stacks_here(), flush=True)
    if thread.failure:
        found.faults.append(f"{phase.name} ended:\n{thread.failure}")
    report = {
        "promise": phase.promise,
        "seconds": round(time.monotonic() - start, 1),
        "counts": dict(found.counts),
        "fell back": dict(found.reasons),
        "faults": found.faults + late,
    }
    return report, bool(late)
