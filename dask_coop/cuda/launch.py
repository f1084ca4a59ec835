"""Load programs and launch them on CuPy's current stream.

A program is compiled, or read from disk, at its first launch. Threads that need the same program
wait for one of them; several programs of one call are compiled in parallel.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import cupy

# Imported here and not in a function: concurrent first imports of cuda.core fail, and Python lets
# only one thread import this module.
from cuda.bindings import driver
from cuda.core import LaunchConfig, ObjectCode, Stream
from cuda.core import launch as launch_kernel

from dask_coop.cuda.compiler import ENTRY, load_or_compile
from dask_coop.cuda.devices import device
from dask_coop.cuda.sharing import begin, once
from dask_coop.meters import KERNELS, count

#: NVTX, which marks ranges in a profile of the process; None if CuPy was built without it.
RANGES = cupy.cuda.nvtx if cupy.cuda.nvtx.available else None

#: Bytes of dynamic shared memory that a block gets without an attribute of the kernel.
_SHARED_BYTES = 48 << 10

#: The largest cluster that every GPU with clusters supports.
_PORTABLE_CLUSTER = 8


@once
def _code(source: str, arch: str) -> Any:
    # The driver loads it once as a library for all devices of `arch`.
    return ObjectCode.from_cubin(load_or_compile(source, arch))


def prepare(*sources: str) -> None:
    """Start to compile the programs of the current device's next launches in parallel.

    This does not wait; `load` does, and raises if its program does not compile.
    """
    arch = device(cupy.cuda.runtime.getDevice()).arch
    # The caller's own launch compiles the first.
    begin(_code, [(source, arch) for source in dict.fromkeys(sources)][1:])


@cache
def load(source: str, ordinal: int, shared: bool = False, cluster: int = 1) -> Any:
    """Return the kernel of `source` for a GPU, allowed all shared memory of a block if `shared`."""
    gpu = device(ordinal)
    kernel = _code(source, gpu.arch).get_kernel(ENTRY)
    attribute = driver.CUfunction_attribute
    if shared:
        _set(
            kernel,
            ordinal,
            attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            gpu.shared_bytes,
        )
    if cluster > _PORTABLE_CLUSTER:
        _set(kernel, ordinal, attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    return kernel


def _set(kernel: Any, ordinal: int, attribute: Any, value: int) -> None:
    (error,) = driver.cuKernelSetAttribute(
        attribute, value, kernel.handle, driver.CUdevice(ordinal)
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"device {ordinal} refused {attribute.name} = {value}: {error}")


@cache
def _stream(ordinal: int, handle: int) -> Any:
    """Return cuda.core's view of a CuPy stream; cached, as making one costs as much as a launch."""
    return Stream.from_handle(handle)


def launch(
    source: str,
    blocks: int,
    threads: int,
    *arguments: Any,
    shared: int = 0,
    cluster: int = 1,
    cooperative: bool = False,
) -> None:
    """Launch `source` on the current device and CuPy's current stream, without waiting.

    Parameters
    ----------
    source : str
        A program of `dask_coop.cuda.programs`.
    blocks, threads : int
        The sizes of the grid, a multiple of `cluster`, and of a block.
    *arguments
        Addresses as int, numbers as NumPy scalars.
    shared : int
        Dynamic shared memory of a block, in bytes.
    cluster : int
        Blocks of a thread block cluster; more than 1 needs a GPU with `Device.hopper`.
    cooperative : bool
        Whether all blocks must run at the same time, because they wait for one another.
    """
    ordinal = cupy.cuda.runtime.getDevice()
    # If all arrays came from CuPy's pool, this thread may have no context yet; this binds one.
    cupy.cuda.runtime.setDevice(ordinal)
    kernel = load(source, ordinal, shared > _SHARED_BYTES, cluster)
    stream = _stream(ordinal, cupy.cuda.get_current_stream().ptr)
    config = LaunchConfig(
        # With a cluster, cuda.core counts the grid in clusters.
        grid=blocks // cluster,
        cluster=cluster if cluster > 1 else None,
        block=threads,
        shmem_size=shared,
        is_cooperative=cooperative,
    )
    with counted_launch(source):
        launch_kernel(stream, config, kernel, *arguments)


class counted_launch:
    """Count the launch within, and mark it in a profile by the name of its template.

    This is a class because a generator would take a quarter of the time of a launch.
    """

    def __init__(self, source: str) -> None:
        count(KERNELS)
        if RANGES is not None:
            RANGES.RangePush(_template(source))

    def __enter__(self) -> None:
        """Do nothing, as the range has begun."""

    def __exit__(self, *error: object) -> None:
        """End the range."""
        if RANGES is not None:
            RANGES.RangePop()


@cache
def _template(source: str) -> str:
    """Return the name of the template that a program calls last, such as "reduce_rows"."""
    called: list[str] = re.findall(r"^ +(\w+)[<(]", source, re.MULTILINE)
    return called[-1] if called else ENTRY
