"""Loads programs and launches them on CuPy's current stream."""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy

# Imported here and not in a function: two threads that are first to import cuda.core get in each
# other's way, and Python lets only one import this module.
from cuda.bindings import driver
from cuda.core import LaunchConfig, ObjectCode, Stream
from cuda.core import launch as launch_kernel

from dask_coop.cuda.compiler import ENTRY, load_or_compile
from dask_coop.cuda.devices import device

#: Dynamic shared memory that a block gets without asking, in bytes.
_SHARED_BYTES = 48 << 10


@cache
def _kernel(source: str, arch: str) -> Any:
    # Loaded as a library, a kernel serves every device of that architecture.
    return ObjectCode.from_cubin(load_or_compile(source, arch)).get_kernel(ENTRY)


@cache
def load(source: str, ordinal: int, shared: bool = False) -> Any:
    """Return the kernel of `source` for a GPU, allowed all its shared memory if `shared`."""
    gpu = device(ordinal)
    kernel = _kernel(source, gpu.arch)
    if shared:
        (error,) = driver.cuKernelSetAttribute(
            driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            gpu.shared_bytes,
            kernel.handle,
            driver.CUdevice(ordinal),
        )
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"device {ordinal} refused {gpu.shared_bytes} B a block: {error}")
    return kernel


def launch(source: str, blocks: int, threads: int, *arguments: Any, shared: int = 0) -> None:
    """Launch `source` on the current device and CuPy's current stream, without waiting.

    Parameters
    ----------
    source : str
        A program of `dask_coop.cuda.programs`.
    blocks, threads : int
        The size of the grid and of a block.
    *arguments
        Addresses as int, numbers as NumPy scalars.
    shared : int
        Dynamic shared memory of a block, in bytes.
    """
    ordinal = cupy.cuda.runtime.getDevice()
    # A thread whose arrays all came out of CuPy's pool may have no context yet; this binds one.
    cupy.cuda.runtime.setDevice(ordinal)
    kernel = load(source, ordinal, shared > _SHARED_BYTES)
    stream = Stream.from_handle(cupy.cuda.get_current_stream().ptr)
    launch_kernel(
        stream, LaunchConfig(grid=blocks, block=threads, shmem_size=shared), kernel, *arguments
    )
