"""Schedulers with few connections, with a short patience, and of clusters that adapt."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
from distributed import Client
from support.clusters import (
    HALVES,
    addresses,
    affine_of_line,
    eventually,
    in_this_process,
    scatter,
    values,
)

import dask_coop as dc
from soak.phase import Found, Phase
from soak.watch import Watched, wait


@contextmanager
def connected(workers: int, **options: Any) -> Iterator[Client]:
    """Yield a client of workers that are threads of this process, with connections all the same."""
    given = {"protocol": "tcp://", "host": "127.0.0.1", "silence_logs": 60, **options}
    # What looks for a scheduler that has closed gives up soon.
    soon = dask.config.set({"distributed.comm.timeouts.connect": "1s"})
    with soon, in_this_process(workers, **given) as client:
        yield client


def spread(client: Client, host: Any) -> da.Array:
    """Return an array in chunks of six, scattered over all workers in turn."""
    return scatter(client, host.reshape(-1, 6))


def slowly(seconds: float) -> dc.Monoid:
    """Return a sum that takes its time over each chunk."""

    def lift(part: Any) -> Any:
        # What a monoid is probed with is smaller.
        if part.size > 2:
            time.sleep(seconds)
        return part

    return dc.Monoid("slow", np.add, 0, "f8", lift=lift, commutative=True)


#: Connections of the scheduler, of which collectives have half, its workers, and its callers.
CONNECTIONS, POOLED, CALLERS = 16, 6, 12


def few_connections(thread: Watched, found: Found, size: int) -> None:
    """Have many callers call at a time, each so often."""
    host = np.arange(72.0) % 11 - 5
    calls = [
        ("scan, own monoid", partial(dc.scan, monoid=HALVES, axis=0), affine_of_line(host)),
        ("scan, slow", partial(dc.scan, monoid=slowly(0.02), axis=0), host.cumsum()),
        ("cumsum", partial(dc.cumsum, axis=0), host.cumsum()),
        ("sum", dc.sum, host.sum()),
        (
            "histogram, 40000 bins",
            lambda x, **kw: dc.histogram(x, 40_000, (-9, 9), **kw)[0],
            np.histogram(host, 40_000, (-9, 9))[0],
        ),
    ]

    def call(client: Client, dice: random.Random, thread: Watched) -> None:
        with thread.doing("persist"):
            x = spread(client, host)
        for _ in range(size):
            name, function, expected = dice.choice(calls)
            with thread.doing(name):
                found.call(
                    name,
                    lambda f=function: values(client, f(x, engine="collective")),
                    expected,
                )

    limit = mock.patch("distributed.scheduler.get_fileno_limit", return_value=2 * CONNECTIONS)
    with thread.doing("to call"), limit, connected(POOLED) as client:
        pool = client.cluster.scheduler.rpc
        found.require(pool.limit == CONNECTIONS, f"the scheduler has {pool.limit} connections")
        callers = [
            Watched(f"caller {i}", partial(call, client, random.Random(i))) for i in range(CALLERS)
        ]
        late = wait(callers, 60)
        found.faults.extend(late)
        found.faults.extend(each.failure for each in callers if each.failure)
        found.count("callers at a time", CALLERS)
        found.count("workers", POOLED)
        found.count("connections", CONNECTIONS)


POOL = Phase(
    "pool",
    "However few connections a scheduler has, calls at the same time all end.",
    few_connections,
    20,
)

#: Seconds after which the scheduler would close the cluster, and of a call.
IDLE, LONG = 0.6, 2.0


def short_patience(thread: Watched, found: Found, size: int) -> None:
    """Call for longer than the scheduler waits, then wait for it to close."""
    host = np.arange(36)
    for function, expected in [(dc.reduce, host.sum()), (dc.scan, host.cumsum())][:size]:
        with (
            thread.doing(f"{function.__name__}, then idle"),
            connected(2, scheduler_kwargs={"idle_timeout": f"{IDLE}s"}) as client,
        ):
            scheduler, x = client.cluster.scheduler, spread(client, host)
            call = partial(function, x, slowly(LONG / 3), engine="collective")
            found.call(function.__name__, lambda call=call, c=client: values(c, call()), expected)
            ended = time.monotonic()
            found.require(scheduler.status.name == "running", "the cluster closed during a call")
            # It would look for the scheduler when that has closed.
            client.close()
            closed = partial(is_closed, scheduler)
            eventually(closed, 20, lambda s=scheduler: f"closed, but {s.status.name}")
            found.count("clusters that closed when they were idle")
            took = time.monotonic() - ended
            found.require(took > IDLE / 2, f"the cluster closed {took:.2f} s after a call")


def is_closed(scheduler: Any) -> bool:
    return bool(scheduler.status.name == "closed")


PATIENCE = Phase(
    "idle",
    "A cluster is not idle during a call, and closes when it is idle afterwards.",
    short_patience,
    2,
)

#: Workers of a cluster that adapts, at least and at most, and the seconds between two looks at it.
FEW, MANY, INTERVAL = 1, 3, 0.1


def adapting(thread: Watched, found: Found, size: int) -> None:
    """Call while a cluster would close workers, then have it close them."""
    host = np.arange(72)
    with thread.doing("to start"), connected(MANY) as client:
        for i in range(size):
            function, expected = [(dc.reduce, host.sum()), (dc.scan, host.cumsum())][i % 2]
            with thread.doing(f"{function.__name__}, then to adapt"):
                client.cluster.scale(MANY)
                eventually(lambda: len(addresses(client)) == MANY)
                x, before = spread(client, host), addresses(client)
                adaptive = client.cluster.adapt(
                    minimum=FEW, maximum=MANY, interval=f"{INTERVAL}s", wait_count=2
                )
                made = function(x, slowly(0.3), engine="collective")
                now = addresses(client)
                found.require(now == before, f"workers of a call were closed: {before}, {now}")
                found.call(function.__name__, partial(values, client, made), expected)
                eventually(lambda: len(addresses(client)) == FEW, 30, lambda: addresses(client))
                adaptive.stop()
                found.count("workers closed when they had nothing to do", MANY - FEW)
                # What they had has moved, also what no task could make again.
                found.call("what it made", partial(values, client, made), expected)


ADAPTIVE = Phase(
    "adaptive",
    "An adaptive cluster closes no worker that takes part in a call, and idle ones without a loss.",
    adapting,
    6,
)
