"""One worker a host: run its tasks and rounds on all GPUs that its process sees.

Each task runs on the GPU that holds most bytes of its inputs; the other inputs are copied there
first. A task without inputs on a GPU goes to the GPU with the fewest running tasks and, among
those, the least memory in use::

    worker: task becomes "executing" --> OnGpu(task) --> thread: GPU chosen, inputs brought --> task

In a round all chunks of the worker are one launch over its GPUs (`chunks.cupy.multichunk`), so the
host receives one message and sends one. Where no such launch exists for the operation or the GPUs,
one thread a GPU handles the chunks there: `by_gpu`.
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

Result = TypeVar("Result")


class WorkerGpus(WorkerPlugin):  # type: ignore[misc]
    """Make a worker use all GPUs that its process sees, until it closes.

    Parameters
    ----------
    timeout : float
        Seconds that a GPU waits for the others in a launch over several GPUs.
    """

    name = "dask-coop-gpus"
    idempotent = True

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._doing: Counter[int] = Counter()
        self._lock = threading.Lock()

    def setup(self, worker: Worker) -> None:
        """Connect the GPUs for copies and for launches over several; distributed calls this."""
        self._tasks = worker.state.tasks
        self._gpus = _peers()
        self._devices = range(self._gpus.count())
        self._gpus.connect(self._devices)
        _share(self._devices, self._timeout)

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Wrap a task that is about to run so that it chooses a GPU; distributed calls this."""
        if finish == "executing":
            task = self._tasks[key]
            # Coroutines run in the event loop, whose thread has no current GPU to choose.
            if not task.run_spec.is_coro and not isinstance(task.run_spec, OnGpu):
                task.run_spec = OnGpu(task.run_spec, self)

    @contextmanager
    def taking(self, task: Any, data: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
        """Make a GPU current for a task; yield the task and its inputs, copied to that GPU."""
        if hands_on(task, data):
            yield task, data
            return
        nbytes = held(self._gpus, task, data)
        most = max(nbytes.values(), default=0)
        best = [gpu for gpu, size in nbytes.items() if size == most] or self._devices
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
    """A worker's task that chooses its GPU when it is called; distributed takes it for a task."""

    is_coro = False

    def __init__(self, task: Any, gpus: WorkerGpus) -> None:
        self._task, self._gpus = task, gpus

    def __call__(self, data: Mapping[Any, Any]) -> Any:
        """Run the task."""
        with self._gpus.taking(self._task, data) as (task, brought):
            return task(brought)

    def __repr__(self) -> str:
        """Return the task's own repr, which distributed logs if the task fails."""
        return repr(self._task)


def by_gpu(
    function: Callable[..., Result], blocks: Sequence[Any], *arguments: Sequence[Any]
) -> list[tuple[Sequence[int], Result]]:
    """Call a function with the chunks of each GPU, in one thread a GPU, which is current there.

    Parameters
    ----------
    function : callable
        Called with a subset of `blocks`, and of each of `arguments`.
    blocks : sequence of sequences of arrays
        The blocks of each chunk. A chunk belongs to the GPU of its first block; its other blocks
        are copied there.
    *arguments : sequences
        One entry a chunk each.

    Returns
    -------
    list of tuples
        For each call, the indices of its chunks in `blocks`, and its result.
    """
    if chunks.kind(blocks[0][0]) != "cupy":
        return [(range(len(blocks)), function(blocks, *arguments))]
    gpus, owners = _peers(), dict[int, list[int]]()
    for i, block in enumerate(blocks):
        owners.setdefault(gpus.device_of(block[0]), []).append(i)

    def call(gpu: int, indices: list[int]) -> tuple[list[int], Result]:
        gpus.use(gpu)
        _, brought = bring(gpus, gpu, None, [blocks[i] for i in indices])
        return indices, function(brought, *([values[i] for i in indices] for values in arguments))

    if len(owners) == 1:
        return [call(*item) for item in owners.items()]
    with ThreadPoolExecutor(len(owners), "Dask-Coop-GPU") as pool:
        calls = [pool.submit(partial(copy_context().run, call, *item)) for item in owners.items()]
    return [future.result() for future in calls]


def _peers() -> Any:
    from dask_coop.cuda import peers

    return peers


def _share(devices: Sequence[int], timeout: float) -> None:
    from dask_coop.cuda import team

    team.share(devices, timeout)
