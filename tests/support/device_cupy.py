"""Stands in for CuPy's chunk backend on GPUs that are made up: NumPy's functions, held to a GPU.

Whatever is done to arrays, by a backend or by NumPy's own functions, takes those of the calling
thread's GPU alone, and leaves its results there. Arrays of the host do not mix with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from dask_coop.chunks import backend
from dask_coop.chunks.files import Direct
from support.fake_gpus import DeviceArray, FakeGpus

#: The functions that return states, which go to the host where they are small.
_OF_STATES = {"lift", "lift_groups", "lift_segments", "histogram"}
#: Those that leave states beside a chunk, or nothing of a chunk.
_OTHERS = {"scan_on", "from_numpy", "to_numpy", "synchronize"}

#: Those of NumPy that bring what they take of the host along.
_MOVING = (np.asarray, np.take)

_gpus = FakeGpus(0)
_host_state_bytes = 0


class OnGpu(DeviceArray):
    """An array on a GPU, of which functions of NumPy make others on the calling thread's."""

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a ufunc."""
        _refuse_host(args)
        return _called(getattr(ufunc, method), args, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of NumPy."""
        # What graphs are built of has no elements, and is on no GPU.
        if not self.size and func is np.zeros_like:
            return func(_plain(args[0]), *args[1:], **kwargs).view(OnGpu)
        if func not in _MOVING:
            _refuse_host(args)
        return _called(func, args, kwargs)


def _refuse_host(args: Any) -> None:
    for x in args:
        if isinstance(x, list | tuple):
            _refuse_host(x)
        elif type(x) is np.ndarray and x.ndim:
            raise TypeError("an array of the host among those of a GPU")


def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    out = kwargs.get("out")
    result = function(*_plain(args), **_plain(kwargs))
    if out is not None:
        return out[0] if isinstance(out, tuple) else out
    return _placed(result)


def _plain(value: Any) -> Any:
    """Return arguments with NumPy's arrays for those of a GPU, which has to be the current one."""
    if isinstance(value, OnGpu):
        assert value.device == _gpus.current() or not value.size, (value.device, _gpus.current())
        return value.view(np.ndarray)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        parts = [_plain(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _placed(result: Any) -> Any:
    """Return results as arrays of the current GPU."""
    if isinstance(result, list | tuple):
        parts = [_placed(each) for each in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    if not isinstance(result, np.ndarray | np.generic):
        return result
    placed = np.asarray(result).view(OnGpu)
    placed.device = _gpus.current()
    return placed


def _state(state: Any) -> Any:
    """Return a state where CuPy's backend leaves it."""
    nbytes = sum(np.asarray(field).nbytes for field in state)
    return state if nbytes <= _host_state_bytes else _placed(state)


def from_numpy(x: Any, nbytes: int | None = None, direct: Direct = "auto") -> Any:
    return _placed(np.array(x))


def to_numpy(x: Any, nbytes: int | None = None, out: Any = None) -> Any:
    if out is None:
        return np.array(_plain(x))
    out[...] = _plain(x)
    return out


def synchronize(xs: Any) -> None:
    pass


def scan_on(*args: Any) -> Any:
    y, state = _numpy.scan_on(*_plain(args))
    return _placed(y), _state(state)


def _on_gpu(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*_plain(args), **_plain(kwargs))
        if name == "lift_groups":
            return [_state(each) for each in result]
        return _state(result) if name in _OF_STATES else _placed(result)

    return called


_numpy: Any = import_module(backend.BACKENDS["numpy"].module)
for _name in vars(backend.ChunkBackend):
    if _name[0] != "_" and _name not in _OTHERS:
        globals()[_name] = _on_gpu(_name, getattr(_numpy, _name))


@contextmanager
def in_cupys_place(gpus: FakeGpus, host_state_bytes: int = 1 << 18) -> Iterator[None]:
    """Have `OnGpu` be CuPy's class, with arrays on some GPUs.

    States of up to so many bytes go to the host.
    """
    row = backend.BackendRow("cupy", (backend.class_name(OnGpu),), __name__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backend.BACKENDS, "cupy", row)
        patch.setitem(globals(), "_gpus", gpus)
        patch.setitem(globals(), "_host_state_bytes", host_state_bytes)
        backend._find.cache_clear()
        yield
    backend._find.cache_clear()
