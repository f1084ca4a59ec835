"""Read the bytes of stored chunks, from local files or from any store of Zarr; write local files.

Threads read local files themselves. Requests to other stores run in Zarr's event loop, all those of
a task at once, and never more than ``coop.files.concurrency`` in a process.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from dask_coop.files.codecs import Bytes

#: A thread keeps buffers of up to so many bytes for its next chunks.
_KEPT_BYTES = 16 << 20
#: Nanoseconds after which a change of a file gets another time of modification on any system.
SETTLING_NS = 100_000_000
#: How the names of files end that are not whole.
PARTIAL = ".partial"


class Request(NamedTuple):
    """Some bytes of an object of a store.

    Attributes
    ----------
    key : str
    begin : int
        The first byte; a negative number counts from the end.
    nbytes : int or None
        None asks for all from there on.
    out : array of uint8, optional
        Where they may be put, if there are just as many.
    most : int, optional
        An object has no more bytes, unless it is damaged.
    """

    key: str
    begin: int = 0
    nbytes: int | None = None
    out: Bytes | None = None
    most: int | None = None


class Source(Protocol):
    """Where stored bytes come from.

    Attributes
    ----------
    name : str
        The store, for messages.
    """

    name: str

    def read(self, requests: Iterable[Request]) -> Generator[Bytes | None]:
        """Yield the bytes of each request, in order; None if an object does not exist.

        The next request overwrites the buffer.
        """


class _Buffers(threading.local):
    """Buffers of a thread, which it uses again for every chunk."""

    def __init__(self) -> None:
        self.kept: dict[int, Bytes] = {}


_buffers = _Buffers()


def scratch(number: int, nbytes: int) -> Bytes:
    """Return a buffer of this thread; the next call with its number overwrites it."""
    buffer = _buffers.kept.get(number)
    if buffer is None or buffer.nbytes < nbytes:
        buffer = np.empty(nbytes, "u1")
        if nbytes <= _KEPT_BYTES:
            _buffers.kept[number] = buffer
    return buffer[:nbytes]


def read_into(data: Bytes, descriptor: int, begin: int) -> None:
    """Fill `data` with the bytes of a file from `begin` on."""
    done = 0
    while done < data.nbytes:
        n = os.preadv(descriptor, [data.data[done:]], begin + done)
        if not n:
            raise ValueError(f"it was truncated to {begin + done:,} bytes meanwhile")
        done += n


def bytes_at(
    descriptor: int, begin: int, nbytes: int, out: Bytes | None, size: int | None = None
) -> Bytes:
    """Return bytes of a file, in `out` if it has as many, else in a buffer of this thread."""
    size = os.fstat(descriptor).st_size if size is None else size
    if begin + nbytes > size:
        raise ValueError(f"bytes {begin:,} to {begin + nbytes:,} are needed of {size:,}")
    data = out if out is not None and out.nbytes == nbytes else scratch(0, nbytes)
    read_into(data, descriptor, begin)
    return data


def state_of(status: os.stat_result) -> tuple[int, ...]:
    """Return a file's time of modification, size and inode."""
    return status.st_mtime_ns, status.st_size, status.st_ino


def is_settled(modified: int) -> bool:
    """Return whether another change of a file would get another time than this one."""
    return abs(time.time_ns() - modified) >= SETTLING_NS


class LocalFiles:
    """The files of a local folder.

    Parameters
    ----------
    root : str
    """

    def __init__(self, root: str) -> None:
        self.name = root

    def read(self, requests: Iterable[Request]) -> Generator[Bytes | None]:
        """Yield the bytes of each request, as `Source.read` does."""
        yield from map(self._read, requests)

    def _read(self, request: Request) -> Bytes | None:
        key, begin, nbytes, out, most = request
        try:
            descriptor = os.open(os.path.join(self.name, key), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            size = os.fstat(descriptor).st_size
            begin = max(0, size + begin) if begin < 0 else begin
            nbytes = max(0, size - begin) if nbytes is None else nbytes
            if most is not None and nbytes > most:
                raise ValueError(f"{nbytes:,} bytes are stored, and no more than {most:,} can be")
            return bytes_at(descriptor, begin, nbytes, out, size)
        except IsADirectoryError:
            return None
        finally:
            os.close(descriptor)

    def stamp(self, key: str) -> tuple[int, ...] | None:
        """Return time, size and inode of a file; None if another change may not show in them."""
        try:
            state = state_of(os.stat(os.path.join(self.name, key)))
        except OSError:
            return None
        return state if is_settled(state[0]) else None

    def states(self, keys: Iterable[str]) -> tuple[tuple[int, ...] | None, ...] | None:
        """Return time, size and inode of files, None for a missing one; None as for `stamp`."""
        states: list[tuple[int, ...] | None] = []
        for key in keys:
            try:
                state = state_of(os.stat(os.path.join(self.name, key)))
            except (FileNotFoundError, NotADirectoryError):
                states.append(None)
                continue
            if not is_settled(state[0]):
                return None
            states.append(state)
        return tuple(states)

    def write(self, key: str, buffers: Iterable[Any], sync: bool) -> None:
        """Write a file, which has its name once it is whole.

        Parameters
        ----------
        key : str
        buffers : iterable of bytes-like
            Its bytes, one after another.
        sync : bool
            Whether they are on the disk, not only in the page cache, before this returns.
        """
        path = os.path.join(self.name, key)
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{process()}.{uuid.uuid4().hex}{PARTIAL}")
        os.makedirs(folder, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                for buffer in buffers:
                    file.write(buffer)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if sync:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def delete(self, key: str) -> None:
        """Remove a file, if there is one."""
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(self.name, key))

    def delete_partial(self) -> None:
        """Remove temporary files of processes of this host that have been killed."""
        host, _, _ = process().rpartition("-")
        for folder, _, names in os.walk(self.name):
            for name in names:
                if not name.endswith(PARTIAL) or name.count(".") < 3:
                    continue
                owner, _, number = name.split(".")[-3].rpartition("-")
                if owner == host and number.isdecimal() and not _is_alive(int(number)):
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, name))


def process() -> str:
    """Return a name for this process, different from those of others on any host."""
    return f"{os.uname().nodename.replace('.', '_')}-{os.getpid()}"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class ZarrStore:
    """Any store of Zarr, which may be remote.

    Parameters
    ----------
    store : zarr.abc.store.Store
    path : str
        Of the array in it.
    concurrency : int
        The most requests of this process at a time.
    """

    def __init__(self, store: Any, path: str, concurrency: int) -> None:
        self.name: str = f"{store}/{path}".rstrip("/")
        self._store, self._path, self._concurrency = store, path, concurrency

    def read(self, requests: Iterable[Request]) -> Generator[Bytes | None]:
        """Yield the bytes of each request, as `Source.read` does."""
        import zarr
        from zarr.core.sync import sync

        timeout, loop = zarr.config.get("async.timeout"), sync(_running_loop())
        # Answers wait in memory, so a task has no more requests open than a process may have.
        waiting, ahead = iter(requests), self._concurrency
        asked: deque[Any] = deque()
        try:
            while True:
                for request in islice(waiting, ahead - len(asked)):
                    asked.append(asyncio.run_coroutine_threadsafe(self._get(request), loop))
                if not asked:
                    return
                yield asked[0].result(timeout)
                asked.popleft()
        finally:
            # Also the one that has not come in time: others wait for its place.
            for future in asked:
                future.cancel()

    async def _get(self, request: Request) -> Bytes | None:
        from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
        from zarr.core.buffer.cpu import buffer_prototype

        key, begin, nbytes, _, _ = request
        byte_range: Any = None
        if nbytes is not None:
            byte_range = RangeByteRequest(begin, begin + nbytes)
        elif begin:
            byte_range = OffsetByteRequest(begin) if begin > 0 else SuffixByteRequest(-begin)
        path = f"{self._path}/{key}" if self._path else key
        async with _gate(self._concurrency):
            got = await self._store.get(path, buffer_prototype, byte_range)
        if got is None:
            return None
        data = np.frombuffer(got.as_buffer_like(), "u1")
        if nbytes is not None and data.nbytes != nbytes:
            raise ValueError(f"{data.nbytes:,} bytes were read of {nbytes:,}")
        return data


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


#: Semaphores by event loop, because a fork gets a new loop.
_gates: weakref.WeakKeyDictionary[Any, dict[int, asyncio.Semaphore]] = weakref.WeakKeyDictionary()


def _gate(most: int) -> asyncio.Semaphore:
    """Return the semaphore of the running loop for `most` requests."""
    gates = _gates.setdefault(asyncio.get_running_loop(), {})
    return gates.setdefault(most, asyncio.Semaphore(most))
