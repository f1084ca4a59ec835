"""What happens to chunks and workers while functions are called."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import dask.array as da
from distributed import CancelledError, Client, futures_of
from support.clusters import addresses, evict_all, is_whole, move

#: How many of each are dealt before the next such deck is; a seed says in what order.
DECK = {
    "move": 6,
    "rebalance": 2,
    "replicate": 4,
    "spill": 3,
    "stop": 3,
    "kill": 2,
    "join": 1,
    "retire": 1,
}
#: How many workers there are at least and at most.
FEWEST, MOST = 3, 5
#: The name of the worker that is neither killed nor retired, to be measured throughout.
SPARED = 0
#: The longest that a worker is stopped, in seconds.
LONGEST_STOP = 1.5


class Chaos:
    """Deals events, one after the other; a nanny brings back what is killed.

    Attributes
    ----------
    came : collections.Counter
        Events that came about.
    killed : int
        How many workers have been killed or retired, or are about to be.
    """

    def __init__(self, client: Client, seed: int) -> None:
        self._client, self._dice = client, random.Random(seed)
        self._deck: list[str] = []
        self._stopped: threading.Timer | None = None
        self.came: Counter[str] = Counter()
        self.killed = 0

    def next(self) -> str:
        """Return the next event."""
        if not self._deck:
            self._deck = [name for name, count in DECK.items() for _ in range(count)]
            self._dice.shuffle(self._deck)
        return self._deck.pop()

    def act(self, event: str, x: da.Array) -> None:
        """Let something happen; what it needs may just have gone, as the array's chunks may."""
        try:
            if getattr(self, f"_{event}")(x):
                self.came[event] += 1
        except (OSError, LookupError, ValueError, AssertionError, CancelledError):
            self.came[f"{event}, in vain"] += 1

    def rest(self) -> None:
        """Let what is stopped go on."""
        if self._stopped is not None:
            self._stopped.join()

    def shrink(self) -> None:
        """Retire all workers but the fewest that there are, so that rounds end alike."""
        cluster = self._client.cluster
        if more := sorted(cluster.worker_spec.keys() - {SPARED})[FEWEST - 1 :]:
            cluster.sync(cluster.scale_down, more)

    def pids(self) -> dict[Any, int]:
        """Return the processes of workers, by name."""
        nannies = self._client.cluster.workers
        return {name: nanny.pid for name, nanny in nannies.items() if nanny.pid}

    def _move(self, x: da.Array) -> bool:
        to = self._dice.choice(addresses(self._client))
        move(self._client, self._dice.choice(futures_of(x)).key, to)
        return True

    def _rebalance(self, x: da.Array) -> bool:
        self._client.rebalance(futures_of(x))
        return True

    def _replicate(self, x: da.Array) -> bool:
        self._client.replicate([self._dice.choice(futures_of(x))], n=2)
        return True

    def _spill(self, x: da.Array) -> bool:
        evict_all(self._client)
        return True

    def _stop(self, x: da.Array) -> bool:
        def proceed(pid: int) -> None:
            # One that was just killed may be among those that are stopped.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        # Workers leave or are killed only while none is stopped, so this one is there when it ends.
        return self._if_whole(
            lambda: self._stop_for(self._dice.uniform(0.1, LONGEST_STOP), proceed)
        )

    def _stop_for(self, seconds: float, proceed: Callable[[int], None]) -> None:
        pid = self._dice.choice(sorted(self.pids().values()))
        os.kill(pid, signal.SIGSTOP)
        self._stopped = threading.Timer(seconds, proceed, [pid])
        self._stopped.start()

    def _kill(self, x: da.Array) -> bool:
        def kill() -> None:
            self.killed += 1
            pids = self.pids()
            os.kill(pids[self._dice.choice(sorted(pids.keys() - {SPARED}))], signal.SIGKILL)

        return self._if_whole(kill)

    def _join(self, x: da.Array) -> bool:
        cluster = self._client.cluster
        return len(cluster.worker_spec) < MOST and self._if_whole(
            lambda: cluster.scale(len(cluster.worker_spec) + 1)
        )

    def _retire(self, x: da.Array) -> bool:
        def retire() -> None:
            self.killed += 1
            name = self._dice.choice(sorted(cluster.worker_spec.keys() - {SPARED}))
            cluster.sync(cluster.scale_down, [name])

        cluster = self._client.cluster
        return len(cluster.worker_spec) > FEWEST and self._if_whole(retire)

    def _if_whole(self, act: Callable[[], None]) -> bool:
        """Act if all workers are there and none is stopped."""
        whole = is_whole(self._client) and (
            self._stopped is None or self._stopped.finished.is_set()
        )
        if whole:
            act()
        return whole
