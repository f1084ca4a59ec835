"""CoopPlugin, registered and preloaded."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import dask.array as da
import pytest
from conftest import missing_for_gpu
from distributed import Client, LocalCluster

import dask_coop
from dask_coop import meters
from dask_coop.cluster import plugin
from dask_coop.cluster.plugin import logger
from dask_coop.cuda.sharing import for_each


def expected() -> str:
    return "NumPy chunks only" if missing_for_gpu() else "kernels ready"


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


@pytest.mark.parametrize("preloaded", [False, True])
def test_a_worker_says_what_it_found(
    preloaded: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # distributed keeps what its loggers say from the root logger, where caplog listens.
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    preload = ["dask_coop"] if preloaded else []
    with (
        caplog.at_level(logging.INFO, logger=logger.name),
        LocalCluster(
            n_workers=1, processes=False, dashboard_address=":0", preload=preload
        ) as cluster,
        Client(cluster) as client,
    ):
        if not preloaded:
            client.register_plugin(dask_coop.CoopPlugin())
            client.register_plugin(dask_coop.CoopPlugin())
        assert client.submit(int, "7").result() == 7
        wait_until(lambda: any(expected() in r.getMessage() for r in caplog.records))
    said = [r.getMessage() for r in caplog.records if r.name == logger.name]
    assert said
    assert all(expected() in message for message in said)


def test_a_worker_started_by_hand_says_what_it_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as cluster,
        Client(cluster) as client,
        log.open("w") as said,
    ):
        command = [sys.executable, "-m", "dask", "worker", cluster.scheduler_address]
        command += ["--preload", "dask_coop", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
        command += ["--local-directory", str(tmp_path)]
        worker = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said)
        try:
            client.wait_for_workers(1, timeout=120)
            x = da.arange(100_000, chunks=999)
            assert dask_coop.sum(x).compute() == 100_000 * 99_999 // 2
            (address,) = client.scheduler_info()["workers"]
            wait_until(lambda: expected() in log.read_text())
        finally:
            worker.terminate()
            worker.wait(60)
    (line,) = [line for line in log.read_text().splitlines() if "dask_coop: " in line]
    assert expected() in line
    assert address in line


def test_a_preloaded_scheduler_shows_what_graphs_do() -> None:
    options = {"preload": ["dask_coop"]}
    with (
        LocalCluster(
            n_workers=1, processes=False, dashboard_address=":0", scheduler_kwargs=options
        ) as cluster,
        Client(cluster) as client,
    ):
        link = client.dashboard_link.replace("status", "coop")
        assert "data-root-id" in urlopen(link, timeout=60).read().decode()
        plugins = client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.plugins])
    assert {"dask-coop-rounds", "dask-coop-monitor"} <= {*plugins}


def test_what_is_compiled_while_a_worker_warms_counts_as_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(self: Any, address: str, stop: threading.Event) -> None:
        meters.count(meters.COMPILATIONS)
        for_each(lambda _: meters.count(meters.COMPILATIONS), range(3), stop)

    monkeypatch.setattr(plugin, "_missing_gpu", lambda: "")
    monkeypatch.setattr(dask_coop.CoopPlugin, "_load", load)
    monkeypatch.setattr(plugin, "take_over", lambda given: lambda: False)
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(dask_coop.CoopPlugin())
        kept = cluster.workers[0].digests_total
        wait_until(lambda: kept.get(("coop", "coop-compile", "count")) == 4)


def test_a_dtype_without_kernels_is_refused() -> None:
    with pytest.raises(TypeError, match="complex64"):
        dask_coop.CoopPlugin(["complex64"])


def test_all_gpus_are_taken_or_not() -> None:
    with pytest.raises(TypeError, match="all_gpus must be True or False, got 'yes'"):
        dask_coop.CoopPlugin(all_gpus="yes")  # type: ignore[arg-type]
    assert not dask_coop.CoopPlugin().all_gpus


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """Let a worker seem to have a GPU whose kernels are never ready; return what stops each."""
    stops: list[threading.Event] = []

    def load(self: Any, address: str, stop: threading.Event) -> None:
        stops.append(stop)
        assert stop.wait(60)

    monkeypatch.setattr(plugin, "attach", lambda worker: None)
    monkeypatch.setattr(plugin, "_missing_gpu", lambda: "")
    monkeypatch.setattr(dask_coop.CoopPlugin, "_load", load)
    monkeypatch.setattr(plugin, "take_over", lambda given: lambda: False)
    return stops


def worker_here() -> Any:
    loop = SimpleNamespace(add_callback=lambda function: function())
    return SimpleNamespace(address="tcp://here", loop=loop, plugins={})


def test_a_worker_does_not_wait_for_its_kernels_and_stops_them(
    begun: list[threading.Event],
) -> None:
    worker = worker_here()
    warming = dask_coop.CoopPlugin()
    warming.setup(worker)
    wait_until(lambda: bool(begun))
    assert not begun[0].is_set()
    warming.teardown(worker)
    assert begun[0].is_set()
    # Of a worker without a GPU there is nothing to stop.
    dask_coop.CoopPlugin().teardown(worker)


def test_what_goes_wrong_with_the_kernels_is_a_warning(
    begun: list[threading.Event],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(self: Any, address: str, stop: threading.Event) -> None:
        raise RuntimeError("this does not compile")

    monkeypatch.setattr(dask_coop.CoopPlugin, "_load", load)
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    dask_coop.CoopPlugin().setup(worker_here())
    wait_until(lambda: bool(caplog.records))
    record, *_ = caplog.records
    assert record.levelno == logging.WARNING
    assert "tcp://here" in record.getMessage()
    assert "this does not compile" in record.getMessage()
