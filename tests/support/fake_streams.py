"""Stands in for what `cuda/peers.py` uses of CuPy and the driver: GPUs and their streams."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import dask_coop

RESULTS = (
    "CUDA_SUCCESS",
    "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
    "CUDA_ERROR_TOO_MANY_PEERS",
    "CUDA_ERROR_INVALID_CONTEXT",
)


class Current(threading.local):
    """The GPU of a thread, and its stream on each."""

    def __init__(self) -> None:
        self.ordinal = 0
        self.streams: dict[int, Stream] = {}


current = Current()


class Event:
    """What is recorded of a stream."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.behind: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.behind = stream


class Stream:
    """A stream; `waited` are those that it has waited for, in order."""

    null: Stream

    def __init__(self, non_blocking: bool = False) -> None:
        self.waited: list[Stream | None] = []

    def use(self) -> None:
        current.streams[current.ordinal] = self

    def wait_event(self, event: Event) -> None:
        self.waited.append(event.behind)


Stream.null = Stream()


class Device:
    """A GPU that is the current one within a block."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal

    def __enter__(self) -> None:
        self._before, current.ordinal = current.ordinal, self._ordinal

    def __exit__(self, *_: object) -> None:
        current.ordinal = self._before


class Hook:
    """A hook of the pool, which hears of nothing."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class OnGpu:
    """An array on a GPU."""

    nbytes = 8

    def __init__(self, ordinal: int) -> None:
        self.data = SimpleNamespace(device_id=ordinal)


def get_current_stream(ordinal: int = -1) -> Stream:
    return current.streams.get(current.ordinal if ordinal < 0 else ordinal, Stream.null)


@contextmanager
def peers_without_gpus(
    n: int,
    connects: Callable[[int, int], str] = lambda gpu, peer: RESULTS[0],
    can_access: Callable[[int, int], bool] = lambda gpu, peer: True,
) -> Iterator[ModuleType]:
    """Give the module, imported anew, with `n` GPUs.

    Parameters
    ----------
    n : int
    connects : callable
        Returns what the driver says when a GPU is to reach another one for the first time.
    can_access : callable
        Returns whether it says beforehand that a GPU can reach another one.
    """
    connected: set[tuple[int, int]] = set()

    def enable(context: int, flags: int) -> tuple[str]:
        pair = current.ordinal, context
        said = RESULTS[1] if pair in connected else connects(*pair)
        if said == RESULTS[0]:
            connected.add(pair)
        return (said,)

    pool = SimpleNamespace(
        used_bytes=lambda: 0, total_bytes=lambda: 0, free_all_blocks=lambda: None
    )
    driver = ModuleType("cuda.bindings.driver")
    driver.__dict__.update(
        CUresult=SimpleNamespace(**{name: name for name in RESULTS}),
        cuCtxGetCurrent=lambda: (RESULTS[0], current.ordinal),
        cuCtxEnablePeerAccess=enable,
    )
    bindings = ModuleType("cuda.bindings")
    bindings.__dict__.update(driver=driver)
    runtime = SimpleNamespace(
        getDeviceCount=lambda: n,
        getDevice=lambda: current.ordinal,
        setDevice=lambda ordinal: setattr(current, "ordinal", ordinal),
        getDeviceProperties=lambda ordinal: {"name": b"Fake"},
        memGetInfo=lambda: (1 << 30, 1 << 30),
        free=lambda address: None,
        deviceCanAccessPeer=can_access,
    )
    cuda = ModuleType("cupy.cuda")
    cuda.__dict__.update(
        Device=Device,
        Event=Event,
        MemoryHook=Hook,
        Stream=Stream,
        get_current_stream=get_current_stream,
        runtime=runtime,
    )
    cupy = ModuleType("cupy")
    cupy.__dict__.update(cuda=cuda, ndarray=OnGpu, get_default_memory_pool=lambda: pool)
    path = Path(dask_coop.__file__).parent / "cuda/peers.py"
    spec = importlib.util.spec_from_file_location("peers_without_gpus", path)
    assert spec is not None
    assert spec.loader is not None
    peers = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in {
            "cupy": cupy,
            "cupy.cuda": cuda,
            "cuda": ModuleType("cuda"),
            "cuda.bindings": bindings,
            "cuda.bindings.driver": driver,
        }.items():
            patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(peers)
    yield peers
    current.ordinal = 0
    current.streams.clear()
