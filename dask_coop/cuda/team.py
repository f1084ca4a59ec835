"""Launch cooperative kernels on several GPUs of one process.

A launch is one cuLaunchCooperativeKernelMultiDevice, which the driver has for CUDA 12 and 13; the
runtime's cudaLaunchCooperativeKernelMultiDevice is gone from 13. Every GPU gets the same kernel,
grid, block and shared memory, and a stream of its own that is not the default one. The launch
starts when the earlier work of all these streams is done, so no GPU waits at the barrier of
kernels/barrier.cuh for earlier work of another.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence, Set
from functools import cache
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from dask_coop.cuda.devices import attribute, device
from dask_coop.cuda.launch import counted_launch, load
from dask_coop.cuda.peers import connect
from dask_coop.cuda.programs.multichunk import MOST, PEERS
from dask_coop.cuda.sharing import once
from dask_coop.errors import CooperativeTimeout

#: Held while a launch is queued: launches must be queued in the same order on all GPUs.
_lock = threading.Lock()

#: The GPUs of this process and their timeout, if launches over several GPUs are enabled.
_shared: tuple[tuple[int, ...], float] | None = None


class Team:
    """GPUs that multi-chunk launches run on; one GPU is a team too.

    Parameters
    ----------
    ordinals : sequence of int
        At most `dask_coop.cuda.programs.multichunk.MOST`.
    timeout : float
        Seconds that a GPU waits at a barrier for the others before all give up.

    Attributes
    ----------
    objection : str
        Why launches over these GPUs are impossible; "" if they are possible.
    """

    def __init__(self, ordinals: Sequence[int], timeout: float) -> None:
        self.ordinals: tuple[int, ...] = tuple(ordinals)
        self.timeout = timeout
        self.objection: str = _objection(self.ordinals, connect(self.ordinals))
        # Plain device memory, because GPUs may not reach that of other allocators.
        self._pool = cupy.cuda.MemoryPool()
        self._epoch = 0
        self._streams: dict[int, Any] = {}
        self._flags: dict[int, Any] = {}
        for ordinal in self.ordinals:
            with cupy.cuda.Device(ordinal):
                self._streams[ordinal] = cupy.cuda.Stream(non_blocking=True)
                # A flag for each GPU, and the number of blocks that have reached a barrier.
                self._flags[ordinal] = self.zeros(ordinal, MOST + 1, "u4")
                cupy.cuda.get_current_stream().synchronize()
        # In host memory, so that reading it costs no copy.
        self._pinned = cupy.cuda.alloc_pinned_memory(4 * MOST)
        self._failed = np.frombuffer(self._pinned, "u4", MOST)
        self._failed[:] = 0

    def empty(self, ordinal: int, n: int, dtype: Any) -> Any:
        """Return an array on a GPU that the other GPUs can read and write."""
        with cupy.cuda.Device(ordinal), cupy.cuda.using_allocator(self._pool.malloc):
            return cupy.empty(n, dtype)

    def zeros(self, ordinal: int, n: int, dtype: Any) -> Any:
        """Return an array of zeros on a GPU that the other GPUs can read and write."""
        with cupy.cuda.Device(ordinal):
            array = self.empty(ordinal, n, dtype)
            array.data.memset_async(0, array.nbytes)
            return array

    def launch(
        self,
        source: str,
        blocks: int,
        threads: int,
        shared: int,
        ordinals: Sequence[int],
        arguments: Callable[[int, Any, Any], Sequence[Any]],
        what: str,
        wait: bool = True,
    ) -> None:
        """Launch `source` on some of the GPUs and wait until all are done.

        Parameters
        ----------
        source : str
            A program of `dask_coop.cuda.programs.multichunk`.
        blocks, threads, shared : int
            The grid, the block and its dynamic shared memory in bytes, the same for every GPU. All
            blocks must run at the same time: see `most_blocks`.
        ordinals : sequence of int
            The GPUs, in the order of their ranks.
        arguments : callable
            Returns the NumPy scalars of a rank; called with the rank, its `Peers` and the epoch.
        what : str
            The name of the launch in an error's message.
        wait : bool
            Whether to wait; only a kernel with a barrier must.

        Raises
        ------
        CooperativeTimeout
            If a GPU did not reach the barrier in time.
        """
        with _lock:
            self._epoch = (self._epoch + 1) % (1 << 32)
            epoch = np.uint32(self._epoch)
            scalars = []
            for rank, ordinal in enumerate(ordinals):
                scalars.append(arguments(rank, self._peers(rank, ordinals), epoch))
                with cupy.cuda.Device(ordinal):
                    # CuPy's current stream may still be computing the kernel's input.
                    self._streams[ordinal].wait_event(cupy.cuda.get_current_stream().record())
            streams = [self._streams[ordinal].ptr for ordinal in ordinals]
            launch_on_all(source, blocks, threads, ordinals, streams, scalars, shared)
            for ordinal in ordinals:
                with cupy.cuda.Device(ordinal):
                    # However the wait below ends, later work must not reuse the memory too early.
                    cupy.cuda.get_current_stream().wait_event(self._streams[ordinal].record())
            if not wait:
                return
            for ordinal in ordinals:
                self._streams[ordinal].synchronize()
            late = [(rank, int(self._failed[rank]) - 1) for rank in range(len(ordinals))]
            self._failed[:] = 0
        if waits := [f"GPU {ordinals[a]} for GPU {ordinals[b]}" for a, b in late if b >= 0]:
            raise CooperativeTimeout(
                f"{what} gave up after {self.timeout:g} s at the barrier: {', '.join(waits)}; "
                "coop.barrier-timeout sets how long to wait"
            )

    def _peers(self, rank: int, ordinals: Sequence[int]) -> Any:
        peers = np.zeros((), PEERS)
        flags = [self._flags[ordinal].data.ptr for ordinal in ordinals]
        peers["flags"][: len(flags)] = flags
        peers["arrived"] = flags[rank] + 4 * MOST
        peers["failed"] = self._failed.ctypes.data + 4 * rank
        peers["timeout"] = int(self.timeout * 1e9)
        peers["rank"], peers["count"] = rank, len(flags)
        return peers


def share(ordinals: Sequence[int], timeout: float) -> None:
    """Enable launches of this process over several of these GPUs; see `Team`."""
    global _shared
    _shared = tuple(ordinals), timeout


def team_of(ordinals: Sequence[int]) -> Team | None:
    """Return the team for launches over GPUs; None for several GPUs before a call of `share`."""
    if len(ordinals) == 1:
        # The timeout does not matter, as there is no other GPU to wait for.
        return _team(tuple(ordinals), 30.0)
    return None if _shared is None else _team(*_shared)


_team = once(Team)


def _objection(ordinals: tuple[int, ...], connected: Set[tuple[int, int]]) -> str:
    several = len(ordinals) > 1
    if len(ordinals) > MOST:
        return f"a launch takes up to {MOST} GPUs, not {len(ordinals)}"
    if several and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        return "CUDA_LAUNCH_BLOCKING lets one GPU wait for another that is not yet launched on"
    if several and _is_sanitized():
        return "compute-sanitizer runs kernels one at a time"
    facts = {device(ordinal) for ordinal in ordinals}
    if len(facts) > 1:
        names = sorted({f"{fact.arch} with {fact.processors} processors" for fact in facts})
        return f"the GPUs differ: {', '.join(names)}"
    for ordinal in ordinals:
        if not attribute(ordinal, "COOPERATIVE_MULTI_DEVICE_LAUNCH"):
            return f"GPU {ordinal} takes no cooperative multi-device launch"
        for peer in ordinals:
            if peer != ordinal and (ordinal, peer) not in connected:
                return f"GPU {ordinal} cannot reach the memory of GPU {peer}"
    return ""


def launch_on_all(
    source: str,
    blocks: int,
    threads: int,
    ordinals: Sequence[int],
    streams: Sequence[int],
    arguments: Sequence[Sequence[Any]],
    shared: int = 0,
) -> None:
    """Launch `source` on several GPUs by one cuLaunchCooperativeKernelMultiDevice.

    Parameters
    ----------
    source : str
        A program of `dask_coop.cuda.programs.multichunk`.
    blocks, threads, shared : int
        The grid, the block and its dynamic shared memory in bytes, of every GPU.
    ordinals, streams : sequences of int
        The GPUs, and the addresses of one stream on each.
    arguments : sequence of sequences of NumPy scalars
        The kernel's arguments for each GPU.
    """
    # Keeps the memory of the arguments alive until the launch.
    references: list[Any] = []
    launches = []
    for ordinal, stream, values in zip(ordinals, streams, arguments, strict=True):
        launch = driver.CUDA_LAUNCH_PARAMS()
        launch.function = function(source, ordinal)
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = blocks, 1, 1
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = threads, 1, 1
        launch.sharedMemBytes = shared
        launch.hStream = driver.CUstream(stream)
        cells = [np.array(value) for value in values]
        addresses = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        launch.kernelParams = ctypes.addressof(addresses)
        references += [cells, addresses]
        launches.append(launch)
    with counted_launch(source):
        _check(driver.cuLaunchCooperativeKernelMultiDevice(launches, len(launches), 0))


@cache
def function(source: str, ordinal: int) -> Any:
    """Return the kernel of `source` as a function of one GPU's context.

    It may use all the shared memory that a block can have there.
    """
    attributes = driver.CUfunction_attribute
    with cupy.cuda.Device(ordinal):
        # If all arrays came from CuPy's pool, this thread may have no context yet.
        cupy.cuda.runtime.setDevice(ordinal)
        kernel = _check(driver.cuKernelGetFunction(load(source, ordinal).handle))
        static = attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        most = device(ordinal).shared_bytes - int(_check(driver.cuFuncGetAttribute(static, kernel)))
        dynamic = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(driver.cuFuncSetAttribute(kernel, dynamic, most))
    return kernel


@cache
def most_blocks(source: str, ordinals: tuple[int, ...], threads: int, shared: int) -> int:
    """Return the number of blocks that every one of these GPUs can run at the same time."""
    fitting = []
    for ordinal in ordinals:
        kernel = function(source, ordinal)
        with cupy.cuda.Device(ordinal):
            occupancy = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, threads, shared)
        fitting.append(device(ordinal).processors * int(_check(occupancy)))
    return min(fitting)


def _check(answer: tuple[Any, ...]) -> Any:
    error, *values = answer
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver refused a launch on several GPUs: {error}")
    return values[0] if values else None


def _is_sanitized() -> bool:
    """Return whether compute-sanitizer is loaded into this process."""
    try:
        with open("/proc/self/maps") as maps:
            return any("sanitizer" in line for line in maps)
    except OSError:
        return False
