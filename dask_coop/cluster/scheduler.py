"""The scheduler's side of rounds: it knows where chunks are, and to whom results belong.

`dask_coop.cluster.worker` draws the picture. No user's code runs here: the scheduler makes base
sums of small states of this library's monoids only, and a worker makes the others. Nor do loops
over chunks block the event loop: they go slice by slice, and check after each whether the cluster
has changed. Concurrent calls share one budget for their states and wait in line for it
(`dask_coop.cluster.calls`).
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.core import Status
from distributed.protocol import Serialize
from distributed.scheduler import TaskState, WorkerState

from dask_coop.cluster import monitor
from dask_coop.cluster.calls import Budget, Call, Calls, owned
from dask_coop.cluster.counts import showing
from dask_coop.cluster.private import refusing, relied_on, relying, require
from dask_coop.cluster.silence import seconds, timed
from dask_coop.cluster.versions import Handler, Portable, same_version
from dask_coop.cluster.worker import (
    END,
    LEAVE,
    REDUCE,
    SCAN,
    SLICE,
    SWEEP,
    Answer,
    Item,
    bad_one,
    declined,
    opened,
    send,
    sliced,
    uncollected,
)
from dask_coop.errors import Absent, Incompatible

#: The chunks of each worker, by its address.
ByWorker = Mapping[str, list[Item]]

#: The stream message of a client that releases keys.
RELEASE = "client-releases-keys"

#: Most bytes of states of all concurrent calls. Calls of at most `SMALL_BYTES` have their own
#: budget, an eighth as large, so that they need not wait for large ones.
SMALL_BYTES, BUDGET_BYTES = 1 << 20, 1 << 27

#: Most places that concurrent calls may use: half of the connections of a worker.
PLACES = 256


class SchedulerRounds(Portable, SchedulerPlugin):  # type: ignore[misc]
    """Add the handlers by which clients request rounds from a scheduler."""

    name = "dask-coop-rounds"
    idempotent = True
    handlers: tuple[str, ...] = (REDUCE, SCAN, LEAVE)

    async def start(self, scheduler: Scheduler) -> None:
        """Add the handlers; distributed calls this, also before the scheduler has started.

        If that fails, the scheduler still starts, and all calls decline with the reason.
        """
        self._scheduler, self._calls = scheduler, Calls(scheduler)
        try:
            with relying():
                require(scheduler)
                self._add_handlers(scheduler)
        except Incompatible as reason:
            refusing(scheduler, self.handlers, reason)
        with showing():
            if monitor.Monitor.name not in scheduler.plugins:
                scheduler.add_plugin(monitor.Monitor(scheduler))

    def _add_handlers(self, scheduler: Scheduler) -> None:
        states = "room for states"
        self._small = Budget(BUDGET_BYTES // 8, states)
        self._budget = Budget(BUDGET_BYTES, states)
        # Without free connections in the pool, calls would wait for one another.
        self._connections = Budget(int(scheduler.rpc.limit // 2), "connections to workers")
        self._places = Budget(PLACES, "connections between workers")
        # Messages under way; asyncio itself keeps only weak references.
        self._sending: set[asyncio.Task[Answer]] = set()
        for name, method in ((REDUCE, self.reduce), (SCAN, self.scan)):
            handler = monitor.of_scheduler(scheduler, relied_on(self._with_chunks(method)))
            scheduler.handlers[name] = same_version(scheduler, timed(handler))
        scheduler.handlers[LEAVE] = same_version(scheduler, self.leave)
        handlers = getattr(scheduler, "stream_handlers", {})
        if RELEASE in handlers:
            handlers[RELEASE] = _uncollected(handlers[RELEASE])

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End the calls of a client that disconnected; distributed calls this."""
        self._calls.end_of(client)

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Return the workers that an adaptive cluster may close; distributed calls this."""
        return self._calls.spared(workers)

    async def leave(self, name: str) -> Answer:
        """Handle a message that a caller was interrupted: end its call."""
        self._calls.end(name)
        return {"status": "OK"}

    def _with_chunks(self, method: Handler) -> Handler:
        """Return a handler that waits in line, locates the chunks, and then calls `method`.

        Its messages have, besides the keywords of `method`:

        name : str
            The call's name.
        client : str
            The client that sends the message.
        items : sequence of bytes
            Lists of at most `SLICE` Item each, pickled.
        nbytes : int
            Bytes of all states together.
        """

        async def serve(call: Call, items: Sequence[bytes], **message: Any) -> Answer:
            budget = self._small if call.nbytes <= SMALL_BYTES else self._budget
            try:
                async with budget.hold(call.nbytes, call.seconds):
                    by_worker = await self._located(items)
                    try:
                        with self._calls.at_work(call.name, _first_keys(by_worker)):
                            return await method(call, by_worker, **message)
                    except asyncio.CancelledError:
                        self._end(by_worker, call.name)
                        raise
                    finally:
                        await _clear(by_worker)
            except Absent as reason:
                return declined(reason)

        @wraps(method)
        async def handle(*, name: str, client: str, nbytes: int, **message: Any) -> Answer:
            served = serve(Call(name, seconds(), nbytes), client=client, **message)
            return await self._calls.run(name, client, served)

        return handle

    async def reduce(
        self, call: Call, by_worker: ByWorker, job: bytes, tree: bool, groups: bytes, client: str
    ) -> Answer:
        """Handle a reduction: request the states of chunks from the workers.

        Parameters
        ----------
        call : Call
        by_worker : mapping
            The chunks of every worker that takes part.
        job : bytes
            A job that makes states, pickled.
        tree : bool
            Whether workers combine their states in a tree.
        groups : bytes
            The number of each chunk's group, pickled; empty if there is only one group.
        client : str
            The client that sends the message.
        """
        if tree:
            (address, items), *below = [pair async for pair in _packed(by_worker)]
            message = {"job": job, "items": items, "below": below, "groups": groups}
            message |= call.message
            answers = [await send(self._scheduler, address, REDUCE, is_root=True, **message)]
        else:
            _, answers = await self._reduce(call, job, by_worker, groups=groups)
        return bad_one(answers) or {
            "status": "OK",
            "states": [answer["states"] for answer in answers],
        }

    async def scan(
        self,
        call: Call,
        by_worker: ByWorker,
        job: bytes,
        spine: bytes,
        then: bytes,
        client: str,
        places: int,
    ) -> Answer:
        """Handle a scan: have the workers scan their chunks.

        Parameters
        ----------
        call : Call
        by_worker : mapping
            The chunks of every worker that takes part. The extra of a chunk is the key of its
            result and the bytes of that, -1 if not known.
        job, spine, then : bytes
            An `Upsweep`, a `Spine` and a `Downsweep`, pickled.
        client : str
            The client that sends the message and owns the results.
        places : int
            Most workers that make base sums. 0: the scheduler makes them, which is for few states
            of our own monoids.
        """
        arguments = call, by_worker, client, job, spine, then
        # If the caller leaves, the results are released, too.
        bad: Answer | None = declined("the caller has left")
        self._require(by_worker, client)
        try:
            scan = self._on_workers(*arguments, places) if places else self._here(*arguments)
            answer = await scan
            bad = bad_one([answer]) or await self._settle(by_worker, answer["nbytes"], client)
        finally:
            if bad:
                await self._release(by_worker, client)
        return bad or {"status": "OK"}

    def _require(self, by_worker: ByWorker, client: str) -> None:
        """Raise AttributeError if distributed lacks a name by which results are registered."""
        scheduler = self._scheduler
        (address, [(_, (key, *_), _), *_]), *_ = by_worker.items()
        require(scheduler.clients.get(client))
        require(scheduler.workers[address])
        require(scheduler.tasks[key])

    async def _release(self, by_worker: ByWorker, client: str) -> None:
        """Release the results of a scan."""
        for keys in sliced([key for items in by_worker.values() for *_, (key, _) in items]):
            if client in self._scheduler.clients:
                self._scheduler.client_releases_keys(keys, client)
                await asyncio.sleep(0)

    async def _here(
        self, call: Call, by_worker: ByWorker, client: str, job: bytes, spine: bytes, then: bytes
    ) -> Answer:
        """Scan with base sums that the scheduler makes and sends to all workers."""
        packed, answers = await self._reduce(call, job, by_worker)
        if bad := bad_one(answers):
            return bad
        try:
            states = chain.from_iterable(opened(answer["states"]) for answer in answers)
            bases = Serialize(pickle.loads(spine)(states))
        except Exception as error:
            # Perhaps only workers have the modules for it; if not, the graph raises too.
            return declined(f"the scheduler cannot combine states: {error!r}")
        bad = None
        with _requests() as requests:
            for (address, items), answer in zip(by_worker.items(), answers, strict=True):
                # Register first: a worker must drop keys that the scheduler does not know.
                if bad := await self._register(address, items, client):
                    break
                message = {"job": then, "items": packed[address], "bases": bases, **call.message}
                scan = send(self._scheduler, address, SCAN, memo=answer["memo"], **message)
                requests.append(asyncio.create_task(scan))
                await asyncio.sleep(0)
            answers = [await request for request in requests]
        bad = bad or bad_one(answers)
        return bad or {"status": "OK", "nbytes": [answer["nbytes"] for answer in answers]}

    async def _on_workers(
        self,
        call: Call,
        by_worker: ByWorker,
        client: str,
        job: bytes,
        spine: bytes,
        then: bytes,
        places: int,
    ) -> Answer:
        """Scan with base sums that the workers with the most chunks make, by ranges of lines."""
        if len(by_worker) > self._connections.size:
            return declined(
                f"it needs connections to {len(by_worker)} workers at a time, and such calls may "
                f"use half of the scheduler's {self._scheduler.rpc.limit:.0f}; raise the limit of "
                "open files (ulimit -n) for more"
            )
        most = sorted(by_worker, key=lambda address: -len(by_worker[address]))[:places]
        message: dict[str, Any] = {"job": job, "spine": spine, "then": then, **call.message}
        message |= {"places": most, "members": len(by_worker)}
        bad = None
        async with (
            self._connections.hold(len(by_worker), call.seconds),
            self._places.hold(len(most), call.seconds),
        ):
            with _requests() as requests:
                # Workers lift their chunks while others get their messages; none has a result
                # before all have got theirs.
                async for address, items in _packed(by_worker):
                    if bad := await self._register(address, by_worker[address], client):
                        self._end(by_worker, call.name)
                        break
                    sweep = send(self._scheduler, address, SWEEP, items=items, **message)
                    requests.append(asyncio.create_task(sweep))
                    await asyncio.sleep(0)
                for request in asyncio.as_completed(requests):
                    answer = bad_one([await request])
                    if answer and not bad:
                        bad = answer
                        # The others may wait for states that never come.
                        self._end(by_worker, call.name)
                return bad or {
                    "status": "OK",
                    "nbytes": [(await request)["nbytes"] for request in requests],
                }

    def _end(self, members: Iterable[str], name: str) -> None:
        """Send workers a message that a call has ended; a worker may be stopped, so don't wait."""
        for address in members:
            sent = owned(asyncio.create_task(send(self._scheduler, address, END, name=name)))
            self._sending.add(sent)
            sent.add_done_callback(self._sending.discard)

    async def _located(self, pickles: Iterable[bytes]) -> dict[str, list[Item]]:
        """Return the chunks of every worker that takes part, by its address."""
        by_worker = dict[str, list[Item]]()
        for pickled in pickles:
            items = pickle.loads(pickled)
            with uncollected(len(items)):
                self._assign(items, by_worker)
            await asyncio.sleep(0)
        # A connection to a lost worker would take long to fail.
        if gone := by_worker.keys() - self._scheduler.workers.keys():
            raise Absent(f"worker {min(gone)} was lost between two rounds")
        return by_worker

    def _assign(self, items: Iterable[Item], by_worker: dict[str, list[Item]]) -> None:
        """Add chunks to the lists of workers that hold them."""
        tasks = self._scheduler.tasks
        for item in items:
            blocks = [tasks.get(key) for key in item[1]]
            for key, block in zip(item[1], blocks, strict=True):
                if block is None or block.state != "memory":
                    state = "unknown to the scheduler" if block is None else block.state
                    raise Absent(f"chunk {key} is not in memory: it is {state}")
            holders = blocks[0].who_has
            for block in blocks[1:]:
                holders = holders & block.who_has
            able = [worker.address for worker in holders if worker.status == Status.running]
            if not able:
                raise Absent(_none_able(blocks, holders))
            if len(able) > 1:
                # The holder with the fewest chunks in this call.
                able.sort(key=lambda address: (len(by_worker.get(address, ())), address))
            by_worker.setdefault(able[0], []).append(item)

    async def _reduce(
        self, call: Call, job: bytes, by_worker: ByWorker, **message: Any
    ) -> tuple[dict[str, list[bytes]], list[Answer]]:
        """Return the pickled chunks of every worker, and the workers' answers with states."""
        packed = dict[str, list[bytes]]()
        message |= {"job": job, **call.message}
        with _requests() as requests:
            async for address, items in _packed(by_worker):
                packed[address] = items
                states = send(self._scheduler, address, REDUCE, items=items, **message)
                requests.append(asyncio.create_task(states))
                await asyncio.sleep(0)
            return packed, [await request for request in requests]

    async def _register(self, address: str, items: Sequence[Item], client: str) -> Answer | None:
        """Register a worker's future results and their client, as for scattered data.

        Return an answer that declines if the client or the worker has gone, else None.
        """
        scheduler = self._scheduler
        for batch in sliced(items):
            owner, worker = scheduler.clients.get(client), scheduler.workers.get(address)
            if owner is None:
                return declined("the client has gone")
            if worker is None:
                return declined(f"worker {address} was lost between two rounds")
            with uncollected(len(batch)):
                for *_, (key, size) in batch:
                    # `update_data` would be slower and send the client a message a key.
                    task = scheduler.new_task(key, None, "memory")
                    # From here on the client releases the task if the rest fails.
                    task.who_wants = {owner}
                    owner.wants_what.add(task)
                    # `set_nbytes` adds the difference to totals: 0 until a size is known.
                    task.set_nbytes(max(size, 0))
                    scheduler.add_replica(task, worker)
            await asyncio.sleep(0)
        return None

    async def _settle(
        self, by_worker: ByWorker, nbytes: Sequence[bytes], client: str
    ) -> Answer | None:
        """Set sizes that were not known; decline if a result or its client has gone."""
        tasks = self._scheduler.tasks
        for (address, items), pickled in zip(by_worker.items(), nbytes, strict=True):
            sizes = iter(pickle.loads(pickled))
            for batch in sliced(items):
                if client not in self._scheduler.clients:
                    return declined("the client has gone")
                for (*_, (key, known)), size in zip(batch, sizes, strict=False):
                    task = tasks.get(key)
                    if task is None or not task.who_has:
                        return declined(f"worker {address} was lost, with what it made")
                    if known < 0:
                        task.set_nbytes(size)
                await asyncio.sleep(0)
        return None


def _first_keys(by_worker: ByWorker) -> dict[str, Any]:
    """Return the key of a chunk of every worker."""
    return {address: keys[0] for address, ((_, keys, _), *_) in by_worker.items()}


def _uncollected(release: Callable[..., None]) -> Callable[..., None]:
    """Return a handler of released keys that logs many of them without garbage collection."""
    if hasattr(release, "__wrapped__"):
        return release

    @wraps(release)
    def handle(keys: Sequence[Any], **message: Any) -> None:
        with uncollected(len(keys)):
            release(keys=keys, **message)

    return handle


@contextmanager
def _requests() -> Iterator[list[asyncio.Task[Answer]]]:
    """Yield a list of requests, which are cancelled at the end."""
    requests: list[asyncio.Task[Answer]] = []
    try:
        yield requests
    finally:
        for request in requests:
            owned(request).cancel()


async def _packed(by_worker: ByWorker) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yield the address and the pickled chunks of one worker after the other."""
    for address, items in by_worker.items():
        pickles = []
        for batch in sliced(items):
            pickles.append(pickle.dumps(batch))
            await asyncio.sleep(0)
        yield address, pickles


async def _clear(by_worker: ByWorker) -> None:
    """Delete the lists of chunks slice by slice: many at once would hold the event loop."""
    deleted = 0
    for items in by_worker.values():
        while items:
            deleted += len(items[-SLICE:])
            del items[-SLICE:]
            if deleted >= SLICE:
                deleted = 0
                await asyncio.sleep(0)


def _none_able(blocks: Sequence[TaskState], holders: Iterable[WorkerState]) -> str:
    """Return why no worker can use these blocks; `holders` have all of them and do not run."""
    if states := [_state(worker) for worker in sorted(holders, key=lambda w: w.address)]:
        return f"chunk {blocks[0].key} cannot be used: {'; '.join(states)}"
    places = (f"{b.key} on {', '.join(sorted(w.address for w in b.who_has))}" for b in blocks)
    return f"chunks that belong together are not on one worker: {'; '.join(places)}"


def _state(worker: WorkerState) -> str:
    """Return the state of a worker that does not run, for a message."""
    if worker.status == Status.paused:
        full = ""
        if worker.memory_limit:
            fraction = worker.memory.process / worker.memory_limit
            full = f": its memory is {fraction:.0%} full"
        return f"worker {worker.address} is paused{full}"
    if worker.status == Status.closing_gracefully:
        return f"worker {worker.address} is being retired"
    return f"worker {worker.address} is {worker.status.name}"
