"""``python -m dask_coop worker``: one worker of a cluster, with all GPUs of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

import dask

from dask_coop.cli import info
from dask_coop.errors import UserError

#: distributed would count chunks on GPUs against the host's memory, and write them to its disk.
_CONFIG = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}


def run(gpus: Sequence[int] | None, arguments: Sequence[str]) -> None:
    """Run a worker until it is ended.

    Parameters
    ----------
    gpus : sequence of int, optional
        Which of the GPUs that this process sees; all by default.
    arguments : sequence of str
        Those of ``dask worker``: the address of the scheduler, and options.

    Raises
    ------
    UserError
        If there is no GPU, or not all of `gpus`; if there is no word on the scheduler, or several
        workers are asked for.
    """
    if not arguments and dask.config.get("scheduler-address", None) is None:
        raise UserError("give the address of the scheduler, or --scheduler-file FILE")
    if any(each.partition("=")[0] == "--nworkers" for each in arguments):
        raise UserError("--nworkers: one worker has all GPUs; `dask cuda worker` has one for each")
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = _chosen(gpus)
    count = len(info.cupy_gpus())
    if not count:
        reason = info.facts()["no_gpu"] or "the package CuPy is not installed"
        raise UserError(
            f"there is no GPU for a worker: {reason}; `pip install dask-coop[cuda12]` (or cuda13) "
            "brings CuPy, and `dask worker --preload dask_coop` is a worker without GPUs"
        )
    if gpus is not None and count < len(gpus):
        raise UserError(f"--gpus {','.join(map(str, gpus))}: only {count} of these are there")

    from distributed.cli.dask_worker import main

    # Of several options of a name the last one counts.
    ours = [
        "--nthreads",
        str(count),
        "--memory-limit",
        "1.0",
        "--preload",
        "dask_coop.cluster.preload",
    ]
    with dask.config.set(_CONFIG):
        main([*ours, *arguments], prog_name="dask-coop worker")


def _chosen(gpus: Sequence[int]) -> str:
    """Return what CUDA_VISIBLE_DEVICES is to say for some of the GPUs that it says now."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return ",".join(map(str, gpus))
    names = [name for name in visible.split(",") if name.strip()]
    if missing := [gpu for gpu in gpus if gpu >= len(names)]:
        raise UserError(
            f"--gpus: there is no GPU {missing[0]}, for CUDA_VISIBLE_DEVICES={visible} leaves "
            f"{len(names)}"
        )
    return ",".join(names[gpu] for gpu in gpus)
