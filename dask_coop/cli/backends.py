"""Compute by the threads of this process, on one GPU, or on a cluster on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from tempfile import gettempdir
from time import monotonic
from typing import Any

import dask
import dask.array as da
from dask.callbacks import Callback
from dask.diagnostics import ProgressBar
from dask.system import CPU_COUNT

from dask_coop import chunks, to_gpu
from dask_coop.cli import info
from dask_coop.cli.output import Pipe


@dataclass(frozen=True)
class Runtime:
    """A way to compute, and its kind of chunks.

    Attributes
    ----------
    name : str
        For people: the kind of chunks, and the number of threads, processes or GPUs.
    gpu : bool
        Whether arrays are moved to CuPy chunks.
    """

    name: str
    gpu: bool
    _compute: Callable[..., Any]

    def move(self, x: da.Array) -> da.Array:
        """Return `x` with chunks of the runtime's kind."""
        if not self.gpu or x.dtype.kind in "mM":
            # CuPy has no dates.
            return x
        return to_gpu(x)

    def compute(self, *arrays: da.Array) -> list[Any]:
        """Compute arrays together; return NumPy arrays."""
        return [chunks.asarray(value, "numpy") for value in self._compute(*arrays)]


@contextmanager
def start(cluster: bool = False, cpu: bool = False, bar: bool = True) -> Iterator[Runtime]:
    """Start a runtime, and end it when the context ends.

    Parameters
    ----------
    cluster : bool
        Whether to run on a cluster of processes on this machine: dask_cuda's, with a process a GPU,
        if there are dask_cuda and GPUs; else distributed's.
    cpu : bool
        Whether to use no GPU.
    bar : bool
        Whether to show progress on stderr: a bar on a terminal, else a line now and then.

    Yields
    ------
    Runtime
    """
    gpus = [] if cpu else info.cupy_gpus()
    if not cluster:
        name = f"NumPy, {_count(CPU_COUNT, 'thread')}"
        if gpus:
            name = f"CuPy {info.package_version('CuPy')} on {gpus[0]}"
        with dask.config.set(scheduler="threads"):
            yield Runtime(name, bool(gpus), partial(_compute_here, bar))
        return

    from distributed import Client, LocalCluster

    if gpus and find_spec("dask_cuda"):
        from dask_cuda import LocalCUDACluster

        name = f"LocalCUDACluster, {_count_names(gpus)}"
        # Its default for scratch files is the current folder.
        workers = LocalCUDACluster(dashboard_address=None, local_directory=gettempdir())
    else:
        gpus = []
        name = f"LocalCluster, {_count(CPU_COUNT, 'process')}"
        workers = LocalCluster(CPU_COUNT, threads_per_worker=1, dashboard_address=None)
    with workers, Client(workers) as client:
        yield Runtime(name, bool(gpus), partial(_compute_there, client, bar))


class _Lines(Callback):  # type: ignore[misc]
    """Print a line on the progress to stderr from time to time, in place of a bar."""

    #: Seconds between two lines.
    every = 10.0

    def __init__(self) -> None:
        super().__init__(start_state=self._begin, posttask=self._go_on)

    def _begin(self, graph: Any, state: Any) -> None:
        self._first = self._last = monotonic()

    def _go_on(self, key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        now = monotonic()
        if now - self._last < self.every:
            return
        self._last = now
        done = len(state["finished"])
        left = sum(len(state[name]) for name in ("ready", "waiting", "running"))
        seconds = (now - self._first) * left / done
        print(f"{done / (done + left):.0%} done, {seconds:.0f} s left", file=Pipe(sys.stderr))


def _compute_here(bar: bool, *arrays: da.Array) -> Any:
    # A short dt, because the bar ends up to dt late.
    progress = ProgressBar(dt=0.02, out=Pipe(sys.stderr)) if sys.stderr.isatty() else _Lines()
    with progress if bar else nullcontext():
        return dask.compute(*arrays)


def _compute_there(client: Any, bar: bool, *arrays: da.Array) -> Any:
    from distributed import progress

    futures = client.compute(arrays)
    if bar and sys.stderr.isatty():
        stderr: Any = Pipe(sys.stderr)
        with redirect_stdout(stderr):  # this bar always prints to stdout
            progress(futures, notebook=False)
    return client.gather(futures)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith('s') else 's'}"


def _count_names(names: list[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
