"""Compile ahead of time: programs for GPUs, and the loops over NumPy chunks.

Both go into folders that processes share, which `info` names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dask_coop.chunks.cupy.program_sets import GROUPS, WARM, warm
from dask_coop.cli import info, loops
from dask_coop.cuda import compiler, disk_cache
from dask_coop.cuda.devices import Device, device, usual
from dask_coop.cuda.programs.base import CTYPES
from dask_coop.cuda.sharing import for_each
from dask_coop.errors import UserError


def run(only: Sequence[str], dtypes: Sequence[str], archs: Sequence[str]) -> Iterator[str]:
    """Compile programs and loops that are not on disk yet, and yield lines on the work done.

    Parameters
    ----------
    only : sequence of str
        Some of `GROUPS`; if empty, all.
    dtypes : sequence of str
        Names of dtypes; if empty, the likely ones.
    archs : sequence of str
        Architectures such as "sm_90", for which to compile programs and no loops; if empty, compile
        for this machine and its GPUs.

    Raises
    ------
    UserError
        If a name is not known, no compiler is installed, there is neither a GPU nor Numba nor an
        architecture, or compiled code cannot be kept.
    """
    if unknown := set(only) - set(GROUPS):
        raise UserError(f"--only {','.join(sorted(unknown))}: choose among {', '.join(GROUPS)}")
    if unknown := set(dtypes) - set(CTYPES):
        raise UserError(f"--dtypes {','.join(sorted(unknown))}: choose among {', '.join(CTYPES)}")
    has_loops = not archs and loops.exist()
    try:
        gpus = _gpus(archs)
    except UserError as error:
        if archs:
            raise
        if not has_loops:
            raise UserError(
                f"{error}; for loops over NumPy chunks Numba is missing: "
                "`pip install dask-coop[cpu]`"
            ) from None
        gpus, left_out = [], f"no kernels are compiled: {error}"
    if has_loops:
        folder = loops.folder()
        if folder.startswith("none: "):
            raise UserError(
                f"compiled loops are not kept anywhere ({folder.removeprefix('none: ')}); set "
                "NUMBA_CACHE_DIR to a folder that you can write to"
            )
        yield f"folder of loops over NumPy chunks: {folder}"
        yield from loops.warm([g for g in only or GROUPS if g in loops.GROUPS], dtypes)
    if not gpus:
        yield left_out
        return
    kinds = [np.dtype(name) for name in dtypes] or WARM
    folder = disk_cache.describe()
    if folder.startswith("none: "):
        raise UserError(
            f"compiled kernels are not kept anywhere ({folder.removeprefix('none: ')}); set "
            "DASK_COOP_CACHE to a folder that only you can write to"
        )
    yield f"folder of kernels: {folder}"
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
    """Return the GPUs to compile for, without duplicates."""
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
