"""Where the bytes of an array are in a file: the right ones, or nowhere."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.at_once import at_once
from support.processes import python

from dask_coop.chunks import files

if sys.platform != "linux":
    pytest.skip("maps are looked up as Linux has them", allow_module_level=True)

RNG = np.random.default_rng(3)
VALUES = RNG.integers(0, 256, 300_000).astype("u1")


def read(place: files.Place, nbytes: int) -> bytes:
    """Read what lies there; past the page cache in whole pages."""
    begin = place.offset // mmap.PAGESIZE * mmap.PAGESIZE if place.direct else place.offset
    room = (place.offset - begin + nbytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    with mmap.mmap(-1, room) as pages:
        count = os.preadv(place.descriptor, [pages], begin)
        assert count >= place.offset - begin + nbytes
        return pages[place.offset - begin : place.offset - begin + nbytes]


def assert_is_there(x: np.ndarray[Any, Any]) -> files.Place:
    place = files.find(x)
    assert place is not None
    assert read(place, x.nbytes) == x.tobytes()
    return place


def descriptors(path: Path) -> list[str]:
    """Return the descriptors of this process of a file."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # that of the folder that was listed
        if target == str(path):
            found.append(name)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    VALUES.tofile(tmp_path / "x.bin")
    return tmp_path / "x.bin"


def some_of(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view of an array by one random step."""
    step = RNG.integers(7)
    if step == 0 and x.ndim:
        return x.reshape(-1) if x.flags.c_contiguous else x[::-1]
    if step == 1:
        return x.T
    if step == 2:
        return np.asarray(x)
    if step == 3 and x.ndim and x.flags.c_contiguous and x.shape[-1] % 2 == 0:
        return x.view(f"V{2 * x.itemsize}") if x.dtype.kind == "V" else x.view("u1")
    if step == 4 and x.ndim and x.size:
        axis = int(RNG.integers(x.ndim))
        return x[(*[slice(None)] * axis, int(RNG.integers(x.shape[axis])), ...)]
    slices: list[Any] = []
    for n in x.shape:
        begin, end = sorted(RNG.integers(0, n + 1, 2))
        slices.append(slice(int(begin), int(end), int(RNG.choice([1, 1, 1, 2]))))
    return x[(*slices[: RNG.integers(3)], ...)]


@pytest.mark.parametrize("dtype", ["u1", "f4", "<f8", ">i2", "c16", "?", "M8[s]", "V6"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_views_of_maps_are_found_where_they_are(path: Path, dtype: str, order: Any) -> None:
    found = 0
    for _ in range(60):
        shape = tuple(int(n) for n in RNG.integers(1, 12, RNG.integers(0, 4)))
        offset = int(RNG.integers(0, 20_000))
        mode: Any = RNG.choice(["r", "r+"])
        x: Any = np.memmap(path, dtype, mode, offset, shape, order)
        for _ in range(RNG.integers(0, 5)):
            x = some_of(x)
        place = files.find(x)
        is_plain = x.nbytes > 0 and x.flags.c_contiguous and x.dtype.isnative
        assert (place is not None) == is_plain, (x.shape, x.strides, x.dtype)
        if place is not None:
            assert read(place, x.nbytes) == x.tobytes()
            assert not (place.direct and mode == "r+")
            found += 1
    assert dtype == ">i2" or found > 9


def test_buffers_of_maps_are_found(path: Path) -> None:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 8192, access=mmap.ACCESS_READ, offset=mmap.PAGESIZE)
    place = assert_is_there(np.frombuffer(mapped, "u2")[5:])
    assert place.offset == mmap.PAGESIZE + 10
    assert_is_there(np.asarray(memoryview(mapped)[3:77]))


def test_maps_side_by_side_are_told_apart(path: Path) -> None:
    """The kernel puts a map before the last one, and makes one line of both where they fit."""
    begins = [page * mmap.PAGESIZE for page in reversed(range(20))]
    with path.open("rb") as file:
        size, access = mmap.PAGESIZE, mmap.ACCESS_READ
        maps = [mmap.mmap(file.fileno(), size, access=access, offset=begin) for begin in begins]
    for begin, mapped in zip(begins, maps, strict=True):
        assert assert_is_there(np.frombuffer(mapped, "u1")).offset == begin


def copy_on_write(path: Path) -> Any:
    x = np.memmap(path, mode="c")
    x[5] += 1
    return x


NOWHERE: dict[str, Callable[[Path], Any]] = {
    "in memory": lambda path: VALUES,
    "a copy": lambda path: np.memmap(path, mode="r").copy(),
    "a result": lambda path: np.memmap(path, mode="r") + np.uint8(1),
    "chosen": lambda path: np.memmap(path, mode="r")[[3, 1, 2]],
    "copy on write": copy_on_write,
    "an anonymous map": lambda path: np.frombuffer(mmap.mmap(-1, 9000), "u1"),
    "a private map": lambda path: np.frombuffer(
        mmap.mmap(os.open(path, os.O_RDONLY), 9, mmap.MAP_PRIVATE, mmap.PROT_READ), "u1"
    ),
    "strided": lambda path: np.memmap(path, mode="r")[::2],
    "another byte order": lambda path: np.memmap(path, ">f4", "r"),
    "no element": lambda path: np.memmap(path, mode="r")[:0],
    "a device": lambda path: np.frombuffer(
        mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096, access=mmap.ACCESS_READ), "u1"
    ),
}


@pytest.mark.parametrize("case", NOWHERE)
def test_what_is_not_in_a_file_is_not_found(path: Path, case: str) -> None:
    assert files.find(NOWHERE[case](path)) is None


def replace(path: Path) -> None:
    VALUES[::-1].tofile(path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def replace_by_the_name_of_what_is_gone(path: Path) -> None:
    """Make a file of the name that the kernel gives a file without one."""
    path.unlink()
    VALUES[::-1].tofile(f"{path} (deleted)")


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(f"{path} (deleted)")


def rename(path: Path) -> None:
    """Leave a file of the same bytes, which may change later, in its place."""
    path.rename(path.with_suffix(".old"))
    VALUES.tofile(path)


@pytest.mark.parametrize(
    "change",
    [Path.unlink, replace, replace_by_the_name_of_what_is_gone, replace_by_a_pipe, rename],
)
@pytest.mark.timeout(60)
def test_another_file_of_that_name_is_not_taken(path: Path, change: Any) -> None:
    early, late = np.memmap(path, mode="r"), np.memmap(path, mode="r")
    assert_is_there(early)
    change(path)
    # What was opened in time stays the right file; the kernel says where a renamed one is.
    assert_is_there(early)
    if change is rename:
        assert_is_there(late)
    else:
        assert files.find(late) is None


@pytest.mark.parametrize("name", ["with spaces.bin", "with\nlines", "ends (deleted)", "ä\\012"])
def test_names_are_read_as_the_kernel_writes_them(tmp_path: Path, name: str) -> None:
    VALUES.tofile(tmp_path / name)
    x = np.memmap(tmp_path / name, mode="r")
    if "\\" in name:
        # It is not told from a line's end.
        assert files.find(x) is None
    else:
        assert_is_there(x)


def test_what_is_written_through_a_map_is_read(path: Path) -> None:
    x = np.memmap(path, mode="r+")
    x[::7] += 1
    assert not assert_is_there(x).direct
    place = files.find(x, True)
    assert place is not None
    assert not place.direct


def test_a_file_that_was_cut_is_told(path: Path) -> None:
    x = np.memmap(path, mode="r")
    assert_is_there(x)
    os.truncate(path, 200_000)
    assert_is_there(x[:200_000])
    words = f"{path} was truncated while in use: it has 200000 bytes, and 200001 are needed"
    with pytest.raises(OSError, match=words):
        files.find(x[7:200_001])
    with pytest.raises(OSError, match="300000 are needed"):
        files.find(np.memmap.__getitem__(x, slice(None)))


def test_a_map_that_was_closed_is_left_alone(path: Path) -> None:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    x = np.ndarray((9,), "u1", mapped)
    assert_is_there(x)
    mapped.close()
    assert files.find(x) is None


def test_what_a_shorter_map_has_left_is_not_found(path: Path) -> None:
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    x = np.ndarray((300_000,), "u1", mapped)
    assert_is_there(x)
    mapped.resize(100_000)
    assert files.find(x) is None
    assert files.find(x[50_000:100_001]) is None


def test_descriptors_are_closed_with_the_map(path: Path) -> None:
    for direct in (False, True):
        x = np.memmap(path, mode="r")
        before = descriptors(path)
        assert len(before) <= 1
        for _ in range(3):
            part: Any = x[50:]
            assert files.find(part, direct) is not None
        assert len(descriptors(path)) == len(before) + 1 + direct
        del x
        assert_is_there(part)
        del part
        gc.collect()
        assert descriptors(path) == []


def test_a_map_of_ours_keeps_its_file(path: Path) -> None:
    x = np.frombuffer(files.map_file(os.open(path, os.O_RDONLY)), "u1")
    replace(path)
    place = assert_is_there(x[3:])
    assert place.offset == 3
    assert x[3] == VALUES[3]
    empty = path.with_name("empty")
    empty.touch()
    with pytest.raises(ValueError, match="empty"):
        files.map_file(os.open(empty, os.O_RDONLY))
    assert descriptors(empty) == []


def test_threads_share_a_descriptor(path: Path) -> None:
    for direct in (False, True):
        x = np.memmap(path, mode="r")
        found = at_once(partial(files.find, x), [direct] * 8)
        assert len(set(found)) == 1
        assert read(found[0], x.nbytes) == VALUES.tobytes()
        # One is the map's own.
        assert len(descriptors(path)) == 2 + direct


def test_a_process_that_was_forked_has_its_own(path: Path) -> None:
    code = f"""
import gc, os
import numpy as np
from dask_coop.chunks import files
x = np.memmap({str(path)!r}, mode="r")
place = files.find(x)
child = os.fork()
if child == 0:
    right = os.pread(files.find(x).descriptor, 9, 7) == x[7:16].tobytes()
    other = np.memmap({str(path)!r}, mode="r")
    right &= files.find(other) is not None
    del x, other
    gc.collect()
    os._exit(not right)
assert os.waitpid(child, 0)[1] == 0
assert files.find(x) == place
assert os.pread(place.descriptor, 9, 7) == x[7:16].tobytes()
print("done")
"""
    done = python("-W", "ignore::DeprecationWarning", "-c", code)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def has_direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_files_are_read_past_the_page_cache_on_demand(path: Path) -> None:
    x = np.memmap(path, mode="r")
    place = files.find(x[5:], True)
    assert place is not None
    assert (place.offset, place.direct) == (5, has_direct(path))
    assert read(place, x.nbytes - 5) == x[5:].tobytes()
    plain = files.find(x, False)
    assert plain is not None
    assert not plain.direct


@pytest.mark.parametrize(
    ("available", "is_cached", "expected"),
    [(1 << 40, False, False), (500_000, False, True), (500_000, True, False)],
)
def test_only_large_files_that_are_not_cached_go_past_it(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    available: int,
    is_cached: bool,
    expected: bool,
) -> None:
    monkeypatch.setattr(files, "_available", lambda: available)
    monkeypatch.setattr(files, "_is_cached", lambda *args: is_cached)
    place = assert_is_there(np.memmap(path, mode="r"))
    assert place.direct == (expected and has_direct(path))


@pytest.mark.parametrize("refuses", ["open", "preadv"])
def test_a_file_system_that_has_no_such_reads_is_read_as_usual(
    path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    real = getattr(os, refuses)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if refuses == "preadv" or args[1] & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(*args, **kwargs)

    x = np.memmap(path, mode="r")
    monkeypatch.setattr(os, refuses, refuse)
    place = files.find(x, True)
    monkeypatch.undo()
    assert place is not None
    assert not place.direct
    assert read(place, x.nbytes) == x.tobytes()
    assert len(descriptors(path)) <= 2


def test_what_the_system_says() -> None:
    assert 1 << 20 < files._available() < 1 << 60


def test_the_page_cache_is_asked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        pass
    except OSError as error:
        pytest.skip(f"this file system does not tell what is cached: {error}")
    for _ in range(100):
        # Advice only: pages that another processor has just touched stay for a while.
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if not files._is_cached(descriptor, 0, 300_000):
            break
        time.sleep(0.1)
    assert not files._is_cached(descriptor, 0, 300_000)
    path.read_bytes()
    assert files._is_cached(descriptor, 0, 300_000)
    os.close(descriptor)
