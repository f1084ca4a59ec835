"""Decode frames on the current GPU.

The bytes of frames lie in pinned memory. A batch of them is copied to the GPU, and decoded there by
kernels that write nowhere else, whatever frames say (kernel_zstd.cuh, kernel_lz4.cuh)::

    pinned memory --copy--> stored bytes --kernels--> cells
                    rows of pieces ---------^            '--> which of them failed

All work of a thread is on one stream, so memory that is freed is used again behind what needed it.
"""

from __future__ import annotations

import threading
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import frames as programs
from dask_coop.errors import NotSupported
from dask_coop.files.gpu import frames_numba as frames

Array = Any
Host = np.ndarray[Any, Any]

#: The pinned memory of a thread, which is the most of stored bytes in a batch.
STAGED_BYTES = 16 << 20

#: Kernels read up to so many bytes behind the last one.
_BEHIND = 16

#: The blocks of Zstd that are expected for so many bytes; rows for more are made if there are more.
_BLOCK_BYTES = 64 << 10

#: The words of what kernel_zstd.cuh keeps of a block and of a sequence.
_END_WORDS, _SEQUENCE_WORDS = 4, 3


class Stage:
    """The pinned memory of a thread for one GPU, and its stream."""

    def __init__(self) -> None:
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        # Not from CuPy's pool, which would keep it.
        self._memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(STAGED_BYTES), 0)
        self.bytes: Host = np.frombuffer(self._memory, "u1", STAGED_BYTES)
        self._copied: Any = cupy.cuda.Event(disable_timing=True)

    def wait(self) -> None:
        """Wait until the memory may be overwritten."""
        self._copied.synchronize()

    def copy(self, n: int) -> Array:
        """Return a copy of the first `n` bytes on the GPU, for work on the stream."""
        there = cupy.empty(n + _BEHIND, "u1")
        runtime.memcpyAsync(
            there.data.ptr,
            self.bytes.ctypes.data,
            n,
            runtime.memcpyHostToDevice,
            self.stream.ptr,
        )
        self._copied.record(self.stream)
        return there


class _Stages(threading.local):
    """The stages of a thread, by GPU."""

    def __init__(self) -> None:
        self.of: dict[int, Stage] = {}


_stages = _Stages()


def stage() -> Stage:
    """Return the stage of this thread for the current GPU."""
    ordinal = runtime.getDevice()
    if ordinal not in _stages.of:
        _stages.of[ordinal] = Stage()
    return _stages.of[ordinal]


def decode(codec: str, width: int, pieces: Host, staged: Stage, n: int, out: Array) -> Any:
    """Decode pieces of a stage on its stream, which is the current one.

    Parameters
    ----------
    codec : {"zstd", "lz4", "blosc"}
    width : int
        The bytes of an element, for Blosc.
    pieces : array of int64
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
        If only the host can decode a piece, or tell what is wrong with it.
    """
    data, block = staged.bytes[:n], 0
    if codec == "blosc":
        codec, pieces, block = _streams(data, pieces, width)
    failed = cupy.empty(len(pieces), np.int32)
    stored = staged.copy(n)
    if codec == "lz4":
        rows = cupy.asarray(pieces)
        addresses = (rows.data.ptr, stored.data.ptr, out.data.ptr, failed.data.ptr)
        launch(programs.lz4_blocks(), len(pieces), programs.WARP, *addresses)
    else:
        _decode_zstd(data, pieces, stored, out, failed)
    return failed, block


def _streams(data: Host, chunks: Host, width: int) -> tuple[str, Host, int]:
    """Return the codec of Blosc's streams, their pieces, and how many elements are shuffled."""
    pieces = np.empty((16 * len(chunks), len(chunks[0])), np.int64)
    count, codec, block = frames.pieces_of(data, chunks, width, pieces)
    if count > len(pieces):
        pieces = np.empty((count, pieces.shape[1]), np.int64)
        count, codec, block = frames.pieces_of(data, chunks, width, pieces)
    names = {frames.LZ4: "lz4", frames.ZSTD: "zstd", frames.LEFT_OUT: "lz4"}
    if count < 0 or codec not in names:
        raise NotSupported("a chunk of Blosc of another kind")
    return names[codec], pieces[:count], block


def _decode_zstd(data: Host, pieces: Host, stored: Array, out: Array, failed: Array) -> None:
    n = len(pieces)
    expected = n + int(pieces[:, frames.SIZE].sum()) // _BLOCK_BYTES
    table = np.empty((expected, len(frames.FIELDS)), np.int64)
    firsts = np.empty(n + 1, np.int64)
    blocks, literals, sequences = frames.blocks_of(data, pieces, table, firsts)
    if blocks > expected:
        table = np.empty((blocks, table.shape[1]), np.int64)
        blocks, literals, sequences = frames.blocks_of(data, pieces, table, firsts)
    if blocks < 0:
        raise NotSupported("a frame of Zstd of another kind")
    of_frames = np.zeros((n + 1, 3), np.int64)
    of_frames[:, 0] = firsts
    of_frames[:n, 1:] = pieces[:, [frames.TARGET, frames.SIZE]]
    of_frames, rows = cupy.asarray(of_frames), cupy.asarray(table[:blocks])
    decoded = cupy.empty(literals + _BEHIND, "u1")
    steps = cupy.empty((sequences + 1, _SEQUENCE_WORDS), "u4")
    # No block has failed yet.
    ends = cupy.zeros((blocks, _END_WORDS), "u4")
    scratch = tuple(array.data.ptr for array in (rows, stored, decoded, steps, ends))
    launch(programs.zstd_blocks(), blocks, 2 * programs.WARP, *scratch)
    addresses = (of_frames.data.ptr, *scratch, out.data.ptr, failed.data.ptr)
    launch(programs.zstd_frames(), n, programs.WARP, *addresses)
