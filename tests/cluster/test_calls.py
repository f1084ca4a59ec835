"""Calls under way: a small connection pool, idle and adaptive clusters, callers that leave."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import numpy as np
import pytest
from distributed import CancelledError, Client
from distributed.comm import CommClosedError
from support.clusters import eventually, in_this_process, spread, values

import dask_coop as dc
from dask_coop.cluster import scheduler as cluster_scheduler
from dask_coop.cluster.calls import Budget
from dask_coop.cluster.scheduler import SchedulerRounds
from dask_coop.errors import Absent

pytestmark = pytest.mark.xdist_group("collective_calls")


LEFT = "its caller has left, or its chunks were cancelled"


def slow(seconds: float, begun: Path | None = None) -> dc.Monoid:
    """Return a sum whose base sums workers make, and that takes its time over each chunk."""

    def lift(x: Any) -> Any:
        # What a monoid is probed with is smaller.
        if x.size > 2:
            if begun is not None:
                (begun / str(uuid4())).touch()
            time.sleep(seconds)
        return x

    return dc.Monoid("slow", np.add, 0, "i8", lift=lift, commutative=True)


def test_more_scans_at_a_time_than_the_scheduler_has_connections(
    fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed.scheduler.get_fileno_limit", lambda: 48)
    register = SchedulerRounds._register

    async def slowly(self: Any, *args: Any) -> Any:
        # As of many chunks: others send their messages between those of a call.
        await asyncio.sleep(0.01)
        return await register(self, *args)

    monkeypatch.setattr(SchedulerRounds, "_register", slowly)
    host = np.arange(36)
    with in_this_process(6) as client:
        assert client.cluster.scheduler.rpc.limit == 24
        xs = [spread(client, 6) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(dc.scan, x, slow(0.1), engine="collective") for x in xs]
            found = [values(client, call.result(60)) for call in calls]
    for each in found:
        np.testing.assert_array_equal(each, host.cumsum())
    assert fallbacks() == []


def test_more_workers_than_the_scheduler_has_connections_for(
    fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed.scheduler.get_fileno_limit", lambda: 16)
    with in_this_process(5) as client:
        x = spread(client, 5)
        now = dc.scan(x, slow(0), engine="collective")
        np.testing.assert_array_equal(values(client, now), np.arange(30).cumsum())
        (said,) = fallbacks()
        assert "connections to 5 workers at a time, and such calls may use half of" in said
        assert "the scheduler's 8" in said
        # Whose workers do not wait for one another, it asks in turn.
        assert dc.sum(x, engine="collective") == sum(range(30))
        assert fallbacks() == []


def test_a_call_is_work_to_the_scheduler(fallbacks: Any) -> None:
    with in_this_process(2, scheduler_kwargs={"idle_timeout": "0.6s"}) as client:
        scheduler = client.cluster.scheduler
        x = spread(client, 6)
        assert dc.reduce(x, slow(0.6), engine="collective") == sum(range(36))
        assert scheduler.status.name == "running"
        assert fallbacks() == []
        scheduler.idle_timeout = 99
        eventually(lambda: scheduler.idle_since)


def test_workers_of_a_call_are_not_closed_by_an_adaptive_cluster(fallbacks: Any) -> None:
    with in_this_process(3) as client:
        workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
        x = spread(client, 6)
        adaptive = client.cluster.adapt(
            minimum=1, maximum=3, interval="50ms", wait_count=2, target_duration="5s"
        )
        assert dc.reduce(x, slow(0.4), engine="collective") == sum(range(36))
        assert sorted(client.scheduler_info(n_workers=-1)["workers"]) == workers
        assert fallbacks() == []
        # Which it does when they have done their part.
        eventually(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 1)
        adaptive.stop()


@pytest.fixture
def client() -> Iterator[Client]:
    """Return a client of two workers."""
    with in_this_process(2) as client:
        assert dc.sum(spread(client, 2), engine="collective") == sum(range(12))
        yield client


def close(client: Client) -> None:
    client.close()


def interrupt(client: Client) -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.parametrize("leave", [close, interrupt])
@pytest.mark.parametrize("function", [dc.reduce, dc.scan])
def test_work_ends_with_its_caller(
    client: Client,
    fallbacks: Any,
    tmp_path: Path,
    function: Callable[..., Any],
    leave: Callable[[Client], None],
) -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = Client(client.scheduler.address, set_as_default=False)
    x, small = spread(other, 60), spread(client, 2)
    scheduler = client.cluster.scheduler

    def later() -> None:
        eventually(lambda: any(tmp_path.iterdir()))
        leave(other)

    thread = threading.Thread(target=later)
    thread.start()
    try:
        with pytest.raises((CommClosedError, KeyboardInterrupt)):
            function(x, slow(0.2, tmp_path), engine="collective")
    finally:
        thread.join()
        signal.signal(signal.SIGINT, handler)
    # It would take 6 s.
    start = time.monotonic()
    assert dc.sum(small, engine="collective") == sum(range(12))
    assert time.monotonic() - start < 3
    assert len([*tmp_path.iterdir()]) < 20
    del x
    other.close()
    eventually(lambda: len(scheduler.tasks) == 2)
    assert scheduler.plugins[SchedulerRounds.name]._budget._left == cluster_scheduler.BUDGET_BYTES
    assert fallbacks() == []


@pytest.mark.parametrize("function", [dc.reduce, dc.scan])
def test_work_ends_when_its_chunks_are_cancelled(
    client: Client, fallbacks: Any, tmp_path: Path, function: Callable[..., Any]
) -> None:
    x, small = spread(client, 60), spread(client, 2)

    def cancel() -> None:
        eventually(lambda: any(tmp_path.iterdir()))
        client.cancel(x)

    with ThreadPoolExecutor(1) as pool:
        cancelled = pool.submit(cancel)
        with pytest.raises(CancelledError):
            values(client, function(x, slow(0.2, tmp_path), engine="collective"))
        cancelled.result()
    # It would take 6 s.
    start = time.monotonic()
    assert dc.sum(small, engine="collective") == sum(range(12))
    assert time.monotonic() - start < 3
    assert len([*tmp_path.iterdir()]) < 30
    assert fallbacks() == [f"{function.__name__} runs as a graph: {LEFT}"]


def test_a_call_that_was_left_before_it_came(client: Client, fallbacks: Any) -> None:
    rounds = client.cluster.scheduler.plugins[SchedulerRounds.name]
    client.sync(rounds.leave, "early")

    async def call() -> Any:
        return await rounds._calls.run("early", client.id, asyncio.sleep(99))

    assert client.sync(call) == {"status": "declined", "reason": LEFT}


def endless(goes_on: Path) -> dc.Monoid:
    """Return a monoid that waits over each chunk until a file is there."""

    def lift(x: Any) -> Any:
        while x.size > 2 and not goes_on.exists():
            time.sleep(0.02)
        return x

    return dc.Monoid("endless", np.add, 0, "i8", lift=lift, commutative=True)


def test_a_call_that_never_ends_has_others_be_graphs(
    client: Client, fallbacks: Any, tmp_path: Path
) -> None:
    x, goes_on = spread(client, 4), tmp_path / "go"
    with ThreadPoolExecutor(1) as pool:
        never = pool.submit(dc.reduce, x, endless(goes_on), engine="collective")
        try:
            rounds = client.cluster.scheduler.plugins[SchedulerRounds.name]
            eventually(lambda: rounds._calls._tasks)
            time.sleep(0.1)
            with dask.config.set({"coop.collective.timeout": "0.5s"}):
                total = dc.sum(x, engine="collective")
            assert values(client, total) == sum(range(24))
            (said,) = fallbacks()
            assert "had no thread for it for 0.5 s (coop.collective.timeout)" in said
        finally:
            goes_on.touch()
        assert never.result(60) == sum(range(24))


def test_small_calls_pass_the_line_and_large_ones_wait_no_longer_than_the_timeout(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = spread(client, 4, 70_000)
    rounds = client.cluster.scheduler.plugins[SchedulerRounds.name]
    monkeypatch.setattr(rounds._budget, "_left", 0)
    assert dc.sum(x, engine="collective") == sum(range(280_000))
    assert fallbacks() == []
    with dask.config.set({"coop.collective.timeout": "0.2s"}):
        counts, _ = dc.histogram(x, 200_000, (0, 280_000), engine="collective")
    assert values(client, counts.sum()) == 280_000
    (said,) = fallbacks()
    assert "waited in line for 0.2 s (coop.collective.timeout)" in said
    assert "have the room for states" in said


def test_who_waits_in_line_may_give_up() -> None:
    async def run() -> None:
        budget = Budget(10, "seats")
        async with budget.hold(8, 60):
            with pytest.raises(Absent, match=r"waited in line for 0.05 s .* have the seats"):
                async with budget.hold(3, 0.05):
                    pass
            # Nobody else waits behind it.
            async with budget.hold(2, 0.05):
                assert budget._left == 0
        assert budget._left == 10

    asyncio.run(run())


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_worker_that_closes_in_the_middle_of_a_sweep_logs_nothing_of_ours(
    client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path, chunks: int
) -> None:
    x = spread(client, 4)
    worker, *_ = client.cluster.workers.values()

    def close() -> None:
        eventually(lambda: len([*tmp_path.iterdir()]) >= chunks)
        client.sync(worker.close)

    thread = threading.Thread(target=close)
    thread.start()
    # Its chunks were scattered, so a graph has nothing to make them of.
    with pytest.raises(CancelledError):
        values(client, dc.scan(x, slow(0.1, tmp_path), engine="collective"))
    thread.join()
    del x
    gc.collect()
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []
