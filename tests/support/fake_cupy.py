"""Stands in for what `cuda/transfer.py` uses of CuPy: NumPy's arrays, copies by `FakeDriver`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dask_coop
from support.fake_driver import FakeDriver


class Device:
    """The only GPU."""

    def __init__(self, ordinal: int = 0) -> None:
        assert ordinal == 0

    def use(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class DeviceArray(np.ndarray[Any, Any]):
    """An array with an address, as CuPy's arrays have it."""

    data = property(lambda self: SimpleNamespace(ptr=self.ctypes.data))
    device = property(lambda self: Device())

    def get(self) -> Any:
        return np.array(self)


class Pinned(np.ndarray[Any, Any]):
    """Pinned memory: whole pages."""

    ptr = property(lambda self: self.ctypes.data)


def pinned(nbytes: int) -> Any:
    memory = np.full(nbytes + 4096, 0xEE, "u1")
    begin = -memory.ctypes.data % 4096
    return memory[begin : begin + nbytes].view(Pinned)


@contextmanager
def transfer_without_gpu() -> Iterator[ModuleType]:
    """Give the module, imported anew, with `cupy` as it is here."""
    driver, made = FakeDriver(), iter(range(3, 1 << 40))

    class Event:
        def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
            self.ptr = next(made)

        def record(self, stream: Any = None) -> None:
            driver._record(self.ptr, (stream or current).ptr)

        def synchronize(self) -> None:
            driver._finish(self.ptr)

    class Stream:
        def __init__(self, non_blocking: bool = False) -> None:
            self.ptr = next(made)

        def synchronize(self) -> None:
            driver.finish_stream(self.ptr)

        def wait_event(self, event: Event) -> None:
            # What NumPy does to arrays is done at once.
            if self is current:
                event.synchronize()

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    current = Stream()
    driver.current = current.ptr
    cuda = ModuleType("cupy.cuda")
    cuda.__dict__.update(
        Device=Device,
        Event=Event,
        Stream=Stream,
        PinnedMemory=pinned,
        PinnedMemoryPointer=lambda memory, offset: memory,
        get_current_stream=lambda: current,
        driver=SimpleNamespace(check_status=check_status),
        runtime=SimpleNamespace(
            getDevice=lambda: 0,
            memcpyDefault=4,
            streamPerThread=2,
            memcpyAsync=lambda to, source, n, kind, stream: driver._copy(to, source, n, stream),
        ),
    )
    cupy = ModuleType("cupy")
    cupy.__dict__.update(
        cuda=cuda,
        ndarray=DeviceArray,
        empty=lambda shape, dtype: np.full(shape, 77, dtype).view(DeviceArray),
        # CuPy fills arrays of no axes, and puts 0 where that is equal.
        asarray=lambda x: np.array(x if x.ndim or x != 0 else abs(x)).view(DeviceArray),
        asnumpy=asnumpy,
        ascontiguousarray=lambda x: np.asarray(x, order="C").view(DeviceArray),
    )
    path = Path(dask_coop.__file__).parent / "cuda/transfer.py"
    spec = importlib.util.spec_from_file_location("transfer_without_gpu", path)
    assert spec is not None
    assert spec.loader is not None
    transfer = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setitem(sys.modules, "cupy.cuda", cuda)
        spec.loader.exec_module(transfer)
        # One for all threads: ctypes frees its callbacks with it.
        addresses = driver.addresses()
        transfer.__dict__["_functions"] = lambda: addresses
        yield transfer
        transfer.close()


def asnumpy(x: Any, order: Any = "C", out: Any = None) -> Any:
    if out is None:
        return np.array(x, order=order, subok=False)
    out[...] = x
    return out


def check_status(status: int) -> None:
    if status:
        raise RuntimeError(f"error {status} of the driver")
