"""CoopPlugin, registered and preloaded."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import dask.array as da
import pytest
from conftest import missing_for_gpu
from distributed import Client, LocalCluster

import dask_coop
from dask_coop.cluster.plugin import logger


def expected() -> str:
    return "NumPy chunks only" if missing_for_gpu() else "kernels ready"


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
        finally:
            worker.terminate()
            worker.wait(60)
    (line,) = [line for line in log.read_text().splitlines() if "dask_coop: " in line]
    assert expected() in line
    assert address in line


def test_a_dtype_without_kernels_is_refused() -> None:
    with pytest.raises(TypeError, match="complex64"):
        dask_coop.CoopPlugin(["complex64"])
