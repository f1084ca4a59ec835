"""``python -m dask_coop worker``: run one worker of a cluster, with all GPUs of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

import dask

from dask_coop.cli import info
from dask_coop.errors import UserError, pip_install

#: Off, as distributed would count chunks on GPUs as host memory, and spill them to disk.
_CONFIG = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}


def run(gpus: Sequence[int] | None, arguments: Sequence[str]) -> None:
    """Run a worker until it ends.

    Parameters
    ----------
    gpus : sequence of int, optional
        Some of the GPUs that this process sees; all by default.
    arguments : sequence of str
        Arguments of ``dask worker``: the address of the scheduler, and options.

    Raises
    ------
    UserError
        If there is no GPU, or not all of `gpus`; if the scheduler is not specified; or if
        `arguments` request several workers.
    """
    if not arguments and dask.config.get("scheduler-address", None) is None:
        raise UserError("give the address of the scheduler, or --scheduler-file FILE")
    if any(argument.partition("=")[0] == "--nworkers" for argument in arguments):
        raise UserError("--nworkers: one worker has all GPUs; `dask cuda worker` has one for each")
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = _chosen(gpus)
    count = len(info.cupy_gpus())
    if not count:
        reason = info.facts()["no_gpu"] or "the package CuPy is not installed"
        raise UserError(
            f"there is no GPU for a worker: {reason}; `{pip_install('cuda12')}` (or cuda13) "
            "brings CuPy, and `dask worker --preload dask_coop` is a worker without GPUs"
        )
    if gpus is not None and count < len(gpus):
        raise UserError(f"--gpus {','.join(map(str, gpus))}: only {count} of these are there")

    from distributed.cli.dask_worker import main

    # Ours come first, because the last of several options of a name counts.
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
    """Return the value of CUDA_VISIBLE_DEVICES for some of the GPUs that it names now."""
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
