"""One worker a host, by the command: two of them on this machine's GPUs, one or two for each.

With one GPU or with two, both workers have all of them; with four and more each has its own.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from support.processes import beside

import dask_coop as dc
from dask_coop import chunks
from dask_coop.algebra import monoids
from dask_coop.algebra.bins import Grid, find_bins
from dask_coop.algebra.operation import bind
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.cluster import jobs
from dask_coop.graph.prefixes import GROUP

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.xdist_group("node"),
    # Warnings of distributed's shutdown are not about this library.
    pytest.mark.filterwarnings("default"),
]

SIZES = (70_001, 0, 1, 33, 4096, 1_000_000, 0, 300_000)
RNG = np.random.default_rng(8)
LINE = RNG.integers(-99, 99, 1_000_003)
FLOATS = RNG.normal(size=(300, 250)).astype("f4")


def gpus_of_hosts() -> list[list[int]]:
    """Return the GPUs of each host."""
    import cupy

    n = cupy.cuda.runtime.getDeviceCount()
    each = min(2, n)
    return [[*range(each)], [*range(n - each, n)]]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file with what the workers say."""
    return tmp_path_factory.mktemp("hosts") / "log"


@pytest.fixture(scope="module")
def client(log: Path) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        # A busy machine would have chunks move to idle workers.
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as scheduler,
        Client(scheduler) as client,
        log.open("w") as said,
    ):
        command = [sys.executable, "-m", "dask_coop", "worker", scheduler.scheduler_address]
        command += ["--no-dashboard", "--local-directory", str(log.parent), "--gpus"]
        hosts = [
            subprocess.Popen(
                [*command, ",".join(map(str, gpus))], env=beside(), stdout=said, stderr=said
            )
            for gpus in gpus_of_hosts()
        ]
        try:
            client.wait_for_workers(2, timeout=180)
            client.run(watch)
            yield client
        finally:
            for host in hosts:
                host.terminate()
            for host in hosts:
                host.wait(60)
    # Shown where a test has failed.
    print(log.read_text())


@pytest.fixture(autouse=True)
def _in_rounds(
    request: pytest.FixtureRequest, fallbacks: Callable[[], list[str]]
) -> Iterator[None]:
    """Hold every test to run in rounds what was asked to."""
    yield
    assert fallbacks() == []
    gc.collect()


def watch() -> None:
    """Note the GPUs of every launch over several chunks."""
    from dask_coop.cuda.team import Team

    launch, noted = Team.launch, []

    def noting(self: Any, *given: Any, **options: Any) -> None:
        noted.append(tuple(given[4]))
        launch(self, *given, **options)

    Team.launch, Team.noted = noting, noted  # type: ignore[method-assign, attr-defined]


def launched(client: Any) -> dict[str, list[tuple[int, ...]]]:
    """Return, and forget, the GPUs of the launches of each worker."""

    def take() -> Any:
        from dask_coop.cuda.team import Team

        made = [*Team.noted]  # type: ignore[attr-defined]
        Team.noted.clear()  # type: ignore[attr-defined]
        return made

    found: dict[str, list[tuple[int, ...]]] = client.run(take)
    return found


def to_gpus(client: Any, host: Any, sizes: Any) -> da.Array:
    """Return an array with its chunks in memory on the GPUs of the workers."""
    from distributed import wait

    x = client.persist(dc.to_gpu(da.from_array(host, chunks=sizes)))
    wait(x)
    return x


def where(client: Any, x: da.Array) -> dict[Any, tuple[str, int]]:
    """Return the worker and the GPU of each chunk, by its index."""

    def look(name: str, dask_worker: Any) -> Any:
        data = dask_worker.data.items()
        return {key[1:]: int(y.device.id) for key, y in data if key[0] == name}

    found = client.run(look, x.name)
    return {index: (worker, gpu) for worker, of in found.items() for index, gpu in of.items()}


def values(lazy: Any) -> Any:
    """Compute an array on the cluster, by a graph, to the host."""
    return dask.compute(dc.to_host(lazy))[0]


def test_chunks_are_made_on_all_gpus(client: Any) -> None:
    found = {*where(client, x := to_gpus(client, LINE, 20_000)).values()}
    assert len(found) == sum(map(len, gpus_of_hosts()))
    assert len(client.nthreads()) == 2
    np.testing.assert_array_equal(values(x), LINE)


def test_kernels_are_made_ready_on_all_gpus(client: Any, log: Path) -> None:
    deadline = time.monotonic() + 300
    while (text := log.read_text()).count("kernels ready") < 2:
        assert time.monotonic() < deadline, text
        assert "could not warm" not in text
        time.sleep(0.1)
    for gpus in gpus_of_hosts():
        assert (f" has {len(gpus)} x " in text) == (len(gpus) > 1)
    assert "by itself" not in text


def test_a_round_is_one_launch_over_the_gpus_of_a_host(client: Any) -> None:
    x = to_gpus(client, LINE, 20_000)
    there = where(client, x)
    of_hosts: dict[str, set[int]] = {}
    for worker, gpu in there.values():
        of_hosts.setdefault(worker, set()).add(gpu)
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "sum": (lambda: dc.sum(x, engine="collective"), 1),
        "argmin": (lambda: dc.argmin(x, engine="collective"), 1),
        "histogram": (lambda: dc.histogram(x, 70, (-99, 99), engine="collective")[0], 1),
        "cumsum": (lambda: dc.cumsum(x, axis=0, engine="collective"), 2),
        "cummin": (lambda: dc.cummin(x, axis=0, reverse=True, engine="collective"), 2),
    }
    wanted = {
        "sum": LINE.sum(),
        "argmin": LINE.argmin(),
        "histogram": np.histogram(LINE, 70, (-99, 99))[0],
        "cumsum": LINE.cumsum(),
        "cummin": np.minimum.accumulate(LINE[::-1])[::-1],
    }
    for name, (call, launches) in calls.items():
        launched(client)
        found = call()
        assert launched(client) == {w: [tuple(sorted(on))] * launches for w, on in of_hosts.items()}
        if launches == 2:
            assert where(client, found) == there
            found = values(found)
        np.testing.assert_array_equal(found, wanted[name], err_msg=name)


@pytest.mark.parametrize("shared", [True, False])
def test_what_no_launch_does_is_done_by_each_gpu(client: Any, shared: bool) -> None:
    x = to_gpus(client, FLOATS, (37, 250))
    line = to_gpus(client, LINE, 50_000)
    of = {"engine": "collective"}
    wide = FLOATS.astype("f8")
    given = client.run(share, None)
    try:
        if shared:
            client.run(share, given)
        np.testing.assert_allclose(dc.sum(x, axis=1, **of), wide.sum(1), atol=1e-4)
        np.testing.assert_allclose(dc.var(x, axis=0, **of), wide.var(0), rtol=1e-5)
        groups = np.arange(250) % 7
        found = dc.groupby_reduce(x, groups, func="max", **of)[0]
        np.testing.assert_array_equal(
            found, np.stack([FLOATS[:, i::7].max(1) for i in range(7)], 1)
        )
        running = values(dc.cumsum(x, axis=0, **of))
        np.testing.assert_allclose(running, wide.cumsum(0), atol=1e-3)
        assert dc.sum(line, **of) == LINE.sum()
        np.testing.assert_array_equal(values(dc.cumsum(line, axis=0, **of)), LINE.cumsum())
    finally:
        client.run(share, given)


def share(given: Any, dask_worker: Any) -> Any:
    """Share the GPUs of a worker as they were, by its address, or none; return how they were."""
    from dask_coop.cuda import team

    before, team._shared = team._shared, given and given[dask_worker.address]
    return before


def test_arrays_beside_a_chunk_need_not_be_on_its_gpu(client: Any) -> None:
    from distributed import wait

    x = to_gpus(client, FLOATS, (37, 250))
    where_ = client.persist(x > 0.5)
    wait(where_)
    client.run(to_next_gpu, where_.name)
    found = dc.sum(x, axis=0, where=where_, engine="collective")
    wanted = FLOATS.sum(0, where=FLOATS > 0.5, dtype="f8")
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    # And so in a graph.
    np.testing.assert_allclose(values(dc.sum(x, axis=0, where=where_)), wanted, atol=1e-4)
    np.testing.assert_array_equal(values(x * where_), FLOATS * (FLOATS > 0.5))


def to_next_gpu(name: str, dask_worker: Any) -> None:
    """Move the chunks of an array each to another GPU, where there is one."""
    import cupy

    n = cupy.cuda.runtime.getDeviceCount()
    for key in [key for key in dask_worker.data if key[0] == name]:
        block = dask_worker.data[key]
        host = block.get()
        with cupy.cuda.Device((block.device.id + 1) % n):
            dask_worker.data[key] = cupy.asarray(host)


def test_graphs_take_chunks_of_all_gpus(client: Any) -> None:
    x = to_gpus(client, LINE, 20_000)
    y = client.persist(x * 2 + x)
    np.testing.assert_array_equal(values(y), LINE * 3)
    assert where(client, y) == where(client, x)
    np.testing.assert_array_equal(values(x + x[::-1]), LINE + LINE[::-1])
    np.testing.assert_array_equal(values(x.rechunk(33_333)), LINE)
    np.testing.assert_array_equal(values(dc.cumsum(x)), LINE.cumsum())
    assert int(dc.sum(x).compute()) == LINE.sum()
    counts = dc.histogram(x, 70, (-99, 99))[0]
    np.testing.assert_array_equal(values(counts), np.histogram(LINE, 70, (-99, 99))[0])
    assert int(dc.max(x).compute()) == LINE.max()


# Launches of this process over several GPUs, without a cluster.


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return two GPUs that launches may go over."""
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    from dask_coop.cuda import team

    monkeypatch.setattr(team, "_shared", ((0, 1), 30.0))
    return [0, 1]


def cut(host: Any, gpus: list[int]) -> list[Any]:
    """Return chunks of a line, in turn on some GPUs."""
    import cupy

    made = []
    for i, part in enumerate(np.split(host, np.cumsum(SIZES)[:-1])):
        with cupy.cuda.Device(gpus[i % len(gpus)]):
            made.append(cupy.asarray(part))
    return made


@pytest.mark.parametrize("dtype", ["f4", "i4", "f8"])
def test_states_of_chunks_of_two_gpus_are_those_of_one(two: list[int], dtype: str) -> None:
    host = RNG.normal(size=sum(SIZES)).astype(dtype)
    xs, alone = cut(host, two), cut(host, [0])
    backend = chunks.backend_of(xs[0])
    for monoid in (monoids.SUM, monoids.MIN, monoids.ARGMAX):
        op = bind(monoid, host.dtype, host.dtype, "test")
        both, one = (backend.lift_all(op, each) for each in (xs, alone))
        assert both is not None
        assert one is not None
        for found, wanted in zip(both, one, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
    counted = bind(monoids.COUNTS, np.dtype("i8"), np.dtype("i8"), "test")
    grid = Grid((find_bins(40, (-2.0, 2.0), host.dtype),))
    (table,) = backend.histogram_all(counted, xs, grid) or (None,)
    np.testing.assert_array_equal(table, np.histogram(host, 40, (-2.0, 2.0))[0])


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "i4", "f2"])
def test_a_scan_in_two_halves_over_two_gpus(
    two: list[int], dtype: str, reverse: bool, moved: bool
) -> None:
    """Also where chunks have changed GPUs between the halves."""
    host = (RNG.normal(size=sum(SIZES)) * 9).astype(dtype)
    op, spec = bind(monoids.SUM, host.dtype, host.dtype, "test"), ScanSpec(0, reverse=reverse)
    order = slice(None, None, -1 if reverse else 1)
    xs = cut(host, two)[order]
    up, down = jobs.Upsweep(op, spec), jobs.Downsweep(op, spec)
    states, memo = up([(x,) for x in xs], [None] * len(xs))
    assert memo
    bases = {
        int(number): tuple(field[i] for field in part.fields)
        for part in jobs.Spine(op, (len(xs),), False, GROUP)(states)
        for i, number in enumerate(part.numbers)
    }
    if moved:
        xs = cut(host, two[::-1])[order]
    ys = down([(x,) for x in xs], [bases.get(i) for i in range(len(xs))], memo)
    chunks.backend_of(ys[0]).synchronize(ys)
    assert [y.device.id for y in ys] == [x.device.id for x in xs]
    got = np.concatenate([y.get() for y in ys[order]])
    wanted = host[order].cumsum(dtype="f8" if dtype[0] == "f" else dtype)[order]
    scale = {"f4": 1e-6, "i4": 0, "f2": 2e-3}[dtype] * np.abs(wanted).max()
    np.testing.assert_allclose(got.astype(wanted.dtype), wanted, atol=scale)
