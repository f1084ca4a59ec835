"""Timing of a call: on a GPU by device events, without one by the host's clock.

On a GPU a sample is a batch of calls between two events, which the host queues while a spinning
kernel holds the stream. So the launches of a batch follow one another, and the time is the device's
alone; the host's time for a call is recorded beside it ("host")::

    stream   | spin ......................... | event | call | call | ... | call | event |
    host     | queues the batch | waits ...

The calls of all samples walk through several sets of inputs, which are several times the size of
the cache, so that no call finds its input there.
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from dask_coop.cli import info

from .cases import GPU, HOST, LARGE, Case, Scale, fill
from .contenders import Contenders, Missing
from .threads import THREADS, most_threads, name_of

Sets = list[tuple[Any, ...]]
Call = Callable[..., Any]

#: The milliseconds of a call, and those that the host needed to queue it.
Sample = tuple[float, float]

#: The number of samples for calls of at most so many milliseconds.
SAMPLES: tuple[tuple[float, int], ...] = ((100.0, 7), (300.0, 3), (math.inf, 1))
HOST_SAMPLES = ((20.0, 7), (60.0, 5), (150.0, 3), (1000.0, 2), (math.inf, 1))
QUICK_SAMPLES = ((20.0, 2), (math.inf, 1))

#: The fewest samples of a call on a cluster, because the time of messages varies.
CLUSTERED = 7

#: The milliseconds of a batch, or its number of calls.
BATCH_MS, MOST_CALLS = 2.0, 50

#: The size of the inputs in caches, and the fewest sets.
CACHES, LEAST_SETS = 4, 3

#: For inputs of so many bytes one set is enough: by its end, its start has left all caches.
ONE_SET = 1 << 32

#: The most sets that are useful: with them, 2^16 elements are still four caches.
MOST_SETS = 1024

KERNELS = r"""
extern "C" __global__ void spin(long long nanoseconds) {
  long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < nanoseconds);
}
extern "C" __global__ void __launch_bounds__(512) read(const float4* x, long long n, float* out) {
  float sum = 0;
  long long stride = (long long)gridDim.x * 512, i = (long long)blockIdx.x * 512 + threadIdx.x;
  for (; i + 3 * stride < n; i += 4 * stride) {
    float4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = x[i + k * stride];
#pragma unroll
    for (int k = 0; k < 4; ++k) sum += v[k].x + v[k].y + v[k].z + v[k].w;
  }
  if (sum == -1) *out = sum;
}
"""


class GpuTimer:
    """Times calls on the current GPU of CuPy, on its current stream."""

    kind = "GPU"
    names: tuple[str, ...] = ("dask_coop", "CUB", "CuPy", "PyTorch")
    scale = GPU
    samples = SAMPLES
    primitives: tuple[str, ...] = ("reduce", "scan", "histogram", "transpose", "matmul")

    def __init__(self) -> None:
        self.contenders: Contenders = Contenders(gpu=True)
        self.xp: Any = self.contenders.cupy
        attributes = self.xp.cuda.Device().attributes
        self._processors = attributes["MultiProcessorCount"]
        self._kilohertz = attributes.get("ClockRate")
        self.cache: int = attributes["L2CacheSize"]
        self.memory: int = self.xp.cuda.runtime.memGetInfo()[1]
        with suppress(Missing):
            _ = self.contenders.cub  # starts nvcc in the background
        module = self.xp.RawModule(code=KERNELS)
        self._spin, self._read = module.get_function("spin"), module.get_function("read")

    def sample(self, call: Call, sets: Sets, first: int, batch: int, host: float) -> Sample:
        """Time `batch` calls that cost the host about `host` ms each, starting with set `first`."""
        cuda = self.xp.cuda
        start, stop = cuda.Event(), cuda.Event()
        # Long enough for the host to queue all calls; bounded, because a call may itself wait for
        # it.
        hold = min(2 * host * batch + 0.2, 20.0)
        self._spin((1,), (1,), (np.int64(hold * 1e6),))
        start.record()
        began = perf_counter()
        for i in range(first, first + batch):
            call(*sets[i % len(sets)])
        host = (perf_counter() - began) * 1e3 / batch
        stop.record()
        stop.synchronize()
        return cuda.get_elapsed_time(start, stop) / batch, host

    def ceilings(self, nbytes: int) -> dict[str, Call]:
        """Return a device-to-device copy and a kernel that only reads."""
        a, b = self.xp.ones(nbytes // 4, "f4"), self.xp.ones(nbytes // 4, "f4")
        arguments = (a, np.int64(nbytes // 16), b)
        return {
            "copy": lambda: b.data.copy_from_device_async(a.data, nbytes),
            "read": lambda: self._read((self._processors * 4,), (512,), arguments),
        }

    def wait(self) -> None:
        """Wait for all work; raise its errors."""
        self.xp.cuda.runtime.deviceSynchronize()

    def release(self) -> None:
        """Return unused memory to the GPU."""
        self.xp.get_default_memory_pool().free_all_blocks()
        if "torch" in vars(self.contenders):
            self.contenders.torch.cuda.empty_cache()

    def slots_per_ms(self) -> float | None:
        """Return the slots at the highest clock, with 128 lanes a clock and multiprocessor."""
        return self._processors * 128.0 * self._kilohertz if self._kilohertz else None

    def facts(self) -> dict[str, Any]:
        """Return the driver and the versions of the contenders."""
        found: dict[str, Any] = {"driver": None}
        if shutil.which("nvidia-smi"):
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            done = subprocess.run(query, capture_output=True, text=True)
            found["driver"] = done.stdout.split("\n")[0].strip() or None
        for name, version in (
            ("PyTorch", lambda: self.contenders.torch.__version__),
            ("CUB", lambda: self.contenders.cub.version),
        ):
            try:
                found[name] = version()
            except Missing as error:
                found[name] = str(error)
        return found


class HostTimer:
    """Times calls of NumPy, without a GPU."""

    kind = "CPU"
    peers: tuple[str, ...] = ("bottleneck", "numbagg", "boost-histogram", "fast-histogram")
    samples = HOST_SAMPLES
    primitives: tuple[str, ...] = ("chunks", "arrays", "threads")
    cache = 0

    def __init__(self) -> None:
        self.contenders: Contenders = Contenders(gpu=False)
        self.xp = np
        self.memory: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        fewer = [name_of(n) for n in THREADS if n < most_threads(self.contenders.processors)]
        self.names: tuple[str, ...] = (
            "dask_coop",
            *fewer,
            "NumPy",
            "Dask",
            "Dask blelloch",
            *self.peers,
        )
        large = self.contenders.processors >= THREADS[-1]
        self.scale: Scale = replace(HOST, whole=LARGE) if large else HOST
        self._kept: dict[str, tuple[Any, Any]] = {}

    def keep(self, what: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return the last value made under the name `what`, or a new one if its key differs."""
        if what not in self._kept or self._kept[what][0] != key:
            self._kept.pop(what, None)
            self._kept[what] = key, make()
        return self._kept[what][1]

    def sample(self, call: Call, sets: Sets, first: int, batch: int, host: float) -> Sample:
        """Time `batch` calls, starting with set `first`."""
        began = perf_counter()
        for i in range(first, first + batch):
            call(*sets[i % len(sets)])
        taken = (perf_counter() - began) * 1e3 / batch
        return taken, taken

    def ceilings(self, nbytes: int) -> dict[str, Call]:
        """Return a copy and a reduction that NumPy does with vector instructions."""
        a, b = np.ones(nbytes // 8, "i8"), np.ones(nbytes // 8, "i8")
        return {"copy": lambda: np.copyto(b, a), "read": lambda: a.max()}

    def wait(self) -> None:
        """Do nothing: NumPy's calls have ended when they return."""

    def release(self) -> None:
        """Do nothing: NumPy keeps no unused memory."""

    def slots_per_ms(self) -> None:
        """Return None: the instructions that a CPU would run are unknown."""

    def facts(self) -> dict[str, Any]:
        """Return the versions of the peers."""
        return {name: version_of(name) for name in (*self.peers, "numba")}


Timer = GpuTimer | HostTimer


def find_timer(cpu: bool) -> Timer:
    """Return the timer of the GPU that CuPy can use, else that of the host."""
    return HostTimer() if cpu or not info.cupy_gpus() else GpuTimer()


def version_of(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Return the name of the processor, as far as the system knows it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine_facts(timer: Timer) -> dict[str, Any]:
    """Return the machine, the versions of everything and the date."""
    known = info.facts()
    gpus = known["gpus"] if timer.kind == "GPU" else []
    return {
        "timer": timer.kind,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": gpus[0] if gpus else None,
        "processor": processor(),
        "processors": timer.contenders.processors,
        "versions": known["versions"] | timer.facts(),
    }


def inputs(timer: Timer, case: Case) -> Sets:
    """Return the sets of inputs that the calls walk through."""
    if isinstance(timer, GpuTimer):
        return _make_inputs(timer, case)
    sets: Sets = timer.keep("inputs", case.inputs, lambda: _make_inputs(timer, case))
    return sets


def _make_inputs(timer: Timer, case: Case) -> Sets:
    nbytes = case.nbytes * case.arrays
    least = LEAST_SETS if nbytes < ONE_SET else 1
    n = min(max(least, -(-CACHES * timer.cache // nbytes)), MOST_SETS)
    if case.size < 1 << 20:
        # Views of one array, because filling hundreds of small ones would take long.
        whole = replace(case, shape=(n, *case.shape))
        pools = [fill(timer.xp, whole, seed) for seed in range(case.arrays)]
        return [tuple(pool[i] for pool in pools) for i in range(n)]
    seeds = np.arange(n * case.arrays).reshape(n, case.arrays)
    return [tuple(fill(timer.xp, case, int(seed)) for seed in row) for row in seeds]


class Samples:
    """Samples of one call: the first sets the calls a sample, the fastest the number of samples.

    They begin with the set number `begin`, and are at least `least` in number.
    """

    def __init__(
        self, timer: Timer, call: Call, sets: Sets, begin: int = 0, least: int = 1
    ) -> None:
        self._timer, self._call, self._sets, self._begin = timer, call, sets, begin
        self._fewest = least
        first = timer.sample(call, sets, begin, 1, 1.0)
        self._least, self._host = first
        self._batch = int(min(max(BATCH_MS / max(self._least, 1e-6), 1), MOST_CALLS))
        # The first call was a sample, unless samples have several calls.
        self._samples = [first] if self._batch == 1 else []

    @property
    def left(self) -> int:
        """The number of samples still to take."""
        count = next(n for most, n in self._timer.samples if self._least <= most)
        return max(max(count, self._fewest) - len(self._samples), 0)

    def sample(self) -> None:
        """Take the next sample."""
        first = self._begin + 1 + len(self._samples) * self._batch
        one = self._timer.sample(self._call, self._sets, first, self._batch, self._host)
        self._samples.append(one)
        self._least = min(self._least, one[0])

    def result(self) -> dict[str, Any]:
        """Return the samples in milliseconds, and their median."""
        return _times(self._samples, self._batch)


def times(timer: Timer, call: Call, sets: Sets) -> dict[str, Any]:
    """Return the samples of a call that has run before, in milliseconds, and their median."""
    samples = Samples(timer, call, sets)
    while samples.left:
        samples.sample()
    return samples.result()


def _times(samples: list[Sample], batch: int) -> dict[str, Any]:
    device, host = ([float(f"{ms:.4g}") for ms in one] for one in zip(*samples, strict=True))
    found = {"ms": median(device), "host_ms": median(host), "batch": batch}
    return {**found, "samples_ms": device}
