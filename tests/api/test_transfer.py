"""Chunks go to the GPU and back as they are, whatever their order in memory."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu
from support.host_cupy.modules import transfer_without_gpu
from support.processes import printed

import dask_coop as dc

RNG = np.random.default_rng(17)
#: More than some buffers of 4 MiB, and no multiple of one.
LONG = RNG.integers(0, 256, 9_000_003).astype("u1")


def test_what_is_on_the_host_stays_as_it_is() -> None:
    x = da.from_array(np.arange(16.0), chunks=8)
    here = dc.to_host(x)
    assert here.name == dc.to_host(x).name
    found = dask.get({**here.dask}, [x.__dask_keys__(), here.__dask_keys__()])
    for before, after in zip(*found, strict=True):
        assert np.shares_memory(before, after)
    masked = dc.to_host(da.ma.masked_equal(da.ones((4, 4), chunks=2), 1))
    assert isinstance(masked._meta, np.ma.MaskedArray)
    assert masked.compute().mask.all()
    assert dc.to_host([1, 2, 3]).compute().tolist() == [1, 2, 3]
    assert dc.to_host(da.ones(3, dtype=">i4")).dtype == ">i4"


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (da.from_array(np.array(["a", "b"])), "to_gpu does not take dtype <U1"),
        (da.from_array(np.array([None, 1]), chunks=2), "to_gpu does not take dtype object"),
        (da.ones(3, dtype=np.longdouble), "to_gpu does not take dtype float128"),
        (da.from_array(np.zeros(3, "M8[s]")), "to_gpu does not take dtype datetime64"),
        (da.ma.masked_equal(da.ones(3), 1), "to_gpu does not take chunks of type .*MaskedArray"),
    ],
)
def test_what_no_gpu_has_is_refused(x: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        dc.to_gpu(x)


@pytest.mark.parametrize("name", ["to_gpu", "to_host"])
@pytest.mark.parametrize("given", ["many", -1, "16 MB", 8 << 20])
def test_the_memory_of_buffers_is_at_least_two(name: str, given: Any) -> None:
    words = r"coop\.transfer\.buffers must be a number of bytes .*at least 16.00 MiB, got"
    with dask.config.set({"coop.transfer.buffers": given}), pytest.raises(ValueError, match=words):
        getattr(dc, name)(da.ones(3))


@pytest.mark.parametrize("name", ["to_gpu", "to_host"])
@pytest.mark.parametrize("given", ["always", None, 1, "True"])
def test_the_page_cache_is_used_or_not_or_as_it_suits(name: str, given: Any) -> None:
    words = rf"coop\.transfer\.direct must be 'auto', True or False, got {given!r}"
    with dask.config.set({"coop.transfer.direct": given}), pytest.raises(ValueError, match=words):
        getattr(dc, name)(da.ones(3))
    for known in (True, False, "auto"):
        with dask.config.set({"coop.transfer.direct": known}):
            assert dc.to_host(da.ones(3)).compute().sum() == 3


@pytest.mark.skipif(not missing_for_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_is_said() -> None:
    with pytest.raises(RuntimeError, match="to_gpu needs CuPy and an NVIDIA GPU: "):
        dc.to_gpu(da.ones(3))


@pytest.fixture
def _gpu() -> None:
    if missing := missing_for_gpu():
        pytest.skip(missing)


@pytest.fixture(params=["fake", pytest.param("cupy", marks=pytest.mark.gpu)])
def transfer(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Return the module of the rings, of which there are none before and after."""
    if request.param == "fake":
        pytest.importorskip("numba")
        with transfer_without_gpu() as module:
            yield module
        return
    request.getfixturevalue("_gpu")
    from dask_coop.cuda import transfer

    transfer.close()
    yield transfer
    transfer.close()


def memory_map(x: np.ndarray[Any, Any], folder: Path) -> Any:
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r")


CUBE = RNG.normal(size=(70, 111, 203))
HOSTS: dict[str, Callable[[Path], Any]] = {
    "contiguous": lambda folder: LONG,
    "Fortran order": lambda folder: np.asfortranarray(CUBE),
    "every other one": lambda folder: LONG[::2],
    "backwards": lambda folder: LONG[::-1],
    "some columns": lambda folder: CUBE[:, :, 3:200],
    "axes in another order": lambda folder: CUBE.transpose(1, 0, 2),
    "rows of more than a buffer": lambda folder: np.stack([LONG, LONG])[:, 1:],
    "big-endian": lambda folder: CUBE.astype(">f8"),
    "big-endian, strided": lambda folder: CUBE.astype(">c16")[:, ::3],
    "a memory map": lambda folder: memory_map(CUBE, folder),
    "read-only": lambda folder: np.frombuffer(LONG.tobytes(), "u1"),
    "repeated": lambda folder: np.broadcast_to(CUBE[:1], CUBE.shape),
    "bool": lambda folder: LONG > 9,
    "float16": lambda folder: LONG.astype("f2"),
    "tiny": lambda folder: np.arange(7, dtype=">i2"),
    "no axis": lambda folder: np.array(2.5),
    "negative zero": lambda folder: np.array(-0.0),
    "no element": lambda folder: np.ones((0, 3)),
}


@pytest.mark.parametrize("case", HOSTS)
def test_chunks_go_and_come_back(transfer: Any, tmp_path: Path, case: str) -> None:
    import cupy

    host = HOSTS[case](tmp_path)
    there = transfer.to_device(host)
    assert isinstance(there, cupy.ndarray)
    assert (there.dtype, there.shape) == (host.dtype.newbyteorder("="), host.shape)
    np.testing.assert_array_equal(cupy.asnumpy(there), host)
    if host.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(cupy.asnumpy(there)), np.signbit(host))
    # Not what was read a moment ago, and strided as it is.
    for device in (there + there.dtype.type(1), there[::2] if there.ndim else there, there.T):
        back = transfer.to_host(device)
        assert back.flags.c_contiguous
        assert back.dtype == device.dtype
        np.testing.assert_array_equal(back, cupy.asnumpy(device))


@pytest.mark.parametrize("length", [10, len(LONG)])
def test_a_copy_goes_where_it_is_wanted(transfer: Any, length: int) -> None:
    there = transfer.to_device(LONG[:length])
    wide = np.zeros((length, 2), "u1")
    outs = (np.zeros(length + 5, "u1")[5:], wide[:, 1], np.zeros(length, ">f4"))
    for out in outs:
        assert transfer.to_host(there, out=out) is out
        np.testing.assert_array_equal(out, LONG[:length])
    assert not wide[:, 0].any()
    shared = np.zeros(length, "u1")
    shared.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        transfer.to_host(there, out=shared)


@pytest.mark.parametrize(
    "index", [np.s_[:, 100:1400], np.s_[::2], np.s_[::-1, :1400], np.s_[5:905]]
)
def test_a_copy_goes_into_an_array_of_any_strides(
    transfer: Any, monkeypatch: pytest.MonkeyPatch, index: Any
) -> None:
    host = RNG.normal(size=(1800, 1500)).astype("f4")
    there = transfer.to_device(np.ascontiguousarray(host[index]))
    out = np.zeros_like(host)
    # Straight from the pinned memory: no other array takes the chunk first.
    monkeypatch.setattr(transfer, "_memory", None)
    assert transfer.to_host(there, out=out[index]).base is out
    expected = np.zeros_like(host)
    expected[index] = host[index]
    np.testing.assert_array_equal(out, expected)
    monkeypatch.undo()


@pytest.mark.parametrize("nbytes", [16 << 20, 37 << 20, None])
def test_pinned_memory_is_bounded_and_given_back(transfer: Any, nbytes: int | None) -> None:
    for _ in range(3):
        transfer.to_device(LONG, nbytes)
        transfer.to_host(transfer.to_device(np.tile(LONG, 20), nbytes), nbytes)
    (rings,) = transfer._rings.values()
    gc.collect()
    buffers = sum(type(thing) is transfer.Buffer for thing in gc.get_objects())
    assert 1 <= buffers <= (nbytes or transfer.RING_BYTES) // transfer.BUFFER_BYTES
    transfer.close()
    del rings
    gc.collect()
    assert not any(type(thing) is transfer.Buffer for thing in gc.get_objects())
    # And taken again.
    np.testing.assert_array_equal(transfer.to_device(LONG).get(), LONG)


@pytest.mark.parametrize("case", ["contiguous", "big-endian"])
def test_rings_that_are_closed_meanwhile_are_made_anew(
    transfer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    host, rings_of, closed = HOSTS[case](tmp_path), transfer._rings_of, [True, False, True, False]

    def then_closed(nbytes: int | None) -> Any:
        found = rings_of(nbytes)
        if closed.pop(0):
            transfer.close()
        return found

    monkeypatch.setattr(transfer, "_rings_of", then_closed)
    np.testing.assert_array_equal(transfer.to_host(transfer.to_device(host)), host)
    assert not closed


@pytest.mark.parametrize(("cores", "gpus", "threads"), [(1, 1, 1), (4, 1, 4), (4, 2, 2), (3, 4, 1)])
def test_gpus_share_the_processors(
    transfer: Any, monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int, threads: int
) -> None:
    monkeypatch.setattr(transfer, "cores", lambda: cores)
    rings, _ = transfer._rings_of(None)
    monkeypatch.setattr(transfer, "_rings", dict.fromkeys(range(gpus), rings))
    assert transfer._rings_of(None) == (rings, threads)
    asked: list[int] = []
    for ring in rings:
        monkeypatch.setattr(
            ring, "run", lambda *given, run=ring.run: (asked.append(given[2]), run(*given))
        )
    transfer.to_host(transfer.to_device(np.tile(LONG, 5)))
    assert asked == [threads] * 2
    for ring in rings:
        ring.close()


@pytest.mark.parametrize("there", [True, False])
def test_the_current_stream_is_waited_for_and_waits(transfer: Any, there: bool) -> None:
    import cupy

    # Copies of what stands in for a GPU come late in any case.
    real = transfer.__name__.startswith("dask_coop")
    host = RNG.integers(0, 99, 8_000_000 if real else 600_000)
    with cupy.cuda.Stream(non_blocking=not there):
        for i in range(5):
            x = transfer.to_device(host + i)
            # Long enough that what comes too early finds something else.
            for _ in range(50):
                x = x + 1
            np.testing.assert_array_equal(transfer.to_host(x), host + i + 50)


@pytest.mark.parametrize("error", [MemoryError("no more"), KeyboardInterrupt()])
def test_what_a_copy_raises_reaches_the_caller(
    transfer: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    copy, calls = transfer.Buffer.copy, iter(range(100))

    def fail(*args: Any) -> None:
        if next(calls) == 2:
            raise error
        copy(*args)

    monkeypatch.setattr(transfer.Buffer, "copy", fail)
    with pytest.raises(type(error)):
        transfer.to_device(np.tile(LONG, 5)[::-1])
    monkeypatch.undo()
    np.testing.assert_array_equal(transfer.to_host(transfer.to_device(LONG)), LONG)


def test_pinned_memory_that_there_is_not_is_the_only_error(
    transfer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise MemoryError("no more")

    transfer.close()
    ignored: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(transfer.cupy.cuda, "PinnedMemory", fail)
        patch.setattr(sys, "unraisablehook", ignored.append)
        with pytest.raises(MemoryError, match="no more"):
            transfer.to_device(LONG)
        gc.collect()
    assert not ignored
    np.testing.assert_array_equal(transfer.to_host(transfer.to_device(LONG)), LONG)


@pytest.mark.gpu
@pytest.mark.parametrize("transfer", ["cupy"], indirect=True)
@pytest.mark.parametrize("name", ["cuMemcpyAsync", "cuEventSynchronize"])
@pytest.mark.parametrize("way", ["to_device", "to_host"])
def test_an_error_of_the_driver_reaches_the_caller(
    transfer: Any, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    import cupy

    there = transfer.to_device(np.tile(LONG, 5))
    real = transfer._functions()
    library, calls = ctypes.CDLL("libcuda.so.1"), iter(range(10_000))

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 4)
    def fail(*arguments: int) -> int:
        # Out of memory, as the driver says it.
        return (
            2 if next(calls) == 3 else int(getattr(library, name)(*map(ctypes.c_void_p, arguments)))
        )

    field = {"cuMemcpyAsync": "copy", "cuEventSynchronize": "finish"}[name]
    failing = real._replace(**{field: ctypes.cast(fail, ctypes.c_void_p).value})
    monkeypatch.setattr(transfer, "_functions", lambda: failing)
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="OUT_OF_MEMORY"):
        getattr(transfer, way)(there if way == "to_host" else np.tile(LONG, 5))
    monkeypatch.undo()
    np.testing.assert_array_equal(transfer.to_host(transfer.to_device(LONG)), LONG)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("offset", [0, 128, 5000])
@pytest.mark.parametrize("n", [7, 1_000_003, None])
def test_arrays_are_read_from_files(
    transfer: Any, tmp_path: Path, direct: bool, offset: int, n: int | None
) -> None:
    (tmp_path / "x").write_bytes(b"-" * offset + CUBE.tobytes())
    host = np.memmap(tmp_path / "x", CUBE.dtype, "r", offset, CUBE.shape).reshape(-1)[:n]
    descriptor = os.open(tmp_path / "x", os.O_RDONLY | (os.O_DIRECT if direct else 0))
    there = transfer.to_device(host, None, transfer.FileRange(descriptor, offset, direct))
    np.testing.assert_array_equal(there.get(), host)
    # What is read is the file, and not the array.
    other = transfer.to_device(
        np.zeros_like(host), None, (transfer.FileRange(descriptor, offset, direct))
    )
    np.testing.assert_array_equal(other.get(), host)
    with pytest.raises(OSError, match=r"the file ends before .* from offset") as caught:
        transfer.to_device(CUBE, None, transfer.FileRange(descriptor, offset + 1, direct))
    assert caught.value.errno == errno.ENODATA
    with pytest.raises(ValueError, match="C order"):
        transfer.to_device(CUBE.T, None, transfer.FileRange(descriptor, offset, direct))
    os.close(descriptor)
    np.testing.assert_array_equal(transfer.to_device(LONG).get(), LONG)


def test_memory_of_results_is_used_again(transfer: Any) -> None:
    there = transfer.to_device(LONG)
    first = transfer.to_host(there)
    address, view = first.ctypes.data, first[5:9]
    assert first.flags.writeable
    del first
    assert transfer.to_host(there).ctypes.data != address
    np.testing.assert_array_equal(view, LONG[5:9])
    del view
    again = transfer.to_host(there)
    assert transfer._memory.nbytes > 0
    transfer.close()
    assert transfer._memory.nbytes == 0
    np.testing.assert_array_equal(again, LONG)


def test_without_numba_arrays_are_copied_too(
    transfer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_loops", lambda: None)
    np.testing.assert_array_equal(transfer.to_host(transfer.to_device(LONG)), LONG)


def test_many_threads_share_a_ring(transfer: Any) -> None:
    hosts = [RNG.integers(0, 99, 2_000_000 + i) for i in range(12)]
    wrong: list[int] = []

    def go(i: int) -> None:
        if not np.array_equal(transfer.to_host(transfer.to_device(hosts[i])), hosts[i]):
            wrong.append(i)

    threads = [threading.Thread(target=go, args=(i,)) for i in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.gpu
@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("scheduler", ["sync", "threads", "node"])
def test_arrays_are_reduced_and_scanned_there(scheduler: str) -> None:
    import cupy

    host = RNG.normal(size=(2000, 1500))
    x = da.from_array(host, chunks=(300, 1500))
    lazy = dc.to_gpu(x)
    assert dc.to_gpu(x).name == lazy.name
    assert isinstance(lazy._meta, cupy.ndarray)
    assert lazy.chunks == x.chunks
    assert dc.to_gpu(lazy) is lazy
    get = {"scheduler": dc.Node().get if scheduler == "node" else scheduler}
    total, running = dask.compute(dc.sum(lazy, axis=0), dc.to_host(dc.cumsum(lazy, 0)), **get)
    np.testing.assert_allclose(cupy.asnumpy(total), host.sum(0))
    assert isinstance(running, np.ndarray)
    np.testing.assert_allclose(running, host.cumsum(0), rtol=1e-9, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.usefixtures("_gpu")
def test_processes_end_and_fork(tmp_path: Path) -> None:
    code = """
import os
import numpy as np
from dask_coop.cuda import transfer

x = np.arange(3_000_000)
assert (transfer.to_host(transfer.to_device(x)) == x).all()
child = os.fork()
if child == 0:
    os._exit(len(transfer._rings))
assert os.waitpid(child, 0)[1] == 0
assert (transfer.to_host(transfer.to_device(x)) == x).all()
print("done")
"""
    quiet = "-W", "ignore::DeprecationWarning"
    assert printed(*quiet, "-c", code, cwd=tmp_path) == "done\n"
