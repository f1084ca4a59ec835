"""Arrays of .npy files, and the files behind memory-mapped arrays.

Tasks carry only the path of an .npy file, and map it when they need a chunk. The chunks of a
process are views of one map, which is closed when the last of them is gone.

GPUs read a file rather than its map:

    array --base--> array --base--> mmap <--/proc/self/maps--> file

NumPy keeps the name of a mapped file, but another file may have that name by now. The kernel knows
which file is mapped. `find` returns None unless the file of that name is surely the mapped one, the
map is shared (a private map may differ from its file), and elements are in C order and native byte
order. The array is then read like any other.

There is one descriptor for each map, closed with the map. No lock is needed: if two threads open
one at the same time, the second closes its own.
"""

from __future__ import annotations

import os
import random
import stat
import sys
import weakref
from dataclasses import dataclass
from mmap import ACCESS_READ, PAGESIZE, mmap
from typing import Any, Literal, NamedTuple

import numpy as np

#: Whether to read past the page cache: always, never, or where the file would flood it.
Direct = bool | Literal["auto"]

#: Files of more than this fraction of the available memory would flood the page cache.
FLOODING = 0.5

#: The number of random pages of a chunk to look up in the page cache.
SAMPLES = 16


class Place(NamedTuple):
    """The place of an array's bytes in a file.

    Attributes
    ----------
    descriptor : int
        An open file, while the array lives.
    offset : int
        The position of the first byte in the file.
    direct : bool
        Whether the descriptor was opened with O_DIRECT, which needs aligned reads.
    """

    descriptor: int
    offset: int
    direct: bool


class MappedFile:
    """The file of a map, opened once more.

    Parameters
    ----------
    descriptor : int
        `close` closes it.
    begin : int
        The position in the file where the map begins.
    writable : bool
        Whether the map may write to the file.
    """

    def __init__(self, descriptor: int, begin: int = 0, writable: bool = False) -> None:
        self.descriptor: int = descriptor
        self.begin: int = begin
        self.writable: bool = writable
        self._direct: dict[str, int | None] = {}

    def direct(self) -> int | None:
        """Return a descriptor that reads past the page cache; None if not supported."""
        if "descriptor" not in self._direct:
            opened = _open_direct(self.descriptor)
            if self._direct.setdefault("descriptor", opened) != opened and opened is not None:
                os.close(opened)
        return self._direct["descriptor"]

    def close(self) -> None:
        """Close all open descriptors."""
        for descriptor in (self.descriptor, self._direct.get("descriptor")):
            if descriptor is not None:
                os.close(descriptor)


#: The files of maps; None if a file is uncertain.
_files: weakref.WeakKeyDictionary[mmap, MappedFile | None] = weakref.WeakKeyDictionary()


def find(x: np.ndarray[Any, Any], direct: Direct = "auto") -> Place | None:
    """Return the place of the bytes of `x` in a file, or None if it is uncertain.

    Parameters
    ----------
    x : numpy.ndarray
    direct : bool or "auto"
        Whether to read past the page cache where the file system can; "auto" does so for files
        that are large compared to the available memory, unless the page cache has the bytes.

    Raises
    ------
    OSError
        If the file has become too short; access to the map would end the process.
    """
    if sys.platform != "linux" or x.dtype.hasobject:
        return None
    if not (x.nbytes and x.flags.c_contiguous and x.dtype.isnative):
        return None
    mapped = map_of(x)
    if mapped is None or mapped.closed:
        return None
    start = _address(np.frombuffer(mapped, "u1"))
    within = _address(x) - start
    if not 0 <= within <= len(mapped) - x.nbytes:
        return None
    if mapped not in _files:
        _keep(mapped, _identify(start))
    file = _files[mapped]
    if file is None:
        return None
    offset = file.begin + within
    size = os.fstat(file.descriptor).st_size
    if size < offset + x.nbytes:
        raise OSError(
            f"{name_of(file.descriptor)} was truncated while in use: it has {size} bytes, and "
            f"{offset + x.nbytes} are needed"
        )
    if _wants_direct(direct, file, offset, x.nbytes, size) and (past := file.direct()) is not None:
        return Place(past, offset, True)
    return Place(file.descriptor, offset, False)


def name_of(descriptor: int) -> str:
    """Return the path of an open file, for messages."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def map_file(descriptor: int) -> mmap:
    """Return a read-only map of a whole file, whose descriptor is closed with the map."""
    try:
        mapped = mmap(descriptor, 0, access=ACCESS_READ)
    except BaseException:
        os.close(descriptor)
        raise
    _keep(mapped, MappedFile(descriptor))
    return mapped


def _keep(mapped: mmap, file: MappedFile | None) -> None:
    """Remember the file of a map while the map lives, unless another thread has done so."""
    known = _files.setdefault(mapped, file)
    if file is None:
        return
    if known is file:
        # Not at exit, when threads may still read; the system closes them.
        weakref.finalize(mapped, file.close).atexit = False
    else:
        file.close()


def map_of(x: np.ndarray[Any, Any]) -> mmap | None:
    """Return the map in whose memory the elements of `x` are, or None."""
    owner: Any = x
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, mmap) else None


def _address(x: np.ndarray[Any, Any]) -> int:
    return int(x.__array_interface__["data"][0])


def _identify(address: int) -> MappedFile | None:
    """Return the file that is mapped at an address, the first one of a map."""
    try:
        region = _region(address)
        if region is None or not region.shared:
            return None
        # Nonblocking, in case a pipe has replaced the file.
        descriptor = os.open(region.path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if _is_file_of(region, descriptor):
            begin = region.offset + address - region.begin
            return MappedFile(descriptor, begin, region.writable)
    except OSError:
        pass
    os.close(descriptor)
    return None


class _Region(NamedTuple):
    """A line of /proc/self/maps."""

    begin: int
    offset: int
    file: tuple[bytes, bytes]
    path: bytes
    shared: bool
    writable: bool


def _region(address: int) -> _Region | None:
    with open("/proc/self/maps", "rb") as lines:
        for line in lines:
            span, permissions, offset, device, inode, *path = line.rstrip(b"\n").split(None, 5)
            begin, end = (int(limit, 16) for limit in span.split(b"-"))
            if begin <= address < end:
                return _Region(
                    begin,
                    int(offset, 16),
                    (device, inode),
                    path[0].replace(rb"\012", b"\n") if path else b"",
                    permissions.endswith(b"s"),
                    b"w" in permissions,
                )
    return None


def _is_file_of(region: _Region, descriptor: int) -> bool:
    """Return whether an open file is the mapped one.

    On some file systems the kernel's maps and `os.stat` number files differently, so map the open
    file and compare the numbers of the maps.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    with mmap(descriptor, 1, access=ACCESS_READ) as probe:
        page = np.frombuffer(probe, "u1")
        other = _region(_address(page))
        # A map with views cannot be closed.
        del page
    return other is not None and other.file == region.file


def _wants_direct(direct: Direct, file: MappedFile, offset: int, nbytes: int, size: int) -> bool:
    # The page cache may have writes through the map that the disk lacks.
    if direct is False or file.writable:
        return False
    if direct is True:
        return True
    return size > FLOODING * _available() and not _is_cached(file.descriptor, offset, nbytes)


def _available() -> int:
    """Return the bytes of memory that are available."""
    with open("/proc/meminfo", "rb") as lines:
        amounts = {name: value for name, value, *_ in map(bytes.split, lines)}
    return int(amounts[b"MemAvailable:"]) << 10


def _is_cached(descriptor: int, offset: int, nbytes: int) -> bool:
    """Return whether the page cache has all of some bytes, judging by a few of them."""
    try:
        # A read caches its page, so each call reads other pages.
        return all(
            os.preadv(descriptor, [bytearray(1)], offset + random.randrange(nbytes), os.RWF_NOWAIT)
            for _ in range(SAMPLES)
        )
    except OSError:
        return False


def _open_direct(descriptor: int) -> int | None:
    """Open a file once more, with O_DIRECT; return None if the file system refuses."""
    try:
        opened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    try:
        # Some file systems refuse only the first read.
        with mmap(-1, PAGESIZE) as page:
            os.preadv(opened, [page], 0)
    except OSError:
        os.close(opened)
        return None
    return opened


@dataclass(frozen=True)
class NpyArray:
    """An array in a .npy file, as of when the graph was built.

    Attributes
    ----------
    path : str
        Absolute.
    shape : tuple of int
    dtype : numpy.dtype
    order : {"C", "F"}
    offset : int
        The position of the elements in the file.
    stamp : tuple of int
        The time when the file was modified, in nanoseconds, and its bytes.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    offset: int
    stamp: tuple[int, int]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __getitem__(self, index: Any) -> Any:
        """Return the elements at an index, as a read-only view of the file's map.

        Raises
        ------
        OSError
            If the file is missing or has changed.
        """
        mapped = self._map()
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)[index]
        whole: np.ndarray[Any, Any] = np.ndarray(
            self.shape, self.dtype, mapped, self.offset, order=self.order
        )
        # With an ellipsis, because an array without axes would give a scalar in native byte order.
        return whole[(*index, ...)] if isinstance(index, tuple) else whole[index]

    def _map(self) -> mmap:
        mapped = _maps.get(self)
        if mapped is not None:
            self._check(os.stat(self.path))
            return mapped
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            self._check(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return _maps.setdefault(self, map_file(descriptor))

    def _check(self, status: os.stat_result) -> None:
        if (current := _stamp(status)) != self.stamp:
            raise OSError(
                f"{self.path} has changed since its array was made: it had {self.stamp[1]} bytes, "
                f"modified at {self.stamp[0] / 1e9:.3f}, and has {current[1]}, modified at "
                f"{current[0] / 1e9:.3f}; call from_npy again"
            )


#: The maps of living chunks.
_maps: weakref.WeakValueDictionary[NpyArray, mmap] = weakref.WeakValueDictionary()


def open_npy(path: str | os.PathLike[str]) -> NpyArray:
    """Return the array of a .npy file, reading only the header.

    Raises
    ------
    OSError
        If the file is missing or cannot be read.
    ValueError
        If it is not a .npy file, is too short, or holds Python objects.
    """
    absolute = os.path.abspath(path)
    # Before reading the header, so that a change meanwhile is found later.
    stamp = _stamp(os.stat(absolute))
    try:
        # An overflowing size raises ValueError anyway.
        with np.errstate(over="ignore"):
            x = np.lib.format.open_memmap(absolute, mode="r")
    except OSError:
        raise
    # A damaged header can raise anything in the parser.
    except Exception as error:
        raise ValueError(f"{path}: cannot map this file as .npy: {error}") from error
    flags = x.flags
    order: Literal["C", "F"] = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    return NpyArray(absolute, x.shape, x.dtype, order, x.offset, stamp)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size
