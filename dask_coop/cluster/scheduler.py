"""The scheduler's part in rounds: it knows where chunks are, and to whom results belong.

`dask_coop.cluster.worker` draws the picture.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState
from distributed.utils import offload

from dask_coop.cluster import monitor
from dask_coop.cluster.silence import timed
from dask_coop.cluster.versions import Portable, same_version
from dask_coop.cluster.worker import REDUCE, SCAN, Answer, Item, bad_one, declined, send
from dask_coop.errors import Absent

#: Up to so many bytes of states the scheduler makes the base sums as it goes, and sends all to all.
SMALL_BYTES = 1 << 15


class SchedulerRounds(Portable, SchedulerPlugin):  # type: ignore[misc]
    """Lets clients ask a scheduler for rounds."""

    name = "dask-coop-rounds"
    idempotent = True
    handlers = REDUCE, SCAN

    async def start(self, scheduler: Scheduler) -> None:
        """Add the handlers; distributed calls this."""
        self._scheduler = scheduler
        scheduler.handlers |= {
            REDUCE: same_version(scheduler, timed(monitor.of_scheduler(scheduler, self.reduce))),
            SCAN: same_version(scheduler, timed(monitor.of_scheduler(scheduler, self.scan))),
        }
        scheduler.add_plugin(monitor.Monitor(scheduler), idempotent=True)

    async def reduce(self, job: bytes, items: bytes, tree: bool) -> Answer:
        """Have states of chunks made, wherever these are: the handler.

        Parameters
        ----------
        job, items : bytes
            A job that makes states, and a list of Item, pickled.
        tree : bool
            Whether workers are to combine their states, which are of one group, in a tree.
        """
        try:
            parts = self._parts(items)
        except Absent as reason:
            return declined(str(reason))
        if tree:
            (address, part), *below = ((a, pickle.dumps(part)) for a, part in parts.items())
            return await send(self._scheduler, address, REDUCE, job=job, items=part, below=below)
        answers = await self._reduce(job, parts)
        return bad_one(answers) or {
            "status": "OK",
            "states": [state for answer in answers for state in answer["states"]],
        }

    async def scan(
        self,
        job: bytes,
        items: bytes,
        spine: bytes,
        then: bytes,
        outputs: bytes,
        client: str,
        inline: bool,
    ) -> Answer:
        """Have chunks scanned, wherever they are: the handler.

        Parameters
        ----------
        job, spine, then : bytes
            An `Upsweep`, a `Spine` and a `Downsweep`, pickled.
        items : bytes
            A list of Item, pickled.
        outputs : bytes
            A dict of the keys of the results, one for each chunk, to their bytes, pickled; -1 where
            these are not known.
        client : str
            The client that asks, and owns the outputs.
        inline : bool
            Whether base sums of few states may be made here and now.
        """
        try:
            parts = self._parts(items)
        except Absent as reason:
            return declined(str(reason))
        answers = await self._reduce(job, parts)
        if bad := bad_one(answers):
            return bad
        states = [state for answer in answers for state in answer["states"]]
        try:
            if inline and sum(map(len, states)) <= SMALL_BYTES:
                bases = [_bases(spine, states)] * len(parts)
            else:
                numbers = [[i for i, *_ in part] for part in parts.values()]
                bases = await offload(_bases_of_each, spine, states, numbers)
        except Exception as error:
            # It may be that only the workers have what is needed; if not, the graph raises too.
            return declined(f"the scheduler cannot combine states: {error!r}")
        if client not in self._scheduler.clients:
            return declined("the client has gone")
        # It would take its time to find out that nothing answers there.
        if gone := parts.keys() - self._scheduler.workers.keys():
            return declined(f"worker {min(gone)} was lost between two rounds")
        nbytes = pickle.loads(outputs)
        made = [*nbytes]
        asked = asyncio.gather(
            *(
                send(
                    self._scheduler,
                    address,
                    SCAN,
                    job=then,
                    items=pickle.dumps([(i, keys, made[i]) for i, keys, _ in part]),
                    bases=of_part,
                    memo=answer["memo"],
                )
                for (address, part), of_part, answer in zip(
                    parts.items(), bases, answers, strict=True
                )
            )
        )
        # Nothing else knows these keys, so the workers may still work at what they stand for.
        await asyncio.sleep(0)
        addresses = {made[i]: address for address, part in parts.items() for i, *_ in part}
        self._register(addresses, nbytes, client)
        answers = await asked
        if bad := bad_one(answers) or self._loss(addresses, client):
            if client in self._scheduler.clients:
                self._scheduler.client_releases_keys(made, client)
            return bad
        if -1 in nbytes.values():
            for answer in answers:
                for key, size in pickle.loads(answer["nbytes"]).items():
                    self._scheduler.tasks[key].set_nbytes(size)
        return {"status": "OK"}

    def _parts(self, items: bytes) -> dict[str, list[Item]]:
        """Return the chunks of every worker that is to take part, by its address."""
        tasks, parts = self._scheduler.tasks, dict[str, list[Item]]()
        for i, keys, extra in pickle.loads(items):
            blocks = [tasks.get(key) for key in keys]
            for key, block in zip(keys, blocks, strict=True):
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
            parts.setdefault(able[0], []).append((i, keys, extra))
        return parts

    async def _reduce(self, job: bytes, parts: Mapping[str, Sequence[Item]]) -> list[Answer]:
        asked = (
            send(self._scheduler, address, REDUCE, job=job, items=pickle.dumps(part))
            for address, part in parts.items()
        )
        return list(await asyncio.gather(*asked))

    def _register(self, addresses: Mapping[Any, str], nbytes: Any, client: str) -> None:
        """Make data known as scattered data is, and whose it is."""
        scheduler = self._scheduler
        gone = set(addresses.values()) - scheduler.workers.keys()
        if gone or client not in scheduler.clients:
            return
        owner = scheduler.clients[client]
        for key, address in addresses.items():
            # As `update_data` does, which takes longer, and would send the client a message a key.
            task = scheduler.new_task(key, None, "memory")
            # A size that is not known yet is set later, and would then be on top of a guess.
            task.set_nbytes(max(nbytes[key], 0))
            scheduler.add_replica(task, scheduler.workers[address])
            task.who_wants = {owner}
            owner.wants_what.add(task)

    def _loss(self, addresses: Mapping[Any, str], client: str) -> Answer | None:
        """Say what became of data that was stored, if it is not there."""
        if client not in self._scheduler.clients:
            return declined("the client has gone")
        for key, address in addresses.items():
            task = self._scheduler.tasks.get(key)
            if task is None or not task.who_has:
                return declined(f"worker {address} was lost, with what it made")
        return None


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


def _bases(spine: bytes, states: Iterable[bytes]) -> bytes:
    """Return the base sums of all chunks."""
    return pickle.dumps(pickle.loads(spine)(map(pickle.loads, states)))


def _bases_of_each(
    spine: bytes, states: Iterable[bytes], numbers: Iterable[Sequence[int]]
) -> list[bytes]:
    """Return the base sums of the chunks of each worker, given their numbers."""
    bases = pickle.loads(spine)(map(pickle.loads, states))
    return [pickle.dumps([base.of(mine) for base in bases]) for mine in numbers]
