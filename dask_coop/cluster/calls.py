"""Calls under way on a scheduler: who waits in line, whose they are, and what ends them.

A call is admitted when there is room for its states, and, if its workers wait for one another, when
there is a connection to each of them; until then it waits in line, and after the configuration's
``coop.collective.timeout`` it is a graph::

    client --> in line: states --> where the chunks are --> in line: connections --> rounds

It ends with its caller: one that is interrupted says so, and one that is closed or killed is
removed from the scheduler. It ends, too, when its chunks are cancelled. To distributed a call is
work: the cluster is not idle meanwhile, and no worker that takes part is among those that an
adaptive cluster may close.
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

#: Callers that have left, of which the call may come late.
REMEMBERED = 1000

#: Seconds between two times at which a scheduler is told that it is not idle, at most.
LOOK = 0.5


Waited = TypeVar("Waited", bound=asyncio.Future[Any])


def owned(future: Waited) -> Waited:
    """Return a future whose exception is retrieved, also if whoever waits for it is cancelled."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


class Call:
    """A call, as the scheduler and the workers that take part know it.

    Parameters
    ----------
    name : str
    seconds : float
        How long it may wait in a line, of which workers have one for their threads.
    nbytes : int
        What its states may take in all, or the table that a thread makes.
    """

    def __init__(self, name: str, seconds: float, nbytes: int) -> None:
        self.name, self.seconds, self.nbytes = name, seconds, nbytes
        self.is_over = False

    @property
    def message(self) -> dict[str, Any]:
        """What makes it again elsewhere, as keywords of a message."""
        return {"name": self.name, "timeout": self.seconds, "nbytes": self.nbytes}

    def require(self) -> None:
        """Raise if nobody waits for it any more."""
        if self.is_over:
            raise Absent("its call has ended, or the worker closes")


class Budget:
    """Room for what all calls at a time take, first come first served.

    Parameters
    ----------
    size : int
    of : str
        What it is room for, in messages.
    """

    def __init__(self, size: int, of: str) -> None:
        self.size, self._of = size, of
        self._left = size
        self._line, self._freed = asyncio.Lock(), asyncio.Event()

    @asynccontextmanager
    async def hold(self, size: int, seconds: float) -> AsyncIterator[None]:
        """Wait for so much room, behind those who came before, and hold it; at most all there is.

        Raises
        ------
        Absent
            If it has not come in so many seconds.
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
                f"have the {self._of}"
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
        self._left: deque[str] = deque(maxlen=REMEMBERED)
        # By the names of calls and the addresses of workers.
        self._chunks: dict[str, Mapping[str, Any]] = {}
        self._awake: asyncio.Task[None] | None = None

    async def run(self, name: str, client: str, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the answer of a call, or one that declines if its caller leaves before."""
        if client not in self._scheduler.clients or name in self._left:
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
            # Whoever waited here may be cancelled, too.
            task.cancel()
        return _LEFT if task.cancelled() else task.result()

    def end(self, name: str) -> None:
        """End a call, also one that comes later."""
        self._left.append(name)
        if name in self._tasks:
            self._tasks[name][1].cancel()

    def end_of(self, client: str) -> None:
        """End the calls of a client."""
        for owner, task in self._tasks.values():
            if owner == client:
                task.cancel()

    @contextmanager
    def at_work(self, name: str, chunks: Mapping[str, Any]) -> Iterator[None]:
        """Have workers count as working, and end a call whose chunks nobody wants any more.

        Parameters
        ----------
        name : str
            That of the call.
        chunks : mapping
            By the addresses of the workers, the key of one of the chunks of each.
        """
        self._chunks[name] = chunks
        try:
            yield
        finally:
            del self._chunks[name]

    def spared(self, workers: Iterable[WorkerState]) -> list[WorkerState]:
        """Return those workers that have nothing to do for a call."""
        at_work = set().union(*self._chunks.values())
        return [worker for worker in workers if worker.address not in at_work]

    def _end_cancelled(self) -> None:
        """End calls whose chunks the scheduler has forgotten: a client has cancelled them."""
        tasks = self._scheduler.tasks
        for name, chunks in [*self._chunks.items()]:
            if not any(key in tasks for key in chunks.values()):
                self.end(name)

    async def _stay_awake(self) -> None:
        """Have the scheduler not be idle while there are calls."""
        try:
            idle = self._scheduler.idle_timeout
            pause = min(LOOK, idle / 4) if idle else LOOK
            while self._tasks:
                self._scheduler.idle_since = None
                self._end_cancelled()
                await asyncio.sleep(pause)
            self._scheduler.idle_since = None
        except Exception as error:
            # A call goes on without; it is not tried again, so that this is said once.
            logger.warning("an idle scheduler may close in the middle of a call: %s", said(error))
        else:
            self._awake = None


_LEFT: Answer = {
    "status": "declined",
    "reason": "its caller has left, or its chunks were cancelled",
}
