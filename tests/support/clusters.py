"""Real clusters for the tests of collectives, and what they ask schedulers and workers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, futures_of
from distributed.core import Status

import dask_coop as dc
from dask_coop.cluster.futures import wait


@contextmanager
def cluster(
    workers: int, threads: int = 1, config: dict[str, Any] | None = None, **options: Any
) -> Iterator[Client]:
    """Yield the client, no default one, of workers in processes of their own."""
    # A nanny whose worker takes its time to come back would be closed.
    timeout = {"distributed.deploy.lost-worker-timeout": "1 hour"}
    with (
        dask.config.set(timeout | (config or {})),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=True,
            dashboard_address=":0",
            host="127.0.0.1",
            silence_logs=50,
            **options,
        ) as started,
        Client(started, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def in_this_process(workers: int, **options: Any) -> Iterator[Client]:
    """Yield a client of workers that are threads of this process."""
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=False,
            **{"dashboard_address": ":0", "silence_logs": 50, **options},
        ) as started,
        Client(started, set_as_default=False) as client,
    ):
        yield client


def spread(client: Client, chunks: int, size: int = 6) -> da.Array:
    """Return 0, 1, 2, ... scattered over all workers in turn, which no task could make again."""
    return scatter(client, np.arange(chunks * size).reshape(chunks, size))


def scatter(client: Client, parts: Any) -> da.Array:
    """Return rows as the chunks of a line, scattered over all workers in turn."""
    workers, name = addresses(client), f"spread-{uuid4()}"
    graph = {
        (name, i): client.scatter(part, workers=[workers[i % len(workers)]], hash=False)
        for i, part in enumerate(parts)
    }
    return da.Array(graph, name, (tuple(map(len, parts)),), parts.dtype)


def persist(
    client: Client, array: Any, chunks: Any, everywhere: bool = False, xp: Any = np
) -> da.Array:
    """Return an array with its chunks, of NumPy or CuPy, in memory on the cluster, made by tasks.

    Those that are `everywhere` have replicas on all workers, so that they lie beside others.
    """
    x = da.from_array(np.asarray(array), chunks=chunks)
    if xp is not np:
        meta = xp.empty((0,) * x.ndim, x.dtype)
        x = x.map_blocks(xp.asarray, dtype=x.dtype, meta=meta)
    x = client.persist(x)
    wait_for(x)
    if everywhere:
        client.replicate(futures_of(x))
    return x


def wait_for(x: Any) -> None:
    wait(futures_of(x))


def values(client: Client, lazy: Any) -> Any:
    """Compute what is lazy, by a graph."""
    return dask.compute(lazy, scheduler=client)[0]


def move(client: Client, key: Any, to: str) -> None:
    """Move a chunk to one worker, away from all others that no task has it on."""

    async def act(dask_scheduler: Any) -> None:
        task = dask_scheduler.tasks.get(key)
        if task is None or to not in dask_scheduler.workers:
            return
        held = [worker.address for worker in task.who_has or ()]
        if not held:
            return
        await dask_scheduler.gather_on_worker(to, {key: held})
        here = {worker.address for worker in task.who_has or ()}
        needed = {each.processing_on.address for each in task.waiters or () if each.processing_on}
        for worker in here - needed - {to} if to in here else ():
            dask_scheduler.request_remove_replicas(worker, [key], stimulus_id="test-move")

    client.run_on_scheduler(act)


def watch(client: Client) -> None:
    """Let every worker note what handlers of rounds are called, for `asked`."""

    def start(dask_worker: Any) -> None:
        import pickle

        from dask_coop.cluster.worker import REDUCE, SCAN, attach

        attach(dask_worker)
        calls = dask_worker.coop_calls = []

        def noting(name: str, handler: Any) -> Any:
            async def noted(**message: Any) -> Any:
                chunks = sum(len(pickle.loads(some)) for some in message["items"])
                calls.append((name, chunks, len(message.get("below", ()))))
                return await handler(**message)

            return noted

        for name in (REDUCE, SCAN):
            dask_worker.handlers[name] = noting(name, dask_worker.handlers[name])

    client.run(start)


def asked(client: Client) -> dict[str, list[tuple[str, int, int]]]:
    """Return, and forget, the calls of each worker's handlers: name, chunks, workers below."""

    def take(dask_worker: Any) -> Any:
        calls = list(dask_worker.coop_calls)
        dask_worker.coop_calls.clear()
        return calls

    return client.run(take)


def addresses(client: Client) -> list[str]:
    """Return the workers that the scheduler knows now: what a client keeps of it may be cut off."""

    def known(dask_scheduler: Any) -> list[str]:
        return sorted(dask_scheduler.workers)

    return client.run_on_scheduler(known)


def on_workers(client: Client) -> dict[str, set[Any]]:
    """Return the keys of the data on every worker."""
    return client.run(lambda dask_worker: set(dask_worker.data))


def on_scheduler(client: Client) -> dict[str, set[Any]]:
    """Return the keys of the data that the scheduler knows on every worker."""

    def keys(dask_scheduler: Any) -> Any:
        return {
            address: {task.key for task in worker.has_what}
            for address, worker in dask_scheduler.workers.items()
        }

    return client.run_on_scheduler(keys)


def orphans(client: Client) -> dict[str, set[Any]]:
    """Return the keys of data that only one side knows, by worker: there should be none."""
    held, known = on_workers(client), on_scheduler(client)
    return {w: held[w] ^ known.get(w, set()) for w in held if held[w] ^ known.get(w, set())}


def hold_empty(client: Client) -> None:
    """Hold a cluster to have no data left, on its workers or known to its scheduler."""
    gc.collect()
    eventually(lambda: not any(on_workers(client).values()), tell=lambda: on_workers(client))
    eventually(lambda: not any(on_scheduler(client).values()))


def eventually(
    check: Callable[[], Any], seconds: float = 60, tell: Callable[[], Any] = str
) -> None:
    """Wait until something is true; if it never is, tell something."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"still not: {tell()}"
        time.sleep(0.02)


def is_whole(client: Client) -> bool:
    """Tell whether all workers are there, and their nannies done with bringing them back.

    A nanny whose worker dies before that gives up.
    """
    known = set(addresses(client))
    nannies = list(client.cluster.workers.values())
    done = {n.worker_address for n in nannies if n.process and n.process.status == Status.running}
    return len(client.cluster.worker_spec) == len(known) and done == known


def evict_all(client: Client) -> None:
    """Spill all data of all workers to disk."""

    def evict(dask_worker: Any) -> None:
        while dask_worker.data.fast:
            assert dask_worker.data.evict() >= 0

    client.run(evict)


def affine(lift: Callable[[Any], tuple[Any, Any]], cuda: str = "") -> dc.Monoid:
    """Return the monoid of maps y -> a y + b, which does not commute."""
    return dc.Monoid(
        "affine",
        lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
        (1, 0),
        "f8,f8",
        lift=lift,
        finalize=lambda f: f[1],
        cuda={"lift": cuda, "combine": "{a.f0 * b.f0, b.f0 * a.f1 + b.f1}"} if cuda else None,
    )


#: By which `affine_of_line` is a scan.
HALVES = affine(
    lambda x: (np.where(x > 0, 0.5, -1.0), x.astype("f8")), "{x > 0 ? 0.5 : -1.0, double(x)}"
)


def along(function: Callable[..., Any], host: Any) -> Any:
    """Apply a function of lines to those along the first axis."""
    return np.apply_along_axis(function, 0, host)


def affine_of_line(host: Any) -> Any:
    """Return the scan of a line by y -> y / 2 + b where b is positive, else y -> -y + b."""
    found, y = [], 0.0
    for b in host:
        y = (0.5 if b > 0 else -1.0) * y + b
        found.append(y)
    return np.array(found)
