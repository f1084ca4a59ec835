"""CoopPlugin, registered and preloaded."""

from __future__ import annotations

import logging

import pytest
from conftest import missing_for_gpu
from distributed import Client, LocalCluster

import dask_coop
from dask_coop.plugin import logger


def expected() -> str:
    return "NumPy chunks only" if missing_for_gpu() else "kernels ready"


@pytest.mark.parametrize("preloaded", [False, True])
def test_a_worker_says_what_it_found(preloaded: bool, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_dtype_without_kernels_is_refused() -> None:
    with pytest.raises(TypeError, match="complex64"):
        dask_coop.CoopPlugin(["complex64"])
