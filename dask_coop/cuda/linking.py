"""Link programs with the device runtime of CUDA 12, which has its multi_grid_group."""

from __future__ import annotations

import hashlib
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

_INSTALL = "install nvidia-cuda-runtime-cu12>=12.9 and nvidia-cuda-cccl-cu12"


@cache
def toolkit() -> tuple[Path, Path]:
    """Return CUDA 12's folder of headers and the path of its libcudadevrt.a.

    Both come from one installation: with CUDA 13's library the barrier links, runs and does not
    wait.

    Raises
    ------
    RuntimeError
        If NVRTC is of another CUDA release.
    FileNotFoundError
        If there is no such folder; the message names what to install.
    """
    from cuda.bindings import nvrtc
    from cuda.pathfinder import find_nvidia_header_directory

    _, major, minor = nvrtc.nvrtcVersion()
    if major != 12:
        raise RuntimeError(f"multi_grid_group needs the NVRTC of CUDA 12; this is {major}.{minor}")
    cudart = find_nvidia_header_directory("cudart")
    folders = [Path(cudart)] if cudart else []
    homes = map(os.environ.get, ("CUDA_PATH", "CUDA_HOME"))
    folders += [Path(home) / "include" for home in homes if home]
    for folder in folders:
        header = folder / "cooperative_groups.h"
        if not header.is_file() or "this_multi_grid" not in header.read_text():
            continue
        for name in ("lib64", "lib"):
            library = folder.parent / name / "libcudadevrt.a"
            if library.is_file():
                return folder, library
    looked = ", ".join(str(folder.parent) for folder in folders) or "no folder"
    raise FileNotFoundError(
        f"CUDA 12's cooperative_groups.h and libcudadevrt.a are not in {looked}: "
        f"{_INSTALL}, or set CUDA_HOME"
    )


@cache
def include_folders() -> tuple[str, ...]:
    """Return the folders of cooperative_groups.h and of nv/target, which it includes.

    Raises
    ------
    FileNotFoundError
        If one is missing; the message names what to install.
    """
    from cuda.pathfinder import find_nvidia_header_directory

    headers, _ = toolkit()
    if (headers / "nv" / "target").is_file():
        return (str(headers),)
    cccl = find_nvidia_header_directory("cccl")
    if cccl is None:
        raise FileNotFoundError(f"CUDA's header nv/target is missing: {_INSTALL}")
    return str(headers), cccl


@cache
def digest() -> bytes:
    """Return a digest of the files outside kernels/ that linked programs depend on."""
    headers, library = toolkit()
    details = headers / "cooperative_groups" / "details"
    total = hashlib.sha256()
    for file in (headers / "cooperative_groups.h", *sorted(details.glob("*.h")), library):
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return total.digest()


def link(code: Any, arch: str) -> bytes:
    """Return the cubin of relocatable code linked with the device runtime."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    with warnings.catch_warnings():
        # cuda.core warns if there is no nvJitLink; then the driver links just as well.
        warnings.simplefilter("ignore", RuntimeWarning)
        library = ObjectCode.from_library(str(toolkit()[1]))
        linker = Linker(code, library, options=LinkerOptions(name="dask_coop", arch=arch))
    return bytes(linker.link("cubin").code)
