"""One worker a host, on GPUs that are made up: several in each of two worker processes."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, system
from distributed.comm.tcp import TCP
from support.clusters import asked, cluster, eventually, on_workers, orphans, wait_for, watch
from support.host_cupy import backend as host_cupy
from support.host_cupy.gpus import FakeGpus
from support.processes import beside, printed

import dask_coop as dc
from dask_coop.cluster.worker import REDUCE, SCAN

pytestmark = pytest.mark.xdist_group("hosts")

GPUS = 3
LINE = np.random.default_rng(5).integers(-50, 50, 400)
FLOATS = np.random.default_rng(6).normal(size=(60, 50))
HIGH = FLOATS > 1


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Return a client of two hosts, with a worker on each."""
    options = {"preload": ["support.host_cupy.backend"], "env": {"FAKE_GPUS": str(GPUS)}}
    with host_cupy.in_cupys_place(FakeGpus(0)), cluster(2, 2, **options) as client:
        watch(client)
        yield client


@pytest.fixture(autouse=True)
def _nothing_left(client: Client, fallbacks: Callable[[], list[str]]) -> Iterator[None]:
    """Hold every test to leave no data, and to have run in rounds what was asked to."""
    launched(client)
    asked(client)
    yield
    assert fallbacks() == []
    gc.collect()
    eventually(lambda: not any(on_workers(client).values()))
    eventually(lambda: not orphans(client))


def to_gpus(client: Client, host: Any, chunks: Any) -> da.Array:
    """Return an array with its chunks in memory on the GPUs of the workers."""
    x = client.persist(dc.to_gpu(da.from_array(host, chunks=chunks)))
    wait_for(x)
    return x


def values(client: Client, lazy: Any) -> Any:
    """Compute arrays on the cluster, by graphs, to the host."""
    return dask.compute(dc.to_host(lazy), scheduler=client)[0]


def launched(client: Client) -> dict[str, list[tuple[str, list[int]]]]:
    """Return, and forget, the launches of each worker."""

    def take() -> Any:
        made = [*host_cupy.launches]
        host_cupy.launches.clear()
        return made

    return client.run(take)


def places(client: Client, x: da.Array) -> dict[str, Counter[int]]:
    """Return how many chunks of an array are on each GPU of each worker."""
    found: dict[str, Counter[int]] = {}
    for worker, gpu in where(client, x).values():
        found.setdefault(worker, Counter())[gpu] += 1
    return found


def where(client: Client, x: da.Array) -> dict[Any, tuple[str, int]]:
    """Return the worker and the GPU of each chunk, by its index."""

    def look(name: str, dask_worker: Any) -> Any:
        return {key[1:]: y.device for key, y in dask_worker.data.items() if key[0] == name}

    found = client.run(look, x.name)
    return {index: (worker, gpu) for worker, of in found.items() for index, gpu in of.items()}


def test_chunks_are_made_on_all_gpus(client: Client) -> None:
    x = to_gpus(client, LINE, 10)
    assert len(where(client, x)) == 40
    for on in places(client, x).values():
        assert set(on) == set(range(GPUS))
        assert max(on.values()) - min(on.values()) <= 2
    shared = client.run(lambda: host_cupy.team.shared)
    assert {*shared.values()} == {(range(GPUS), 30.0)}


def test_tasks_run_where_their_chunks_lie_and_bring_others(client: Client) -> None:
    x = to_gpus(client, LINE, 10)
    y = client.persist(x * 2 + x)
    wait_for(y)
    assert where(client, y) == where(client, x)
    np.testing.assert_array_equal(values(client, x + x[::-1]), LINE + LINE[::-1])
    np.testing.assert_array_equal(values(client, x.rechunk(37)), LINE)
    np.testing.assert_array_equal(values(client, dc.cumsum(x)), LINE.cumsum())
    total, running = dask.compute(dc.sum(x), dc.to_host(dc.cummax(x)), scheduler=client)
    assert int(total) == LINE.sum()
    np.testing.assert_array_equal(running, np.maximum.accumulate(LINE))
    del y


def test_a_task_that_fails_names_itself_and_its_worker_goes_on(client: Client) -> None:
    def fail(block: Any) -> Any:
        raise ValueError("no such chunk")

    x = to_gpus(client, LINE, 100)
    with pytest.raises(ValueError, match="no such chunk"):
        values(client, x.map_blocks(fail, dtype=x.dtype, meta=x._meta))

    async def later(value: int) -> int:
        return value + 1

    def busy(dask_worker: Any) -> int:
        return sum(dask_worker.plugins["dask-coop-gpus"]._doing.values())

    # The graph has failed with its first task, and others may not have ended.
    eventually(lambda: not any(client.run(busy).values()))
    # What runs in the event loop is not a GPU's.
    assert client.submit(later, 1).result() == 2
    assert set(client.run(busy).values()) == {0}


def test_a_round_is_one_message_a_host_and_one_launch_over_its_gpus(client: Client) -> None:
    x = to_gpus(client, LINE, 10)
    assert dc.sum(x, engine="collective") == LINE.sum()
    assert dc.argmax(x, engine="collective") == LINE.argmax()
    found, _ = dc.histogram(x, 20, (-50, 50), engine="collective")
    np.testing.assert_array_equal(found, np.histogram(LINE, 20, (-50, 50))[0])
    made, calls, there = launched(client), asked(client), places(client, x)
    for worker, on in there.items():
        assert [name for name, _ in made[worker]] == ["lift", "lift", "histogram"]
        assert all(Counter(gpus) == on for _, gpus in made[worker])
        assert calls[worker] == [(REDUCE, sum(on.values()), 0)] * 3
    y = dc.cumsum(x, axis=0, engine="collective")
    made, calls = launched(client), asked(client)
    for worker, on in there.items():
        assert [name for name, _ in made[worker]] == ["upsweep", "downsweep"]
        assert all(Counter(gpus) == on for _, gpus in made[worker])
        assert [name for name, *_ in calls[worker]] == [REDUCE, SCAN]
    assert where(client, y) == where(client, x)
    np.testing.assert_array_equal(values(client, y), LINE.cumsum())


def test_gpus_that_no_launch_takes_together_work_each_by_itself(client: Client) -> None:
    def object_to(objection: str) -> None:
        host_cupy.team.objection = objection

    x = to_gpus(client, LINE, 10)
    client.run(object_to, "the GPUs differ")
    try:
        assert dc.argmin(x, engine="collective") == LINE.argmin()
        found, _ = dc.histogram(x, 20, (-50, 50), engine="collective")
        y = dc.cumsum(x, axis=0, reverse=True, engine="collective")
        assert not any(launched(client).values())
    finally:
        client.run(object_to, "")
    np.testing.assert_array_equal(found, np.histogram(LINE, 20, (-50, 50))[0])
    np.testing.assert_array_equal(values(client, y), LINE[::-1].cumsum()[::-1])
    assert where(client, y) == where(client, x)


#: What no launch does, of an array and of one beside it (`HIGH`): the call, and NumPy's result.
APART: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum of lines": (lambda x, _, **e: dc.sum(x, axis=1, **e), lambda a, _: a.sum(1)),
    "masked sum": (
        lambda x, w, **e: dc.sum(x, axis=0, where=w, **e),
        lambda a, w: a.sum(0, where=w),
    ),
    "large table of weights": (
        lambda x, w, **e: dc.histogram(x, 5_000, (-4, 4), weights=w, **e)[0],
        lambda a, w: np.histogram(a, 5_000, (-4, 4), weights=w)[0],
    ),
    "groups": (
        lambda x, _, **e: dc.groupby_reduce(x, np.arange(50) % 7, func="max", **e)[0],
        lambda a, _: np.stack([a[:, i::7].max(1) for i in range(7)], 1),
    ),
    "scan of lines": (lambda x, _, **e: dc.cumsum(x, axis=0, **e), lambda a, _: a.cumsum(0)),
    "scan that restarts": (
        lambda x, w, **e: dc.cummax(x, axis=0, segments=w, **e),
        lambda a, w: np.stack([restarted(*line) for line in zip(a.T, w.T, strict=True)], 1),
    ),
}


OF_NAN = ["sum", "prod", "min", "max", "mean", "var", "std", "argmin", "argmax"]
REDUCTIONS = ["ptp", "any", "all", "count_nonzero", *OF_NAN, *(f"nan{name}" for name in OF_NAN)]
SCANS = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "ffill", "bfill"]


@pytest.mark.parametrize("name", [*REDUCTIONS, *SCANS])
def test_every_step_is_that_of_chunks_of_the_host(client: Client, name: str) -> None:
    host = np.where(FLOATS < -1.5, np.nan, FLOATS) if "nan" in name or "fill" in name else FLOATS
    x, y = to_gpus(client, host, (23, 13)), da.from_array(host, chunks=(23, 13))
    function = getattr(dc, name)
    for axis in [0, 1] if name in SCANS else [None, 0]:
        found = function(x, axis=axis, engine="collective")
        if name in SCANS:
            assert where(client, found) == where(client, x)
            found = values(client, found)
        wanted = function(y, axis=axis).compute(scheduler="sync")
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


#: Graphs of which tasks take chunks of several GPUs.
GRAPHS: dict[str, Callable[[da.Array], Any]] = {
    "cumsum": lambda x: dc.cumsum(x, 0),
    "chain": lambda x: dc.cumsum(x, 1, method="sequential"),
    "ffill": lambda x: dc.ffill(da.where(x > 1, np.nan, x), 0),
    "move_mean": lambda x: dc.move_mean(x, 30, axis=0, min_count=1),
    "box_filter": lambda x: dc.box_filter(x, 5, (0, 1)),
    "var": lambda x: dc.var(x, 0),
    "histogram": lambda x: dc.histogram(x, 900, (-4, 4))[0],
    "groups": lambda x: dc.groupby_reduce(x, np.arange(50) % 7, func="var")[0],
    "median": dc.median,
    "lines in order": lambda x: dc.sort(x, 0),
    "transpose": dc.transpose,
    "matmul": lambda x: dc.matmul(x, x.T),
    "elements": lambda x: dc.select(x, x > 1),
    "dask.array": lambda x: (x[::-1] - x.sum(1, keepdims=True)).rechunk((17, 50)).sum(1),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_those_of_chunks_of_the_host(client: Client, name: str) -> None:
    call = GRAPHS[name]
    x, y = to_gpus(client, FLOATS, (23, 13)), da.from_array(FLOATS, chunks=(23, 13))
    found, wanted = values(client, call(x)), call(y).compute(scheduler="sync")
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def to_next_gpu(name: str, dask_worker: Any) -> None:
    """Move the chunks of an array each to another GPU."""
    for key, block in dask_worker.data.items():
        if key[0] == name:
            block.device = (block.device + 1) % GPUS


def restarted(line: Any, heads: Any) -> Any:
    """Return the running maxima of a line that begins anew at some elements."""
    parts = np.split(line, np.flatnonzero(heads))
    return np.concatenate([np.maximum.accumulate(part) for part in parts])


@pytest.mark.parametrize("name", APART)
def test_what_no_launch_does_is_done_by_each_gpu(client: Client, name: str) -> None:
    call, numpys = APART[name]
    x = to_gpus(client, FLOATS, (7, 50))
    w = client.persist(x > 1)
    wait_for(w)
    # What is beside a chunk on its worker need not be on its GPU.
    client.run(to_next_gpu, w.name)
    found = call(x, w, engine="collective")
    if isinstance(found, da.Array):
        assert where(client, found) == where(client, x)
        found = values(client, found)
    np.testing.assert_allclose(found, numpys(FLOATS, HIGH), rtol=1e-12, atol=1e-13)
    assert not any(launched(client).values())


def slow(seconds: float) -> None:
    """Let every message that this process gets take longer; 0 is as it was."""
    read: Any = getattr(TCP.read, "plain", TCP.read)
    if not seconds:
        TCP.read = read
        return

    async def late(self: Any, *given: Any, **options: Any) -> Any:
        message = await read(self, *given, **options)
        await asyncio.sleep(seconds)
        return message

    late.plain = read  # type: ignore[attr-defined]
    TCP.read = late


def test_latency_is_paid_once_a_round_whatever_the_gpus_and_chunks(client: Client) -> None:
    x = to_gpus(client, LINE, 2)
    # Long beside what other tests take of the processors.
    seconds = 0.5
    client.run(slow, seconds)
    slow(seconds)
    try:
        # Connections that wait for a message do so as before, and some may be left of these.
        dc.cumsum(x, axis=0, engine="collective")
        start = time.monotonic()
        assert dc.sum(x, engine="collective") == LINE.sum()
        reduced = time.monotonic()
        y = dc.cumsum(x, axis=0, engine="collective")
        scanned = time.monotonic()
    finally:
        slow(0)
        client.run(slow, 0)
    # To the scheduler, to the hosts, and back the same way; a scan goes to the hosts twice.
    assert 2 <= (reduced - start) / seconds < 8
    assert 3 <= (scanned - reduced) / seconds < 12
    np.testing.assert_array_equal(values(client, y), LINE.cumsum())


#: A worker that runs already is told to take all GPUs.
TOLD = f"""
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from support.host_cupy import backend as host_cupy

import dask_coop as dc

host_cupy.install({GPUS})
with (
    LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
    Client(cluster) as client,
):
    client.register_plugin(dc.CoopPlugin(all_gpus=True))
    x = dc.to_gpu(da.from_array(np.arange(300), chunks=10)).persist()
    assert dc.sum(x, engine="collective") == 300 * 299 // 2
    print([(name, sorted(set(gpus))) for name, gpus in host_cupy.launches])
"""


def test_a_worker_may_be_told_to_take_all_gpus() -> None:
    assert printed("-c", TOLD) == f"[('lift', {[*range(GPUS)]})]\n"


#: The command on a host of its own, with GPUs that are made up.
HOST = f"""
import sys
from support.host_cupy import backend as host_cupy
from dask_coop.cli import info, main

host_cupy.install({GPUS})
info.cupy_gpus = lambda: ["fake"] * {GPUS}
if __name__ == "__main__":
    sys.exit(main.main(["worker", *sys.argv[1:]]))
"""


def test_the_command_starts_hosts(tmp_path: Path) -> None:
    script = tmp_path / "host.py"
    script.write_text(HOST)
    options = ["--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path)]
    with (
        host_cupy.in_cupys_place(FakeGpus(0)),
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as scheduler,
        Client(scheduler, set_as_default=False) as client,
        (tmp_path / "log").open("w") as log,
    ):
        command = [sys.executable, str(script), scheduler.scheduler_address, *options]
        hosts = [
            subprocess.Popen([*command, "--name", name], env=beside(), stdout=log, stderr=log)
            for name in "ab"
        ]
        try:
            client.wait_for_workers(2, timeout=120)
            # A plugin that somebody registers does not take GPUs away.
            client.register_plugin(dc.CoopPlugin())
            assert {*client.nthreads().values()} == {GPUS}
            assert {*client.run(kept).values()} == {(dict, system.MEMORY_LIMIT, True)}
            x = to_gpus(client, LINE, 10)
            assert all(len(on) == GPUS for on in places(client, x).values())
            y = dc.cumsum(x, axis=0, engine="collective")
            np.testing.assert_array_equal(values(client, y), LINE.cumsum())
            names = [[name for name, _ in made] for made in launched(client).values()]
            assert names == [["upsweep", "downsweep"]] * 2
            del x, y
        finally:
            for host in hosts:
                host.terminate()
            for host in hosts:
                host.wait(60)


def kept(dask_worker: Any) -> Any:
    """Return what keeps data, in how much memory, and whether the plugin knows of all GPUs."""
    manager = dask_worker.memory_manager
    return type(dask_worker.data), manager.memory_limit, dask_worker.plugins["dask-coop"].all_gpus
