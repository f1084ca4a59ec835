"""The loops of the threads that copy between the host and a GPU, compiled by Numba.

A thread runs one loop for an array, and no Python for its pieces::

    fill     host memory or file --> buffer --driver--> GPU memory
    drain    GPU memory --driver--> buffer --> host memory

All threads of an array take its pieces from one counter; a counter past the end stops them. What a
loop returns is 0, an error of the driver, the negative of an `errno`, or `ENDED`.
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

#: What addresses, positions and lengths of reads past the page cache are multiples of.
DIRECT_BYTES = 4096

#: What is stored at a time, past the caches: a cache line.
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
    """A copy of an array, of which each thread takes pieces of some bytes."""

    target: int
    source: int
    nbytes: int
    piece: int
    #: Where the counter is; it says where the next piece begins.
    counter: int
    #: The event that copies to the GPU wait for.
    start: int
    #: The stream that waits for them, unless negative; 0 is the default stream.
    after: int = -1


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Return the function of which `function` says how it is typed, and compiled to LLVM's code."""
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
        given = [builder.extract_value(values[1], i) for i in range(len(arguments))]
        return builder.call(pointer, given)

    return types.int32(types.int64, types.UniTuple(types.int64, len(arguments))), generate


@_intrinsic
def _add(context: Any, address: Any, value: Any) -> Any:
    """Add to the 64-bit integer at an address, and return what it was; atomic."""

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
    """Copy a cache line, of which the target is aligned, past the caches."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        line = llvmlite.ir.VectorType(llvmlite.ir.IntType(64), _LINE_BYTES // 8).as_pointer()
        loaded = builder.load(builder.inttoptr(values[1], line), align=1)
        stored = builder.store(loaded, builder.inttoptr(values[0], line), align=_LINE_BYTES)
        one = llvmlite.ir.Constant(llvmlite.ir.IntType(32), 1)
        stored.set_metadata("nontemporal", builder.module.add_metadata([one]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def _fence(context: Any) -> Any:
    """Have other threads see what was stored past the caches."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@jit
def store(target: int, source: int, nbytes: int) -> None:
    """Copy bytes, of which none stays in the caches: the target is not read first."""
    head = min(-target % _LINE_BYTES, nbytes)
    _memcpy(target, source, head)
    end = nbytes - (nbytes - head) % _LINE_BYTES
    for i in range(head, end, _LINE_BYTES):
        _store_line(target + i, source + i)
    _memcpy(target + end, source + end, nbytes - end)
    _fence()


@jit
def _gather(rows: Array, run: int, source: int, address: int, begin: int, nbytes: int) -> None:
    """Copy some bytes of an array in C order, whose memory is runs of so many bytes.

    A row of `rows` is how many there are along an axis, and how many bytes are between two.
    """
    done = 0
    while done < nbytes:
        number, skip = divmod(begin + done, run)
        at = source + skip
        for axis in range(len(rows) - 1, -1, -1):
            number, index = divmod(number, rows[axis, 0])
            at += index * rows[axis, 1]
        length = min(run - skip, nbytes - done)
        _memcpy(address + done, at, length)
        done += length


@jit
def _read(
    read: int, file: tuple[int, int, bool], address: int, begin: int, nbytes: int
) -> tuple[int, int]:
    """Read some of a file, and return where in the memory that is, and 0 or an error."""
    descriptor, offset, direct = file
    grain = DIRECT_BYTES if direct else 1
    skip = (offset + begin) % grain
    at = offset + begin - skip
    wanted = (skip + nbytes + grain - 1) // grain * grain
    found = 0
    while True:
        got = _call(read, (descriptor, address + found, wanted - found, at + found))
        if got < 0:
            number = _load(_errno_location())
            if number != EINTR:
                return skip, -number
        elif found + got >= skip + nbytes:
            return skip, 0
        elif got < grain:
            return skip, ENDED
        else:
            # What is read on must be aligned again.
            found += got - got % grain


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
    target, source, end, piece, counter, start, after = job
    status, turn = 0, 0
    begin = _add(counter, piece)
    while begin < end and status == 0:
        address, stream, copied = buffers[turn % len(buffers)]
        nbytes, skip = min(piece, end - begin), 0
        # The copy engine may still read the buffer.
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
            begin = _add(counter, piece)
        turn += 1
    # Now, before pieces of other arrays are behind these events.
    for row in range(min(turn, len(buffers)) if after >= 0 else 0):
        if status == 0:
            status = _call(follow, (after, buffers[row, 2], 0))
    if status != 0:
        _add(counter, STOPPED)
    return status


@jit
def _drain(functions: tuple[int, ...], job: tuple[int, ...], buffers: Array) -> int:
    copy, finish, _, record, _ = functions
    target, source, end, piece, counter, _, _ = job
    status, row = 0, 0
    # Where the pieces in the buffers begin; none is there yet.
    begins = np.full(len(buffers), -1)
    while begins[row] < end and status == 0:
        (address, stream, copied), begin = buffers[row], begins[row]
        if begin >= 0:
            status = _call(finish, (copied,))
            if status == 0:
                store(target + begin, address, min(piece, end - begin))
        begin = begins[row] = _add(counter, piece)
        if begin < end and status == 0:
            status = _call(copy, (address, source + begin, min(piece, end - begin), stream))
            if status == 0:
                status = _call(record, (copied, stream))
        row = (row + 1) % len(buffers)
    if status != 0:
        _add(counter, STOPPED)
    return status


# Compiled loops get plain tuples: what is kept on disk shall not name classes, which may change.


def fill(
    functions: Functions, job: Job, rows: Array, run: int, file: FileRange, buffers: Array
) -> int:
    """Copy pieces to the GPU, from the host's memory or, if it has a descriptor, from the file.

    A row of `buffers` is the address of a buffer, its stream, and the event behind its last copy;
    `rows` and `run` are what `runs` returns.
    """
    return _fill(tuple(functions), tuple(job), rows, run, (*file,), buffers)


def drain(functions: Functions, job: Job, buffers: Array) -> int:
    """Copy pieces from the GPU, where they are ready, to the host's memory.

    `buffers` are as for `fill`. While a piece is copied out of one, the next comes into another.
    """
    return _drain(tuple(functions), tuple(job), buffers)
