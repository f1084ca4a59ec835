"""A worker's side of rounds: one message to every worker with chunks, and one answer.

A client sends the scheduler a job and the keys of chunks. The scheduler knows where the chunks are
and sends every worker its own keys; a worker runs the job on all of them, in threads. A reduction
is one round. A scan is two, with the base sums made in between where the states are::

    client --job, keys--> scheduler --job, its keys--> worker: lifts its chunks --+
                                                                                  |
           <---states--- of a reduction <-----------------states------------------+
                         of a scan: base sums --its bases--> worker: scans its chunks, keeps them
                                                                                  |
           <------------ <--------------------------------done--------------------+

Workers make the base sums of a user's monoid, and of states that are large in all; states and bases
then go from worker to worker (`dask_coop.cluster.meeting`). The scheduler sends every worker one
message, a *sweep*::

    scheduler --its chunks--> worker: lifts its chunks, sends states, gets bases, scans its chunks

States and bases travel beside their messages as distributed sends arrays, without a copy; the
scheduler does not unpack them.

Between two rounds a worker keeps nothing that the scheduler does not know, so concurrent calls do
not mix, and there is nothing to clean up. The results of a scan are registered like scattered data.
Large tables are combined on their way: a round *in a tree* goes to one worker, which forwards it to
the others and answers for all::

    scheduler --> worker --+--> worker --+--> worker
                           |             +--> worker
                           +--> worker

An answer is a dict with a status: "OK"; "declined", with the reason, if chunks or their worker have
gone; "error", with the exception of the job.
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
from itertools import chain
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
from dask_coop.cluster.meeting import Meetings, joined, split
from dask_coop.cluster.memory import RoundChunks
from dask_coop.cluster.private import refusing, relied_on, relying, require, said
from dask_coop.cluster.silence import given_up
from dask_coop.cluster.versions import Handler, Portable, same_version, signed
from dask_coop.errors import Absent, Incompatible
from dask_coop.graph.threads import within

Element = TypeVar("Element")
Result = TypeVar("Result")

#: A chunk: its number in the round, the keys of its blocks, and its extra for the job. In a scan
#: the extra is the key and the bytes of its result.
Item = tuple[int, Sequence[Any], Any]

Answer = dict[str, Any]

#: The names of the handlers; the last is the scheduler's.
REDUCE, SCAN, SWEEP = "dask_coop_reduce", "dask_coop_scan", "dask_coop_sweep"
MEET, END, LEAVE = "dask_coop_meet", "dask_coop_end", "dask_coop_leave"

#: A worker combines its own states of more bytes than this in all.
LARGE_BYTES = 1 << 18

#: A thread hands its results to the worker once they are more bytes than this.
PASSED_BYTES = 1 << 22

#: Fewest chunks for which garbage collection pauses while their objects are made.
MANY = 100

#: Most chunks that a loop handles before it yields to the event loop.
SLICE = 500


class WorkerRounds(Portable, WorkerPlugin):  # type: ignore[misc]
    """Add the handlers by which a worker takes part in rounds."""

    name = "dask-coop-rounds"
    idempotent = True
    handlers: tuple[str, ...] = (REDUCE, SCAN, SWEEP, MEET, END)

    def setup(self, worker: Worker) -> None:
        """Add the handlers; distributed calls this."""
        attach(worker)

    def teardown(self, worker: Worker) -> None:
        """End all calls, as the worker waits for their threads; distributed calls this."""
        if side := _sides.get(worker):
            side.close()


#: The handlers of the workers of this process.
_sides: WeakKeyDictionary[Worker, _WorkerSide] = WeakKeyDictionary()


def attach(worker: Worker) -> None:
    """Add the handlers of rounds to a worker, unless it has them.

    If that fails, the worker still starts, and all rounds decline with the reason.
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
        handlers: dict[str, Handler] = {
            REDUCE: side.reduce,
            SCAN: side.scan,
            SWEEP: side.sweep,
            MEET: side.meet,
        }
        worker.handlers |= {
            name: same_version(worker, monitor.of_worker(worker, relied_on(side.of_call(handler))))
            for name, handler in handlers.items()
        }
        worker.handlers[END] = same_version(worker, side.end)


class _WorkerSide:
    """The handlers of a worker. Every message except `END` also has the keywords of a `Call`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._threads = worker.state.nthreads
        self._meetings = Meetings()
        self._calls: dict[str, set[Call]] = {}
        # The worker shuts down its executors when it closes.
        self._executor = worker.executors["dask-coop"] = ThreadPoolExecutor(
            self._threads, thread_name_prefix="Dask-Coop"
        )

    def of_call(self, handler: Callable[..., Coroutine[Any, Any, Answer]]) -> Handler:
        """Return a handler of messages that passes on their `Call`, and declines ended ones."""

        @wraps(handler)
        async def handle(*, name: str, timeout: float, nbytes: int, **message: Any) -> Answer:
            call = Call(name, timeout, nbytes)
            if self._meetings.has_ended(name):
                return declined("its call has ended")
            calls = self._calls.setdefault(name, set())
            calls.add(call)
            try:
                return await handler(call, **message)
            finally:
                calls.discard(call)
                if not calls:
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
        """Handle a reduction: make the states of chunks.

        Parameters
        ----------
        call : Call
        job : bytes
            A job that makes states, pickled.
        items : sequence of bytes
            Lists of Item, pickled.
        below : sequence of (str, sequence of bytes)
            The addresses and items of the workers whose states this one combines with its own.
        groups : bytes, optional
            The number of each chunk's group, pickled; empty if there is only one group. Without
            `groups`, states are never combined.
        is_root : bool
            Whether this worker gets the states of all chunks, so that it knows their order.
        """
        message = {"job": job, "groups": groups, **call.message}
        requests = []
        for (address, of_half), *further in _halves(below):
            half = send(self._worker, address, REDUCE, items=of_half, below=further, **message)
            requests.append(owned(asyncio.create_task(half)))
        mine = await self._answer(self._reduce_mine, call, job, _items(items))
        answers = [mine, *await asyncio.gather(*requests)]
        if bad := bad_one(answers):
            return bad
        states = [state for answer in answers for state in opened(answer["states"])]
        if groups is None or not (requests or is_root or _are_large(states)):
            return mine
        return await self._answer(self._in_thread, call, _combine, job, states, groups, is_root)

    async def scan(
        self, call: Call, job: bytes, items: Sequence[bytes], bases: Sequence[Stacked], memo: bytes
    ) -> Answer:
        """Handle the second round of a scan: scan chunks from their bases, and keep the results.

        Parameters
        ----------
        call : Call
        job : bytes
            A `Downsweep`, pickled.
        items : sequence of bytes
            Lists of Item, pickled.
        bases : sequence of Stacked
            The base sums of chunks.
        memo : bytes
            The memo that this worker answered in the first round.
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
        """Handle a sweep: scan chunks from bases that workers make.

        Parameters
        ----------
        call : Call
        job, spine, then : bytes
            An `Upsweep`, a `Spine` and a `Downsweep`, pickled.
        items : sequence of bytes
            Lists of Item, pickled.
        places : sequence of str
            The addresses of the workers that make base sums, each for one range of the lines.
        members : int
            Number of workers that take part.
        """
        chunks_here = _items(items)
        mine = await self._answer(self._reduce_mine, call, job, chunks_here)
        if mine["status"] != "OK":
            return mine
        states = opened(mine["states"])
        try:
            ranges = await self._in_thread(call, split, states, len(places))
            message = {"members": members, "spine": spine, **call.message}
            requests = (
                self._send_or_call(address, MEET, share=Serialize(lines), **message)
                for address, lines in zip(places, ranges, strict=True)
            )
            answers = await self._meetings.answers(call.name, requests)
            if bad := bad_one(answers):
                return bad
            of_ranges = [opened(answer["bases"]) for answer in answers]
            bases = await self._in_thread(call, joined, states, of_ranges)
        except Absent as reason:
            return declined(reason)
        return await self._answer(self._scan_mine, call, then, chunks_here, bases, mine["memo"])

    async def meet(
        self, call: Call, share: Sequence[Stacked], members: int, spine: bytes
    ) -> Answer:
        """Handle states of a sweep: make base sums once the states of all workers have come.

        Parameters
        ----------
        call : Call
        share : sequence of Stacked
            One worker's states of the lines of this place.
        members : int
            Number of workers that take part.
        spine : bytes
            A `Spine`, pickled.
        """

        async def make(states: Sequence[Sequence[Stacked]]) -> Answer:
            return await self._answer(self._in_thread, call, _bases_of_each, spine, states)

        answer, mine = await self._meetings.meet(call.name, opened(share), members, make)
        if answer["status"] == "OK":
            answer = {"status": "OK", "bases": answer["bases"][mine]}
        return answer

    async def end(self, name: str) -> Answer:
        """Handle the end of a call: begin nothing more, and stop waiting for states."""
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

    async def _send_or_call(self, address: str, handler: str, **message: Any) -> Answer:
        if address != self._worker.address:
            return await send(self._worker, address, handler, **message)
        answer: Answer = await self._worker.handlers[handler](**signed(message))
        return answer

    async def _in_thread(self, call: Call, function: Callable[..., Result], *args: Any) -> Result:
        (result,) = await self._in_threads(call, [partial(function, *args)])
        return result

    async def _reduce_mine(self, call: Call, job: bytes, items: Sequence[Item]) -> Answer:
        source = RoundChunks(self._worker, call, [keys for _, keys, _ in items])
        results = await self._in_threads(
            call,
            [
                partial(self._within, _reduce, source, chosen, job, items[chosen])
                for chosen in source.divide(self._threads)
            ],
        )
        return {
            "status": "OK",
            "states": Serialize([state for states, _ in results for state in states]),
            "memo": results[0][1],
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
            # The GPU goes on while the worker stores its results.
            loop.call_soon_threadsafe(keep, results)

        try:
            sizes = [size for *_, (_, size) in items]
            source = RoundChunks(self._worker, call, [keys for _, keys, _ in items], sizes)
            await self._in_threads(
                call,
                [
                    partial(
                        self._within,
                        _scan,
                        source,
                        chosen,
                        job,
                        items[chosen],
                        bases,
                        memo,
                        pass_on,
                    )
                    for chosen in source.divide(self._threads)
                ],
            )
        finally:
            # Report the results even if the answer gets lost: the scheduler then removes the ones
            # that it does not know.
            for keys in sliced(kept):
                with relying():
                    self._worker.batched_send(AddKeysMsg(keys=keys, stimulus_id=SCAN).to_dict())
                if len(kept) > SLICE:
                    # The scheduler reads all messages of a batch at once: leave pauses for others.
                    await asyncio.sleep(0.005)
        if failures:
            raise failures[0]
        return {"status": "OK", "nbytes": pickle.dumps([nbytes[key] for *_, (key, _) in items])}

    def _within(self, function: Callable[..., Result], *args: Any) -> Result:
        return within(self._threads, function, *args)

    async def _in_threads(
        self, call: Call, functions: Sequence[Callable[[], Result]]
    ) -> list[Result]:
        """Call each function in a thread; decline if one of them gets no thread in time."""
        waiting = {*range(len(functions))}

        def begin(i: int) -> Result:
            waiting.discard(i)
            call.require()
            return functions[i]()

        try:
            submitted = [self._executor.submit(copy_context().run, begin, i) for i in [*waiting]]
        except RuntimeError as error:
            raise Absent(f"worker {self._worker.address} closes: {error}") from None
        futures = [owned(asyncio.wrap_future(future)) for future in submitted]
        await asyncio.wait(futures, timeout=call.seconds)
        if is_late := bool(waiting):
            call.is_over = True
            for future in submitted:
                future.cancel()
        # Wait for all to end, so that their memory is free when the error is answered.
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        if is_late:
            raise Absent(
                f"worker {self._worker.address} had no thread for it for {call.seconds:.3g} s "
                "(coop.collective.timeout): other calls have them"
            )
        results = list[Result]()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            results.append(outcome)
        return results

    async def _answer(self, function: Any, *args: Any) -> Answer:
        """Return the answer of `function`, or one with the exception that it raised."""
        try:
            answer: Answer = await function(*args)
        except Absent as reason:
            return declined(reason)
        except MemoryError as error:
            # The graph may succeed: it needs fewer chunks at a time, and others can be spilled.
            return declined(f"worker {self._worker.address} ran out of memory: {error!r}")
        except Exception as error:
            answer = error_message(error, status="error")
        return answer


@monitor.counted_message
async def send(server: Scheduler | Worker, address: str, handler: str, **message: Any) -> Answer:
    """Send a worker the message of a round; decline for a worker that is lost or silent."""
    request = owned(asyncio.ensure_future(_send(server, address, handler, message)))
    try:
        if isinstance(server, Scheduler):
            addresses = {address, *(other for other, _ in message.get("below", ()))}
            if reason := await given_up(server, addresses, request):
                return reason
        return await request
    finally:
        # This closes the connection, so a late answer goes nowhere. It may take as long as the
        # worker is silent, so don't wait for it.
        request.cancel()


async def _send(
    server: Scheduler | Worker, address: str, handler: str, message: dict[str, Any]
) -> Answer:
    try:
        answer: Answer | None = await getattr(server.rpc(address), handler)(**signed(message))
    except OSError as error:
        return declined(f"worker {address} was lost: {error}")
    except Exception as error:
        # Decline instead of raising, so that the round ends and its results are released. An
        # exception of a job comes in an answer.
        answer = declined(Incompatible(said(error)))
    if answer is None:
        return declined(
            Incompatible(
                f"worker {address} does not take part in collectives: its handlers are gone"
            )
        )
    return answer


def opened(value: Any) -> Any:
    """Return the value that travels beside a message, unpacked if a scheduler received it."""
    if isinstance(value, Serialized):
        return deserialize(value.header, decompress(value.header, value.frames))
    return value.data if isinstance(value, Serialize) else value


def declined(reason: object) -> Answer:
    """Return an answer that declines for a reason."""
    answer: Answer = {"status": "declined", "reason": str(reason)}
    return answer | ({"is_incompatible": True} if isinstance(reason, Incompatible) else {})


def bad_one(answers: Iterable[Answer]) -> Answer | None:
    """Return the first answer that is not "OK"."""
    return next((answer for answer in answers if answer["status"] != "OK"), None)


def sliced(sequence: Sequence[Element]) -> Iterator[Sequence[Element]]:
    """Cut a sequence into slices of at most `SLICE`."""
    return (sequence[i : i + SLICE] for i in range(0, len(sequence), SLICE))


@contextmanager
def uncollected(chunks: int) -> Iterator[None]:
    """Pause garbage collection while long-lived objects for many chunks are made.

    For 100,000 chunks a collection would hold an event loop for seconds. Afterwards the new objects
    move to the oldest generation, which Python rarely searches; young garbage is collected first,
    as it would move along.
    """
    if chunks < MANY or not gc.isenabled():
        yield
        return
    # Objects that somebody else froze must stay so; Python 3.12 itself freezes some hundred.
    if may_freeze := gc.get_freeze_count() < 1_000:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if may_freeze:
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def _items(pickled: Iterable[bytes]) -> list[Item]:
    return [*chain.from_iterable(map(pickle.loads, pickled))]


def _halves(sequence: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Yield the halves of a sequence that are not empty."""
    middle = (len(sequence) + 1) // 2
    return (half for half in (sequence[:middle], sequence[middle:]) if half)


# In threads.


def _reduce(
    source: RoundChunks, chosen: slice, job: bytes, items: Sequence[Item]
) -> tuple[list[Stacked], bytes]:
    """Return states of chunks, with the chunks' numbers in the round, and a memo."""
    numbers = np.array([number for number, *_ in items])
    reduce = pickle.loads(job)
    blocks = source.blocks(chosen, reduce.declared)
    states, memo = reduce(blocks, [extra for *_, extra in items])
    return [Stacked(numbers[batch.numbers], batch.fields) for batch in states], memo


def _are_large(states: Sequence[Stacked]) -> bool:
    """Return whether to combine the states of all threads before they are sent."""
    nbytes: int = sum(field.nbytes for batch in states for field in batch.fields)
    return nbytes > LARGE_BYTES


def _combine(job: bytes, states: Sequence[Stacked], groups: bytes, is_root: bool) -> Answer:
    """Combine the states of each group, unless their order matters and is not known here."""
    ops = pickle.loads(job).ops
    if is_root or all(op.monoid.commutative for op in ops):
        combined = combined_groups(ops, states, pickle.loads(groups) if groups else None)
        states = stack(combined.keys(), combined.values())
    return {"status": "OK", "states": Serialize([*states])}


def _bases_of_each(spine: bytes, states: Sequence[Sequence[Stacked]]) -> Answer:
    """Return the base sums of each worker's chunks from the states of all workers."""
    bases = pickle.loads(spine)(chain.from_iterable(states))
    numbers = (np.concatenate([batch.numbers for batch in of_worker]) for of_worker in states)
    of_workers = [Serialize([base.of(mine) for base in bases]) for mine in numbers]
    return {"status": "OK", "bases": of_workers}


def _scan(
    source: RoundChunks,
    chosen: slice,
    job: bytes,
    items: Sequence[Item],
    bases: Mapping[int, State],
    memo: bytes,
    pass_on: Callable[[dict[Any, Any]], None],
) -> None:
    """Scan chunks, and pass on results as they are made, on a GPU before they are finished."""
    scan = pickle.loads(job)
    blocks = source.blocks(chosen, scan.declared)
    mine = [bases.get(number) for number, *_ in items]
    keys = [key for *_, (key, _) in items]
    if source.on_gpu:
        results = scan(blocks, mine, memo)
        pass_on(dict(zip(keys, results, strict=True)))
        chunks.backend_of(results[0]).synchronize(results)
        return
    done: dict[Any, Any] = {}
    for i, key in enumerate(keys):
        (done[key],) = scan([blocks[i]], [mine[i]], memo)
        if i + 1 == len(keys) or sum(result.nbytes for result in done.values()) > PASSED_BYTES:
            pass_on(done)
            done = {}
