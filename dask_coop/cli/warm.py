"""Compiles programs ahead of the calls that need them, into the folder that processes share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dask_coop.chunks.cupy.programs_list import GROUPS, WARM, warm
from dask_coop.cli import info
from dask_coop.cuda import compiler, disk_cache
from dask_coop.cuda.devices import Device, device, usual
from dask_coop.cuda.programs.base import CTYPES
from dask_coop.cuda.sharing import for_each
from dask_coop.errors import UserError


def run(only: Sequence[str], dtypes: Sequence[str], archs: Sequence[str]) -> Iterator[str]:
    """Compile what is not kept yet, and yield lines that say what was done.

    Parameters
    ----------
    only : sequence of str
        Some of `GROUPS`; none for all.
    dtypes : sequence of str
        Names of dtypes; none for `WARM`.
    archs : sequence of str
        Architectures such as "sm_90"; none for the GPUs of this machine.

    Raises
    ------
    UserError
        If a name is not known, there is no GPU and no architecture is given, no compiler is
        installed, or compiled programs cannot be kept.
    """
    if unknown := set(only) - set(GROUPS):
        raise UserError(f"--only {','.join(sorted(unknown))}: choose among {', '.join(GROUPS)}")
    if unknown := set(dtypes) - set(CTYPES):
        raise UserError(f"--dtypes {','.join(sorted(unknown))}: choose among {', '.join(CTYPES)}")
    kinds = [np.dtype(name) for name in dtypes] or WARM
    gpus = _gpus(archs)
    folder = disk_cache.describe()
    if folder.startswith("none: "):
        raise UserError(
            f"compiled kernels are not kept anywhere ({folder.removeprefix('none: ')}); set "
            "DASK_COOP_CACHE to a folder that only you can write to"
        )
    yield f"folder: {folder}"
    for gpu in gpus:
        for group in only or GROUPS:
            for dtype in kinds:
                yield _compile(group, dtype, gpu)


def _compile(group: str, dtype: np.dtype[Any], gpu: Device) -> str:
    sources, compiled = warm(group, dtype, gpu), []

    def keep(source: str) -> None:
        if compiler.keep(source, gpu.arch):
            compiled.append(source)

    start = time.perf_counter()
    for_each(keep, sources, threading.Event())
    return (
        f"{gpu.arch} {dtype} {group}: {len(sources)} programs, {len(compiled)} of them compiled now"
        f", in {time.perf_counter() - start:.1f} s"
    )


def _gpus(archs: Sequence[str]) -> list[Device]:
    """Return GPUs to compile for, those that are alike once."""
    try:
        known = compiler.architectures()
    except ImportError:
        raise UserError(
            "there is no compiler; run `pip install dask-coop[nvrtc]`, or [cuda12] with a GPU"
        ) from None
    for arch in archs:
        if arch not in known:
            raise UserError(f"--arch {arch}: this NVRTC compiles for {', '.join(known)}")
    if archs:
        return [usual(arch) for arch in archs]
    facts = info.facts()
    if facts["no_gpu"]:
        raise UserError(
            f"there is no GPU ({facts['no_gpu']}); say for which to compile, as in --arch sm_90"
        )
    return list(dict.fromkeys(map(device, range(len(facts["gpus"])))))
