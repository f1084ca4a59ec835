"""Collectives: chunks that are in memory on a cluster, reduced or scanned in rounds of messages.

A graph costs the scheduler its time for every task. A round costs a message a worker, whatever the
number of chunks (`dask_coop.cluster.worker`). A reduction takes one, and a scan two::

    chunks --lift--> states --> here: combined --> result                              one round

    chunks --lift--> states --> base sums --> chunks --scan--> results                 two rounds

Jobs (`dask_coop.cluster.jobs`) call the functions of the tasks (`dask_coop.graph.tasks`), so the
results are those of the graphs. Results of scans stay where they are made, and are futures as those
of scattered data: they are lost with their worker.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import islice, product
from typing import Any
from weakref import WeakSet

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Alias
from distributed import Client, Future
from distributed.comm import CommClosedError
from distributed.core import clean_exception
from distributed.protocol.pickle import dumps

from dask_coop.algebra.bins import BinSpec
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.cluster.futures import wait
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

#: Tables of more bytes than this are combined between workers, and not here.
TREE_BYTES = 1 << 18

#: States of more bytes than this in all go from worker to worker.
THROUGH_BYTES = 1 << 20

#: Base sums of more bytes than this in all are made by a worker, and not by the scheduler.
INLINE_BYTES = 1 << 15

#: States of more bytes than this in all are combined by a graph, between workers.
MOST_BYTES = 1 << 26

#: The share of a worker's memory that may be taken when labels are there; it spills from 0.7 on.
SHARE = 0.7

Index = tuple[int, ...]


class Collective:
    """Runs steps on the workers that hold the chunks: a `dask_coop.graph.executor.Runner`.

    Parameters
    ----------
    function : str
        The public function that is called, by which the cluster's monitor tells of it.
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
            groups = [tuple(0 if d in axes else i for d, i in enumerate(at)) for at in indices]
        extras: list[Any] = [None] * len(indices)
        if positional or len(axes) < x.ndim:
            origins = (origin(x.chunks, axes, i) if positional else None for i in indices)
            extras = list(zip(groups, origins, strict=True))
        job = Lift(op, axes, threads_for(x), _declared(arrays))
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
        # The length of some tables is known when they are made.
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
        first, kept = x.ndim - tables.ndim, x.ndim - tables.ndim + tables.rows
        axes = tuple(range(kept, x.ndim))
        if tables.nbytes > MOST_BYTES:
            raise Declined(f"its labels are {tables.nbytes} bytes, more than {MOST_BYTES}")
        nbytes = table_bytes = tables.n * sum(op.state_bytes for op in ops)
        if kept:
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
                index[:kept],
                *of_block,
                origin(x.chunks, axes, index) if positional else None,
            )
            for index, of_block in zip(indices, of_blocks, strict=True)
        ]
        in_any_order = all(op.monoid.commutative for op in ops)
        tree = not kept and in_any_order and table_bytes > TREE_BYTES
        job = LiftGroups(tuple(ops), tables.rows, tables.n, threads_for(x), _declared([x]))
        groups = [each.kept for each in extras]
        found = self._states(job, blocks, extras, groups, nbytes, tree)
        return {index: apart(ops, state) for index, (state,) in found.items()}

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
        given = spec, threads_for(x), _declared(arrays)
        futures = self._round(
            SCAN,
            _blocks(arrays, indices, spec.axis),
            [*zip(keys, _nbytes(like, indices), strict=True)],
            keys,
            job=dumps(Upsweep(op, *given)),
            spine=dumps(bases),
            then=dumps(Downsweep(op, *given)),
            places=_places(op, x, nbytes),
            nbytes=nbytes,
        )
        return wrapped(dict(zip(keys, futures, strict=True)), op, spec, x)


def _declared(arrays: Sequence[Array]) -> tuple[Any, ...]:
    return tuple(x.dtype for x in arrays)


def _indices(x: Array) -> list[Index]:
    return list(product(*map(range, x.numblocks)))


def _require_small(x: Array, axes: tuple[int, ...], state_bytes: int) -> int:
    """Return the bytes of the states over `axes`, of so many bytes a line; decline large ones."""
    counts = (x.numblocks[d] if d in axes else x.shape[d] for d in range(x.ndim))
    nbytes = math.prod(counts) * state_bytes
    if nbytes > MOST_BYTES:
        raise Declined(f"its states are {nbytes} bytes, more than {MOST_BYTES}")
    # Those of lines whose number is not known may be as many.
    return MOST_BYTES if math.isnan(nbytes) else nbytes


def _places(op: Operation, x: Array, nbytes: int) -> int:
    """Return how many workers make base sums of so many bytes; 0 if the scheduler is to."""
    # What is not of this library has no business in the scheduler.
    if op.monoid.lift is None and nbytes <= INLINE_BYTES:
        return 0
    return math.ceil(nbytes / prefixes.TAKEN_BYTES) if x.ndim > 1 and nbytes else 1


def _is_large(op: Operation, grid: BinSpec) -> bool:
    return grid.entries is None or grid.entries * op.state_bytes > TREE_BYTES


def _nbytes(x: Array, indices: Sequence[Index]) -> list[int]:
    """Return the bytes of blocks; -1 where a size is not known."""
    sizes = reduce(np.multiply.outer, map(np.asarray, x.chunks)) * x.dtype.itemsize
    known = np.where(np.isnan(sizes), -1, sizes)
    return [int(known[index]) for index in indices]


def _blocks(
    arrays: Sequence[Array], indices: Sequence[Index], axis: int | None = None
) -> list[tuple[Future, ...]]:
    """Return the futures of blocks that belong together, done.

    Of an array with fewer dimensions than the first, they are those along its leading axes, or
    along `axis`.
    """
    most = config.get("coop.collective.chunks", config.COUNT)
    if len(indices) > most:
        raise Declined(
            f"it has {len(indices)} chunks, more than the {most} of coop.collective.chunks; "
            "larger chunks are fewer"
        )
    columns = []
    with relying(), uncollected(len(indices)):
        for array in arrays:
            own: Sequence[Index] = indices
            if array.ndim < len(indices[0]):
                own = [i[: array.ndim] if axis is None else (i[axis],) for i in indices]
            columns.append(_futures(array, own))
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
    """Return the futures of chunks with those of their labels, sent to where the chunks are.

    They are data as scattered data is: opaque to the scheduler, and once for all chunks of a worker
    that have the same.
    """
    client, name = blocks[0][0].client, f"labels-{uuid.uuid4().hex}"
    who_has = client.who_has([future for (future,) in blocks])
    workers = client.scheduler_info(n_workers=-1)["workers"]
    taken: Counter[str] = Counter()
    to: dict[str, dict[Any, Any]] = {}
    keys: list[tuple[str, Any]] = []
    for (future,), (codes, places) in zip(blocks, labels, strict=True):
        if not (holders := who_has.get(future.key)):
            raise Declined(f"chunk {future.key} is not in memory")
        # Of those that run the one with the least to do; the scheduler says why there is none.
        able = [each for each in holders if workers.get(each, {}).get("status") == "running"]
        worker = min(able or holders, key=lambda each: (taken[each], each))
        taken[worker] += 1
        # Blocks with the same labels have one array of codes.
        key = name, worker, id(codes[0])
        to.setdefault(worker, {})[key] = codes, places
        keys.append((worker, key))
    for worker, data in to.items():
        _require_room(worker, workers.get(worker, {}), sum(map(_label_bytes, data.values())))

    async def send() -> list[dict[Any, Future]]:
        sent = (client._scatter(data, workers=[worker]) for worker, data in to.items())
        found: list[dict[Any, Future]] = await asyncio.gather(*sent)
        return found

    try:
        futures = dict(zip(to, client.sync(send), strict=True))
    except OSError as error:
        raise Declined(f"labels cannot be sent to a worker: {error}") from error
    return [(*each, futures[of][key]) for each, (of, key) in zip(blocks, keys, strict=True)]


def _label_bytes(labels: tuple[Any, Any]) -> int:
    (codes, _), places = labels
    return int(codes.nbytes + getattr(places, "nbytes", 0))


def _require_room(worker: str, info: Mapping[str, Any], nbytes: int) -> None:
    """Decline if a worker has no room for labels that it is to keep while a call lasts."""
    limit, taken = info.get("memory_limit"), info.get("metrics", {}).get("memory", 0)
    if limit and taken + nbytes > SHARE * limit:
        raise Declined(
            f"worker {worker} has no room for labels of {nbytes} bytes: it has taken {taken} of "
            f"{limit}"
        )


def _require_one_client(futures: Sequence[Future]) -> None:
    """Raise unless all futures belong to one client, which can wait."""
    client = futures[0].client
    if any(future.client is not client for future in futures):
        raise Declined("its chunks belong to several clients")
    if client.asynchronous:
        raise RuntimeError(
            "engine='collective' returns when the work is done, and an asynchronous client cannot "
            "wait for that; call it with a client that is not asynchronous"
        )


def _futures(x: Array, indices: Sequence[Index]) -> list[Future]:
    layer, name = x.dask.layers.get(x.name, {}), x.name
    nodes = [layer.get((name, *index)) for index in indices]
    for i, node in enumerate(nodes):
        while isinstance(node, Alias):
            node = nodes[i] = x.dask.get(node.target)
        if not isinstance(node, Future):
            raise Declined(f"the chunks of {name} are not in memory on a cluster: persist them")
    return nodes


def _states(
    ask: Callable[..., list[Any]],
    job: Job,
    blocks: Sequence[Sequence[Future]],
    extras: Sequence[Any],
    groups: Sequence[Index],
    nbytes: int,
    tree: bool = False,
) -> Groups:
    """Have the states of chunks made, and combine those of each group."""
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    group_of = np.array([numbers[group] for group in groups]) if len(numbers) > 1 else None
    found = ask(
        REDUCE,
        blocks,
        extras,
        job=dumps(job),
        tree=tree or nbytes > THROUGH_BYTES,
        groups=b"" if group_of is None else pickle.dumps(group_of),
        nbytes=nbytes,
    )
    states = combined_groups(job.ops, [part for each in found for part in each], group_of)
    return {groups[number]: [state] for number, state in states.items()}


def _round(
    function: str,
    handler: str,
    blocks: Sequence[Sequence[Future]],
    extras: Sequence[Any],
    outputs: Sequence[Any] = (),
    **message: Any,
) -> list[Any]:
    """Ask the scheduler for a round; return the states that come back, or futures of outputs."""
    message |= {"function": function, "timeout": timeout()}
    with relying():
        client = blocks[0][0].client
        message |= {"name": uuid.uuid4().hex, "client": client.id}
        require(blocks[0][0])
        _prepare(client, message["timeout"])
        with uncollected(len(blocks)):
            keys = ([future.key for future in each] for each in blocks)
            items = [*zip(range(len(blocks)), keys, extras, strict=True)]
            # Pickles of many keys that are alike are small, and quick to make.
            message["items"] = [pickle.dumps(some) for some in sliced(items)]
        answer, futures = client.sync(_ask, client, handler, outputs, message)
    if answer is None:
        _prepared.discard(client)
        raise Incompatible("the scheduler does not take part: its handlers are gone")
    if answer["status"] == "declined":
        raise _reason_of(answer)
    if answer["status"] == "error":
        _, exception, traceback = clean_exception(answer["exception"], answer["traceback"])
        raise exception.with_traceback(traceback)
    found: list[Any] = futures if outputs else [*answer["states"]]
    return found


def _reason_of(answer: Mapping[str, Any]) -> Declined:
    """Return what to raise for an answer that declines."""
    if answer.get("is_incompatible"):
        return Incompatible(answer["reason"])
    return (Silent if answer.get("is_silent") else Declined)(answer["reason"])


async def _ask(
    client: Client, handler: str, outputs: Sequence[Any], message: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[Future]]:
    """Return the scheduler's answer, and the futures of outputs."""
    leaving = _Leaving(client)
    made = (_Output(key, client, leaving) for key in outputs)
    # If no future can be made, the scheduler is not asked for anything.
    futures: list[Future] = [*islice(made, 1)]
    asked = asyncio.ensure_future(getattr(client.scheduler, handler)(**signed(message)))
    asked.add_done_callback(partial(_hold, futures))
    try:
        # What takes longer than messages do leaves time to make the futures.
        await asyncio.wait({asked}, timeout=0.002)
        while len(futures) < len(outputs):
            with uncollected(len(outputs)):
                futures += islice(made, SLICE)
            await asyncio.sleep(0)
        await asyncio.wait({asked})
    except asyncio.CancelledError:
        _leave(client, message["name"])
        raise
    finally:
        # All of them, also if the caller is interrupted meanwhile.
        futures += made
    answer = asked.result()
    if client.status in ("closing", "closed"):
        # Which the graph could not run on either.
        raise CommClosedError(f"the client was closed in the middle of {handler}")
    return answer, futures


#: What schedulers are being told.
_telling: set[asyncio.Future[Any]] = set()


def _leave(client: Client, name: str) -> None:
    """Tell the scheduler that nobody waits for a call any more; wait for no answer."""
    told = asyncio.ensure_future(getattr(client.scheduler, LEAVE)(**signed({"name": name})))
    _telling.add(told)
    told.add_done_callback(_telling.discard)
    told.add_done_callback(lambda done: done.cancelled() or done.exception())


class _Output(Future):  # type: ignore[misc]
    """The future of one of many results, which are mostly let go of together.

    A plain one then wakes the client's event loop, and sends the scheduler a message, by itself.
    """

    _cleared: bool

    def __init__(self, key: Any, client: Client, leaving: _Leaving) -> None:
        self._leaving = leaving
        super().__init__(key, client)
        # Nobody has it before it is there, and what is lost by then is told later.
        self._state.finish()

    def release(self) -> None:
        """Let go of the result; distributed calls this, from any thread."""
        self._verify_initialized()
        if not self._cleared and self.client.generation == self._generation:
            self._cleared = True
            self._leaving.add(self.key)


class _Leaving:
    """The keys of futures that are gone, on their way to the scheduler.

    There is no lock: a thread may delete futures wherever it is, also here.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keys: deque[Any] = deque()
        self._is_due = False

    def add(self, key: Any) -> None:
        """Release a key soon, with all that are added until then."""
        self._keys.append(key)
        # What finds `_release` due has added its key before that begins to take them.
        if not self._is_due:
            self._is_due = True
            self._client.loop.add_callback(self._release)

    def _release(self) -> None:
        self._is_due = False
        client = self._client
        gone: list[Any] = []
        with client._refcount_lock:
            while self._keys and len(gone) < SLICE:
                key = self._keys.popleft()
                client.refcount[key] -= 1
                if client.refcount[key] == 0:
                    del client.refcount[key]
                    gone.append(key)
        for key in gone:
            if (state := client.futures.pop(key, None)) is not None:
                state.cancel()
        if gone and client.status != "closed":
            message = {"op": "client-releases-keys", "keys": gone, "client": client.id}
            client._send_to_scheduler(message)
        if self._keys and not self._is_due:
            # What the scheduler gets at a time it lets go of at a time.
            self._is_due = True
            client.loop.call_later(0.02, self._release)


def _hold(futures: list[Future], asked: asyncio.Task[Any]) -> None:
    """Hold futures, as an argument, until their round ends, also if the caller is interrupted.

    Let go before, they would be unknown to the scheduler, which then keeps what is made for them.
    """
    if not asked.cancelled():
        asked.exception()


#: The clients that have registered the plugins.
_prepared: WeakSet[Client] = WeakSet()


def _prepare(client: Client, seconds: float) -> None:
    """Let a client's cluster take part in rounds."""
    if client in _prepared:
        return
    require(client)
    try:
        if client.sync(_register, client, seconds):
            _prepared.add(client)
    except (OSError, ValueError) as error:
        # A worker died of late, or the scheduler takes no plugins.
        raise Declined(f"the cluster cannot be made to take part: {error}") from error


async def _register(client: Client, seconds: float) -> bool:
    """Register the plugins, and tell whether all workers have said in time that they have theirs.

    A worker that is silent may have no part in what is to be done.
    """
    await client.register_plugin(SchedulerRounds())
    workers = asyncio.ensure_future(client.register_plugin(WorkerRounds()))
    workers.add_done_callback(lambda done: done.cancelled() or done.exception())
    if not (await asyncio.wait({workers}, timeout=seconds))[0]:
        return False
    workers.result()
    return True
