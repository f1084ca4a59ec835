"""What fails on the way to the GPUs and back: the error is clear, nothing hangs, memory is back."""

from __future__ import annotations

import errno
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from support.host_cupy import lists
from support.host_cupy.gpus import FakeGpus
from support.host_cupy.lists import ListArray

import dask_coop as dc
from dask_coop.graph.transfer import LEAST_BYTES
from dask_coop.node import node as module
from dask_coop.node import run

pytestmark = [pytest.mark.xdist_group("node"), pytest.mark.timeout(120)]

#: The chunk at which something goes wrong, of how many.
BAD, CHUNKS = 5, 24


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield how large chunks are, and what tells of the memory that is in use."""
    if request.param == "fake":
        team = SimpleNamespace(objection="GPUs are fakes")
        monkeypatch.setattr(module, "_peers", lambda: FakeGpus(2))
        monkeypatch.setattr(run, "_multichunk", lambda: SimpleNamespace(Team=lambda *_: team))

        def alive() -> Any:
            return sum(type(thing) is ListArray for thing in gc.get_objects())

        with lists.in_cupys_place():
            yield SimpleNamespace(size=100, used=alive, fake=True)
        return
    from dask_coop.cuda import transfer

    def memory() -> Any:
        pinned = sum(isinstance(thing, transfer.Buffer) for thing in gc.get_objects())
        assert pinned * transfer.BUFFER_BYTES <= transfer.RING_BYTES * len(transfer._rings)
        with dc.Node() as node:
            return [m.used for m in node.memory().values()]

    # More than a buffer, so that chunks go through several.
    yield SimpleNamespace(size=1 << 21, used=memory, fake=False)
    transfer.close()
    gc.collect()
    assert not any(isinstance(thing, transfer.Buffer) for thing in gc.get_objects())


def source(gpus: Any, disturb: Callable[[], None] = lambda: None) -> da.Array:
    """Return numbers below 1 on the host; `disturb` is called where chunk `BAD` is read."""

    def read(block_info: Any = None) -> Any:
        (number,) = block_info[None]["chunk-location"]
        if number == BAD:
            disturb()
        return np.full(gpus.size, number / CHUNKS)

    chunks = ((gpus.size,) * CHUNKS,)
    return da.map_blocks(read, chunks=chunks, dtype="f8", meta=np.empty(0))


def count(x: da.Array) -> Any:
    counts, _ = dc.histogram(dc.to_gpu(x), CHUNKS, (0, 1))
    return dc.to_host(counts).compute()


@pytest.fixture
def _back(gpus: Any) -> Iterator[None]:
    """Hold memory to what it was, and the next computations to be right."""

    def works() -> None:
        with dc.Node():
            assert count(source(gpus)).tolist() == [gpus.size] * CHUNKS
            target = np.empty(gpus.size * CHUNKS)
            da.store(dc.to_host(dc.cumsum(dc.to_gpu(source(gpus)), axis=0)), target)
        ends = target[gpus.size - 1 :: gpus.size]
        wanted = np.cumsum(np.arange(CHUNKS)) * gpus.size / CHUNKS
        np.testing.assert_allclose(ends, wanted, rtol=1e-12)

    # What is kept for the next time is there before.
    works()
    gc.collect()
    before = gpus.used()
    yield
    gc.collect()
    assert gpus.used() == before
    works()


@pytest.mark.usefixtures("_back")
def test_a_reader_that_raises(gpus: Any) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with dc.Node(), pytest.raises(OSError, match="the disk is broken") as caught:
        count(source(gpus, fail))
    assert any("in task " in note for note in caught.value.__notes__)
    # Its frames have arrays.
    del caught


class FullDisk:
    """A place for results that takes some and no more."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __setitem__(self, index: Any, values: Any) -> None:
        assert isinstance(values, np.ndarray)
        self.most -= 1
        if self.most < 0:
            raise OSError(errno.ENOSPC, "no space left")


@pytest.mark.usefixtures("_back")
def test_a_full_disk_on_the_way_out(gpus: Any) -> None:
    with dc.Node(), pytest.raises(OSError, match="no space left") as caught:
        da.store(dc.to_host(dc.cumsum(dc.to_gpu(source(gpus)), axis=0)), FullDisk(3))
    assert caught.value.errno == errno.ENOSPC
    del caught


@pytest.mark.usefixtures("_back")
def test_an_interrupt(gpus: Any) -> None:
    thread = threading.main_thread().ident
    assert thread == threading.get_ident()
    reading = threading.Event()

    def interrupt() -> None:
        reading.set()
        signal.pthread_kill(thread, signal.SIGINT)
        # While it arrives.
        time.sleep(0.2)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with dc.Node(), pytest.raises(KeyboardInterrupt) as caught:
            count(source(gpus, interrupt))
    finally:
        signal.signal(signal.SIGINT, before)
    assert reading.is_set()
    del caught


@pytest.mark.usefixtures("_back")
def test_a_gpu_that_is_full(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = dc.to_gpu(source(gpus))
    if gpus.fake:
        made = iter(range(BAD))

        def full(x: Any, *given: Any) -> Any:
            if next(made, None) is None:
                raise MemoryError("Out of memory")
            return ListArray(x.tolist(), x.shape, x.dtype)

        with monkeypatch.context() as patch:
            patch.setattr(lists, "from_numpy", full)
            with dc.Node(), pytest.raises(MemoryError, match="Out of memory") as caught:
                x.persist()
    else:
        import cupy

        pool = cupy.get_default_memory_pool()
        pool.free_all_blocks()
        pool.set_limit(size=pool.used_bytes() + BAD * gpus.size * 8)
        try:
            with dc.Node([0]), pytest.raises(MemoryError) as caught:
                x.persist()
        finally:
            pool.set_limit(size=0)
        assert "memory" in str(caught.value)
    assert any("in task ('to-gpu-" in note for note in caught.value.__notes__)
    del caught


def test_the_least_pinned_memory_is_enough(gpus: Any) -> None:
    import dask

    with dask.config.set({"coop.transfer.buffers": LEAST_BYTES}), dc.Node():
        assert count(source(gpus)).tolist() == [gpus.size] * CHUNKS
