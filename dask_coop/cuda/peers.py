"""Use several GPUs in one process: locate arrays, copy between GPUs, order streams by events.

A `Node` queues all work of a GPU on that GPU's default stream, and CuPy's pool hands out memory in
the order of that stream. So an array is ready, and its memory free again, once the default stream
has reached that point; other streams wait for it by events::

    source         producer, signal ..................... wait, reuse of the memory
    copies                          wait, copy, signal
    destination        signal ........................... wait, consumer
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy
from cuda.bindings import driver
from cupy.cuda import runtime

#: The ordinal of a GPU and a stream on it; the null stream is a different one on every GPU.
Queue = tuple[int, Any]


def count() -> int:
    """Return the number of GPUs that CuPy sees."""
    return int(runtime.getDeviceCount())


def name(ordinal: int) -> str:
    """Return the name of a GPU, such as "NVIDIA H200"."""
    return str(runtime.getDeviceProperties(ordinal)["name"].decode())


def memory(ordinal: int) -> tuple[int, int, int, int]:
    """Return a GPU's bytes in arrays, in CuPy's pool, free, and in total."""
    pool = cupy.get_default_memory_pool()
    with cupy.cuda.Device(ordinal):
        free, total = runtime.memGetInfo()
        return pool.used_bytes(), pool.total_bytes(), free, total


def used(ordinal: int) -> int:
    """Return a GPU's bytes in arrays of CuPy's pool."""
    with cupy.cuda.Device(ordinal):
        return int(cupy.get_default_memory_pool().used_bytes())


def held(ordinal: int) -> int:
    """Return a GPU's bytes in CuPy's pool, in arrays or free."""
    with cupy.cuda.Device(ordinal):
        return int(cupy.get_default_memory_pool().total_bytes())


def trim(ordinal: int) -> None:
    """Free the unused memory of CuPy's pool on a GPU; this waits for the work queued there."""
    with cupy.cuda.Device(ordinal):
        cupy.get_default_memory_pool().free_all_blocks()


def outside(ordinal: int) -> int:
    """Return a GPU's bytes in use outside of CuPy's pool."""
    _, pool, free, total = memory(ordinal)
    return total - free - pool


def watch(ordinal: int) -> Any:
    """Return a context manager that counts the calling thread's allocations on a GPU.

    Its `now` and `most` are the bytes that the thread holds, and the most that it held at a time.
    """
    return _Watch(ordinal)


class _Watch(cupy.cuda.MemoryHook):  # type: ignore[misc]
    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self.now = self.most = 0
        # CuPy takes one hook a name, and a task may compute within another task.
        self.name = f"dask_coop {id(self)}"

    def malloc_postprocess(self, **event: Any) -> None:
        """Count memory that the pool has handed out."""
        if event["device_id"] == self._ordinal:
            self.now += event["mem_size"]
            self.most = max(self.most, self.now)

    def free_postprocess(self, **event: Any) -> None:
        """Count memory that the pool has received back."""
        if event["device_id"] == self._ordinal:
            self.now -= event["mem_size"]


def connect(ordinals: Sequence[int]) -> frozenset[tuple[int, int]]:
    """Enable direct access between GPUs where possible; other copies go through the host.

    Returns
    -------
    frozenset of tuples
        Pairs of ordinals: a GPU, and another one whose memory it reaches. Without NVSwitch the
        driver connects a GPU with at most eight others.

    Raises
    ------
    RuntimeError
        If CuPy is set to a default stream for each thread, or the driver fails.
    """
    if os.environ.get("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "0") not in ("", "0"):
        raise RuntimeError(
            "work on several GPUs is ordered by their default streams, which all threads must "
            "share: unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM before CuPy is imported"
        )
    # By the driver, because errors of the runtime would linger for CuPy's next call to find.
    reached = {
        driver.CUresult.CUDA_SUCCESS,
        driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
    }
    refused = {
        driver.CUresult.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        driver.CUresult.CUDA_ERROR_TOO_MANY_PEERS,
    }
    contexts, connected = {}, set[tuple[int, int]]()
    for ordinal in ordinals:
        with cupy.cuda.Device(ordinal):
            runtime.free(0)  # makes the device's context, and makes it current
            error, contexts[ordinal] = driver.cuCtxGetCurrent()
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"GPU {ordinal} has no context: {error}")
    for ordinal in ordinals:
        with cupy.cuda.Device(ordinal):
            runtime.free(0)
            for peer in ordinals:
                if peer == ordinal or not runtime.deviceCanAccessPeer(ordinal, peer):
                    continue
                (error,) = driver.cuCtxEnablePeerAccess(contexts[peer], 0)
                if error in reached:
                    connected.add((ordinal, peer))
                elif error not in refused:
                    raise RuntimeError(f"GPU {ordinal} does not reach GPU {peer}: {error}")
    return frozenset(connected)


def use(ordinal: int) -> None:
    """Make a GPU and its default stream current in the calling thread.

    An earlier task may have left another stream current, for which nothing here would wait.
    """
    runtime.setDevice(ordinal)
    cupy.cuda.Stream.null.use()


def device_of(x: Any) -> int | None:
    """Return the ordinal of an array's GPU, or None if it is not a CuPy array."""
    return int(x.data.device_id) if isinstance(x, cupy.ndarray) else None


def move(arrays: Sequence[Any], ordinal: int) -> list[Any]:
    """Return copies on one GPU of arrays on other GPUs, without waiting for the copies."""
    null = cupy.cuda.Stream.null
    dense, copies = [], []
    for x in arrays:
        with cupy.cuda.Device(x.data.device_id):
            flags = x.flags
            dense.append(
                x if flags.c_contiguous or flags.f_contiguous else cupy.ascontiguousarray(x)
            )
    with cupy.cuda.Device(ordinal):
        for x in dense:
            order = "C" if x.flags.c_contiguous else "F"
            copies.append(cupy.empty(x.shape, x.dtype, order=order))
    both = [(gpu, null) for gpu in sorted({ordinal, *(x.data.device_id for x in dense)})]
    stream = _copies(ordinal)
    _wait([(ordinal, stream)], both)
    with cupy.cuda.Device(ordinal):
        for copy, x in zip(copies, dense, strict=True):
            # Unlike a plain copy, this needs no direct access between the GPUs.
            ends = copy.data.ptr, ordinal, x.data.ptr, x.data.device_id
            if x.nbytes:
                runtime.memcpyPeerAsync(*ends, x.nbytes, stream.ptr)
    # `dense` keeps its memory until the wait is queued.
    _wait(both, [(ordinal, stream)])
    return copies


@cache
def _copies(ordinal: int) -> Any:
    """Return the stream of the copies to a GPU.

    On a default stream, a copy would wait for all work queued on both GPUs.
    """
    with cupy.cuda.Device(ordinal):
        return cupy.cuda.Stream(non_blocking=True)


def follow_caller(ordinals: Sequence[int]) -> None:
    """Make the GPUs wait for the work queued on the calling thread's current streams."""
    _wait(_defaults(ordinals), _callers(ordinals))


def lead_caller(ordinals: Sequence[int]) -> None:
    """Make the calling thread's current streams wait for the work queued on the GPUs."""
    _wait(_callers(ordinals), _defaults(ordinals))


@contextmanager
def on_default_streams(ordinals: Sequence[int]) -> Iterator[None]:
    """Make the GPUs' default streams current; restore the streams and the GPU at the end."""
    current, null = int(runtime.getDevice()), cupy.cuda.Stream.null
    streams = [(ordinal, cupy.cuda.get_current_stream(ordinal)) for ordinal in ordinals]
    other = [(ordinal, stream) for ordinal, stream in streams if stream != null]
    try:
        for ordinal, _ in other:
            with cupy.cuda.Device(ordinal):
                null.use()
        yield
    finally:
        for ordinal, stream in other:
            with cupy.cuda.Device(ordinal):
                stream.use()
        runtime.setDevice(current)


def _defaults(ordinals: Sequence[int]) -> list[Queue]:
    return [(ordinal, cupy.cuda.Stream.null) for ordinal in ordinals]


def _callers(ordinals: Sequence[int]) -> list[Queue]:
    """Return the calling thread's current streams, except other GPUs' default streams."""
    current = int(runtime.getDevice())
    queues = [(current, cupy.cuda.get_current_stream())]
    for ordinal in ordinals:
        if ordinal != current:
            stream = cupy.cuda.get_current_stream(ordinal)
            if stream != cupy.cuda.Stream.null:
                queues.append((ordinal, stream))
    return queues


def _wait(later: Iterable[Queue], earlier: Iterable[Queue]) -> None:
    """Make streams wait for the work queued so far on others."""
    events = []
    for ordinal, stream in earlier:
        with cupy.cuda.Device(ordinal):
            event = cupy.cuda.Event(disable_timing=True)
            event.record(stream)
            events.append((ordinal, stream, event))
    for ordinal, stream in later:
        with cupy.cuda.Device(ordinal):
            for source, recorded, event in events:
                if source != ordinal or recorded != stream:
                    stream.wait_event(event)
