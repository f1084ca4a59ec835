"""One worker a host: its tasks and its part in rounds, on all GPUs that its process sees.

Any thread of the worker does any task, on the GPU where most bytes of its inputs lie, to which
others are copied first; what has none on a GPU goes where the fewest tasks are under way, and of
such GPUs to the one with the least in its memory::

    worker: task becomes "executing" --> OnGpu(task) --> thread: GPU chosen, inputs brought --> task

In a round all chunks of the worker are one launch over its GPUs (`chunks.cupy.multichunk`), so one
message goes to a host and one comes back. Where no launch does what is asked, or takes these GPUs,
the chunks of each GPU are done by a thread of its own: `by_gpu`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from distributed import Worker, WorkerPlugin

from dask_coop import chunks
from dask_coop.graph.inputs import bring, hands_on, held

Made = TypeVar("Made")


class WorkerGpus(WorkerPlugin):  # type: ignore[misc]
    """Has a worker use all GPUs that its process sees, until it closes.

    Parameters
    ----------
    timeout : float
        Seconds that a GPU waits for the others in a launch of several.
    """

    name = "dask-coop-gpus"
    idempotent = True

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._doing: Counter[int] = Counter()
        self._lock = threading.Lock()

    def setup(self, worker: Worker) -> None:
        """Let the GPUs reach one another, and share launches; distributed calls this."""
        self._tasks = worker.state.tasks
        self._gpus = _peers()
        self._devices = range(self._gpus.count())
        self._gpus.connect(self._devices)
        _share(self._devices, self._timeout)

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Have a task that is about to begin run on a GPU; distributed calls this."""
        if finish == "executing":
            task = self._tasks[key]
            # What runs in the event loop has no thread, and so no GPU, of its own.
            if not task.run_spec.is_coro and not isinstance(task.run_spec, OnGpu):
                task.run_spec = OnGpu(task.run_spec, self)

    @contextmanager
    def taking(self, task: Any, data: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
        """Make a GPU the current one for a task; yield the task and its inputs, brought there."""
        if hands_on(task, data):
            yield task, data
            return
        there = held(self._gpus, task, data)
        most = max(there.values(), default=0)
        best = [gpu for gpu, size in there.items() if size == most] or self._devices
        with self._lock:
            gpu = min(best, key=lambda gpu: (self._doing[gpu], self._gpus.used(gpu), gpu))
            self._doing[gpu] += 1
        try:
            self._gpus.use(gpu)
            yield bring(self._gpus, gpu, task, data)
        finally:
            with self._lock:
                self._doing[gpu] -= 1


class OnGpu:
    """A task of a worker's, which chooses its GPU when it is called; to distributed, a task."""

    is_coro = False

    def __init__(self, task: Any, gpus: WorkerGpus) -> None:
        self._task, self._gpus = task, gpus

    def __call__(self, data: Mapping[Any, Any]) -> Any:
        """Do the task."""
        with self._gpus.taking(self._task, data) as (task, brought):
            return task(brought)

    def __repr__(self) -> str:
        """Return what is said of the task where it fails."""
        return repr(self._task)


def by_gpu(
    function: Callable[..., Made], blocks: Sequence[Any], *rest: Sequence[Any]
) -> list[tuple[Sequence[int], Made]]:
    """Call a function with the chunks of each GPU, in a thread for each, where that is current.

    Parameters
    ----------
    function : callable
        Called with some of `blocks`, and of each of `rest`.
    blocks : sequence of sequences of arrays
        Those of each chunk. It belongs to the GPU of the first, to which the others are copied.
    *rest : sequences
        What goes with each chunk.

    Returns
    -------
    list of tuples
        The numbers of the chunks of a call, and what it returned.
    """
    if chunks.kind(blocks[0][0]) != "cupy":
        return [(range(len(blocks)), function(blocks, *rest))]
    gpus, owners = _peers(), dict[int, list[int]]()
    for i, block in enumerate(blocks):
        owners.setdefault(gpus.device_of(block[0]), []).append(i)

    def call(gpu: int, own: list[int]) -> tuple[list[int], Made]:
        gpus.use(gpu)
        _, mine = bring(gpus, gpu, None, [blocks[i] for i in own])
        return own, function(mine, *([each[i] for i in own] for each in rest))

    if len(owners) == 1:
        return [call(*one) for one in owners.items()]
    with ThreadPoolExecutor(len(owners), "Dask-Coop-GPU") as pool:
        calls = [pool.submit(partial(copy_context().run, call, *one)) for one in owners.items()]
    return [each.result() for each in calls]


def _peers() -> Any:
    from dask_coop.cuda import peers

    return peers


def _share(devices: Sequence[int], timeout: float) -> None:
    from dask_coop.cuda import team

    team.share(devices, timeout)
