"""Decode frames on the current GPU.

The bytes of frames lie in pinned memory. A batch of them is copied to the GPU, and decoded there by
kernels that write nowhere else, whatever frames say (kernel_zstd.cuh, kernel_lz4.cuh)::

    pinned memory --copy--> stored bytes --kernels--> cells
                    rows of frames ---------^            '--> which of them failed

Threads work on streams of their own, so that their batches overlap.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from dask_coop.cuda import transfer
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import frames as programs
from dask_coop.errors import NotSupported
from dask_coop.files.gpu import frames_numba as headers

Array = Any
Host = np.ndarray[Any, Any]

#: The pinned memory of a thread, which is the most of stored bytes in a batch.
STAGED_BYTES = 16 << 20

#: What is made of a batch is aligned so, and in all has a multiple of so many bytes.
_ALIGNED, _SCRATCH = 256, 16 << 20

#: The batches of a thread that may be under way.
BATCHES = 2

#: Kernels read up to so many bytes behind the last one.
_BEHIND = 16

#: The blocks of Zstd that are expected for so many bytes; rows for more are made if there are more.
_BLOCK_BYTES = 64 << 10

#: The words of what kernel_zstd.cuh keeps of a block and of a sequence.
_END_WORDS, _SEQUENCE_WORDS = 4, 3


class Stage:
    """Pinned memory for one GPU, a stream, and the memory that work on it needs."""

    def __init__(self) -> None:
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        # Not from CuPy's pool, which would keep it.
        self._memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(STAGED_BYTES), 0)
        self.bytes: Host = np.frombuffer(self._memory, "u1", STAGED_BYTES)
        self._copied: Any = _event()
        self._stored: list[Array] = []
        #: Arrays that batches under way use, and an event behind each.
        self._used: deque[tuple[Any, tuple[Array, ...]]] = deque()

    def follow(self) -> None:
        """Have the stream wait for the caller's, after memory was allocated for that.

        Others may have freed it while what they had queued still needed it.
        """
        self.stream.wait_event(cupy.cuda.get_current_stream().record())

    def wait(self) -> None:
        """Wait until the memory may be overwritten."""
        self._copied.synchronize()

    def copy(self, n: int) -> Array:
        """Return a copy of the first `n` bytes on the GPU, for work on the stream, and hold it."""
        there = cupy.empty(STAGED_BYTES + _BEHIND, "u1")
        self.follow()
        runtime.memcpyAsync(
            there.data.ptr,
            self.bytes.ctypes.data,
            n,
            runtime.memcpyHostToDevice,
            self.stream.ptr,
        )
        self._copied.record(self.stream)
        self._stored.append(there)
        return there

    def hold(self, *arrays: Array) -> None:
        """Keep the memory of a batch until it is done, and that of few batches at a time."""
        done = _event()
        done.record(self.stream)
        self._used.append((done, (*self._stored, *arrays)))
        self._stored.clear()
        while len(self._used) > BATCHES:
            # Two statements, so that the arrays live until the event has come.
            of_first = self._used.popleft()
            of_first[0].synchronize()

    def finish(self) -> None:
        """Wait for all work, and drop the memory that it used."""
        done = _event()
        done.record(self.stream)
        done.synchronize()
        self._used.clear()
        self._stored.clear()


def _event() -> Any:
    """Return an event for which a thread waits asleep: others have work for its processor."""
    return cupy.cuda.Event(block=True, disable_timing=True)


#: Stages that no thread uses, by GPU, the last used one at the end.
_free: defaultdict[int, list[Stage]] = defaultdict(list)


@contextmanager
def stage() -> Iterator[Stage]:
    """Lend a stage for the current GPU; all work on its stream is done when the block ends.

    Memory is allocated for the caller's stream, so that it is used again for anything.
    """
    free = _free[runtime.getDevice()]
    try:
        staged = free.pop()
    except IndexError:
        staged = Stage()
    try:
        yield staged
    finally:
        staged.finish()
        free.append(staged)


def close() -> None:
    """Free the pinned memory of stages that no thread uses."""
    _free.clear()


def _forget() -> None:
    """Start anew in a forked process, which cannot free the driver's memory."""
    _inherited.append(dict(_free))
    _free.clear()


_inherited: list[dict[int, list[Stage]]] = []
transfer.CLOSED_TOO.append(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def decode(codec: str, width: int, frames: Host, staged: Stage, n: int, out: Array) -> Any:
    """Queue the decoding of frames of a stage on its stream.

    Parameters
    ----------
    codec : {"zstd", "lz4", "blosc"}
    width : int
        The bytes of an element, for Blosc.
    frames : array of int64
        A row for each, with the columns of `frames_numba`.
    staged : Stage
    n : int
        The bytes that are staged.
    out : cupy.ndarray of uint8
        Where the contents go.

    Returns
    -------
    failed : cupy.ndarray of int32
        Not 0 for frames that could not be decoded, once the stream is there.
    block : int
        How many elements Blosc has shuffled together; 0 if none.

    Raises
    ------
    NotSupported
        If only the host can decode a frame, or tell what is wrong with it.
    """
    data, block = staged.bytes[:n], 0
    if codec == "blosc":
        codec, frames, block = _streams(data, frames, width)
    failed = cupy.empty(len(frames), np.int32)
    stored = staged.copy(n)
    if codec == "lz4":
        with staged.stream:
            rows = cupy.asarray(frames)
            addresses = (rows.data.ptr, stored.data.ptr, out.data.ptr, failed.data.ptr)
            launch(programs.lz4_blocks(), len(frames), programs.WARP, *addresses)
        staged.hold(rows)
    else:
        _decode_zstd(data, frames, staged, stored, out, failed)
    return failed, block


def _streams(data: Host, chunks: Host, width: int) -> tuple[str, Host, int]:
    """Return the codec of Blosc's streams, their frames, and how many elements are shuffled."""
    frames = np.empty((16 * len(chunks), len(chunks[0])), np.int64)
    count, codec, block = headers.streams_of(data, chunks, width, frames)
    if count > len(frames):
        frames = np.empty((count, frames.shape[1]), np.int64)
        count, codec, block = headers.streams_of(data, chunks, width, frames)
    names = {headers.LZ4: "lz4", headers.ZSTD: "zstd", headers.LEFT_OUT: "lz4"}
    if count < 0 or codec not in names:
        raise NotSupported("a chunk of Blosc of another kind")
    return names[codec], frames[:count], block


def _decode_zstd(
    data: Host, frames: Host, staged: Stage, stored: Array, out: Array, failed: Array
) -> None:
    n = len(frames)
    expected = n + int(frames[:, headers.SIZE].sum()) // _BLOCK_BYTES
    table = np.empty((expected, len(headers.FIELDS)), np.int64)
    firsts = np.empty(n + 1, np.int64)
    blocks, literals, sequences = headers.blocks_of(data, frames, table, firsts)
    if blocks > expected:
        table = np.empty((blocks, table.shape[1]), np.int64)
        blocks, literals, sequences = headers.blocks_of(data, frames, table, firsts)
    if blocks < 0:
        raise NotSupported("a frame of Zstd of another kind")
    of_frames = np.zeros((n + 1, 3), np.int64)
    of_frames[:, 0] = firsts
    of_frames[:n, 1:] = frames[:, [headers.TARGET, headers.SIZE]]
    sizes = [literals + _BEHIND, 4 * _SEQUENCE_WORDS * sequences, 4 * _END_WORDS * blocks]
    places = [0, *accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]
    # Sizes are rounded up, so that a later batch finds this memory in CuPy's pool.
    scratch = cupy.empty(-(-places[-1] // _SCRATCH) * _SCRATCH, "u1")
    staged.follow()
    with staged.stream:
        # No block has failed yet.
        scratch[places[2] : places[3]].fill(0)
        frames_there, rows = cupy.asarray(of_frames), cupy.asarray(table[:blocks])
        where = (stored.data.ptr, *(scratch.data.ptr + at for at in places[:3]))
        grid, count = -(-blocks // programs.TOGETHER), np.int64(blocks)
        launch(programs.zstd_blocks(), grid, 2 * programs.WARP, rows.data.ptr, count, *where)
        addresses = (frames_there.data.ptr, rows.data.ptr, *where, out.data.ptr, failed.data.ptr)
        launch(programs.zstd_frames(), n, programs.WARP, *addresses)
    staged.hold(scratch, frames_there, rows)
