"""A scan in two halves over several GPUs, by a launch made of NumPy's loops: run as a program.

It imports the module of multi-chunk launches beside a CuPy that is made up, for which a process of
its own is as well. It prints how many launches were over all GPUs, and how many there were.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from dask_coop.algebra.monoids import SUM
from dask_coop.algebra.operation import bind
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.cupy.partition import STRETCH
from support.host_cupy.gpus import Device
from support.host_cupy.modules import CupyArray, asnumpy

GPUS = (0, 1, 2)
SIZES = [0, 7000, 1, 5000, 0, 1024, 40_000, 3]


def empty(ordinal: int, n: int, dtype: Any) -> Any:
    with Device(ordinal):
        return np.full(n, 0xEE, "u1").view(dtype).view(CupyArray)


def at(address: Any, dtype: Any, n: int) -> Any:
    size = np.dtype(dtype).itemsize * n
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype)


def launch(step: int, blocks: int, ordinals: Sequence[int], arguments: Callable[..., Any]) -> None:
    """Do what `multichunk_scan` of kernels/kernel_multichunk.cuh does, of sums of int64."""
    ranks = [arguments(rank, None, None) for rank in range(len(ordinals))]
    for work, _, _, states, peers, bases, steps in ranks:
        first = at(work["first"], "i4", blocks + 1)
        assert (np.diff(first) >= 0).all()
        stretches = at(work["stretches"], STRETCH, first[-1])
        begin = at(work["begin"], "i4", int(work["chunks"]) + 1)
        states = at(states, "i8", len(stretches))
        if steps & 1:
            for s, stretch in enumerate(stretches):
                states[s] = at(stretch["x"], "i8", stretch["n"]).sum()
            for a, b in itertools.pairwise(begin):
                for table in at(peers, "u8", len(ordinals)):
                    at(table, "i8", int(work["all"]))[stretches[a]["chunk"]] = states[a:b].sum()
        if steps & 2:
            for a, b in itertools.pairwise(begin):
                for s in range(a, b):
                    stretch = stretches[s]
                    base = at(bases, "i8", int(work["all"]))[stretch["chunk"]] + states[a:s].sum()
                    x = at(stretch["x"], "i8", stretch["n"])[::step]
                    at(stretch["y"], "i8", stretch["n"])[::step] = base + x.cumsum()


def multichunk_without_gpus() -> Any:
    cupy = MagicMock(ndarray=CupyArray, asnumpy=asnumpy)
    cupy.cuda.Device, cupy.cuda.MemoryHook, cupy.cuda.nvtx.available = Device, object, False
    for name, module in (("cupy", cupy), ("cupy.cuda", cupy.cuda)):
        sys.modules[name] = module
    sys.modules["cupy.cuda.runtime"] = cupy.cuda.runtime
    from dask_coop.chunks.cupy import multichunk
    from dask_coop.cuda.devices import Device as Facts

    facts = Facts("sm_80", 108, 166912, False)
    multichunk.__dict__.update(
        device=lambda ordinal: facts,
        most_blocks=lambda *_: 5,
        _results=lambda op, xs, wanted: [empty(x.device, x.nbytes, "i8") for x in xs],
    )
    return multichunk


def main() -> None:
    multichunk, launches = multichunk_without_gpus(), []
    op = bind(SUM, np.dtype("i8"), np.dtype("i8"), "test")
    host = np.random.default_rng(3).integers(-99, 99, sum(SIZES))
    for reverse, moved in itertools.product((False, True), repeat=2):
        step, spec = -1 if reverse else 1, ScanSpec(0, reverse=reverse)

        def launched(
            source: Any,
            blocks: int,
            threads: Any,
            shared: Any,
            ordinals: Any,
            arguments: Any,
            *_: Any,
            step: int = step,
            **__: Any,
        ) -> None:
            launches.append(ordinals)
            launch(step, blocks, ordinals, arguments)

        team = SimpleNamespace(launch=launched, empty=empty, ordinals=GPUS, objection="")
        multichunk.team_of = lambda ordinals, team=team: team

        def chunks(shift: int, step: int = step) -> list[Any]:
            xs = []
            for i, part in enumerate(np.split(host, np.cumsum(SIZES)[:-1])):
                xs.append(empty((i + shift) % len(GPUS), 8 * part.size, "i8"))
                xs[-1][...] = part
            return xs[::step]

        xs = chunks(0)
        fields, memo = multichunk.upsweep(op, spec, xs)
        assert fields[0].tolist() == [int(np.sum(x)) for x in xs]
        total = np.cumsum(fields[0]) - fields[0]
        if moved:
            # To where the stretches are others, and the last are on a GPU of few before.
            xs = chunks(1)
        ys = multichunk.downsweep(op, spec, xs, [None, *((base,) for base in total[1:])], memo)
        assert [y.device for y in ys] == [x.device for x in xs]
        found = np.concatenate([np.asarray(y) for y in ys[::step]])
        np.testing.assert_array_equal(found, host[::step].cumsum()[::step])
    print(launches.count(GPUS), len(launches))


if __name__ == "__main__":
    main()
