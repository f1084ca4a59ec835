"""Track the calls under way on a scheduler: their waiting lines, their owners and their ends.

A call starts when there is room for its states and, if its workers wait for one another, a
connection to each of them. Until then it waits in line; after ``coop.collective.timeout`` it runs
as a graph::

    client --> in line: states --> where the chunks are --> in line: connections --> rounds

A call ends with its caller: an interrupted client sends a message, and the scheduler removes a
closed or killed one. A call also ends when its chunks are cancelled. While a call runs, the cluster
is not idle, and an adaptive cluster closes none of the call's workers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from distributed import Scheduler
from distributed.scheduler import WorkerState

from dask_coop.cluster.private import logger, said
from dask_coop.errors import Absent

Answer = dict[str, Any]

#: How many ended calls to remember, in case their messages arrive late.
REMEMBERED = 1000

#: Most seconds between two resets of the scheduler's idle time.
LOOK = 0.5


Waited = TypeVar("Waited", bound=asyncio.Future[Any])


def owned(future: Waited) -> Waited:
    """Return the future, with its exception retrieved even if its waiter is cancelled."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


class Call:
    """A call, as the scheduler and the workers that take part know it.

    Parameters
    ----------
    name : str
    seconds : float
        How long it may wait in a line. Workers have a line for their threads.
    nbytes : int
        Most bytes of all its states together, or of the table that a thread makes.
    """

    def __init__(self, name: str, seconds: float, nbytes: int) -> None:
        self.name = name
        self.seconds = seconds
        self.nbytes = nbytes
        self.is_over = False

    @property
    def message(self) -> dict[str, Any]:
        """Keywords of a message from which the receiver rebuilds the call."""
        return {"name": self.name, "timeout": self.seconds, "nbytes": self.nbytes}

    def require(self) -> None:
        """Raise Absent if nobody waits for the call any more."""
        if self.is_over:
            raise Absent("its call has ended, or the worker closes")


class Budget:
    """A limited resource that concurrent calls share, first come first served.

    Parameters
    ----------
    size : int
    resource : str
        Its name in messages.
    """

    def __init__(self, size: int, resource: str) -> None:
        self.size = size
        self._resource, self._left = resource, size
        self._line, self._freed = asyncio.Lock(), asyncio.Event()

    @asynccontextmanager
    async def hold(self, size: int, seconds: float) -> AsyncIterator[None]:
        """Wait in line for `size` units, at most all there are, and hold them.

        Raises
        ------
        Absent
            If they are not free within `seconds`.
        """
        size = min(size, self.size)
        try:
            async with asyncio.timeout(seconds), self._line:
                while self._left < size:
                    self._freed.clear()
                    await self._freed.wait()
                self._left -= size
        except TimeoutError:
            raise Absent(
                f"it has waited in line for {seconds:.3g} s (coop.collective.timeout): other calls "
                f"have the {self._resource}"
            ) from None
        try:
            yield
        finally:
            self._left += size
            self._freed.set()


class Calls:
    """The calls of a scheduler's clients.

    Parameters
    ----------
    scheduler : Scheduler
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tasks: dict[str, tuple[str, asyncio.Task[Answer]]] = {}
        self._ended: deque[str] = deque(maxlen=REMEMBERED)
        # Keys of chunks, by the names of calls and the addresses of workers.
        self._chunks: dict[str, Mapping[str, Any]] = {}
        self._awake: asyncio.Task[None] | None = None

    async def run(self, name: str, client: str, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the answer of a call, or decline if its caller leaves first."""
        if client not in self._scheduler.clients or name in self._ended:
            call.close()
            return _LEFT
        task = owned(asyncio.create_task(call))
        self._tasks[name] = client, task
        if self._awake is None:
            self._awake = asyncio.create_task(self._stay_awake())
        try:
            await asyncio.wait({task})
        finally:
            del self._tasks[name]
            # This coroutine may itself have been cancelled.
            task.cancel()
        return _LEFT if task.cancelled() else task.result()

    def end(self, name: str) -> None:
        """End a call, also one that has yet to arrive."""
        self._ended.append(name)
        if name in self._tasks:
            self._tasks[name][1].cancel()

    def end_of(self, client: str) -> None:
        """End the calls of a client."""
        for owner, task in self._tasks.values():
            if owner == client:
                task.cancel()

    @contextmanager
    def at_work(self, name: str, chunks: Mapping[str, Any]) -> Iterator[None]:
        """Count workers as busy, and end the call if all its chunks are cancelled.

        Parameters
        ----------
        name : str
            The call's name.
        chunks : mapping
            The key of one chunk of each worker, by the worker's address.
        """
        self._chunks[name] = chunks
        try:
            yield
        finally:
            del self._chunks[name]

    def spared(self, workers: Iterable[WorkerState]) -> list[WorkerState]:
        """Return the workers that take part in no call."""
        busy = set().union(*self._chunks.values())
        return [worker for worker in workers if worker.address not in busy]

    def _end_cancelled(self) -> None:
        """End calls whose chunks a client has cancelled, so that the scheduler forgot them."""
        tasks = self._scheduler.tasks
        for name, chunks in [*self._chunks.items()]:
            if not any(key in tasks for key in chunks.values()):
                self.end(name)

    async def _stay_awake(self) -> None:
        """Keep the scheduler from being idle while there are calls."""
        try:
            idle = self._scheduler.idle_timeout
            pause = min(LOOK, idle / 4) if idle else LOOK
            while self._tasks:
                self._scheduler.idle_since = None
                self._end_cancelled()
                await asyncio.sleep(pause)
            self._scheduler.idle_since = None
        except Exception as error:
            # Calls go on. There is no second try, so the log has one warning.
            logger.warning("an idle scheduler may close in the middle of a call: %s", said(error))
        else:
            self._awake = None


_LEFT: Answer = {
    "status": "declined",
    "reason": "its caller has left, or its chunks were cancelled",
}
