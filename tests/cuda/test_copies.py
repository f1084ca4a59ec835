"""The loops of the copying threads, with a driver that copies as late as it may."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.host_cupy.driver import FakeDriver

from dask_coop.cuda.ring import Counter, FileRange, Ring, ThreadBuffers, check_file, runs

numba = pytest.importorskip("numba")
copies = pytest.importorskip("dask_coop.cuda.copies_numba", exc_type=ImportError)

PIECE = 4 * 4096
NO_FILE = FileRange(-1, 0, False)
RNG = np.random.default_rng(17)
#: Around a piece, around what two buffers hold, and many.
SIZES = [1, 63, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 5, 3 * PIECE, 23 * PIECE + 77]


class Copier:
    """Copies by the loops, in some threads, and keeps the status of each."""

    def __init__(self, driver: FakeDriver, threads: int) -> None:
        self.driver, self.statuses = driver, list[int]()
        self.counter = Counter()
        self._ring = Ring("test", threads, lambda: None, lambda: driver.buffer(PIECE + 4096))
        self._threads = threads

    def close(self) -> None:
        self._ring.close()

    def job(self, target: Any, source: Any, after: int = -1) -> Any:
        addresses = target.ctypes.data, source.ctypes.data
        return copies.Job(*addresses, target.nbytes, PIECE, self.counter.address, 7, after)

    def fill(self, target: Any, source: Any, file: FileRange = NO_FILE, after: int = -1) -> None:
        job, addresses = self.job(target, source, after), self.driver.addresses()
        rows, run = runs(source)

        def copy(own: ThreadBuffers) -> None:
            self.statuses.append(copies.fill(addresses, job, rows, run, file, own.table))

        self._ring.run(copy, self.counter, self._threads)

    def drain(self, target: Any, source: Any) -> None:
        job, addresses = self.job(target, source), self.driver.addresses()

        def copy(own: ThreadBuffers) -> None:
            self.statuses.append(copies.drain(addresses, job, own.table))

        self._ring.run(copy, self.counter, self._threads)


@pytest.fixture(params=[1, 3])
def copier(request: pytest.FixtureRequest) -> Iterator[Copier]:
    made = Copier(FakeDriver(), request.param)
    yield made
    made.close()


def some(nbytes: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 256, nbytes).astype("u1")


def framed(nbytes: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return memory, and some of its middle at an odd address, with what is around untouched."""
    memory = np.full(nbytes + 200, 0xAA, "u1")
    return memory, memory[101 : 101 + nbytes]


def untouched(memory: np.ndarray[Any, Any], nbytes: int) -> bool:
    return bool((memory[:101] == 0xAA).all() and (memory[101 + nbytes :] == 0xAA).all())


@pytest.mark.parametrize("way", ["fill", "drain"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_arrays_are_copied_whole(copier: Copier, way: str, nbytes: int) -> None:
    source = some(nbytes)
    memory, target = framed(nbytes)
    getattr(copier, way)(target, source)
    if way == "fill":
        copier.driver.finish_all()
    np.testing.assert_array_equal(target, source)
    assert untouched(memory, nbytes)
    assert set(copier.statuses) == {0}
    assert not copier.driver.waiting


CUBE = RNG.normal(size=(20, 31, 33))
STRIDED: dict[str, tuple[np.ndarray[Any, Any], int]] = {
    "contiguous": (CUBE, CUBE.nbytes),
    "no axis": (np.array(2.5), 8),
    "one of an axis": (CUBE[:, None, 3:4, :], 33 * 8),
    "some columns": (CUBE[:, :, 3:30], 27 * 8),
    "some rows": (CUBE[:, 5:7], 2 * 33 * 8),
    "backwards": (CUBE[::-1], 31 * 33 * 8),
    "every other one": (CUBE[:, :, ::2], 8),
    "axes in another order": (CUBE.transpose(1, 0, 2), 33 * 8),
    "repeated": (np.broadcast_to(CUBE[:1], CUBE.shape), 31 * 33 * 8),
    "Fortran order": (np.asfortranarray(CUBE), 8),
    "runs of more than a piece": (np.stack([some(3 * PIECE)] * 5)[:, 7:], 3 * PIECE - 7),
}


@pytest.mark.parametrize("case", STRIDED)
def test_arrays_are_copied_by_their_runs(copier: Copier, case: str) -> None:
    source, run = STRIDED[case]
    assert runs(source)[1] == run
    target = np.zeros(source.shape, source.dtype)
    copier.fill(target, source)
    copier.driver.finish_all()
    np.testing.assert_array_equal(target, source)


def test_copies_to_the_gpu_wait_for_the_event_and_are_behind_another(copier: Copier) -> None:
    source, target = some(9 * PIECE), np.empty(9 * PIECE, "u1")
    copier.fill(target, source)
    streams = {arguments[3] for name, arguments in copier.driver.log if name == "copy"}
    for stream in streams:
        at = {"copy": 3, "follow": 0, "record": 1}
        mine = [
            (name, arguments)
            for name, arguments in copier.driver.log
            if name in at and arguments[at[name]] == stream
        ]
        names = [name for name, _ in mine]
        assert names == ["follow", *["copy", "record"] * (len(names) // 2)]
        assert (mine[0][1], mine[-1][1]) == ((stream, 7, 0), (1000 + stream, stream))


def test_while_a_piece_is_copied_out_the_next_comes_in() -> None:
    copier = Copier(FakeDriver(), 1)
    copier.drain(np.empty(6 * PIECE, "u1"), some(6 * PIECE))
    names = [name for name, _ in copier.driver.log]
    names = [name for name in names if name != "record"]
    assert names == ["copy", "copy"] + ["finish", "copy"] * 4 + ["finish"] * 2
    copier.close()


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *[("fill", name) for name in ("copy", "finish", "follow", "record")],
        *[("drain", name) for name in ("copy", "finish", "record")],
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_an_error_of_the_driver_stops_all(way: str, name: str, number: int) -> None:
    copier = Copier(FakeDriver({(name, number): 700}), 3)
    source, target = some(500 * PIECE), np.zeros(500 * PIECE, "u1")
    getattr(copier, way)(target, source)
    assert sorted(set(copier.statuses)) in ([700], [0, 700])
    assert copier.counter.stopped
    assert sum(name == "copy" for name, _ in copier.driver.log) < 500
    copier.close()


@pytest.mark.parametrize("way", ["fill", "drain"])
def test_a_stopped_copy_takes_no_piece(copier: Copier, way: str) -> None:
    copier.counter.stop()
    target = np.zeros(9 * PIECE, "u1")
    getattr(copier, way)(target, some(9 * PIECE))
    assert copier.driver.log == []
    assert not target.any()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "bytes").write_bytes(some(23 * PIECE + 777).tobytes())
    return tmp_path / "bytes"


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("offset", [0, 1, 128, 4095, 4096, 5000])
@pytest.mark.parametrize("nbytes", [1, PIECE - 1, PIECE + 1, 9 * PIECE, None])
def test_files_are_read_from_any_offset(
    copier: Copier, file: Path, direct: bool, offset: int, nbytes: int | None
) -> None:
    content = np.fromfile(file, "u1")[offset:][:nbytes]
    memory, target = framed(len(content))
    descriptor = opened(file, direct)
    copier.fill(target, target, FileRange(descriptor, offset, direct))
    os.close(descriptor)
    copier.driver.finish_all()
    assert set(copier.statuses) == {0}
    np.testing.assert_array_equal(target, content)
    assert untouched(memory, len(content))


def opened(file: Path, direct: bool) -> int:
    try:
        return os.open(file, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("beyond", [1, 4096, 9 * PIECE])
def test_a_file_that_ends_too_early_is_an_error(
    copier: Copier, file: Path, direct: bool, beyond: int
) -> None:
    target = np.zeros(file.stat().st_size - 100 + beyond, "u1")
    read = FileRange(opened(file, direct), 100, direct)
    copier.fill(target, target, read)
    os.close(read.descriptor)
    assert min(copier.statuses) == copies.ENDED
    with pytest.raises(
        OSError, match=f"the file ends before {target.nbytes} bytes from offset 100"
    ):
        check_file(copies.ENDED, read, target.nbytes)


def test_an_error_of_a_file_has_its_number(copier: Copier, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "write-only", os.O_WRONLY | os.O_CREAT)
    read = FileRange(descriptor, 0, False)
    copier.fill(np.zeros(9, "u1"), np.zeros(9, "u1"), read)
    os.close(descriptor)
    assert copier.statuses.count(-errno.EBADF) == 1
    with pytest.raises(OSError, match="cannot read 9 bytes from offset 0 of file") as caught:
        check_file(-errno.EBADF, read, 9)
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize("direct", [False, True])
def test_reads_that_are_cut_short_go_on(file: Path, direct: bool) -> None:
    """Direct ones at a multiple of what they are aligned to."""
    content = np.fromfile(file, "u1")[100:]
    copier = Copier(FakeDriver(most_read=8192 if direct else 1000), 3)
    target, read = np.zeros_like(content), FileRange(opened(file, direct), 100, direct)
    if direct:
        # Not by O_DIRECT, which refuses such a read: as if the system had read less than asked.
        os.close(read.descriptor)
        read = FileRange(os.open(file, os.O_RDONLY), 100, True)
        copier.driver.most_read = 5000
    copier.fill(target, target, read)
    os.close(read.descriptor)
    copier.driver.finish_all()
    np.testing.assert_array_equal(target, content)
    reads = [arguments for name, arguments in copier.driver.log if name == "read"]
    assert len(reads) > len(content) / copier.driver.most_read
    if direct:
        assert not any(number % 4096 for arguments in reads for number in arguments[1:])
    copier.close()


@pytest.mark.parametrize("direct", [False, True])
def test_the_system_reads(file: Path, direct: bool) -> None:
    """What stands in for pread above is not what is called."""
    copier, content = Copier(FakeDriver(), 2), np.fromfile(file, "u1")[5:]
    pread = ctypes.cast(ctypes.CDLL(None).pread, ctypes.c_void_p).value
    functions = copier.driver.addresses()._replace(read=pread)
    copier.driver.addresses = lambda: functions
    target, read = np.zeros_like(content), FileRange(opened(file, direct), 5, direct)
    copier.fill(target, target, read)
    copier.driver.finish_all()
    np.testing.assert_array_equal(target, content)
    os.close(read.descriptor)
    copier.counter = Counter()
    copier.fill(target, target, read)
    assert copier.statuses.count(-errno.EBADF) >= 1
    copier.close()


@pytest.mark.parametrize("nbytes", [0, 1, 15, 63, 64, 65, 127, 128, 129, 1000, 4096 + 17])
def test_bytes_are_stored_at_any_address(nbytes: int) -> None:
    source = some(nbytes + 70)
    for to in range(65):
        at = (to * 7) % 66
        memory = np.full(nbytes + 200, 0xAA, "u1")
        copies.store(memory.ctypes.data + to, source.ctypes.data + at, nbytes)
        expected = np.full(nbytes + 200, 0xAA, "u1")
        expected[to : to + nbytes] = source[at : at + nbytes]
        np.testing.assert_array_equal(memory, expected)


def test_what_is_stored_goes_past_the_caches() -> None:
    """Else the loop works as well, and reads what it overwrites."""
    # Not from the disk, where there is no more than machine code.
    fresh = numba.njit(copies.store.py_func)
    fresh(0, 0, 0)
    (code,) = fresh.inspect_llvm().values()
    assert "!nontemporal" in code


def test_loops_are_compiled_where_there_is_no_folder_to_keep_them_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile = numba.njit

    def refuse(function: Any, **options: Any) -> Any:
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return compile(function, **options)

    monkeypatch.setattr(numba, "njit", refuse)
    assert copies.jit(lambda x: x + 1)(2) == 3


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_stream_waits_for_the_copies(copier: Copier, nbytes: int) -> None:
    """For all of them, and before the loops return."""
    source, target = some(nbytes), np.zeros(nbytes, "u1")
    copier.driver.current = 99
    copier.fill(target, source, after=99)
    assert not copier.driver.waiting
    np.testing.assert_array_equal(target, source)
