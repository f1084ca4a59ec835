"""Node: a Dask scheduler for all GPUs of one machine, in this process.

::

    get --> launches --> _run --> dask.local.get_async -- task --> placement -- GPU --> queue
                                          ^                                                |
                                          '---------- result, left where it is ---- thread'

Each task belongs to one GPU (`placement`); inputs on other GPUs are copied there first
(`cuda.peers`). The thread of a GPU only queues kernels, so that the GPU works while its thread
fetches the next task. Tasks without inputs on GPUs, which may read, decode, generate and copy, run
on several threads beside it, once the GPU has room for their output (`room`). So do tasks that copy
to the host.

`find` replaces each reduction, scan or histogram in the graph by one task: a multi-chunk launch on
all GPUs (`chunks.cupy.multichunk`), or the replaced tasks if the chunks do not suit. Launches over
chunks in memory run in the calling thread.
"""

from __future__ import annotations

import operator
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import FrameType, ModuleType
from typing import Any, ClassVar, NamedTuple

import dask
from dask import local
from dask.callbacks import Callback
from dask.core import flatten
from dask.system import CPU_COUNT

from dask_coop.chunks.kept import KEPT_CHUNKS
from dask_coop.errors import pip_install
from dask_coop.graph import config
from dask_coop.graph.inputs import bring, hands_on, held
from dask_coop.graph.tasks import name_of
from dask_coop.graph.transfer import configured, take_over
from dask_coop.node import inline, threads
from dask_coop.node.placement import copies_to_host, deal, is_on_all_gpus
from dask_coop.node.room import Room, parsed_limit
from dask_coop.node.run import Launcher
from dask_coop.node.streams import dealt_in_turn, turns
from dask_coop.node.threads import Run, TaskFuture, TaskQueue

GIB = 2**30
#: Most host threads of a GPU.
HOST_THREADS = 8
#: Seconds that an ending program waits for the daemon threads of a Node that was not closed.
END_SECONDS = 2.0
#: Stands for Dask's scheduler if none is configured.
_UNSET = object()
_WITHOUT_GPU = "without one, Dask's own schedulers compute, on NumPy chunks"


class Memory(NamedTuple):
    """The memory of a GPU, in bytes.

    Attributes
    ----------
    used : int
        Memory of CuPy's pool that arrays use.
    pool : int
        Memory of CuPy's pool, used or free.
    free : int
        Free memory of the GPU.
    total : int
        All memory of the GPU.
    """

    used: int
    pool: int
    free: int
    total: int

    def __repr__(self) -> str:
        """Return the sizes in GiB."""
        sizes = (f"{key}={size / GIB:.2f} GiB" for key, size in self._asdict().items())
        return f"Memory({', '.join(sizes)})"


class Node:
    """A Dask scheduler that computes on the GPUs of this machine, in this process.

    Within ``with Node():`` Dask computes everything on it: a task runs on the GPU that holds its
    chunks, and new chunks are dealt out in contiguous runs, so that neighbours share a GPU. Results
    stay where they were computed. Outside of the block, until the node is closed, use
    ``x.compute(scheduler=node.get)``.

    A reduction, scan or histogram of chunks on several GPUs is one cooperative launch over these
    GPUs. A GPU waits there for the others for ``coop.barrier-timeout`` of the configuration, 30 s
    by default; then all give up with `CooperativeTimeout`.

    Until the node is closed, ``x.to_backend("cupy")`` and ``x.to_backend("numpy")`` copy as
    `to_gpu` and `to_host` do, under any scheduler of this process.

    Parameters
    ----------
    devices : sequence of int, optional
        The ordinals of the GPUs, as CuPy counts them; all GPUs by default.
    memory_limit : int, float or str, optional
        A task that brings data from the host waits until less of a GPU's memory than this is in
        use, by arrays or otherwise: bytes, such as ``"8 GiB"``, or a fraction of the GPU up to 1.0;
        0.8 by default. If no other task can run, such tasks begin one by one regardless.

    Raises
    ------
    RuntimeError
        If CuPy does not import, or finds no GPU.
    TypeError, ValueError
        If `devices` is not a sequence of ordinals, is empty, or has an ordinal twice or one without
        a GPU; if `memory_limit` is neither bytes nor a fraction, or not positive; if
        ``coop.barrier-timeout`` is not a positive span of time; or if ``coop.transfer`` has a value
        that `to_gpu` would refuse.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop
    >>> with dask_coop.Node() as node:  # doctest: +SKIP
    ...     x = da.random.random(2**32, chunks=2**28).to_backend("cupy").persist()
    ...     dask_coop.cumsum(x).persist()
    """

    def __init__(
        self,
        devices: Sequence[int] | None = None,
        memory_limit: float | str | None = None,
    ) -> None:
        self._gpus = _peers()
        try:
            count = self._gpus.count()
        except RuntimeError as error:
            raise RuntimeError(f"Node finds no NVIDIA GPU ({error}); {_WITHOUT_GPU}") from error
        if not count:
            raise RuntimeError(f"Node finds no NVIDIA GPU; {_WITHOUT_GPU}")
        self.devices: tuple[int, ...] = (
            tuple(range(count)) if devices is None else _checked(devices, count)
        )
        timeout, copies = config.get("coop.barrier-timeout", config.SPAN), configured()
        self._launcher = Launcher(self._gpus, self.devices, timeout)
        self._gpus.connect(self.devices)
        self._names = Counter(map(self._gpus.name, self.devices))
        memory = self.memory()
        self._total = sum(size.total for size in memory.values())
        self._rooms = {
            ordinal: Room(self._gpus, ordinal, parsed_limit(memory_limit, size.total))
            for ordinal, size in memory.items()
        }
        self._queues_lock = threads.Lock()
        names = {ordinal: f"dask_coop GPU {ordinal}" for ordinal in self.devices}
        self._launching = {gpu: TaskQueue(name, self._queues_lock) for gpu, name in names.items()}
        n = max(1, min(HOST_THREADS, CPU_COUNT // len(names)))
        self._on_host = {
            gpu: TaskQueue(f"{name}, host thread", self._queues_lock, n, self._launching[gpu])
            for gpu, name in names.items()
        }
        # A launch may wait for tasks on the GPUs, so it has a thread of its own.
        self._launches = TaskQueue("dask_coop launches", self._queues_lock)
        self._queues = [*self._launching.values(), *self._on_host.values(), self._launches]
        self._explained: dict[str, str] = {}
        self._blocks: list[Block] = []
        self._lock = threading.Lock()
        self._running = 0
        self._closed = False
        self._stop = weakref.finalize(self, _stop, self._queues, take_over(copies))

    def __enter__(self) -> Node:
        """Make this node Dask's scheduler."""
        self._check_open()
        self._blocks.append(Block(self.get))
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore Dask's scheduler, and close the node."""
        self._blocks.pop().end()
        if not self._blocks:
            self.close()

    def __repr__(self) -> str:
        """Return the GPUs, their memory, and whether the node computes, is idle or closed."""
        names = ", ".join(f"{n} x {name}" for name, n in self._names.items())
        ordinals = ", ".join(map(str, self.devices))
        state = "closed" if self._closed else "computing" if self._running else "idle"
        return f"<Node: {names} ({ordinals}), {self._total / GIB:.0f} GiB, {state}>"

    def memory(self) -> dict[int, Memory]:
        """Return the memory of each GPU, by its ordinal."""
        return {ordinal: Memory(*self._gpus.memory(ordinal)) for ordinal in self.devices}

    def explain(self) -> str:
        """Return a line for each reduction, scan or histogram of the last graph.

        The line has the number of chunks of its single launch, or the reason why it ran as the
        tasks of the plain graph.
        """
        return "\n".join(f"{name}: {how}" for name, how in list(self._explained.items()))

    def close(self) -> None:
        """End the threads once all tasks have ended; arrays stay as they are."""
        with self._lock:
            self._closed = True
            idle = not self._running
        if idle:
            self._stop()

    def get(
        self,
        dsk: Any,
        keys: Any,
        cache: Any = None,
        callbacks: Any = None,
        rerun_exceptions_locally: bool | None = None,
        **ignored: Any,
    ) -> Any:
        """Compute `keys` of a graph; Dask calls this as its scheduler.

        Parameters
        ----------
        dsk : mapping or expression
            The graph.
        keys : key or nested lists of keys
            The keys to compute.
        cache : mutable mapping, optional
            Where to keep intermediate results.
        callbacks : tuple or list of tuples, optional
            Callbacks as in `dask.callbacks`; by default the registered ones.
        rerun_exceptions_locally : bool, optional
            Whether to run a task that fails again in the calling thread, for a debugger.
        **ignored
            Options of other schedulers, such as ``num_workers``.

        Returns
        -------
        object or nested tuples
            The results, on the GPUs where they were computed.

        Raises
        ------
        RuntimeError
            If the node is closed.
        """
        run = partial(
            self._run,
            keys=keys,
            cache=cache,
            callbacks=callbacks,
            rerun_exceptions_locally=rerun_exceptions_locally,
        )
        if (gpu := self._here()) is not None:
            # A task calls compute: queueing more work to its thread would deadlock.
            with self._ordered([gpu]), self._gpus.on_default_streams([gpu]):
                return run(dict(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()))
        with self._use(), self._ordered(self.devices):
            try:
                # Callbacks and caches must see all tasks.
                early = cache is None and not callbacks and not Callback.active
                # Callbacks must see no graph but this one.
                run_plain = partial(self._run, callbacks=())
                with self._gpus.on_default_streams(self.devices):
                    graph, self._explained, here = self._launcher.plan(dsk, keys, run_plain, early)
                    if here:
                        return self._run_here(graph, keys)
                return run(graph)
            finally:
                for ordinal, room in self._rooms.items():
                    if text := room.explain():
                        self._explained[f"GPU {ordinal}"] = text

    def _run(self, graph: dict[Any, Any], keys: Any, callbacks: Any = None, **options: Any) -> Any:
        """Run a graph without looking for launches; in a thread of a GPU, run all of it there."""
        run, here = Run(self._queues, self._queues_lock), self._here()
        dealt = deal(graph, len(self.devices), dealt_in_turn(graph))
        turn = turns(graph)
        most: dict[str, int] = {}

        def submit(execute: Any, jobs: list[Any]) -> TaskFuture:
            ((key, (task, data), dumps, _, get_id, pack),) = jobs
            on_all = is_on_all_gpus(task)
            queue, gpu, gate = None, here, None
            watching: AbstractContextManager[Any] = nullcontext()
            if hands_on(task, data):
                gpu = None
            elif here is None:
                queue, gpu, gated = self._belongs(task, data, dealt[key])
                if gated:
                    gate = self._rooms[gpu].gate(name_of(key), most)
                    watching = gate.passing()
                elif most:
                    watching = self._rooms[gpu].without_gate(most)

            def work() -> Any:
                loads = local.identity
                with watching:
                    if gpu is not None:
                        self._gpus.use(gpu)
                        if not on_all:
                            # Dask calls this within the `try` around the task.
                            loads = partial(self._bring, gpu)
                    done = execute([(key, (task, data), dumps, loads, get_id, pack)])
                for _, result, failed in done:
                    if failed:
                        where = (
                            " on all GPUs" if on_all else "" if gpu is None else f" on GPU {gpu}"
                        )
                        result[0].add_note(f"in task {key!r}{where}")
                return done

            return TaskFuture(run, queue, work, gate, turn.get(key))

        try:
            try:
                with local.local_callbacks(callbacks) as active:
                    # Hand out all ready tasks, so that each thread finds its own among them.
                    return local.get_async(
                        submit,
                        max(len(graph), 1),
                        graph,
                        keys,
                        chunksize=1,
                        get_id=_thread_name,
                        pack_exception=_pack_exception,
                        callbacks=[(None, None, None, run.saw, None), *active],
                        **options,
                    )
            finally:
                # After an exception has left this function, no task may still be writing.
                run.finish()
        except BaseException as error:
            _clear(error)
            raise

    def _run_here(self, graph: dict[Any, Any], keys: Any) -> Any:
        """Run a graph in the calling thread, on the same GPUs as `_run` would."""
        dealt = deal(graph, len(self.devices)) if len(self.devices) > 1 else None

        def call(task: Any, data: Any) -> Any:
            if is_on_all_gpus(task):
                with inline.noting(task.key, " on all GPUs"):
                    return task(data)
            if hands_on(task, data):
                return task(data)
            gpu = self.devices[0]
            if dealt is not None:
                _, gpu, _ = self._belongs(task, data, dealt[task.key])
            self._gpus.use(gpu)
            with inline.noting(task.key, f" on GPU {gpu}"):
                if dealt is not None:
                    task, data = self._bring(gpu, (task, data))
                return task(data)

        results = inline.run(graph, set(flatten([keys])), call)
        return local.nested_get(keys, results)

    def _belongs(self, task: Any, data: Any, dealt: int) -> tuple[TaskQueue, int, bool]:
        """Return the queue and the GPU of a task, and whether it may bring data to the GPU."""
        if is_on_all_gpus(task):
            return self._launches, self.devices[0], False
        sizes = held(self._gpus, task, data)
        nbytes = {ordinal: size for ordinal, size in sizes.items() if ordinal in self.devices}
        if not nbytes:
            gpu = self.devices[dealt]
            return self._on_host[gpu], gpu, True
        most = max(nbytes.values())
        best = [ordinal for ordinal, size in nbytes.items() if size == most]
        # Ties go to the GPU that the task would be dealt to.
        gpu = self.devices[dealt] if self.devices[dealt] in best else min(best)
        return (self._on_host if copies_to_host(task) else self._launching)[gpu], gpu, False

    def _bring(self, gpu: int, work: tuple[Any, Any]) -> Any:
        """Return a task and its inputs with all of their arrays on `gpu`."""
        return bring(self._gpus, gpu, *work)

    def _here(self) -> int | None:
        """Return the GPU that this thread works for, or None."""
        for queues in (self._launching, self._on_host):
            for gpu, queue in queues.items():
                if queue.is_current:
                    return gpu
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this Node is closed; make another one: dask_coop.Node()")

    @contextmanager
    def _ordered(self, gpus: Sequence[int]) -> Iterator[None]:
        """Order the work of a graph after and before the caller's streams."""
        self._gpus.follow_caller(gpus)
        try:
            yield
        finally:
            self._gpus.lead_caller(gpus)

    @contextmanager
    def _use(self) -> Iterator[None]:
        """Keep the threads until the block ends, even if the node is closed meanwhile."""
        with self._lock:
            self._check_open()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                last = self._closed and not self._running
            if last:
                self._stop()


class Block:
    """A block in which a Node is Dask's scheduler; blocks of several threads end in any order.

    All threads share Dask's configuration. So a block that ends before a block begun later leaves
    the scheduler to the later one, which then restores the scheduler from before both.
    """

    _open: ClassVar[list[Block]] = []
    _lock = threading.Lock()

    def __init__(self, get: Callable[..., Any]) -> None:
        with self._lock:
            self._get = get
            self._before = dask.config.get("scheduler", _UNSET)
            self._open.append(self)
            dask.config.set(scheduler=get)

    def end(self) -> None:
        """Restore Dask's scheduler from before the block."""
        with self._lock:
            later = self._open[self._open.index(self) + 1 :]
            self._open.remove(self)
            for block in later:
                if block._before == self._get:
                    block._before = self._before
            if later:
                return
            if self._before is _UNSET:
                dask.config.config.pop("scheduler", None)
            else:
                dask.config.set(scheduler=self._before)


def _peers() -> ModuleType:
    try:
        from dask_coop.cuda import peers
    except ImportError as error:
        raise RuntimeError(
            f"Node needs an NVIDIA GPU and CuPy, and this does not import: {error}. "
            f"`{pip_install('cuda12')}` (or cuda13) brings CuPy; {_WITHOUT_GPU}"
        ) from error
    return peers


def _checked(devices: Sequence[int], count: int) -> tuple[int, ...]:
    """Return ordinals as a tuple of int."""
    try:
        ordinals = tuple(map(operator.index, devices))
    except TypeError as error:
        raise TypeError(f"devices must be a sequence of ordinals, got {devices!r}") from error
    if not ordinals:
        raise ValueError("devices must name at least one GPU, got none")
    for ordinal, times in Counter(ordinals).items():
        if not 0 <= ordinal < count:
            raise ValueError(f"devices must be in 0 to {count - 1}, got {ordinal}")
        if times > 1:
            raise ValueError(f"devices must be distinct; device {ordinal} is there {times} times")
    return ordinals


def _stop(queues: list[TaskQueue], give_back: Callable[[], bool]) -> None:
    give_back()
    KEPT_CHUNKS.clear()
    for queue in queues:
        queue.stop()
    # If garbage collection runs this in one of the threads, it may hold the lock that they need.
    if not any(queue.is_current for queue in queues):
        deadline = time.monotonic() + END_SECONDS
        for queue in queues:
            queue.join(deadline)


def _thread_name() -> str:
    return threading.current_thread().name


def _pack_exception(error: BaseException, dumps: Any) -> Any:
    return error, sys.exc_info()[2]


def _clear(error: BaseException) -> None:
    """Clear Dask's frames and ours in a traceback, so that an exception keeps no arrays alive."""
    for top, _ in traceback.walk_tb(error.__traceback__):
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename in (local.__file__, threads.__file__, __file__):
                with suppress(RuntimeError):  # the frame is still running
                    frame.clear()
            frame = frame.f_back
