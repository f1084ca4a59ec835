"""A round: one message to every worker that has chunks, and one answer.

A client sends the scheduler a job and the keys of chunks. The scheduler knows where these are, and
sends every worker its own; a worker does the job on all of them, in a thread. A reduction is one
round, and a scan two, with the base sums made in between where the states are::

    client --job, keys--> scheduler --job, its keys--> worker: lifts its chunks --+
                                                                                  |
           <---states--- of a reduction <-----------------states------------------+
                         of a scan: base sums --its bases--> worker: scans its chunks, keeps them
                                                                                  |
           <------------ <--------------------------------done--------------------+

Base sums of a user's monoid, and of states that are large in all, are made by workers, and states
and bases go from worker to worker (`dask_coop.cluster.meeting`). The scheduler then sends every
worker one message, a *sweep*::

    scheduler --its chunks--> worker: lifts its chunks, sends states, gets bases, scans its chunks

States and bases travel beside their messages as distributed sends arrays, without a copy, and the
scheduler passes them on as they come.

Nothing is left on a worker between two rounds but what the scheduler knows, so calls at the same
time do not mix, and nothing has to be cleaned up. What a scan makes is known as scattered data is.
Large tables are combined on their way: a round *in a tree* goes to one worker, which sends the
others theirs and answers for all::

    scheduler --> worker --+--> worker --+--> worker
                           |             +--> worker
                           +--> worker

An answer is a dict with a status: "OK"; "declined", with the reason, where chunks are not there or
who had them has gone; "error", with what the job raised.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from distributed import Scheduler, Worker, WorkerPlugin
from distributed.core import error_message
from distributed.protocol import Serialize, Serialized, deserialize
from distributed.protocol.compression import decompress
from distributed.worker_state_machine import AddKeysMsg

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.cluster import monitor
from dask_coop.cluster.calls import Call, owned
from dask_coop.cluster.jobs import Stacked, combined_groups, stack
from dask_coop.cluster.meeting import Meetings, joined, shares
from dask_coop.cluster.private import refusing, relied_on, relying, require, said
from dask_coop.cluster.silence import given_up
from dask_coop.cluster.strips import Strips
from dask_coop.cluster.versions import Handler, Portable, same_version, signed
from dask_coop.errors import Absent, Incompatible
from dask_coop.graph.threads import within

One = TypeVar("One")
Made = TypeVar("Made")

#: A chunk: its number in the round, the keys of its blocks, and what goes with it, which in a scan
#: is the key of its result and the bytes of that.
Item = tuple[int, Sequence[Any], Any]

Answer = dict[str, Any]

#: The names of the handlers; the last is the scheduler's.
REDUCE, SCAN, SWEEP = "dask_coop_reduce", "dask_coop_scan", "dask_coop_sweep"
MEET, END, LEAVE = "dask_coop_meet", "dask_coop_end", "dask_coop_leave"

#: States of more bytes than this in all are combined by the worker that made them.
LARGE_BYTES = 1 << 18

#: Results of no more bytes than this in all are passed on together.
PASSED_BYTES = 1 << 22

#: From how many chunks on their objects are many.
MANY = 100

#: How many chunks are looked up, registered, sent or told of before others may use the event loop.
SLICE = 500


class WorkerRounds(Portable, WorkerPlugin):  # type: ignore[misc]
    """Lets a worker take part in rounds."""

    name = "dask-coop-rounds"
    idempotent = True
    handlers: tuple[str, ...] = (REDUCE, SCAN, SWEEP, MEET, END)

    def setup(self, worker: Worker) -> None:
        """Add the handlers; distributed calls this."""
        attach(worker)

    def teardown(self, worker: Worker) -> None:
        """End all calls, whose threads the worker waits for; distributed calls this."""
        if side := _sides.get(worker):
            side.close()


#: The parts of the workers of this process.
_sides: WeakKeyDictionary[Worker, _WorkerSide] = WeakKeyDictionary()


def attach(worker: Worker) -> None:
    """Let a worker take part in rounds, if it does not yet.

    What goes wrong does not keep the worker from starting: all rounds decline with it.
    """
    try:
        with relying():
            require(worker)
            _add_handlers(worker)
    except Incompatible as reason:
        refusing(worker, WorkerRounds.handlers, reason)


def _add_handlers(worker: Worker) -> None:
    if REDUCE not in worker.handlers:
        side = _sides[worker] = _WorkerSide(worker)
        parts: dict[str, Handler] = {
            REDUCE: side.reduce,
            SCAN: side.scan,
            SWEEP: side.sweep,
            MEET: side.meet,
        }
        worker.handlers |= {
            name: same_version(worker, monitor.of_worker(worker, relied_on(side.of_call(handler))))
            for name, handler in parts.items()
        }
        worker.handlers[END] = same_version(worker, side.end)


class _WorkerSide:
    """A worker's part in rounds.

    Every message but the last has, besides the keywords of its handler, those of a `Call`.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._threads = worker.state.nthreads
        self._meetings = Meetings()
        self._calls: dict[str, set[Call]] = {}
        # The worker ends its executors with itself.
        self._executor = worker.executors["dask-coop"] = ThreadPoolExecutor(
            self._threads, thread_name_prefix="Dask-Coop"
        )

    def of_call(self, handler: Callable[..., Coroutine[Any, Any, Answer]]) -> Handler:
        """Return a handler that is told what its call is, and declines one that has ended."""

        @wraps(handler)
        async def handle(*, name: str, timeout: float, nbytes: int, **message: Any) -> Answer:
            call = Call(name, timeout, nbytes)
            if self._meetings.has_ended(name):
                return declined("its call has ended")
            of_name = self._calls.setdefault(name, set())
            of_name.add(call)
            try:
                return await handler(call, **message)
            finally:
                of_name.discard(call)
                if not of_name:
                    self._calls.pop(name, None)

        return handle

    async def reduce(
        self,
        call: Call,
        job: bytes,
        items: Sequence[bytes],
        below: Sequence[tuple[str, Sequence[bytes]]] = (),
        groups: bytes | None = None,
        is_root: bool = False,
    ) -> Answer:
        """Make states of chunks: the handler.

        Parameters
        ----------
        call : Call
        job : bytes
            A job that makes states, pickled.
        items : sequence of bytes
            Lists of Item, pickled.
        below : sequence of (str, sequence of bytes)
            The addresses of the workers whose states this one is to combine with its own, and
            their items.
        groups : bytes, optional
            The number of each chunk's group, pickled; empty where there is only one. Without it
            the state of each chunk is wanted.
        is_root : bool
            Whether states of all chunks come together here, so that their order is known.
        """
        own = _items(items)
        message = {"job": job, "groups": groups, **call.message}
        asked = [
            owned(
                asyncio.create_task(
                    send(self._worker, a, REDUCE, items=part, below=rest, **message)
                )
            )
            for (a, part), *rest in _halves(below)
        ]
        mine = await self._answer(self._reduce_mine, call, job, own)
        answers = [mine, *await asyncio.gather(*asked)]
        if bad := bad_one(answers):
            return bad
        states = [state for answer in answers for state in opened(answer["states"])]
        if groups is None or not (asked or is_root or _are_large(states)):
            return mine
        return await self._answer(self._in_thread, call, _combine, job, states, groups, is_root)

    async def scan(
        self, call: Call, job: bytes, items: Sequence[bytes], bases: Sequence[Stacked], memo: bytes
    ) -> Answer:
        """Scan chunks from their bases, and keep the results: the handler.

        Parameters
        ----------
        call : Call
        job : bytes
            A `Downsweep`, pickled.
        items : sequence of bytes
            Lists of Item, pickled; with a chunk go the key of its result and the bytes of that.
        bases : sequence of Stacked
            The base sums of chunks.
        memo : bytes
            What this worker made of the same chunks before.
        """
        of_chunks = joined((), [bases])
        return await self._answer(self._scan_mine, call, job, _items(items), of_chunks, memo)

    async def sweep(
        self,
        call: Call,
        job: bytes,
        items: Sequence[bytes],
        spine: bytes,
        then: bytes,
        places: Sequence[str],
        members: int,
    ) -> Answer:
        """Scan chunks from bases that workers make: the handler.

        Parameters
        ----------
        call : Call
        job, spine, then : bytes
            An `Upsweep`, a `Spine` and a `Downsweep`, pickled.
        items : sequence of bytes
            Lists of Item, pickled; with a chunk go the key of its result and the bytes of that.
        places : sequence of str
            The addresses of the workers that make base sums, of a share of the lines each.
        members : int
            How many workers take part.
        """
        own = _items(items)
        mine = await self._answer(self._reduce_mine, call, job, own)
        if mine["status"] != "OK":
            return mine
        parts = opened(mine["states"])
        try:
            of_places = await self._in_thread(call, shares, parts, len(places))
            message = {"members": members, "spine": spine, **call.message}
            asks = (
                self._ask(address, MEET, share=Serialize(share), **message)
                for address, share in zip(places, of_places, strict=True)
            )
            answers = await self._meetings.answers(call.name, asks)
            if bad := bad_one(answers):
                return bad
            given = [opened(each["bases"]) for each in answers]
            bases = await self._in_thread(call, joined, parts, given)
        except Absent as reason:
            return declined(reason)
        return await self._answer(self._scan_mine, call, then, own, bases, mine["memo"])

    async def meet(
        self, call: Call, share: Sequence[Stacked], members: int, spine: bytes
    ) -> Answer:
        """Make base sums when the states of all workers have come: the handler.

        Parameters
        ----------
        call : Call
        share : sequence of Stacked
            A worker's states.
        members : int
            How many workers take part.
        spine : bytes
            A `Spine`, pickled.
        """

        async def make(states: Sequence[Sequence[Stacked]]) -> Answer:
            return await self._answer(self._in_thread, call, _bases_of_each, spine, states)

        made, mine = await self._meetings.meet(call.name, opened(share), members, make)
        return made if made["status"] != "OK" else {"status": "OK", "bases": made["bases"][mine]}

    async def end(self, name: str) -> Answer:
        """Do no more for a call than is begun, and wait for none of its states: the handler."""
        self._end(name)
        return {"status": "OK"}

    def close(self) -> None:
        """End all calls."""
        for name in [*self._calls]:
            self._end(name)

    def _end(self, name: str) -> None:
        self._meetings.end(name)
        for call in self._calls.get(name, ()):
            call.is_over = True

    async def _ask(self, address: str, handler: str, **message: Any) -> Answer:
        if address != self._worker.address:
            return await send(self._worker, address, handler, **message)
        answer: Answer = await self._worker.handlers[handler](**signed(message))
        return answer

    async def _in_thread(self, call: Call, function: Callable[..., Made], *args: Any) -> Made:
        (made,) = await self._in_threads(call, [partial(function, *args)])
        return made

    async def _reduce_mine(self, call: Call, job: bytes, items: Sequence[Item]) -> Answer:
        strips = Strips(self._worker, call, [keys for _, keys, _ in items])
        cuts = strips.cut(self._threads)
        made = await self._in_threads(
            call, [partial(self._within, _reduce, strips, cut, job, items[cut]) for cut in cuts]
        )
        return {
            "status": "OK",
            "states": Serialize([state for states, _ in made for state in states]),
            "memo": made[0][1],
        }

    async def _scan_mine(
        self,
        call: Call,
        job: bytes,
        items: Sequence[Item],
        bases: Mapping[int, State],
        memo: bytes,
    ) -> Answer:
        loop, failures = asyncio.get_running_loop(), list[Exception]()
        nbytes: dict[Any, int] = {}
        kept: list[Any] = []

        def keep(results: dict[Any, Any]) -> None:
            kept.extend(results)
            try:
                with relying(), uncollected(len(results)):
                    nbytes.update(self._worker.update_data(results)["nbytes"])
            except Exception as error:
                failures.append(error)

        def pass_on(results: dict[Any, Any]) -> None:
            # A GPU works on while the worker takes in what it makes.
            loop.call_soon_threadsafe(keep, results)

        try:
            sizes = [size for *_, (_, size) in items]
            strips = Strips(self._worker, call, [keys for _, keys, _ in items], sizes)
            rest = bases, memo, pass_on
            await self._in_threads(
                call,
                [
                    partial(self._within, _scan, strips, cut, job, items[cut], *rest)
                    for cut in strips.cut(self._threads)
                ],
            )
        finally:
            # The scheduler has what it no longer knows removed, and may not get the answer.
            for keys in sliced(kept):
                with relying():
                    self._worker.batched_send(AddKeysMsg(keys=keys, stimulus_id=SCAN).to_dict())
                if len(kept) > SLICE:
                    # What is sent at a time the scheduler reads at a time.
                    await asyncio.sleep(0.005)
        if failures:
            raise failures[0]
        return {"status": "OK", "nbytes": pickle.dumps([nbytes[key] for *_, (key, _) in items])}

    def _within(self, function: Callable[..., Made], *args: Any) -> Made:
        return within(self._threads, function, *args)

    async def _in_threads(self, call: Call, functions: Sequence[Callable[[], Made]]) -> list[Made]:
        """Call functions, each in a thread; decline if there is none for one of them in time."""
        waiting = {*range(len(functions))}

        def begin(i: int) -> Made:
            waiting.discard(i)
            call.require()
            return functions[i]()

        try:
            begun = [self._executor.submit(copy_context().run, begin, i) for i in [*waiting]]
        except RuntimeError as error:
            raise Absent(f"worker {self._worker.address} closes: {error}") from None
        asked = [owned(asyncio.wrap_future(each)) for each in begun]
        await asyncio.wait(asked, timeout=call.seconds)
        if is_late := bool(waiting):
            call.is_over = True
            for each in begun:
                each.cancel()
        # Not before all have ended: what they keep is freed when the error is answered.
        done = await asyncio.gather(*asked, return_exceptions=True)
        if is_late:
            raise Absent(
                f"worker {self._worker.address} had no thread for it for {call.seconds:.3g} s "
                "(coop.collective.timeout): other calls have them"
            )
        made = list[Made]()
        for result in done:
            if isinstance(result, BaseException):
                raise result
            made.append(result)
        return made

    async def _answer(self, function: Any, *args: Any) -> Answer:
        """Return the answer that `function` makes, or one that tells what it raised."""
        try:
            answer: Answer = await function(*args)
        except Absent as reason:
            return declined(reason)
        except MemoryError as error:
            # A graph takes chunks one by one, and may have others spilled meanwhile.
            return declined(f"worker {self._worker.address} ran out of memory: {error!r}")
        except Exception as error:
            answer = error_message(error, status="error")
        return answer


@monitor.counted_message
async def send(server: Scheduler | Worker, address: str, handler: str, **message: Any) -> Answer:
    """Send a worker its part of a round; one that is lost or silent declines."""
    asked = owned(asyncio.ensure_future(_send(server, address, handler, message)))
    try:
        if isinstance(server, Scheduler):
            among = {address, *(other for other, _ in message.get("below", ()))}
            if reason := await given_up(server, among, asked):
                return reason
        return await asked
    finally:
        # Which closes the connection, so that what comes late is an answer to nobody. To wait for
        # that may take as long as the worker is silent.
        asked.cancel()


async def _send(
    server: Scheduler | Worker, address: str, handler: str, message: dict[str, Any]
) -> Answer:
    try:
        answer: Answer | None = await getattr(server.rpc(address), handler)(**signed(message))
    except OSError as error:
        return declined(f"worker {address} was lost: {error}")
    except Exception as error:
        # A round goes to its end in any case, so that what was made is freed. What a job raises
        # comes in an answer.
        answer = declined(Incompatible(said(error)))
    if answer is None:
        return declined(
            Incompatible(
                f"worker {address} does not take part in collectives: its handlers are gone"
            )
        )
    return answer


def opened(value: Any) -> Any:
    """Return what is to travel beside a message, or has come to a scheduler so; else a value."""
    if isinstance(value, Serialized):
        return deserialize(value.header, decompress(value.header, value.frames))
    return value.data if isinstance(value, Serialize) else value


def declined(reason: object) -> Answer:
    """Return the answer where what is asked cannot be done."""
    answer: Answer = {"status": "declined", "reason": str(reason)}
    return answer | ({"is_incompatible": True} if isinstance(reason, Incompatible) else {})


def bad_one(answers: Iterable[Answer]) -> Answer | None:
    """Return the first answer that is not "OK"."""
    return next((answer for answer in answers if answer["status"] != "OK"), None)


def sliced(sequence: Sequence[One]) -> Iterator[Sequence[One]]:
    """Cut a sequence into slices of at most `SLICE`."""
    return (sequence[i : i + SLICE] for i in range(0, len(sequence), SLICE))


@contextmanager
def uncollected(chunks: int) -> Iterator[None]:
    """Make objects for many chunks that stay, and look for no garbage among them, now nor soon.

    Of 100,000 chunks that would hold an event loop for seconds. New objects are put among the old
    ones, which Python looks through when enough others have joined them. Young garbage goes before,
    for it would stay there with them.
    """
    if chunks < MANY or not gc.isenabled():
        yield
        return
    # What somebody else has frozen is to stay so; Python 3.12 itself freezes some hundred objects.
    if among_old := gc.get_freeze_count() < 1_000:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if among_old:
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def _items(pickled: Iterable[bytes]) -> list[Item]:
    return [item for some in pickled for item in pickle.loads(some)]


def _halves(parts: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Cut a sequence into at most two that are not empty."""
    middle = (len(parts) + 1) // 2
    return (half for half in (parts[:middle], parts[middle:]) if half)


# In threads.


def _reduce(
    strips: Strips, cut: slice, job: bytes, items: Sequence[Item]
) -> tuple[list[Stacked], bytes]:
    """Return states of some chunks, numbered as these are in the round, and a memo."""
    numbers = np.array([number for number, *_ in items])
    reduce = pickle.loads(job)
    blocks = strips.blocks(cut, reduce.declared)
    made, memo = reduce(blocks, [extra for *_, extra in items])
    return [Stacked(numbers[part.numbers], part.fields) for part in made], memo


def _are_large(states: Sequence[Stacked]) -> bool:
    """Tell whether states are to be combined before they are sent; each thread has made its own."""
    nbytes: int = sum(field.nbytes for part in states for field in part.fields)
    return nbytes > LARGE_BYTES


def _combine(job: bytes, states: Sequence[Stacked], groups: bytes, is_root: bool) -> Answer:
    """Combine states of each group, as far as their order allows."""
    ops = pickle.loads(job).ops
    if is_root or all(op.monoid.commutative for op in ops):
        found = combined_groups(ops, states, pickle.loads(groups) if groups else None)
        states = stack(found.keys(), found.values())
    return {"status": "OK", "states": Serialize([*states])}


def _bases_of_each(spine: bytes, states: Sequence[Sequence[Stacked]]) -> Answer:
    """Return the base sums of the chunks of each worker, given their states."""
    bases = pickle.loads(spine)(part for each in states for part in each)
    numbers = (np.concatenate([part.numbers for part in each]) for each in states)
    of_each = [Serialize([base.of(mine) for base in bases]) for mine in numbers]
    return {"status": "OK", "bases": of_each}


def _scan(
    strips: Strips,
    cut: slice,
    job: bytes,
    items: Sequence[Item],
    bases: Mapping[int, State],
    memo: bytes,
    pass_on: Callable[[dict[Any, Any]], None],
) -> None:
    """Scan chunks, and pass on the results as they are there, on a GPU before they are done."""
    scan = pickle.loads(job)
    blocks = strips.blocks(cut, scan.declared)
    mine = [bases.get(number) for number, *_ in items]
    keys = [key for *_, (key, _) in items]
    if strips.on_gpu:
        results = scan(blocks, mine, memo)
        pass_on(dict(zip(keys, results, strict=True)))
        chunks.backend_of(results[0]).synchronize(results)
        return
    done: dict[Any, Any] = {}
    for i, key in enumerate(keys):
        (done[key],) = scan([blocks[i]], [mine[i]], memo)
        if i + 1 == len(keys) or sum(each.nbytes for each in done.values()) > PASSED_BYTES:
            pass_on(done)
            done = {}
