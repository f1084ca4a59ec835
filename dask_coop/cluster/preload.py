"""Make a worker use all GPUs: the ``--preload`` module of ``dask-coop worker``."""

from __future__ import annotations

from distributed import Worker

from dask_coop.cluster.plugin import CoopPlugin


async def dask_setup(worker: Worker) -> None:
    """Register ``CoopPlugin(all_gpus=True)``; distributed calls this."""
    await worker.plugin_add(CoopPlugin(all_gpus=True), catch_errors=False)
