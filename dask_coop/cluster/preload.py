"""Has a worker use all GPUs; ``dask-coop worker`` starts it with this module as ``--preload``."""

from __future__ import annotations

from distributed import Worker

from dask_coop.cluster.plugin import CoopPlugin


async def dask_setup(worker: Worker) -> None:
    """Have a worker use all GPUs; distributed calls this."""
    await worker.plugin_add(CoopPlugin(all_gpus=True), catch_errors=False)
