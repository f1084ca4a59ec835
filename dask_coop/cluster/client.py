"""Reduce and scan chunks in a cluster's memory by rounds of messages: collectives.

A graph costs the scheduler time for every task. A round costs one message a worker, whatever the
number of chunks (`dask_coop.cluster.worker`). A reduction takes one round and a scan two::

    chunks --lift--> states --> here: combined --> result                              one round

    chunks --lift--> states --> base sums --> chunks --scan--> results                 two rounds

Jobs (`dask_coop.cluster.jobs`) call the same functions as tasks do (`dask_coop.graph.tasks`), so
results equal those of graphs. Results of scans stay on the workers that made them. Their futures
are like those of scattered data: the results are lost with their worker.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import chain, islice, product
from typing import Any
from weakref import WeakSet

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, Future
from distributed.comm import CommClosedError
from distributed.core import clean_exception
from distributed.protocol.pickle import dumps

from dask_coop import chunks
from dask_coop.algebra.bins import BinSpec
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.cluster.futures import futures_of_blocks, wait
from dask_coop.cluster.jobs import (
    Count,
    Downsweep,
    Job,
    Labels,
    Lift,
    LiftGroups,
    Spine,
    Upsweep,
    apart,
    combined_groups,
)
from dask_coop.cluster.private import relying, require
from dask_coop.cluster.scheduler import SchedulerRounds
from dask_coop.cluster.silence import timeout
from dask_coop.cluster.versions import signed
from dask_coop.cluster.worker import LEAVE, REDUCE, SCAN, SLICE, WorkerRounds, sliced, uncollected
from dask_coop.errors import Declined, Incompatible, Silent
from dask_coop.graph import config, prefixes
from dask_coop.graph.executor import Groups
from dask_coop.graph.grouped import Tables
from dask_coop.graph.layers import origin
from dask_coop.graph.scan import group_size, lines, wrap
from dask_coop.graph.threads import threads_for

#: Workers combine tables of more bytes than this among themselves; the client combines others.
TREE_BYTES = 1 << 18

#: States of more bytes than this in all go from worker to worker.
THROUGH_BYTES = 1 << 20

#: A worker makes base sums of more bytes than this in all; the scheduler makes others.
INLINE_BYTES = 1 << 15

#: A call with states of more bytes than this in all runs as a graph.
MOST_BYTES = 1 << 26

#: The fraction of a worker's memory that may be in use once it has the labels; it spills from 0.7.
FULL = 0.7

Index = tuple[int, ...]


class Collective:
    """Run steps on the workers that hold the chunks: a `dask_coop.graph.executor.Runner`.

    Parameters
    ----------
    function : str
        The public function that the user called; the cluster's monitor shows this name.
    """

    def __init__(self, function: str) -> None:
        self._round = partial(_round, function)
        self._states = partial(_states, self._round)

    def states(self, op: Operation, arrays: Sequence[Array], axes: tuple[int, ...]) -> Groups:
        """Reduce the blocks of an array over `axes`."""
        x = arrays[0]
        nbytes = _require_small(x, axes, (op.monoid.entries or 1) * op.state_bytes)
        indices = _indices(x)
        positional = op.monoid.positional
        groups = [(0,) * x.ndim] * len(indices)
        if len(axes) < x.ndim:
            groups = [tuple(0 if d in axes else i for d, i in enumerate(ix)) for ix in indices]
        extras: list[Any] = [None] * len(indices)
        if positional or len(axes) < x.ndim:
            origins = (origin(x.chunks, axes, i) if positional else None for i in indices)
            extras = list(zip(groups, origins, strict=True))
        job = Lift(op, axes, threads_for(x), _declared(arrays), chunks.is_masked(x._meta))
        return self._states(job, _blocks(arrays, indices), extras, groups, nbytes)

    def tables(
        self,
        op: Operation,
        arrays: Sequence[Array],
        weighted: bool,
        grid: Any,
        axes: tuple[int, ...],
    ) -> Groups:
        """Count the samples of an array over `axes`."""
        # Some tables have a length that is only known once they are made.
        nbytes = TREE_BYTES if grid.entries is None else grid.entries * op.state_bytes
        if len(axes) < arrays[0].ndim:
            nbytes = _require_small(arrays[0], axes, math.prod(grid.shape) * op.state_bytes)
        indices = _indices(arrays[0])
        groups = [tuple(i for d, i in enumerate(index) if d not in axes) for index in indices]
        is_one = len(set(groups)) == 1
        tree = is_one and op.monoid.commutative and _is_large(op, grid)
        extras = [None] * len(groups) if is_one else groups
        job = Count(op, grid, weighted, threads_for(arrays[0]), _declared(arrays))
        return self._states(job, _blocks(arrays, indices), extras, groups, nbytes, tree)

    def groups(
        self, ops: Sequence[Operation], x: Array, tables: Tables
    ) -> dict[Index, list[State]]:
        """Reduce the groups of an array."""
        first = x.ndim - tables.ndim
        n_kept = first + tables.rows
        axes = tuple(range(n_kept, x.ndim))
        if tables.nbytes > MOST_BYTES:
            raise Declined(f"its labels are {tables.nbytes} bytes, more than {MOST_BYTES}")
        nbytes = table_bytes = tables.n * sum(op.state_bytes for op in ops)
        if n_kept:
            nbytes = _require_small(x, axes, table_bytes)
        positional = any(op.monoid.positional for op in ops)
        indices = _indices(x)
        blocks = _blocks([x], indices)
        of_blocks: list[tuple[Any, Any]] = [
            (tables.codes(index[first:]), tables.places(index[first:])) for index in indices
        ]
        if tables.nbytes > THROUGH_BYTES:
            blocks = _with_labels(blocks, of_blocks)
            of_blocks = [(None, None)] * len(indices)
        extras = [
            Labels(
                index[:n_kept],
                *of_block,
                origin(x.chunks, axes, index) if positional else None,
            )
            for index, of_block in zip(indices, of_blocks, strict=True)
        ]
        in_any_order = all(op.monoid.commutative for op in ops)
        tree = not n_kept and in_any_order and table_bytes > TREE_BYTES
        job = LiftGroups(tuple(ops), tables.rows, tables.n, threads_for(x), _declared([x]))
        groups = [labels.kept for labels in extras]
        states = self._states(job, blocks, extras, groups, nbytes, tree)
        return {index: apart(ops, state) for index, (state,) in states.items()}

    def scan(
        self, op: Operation, spec: ScanSpec, source: tuple[Array, Array | None], name: str
    ) -> Array:
        """Scan the lines of an array."""
        x, heads = source
        nbytes = _require_small(x, (spec.axis,), op.state_bytes)
        arrays = [x] if heads is None else [x, heads]
        of_lines = [blocks for _, blocks in lines(x, spec)]
        indices = [index for line in of_lines for index in line]
        bases = Spine(op, tuple(map(len, of_lines)), heads is not None, group_size(op, spec, x))
        name = f"{name}-{uuid.uuid4().hex}"
        wrapped = partial(wrap, HighLevelGraph({}, {}), set(), name)
        like = wrapped({}, op, spec, x)
        keys = [(name, *index) for index in indices]
        arguments = spec, threads_for(x), _declared(arrays)
        futures = self._round(
            SCAN,
            _blocks(arrays, indices, spec.axis),
            [*zip(keys, _nbytes(like, indices), strict=True)],
            keys,
            job=dumps(Upsweep(op, *arguments)),
            spine=dumps(bases),
            then=dumps(Downsweep(op, *arguments)),
            places=_workers_for_bases(op, x, nbytes),
            nbytes=nbytes,
        )
        return wrapped(dict(zip(keys, futures, strict=True)), op, spec, x)


def _declared(arrays: Sequence[Array]) -> tuple[Any, ...]:
    return tuple(x.dtype for x in arrays)


def _indices(x: Array) -> list[Index]:
    return list(product(*map(range, x.numblocks)))


def _require_small(x: Array, axes: tuple[int, ...], state_bytes: int) -> int:
    """Return the bytes of all states over `axes`, `state_bytes` a line; decline large ones."""
    counts = (x.numblocks[d] if d in axes else x.shape[d] for d in range(x.ndim))
    nbytes = math.prod(counts) * state_bytes
    if nbytes > MOST_BYTES:
        raise Declined(f"its states are {nbytes} bytes, more than {MOST_BYTES}")
    # A number of lines that is not known may be as large as that.
    return MOST_BYTES if math.isnan(nbytes) else nbytes


def _workers_for_bases(op: Operation, x: Array, nbytes: int) -> int:
    """Return how many workers make base sums of `nbytes` in all; 0 for the scheduler."""
    # A user's code must not run in the scheduler.
    if op.monoid.lift is None and nbytes <= INLINE_BYTES:
        return 0
    return math.ceil(nbytes / prefixes.TAKEN_BYTES) if x.ndim > 1 and nbytes else 1


def _is_large(op: Operation, grid: BinSpec) -> bool:
    return grid.entries is None or grid.entries * op.state_bytes > TREE_BYTES


def _nbytes(x: Array, indices: Sequence[Index]) -> list[int]:
    """Return the bytes of each block, -1 where a size is not known."""
    sizes = reduce(np.multiply.outer, map(np.asarray, x.chunks)) * x.dtype.itemsize
    known = np.where(np.isnan(sizes), -1, sizes)
    return [int(known[index]) for index in indices]


def _blocks(
    arrays: Sequence[Array], indices: Sequence[Index], axis: int | None = None
) -> list[tuple[Future, ...]]:
    """Return the futures of each chunk's blocks, one an array, after waiting for all of them.

    An array with fewer dimensions than the first is indexed by the leading axes, or by `axis`.
    """
    most = config.get("coop.collective.chunks", config.COUNT)
    if len(indices) > most:
        raise Declined(
            f"it has {len(indices)} chunks, more than the {most} of coop.collective.chunks; "
            "use larger chunks"
        )
    columns = []
    with relying(), uncollected(len(indices)):
        for array in arrays:
            of_array: Sequence[Index] = indices
            if array.ndim < len(indices[0]):
                of_array = [i[: array.ndim] if axis is None else (i[axis],) for i in indices]
            columns.append(futures_of_blocks(array, of_array))
    every = [future for column in columns for future in column]
    _require_one_client(every)
    with relying():
        wait([future for future in every if future.status == "pending"])
        if bad := [future for future in every if future.status != "finished"]:
            raise Declined(f"chunk {bad[0].key} is not in memory: it is {bad[0].status}")
    return list(zip(*columns, strict=True))


@relying()
def _with_labels(
    blocks: Sequence[tuple[Future, ...]], labels: Sequence[tuple[Any, Any]]
) -> list[tuple[Future, ...]]:
    """Send labels to the workers of the chunks; return each chunk's futures with its labels'.

    Labels are scattered data, opaque to the scheduler. Chunks of a worker with the same labels
    use one copy of them.
    """
    client, name = blocks[0][0].client, f"labels-{uuid.uuid4().hex}"
    who_has = client.who_has([future for (future,) in blocks])
    workers = client.scheduler_info(n_workers=-1)["workers"]
    n_chunks: Counter[str] = Counter()
    data_of: dict[str, dict[Any, Any]] = {}
    keys: list[tuple[str, Any]] = []
    for (future,), (codes, places) in zip(blocks, labels, strict=True):
        if not (holders := who_has.get(future.key)):
            raise Declined(f"chunk {future.key} is not in memory")
        # The running worker with the fewest chunks; if none runs, the scheduler says why.
        running = [a for a in holders if workers.get(a, {}).get("status") == "running"]
        worker = min(running or holders, key=lambda a: (n_chunks[a], a))
        n_chunks[worker] += 1
        # Blocks with the same labels have one array of codes.
        key = name, worker, id(codes[0])
        data_of.setdefault(worker, {})[key] = codes, places
        keys.append((worker, key))
    for worker, data in data_of.items():
        _require_room(worker, workers.get(worker, {}), sum(map(_label_bytes, data.values())))

    async def send() -> list[dict[Any, Future]]:
        sent = (client._scatter(data, workers=[worker]) for worker, data in data_of.items())
        futures: list[dict[Any, Future]] = await asyncio.gather(*sent)
        return futures

    try:
        futures = dict(zip(data_of, client.sync(send), strict=True))
    except OSError as error:
        raise Declined(f"labels cannot be sent to a worker: {error}") from error
    return [
        (*block, futures[worker][key]) for block, (worker, key) in zip(blocks, keys, strict=True)
    ]


def _label_bytes(labels: tuple[Any, Any]) -> int:
    (codes, _), places = labels
    return int(codes.nbytes + getattr(places, "nbytes", 0))


def _require_room(worker: str, info: Mapping[str, Any], nbytes: int) -> None:
    """Decline if a worker has no room for the labels, which it keeps while the call lasts."""
    limit, used = info.get("memory_limit"), info.get("metrics", {}).get("memory", 0)
    if limit and used + nbytes > FULL * limit:
        raise Declined(
            f"worker {worker} has no room for labels of {nbytes} bytes: it uses {used} of {limit}"
        )


def _require_one_client(futures: Sequence[Future]) -> None:
    """Raise unless all futures belong to one client that is not asynchronous."""
    client = futures[0].client
    if any(future.client is not client for future in futures):
        raise Declined("its chunks belong to several clients")
    if client.asynchronous:
        raise RuntimeError(
            "engine='collective' returns when the work is done, and an asynchronous client cannot "
            "wait for that; call it with a client that is not asynchronous"
        )


def _states(
    ask: Callable[..., list[Any]],
    job: Job,
    blocks: Sequence[Sequence[Future]],
    extras: Sequence[Any],
    groups: Sequence[Index],
    nbytes: int,
    tree: bool = False,
) -> Groups:
    """Request the states of chunks from the workers, and combine those of each group."""
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    group_of = np.array([numbers[group] for group in groups]) if len(numbers) > 1 else None
    answers = ask(
        REDUCE,
        blocks,
        extras,
        job=dumps(job),
        tree=tree or nbytes > THROUGH_BYTES,
        groups=b"" if group_of is None else pickle.dumps(group_of),
        nbytes=nbytes,
    )
    states = combined_groups(job.ops, [*chain.from_iterable(answers)], group_of)
    return {groups[number]: [state] for number, state in states.items()}


def _round(
    function: str,
    handler: str,
    blocks: Sequence[Sequence[Future]],
    extras: Sequence[Any],
    outputs: Sequence[Any] = (),
    **message: Any,
) -> list[Any]:
    """Request a round from the scheduler; return the states of chunks, or futures of `outputs`."""
    message |= {"function": function, "timeout": timeout()}
    with relying():
        client = blocks[0][0].client
        message |= {"name": uuid.uuid4().hex, "client": client.id}
        require(blocks[0][0])
        _prepare(client, message["timeout"])
        with uncollected(len(blocks)):
            keys = ([future.key for future in of_chunk] for of_chunk in blocks)
            items = [*zip(range(len(blocks)), keys, extras, strict=True)]
            # One pickle of many similar keys is small, and quick to make.
            message["items"] = [pickle.dumps(batch) for batch in sliced(items)]
        answer, futures = client.sync(_ask, client, handler, outputs, message)
    if answer is None:
        _prepared.discard(client)
        raise Incompatible("the scheduler does not take part: its handlers are gone")
    if answer["status"] == "declined":
        raise _reason_of(answer)
    if answer["status"] == "error":
        _, exception, traceback = clean_exception(answer["exception"], answer["traceback"])
        raise exception.with_traceback(traceback)
    results: list[Any] = futures if outputs else [*answer["states"]]
    return results


def _reason_of(answer: Mapping[str, Any]) -> Declined:
    """Return the exception for an answer that declines."""
    if answer.get("is_incompatible"):
        return Incompatible(answer["reason"])
    return (Silent if answer.get("is_silent") else Declined)(answer["reason"])


async def _ask(
    client: Client, handler: str, outputs: Sequence[Any], message: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[Future]]:
    """Return the scheduler's answer, and the futures of outputs."""
    releases = _Releases(client)
    remaining = (_Output(key, client, releases) for key in outputs)
    # If no future can be made, nothing is requested from the scheduler.
    futures: list[Future] = [*islice(remaining, 1)]
    request = asyncio.ensure_future(getattr(client.scheduler, handler)(**signed(message)))
    request.add_done_callback(partial(_hold, futures))
    try:
        # A round that takes longer than its messages leaves time to make the futures.
        await asyncio.wait({request}, timeout=0.002)
        while len(futures) < len(outputs):
            with uncollected(len(outputs)):
                futures += islice(remaining, SLICE)
            await asyncio.sleep(0)
        await asyncio.wait({request})
    except asyncio.CancelledError:
        _leave(client, message["name"])
        raise
    finally:
        # All of them, also if the caller is interrupted meanwhile.
        futures += remaining
    answer = request.result()
    if client.status in ("closing", "closed"):
        # The graph could not run on this client either.
        raise CommClosedError(f"the client was closed in the middle of {handler}")
    return answer, futures


#: Messages to schedulers that are under way; asyncio itself keeps only weak references.
_sending: set[asyncio.Future[Any]] = set()


def _leave(client: Client, name: str) -> None:
    """Send the scheduler a message that nobody waits for the call; wait for no answer."""
    sent = asyncio.ensure_future(getattr(client.scheduler, LEAVE)(**signed({"name": name})))
    _sending.add(sent)
    sent.add_done_callback(_sending.discard)
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())


class _Output(Future):  # type: ignore[misc]
    """The future of one of many results, which are mostly released together.

    A plain future wakes the client's event loop and sends the scheduler a message of its own.
    """

    _cleared: bool

    def __init__(self, key: Any, client: Client, releases: _Releases) -> None:
        self._releases = releases
        super().__init__(key, client)
        # Users get the future after the round; a result lost by then is reported later.
        self._state.finish()

    def release(self) -> None:
        """Release the result; distributed calls this, from any thread."""
        self._verify_initialized()
        if not self._cleared and self.client.generation == self._generation:
            self._cleared = True
            self._releases.add(self.key)


class _Releases:
    """The keys of released futures, to be sent to the scheduler together.

    There is no lock, because garbage collection may delete futures while this very code runs.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keys: deque[Any] = deque()
        self._is_due = False

    def add(self, key: Any) -> None:
        """Release a key soon, together with all keys added until then."""
        self._keys.append(key)
        # Append first: a pending `_release` has not begun to take keys, so it takes this one.
        if not self._is_due:
            self._is_due = True
            self._client.loop.add_callback(self._release)

    def _release(self) -> None:
        self._is_due = False
        client = self._client
        released: list[Any] = []
        with client._refcount_lock:
            while self._keys and len(released) < SLICE:
                key = self._keys.popleft()
                client.refcount[key] -= 1
                if client.refcount[key] == 0:
                    del client.refcount[key]
                    released.append(key)
        for key in released:
            if (state := client.futures.pop(key, None)) is not None:
                state.cancel()
        if released and client.status != "closed":
            message = {"op": "client-releases-keys", "keys": released, "client": client.id}
            client._send_to_scheduler(message)
        if self._keys and not self._is_due:
            # The scheduler releases all keys of a message at once: leave pauses for others.
            self._is_due = True
            client.loop.call_later(0.02, self._release)


def _hold(futures: list[Future], request: asyncio.Task[Any]) -> None:
    """Keep futures alive, as an argument, until their round ends, even if the caller leaves.

    Keys released earlier would be unknown to the scheduler, which would then keep the results.
    """
    if not request.cancelled():
        request.exception()


#: The clients that have registered the plugins.
_prepared: WeakSet[Client] = WeakSet()


def _prepare(client: Client, seconds: float) -> None:
    """Register the plugins with a client's cluster, once a client."""
    if client in _prepared:
        return
    require(client)
    try:
        if client.sync(_register, client, seconds):
            _prepared.add(client)
    except (OSError, ValueError) as error:
        # A worker has just died, or the scheduler takes no plugins.
        raise Declined(
            f"workers and scheduler cannot be prepared for a collective: {error}"
        ) from error


async def _register(client: Client, seconds: float) -> bool:
    """Register the plugins; return whether all workers confirmed theirs in time.

    A silent worker is no error, as it may hold none of the chunks.
    """
    await client.register_plugin(SchedulerRounds())
    workers = asyncio.ensure_future(client.register_plugin(WorkerRounds()))
    workers.add_done_callback(lambda done: done.cancelled() or done.exception())
    if not (await asyncio.wait({workers}, timeout=seconds))[0]:
        return False
    workers.result()
    return True
