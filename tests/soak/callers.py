"""Clients that leave in the middle of their calls, and others that call meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from distributed import CancelledError, Client, futures_of, get_client
from distributed.comm import CommClosedError
from support.clusters import cluster, eventually, is_whole, values, wait_for

import dask_coop as dc
from soak.phase import Found, Phase
from soak.watch import Watched

WORKERS, THREADS = 2, 2
#: Chunks of a call that is left, and seconds of each: some 15 s in all, if nobody ended it.
CHUNKS, SECONDS = 200, 0.3
#: Seconds after a caller has left within which others' calls are to end.
PROMPT = 6.0


class Slowly:
    """Lifts chunks, takes its time over each, and leaves a file in a folder when it begins."""

    def __init__(self, begun: str) -> None:
        self.begun = begun

    def __call__(self, part: Any) -> Any:
        # What a monoid is probed with is smaller.
        if part.size > 2:
            Path(self.begun, str(uuid4())).touch()
            time.sleep(SECONDS)
        return part


def call(client: Client, begun: str, function: str) -> None:
    """Make a call that takes long."""
    # Chunks are too short for a thread to cut them.
    x = client.persist(da.ones(CHUNKS * 6, chunks=6, dtype="i8"))
    wait_for(x)
    slow = dc.Monoid("slow", np.add, 0, "i8", lift=Slowly(begun), commutative=True)
    getattr(dc, function)(x, slow, engine="collective")


def main(address: str, begun: str, function: str) -> None:
    """Call from a process of its own."""
    # A job of a shell's background ignores it, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Client(address, set_as_default=False) as client:
        call(client, begun, function)


class Leaver:
    """A caller that leaves when its call is under way.

    Parameters
    ----------
    client : Client
        Another one, of the same cluster.
    function : str
        "reduce" or "scan", whose results have to go, too.
    """

    def __init__(self, client: Client, function: str) -> None:
        self.client, self.function = client, function
        self._folder = tempfile.TemporaryDirectory()
        self.left = 0.0

    def __enter__(self) -> Leaver:
        return self

    def __exit__(self, *error: Any) -> None:
        self._folder.cleanup()

    def begun(self) -> int:
        """Return how many chunks have been begun."""
        return len([*Path(self._folder.name).iterdir()])

    def _is_due(self) -> None:
        eventually(lambda: self.begun() > WORKERS)
        self.left = time.monotonic()

    def close(self) -> None:
        """Close a client whose call is in another thread."""
        other = Client(self.client.scheduler.address, set_as_default=False)

        def calling() -> None:
            # What it raises depends on where it is.
            with suppress(CommClosedError, CancelledError):
                call(other, self._folder.name, self.function)

        thread = threading.Thread(target=calling, daemon=True)
        thread.start()
        self._is_due()
        other.close()
        thread.join()

    def interrupt(self) -> None:
        """Interrupt a process, as Ctrl-C does."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill a process."""
        self._signal(signal.SIGKILL)

    def _signal(self, sign: signal.Signals) -> None:
        address = self.client.scheduler.address
        given = [sys.executable, "-m", "soak.callers", address, self._folder.name, self.function]
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(given, stderr=subprocess.DEVNULL, env=os.environ | path) as process:
            try:
                self._is_due()
                process.send_signal(sign)
                process.wait(60)
            finally:
                process.kill()

    def lose(self) -> None:
        """Kill a worker whose task calls."""
        name, nanny = min(self.client.cluster.workers.items())
        given = self._folder.name, self.function
        task = self.client.submit(from_a_task, *given, workers=[name], pure=False)
        self._is_due()
        # Else it would be called again elsewhere.
        task.cancel()
        os.kill(nanny.pid, signal.SIGKILL)


def from_a_task(begun: str, function: str) -> None:
    call(get_client(), begun, function)


WAYS = {
    "processes killed": Leaver.kill,
    "clients closed": Leaver.close,
    "processes interrupted": Leaver.interrupt,
    "workers killed in a task that calls": Leaver.lose,
}


class Others:
    """A thread of another client's calls, one after the other."""

    def __init__(self, client: Client, found: Found) -> None:
        host = np.arange(60)
        self._client, self._found, self._host = client, found, host
        self._x = client.persist(da.from_array(host, chunks=7))
        wait_for(self._x)
        self.keys = {future.key for future in futures_of(self._x)}
        self._end = threading.Event()
        self._took: list[tuple[float, float]] = []

    def call(self, thread: Watched) -> None:
        """Call until that is to end."""
        while not self._end.is_set():
            for name, function, expected in (
                ("sum", dc.sum, self._host.sum()),
                ("cumsum", dc.cumsum, self._host.cumsum()),
            ):
                start = time.monotonic()
                with thread.doing(f"{name} of another client"):
                    self._found.call(name, lambda f=function: self._compute(f), expected)
                self._took.append((start, time.monotonic()))
            time.sleep(0.05)

    def _compute(self, function: Any) -> Any:
        return values(self._client, function(self._x, engine="collective"))

    @property
    def last(self) -> float:
        """When the last call that has ended was begun."""
        return self._took[-1][0] if self._took else 0.0

    def end(self) -> None:
        """Have no other call begin."""
        self._end.set()

    def longest(self, since: float) -> float:
        """Return the seconds of the longest call, as far as it was after some time."""
        return max((end - max(start, since) for start, end in self._took if end > since), default=0)


def run(thread: Watched, found: Found, size: int) -> None:
    """Have callers leave, one in each way in turn, first of reductions and then of scans."""
    with (
        thread.doing("to start"),
        cluster(WORKERS, THREADS) as client,
        Client(client.cluster, set_as_default=False) as other,
    ):
        for i in range(size):
            words = [*WAYS][i % len(WAYS)]
            function = ("reduce", "scan")[i // len(WAYS) % 2]
            with Leaver(client, function) as leaver:
                one(thread, found, words, leaver, Others(other, found))


def one(thread: Watched, found: Found, words: str, leaver: Leaver, others: Others) -> None:
    """Have one caller leave while others call."""
    told = f"{words}, {leaver.function}"
    calling = Watched("others", others.call)
    calling.start()
    try:
        with thread.doing(told):
            WAYS[words](leaver)
            eventually(lambda: others.last > leaver.left or calling.failure)
    finally:
        others.end()
    calling.join()
    found.count(words)
    found.require(not calling.failure, f"{told}: {calling.failure}")
    took, begun = others.longest(leaver.left), leaver.begun()
    found.require(took < PROMPT, f"{told}: others' calls took {took:.1f} s more")
    found.require(begun < CHUNKS / 2, f"{told}: all the same {begun} chunks were begun")
    with thread.doing(f"what is left after {told}"):
        eventually(lambda: is_whole(leaver.client))
        eventually(lambda: known(leaver.client) <= others.keys, 30, lambda: known(leaver.client))


def known(client: Client) -> set[Any]:
    """Return the keys that the scheduler knows."""
    return client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.tasks))


CALLERS = Phase(
    "callers",
    "The work of a caller that is closed, interrupted or killed ends, and others' calls go on.",
    run,
    2 * len(WAYS),
)

if __name__ == "__main__":
    main(*sys.argv[1:])
