"""Compile ahead of time: programs for GPUs, and the loops over NumPy chunks.

Both go into folders that processes share, which `info` names.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dask_coop.chunks.cupy.program_sets import GROUPS, WARM, shipped, warm
from dask_coop.cli import info, loops
from dask_coop.compiled import folders
from dask_coop.compiled.waits import WAITS
from dask_coop.cuda import compiler, disk_cache
from dask_coop.cuda.devices import Device, device, usual
from dask_coop.cuda.programs.base import CTYPES
from dask_coop.cuda.sharing import for_each
from dask_coop.errors import UserError, pip_install

#: The dtypes and architectures of archives. A GPU runs the cubins of its architecture and of older
#: ones of the same major number: these are A100, H100 and B200, and those like them.
_SHIPPED_DTYPES, _SHIPPED_ARCHS = ("float32", "float64"), ("sm_80", "sm_90", "sm_100")


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
    WAITS.tells = False
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
                f"{error}; for loops over NumPy chunks Numba is missing: `{pip_install('cpu')}`"
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


def write_archive(path: Path, dtypes: Sequence[str], archs: Sequence[str]) -> Iterator[str]:
    """Compile the programs of common statistics into a file, and yield lines on the work done.

    Parameters
    ----------
    path : pathlib.Path
        A package reads `dask_coop.cuda.archive.file()`.
    dtypes : sequence of str
        Names of dtypes of floats; if empty, float32 and float64.
    archs : sequence of str
        Architectures; if empty, "sm_80", "sm_90" and "sm_100".

    Raises
    ------
    UserError
        If a dtype or an architecture is not known, no compiler is installed, or the file cannot be
        written.
    """
    WAITS.tells = False
    for name in dtypes or _SHIPPED_DTYPES:
        if name not in _SHIPPED_DTYPES:
            raise UserError(f"--dtypes {name}: archives are for {', '.join(_SHIPPED_DTYPES)}")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise UserError(f"--archive {path}: {path.parent} is no folder that can be written to")
    programs: dict[tuple[str, str], None] = {}
    start = time.perf_counter()
    for gpu in _gpus(archs or _SHIPPED_ARCHS):
        sources = [s for name in dtypes or _SHIPPED_DTYPES for s in shipped(np.dtype(name), gpu)]
        programs |= dict.fromkeys((source, gpu.arch) for source in sources)
    for_each(lambda program: compiler.cached(*program), programs, threading.Event())
    try:
        compiler.write_archive(path, programs)
        nbytes = path.stat().st_size
    except OSError as error:
        raise UserError(f"--archive {path}: cannot write it: {error}") from error
    yield (
        f"{path}: {len(programs)} programs, {nbytes / 1e6:.1f} MB, "
        f"in {time.perf_counter() - start:.1f} s"
    )


def idle() -> None:
    """Compile common loops and programs at the lowest priority, unless all are compiled.

    One process of a user does so at a time, on each machine.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    folder = disk_cache.folder()
    with suppress(UserError, OSError):
        if folders.make(folder):
            return
        # Machines may share the folder.
        path = folder / f"warm-{platform.node()}.txt"
        with path.open("a+") as file:
            with suppress(ImportError):
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.seek(0)
            if file.read() == (now := _state()):
                return
            for _ in run((), ("float64", "float32"), ()):
                pass
            file.truncate(0)
            file.write(now)


def _state() -> str:
    """Return a text that changes with the library, the compilers and the GPUs."""
    facts = info.facts()
    names = [gpu["name"] for gpu in facts["gpus"]]
    package = Path(__file__).parents[1]
    newest = max(path.stat().st_mtime_ns for path in package.rglob("*.py"))
    return f"{package} {newest} {names} {facts['versions']} {facts['loops']}"


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
            f"there is no compiler; run `{pip_install('nvrtc')}`, or [cuda12] with a GPU"
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
