"""Workers that are stopped: calls go on without them, and nothing comes late or stays."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, futures_of
from support.clusters import (
    addresses,
    cluster,
    eventually,
    hold_empty,
    on_workers,
    orphans,
    values,
    wait_for,
)

import dask_coop as dc

pytestmark = [
    pytest.mark.xdist_group("silence"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LINE, BOTH = np.arange(12), np.arange(24)

#: Seconds, above three heartbeats.
TIMEOUT = 2


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    config = {"distributed.scheduler.active-memory-manager.start": False}
    with cluster(2, 1, config, memory_limit="1GB") as client:
        # What is imported and compiled at first may keep a worker from its heartbeats for a while.
        assert dc.sum(spread(client), engine="collective") == BOTH.sum()
        yield client


@pytest.fixture(autouse=True)
def _short(client: Client) -> Iterator[None]:
    """Wait for two seconds in each test, and hold it to leave nothing behind."""
    with dask.config.set({"coop.collective.timeout": f"{TIMEOUT} s"}):
        yield
    hold_empty(client)


def spread(client: Client) -> da.Array:
    """Return an array with chunks on both workers, the first on the first."""
    x = da.from_array(LINE, chunks=4)
    parts = [client.persist(x, workers=[worker]) for worker in addresses(client)[:1]]
    y = da.from_array(LINE + 12, chunks=4)
    parts += [client.persist(y, workers=[worker]) for worker in addresses(client)[1:]]
    both = client.persist(da.concatenate(parts))
    wait_for(both)
    return both


@contextmanager
def stopped(client: Client, worker: str) -> Iterator[None]:
    pid = client.run(os.getpid, workers=[worker])[worker]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


CALLS: list[tuple[Callable[..., Any], Any]] = [
    (lambda x, **kw: dc.sum(x, **kw), BOTH.sum()),
    # In a tree, which begins at the first worker.
    (
        lambda x, **kw: dc.histogram(x, 50_000, (0, 24), **kw)[0],
        np.histogram(BOTH, 50_000, (0, 24))[0],
    ),
    (lambda x, **kw: dc.cumsum(x, **kw), BOTH.cumsum()),
]


@pytest.mark.parametrize(("call", "expected"), CALLS, ids=["sum", "histogram", "cumsum"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_stopped_worker_is_not_waited_for(
    client: Client, fallbacks: Any, call: Callable[..., Any], expected: Any, which: int
) -> None:
    x = spread(client)
    victim = addresses(client)[which]
    with stopped(client, victim), dask.config.set({"coop.fallback": "raise"}):
        start = time.monotonic()
        with pytest.raises(dc.Declined, match=f"{victim} has not been heard of for 2 s: it is sto"):
            call(x, engine="collective")
        assert TIMEOUT / 2 < time.monotonic() - start < 10 * TIMEOUT
    # It goes on, and so does what is asked of it.
    now = call(x, engine="collective")
    np.testing.assert_array_equal(values(client, now), expected)
    assert fallbacks() == []
    assert len(addresses(client)) == 2
    eventually(lambda: orphans(client) == {})


def test_a_call_becomes_a_graph_which_ends_when_the_worker_goes_on(
    client: Client, fallbacks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    x = spread(client)
    victim = addresses(client)[0]
    found: list[Any] = []
    call = threading.Thread(target=lambda: found.append(dc.sum(x, engine="collective")))
    with stopped(client, victim):
        call.start()
        eventually(lambda: "has not been heard of" in caplog.text)
        assert found == []
    call.join()
    assert found == [BOTH.sum()]
    # Also to who has asked for nothing, for it may take as long as that.
    seen = [r for r in caplog.records if "runs as a graph" in r.getMessage()]
    assert {record.levelname for record in seen} == {"WARNING"}
    (said,) = fallbacks()
    assert f"worker {victim} has not been heard of" in said
    assert (
        "waits until it goes on, or is lost after distributed.scheduler.worker-ttl, 300 s" in said
    )


def test_what_a_stopped_worker_makes_late_is_removed(client: Client, tmp_path: Path) -> None:
    def lift(x: Any) -> Any:
        # What a monoid is probed with is smaller.
        if x.size > 2:
            (tmp_path / f"{time.monotonic_ns()}-{os.getpid()}").touch()
            time.sleep(0.3)
        return x

    slow = dc.Monoid("slow", np.add, 0, "i8", lift=lift, commutative=True)
    x = spread(client)
    mine = [future.key for future in futures_of(x)]
    victim = addresses(client)[1]
    pid = client.run(os.getpid, workers=[victim])[victim]

    def stop() -> None:
        # It has three chunks to lift in the first round, and is in the second.
        eventually(lambda: len(list(tmp_path.glob(f"*-{pid}"))) > 3)
        os.kill(pid, signal.SIGSTOP)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        with (
            dask.config.set({"coop.fallback": "raise"}),
            pytest.raises(dc.Declined, match=f"{victim} has not been heard of"),
        ):
            dc.scan(x, slow, engine="collective")
    finally:
        thread.join()
        os.kill(pid, signal.SIGCONT)
    # Time for what is left of its three chunks.
    time.sleep(1.5)
    eventually(lambda: orphans(client) == {})
    assert set().union(*on_workers(client).values()) == set(mine)
    now = dc.scan(x, slow, engine="collective")
    np.testing.assert_array_equal(values(client, now), BOTH.cumsum())


def test_a_worker_that_works_for_longer_is_waited_for(client: Client, fallbacks: Any) -> None:
    def lift(x: Any) -> Any:
        time.sleep(1 if x.size > 2 else 0)
        return x

    slow = dc.Monoid("slow", np.add, 0, "i8", lift=lift, commutative=True)
    # Three chunks, one after another.
    assert dc.reduce(spread(client), slow, engine="collective") == BOTH.sum()
    assert fallbacks() == []


def test_a_stopped_worker_that_has_no_part_delays_the_first_call_only(
    client: Client, fallbacks: Any
) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other:
        here, victim = addresses(client)
        # Other clients have not registered it yet.
        client.unregister_worker_plugin("dask-coop-rounds")
        x = other.persist(da.from_array(LINE, chunks=4), workers=[here])
        wait_for(x)
        with stopped(client, victim):
            assert dc.sum(x, engine="collective") == LINE.sum()
            start = time.monotonic()
            assert dc.sum(x, engine="collective") == LINE.sum()
            assert time.monotonic() - start < TIMEOUT
        assert fallbacks() == []
        del x


@pytest.mark.parametrize("given", [0, -1, "soon", None])
def test_a_timeout_that_is_none(client: Client, given: Any) -> None:
    x = spread(client)
    with (
        dask.config.set({"coop.collective.timeout": given}),
        pytest.raises(ValueError, match=r"timeout must be a positive span of time such as .*, got"),
    ):
        dc.sum(x, engine="collective")
