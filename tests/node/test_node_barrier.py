"""Barriers over several GPUs: our flags and CUDA's multi_grid_group, under the same cases."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import missing_for_gpu
from support.compiled import remember

from dask_coop.algebra.monoids import SUM
from dask_coop.algebra.operation import bind
from dask_coop.chunks.cupy import programs_list
from dask_coop.cuda import compiler, linking
from dask_coop.cuda.programs import multichunk, scan


def missing_for_linking() -> str:
    """Name what keeps this machine from linking programs; "" if nothing does."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        linking.include_folders()
        load_nvidia_dynamic_lib("nvJitLink")
    except (FileNotFoundError, RuntimeError) as error:
        # A driver links as well.
        if not isinstance(error, DynamicLibNotFoundError) or missing_for_gpu():
            return f"multi_grid_group needs to be linked: {error}"
    return ""


@pytest.fixture(params=[False, True], ids=["flags", "multi_grid"])
def multi_grid(request: pytest.FixtureRequest) -> bool:
    if request.param and (missing := missing_for_linking()):
        pytest.skip(missing)
    return bool(request.param)


def reduce(multi_grid: bool) -> str:
    op = bind(SUM, np.dtype("f4"), np.dtype("f4"), "sum")
    return multichunk.reduce(
        programs_list.functor(op), op.element, programs_list.layout(op), multi_grid
    )


def cumsum(multi_grid: bool) -> str:
    of = programs_list.scanned(bind(SUM, np.dtype("f4"), np.dtype("f4"), "cumsum"))
    # An H200's processors, and its shared memory less what the barriers take.
    return multichunk.scan(of, scan.tune(of, 1 << 40, 132, 230_400, False), multi_grid)


@pytest.mark.parametrize("make", [multichunk.barriers, reduce, cumsum])
def test_a_launch_compiles_with_either_barrier(
    make: Callable[[bool], str], multi_grid: bool
) -> None:
    source = make(multi_grid)

    def compile_source() -> str:
        report = io.StringIO()
        cubin = compiler.compile_program(source, "sm_90", linked=multi_grid, report=report)
        assert cubin.startswith(b"\x7fELF")
        assert (b"cudaCGSynchronize" in cubin) == multi_grid
        return report.getvalue()

    options = compiler._options("sm_90", linked=multi_grid, verbose=True)
    said = remember(compiler.key_of(source, options, linked=multi_grid), compile_source)
    assert "0 bytes spill stores, 0 bytes spill loads" in said
    if not multi_grid:
        # Without a call, a frame would hold a copy of the Peers.
        assert " 0 bytes stack frame" in said


def test_a_linked_program_is_cached_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := missing_for_linking():
        pytest.skip(missing)
    monkeypatch.setenv("DASK_COOP_CACHE", str(tmp_path))
    compiled: list[bool] = []

    def compile_program(source: str, arch: str, linked: bool) -> bytes:
        compiled.append(linked)
        return b"linked" if linked else b"whole"

    monkeypatch.setattr(compiler, "compile_program", compile_program)
    for _ in range(2):
        assert compiler.load_or_compile("source", "sm_90") == b"whole"
        assert compiler.load_or_compile("source", "sm_90", linked=True) == b"linked"
    assert compiled == [False, True]
    monkeypatch.setattr(linking, "digest", lambda: b"another")
    compiler.load_or_compile("source", "sm_90", linked=True)
    assert compiled == [False, True, True]


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return the search for CUDA 12 where there is an NVRTC and nothing else."""
    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", lambda: (0, 12, 9))
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_header_directory", lambda name: None)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    return linking.toolkit.__wrapped__  # without its cache


def test_what_is_missing_is_named(toolkit: Callable[[], Any]) -> None:
    with pytest.raises(FileNotFoundError, match="install nvidia-cuda-runtime-cu12"):
        toolkit()


def test_another_cudas_nvrtc_is_refused(
    toolkit: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", lambda: (0, 13, 0))
    with pytest.raises(RuntimeError, match=r"NVRTC of CUDA 12; this is 13\.0"):
        toolkit()


def test_headers_and_library_are_of_one_cuda_12(
    toolkit: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for home, group in (("13", "this_grid"), ("12", "this_multi_grid")):
        (tmp_path / home / "include").mkdir(parents=True)
        (tmp_path / home / "include" / "cooperative_groups.h").write_text(group)
        (tmp_path / home / "lib64").mkdir()
        (tmp_path / home / "lib64" / "libcudadevrt.a").touch()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "13"))
    with pytest.raises(FileNotFoundError, match="13"):
        toolkit()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "12"))
    assert toolkit() == (
        tmp_path / "12" / "include",
        tmp_path / "12" / "lib64" / "libcudadevrt.a",
    )
    (tmp_path / "12" / "lib64" / "libcudadevrt.a").unlink()
    with pytest.raises(FileNotFoundError, match="12"):
        toolkit()


class Row:
    """Barriers in a row on the first GPUs, and the memory that they need."""

    def __init__(self, gpus: int, multi_grid: bool = False, epoch: int = 0) -> None:
        import cupy
        from cupy.cuda import runtime

        self.gpus, self.multi_grid, self.epoch = range(gpus), multi_grid, epoch
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
        program, streams = (
            multichunk.barriers(self.multi_grid),
            [stream.ptr for stream in self.streams],
        )
        sizes = self.blocks(), multichunk.THREADS
        self.wait()
        start = time.perf_counter()
        launch_on_all(program, *sizes, self.gpus, streams, arguments, linked=self.multi_grid)
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
def test_ten_thousand_barriers_hold(gpus: int, multi_grid: bool) -> None:
    row = Row(gpus, multi_grid, epoch=2**32 - 5000)
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
