"""Threads that say what they do and since when, and the stacks of all when one takes too long."""

from __future__ import annotations

import asyncio
import faulthandler
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Worker, WorkerPlugin


class Watched(threading.Thread):
    """A thread that calls `work` with itself, and says what it does.

    Attributes
    ----------
    failure : str
        The traceback of what `work` raised; "" if it raised nothing.
    """

    def __init__(self, name: str, work: Callable[[Watched], None]) -> None:
        # One that hangs is not to keep the process from its end.
        super().__init__(name=name, daemon=True)
        self._work, self._doing, self.failure = work, ("", 0.0), ""

    def run(self) -> None:
        try:
            self._work(self)
        except BaseException:
            self.failure = traceback.format_exc()

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Say what is done from here on; it has the deadline."""
        self._doing = what, time.monotonic()
        try:
            yield
        finally:
            self._doing = "", 0.0

    def late(self, seconds: float) -> str:
        """Say what has been done for longer than so many seconds; "" if nothing has."""
        what, since = self._doing
        took = time.monotonic() - since
        return f"{self.name}: {what} for {took:.0f} s" if what and took > seconds else ""


def wait(threads: Sequence[Watched], seconds: float) -> list[str]:
    """Start threads and wait until all have ended, or say what one does for too long."""
    for thread in threads:
        thread.start()
    while alive := [thread for thread in threads if thread.is_alive()]:
        if late := [words for thread in alive if (words := thread.late(seconds))]:
            return late
        alive[0].join(0.1)
    return []


class Stacks(WorkerPlugin):  # type: ignore[misc]
    """Has a worker write its stacks into a folder when it gets SIGUSR1."""

    name = "soak-stacks"
    idempotent = True

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def setup(self, worker: Worker) -> None:
        # Open for as long as the worker is.
        self.file = Path(self.folder, str(os.getpid())).open("w")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, self.file, all_threads=True)


def stacks_here() -> str:
    """Return the stacks of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    told = io.StringIO()
    for ident, frame in sys._current_frames().items():
        told.write(f"\nThread {names.get(ident, ident)}\n")
        told.writelines(traceback.format_stack(frame))
    return told.getvalue()


def stacks(loop: Any, pids: Iterable[int], folder: Path) -> str:
    """Return the stacks of this process, of the tasks of its loop, and of workers."""
    told = io.StringIO()
    told.write(stacks_here())
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=told)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGUSR1)
        except ProcessLookupError:
            continue
    time.sleep(1)
    for path in sorted(folder.iterdir()):
        if text := path.read_text():
            told.write(f"\nWorker of process {path.name}\n{text}")
    return told.getvalue()
