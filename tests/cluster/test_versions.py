"""Workers and schedulers of another version, or without the library: said in words, every time."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from support.clusters import addresses, cluster, eventually, persist, values, wait_for

import dask_coop as dc
from dask_coop.cluster.versions import PROTOCOL

pytestmark = [
    pytest.mark.xdist_group("versions"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LINE = np.arange(12)

OURS = f"the client has dask_coop {dc.__version__} (protocol {PROTOCOL})"
ANOTHER = f"has dask_coop 9.9.9 (protocol {PROTOCOL})"
NONE = "has no dask_coop that suits (ModuleNotFoundError: No module named 'dask_coop')"

#: What is run in a process before it becomes a worker or a scheduler, by what it has.
BEFORE = {
    ANOTHER: "import dask_coop\ndask_coop.__version__ = '9.9.9'\n",
    NONE: (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, *args):\n"
        "        if name.partition('.')[0] == 'dask_coop':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Without())\n"
    ),
}


@contextmanager
def started(has: str, tmp_path: Path, what: str, *options: str) -> Iterator[Path]:
    """Start a scheduler or a worker in whose process something else is imported; yield its log."""
    before, log = tmp_path / f"before_{what}.py", tmp_path / f"{what}.log"
    before.write_text(BEFORE[has])
    command = [sys.executable, "-m", "dask", what, *options, "--preload", str(before)]
    with log.open("w") as said:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said)
        try:
            yield log
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def another(client: Client, has: str, tmp_path: Path) -> Iterator[str]:
    """Yield the address of one worker more."""
    known = set(addresses(client))
    options = [client.scheduler.address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    options += ["--local-directory", str(tmp_path)]
    with started(has, tmp_path, "worker", *options) as log:
        eventually(lambda: set(addresses(client)) - known, tell=log.read_text)
        (address,) = set(addresses(client)) - known
        yield address
    eventually(lambda: address not in addresses(client))


@pytest.fixture
def client() -> Iterator[Client]:
    with cluster(1) as client:
        yield client


def on(client: Client, worker: str, host: Any = LINE) -> da.Array:
    """Return an array on one worker."""
    x = client.persist(da.from_array(host, chunks=4), workers=[worker])
    wait_for(x)
    return x


CALLS: list[Callable[..., Any]] = [
    lambda x: dc.sum(x, engine="collective"),
    lambda x: dc.histogram(x, 50_000, (0, 12), engine="collective"),
    lambda x: dc.cumsum(x, engine="collective"),
]


@pytest.mark.parametrize("joins", ["before", "after"])
@pytest.mark.parametrize("has", [ANOTHER, NONE])
def test_a_worker_of_another_version_or_none(
    client: Client, fallbacks: Any, tmp_path: Path, has: str, joins: str
) -> None:
    (mine,) = addresses(client)
    if joins == "after":
        assert dc.sum(on(client, mine, -LINE), engine="collective") == -LINE.sum()
    with another(client, has, tmp_path) as worker:
        x = on(client, worker)
        reason = f"worker {worker} {has}, and {OURS}: install one version for the client"
        with dask.config.set({"coop.fallback": "raise"}):
            # The first call is as the second.
            for call in (*CALLS, CALLS[0]):
                with pytest.raises(dc.Declined) as caught:
                    call(x)
                assert reason in str(caught.value)
        if has == ANOTHER:
            with (
                dask.config.set({"coop.fallback": "warn"}),
                pytest.warns(dc.FallbackWarning, match=re.escape(reason)),
                pytest.raises(
                    RuntimeError, match=f"worker {worker} has dask_coop 9[.]9[.]9, and the"
                ),
            ):
                dc.sum(x, engine="collective")
        # What does not take part does no harm.
        y = on(client, mine, LINE + 1)
        assert dc.sum(y, engine="collective") == LINE.sum() + 12
        now = dc.cumsum(y, engine="collective")
        np.testing.assert_array_equal(values(client, now), (LINE + 1).cumsum())
        assert fallbacks() == []
        del x, y, now


def test_a_worker_of_another_version_that_another_asks(
    client: Client, fallbacks: Any, tmp_path: Path
) -> None:
    # The first chunk's worker passes the message on.
    (mine,) = addresses(client)
    with another(client, ANOTHER, tmp_path) as worker:
        x = da.concatenate([on(client, mine), on(client, worker, LINE[::-1])])
        x = client.persist(x)
        wait_for(x)
        holders = client.who_has(x)
        assert [holders[(x.name, i)][0] for i in (0, 5)] == [mine, worker]
        # As does the graph, which that worker has a part in.
        with pytest.raises(
            RuntimeError, match=r"has dask_coop 9[.]9[.]9, and the graph is of dask_coop"
        ):
            dc.histogram(x, 50_000, (0, 12), engine="collective")
        (said,) = fallbacks()
        assert f"worker {worker} {ANOTHER}, and {OURS}" in said
        del x


@pytest.mark.parametrize("has", [ANOTHER, NONE])
def test_a_scheduler_of_another_version_or_none(has: str, tmp_path: Path) -> None:
    where = tmp_path / "scheduler.json"
    options = ["--scheduler-file", str(where), "--host", "127.0.0.1", "--port", "0"]
    with started(has, tmp_path, "scheduler", *options, "--no-dashboard") as log:
        eventually(where.exists, tell=log.read_text)
        command = [sys.executable, "-m", "dask", "worker", "--scheduler-file", str(where)]
        command += ["--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path)]
        with (tmp_path / "log").open("w") as said:
            worker = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said)
        try:
            with Client(scheduler_file=str(where), set_as_default=False) as client:
                client.wait_for_workers(1, timeout=120)
                x = persist(client, LINE, 4)
                address = client.scheduler.address
                with dask.config.set({"coop.fallback": "raise"}):
                    for call in (*CALLS, CALLS[0]):
                        with pytest.raises(dc.Declined) as caught:
                            call(x)
                        assert f"the scheduler {address} {has}, and {OURS}" in str(caught.value)
                del x
        finally:
            worker.terminate()
            worker.wait(60)


@pytest.mark.parametrize("has", [ANOTHER, NONE])
def test_coop_plugin_says_so_each_time_that_it_is_registered(
    client: Client, tmp_path: Path, has: str
) -> None:
    with another(client, has, tmp_path) as worker:
        for _ in range(2):
            with pytest.raises(RuntimeError) as caught:
                client.register_plugin(dc.CoopPlugin())
            assert f"worker {worker} {has}, and {OURS}" in str(caught.value)
    # It is registered nowhere, and without that worker it can be.
    assert client.register_plugin(dc.CoopPlugin())


@pytest.mark.parametrize("has", [ANOTHER, NONE])
def test_a_worker_that_joins_says_so_and_so_do_graphs(
    client: Client, tmp_path: Path, has: str
) -> None:
    client.register_plugin(dc.CoopPlugin())
    with another(client, has, tmp_path) as worker:
        reason = f"worker {worker} {has}, and {OURS}"
        eventually(lambda: reason in (tmp_path / "worker.log").read_text())
        if has == ANOTHER:
            x = on(client, worker)
            for lazy in (dc.sum(x), dc.cumsum(x), dc.groupby_reduce(x, LINE % 3, func="sum")[0]):
                future = client.compute(lazy, workers=[worker])
                with pytest.raises(RuntimeError) as caught:
                    future.result()
                assert str(caught.value) == (
                    f"worker {worker} has dask_coop 9.9.9, and the graph is of dask_coop "
                    f"{dc.__version__}: install one version for the client, the scheduler and all "
                    "workers"
                )
            # It goes on, and others are not disturbed.
            assert worker in addresses(client)
            del x, future
            return

        def has_ended() -> bool:
            # A worker ends with the first task that it cannot read, and the others do the work.
            assert values(client, dc.sum(da.arange(64, chunks=1))) == 63 * 32
            return worker not in addresses(client)

        eventually(has_ended)
        said = f"ImportError: {reason}"
        eventually(lambda: said in (tmp_path / "worker.log").read_text())


def test_plugins_of_another_module_travel(client: Client) -> None:
    class Mine(dc.CoopPlugin):
        name = "mine"

        def setup(self, worker: Any) -> Any:
            worker.mine = self.dtypes
            return super().setup(worker)

    client.register_plugin(Mine(["i4"]))
    assert list(client.run(lambda dask_worker: dask_worker.mine).values()) == [(np.dtype("i4"),)]


def test_versions_of_all_are_told_by_distributed(client: Client) -> None:
    told = client.get_versions(check=True, packages=["dask_coop"])
    every = [told["client"], told["scheduler"], *told["workers"].values()]
    assert {each["packages"]["dask_coop"] for each in every} == {dc.__version__}
