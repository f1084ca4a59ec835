"""Workers that have less memory than what they are given."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from itertools import product
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from distributed import Client, futures_of
from support.clusters import addresses, cluster, eventually, is_whole, values, wait_for

import dask_coop as dc
from soak.phase import Found, Phase
from soak.watch import Watched

#: Workers, and what each may take: its process has some 170 MB before it has any chunk.
WORKERS, LIMIT = 2, "450MB"
#: Rows and columns of a chunk: 8 MB.
ROWS, COLUMNS = 1000, 1000
#: Of data that is scattered, and of data that tasks make, each; with either nothing else has room.
CHUNKS = 24


def host_of(chunks: int) -> Any:
    """Return 0, 1, 2, ... row by row."""
    return np.arange(chunks * ROWS * COLUMNS, dtype="f8").reshape(-1, COLUMNS)


def scatter(client: Client, host: Any) -> da.Array:
    """Return data that no task could make, on all workers in turn."""
    name, workers = f"scattered-{uuid4()}", addresses(client)
    parts = host.reshape(-1, ROWS, COLUMNS)
    # One by one, as what does not fit is spilled while it comes.
    graph = {
        (name, i, 0): client.scatter(part, workers=[workers[i % len(workers)]], hash=False)
        for i, part in enumerate(parts)
    }
    return da.Array(graph, name, ((ROWS,) * len(parts), (COLUMNS,)), "f8")


def persist(client: Client, host: Any) -> da.Array:
    """Return data that tasks make."""
    lazy = da.arange(host.size, chunks=ROWS * COLUMNS, dtype="f8").reshape(host.shape)
    x = client.persist(lazy)
    wait_for(x)
    return x


def pids(client: Client) -> dict[Any, int]:
    return {name: nanny.pid for name, nanny in client.cluster.workers.items()}


def spilled(dask_worker: Any) -> int:
    return len(dask_worker.data.slow)


def ends(y: Any) -> Any:
    """Return the last row of each chunk of a scan, for which all before it has to be there."""
    return y[ROWS - 1 :: ROWS]


def group_sums(host: Any) -> Any:
    return np.stack([host[:, k::7].sum(1) for k in range(7)], 1)


EDGES = {"bins": 100, "range": (0, 1e7)}
LABELS = np.arange(COLUMNS) % 7

#: Functions, beside the same of NumPy; the size of the phase is how many of them it calls.
CALLS = [
    ("sum", dc.sum, np.sum),
    ("describe", lambda x, **kw: dc.describe(x, **kw).std, np.std),
    ("median", dc.median, np.median),
    (
        "histogram",
        lambda x, **kw: dc.histogram(x, **EDGES, **kw)[0],
        lambda a: np.histogram(a, **EDGES)[0],
    ),
    ("topk", partial(dc.topk, k=3, axis=0), lambda a: a[:-4:-1]),
    (
        "groupby_reduce",
        lambda x, **kw: dc.groupby_reduce(x, LABELS, func="sum", axis=-1, **kw)[0],
        group_sums,
    ),
    ("cummax", lambda x, **kw: ends(dc.cummax(x, 0, **kw)), ends),
    ("cumsum", lambda x, **kw: ends(dc.cumsum(x, 0, **kw)), lambda a: ends(a.cumsum(0))),
]


def run(thread: Watched, found: Found, size: int) -> None:
    """Call functions of data beyond memory; in a whole run kill a worker in the middle of one."""
    with thread.doing("NumPy's results"):
        host = host_of(CHUNKS)
        expected = {name: numpy(host) for name, _, numpy in CALLS[:size]}
    with thread.doing("to start"), cluster(WORKERS, 1, memory_limit=LIMIT) as client:
        with thread.doing("to scatter"):
            given = scatter(client, host)
        with thread.doing("to persist"):
            made = persist(client, host)
        before = pids(client)
        found.count("MB of chunks", 2 * host.nbytes // 10**6)
        for (name, function, _), (words, x), engine in product(
            CALLS[:size], (("scattered", given), ("persisted", made)), ("collective", "auto")
        ):
            told = f"{name} of {words} chunks, engine={engine!r}"
            with thread.doing(told):
                call = partial(function, x, engine=engine)
                found.call(told, lambda call=call: values(client, call()), expected[name])
            now = pids(client)
            found.require(now == before, f"a worker died of {told}: {before}, then {now}")
            before = now
        found.count("chunks spilled at the end", sum(client.run(spilled).values()))
        with thread.doing("to have scattered data back"):
            for i, future in enumerate(futures_of(given)):
                block = host[i * ROWS : (i + 1) * ROWS]
                found.call(f"block {i}", future.result, block)
            del given, future
        if size == len(CALLS):
            with thread.doing("a call whose worker is killed"):
                kill(client, made, found)


def slowly(part: Any) -> Any:
    # Of a chunk it gets a piece at a time.
    time.sleep(part.size * 1e-7)
    return part


def kill(client: Client, x: da.Array, found: Found) -> None:
    """Kill a worker in the middle of a call of what tasks can make again."""
    before = pids(client)
    name = min(before)
    total = dc.Monoid("slow", np.add, 0, "f8", lift=slowly, commutative=True)
    killer = Watched("killer", lambda _: (time.sleep(0.3), os.kill(before[name], signal.SIGKILL)))
    killer.start()
    found.call(
        "sum while a worker is killed",
        lambda: values(client, dc.reduce(x, total, engine="collective")),
        x.size * (x.size - 1) / 2,
    )
    killer.join()
    found.count("workers killed by the run")
    eventually(lambda: is_whole(client))
    now = pids(client)
    found.require(
        {each for each in before if now[each] != before[each]} == {name},
        f"of {before} the run killed {name}, and then there were {now}",
    )


MEMORY = Phase(
    "memory",
    "No worker dies of a call on more data than memory, and scattered data is still there.",
    run,
    len(CALLS),
)
