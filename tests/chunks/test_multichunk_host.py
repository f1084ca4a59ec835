"""What the host does for a scan in two halves over several GPUs: a launch made of NumPy's loops."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Scans chunks of several made up GPUs, whose memory is the host's, in a process of its own.
SCRIPT = """
import ctypes, itertools, sys
# Dask, which looks for CuPy, before there is one.
import numpy as np
from dask_coop.algebra.monoids import SUM
from dask_coop.algebra.operation import bind
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.cluster import jobs
from dask_coop.graph.prefixes import GROUP
from types import SimpleNamespace
from unittest.mock import MagicMock

class Device:
    current = [0]
    def __init__(self, ordinal): self.id = ordinal
    def __enter__(self): self.current.append(self.id)
    def __exit__(self, *_): self.current.pop()

class Array(np.ndarray):
    def __array_finalize__(self, of): self.on = getattr(of, "on", Device.current[-1])
    @property
    def data(self): return SimpleNamespace(ptr=self.ctypes.data, device_id=self.on)
    device = property(lambda self: Device(self.on))
    def set(self, host):
        assert Device.current[-1] == self.on
        self[...] = host

def empty(ordinal, n, dtype):
    with Device(ordinal):
        return np.full(n, 0xEE, "u1").view(dtype).view(Array)

cupy = MagicMock()
cupy.ndarray, cupy.cuda.Device, cupy.cuda.MemoryHook = Array, Device, object
cupy.asnumpy = lambda x: np.array(x, subok=False)
cupy.cuda.nvtx.available = False
sys.modules.update({"cupy": cupy, "cupy.cuda": cupy.cuda, "cupy.cuda.runtime": cupy.cuda.runtime})
from dask_coop.chunks.cupy import multichunk
from dask_coop.chunks.cupy.partition import STRETCH
from dask_coop.cuda.devices import Device as Facts

def at(address, dtype, n):
    size = np.dtype(dtype).itemsize * n
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype)

launches = []
def launch(source, blocks, threads, shared, ordinals, arguments, what, wait):
    launches.append(ordinals)
    given = [arguments(rank, None, None) for rank in range(len(ordinals))]
    for work, _, _, states, peers, bases, steps in given:
        first = at(work["first"], "i4", blocks + 1)
        assert (np.diff(first) >= 0).all()
        stretches = at(work["stretches"], STRETCH, first[-1])
        begin = at(work["begin"], "i4", int(work["chunks"]) + 1)
        states = at(states, "i8", len(stretches))
        if steps & 1:
            for s, one in enumerate(stretches):
                states[s] = at(one["x"], "i8", one["n"]).sum()
            for a, b in itertools.pairwise(begin):
                for table in at(peers, "u8", len(ordinals)):
                    at(table, "i8", int(work["all"]))[stretches[a]["chunk"]] = states[a:b].sum()
        if steps & 2:
            for a, b in itertools.pairwise(begin):
                for s in range(a, b):
                    one = stretches[s]
                    base = at(bases, "i8", int(work["all"]))[one["chunk"]] + states[a:s].sum()
                    x = at(one["x"], "i8", one["n"])[::step]
                    at(one["y"], "i8", one["n"])[::step] = base + x.cumsum()

multichunk.device = lambda ordinal: Facts("sm_80", 108, 166912, False)
multichunk.most_blocks = lambda *_: 5
multichunk._results = lambda op, xs, wanted: [empty(x.on, x.nbytes, "i8") for x in xs]
team = SimpleNamespace(launch=launch, empty=empty, ordinals=(0, 1, 2), objection="")
multichunk.team_of = lambda ordinals: team

op = bind(SUM, np.dtype("i8"), np.dtype("i8"), "test")
rng = np.random.default_rng(3)
sizes = [0, 7000, 1, 5000, 0, 1024, 40_000, 3]
host = rng.integers(-99, 99, sum(sizes))
for reverse, moved in itertools.product((False, True), repeat=2):
    step = -1 if reverse else 1
    spec = ScanSpec(0, reverse=reverse)

    def cut(shift):
        xs = []
        for i, part in enumerate(np.split(host, np.cumsum(sizes)[:-1])):
            xs.append(empty((i + shift) % 3, 8 * part.size, "i8"))
            xs[-1][...] = part
        return xs[::step]

    xs = cut(0)
    fields, memo = multichunk.upsweep(op, spec, xs)
    assert fields[0].tolist() == [int(np.sum(x)) for x in xs]
    total = np.cumsum(fields[0]) - fields[0]
    if moved:
        # To where the stretches are others, and the last are on a GPU of few before.
        xs = cut(1)
    bases = [None, *((base,) for base in total[1:])]
    ys = multichunk.downsweep(op, spec, xs, bases, memo)
    assert [y.on for y in ys] == [x.on for x in xs]
    found = np.concatenate([np.asarray(y) for y in ys[::step]])
    np.testing.assert_array_equal(found, host[::step].cumsum()[::step])
print(launches.count((0, 1, 2)), len(launches))
"""


def test_stretches_of_all_gpus_find_their_states_and_bases() -> None:
    pytest.importorskip("cuda.bindings.driver")
    pytest.importorskip("cuda.core")
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Chunks that have moved between the halves are reduced again.
    assert done.stdout.split() == ["10", "10"]
