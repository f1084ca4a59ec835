"""The scheduler's part in rounds: it knows where chunks are, and to whom results belong.

`dask_coop.cluster.worker` draws the picture. Here runs nothing of a user's: base sums are made here
of few states of this library's monoids, and else by a worker. Nor is the event loop held, which
serves everybody: what takes time for each chunk goes on slice by slice, and finds out after each
whether the cluster has changed. All calls at a time share one budget for their states, and wait in
line for it (`dask_coop.cluster.calls`).
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.core import Status
from distributed.protocol import Serialize
from distributed.scheduler import TaskState, WorkerState

from dask_coop.cluster import monitor
from dask_coop.cluster.calls import Budget, Call, Calls, owned
from dask_coop.cluster.counts import showing
from dask_coop.cluster.jobs import Stacked
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

#: The chunks of workers, by their addresses.
Parts = Mapping[str, list[Item]]

#: What clients say of keys that they let go of.
RELEASE = "client-releases-keys"

#: What the states of all calls at a time may take, those of small ones of at most `SMALL_BYTES` and
#: all others.
SMALL_BYTES, BUDGET_BYTES = 1 << 20, 1 << 27

#: Places to which workers may have sent shares at a time: half of the connections of a worker.
PLACES = 256


class SchedulerRounds(Portable, SchedulerPlugin):  # type: ignore[misc]
    """Lets clients ask a scheduler for rounds."""

    name = "dask-coop-rounds"
    idempotent = True
    handlers: tuple[str, ...] = (REDUCE, SCAN, LEAVE)

    async def start(self, scheduler: Scheduler) -> None:
        """Add the handlers; distributed calls this, also before the scheduler has started.

        What goes wrong does not keep the scheduler from starting: all calls decline with it.
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
        # A pool that has no connection left has calls wait for one another.
        self._connections = Budget(int(scheduler.rpc.limit // 2), "connections to workers")
        self._places = Budget(PLACES, "connections between workers")
        self._telling: set[asyncio.Task[Answer]] = set()
        for name, part in ((REDUCE, self.reduce), (SCAN, self.scan)):
            call = monitor.of_scheduler(scheduler, relied_on(self._with_parts(part)))
            call = timed(call)
            scheduler.handlers[name] = same_version(scheduler, call)
        scheduler.handlers[LEAVE] = same_version(scheduler, self.leave)
        handlers = getattr(scheduler, "stream_handlers", {})
        if RELEASE in handlers:
            handlers[RELEASE] = _uncollected(handlers[RELEASE])

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End the calls of a client that has gone; distributed calls this."""
        self._calls.end_of(client)

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Return the workers that may be closed; distributed calls this where it adapts."""
        return self._calls.spared(workers)

    async def leave(self, name: str) -> Answer:
        """End a call whose caller was interrupted: the handler."""
        self._calls.end(name)
        return {"status": "OK"}

    def _with_parts(self, part: Handler) -> Handler:
        """Return a handler that waits in line, and then knows where the chunks are.

        Its messages have, besides the keywords of `part`:

        name : str
            That of the call.
        client : str
            The client that asks.
        items : sequence of bytes
            Lists of at most `SLICE` Item each, pickled.
        nbytes : int
            What the states take in all.
        """

        async def serve(call: Call, items: Sequence[bytes], **message: Any) -> Answer:
            budget = self._small if call.nbytes <= SMALL_BYTES else self._budget
            try:
                async with budget.hold(call.nbytes, call.seconds):
                    parts = await self._parts(items)
                    try:
                        with self._calls.at_work(call.name, _one_each(parts)):
                            return await part(call, parts, **message)
                    except asyncio.CancelledError:
                        self._end(parts, call.name)
                        raise
                    finally:
                        await _let_go(parts)
            except Absent as reason:
                return declined(reason)

        @wraps(part)
        async def handle(*, name: str, client: str, nbytes: int, **message: Any) -> Answer:
            served = serve(Call(name, seconds(), nbytes), client=client, **message)
            return await self._calls.run(name, client, served)

        return handle

    async def reduce(
        self, call: Call, parts: Parts, job: bytes, tree: bool, groups: bytes, client: str
    ) -> Answer:
        """Have states of chunks made, wherever these are: the handler.

        Parameters
        ----------
        call : Call
        parts : mapping
            The chunks of every worker that is to take part.
        job : bytes
            A job that makes states, pickled.
        tree : bool
            Whether workers are to combine their states in a tree.
        groups : bytes
            The number of each chunk's group, pickled; empty where there is only one.
        client : str
            The client that asks.
        """
        if tree:
            (address, items), *below = [each async for each in _packed(parts)]
            message = {"job": job, "items": items, "below": below, "groups": groups}
            message |= call.message
            answers = [await send(self._scheduler, address, REDUCE, is_root=True, **message)]
        else:
            _, answers = await self._reduce(call, job, parts, groups=groups)
        return bad_one(answers) or {
            "status": "OK",
            "states": [answer["states"] for answer in answers],
        }

    async def scan(
        self,
        call: Call,
        parts: Parts,
        job: bytes,
        spine: bytes,
        then: bytes,
        client: str,
        places: int,
    ) -> Answer:
        """Have chunks scanned, wherever they are: the handler.

        Parameters
        ----------
        call : Call
        parts : mapping
            The chunks of every worker that is to take part; with a chunk go the key of its result
            and the bytes of that, -1 where these are not known.
        job, spine, then : bytes
            An `Upsweep`, a `Spine` and a `Downsweep`, pickled.
        client : str
            The client that asks, and owns the results.
        places : int
            On how many workers base sums are made, at most; 0 for here, which is for few states of
            our own monoids.
        """
        given = call, parts, client, job, spine, then
        # Of a call whose caller leaves nothing stays either.
        bad: Answer | None = declined("the caller has left")
        self._require(parts, client)
        try:
            answer = await (self._there(*given, places) if places else self._here(*given))
            bad = bad_one([answer]) or await self._settle(parts, answer["nbytes"], client)
        finally:
            if bad:
                await self._release(parts, client)
        return bad or {"status": "OK"}

    def _require(self, parts: Parts, client: str) -> None:
        """Raise AttributeError if what results are registered with has changed."""
        scheduler = self._scheduler
        (address, [(_, (key, *_), _), *_]), *_ = parts.items()
        require(scheduler.clients.get(client))
        require(scheduler.workers[address])
        require(scheduler.tasks[key])

    async def _release(self, parts: Parts, client: str) -> None:
        """Let go of the results of a scan."""
        for some in sliced([key for part in parts.values() for *_, (key, _) in part]):
            if client in self._scheduler.clients:
                self._scheduler.client_releases_keys(some, client)
                await asyncio.sleep(0)

    async def _here(
        self, call: Call, parts: Parts, client: str, job: bytes, spine: bytes, then: bytes
    ) -> Answer:
        """Scan with base sums that are made by the scheduler, as it goes, and sent to all."""
        packed, answers = await self._reduce(call, job, parts)
        if bad := bad_one(answers):
            return bad
        try:
            bases = _bases(spine, (part for answer in answers for part in opened(answer["states"])))
        except Exception as error:
            # It may be that only the workers have what is needed; if not, the graph raises too.
            return declined(f"the scheduler cannot combine states: {error!r}")
        bad = None
        with _asking() as asked:
            for (address, part), answer in zip(parts.items(), answers, strict=True):
                # A worker tells of what it has made, and would be told to remove what is not known.
                if bad := await self._register(address, part, client):
                    break
                message = {"job": then, "items": packed[address], "bases": bases, **call.message}
                scan = send(self._scheduler, address, SCAN, memo=answer["memo"], **message)
                asked.append(asyncio.create_task(scan))
                await asyncio.sleep(0)
            answers = [await each for each in asked]
        bad = bad or bad_one(answers)
        return bad or {"status": "OK", "nbytes": [answer["nbytes"] for answer in answers]}

    async def _there(
        self,
        call: Call,
        parts: Parts,
        client: str,
        job: bytes,
        spine: bytes,
        then: bytes,
        places: int,
    ) -> Answer:
        """Scan with base sums that the workers of the most chunks make, a share of lines each."""
        if len(parts) > self._connections.size:
            return declined(
                f"it takes connections to {len(parts)} workers at a time, and of those of the "
                f"scheduler, {self._scheduler.rpc.limit:.0f}, such calls have half; it has more "
                "where more files may be open (ulimit -n)"
            )
        most = sorted(parts, key=lambda address: -len(parts[address]))[:places]
        message: dict[str, Any] = {"job": job, "spine": spine, "then": then, **call.message}
        message |= {"places": most, "members": len(parts)}
        bad = None
        async with (
            self._connections.hold(len(parts), call.seconds),
            self._places.hold(len(most), call.seconds),
        ):
            with _asking() as asked:
                # Workers lift their chunks while others are told of theirs; none has a result
                # before all have been told.
                async for address, items in _packed(parts):
                    if bad := await self._register(address, parts[address], client):
                        self._end(parts, call.name)
                        break
                    sweep = send(self._scheduler, address, SWEEP, items=items, **message)
                    asked.append(asyncio.create_task(sweep))
                    await asyncio.sleep(0)
                for each in asyncio.as_completed(asked):
                    answer = bad_one([await each])
                    if answer and not bad:
                        bad = answer
                        # The others may wait for what does not come.
                        self._end(parts, call.name)
                return bad or {"status": "OK", "nbytes": [(await each)["nbytes"] for each in asked]}

    def _end(self, members: Iterable[str], name: str) -> None:
        """Tell workers that a call has ended, and wait for none that may be stopped."""
        for address in members:
            told = owned(asyncio.create_task(send(self._scheduler, address, END, name=name)))
            self._telling.add(told)
            told.add_done_callback(self._telling.discard)

    async def _parts(self, items: Iterable[bytes]) -> dict[str, list[Item]]:
        """Return the chunks of every worker that is to take part, by its address."""
        parts = dict[str, list[Item]]()
        for some in items:
            part = pickle.loads(some)
            with uncollected(len(part)):
                self._part(part, parts)
            await asyncio.sleep(0)
        # It would take its time to find out that nothing answers there.
        if gone := parts.keys() - self._scheduler.workers.keys():
            raise Absent(f"worker {min(gone)} was lost between two rounds")
        return parts

    def _part(self, items: Iterable[Item], parts: dict[str, list[Item]]) -> None:
        """Divide some chunks among the workers that have them."""
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
                # Of those that have a chunk, the one with the least to do.
                able.sort(key=lambda address: (len(parts.get(address, ())), address))
            parts.setdefault(able[0], []).append(item)

    async def _reduce(
        self, call: Call, job: bytes, parts: Parts, **message: Any
    ) -> tuple[dict[str, list[bytes]], list[Answer]]:
        """Return the chunks of every worker, pickled, and the states that they make of them."""
        packed = dict[str, list[bytes]]()
        message |= {"job": job, **call.message}
        with _asking() as asked:
            async for address, items in _packed(parts):
                packed[address] = items
                states = send(self._scheduler, address, REDUCE, items=items, **message)
                asked.append(asyncio.create_task(states))
                await asyncio.sleep(0)
            return packed, [await each for each in asked]

    async def _register(self, address: str, part: Sequence[Item], client: str) -> Answer | None:
        """Make known what a worker is to make, as scattered data is, and whose it is."""
        scheduler = self._scheduler
        for some in sliced(part):
            owner, worker = scheduler.clients.get(client), scheduler.workers.get(address)
            if owner is None:
                return declined("the client has gone")
            if worker is None:
                return declined(f"worker {address} was lost between two rounds")
            with uncollected(len(some)):
                for *_, (key, size) in some:
                    # As `update_data` does, which takes longer, and would send the client a
                    # message a key.
                    task = scheduler.new_task(key, None, "memory")
                    # What is its client's is let go of if the rest fails.
                    task.who_wants = {owner}
                    owner.wants_what.add(task)
                    # A size that is not known is set later, and would then be on top of a guess.
                    task.set_nbytes(max(size, 0))
                    scheduler.add_replica(task, worker)
            await asyncio.sleep(0)
        return None

    async def _settle(self, parts: Parts, nbytes: Sequence[bytes], client: str) -> Answer | None:
        """Say what became of data that was stored, if it is not there; set sizes as they are."""
        tasks = self._scheduler.tasks
        for (address, part), sizes in zip(parts.items(), nbytes, strict=True):
            each = iter(pickle.loads(sizes))
            for some in sliced(part):
                if client not in self._scheduler.clients:
                    return declined("the client has gone")
                for (*_, (key, known)), size in zip(some, each, strict=False):
                    task = tasks.get(key)
                    if task is None or not task.who_has:
                        return declined(f"worker {address} was lost, with what it made")
                    if known < 0:
                        task.set_nbytes(size)
                await asyncio.sleep(0)
        return None


def _one_each(parts: Parts) -> dict[str, Any]:
    """Return the key of a chunk of every worker."""
    return {address: keys[0] for address, ((_, keys, _), *_) in parts.items()}


def _uncollected(release: Callable[..., None]) -> Callable[..., None]:
    """Return a handler of released keys that looks for no garbage among what it logs of many."""
    if hasattr(release, "__wrapped__"):
        return release

    @wraps(release)
    def handle(keys: Sequence[Any], **message: Any) -> None:
        with uncollected(len(keys)):
            release(keys=keys, **message)

    return handle


@contextmanager
def _asking() -> Iterator[list[asyncio.Task[Answer]]]:
    """Yield a list for messages that are waited for no more if their call is over."""
    asked: list[asyncio.Task[Answer]] = []
    try:
        yield asked
    finally:
        for each in asked:
            owned(each).cancel()


async def _packed(parts: Parts) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Pickle the chunks of one worker after the other."""
    for address, part in parts.items():
        items = []
        for some in sliced(part):
            items.append(pickle.dumps(some))
            await asyncio.sleep(0)
        yield address, items


async def _let_go(parts: Parts) -> None:
    """Forget chunks, which takes long of many at once."""
    gone = 0
    for part in parts.values():
        while part:
            gone += len(part[-SLICE:])
            del part[-SLICE:]
            if gone >= SLICE:
                gone = 0
                await asyncio.sleep(0)


def _none_able(blocks: Sequence[TaskState], holders: Iterable[WorkerState]) -> str:
    """Say why no worker can do what needs some blocks, all of which `holders` have."""
    if said := [_state(worker) for worker in sorted(holders, key=lambda each: each.address)]:
        return f"chunk {blocks[0].key} cannot be had: {'; '.join(said)}"
    places = (f"{b.key} on {', '.join(sorted(w.address for w in b.who_has))}" for b in blocks)
    return f"chunks that belong together are not on one worker: {'; '.join(places)}"


def _state(worker: WorkerState) -> str:
    """Say why a worker that is not running is asked nothing."""
    if worker.status == Status.paused:
        full = ""
        if worker.memory_limit:
            share = worker.memory.process / worker.memory_limit
            full = f": its memory is {share:.0%} full"
        return f"worker {worker.address} is paused{full}"
    if worker.status == Status.closing_gracefully:
        return f"worker {worker.address} is being retired"
    return f"worker {worker.address} is {worker.status.name}"


def _bases(spine: bytes, states: Iterable[Stacked]) -> Serialize:
    """Return the base sums of all chunks."""
    return Serialize(pickle.loads(spine)(states))
