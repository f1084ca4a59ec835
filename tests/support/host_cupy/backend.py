"""Stands in for CuPy's chunk backend on GPUs that are made up: NumPy's functions, held to a GPU.

Whatever is done to arrays, by a backend or by NumPy's own functions, takes those of the calling
thread's GPU alone, and leaves its results there. Arrays of the host do not mix with them.

It is a preload, too, with which a worker that has several GPUs starts. Launches over several are
NumPy's functions, chunk by chunk, and are noted. What comes from another process lies on the first
GPU, as CuPy's arrays do.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Worker
from distributed.protocol import dask_deserialize, dask_serialize

from dask_coop import cuda
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks import backend
from dask_coop.chunks.cupy.eligibility import (
    objection_to_histogram,
    objection_to_operation,
    objection_to_scan,
)
from dask_coop.chunks.files import Direct
from dask_coop.chunks.kept import KEPT_CHUNKS
from dask_coop.cluster import plugin, preload
from support.host_cupy.gpus import FakeGpus, OnGpu

#: The functions that return states, which go to the host where they are small.
_OF_STATES = {"lift", "lift_groups", "lift_segments", "histogram"}
#: Those that leave states beside a chunk, or nothing of a chunk.
_OTHERS = {"scan_on", "from_numpy", "to_numpy", "synchronize"}
#: Those of several chunks.
_LAUNCHES = {"lift_all", "histogram_all", "upsweep", "downsweep"}

#: Those of NumPy that bring what they take of the host along.
_MOVING = (np.asarray, np.take)

#: The launches that were made: what of, and on which GPU each chunk lay.
launches: list[tuple[str, list[int]]] = []
#: What `team.share` was called with, and why there are no launches over several GPUs.
team = SimpleNamespace(shared=None, objection="")

_gpus = FakeGpus(0)
_host_state_bytes = 0


class Held(OnGpu):
    """An array on a GPU, of which functions of NumPy make others on the calling thread's."""

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a ufunc."""
        _refuse_host(args)
        return _called(getattr(ufunc, method), args, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of NumPy."""
        # What graphs are built of has no elements, and is on no GPU.
        if not self.size and func is np.zeros_like:
            return func(_plain(args[0]), *args[1:], **kwargs).view(Held)
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
    if isinstance(value, Held):
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
    placed = np.asarray(result).view(Held)
    placed.device = _gpus.current()
    return placed


def _state(state: Any) -> Any:
    """Return a state where CuPy's backend leaves it."""
    nbytes = sum(np.asarray(field).nbytes for field in state)
    return state if nbytes <= _host_state_bytes else _placed(state)


def from_numpy(x: Any, nbytes: int | None = None, direct: Direct = "auto") -> Any:
    return _gpus.take(_placed(np.array(x)))


def keeper() -> tuple[int, int]:
    return _gpus.current(), _gpus.memory(0)[3]


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
    if _name[0] != "_" and _name not in _OTHERS | _LAUNCHES:
        globals()[_name] = _on_gpu(_name, getattr(_numpy, _name))
lift, scan, histogram = (globals()[_name] for _name in ("lift", "scan", "histogram"))

_ROW = backend.BackendRow("cupy", (backend.class_name(Held),), __name__)


@contextmanager
def in_cupys_place(gpus: FakeGpus, host_state_bytes: int = 1 << 18) -> Iterator[None]:
    """Have `Held` be CuPy's class, with arrays on some GPUs.

    States of up to so many bytes go to the host.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backend.BACKENDS, "cupy", _ROW)
        patch.setitem(globals(), "_gpus", gpus)
        patch.setitem(globals(), "_host_state_bytes", host_state_bytes)
        backend._find.cache_clear()
        try:
            yield
        finally:
            KEPT_CHUNKS.clear()
    backend._find.cache_clear()


def _launch(name: str, objection: Any, xs: Sequence[Any]) -> Iterator[Any]:
    """Note a launch, and yield each chunk with its GPU current; none if there is no launch."""
    on = [x.device for x in xs]
    if objection or len({x.dtype for x in xs}) > 1:
        return
    if len(set(on)) > 1 and (team.shared is None or team.objection):
        return
    launches.append((name, on))
    before = _gpus.current()
    for x in xs:
        _gpus.use(x.device)
        yield x
    _gpus.use(before)


def _stacked(states: Sequence[State]) -> State | None:
    return tuple(map(np.stack, zip(*states, strict=True))) if states else None


def lift_all(op: Operation, xs: Sequence[Any]) -> State | None:
    each = _launch("lift", objection_to_operation(op), xs)
    return _stacked([lift(op, x, tuple(range(x.ndim))) for x in each])


def histogram_all(op: Operation, xs: Sequence[Any], grid: Any) -> State | None:
    each = _launch("histogram", objection_to_histogram(op, grid), xs)
    tables = [np.asarray(histogram(op, [x], grid, None)[0]) for x in each]
    return (sum(tables),) if tables else None


def upsweep(op: Operation, spec: ScanSpec, xs: Sequence[Any]) -> tuple[State, bytes] | None:
    each = _launch("upsweep", objection_to_scan(op, spec), xs)
    states = _stacked([lift(op, x, (0,)) for x in each])
    return None if states is None else (states, bytes(x.device for x in xs))


def downsweep(
    op: Operation, spec: ScanSpec, xs: Sequence[Any], bases: Sequence[Any], memo: bytes
) -> list[Any]:
    assert memo == bytes(x.device for x in xs)
    each = zip(_launch("downsweep", None, xs), bases, strict=True)
    return [scan(op, x, spec.part(base is None), base) for x, base in each]


def install(n: int) -> FakeGpus:
    """Have this process see `n` GPUs."""
    global _gpus, _host_state_bytes
    _gpus, _host_state_bytes = FakeGpus(n), 1 << 12
    backend.BACKENDS["cupy"] = _ROW
    backend._find.cache_clear()
    team.share = lambda *given: setattr(team, "shared", given)
    sys.modules["dask_coop.cuda.peers"] = cuda.__dict__["peers"] = _gpus
    sys.modules["dask_coop.cuda.team"] = cuda.__dict__["team"] = team
    plugin.__dict__["_missing_gpu"] = lambda: ""
    plugin.__dict__["take_over"] = lambda given: lambda: False
    plugin.CoopPlugin._load = lambda *_: None
    return _gpus


@dask_serialize.register(Held)
def _serialize(x: Held) -> Any:
    return {}, [pickle.dumps(x.view(np.ndarray))]


@dask_deserialize.register(Held)
def _deserialize(header: Any, frames: Any) -> Held:
    x = pickle.loads(frames[0]).view(Held)
    x.device = 0
    return x


async def dask_setup(worker: Worker) -> None:
    install(int(os.environ["FAKE_GPUS"]))
    await preload.dask_setup(worker)
