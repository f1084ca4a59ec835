"""CuPy and the driver as modules, for a module of `dask_coop.cuda` that is imported anew."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dask_coop
from support.host_cupy.driver import FakeDriver
from support.host_cupy.gpus import Device, OnGpu, current

RESULTS = (
    "CUDA_SUCCESS",
    "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
    "CUDA_ERROR_TOO_MANY_PEERS",
    "CUDA_ERROR_INVALID_CONTEXT",
)


class CupyArray(OnGpu):
    """An array with an address, as CuPy's arrays have it."""

    def __array_finalize__(self, of: Any) -> None:
        """Lie where that lies which this is made of, or else on the current GPU."""
        self.device = of.device if isinstance(of, CupyArray) else Device(current.ordinal)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data, device_id=self.device.id)

    def get(self) -> Any:
        return np.array(self)

    def set(self, host: Any) -> None:
        assert current.ordinal == self.device
        self[...] = host


class Pinned(np.ndarray[Any, Any]):
    """Pinned memory: whole pages."""

    ptr = property(lambda self: self.ctypes.data)


def pinned(nbytes: int) -> Any:
    memory = np.full(nbytes + 4096, 0xEE, "u1")
    begin = -memory.ctypes.data % 4096
    return memory[begin : begin + nbytes].view(Pinned)


def asnumpy(x: Any, order: Any = "C", out: Any = None) -> Any:
    if out is None:
        return np.array(x, order=order, subok=False)
    out[...] = x
    return out


def check_status(status: int) -> None:
    if status:
        raise RuntimeError(f"error {status} of the driver")


def modules(cuda: dict[str, Any], **cupy: Any) -> dict[str, ModuleType]:
    """Return a CuPy that has some functions, and its `cuda`, by their names."""
    made = {name: ModuleType(name) for name in ("cupy", "cupy.cuda")}
    made["cupy.cuda"].__dict__.update(Device=Device, **cuda)
    made["cupy"].__dict__.update(cuda=made["cupy.cuda"], ndarray=CupyArray, **cupy)
    return made


def imported(name: str, others: dict[str, ModuleType], patch: pytest.MonkeyPatch) -> Any:
    """Return a module of `dask_coop.cuda`, imported anew beside others that are made up."""
    path = Path(dask_coop.__file__).parent / f"cuda/{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_without_gpus", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    for other, made in others.items():
        patch.setitem(sys.modules, other, made)
    spec.loader.exec_module(module)
    return module


@contextmanager
def transfer_without_gpu() -> Iterator[ModuleType]:
    """Give the module with one GPU, whose copies are a `FakeDriver`'s."""
    driver, made = FakeDriver(), iter(range(3, 1 << 40))

    class Event:
        def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
            self.ptr = next(made)

        def record(self, stream: Any = None) -> None:
            driver._record(self.ptr, (stream or of_numpy).ptr)

        def synchronize(self) -> None:
            driver._finish(self.ptr)

    class Stream:
        def __init__(self, non_blocking: bool = False) -> None:
            self.ptr = next(made)

        def synchronize(self) -> None:
            driver.finish_stream(self.ptr)

        def wait_event(self, event: Event) -> None:
            # What NumPy does to arrays is done at once.
            if self is of_numpy:
                event.synchronize()

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    of_numpy = Stream()
    driver.current = of_numpy.ptr
    cuda = {
        "Event": Event,
        "Stream": Stream,
        "PinnedMemory": pinned,
        "PinnedMemoryPointer": lambda memory, offset: memory,
        "get_current_stream": lambda: of_numpy,
        "driver": SimpleNamespace(check_status=check_status),
        "runtime": SimpleNamespace(
            getDevice=lambda: 0,
            memcpyDefault=4,
            streamPerThread=2,
            memcpyAsync=lambda to, source, n, kind, stream: driver._copy(to, source, n, stream),
        ),
    }
    others = modules(
        cuda,
        empty=lambda shape, dtype: np.full(shape, 77, dtype).view(CupyArray),
        # CuPy fills arrays of no axes, and puts 0 where that is equal.
        asarray=lambda x: np.array(x if x.ndim or x != 0 else abs(x)).view(CupyArray),
        asnumpy=asnumpy,
        ascontiguousarray=lambda x: np.asarray(x, order="C").view(CupyArray),
    )
    with pytest.MonkeyPatch.context() as patch:
        transfer = imported("transfer", others, patch)
        # One for all threads: ctypes frees its callbacks with it.
        addresses = driver.addresses()
        transfer.__dict__["_functions"] = lambda: addresses
        yield transfer
        transfer.close()


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


class Hook:
    """A hook of the pool, which hears of nothing."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def get_current_stream(ordinal: int = -1) -> Stream:
    found: Stream = current.streams.get(current.ordinal if ordinal < 0 else ordinal, Stream.null)
    return found


@contextmanager
def peers_without_gpus(
    n: int,
    connects: Callable[[int, int], str] = lambda gpu, peer: RESULTS[0],
    can_access: Callable[[int, int], bool] = lambda gpu, peer: True,
) -> Iterator[ModuleType]:
    """Give the module with `n` GPUs and their streams.

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
    cuda = {
        "Event": Event,
        "MemoryHook": Hook,
        "Stream": Stream,
        "get_current_stream": get_current_stream,
        "runtime": SimpleNamespace(
            getDeviceCount=lambda: n,
            getDevice=lambda: current.ordinal,
            setDevice=lambda ordinal: setattr(current, "ordinal", ordinal),
            getDeviceProperties=lambda ordinal: {"name": b"Fake"},
            memGetInfo=lambda: (1 << 30, 1 << 30),
            free=lambda address: None,
            deviceCanAccessPeer=can_access,
        ),
    }
    others = modules(cuda, get_default_memory_pool=lambda: pool)
    others |= {name: ModuleType(name) for name in ("cuda", "cuda.bindings", "cuda.bindings.driver")}
    others["cuda.bindings"].__dict__["driver"] = others["cuda.bindings.driver"]
    others["cuda.bindings.driver"].__dict__.update(
        CUresult=SimpleNamespace(**{name: name for name in RESULTS}),
        cuCtxGetCurrent=lambda: (RESULTS[0], current.ordinal),
        cuCtxEnablePeerAccess=enable,
    )
    with pytest.MonkeyPatch.context() as patch:
        peers = imported("peers", others, patch)
    yield peers
    current.ordinal = 0
    current.streams.clear()
