"""The scheduler in rounds: no user's code in it, its loop free, and large states past it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import weakref
from asyncio.events import Handle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Future, Scheduler
from distributed.comm import tcp
from support.at_once import at_once
from support.clusters import (
    addresses,
    affine,
    cluster,
    eventually,
    hold_empty,
    on_scheduler,
    orphans,
    persist,
    values,
    wait_for,
)

import dask_coop as dc
from dask_coop.cluster import client as cluster_client
from dask_coop.cluster import scheduler as cluster_scheduler
from dask_coop.cluster import worker as cluster_worker
from dask_coop.cluster.scheduler import Budget, SchedulerRounds

pytestmark = pytest.mark.xdist_group("collective_scheduler")

RNG = np.random.default_rng(5)
#: Set where the scheduler runs, which is this process, and not in those of the workers.
HERE = "DASK_COOP_TEST_SCHEDULER"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Return a client of three workers with two threads each."""
    config = {"distributed.scheduler.active-memory-manager.start": False}
    with cluster(3, 2, config, memory_limit="2GB") as client:
        assert dc.sum(persist(client, np.arange(9), 3), engine="collective") == 36
        yield client


@pytest.fixture(autouse=True)
def _nothing_is_left(client: Client) -> Iterator[None]:
    yield
    hold_empty(client)


def many(client: Client, chunks: int) -> da.Array:
    """Return an array of as many chunks of one element, put where they are by no task."""
    name, workers = f"many-{time.monotonic_ns()}", addresses(client)
    held = {worker: range(chunks)[i::3] for i, worker in enumerate(workers)}

    def put(dask_worker: Any) -> None:
        mine = held[dask_worker.address]
        dask_worker.update_data({(name, i): np.array([i % 10 + 0.1]) for i in mine})

    def know(dask_scheduler: Any, client: str) -> None:
        who_has = {(name, i): [worker] for worker, mine in held.items() for i in mine}
        sizes = dict.fromkeys(who_has, 8)
        dask_scheduler.update_data(who_has=who_has, nbytes=sizes, client=client)

    client.run(put)
    # First, for they are told when their keys are known.
    graph = {(name, i): Future((name, i), client) for i in range(chunks)}
    client.run_on_scheduler(know, client=client.id)
    return da.Array(graph, name, ((1,) * chunks,), "f8")


class Longest:
    """What callbacks of event loops take of their threads, which other work makes no longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest = self.total = 0.0
        run = Handle._run

        def timed(handle: Any) -> None:
            start = time.thread_time()
            run(handle)
            taken = time.thread_time() - start
            self.longest, self.total = max(self.longest, taken), self.total + taken

        monkeypatch.setattr(Handle, "_run", timed)


@pytest.mark.parametrize("inline", [True, False])
def test_the_event_loop_is_held_for_slices_only(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    chunks = 600
    x = many(client, chunks)
    monkeypatch.setattr(cluster_client, "INLINE_BYTES", 1 << 15 if inline else 0)
    monkeypatch.setattr(cluster_worker, "SLICE", 25)
    monkeypatch.setattr(cluster_client, "SLICE", 25)
    # The scheduler runs in this process: how many tasks it knows whenever its loop comes round.
    scheduler, known = client.cluster.scheduler, list[int]()

    def look() -> None:
        if scheduler is not None:
            known.append(len(scheduler.tasks))
            client.loop.add_callback(look)

    client.loop.add_callback(look)
    now = dc.cumsum(x, engine="collective")
    assert len(scheduler.tasks) == known[0] + chunks
    scheduler = None
    assert max(np.diff(known)) <= 25
    del now
    scans, releases = [], []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with monkeypatch.context() as patch:
                taken = Longest(patch)
                now = dc.cumsum(x, engine="collective")
            scans.append(taken.longest / taken.total)
            expected = np.cumsum([i % 10 + 0.1 for i in range(chunks)])
            np.testing.assert_allclose(values(client, now[::99]), expected[::99], rtol=1e-12)
            with monkeypatch.context() as patch:
                taken = Longest(patch)
                del now
                eventually(lambda: sum(map(len, on_scheduler(client).values())) == chunks)
            releases.append(taken.longest / taken.total)
    finally:
        gc.enable()
    # What is done for the first time, and what a busy machine does, may take longer at times.
    assert min(scans) < 1 / 8
    assert min(releases) < 1 / 8
    assert fallbacks() == []


def test_what_is_made_known_is_no_reason_to_look_for_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    before = gc.get_threshold()
    looked: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        looked.append(info["generation"])

    gc.set_threshold(700, 2, 2)
    gc.collect()
    gc.callbacks.append(note)
    try:
        kept = []
        for _ in range(100):
            with cluster_worker.uncollected(500):
                kept.append([[i] for i in range(500)])
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        # As tests begin.
        gc.freeze()
    assert gc.isenabled()
    assert max(looked) == 1
    assert gc.is_tracked(kept[0][0])


def test_what_is_let_go_of_is_no_reason_to_look_for_garbage(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = many(client, 600)
    released: list[tuple[int, bool]] = []
    release = Scheduler._client_releases_keys

    def noting(self: Any, keys: Any, **given: Any) -> None:
        released.append((len(keys), gc.isenabled()))
        release(self, keys, **given)

    now = dc.cumsum(x, engine="collective")
    small = persist(client, np.arange(9), 3)
    # The scheduler runs in this process.
    monkeypatch.setattr(Scheduler, "_client_releases_keys", noting)
    del now
    eventually(lambda: sum(n for n, _ in released) == 600)
    assert not any(looks for n, looks in released if n >= cluster_worker.MANY)
    released.clear()
    del small
    eventually(lambda: sum(n for n, _ in released) == 3)
    assert all(looks for _, looks in released)
    assert fallbacks() == []


def test_garbage_does_not_stay_with_what_is_made_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)

    class Thing:
        def __init__(self) -> None:
            self.me = self

    thing = weakref.ref(Thing())
    try:
        with cluster_worker.uncollected(500):
            assert thing() is None
        # Few chunks are no reason to look for garbage, either.
        thing = weakref.ref(Thing())
        with cluster_worker.uncollected(cluster_worker.MANY - 1):
            assert thing() is not None
            assert gc.isenabled()
    finally:
        # As tests begin.
        gc.freeze()


def test_more_chunks_than_the_configuration_allows_are_a_graph(
    client: Client, fallbacks: Any
) -> None:
    x = persist(client, np.arange(8), 2)
    with dask.config.set({"coop.collective.chunks": 3}):
        assert dc.sum(x, engine="collective") == 28
        now = dc.cumsum(x, engine="collective")
    np.testing.assert_array_equal(values(client, now), np.arange(8).cumsum())
    assert all("it has 4 chunks, more than the 3 of coop.coll" in said for said in fallbacks())
    with dask.config.set({"coop.collective.chunks": 4}):
        assert dc.sum(x, engine="collective") == 28
    assert fallbacks() == []


def picky(folder: Path) -> dc.Monoid:
    """Return maps y -> a y + b whose combination leaves a file if it is in the scheduler."""

    def combine(f: Any, g: Any) -> Any:
        if HERE in os.environ:
            (folder / "combined in the scheduler").touch()
        return f[0] * g[0], g[0] * f[1] + g[1]

    return dc.Monoid(
        "picky", combine, (1, 0), "f8,f8", lift=lambda x: (x, x + 1), finalize=lambda f: f[1]
    )


def test_a_users_monoid_is_not_combined_in_the_scheduler(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monoid = picky(tmp_path)
    for host, chunks in ((RNG.normal(size=70), 1), (RNG.normal(size=(40, 5)), (1, 2))):
        x = persist(client, host, chunks)
        lazy = values(client, dc.scan(x, monoid, axis=0))
        with monkeypatch.context() as patch:
            patch.setenv(HERE, "1")
            now = dc.scan(x, monoid, axis=0, engine="collective")
        np.testing.assert_array_equal(values(client, now), lazy)
        del now
    assert fallbacks() == []
    assert list(tmp_path.iterdir()) == []


def test_what_a_users_combination_raises_is_raised_by_the_call(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HERE, "1")

    def combine(a: Any, b: Any) -> Any:
        if HERE not in os.environ:
            raise OverflowError("no more of these")
        return a + b

    monoid = dc.Monoid("fails", combine, 0, "f8")
    # Chunks of one element are not combined before their states are.
    x = persist(client, np.arange(6.0), 1)
    with pytest.raises(OverflowError, match="no more of these"):
        dc.scan(x, monoid, engine="collective")
    assert fallbacks() == []
    assert len(addresses(client)) == 3
    assert dc.sum(x, engine="collective") == 15


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of what the scheduler, and the clients beside it, read from now on."""
    sizes: list[int] = []
    original = tcp.read_bytes_rw

    async def noting(stream: Any, n: int) -> Any:
        sizes.append(n)
        return await original(stream, n)

    monkeypatch.setattr(tcp, "read_bytes_rw", noting)
    return sizes


@pytest.fixture
def met(client: Client) -> Iterator[Callable[[], list[int]]]:
    """Return what takes the bytes of states that have come to each worker."""

    def note(dask_worker: Any) -> None:
        handler = dask_worker.handlers[cluster_worker.MEET]
        dask_worker.met, dask_worker.meet = 0, handler

        async def meet(**message: Any) -> Any:
            for _, fields in cluster_worker.opened(message["share"]):
                dask_worker.met += sum(field.nbytes for field in fields)
            return await handler(**message)

        dask_worker.handlers[cluster_worker.MEET] = meet

    def take(dask_worker: Any) -> int:
        found, dask_worker.met = dask_worker.met, 0
        return int(found)

    def restore(dask_worker: Any) -> None:
        dask_worker.handlers[cluster_worker.MEET] = dask_worker.meet

    client.run(note)
    yield lambda: list(client.run(take).values())
    client.run(restore)


def test_large_states_of_scans_go_from_worker_to_worker(
    client: Client, fallbacks: Any, read: list[int], met: Callable[[], list[int]]
) -> None:
    # Sums of float64 keep what is rounded off, so 16 bytes for each of a chunk's lines.
    x = client.persist(da.random.default_rng(5).normal(size=(34, 123_000), chunks=(1, -1)))
    wait_for(x)
    assert 0.99 * cluster_client.MOST_BYTES < 34 * 123_000 * 16
    affines = affine(lambda x: (x, x + 1))
    for call in (dc.cumsum, lambda x, axis, **kw: dc.scan(x, affines, axis=axis, **kw)):
        read.clear()
        now = call(x, axis=0, engine="collective")
        assert sum(read) < 200_000
        # Each of them to one worker, and to each a third.
        came = met()
        assert sum(came) == 34 * 123_000 * 16
        assert max(came) == min(came)
        assert fallbacks() == []
        lazy = client.persist(call(x, axis=0))
        assert bool(values(client, (now == lazy).all()))
        del now, lazy


def test_large_states_of_reductions_are_combined_by_workers(
    client: Client, fallbacks: Any, read: list[int]
) -> None:
    host = RNG.integers(-9, 9, (12, 50_000)).astype("f8")
    x = persist(client, host, (1, 25_000))
    affines = affine(lambda x: (x, x + 1))
    for call, of_state in (
        (dc.sum, 16),
        (dc.argmax, 16),
        (lambda x, axis, **kw: dc.reduce(x, affines, axis=axis, **kw), 16),
    ):
        lazy = values(client, call(x, axis=0))
        read.clear()
        now = call(x, axis=0, engine="collective")
        # The scheduler reads it, and then the client.
        assert sum(read) < 2 * (50_000 * of_state) + 100_000
        np.testing.assert_array_equal(now, lazy)
    assert fallbacks() == []


def test_workers_begin_before_all_are_asked(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = RNG.normal(size=24)
    x = persist(client, host, 1)
    monkeypatch.setattr(cluster_client, "INLINE_BYTES", 0)
    order: list[str] = []
    register, send = SchedulerRounds._register, cluster_scheduler.send

    async def registered(self: Any, *args: Any) -> Any:
        order.append("register")
        return await register(self, *args)

    async def sent(server: Any, address: str, handler: str, **message: Any) -> Any:
        order.append(handler)
        return await send(server, address, handler, **message)

    monkeypatch.setattr(SchedulerRounds, "_register", registered)
    monkeypatch.setattr(cluster_scheduler, "send", sent)
    now = dc.cumsum(x, engine="collective")
    np.testing.assert_allclose(values(client, now), host.cumsum())
    assert order == ["register", cluster_worker.SWEEP] * 3
    assert fallbacks() == []


def test_those_who_have_begun_do_not_wait_for_who_cannot(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = RNG.normal(size=24)
    x = persist(client, host, 1)
    monkeypatch.setattr(cluster_client, "INLINE_BYTES", 0)
    register, tried = SchedulerRounds._register, list[str]()

    async def registered(self: Any, address: str, *args: Any) -> Any:
        tried.append(address)
        if len(tried) == 3:
            return cluster_worker.declined(f"{address} does not want to")
        return await register(self, address, *args)

    monkeypatch.setattr(SchedulerRounds, "_register", registered)
    with dask.config.set({"coop.collective.timeout": 300}):
        start = time.monotonic()
        now = dc.cumsum(x, engine="collective")
    assert time.monotonic() - start < 30
    (said,) = fallbacks()
    assert f"{tried[2]} does not want to" in said
    np.testing.assert_allclose(values(client, now), host.cumsum())


LABELS = RNG.integers(-1, 40, 60_000)


def by_label(x: da.Array, labels: Any, **options: Any) -> Any:
    return dc.groupby_reduce(x, labels, func=["sum", "argmax"], **options)[0]


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((60_000,), 7000), ((3, 60_000), (2, 7000)), ((3, 20_000, 3), (2, 7000, 3))],
)
def test_large_labels_are_data_beside_the_chunks(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch, shape: Any, chunks: Any
) -> None:
    # Sums of whole numbers are the same in any order.
    host = RNG.integers(-99, 99, shape).astype("f8")
    x = persist(client, host, chunks)
    labels = LABELS.reshape(-1, 3) if len(shape) > 2 else LABELS
    expected = values(client, by_label(x, labels))
    monkeypatch.setattr(cluster_client, "THROUGH_BYTES", 1000)
    sent: list[Any] = []
    ask = cluster_client._ask

    def noting(client: Client, handler: str, outputs: Any, message: dict[str, Any]) -> Any:
        sent.append(sum(map(len, message["items"])))
        return ask(client, handler, outputs, message)

    monkeypatch.setattr(cluster_client, "_ask", noting)
    for found, wanted in zip(by_label(x, labels, engine="collective"), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert len(sent) == 1
    assert sent[0] < 3000
    assert fallbacks() == []


def test_large_labels_go_to_all_that_have_the_chunks(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "THROUGH_BYTES", 1000)
    x = persist(client, np.ones(60_000), 7000, everywhere=True)
    to: list[Any] = []
    scatter = Client._scatter

    def noting(self: Client, data: Any, workers: Any, **given: Any) -> Any:
        to.extend(workers)
        return scatter(self, data, workers=workers, **given)

    monkeypatch.setattr(Client, "_scatter", noting)
    by_label(x, LABELS, engine="collective")
    assert {*to} == {*addresses(client)}
    assert fallbacks() == []


def test_threads_of_a_worker_send_one_table(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = persist(client, RNG.random(60_000), 1000)
    came: list[int] = []
    opened = cluster_scheduler.SchedulerRounds._reduce

    async def noting(self: Any, *args: Any, **message: Any) -> Any:
        packed, answers = await opened(self, *args, **message)
        came.extend(sum(map(len, each["states"].frames)) for each in answers)
        return packed, answers

    # The scheduler runs in this process.
    monkeypatch.setattr(cluster_scheduler.SchedulerRounds, "_reduce", noting)
    counts, _ = dc.histogram(x, 30_000, (0, 1), engine="collective")
    assert counts.sum() == 60_000
    assert len(came) == len(addresses(client))
    assert max(came) < 1.2 * 30_000 * 8
    assert fallbacks() == []


def test_a_direct_clients_large_labels_do_not_pass_the_scheduler(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    monkeypatch.setattr(cluster_client, "THROUGH_BYTES", 1000)
    labels = np.tile(LABELS, 10)
    host = RNG.integers(-99, 99, labels.size).astype("f8")
    with Client(client.scheduler.address, set_as_default=False, direct_to_workers=True) as direct:
        x = persist(direct, host, 70_000)
        expected = values(direct, by_label(x, labels))
        dc.sum(x, engine="collective")
        read.clear()
        found = by_label(x, labels, engine="collective")
        # Their codes have a byte each; the rest is heartbeats and small messages.
        assert sum(read) < labels.size / 3
        for pair in zip(found, expected, strict=True):
            np.testing.assert_array_equal(*pair)
        del x
    assert fallbacks() == []


def test_callers_of_large_states_wait_in_line(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    host = RNG.normal(size=(12, 30_000))
    x = persist(client, host, (1, -1))
    lazy = values(client, dc.cumsum(x, 0))
    # There is room for two of them.
    at_a_time, most = 0, 0
    send = cluster_scheduler.send

    async def counting(*args: Any, **message: Any) -> Any:
        nonlocal at_a_time, most
        at_a_time += 1
        most = max(most, at_a_time)
        answer = await send(*args, **message)
        at_a_time -= 1
        return answer

    monkeypatch.setattr(cluster_scheduler, "send", counting)
    rounds = client.cluster.scheduler.plugins[SchedulerRounds.name]
    monkeypatch.setattr(rounds._budget, "_left", 12 * 30_000 * 16 * 2)
    read.clear()
    found = at_once(lambda _: dc.cumsum(x, 0, engine="collective"), range(8))
    assert sum(read) < 1_000_000
    # A message to each worker.
    assert most == 2 * 3
    for now in found:
        np.testing.assert_array_equal(values(client, now), lazy)
    assert fallbacks() == []


def test_who_comes_first_to_the_budget_goes_first() -> None:
    order: list[str] = []

    async def run() -> None:
        budget = Budget(10, "room")

        async def hold(name: str, nbytes: int, fails: bool = False) -> None:
            async with budget.hold(nbytes, 60):
                order.append(f"+{name}")
                await asyncio.sleep(0.01)
                order.append(f"-{name}")
                if fails:
                    raise LookupError(name)

        calls = (hold("a", 6), hold("b", 6, fails=True), hold("c", 1), hold("all", 99))
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in done] == [type(None), LookupError, type(None), type(None)]

    asyncio.run(run())
    # c would have had room beside a, but came after b.
    assert order[:3] == ["+a", "-a", "+b"]
    assert order[-2:] == ["+all", "-all"]


@pytest.mark.parametrize("inline", [True, False])
def test_a_worker_is_lost_between_slices(
    fallbacks: Any, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    with cluster(3, memory_limit="1GB") as client:
        host = RNG.normal(size=24)
        x = persist(client, host, 1)
        lazy = values(client, dc.cumsum(x))
        monkeypatch.setattr(cluster_client, "INLINE_BYTES", 1 << 15 if inline else 0)
        pids, done = client.run(os.getpid), []
        register = SchedulerRounds._register

        async def registered(self: Any, address: str, *args: Any) -> Any:
            bad = await register(self, address, *args)
            if not done:
                # What it is to make is known, and what the others are is not.
                done.append(address)
                os.kill(pids[address], signal.SIGKILL)
                while address in self._scheduler.workers:
                    await asyncio.sleep(0.01)
            return bad

        monkeypatch.setattr(SchedulerRounds, "_register", registered)
        now = dc.cumsum(x, engine="collective")
        (said,) = fallbacks()
        assert f"{done[0]} was lost" in said
        np.testing.assert_array_equal(values(client, now), lazy)
        eventually(lambda: orphans(client) == {})
        del now, x
        hold_empty(client)
