"""Keep decoded cells while several tasks need some of each.

    task 1 --takes 3/4--> cell, decoded by task 1 <--takes 1/4, waits for task 1-- task 2

A cell is dropped when as many elements have been taken as it has. If there are too many, those that
were not used for longest are dropped, and decoded anew where a task needs them.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: The most bytes of a process, and the most of its machine's memory.
_MOST_BYTES = 1 << 30
_MOST_MEMORY = 1 / 16


class Need(NamedTuple):
    """How many elements a task takes of a cell, how many it has, and how many bytes."""

    taken: int
    total: int
    nbytes: int


@dataclass(eq=False, slots=True)
class _Entry:
    stamp: Hashable
    left: int
    nbytes: int
    cell: Future[Any] = field(default_factory=Future)


class Decoded:
    """The cells that a process has decoded and will need again."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._nbytes = 0
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._most = min(_MOST_BYTES, int(_MOST_MEMORY * memory))

    def take(self, key: Hashable, stamp: Hashable, need: Need, make: Callable[[], Any]) -> Any:
        """Return a cell, which `make` decodes unless another task has done so.

        Parameters
        ----------
        key : hashable
        stamp : hashable
            Changes with the stored bytes.
        need : Need
        make : callable
        """
        with self._lock:
            entry = self._entries.get(key)
            is_new = entry is None or entry.stamp != stamp
            if entry is None or is_new:
                self._drop(key)
                entry = self._entries[key] = _Entry(stamp, need.total, need.nbytes)
                self._nbytes += need.nbytes
            self._entries.move_to_end(key)
            entry.left -= need.taken
            if entry.left <= 0:
                self._drop(key)
            while self._nbytes > self._most and self._entries:
                self._drop(next(iter(self._entries)))
        if is_new:
            try:
                entry.cell.set_result(make())
            except BaseException as error:
                entry.cell.set_exception(error)
                with self._lock:
                    if self._entries.get(key) is entry:
                        self._drop(key)
                raise
        return entry.cell.result()

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        self._nbytes -= entry.nbytes if entry else 0

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self._entries)


#: Those of this process.
DECODED = Decoded()
# A process that is forked has none of the threads that decode.
os.register_at_fork(after_in_child=DECODED.__init__)  # type: ignore[misc]
