"""Compiled loops of the threads that copy between the host and a GPU.

A thread runs one loop an array, and no Python for the array's tiles::

    fill     host memory or file --> buffer --driver--> GPU memory
    drain    GPU memory --driver--> buffer --> host memory

All threads of an array take its tiles from one counter; a counter past the end stops them. A loop
returns 0, an error of the driver, the negative of an `errno`, or `ENDED`.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EINTR
from typing import Any, NamedTuple

import llvmlite.ir
import numpy as np
from numba import extending, types

from dask_coop.compiled.jit import jit
from dask_coop.cuda.ring import ENDED, STOPPED, FileRange

Array = np.ndarray[Any, Any]

#: Alignment of addresses, positions and lengths of reads past the page cache.
DIRECT_BYTES = 4096

#: Bytes of a cache line, the unit of stores past the caches.
_LINE_BYTES = 64


class Functions(NamedTuple):
    """Addresses of C functions; those of the CUDA driver return 0 or an error."""

    #: cuMemcpyAsync, of target, source, bytes and stream.
    copy: int
    #: cuEventSynchronize, of an event.
    finish: int
    #: cuStreamWaitEvent, of stream, event and flags.
    follow: int
    #: cuEventRecord, of event and stream.
    record: int
    #: pread, of descriptor, address, bytes and offset.
    read: int


class Job(NamedTuple):
    """A copy of an array, of which each thread takes tiles of some bytes."""

    target: int
    source: int
    nbytes: int
    tile: int
    #: The address of the counter of bytes, where the next tile begins.
    counter: int
    #: The event that copies to the GPU wait for.
    start: int
    #: The stream that waits for the copies, unless negative; 0 is the default stream.
    after: int = -1


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Return a Numba function with the type and the LLVM code that `function` returns."""
    return extending.intrinsic(function)


_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
_errno_location = types.ExternalFunction("__errno_location", types.intp())


@_intrinsic
def _call(context: Any, address: Any, arguments: Any) -> Any:
    """Call the C function at an address with 64-bit integers; it returns an int."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        inner = llvmlite.ir.IntType(64)
        returned = llvmlite.ir.IntType(32)
        function = llvmlite.ir.FunctionType(returned, [inner] * len(arguments))
        pointer = builder.inttoptr(values[0], function.as_pointer())
        integers = [builder.extract_value(values[1], i) for i in range(len(arguments))]
        return builder.call(pointer, integers)

    return types.int32(types.int64, types.UniTuple(types.int64, len(arguments))), generate


@_intrinsic
def _add(context: Any, address: Any, value: Any) -> Any:
    """Add atomically to the 64-bit integer at an address, and return its previous value."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], llvmlite.ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, values[1], "monotonic")

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def _load(context: Any, address: Any) -> Any:
    """Return the int at an address."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(builder.inttoptr(values[0], llvmlite.ir.IntType(32).as_pointer()))

    return types.int32(types.int64), generate


@_intrinsic
def _store_line(context: Any, target: Any, source: Any) -> Any:
    """Copy a cache line past the caches; the target must be aligned."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        line = llvmlite.ir.VectorType(llvmlite.ir.IntType(64), _LINE_BYTES // 8).as_pointer()
        loaded = builder.load(builder.inttoptr(values[1], line), align=1)
        stored = builder.store(loaded, builder.inttoptr(values[0], line), align=_LINE_BYTES)
        true = llvmlite.ir.Constant(llvmlite.ir.IntType(32), 1)
        stored.set_metadata("nontemporal", builder.module.add_metadata([true]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def _fence(context: Any) -> Any:
    """Make stores past the caches visible to other threads."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@jit
def store(target: int, source: int, nbytes: int) -> None:
    """Copy bytes past the caches, without reading the target first."""
    head = min(-target % _LINE_BYTES, nbytes)
    _memcpy(target, source, head)
    end = nbytes - (nbytes - head) % _LINE_BYTES
    for i in range(head, end, _LINE_BYTES):
        _store_line(target + i, source + i)
    _memcpy(target + end, source + end, nbytes - end)
    _fence()


@jit
def _gather(rows: Array, run: int, source: int, address: int, begin: int, nbytes: int) -> None:
    """Copy `nbytes` of an array in C order, from byte `begin` on, whose memory is runs of bytes.

    A row of `rows` is the number of runs along an axis, and the bytes from one to the next.
    """
    done = 0
    while done < nbytes:
        number, skip = divmod(begin + done, run)
        start = source + skip
        for axis in range(len(rows) - 1, -1, -1):
            number, index = divmod(number, rows[axis, 0])
            start += index * rows[axis, 1]
        length = min(run - skip, nbytes - done)
        _memcpy(address + done, start, length)
        done += length


@jit
def _read(
    read: int, file: tuple[int, int, bool], address: int, begin: int, nbytes: int
) -> tuple[int, int]:
    """Read bytes of a file; return their offset from `address`, and 0 or an error."""
    descriptor, offset, direct = file
    grain = DIRECT_BYTES if direct else 1
    skip = (offset + begin) % grain
    start = offset + begin - skip
    wanted = (skip + nbytes + grain - 1) // grain * grain
    done = 0
    while True:
        count = _call(read, (descriptor, address + done, wanted - done, start + done))
        if count < 0:
            number = _load(_errno_location())
            if number != EINTR:
                return skip, -number
        elif done + count >= skip + nbytes:
            return skip, 0
        elif count < grain:
            return skip, ENDED
        else:
            # The next read must be aligned, too.
            done += count - count % grain


@jit
def _fill(
    functions: tuple[int, ...],
    job: tuple[int, ...],
    rows: Array,
    run: int,
    file: tuple[int, int, bool],
    buffers: Array,
) -> int:
    copy, finish, follow, record, read = functions
    target, source, end, tile, counter, start, after = job
    status, turn = 0, 0
    begin = _add(counter, tile)
    while begin < end and status == 0:
        address, stream, copied = buffers[turn % len(buffers)]
        nbytes, skip = min(tile, end - begin), 0
        # The copy engine may still be reading the buffer.
        status = _call(finish, (copied,))
        if status == 0 and file[0] < 0:
            _gather(rows, run, source, address, begin, nbytes)
        elif status == 0:
            skip, status = _read(read, file, address, begin, nbytes)
        if status == 0 and turn < len(buffers):
            status = _call(follow, (stream, start, 0))
        if status == 0:
            status = _call(copy, (target + begin, address + skip, nbytes, stream))
        if status == 0:
            status = _call(record, (copied, stream))
            begin = _add(counter, tile)
        turn += 1
    # Wait now: later these events stand for tiles of other arrays.
    for row in range(min(turn, len(buffers)) if after >= 0 else 0):
        if status == 0:
            status = _call(follow, (after, buffers[row, 2], 0))
    if status != 0:
        _add(counter, STOPPED)
    return status


@jit
def _drain(functions: tuple[int, ...], job: tuple[int, ...], buffers: Array) -> int:
    copy, finish, _, record, _ = functions
    target, source, end, tile, counter, _, _ = job
    status, row = 0, 0
    # The first byte of the tile in each buffer, -1 for an empty buffer.
    begins = np.full(len(buffers), -1)
    while begins[row] < end and status == 0:
        (address, stream, copied), begin = buffers[row], begins[row]
        if begin >= 0:
            status = _call(finish, (copied,))
            if status == 0:
                store(target + begin, address, min(tile, end - begin))
        begin = begins[row] = _add(counter, tile)
        if begin < end and status == 0:
            status = _call(copy, (address, source + begin, min(tile, end - begin), stream))
            if status == 0:
                status = _call(record, (copied, stream))
        row = (row + 1) % len(buffers)
    if status != 0:
        _add(counter, STOPPED)
    return status


# Compiled loops get plain tuples, so that machine code on disk depends on no class.


def fill(
    functions: Functions, job: Job, rows: Array, run: int, file: FileRange, buffers: Array
) -> int:
    """Copy tiles to the GPU, from the file if that has a descriptor, else from host memory.

    A row of `buffers` is the address of a buffer, its stream, and the event behind its last copy;
    `ring.runs` returns `rows` and `run`.
    """
    return _fill(tuple(functions), tuple(job), rows, run, (*file,), buffers)


def drain(functions: Functions, job: Job, buffers: Array) -> int:
    """Copy tiles from the GPU, where they are ready, to the host's memory.

    `buffers` are as for `fill`. While one buffer is emptied, the next tile comes into another.
    """
    return _drain(tuple(functions), tuple(job), buffers)
