"""Stands in for the GPUs of a worker that has several, in a process of its own: a preload.

A chunk on a GPU is a `device_cupy.OnGpu`, which only a thread of that GPU may touch. Launches over
several GPUs are NumPy's functions, chunk by chunk, and are noted. What comes from another process
lies on the first GPU, as CuPy's arrays do.
"""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
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
from dask_coop.cluster import plugin, preload
from support import device_cupy
from support.device_cupy import *  # noqa: F403
from support.device_cupy import OnGpu
from support.fake_gpus import FakeGpus

#: The launches that were made: what of, and on which GPU each chunk lay.
launches: list[tuple[str, list[int]]] = []
#: What `team.share` was called with, and why there are no launches over several GPUs.
team = SimpleNamespace(shared=None, objection="")

_gpus = FakeGpus(0)


def put(x: Any) -> Any:
    """Return a copy of an array of the host on the GPU of the calling thread, which has less."""
    y = device_cupy._placed(np.array(x))
    _gpus._take(y.device, y.nbytes)
    weakref.finalize(y, _gpus._take, y.device, -y.nbytes).atexit = False
    return y


def from_numpy(x: Any, *_: Any) -> Any:
    return put(x)


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
    return _stacked([device_cupy.lift(op, x, tuple(range(x.ndim))) for x in each])


def histogram_all(op: Operation, xs: Sequence[Any], grid: Any) -> State | None:
    each = _launch("histogram", objection_to_histogram(op, grid), xs)
    tables = [np.asarray(device_cupy.histogram(op, [x], grid, None)[0]) for x in each]
    return (sum(tables),) if tables else None


def upsweep(op: Operation, spec: ScanSpec, xs: Sequence[Any]) -> tuple[State, bytes] | None:
    each = _launch("upsweep", objection_to_scan(op, spec), xs)
    states = _stacked([device_cupy.lift(op, x, (0,)) for x in each])
    return None if states is None else (states, bytes(x.device for x in xs))


def downsweep(
    op: Operation, spec: ScanSpec, xs: Sequence[Any], bases: Sequence[Any], memo: bytes
) -> list[Any]:
    assert memo == bytes(x.device for x in xs)
    each = zip(_launch("downsweep", None, xs), bases, strict=True)
    return [device_cupy.scan(op, x, spec.part(base is None), base) for x, base in each]


def install(n: int) -> FakeGpus:
    """Have this process see `n` GPUs."""
    global _gpus
    _gpus = FakeGpus(n)
    device_cupy.__dict__.update(_gpus=_gpus, _host_state_bytes=1 << 12)
    name = backend.class_name(OnGpu)
    backend.BACKENDS["cupy"] = backend.BackendRow("cupy", (name,), __name__)
    backend._find.cache_clear()
    team.share = lambda *given: setattr(team, "shared", given)
    sys.modules["dask_coop.cuda.peers"] = cuda.__dict__["peers"] = _gpus
    sys.modules["dask_coop.cuda.team"] = cuda.__dict__["team"] = team
    plugin.__dict__["_missing_gpu"] = lambda: ""
    plugin.__dict__["take_over"] = lambda given: lambda: False
    plugin.CoopPlugin._load = lambda *_: None
    return _gpus


@contextmanager
def in_this_process() -> Iterator[None]:
    """Know what the workers' chunks are, in a process without GPUs."""
    with device_cupy.in_cupys_place(FakeGpus(0)):
        yield


@dask_serialize.register(OnGpu)
def _serialize(x: OnGpu) -> Any:
    return {}, [pickle.dumps(x.view(np.ndarray))]


@dask_deserialize.register(OnGpu)
def _deserialize(header: Any, frames: Any) -> OnGpu:
    x = pickle.loads(frames[0]).view(OnGpu)
    x.device = 0
    return x


async def dask_setup(worker: Worker) -> None:
    install(int(os.environ["FAKE_GPUS"]))
    await preload.dask_setup(worker)
