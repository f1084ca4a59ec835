"""Barriers over several GPUs."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from support.compiled import spills

from benchmarks.systems.node import barriers_in_a_row
from dask_coop.algebra.monoids import SUM
from dask_coop.algebra.operation import bind
from dask_coop.chunks.cupy import programs_list
from dask_coop.cuda.programs import multichunk, scan


def reduce() -> str:
    op = bind(SUM, np.dtype("f4"), np.dtype("f4"), "sum")
    return multichunk.reduce(programs_list.functor(op), op.element, programs_list.layout(op))


def cumsum() -> str:
    of = programs_list.scanned(bind(SUM, np.dtype("f4"), np.dtype("f4"), "cumsum"))
    # An H200's processors, and its shared memory less what the barriers take.
    return multichunk.scan(of, scan.tune(of, 1 << 40, 132, 230_400, False))


def test_launches_with_a_barrier_keep_nothing_in_local_memory() -> None:
    """Without a call: a frame would hold a copy of the Peers."""
    assert not spills([barriers_in_a_row(), reduce(), cumsum()], "sm_90")


class Row:
    """Barriers in a row on the first GPUs, and the memory that they need."""

    def __init__(self, gpus: int, epoch: int = 0) -> None:
        import cupy
        from cupy.cuda import runtime

        self.gpus, self.epoch = range(gpus), epoch
        for gpu in self.gpus:
            for peer in self.gpus:
                if peer != gpu:
                    if not runtime.deviceCanAccessPeer(gpu, peer):
                        pytest.skip("needs GPUs that reach each other's memory")
                    # It may have been enabled before.
                    with cupy.cuda.Device(gpu), suppress(runtime.CUDARuntimeError):
                        runtime.deviceEnablePeerAccess(peer)
        # The last are of a GPU that never comes.
        self.flags = [self.on(gpu, np.full(16, epoch, "u4")) for gpu in (*self.gpus, 0)]
        self.words = [self.on(gpu, np.zeros(16, "u4")) for gpu in (*self.gpus, 0)]
        self.arrived = [self.on(gpu, np.zeros(1, "u4")) for gpu in self.gpus]
        self.failed = [self.on(gpu, np.zeros(1, "u4")) for gpu in self.gpus]
        self.out = [self.on(gpu, np.zeros(2, "u8")) for gpu in self.gpus]
        words = np.array([words.data.ptr for words in self.words], "u8")
        self.all_words = [self.on(gpu, words) for gpu in self.gpus]
        self.streams = []
        for gpu in self.gpus:
            with cupy.cuda.Device(gpu):
                self.streams.append(cupy.cuda.Stream(non_blocking=True))

    @staticmethod
    def on(gpu: int, array: Any) -> Any:
        import cupy

        with cupy.cuda.Device(gpu) as device:
            moved = cupy.asarray(array)
            device.synchronize()
            return moved

    def blocks(self) -> int:
        from dask_coop.cuda.devices import device

        return min(device(gpu).processors for gpu in self.gpus) * multichunk.BLOCKS

    def run(
        self, rounds: int, timeout: float = 5, late: int | None = None, absent: int = 0
    ) -> float:
        """Return the seconds of that many barriers.

        Parameters
        ----------
        rounds : int
            How many.
        timeout : float
            The deadline of one, in seconds.
        late : int, optional
            The rank of a GPU that is a barrier behind the others.
        absent : {0, 1}
            How many GPUs are waited for besides those that there are.
        """
        from dask_coop.cuda.team import launch_on_all

        for array in (*self.words, *self.failed, *self.out):
            with array.device:
                array.fill(0)
        flags = [flags.data.ptr for flags in self.flags][: len(self.gpus) + absent]
        arguments: list[Any] = []
        for gpu in self.gpus:
            peers = np.zeros((), multichunk.PEERS)
            peers["flags"][: len(flags)] = flags
            peers["arrived"] = self.arrived[gpu].data.ptr
            peers["failed"] = self.failed[gpu].data.ptr
            peers["timeout"] = int(timeout * 1e9)
            peers["rank"], peers["count"] = gpu, len(flags)
            epoch = np.uint32((self.epoch - (gpu == late)) % 2**32)
            pointers = np.uint64(self.all_words[gpu].data.ptr), np.uint64(self.out[gpu].data.ptr)
            arguments.append([np.uint32(rounds), *pointers, peers, epoch])
        self.epoch += rounds
        program, streams = barriers_in_a_row(), [stream.ptr for stream in self.streams]
        sizes = self.blocks(), multichunk.THREADS
        self.wait()
        start = time.perf_counter()
        launch_on_all(program, *sizes, self.gpus, streams, arguments)
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        import cupy

        for gpu in self.gpus:
            cupy.cuda.Device(gpu).synchronize()

    @staticmethod
    def read(array: Any, index: int) -> int:
        with array.device:
            return int(array.get()[index])

    def held(self) -> list[float]:
        """Return how many barriers held on every GPU."""
        return [self.read(out, 0) / self.blocks() for out in self.out]

    def behind(self) -> list[int]:
        """Return how many words every GPU did not find behind a barrier."""
        return [self.read(out, 1) for out in self.out]

    def waited_for(self) -> list[int]:
        """Return what every GPU says about which others it waited for in vain."""
        return [self.read(failed, 0) for failed in self.failed]


@pytest.fixture(params=[1, 2, None], ids=["one", "two", "all"])
def gpus(request: pytest.FixtureRequest) -> int:
    import cupy

    count = int(cupy.cuda.runtime.getDeviceCount())
    if (request.param or 2) > count:
        pytest.skip("needs two GPUs")
    return int(request.param or min(count, 8))


@pytest.mark.gpu
@pytest.mark.xdist_group("node")
def test_ten_thousand_barriers_hold(gpus: int) -> None:
    row = Row(gpus, epoch=2**32 - 5000)
    row.run(10_000)
    assert row.held() == [10_000] * gpus
    assert row.behind() == [0] * gpus
    assert row.waited_for() == [0] * gpus


@pytest.mark.gpu
@pytest.mark.xdist_group("node")
def test_a_launch_that_lacks_a_gpu_expires(gpus: int) -> None:
    row = Row(gpus)
    row.run(3)
    seconds = row.run(3, timeout=0.3, absent=1)
    assert 0.3 <= seconds < 0.6
    assert row.held() == [0] * gpus
    assert row.waited_for() == [1 + gpus] * gpus
    # What it left serves again.
    row.run(3)
    assert (row.held(), row.behind(), row.waited_for()) == ([3] * gpus, [0] * gpus, [0] * gpus)


@pytest.mark.gpu
@pytest.mark.xdist_group("node")
def test_a_gpu_that_is_behind_is_named_by_the_others(gpus: int) -> None:
    if gpus < 2:
        pytest.skip("needs two GPUs")
    row = Row(gpus)
    row.run(3)
    seconds = row.run(1, timeout=0.3, late=1)
    assert 0.3 <= seconds < 0.6
    others = [gpu for gpu in range(gpus) if gpu != 1]
    assert [row.waited_for()[gpu] for gpu in others] == [2] * len(others)
    assert [row.held()[gpu] for gpu in others] == [0] * len(others)
    assert (row.held()[1], row.waited_for()[1]) == (1, 0)
    row.run(3)
    assert (row.held(), row.behind(), row.waited_for()) == ([3] * gpus, [0] * gpus, [0] * gpus)
