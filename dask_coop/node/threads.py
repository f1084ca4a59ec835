"""The threads of a `Node`, and what they have to do.

`dask.local.get_async` hands out every task that is ready. It goes to a queue: of the thread that
launches on a GPU, or of the threads that work on the host for it, which read, decode, generate and
copy. A thread takes, of the tasks of its queue, one of those that became ready last, as `get_async`
itself would: depth first, so that little is in memory. It waits where `get_async` has not seen the
last few tasks that it has done, and may have better ones to give.

A task that may fill a GPU has a gate, which opens when there is room (`dask_coop.node.room`), or
when nothing else of its graph is on its way that could make some.

A task may wait for a graph that a thread of its own computes. So a graph for which no thread of a
queue is left, as all are at tasks of others, gets a spare one there until it ends.
"""

from __future__ import annotations

import contextvars
import heapq
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from dask_coop.node.room import MOST_UNSEEN, Gate

#: Reentrant, because a Node that is collected meanwhile stops its threads.
Lock = threading.RLock


class Run:
    """One graph on its way.

    It counts how often `get_async` has looked for tasks that are ready, and those on their way.
    """

    def __init__(self, queues: Sequence[TaskQueue], lock: Lock) -> None:
        self.round: int = 0
        self.order: Iterator[int] = itertools.count()
        self._queues, self._lock = queues, lock
        # Tasks that wait for no gate, and that `get_async` is not done with.
        self.busy: int = 0
        # Tasks that `get_async` is about to hand out.
        self.coming: int = 0
        # Tasks that threads have taken, and that `get_async` has not seen.
        self.unseen: Counter[TaskQueue] = Counter()
        # Whether no task is begun any more.
        self.over = False
        # Tasks that threads are at.
        self.doing: Counter[TaskQueue] = Counter()
        self._ends: SimpleQueue[None] = SimpleQueue()
        self._last: TaskFuture | None = None

    @property
    def is_stalled(self) -> bool:
        """Whether all that is left to do waits at gates."""
        return not self.busy and not self.coming

    def see(self, task: TaskFuture) -> None:
        """Say that `get_async` looks at a finished task."""
        self.round += 1
        self._last = task

    def hand_out(self, task: TaskFuture) -> None:
        """Give a task to its queue, or do it here."""
        with self._lock:
            # It is not told of those that are ready in the beginning.
            self.coming = max(0, self.coming - 1)
            if task.gate is None:
                self.busy += 1
            if task.queue is not None:
                task.queue.push(task)
            if self.is_stalled:
                self._wake()
        if task.queue is None:
            task.do()

    def saw(self, key: Any, value: Any, graph: Any, state: Any, worker: Any) -> None:
        """Say that `get_async` has let go of what a task needed: its callback behind each task."""
        task, self._last = self._last, None
        assert task is not None
        with self._lock:
            self.coming = len(state["ready"])
            self.busy -= 1
            if task.queue is not None:
                task.queue.saw(self)
            self._wake()

    def finish(self) -> None:
        """Drop the tasks that have not begun, and wait for those that have."""
        self._last = None
        with self._lock:
            self.over = True
            for queue in self._queues:
                queue.drop(self)
        # A Condition would keep the lock if an interrupt came while it takes it.
        while self.doing.total():
            self._ends.get()

    def end(self, queue: TaskQueue) -> None:
        """Say that a thread is done with a task, and holds nothing of it any more."""
        with self._lock:
            self.doing[queue] -= 1
        self._ends.put(None)

    def _wake(self) -> None:
        """Let threads look at the gates again."""
        for queue in self._queues:
            queue.look_at_gates()


class TaskFuture:
    """A task that was handed out; to `get_async`, a future.

    Parameters
    ----------
    run : Run
        The graph that it is of.
    queue : TaskQueue or None
        Where it is to be done; None for the thread that hands it out.
    work : callable
        What to do.
    gate : Gate, optional
        What it waits for.
    turn : int, optional
        Where it comes among the tasks at gates, if not first those that became ready last.
    """

    def __init__(
        self,
        run: Run,
        queue: TaskQueue | None,
        work: Callable[[], Any],
        gate: Gate | None = None,
        turn: int | None = None,
    ) -> None:
        self.run = run
        at_gate = gate is not None and turn is not None
        self.rank: tuple[Any, ...] = (0, turn) if at_gate else (-run.round, next(run.order))
        self.queue = queue
        self.gate = gate
        self._work: Callable[[], Any] | None = work
        self._context = contextvars.copy_context()
        self._outcome: Any = None
        self._error: BaseException | None = None

    def __lt__(self, other: TaskFuture) -> bool:
        """Return whether this became ready in a later round, or comes first in the same one."""
        return self.rank < other.rank

    def add_done_callback(self, callback: Callable[[TaskFuture], None]) -> None:
        """Begin; `get_async` says here, and once, what to call at the end."""
        self._callback: Callable[[TaskFuture], None] | None = callback
        self.run.hand_out(self)

    def may_begin(self) -> bool:
        """Return whether its gate opens; if that fails, so does the task."""
        assert self.gate is not None
        try:
            return self.gate.opens(self.run.is_stalled)
        except Exception as error:
            self._work, self._error = None, error
            return True

    def do(self) -> None:
        """Do the work and call back."""
        work, self._work = self._work, None
        callback, self._callback = self._callback, None
        assert callback is not None
        try:
            if work is not None:
                self._outcome = self._context.run(work)
        except BaseException as error:
            self._error = error
        # The callback may be the end of the graph, whose arrays should go.
        del work
        callback(self)

    def result(self) -> Any:
        """Return what the work returned; `get_async` asks once, before it looks for new tasks."""
        self.run.see(self)
        if self._error is not None:
            raise self._error
        return self._outcome


class Waiting:
    """The tasks of a graph in a queue: two heaps, of those that may begin and those at gates."""

    def __init__(self) -> None:
        self.free: list[TaskFuture] = []
        self.gated: list[TaskFuture] = []

    def push(self, task: TaskFuture) -> None:
        """Add a task."""
        heapq.heappush(self.free if task.gate is None else self.gated, task)

    def pop(self, gates: bool) -> TaskFuture | None:
        """Remove a task that may begin, if there is one, and behind a gate if that may be."""
        if self.free:
            return heapq.heappop(self.free)
        # None goes before the first, which would wait for ever.
        if not self.gated or not gates:
            return None
        first = self.gated[0]
        if not first.may_begin():
            return None
        first.run.busy += 1
        return heapq.heappop(self.gated)


class TaskQueue:
    """Threads that do tasks, those of a later round first.

    Parameters
    ----------
    name : str
        What the threads' names begin with.
    lock : threading.RLock
        That of all queues of a `Node`.
    n : int
        The number of threads, which start with the first task.
    behind : TaskQueue, optional
        Where tasks go on with what is made here; no gate opens while some wait there.
    """

    def __init__(self, name: str, lock: Lock, n: int = 1, behind: TaskQueue | None = None) -> None:
        self._behind = behind
        self._waiting: dict[Run, Waiting] = {}
        self._most_unseen = MOST_UNSEEN + n - 1
        self._stopped = False
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._name = name
        self._threads = [self._thread(name if n == 1 else f"{name} {i}", None) for i in range(n)]
        self._started = False
        # Those of the threads that are at no task.
        self._free = n
        # Threads besides, which do the tasks of one graph only.
        self._spares: dict[Run, threading.Thread] = {}
        self._own = threading.local()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in one of the threads."""
        return hasattr(self._own, "works")

    # What `Run` calls, with the lock.

    def push(self, task: TaskFuture) -> None:
        """Give the threads a task to do."""
        if not self._started:
            for thread in self._threads:
                # An interrupt may have come when some had started.
                if thread.ident is None:
                    thread.start()
            self._started = True
        self._waiting.setdefault(task.run, Waiting()).push(task)
        self._help(task.run)
        self._notify()

    def saw(self, run: Run) -> None:
        """Say that `get_async` is done with one more task of `run`."""
        run.unseen[self] -= 1
        self._notify()

    def look_at_gates(self) -> None:
        """Look again whether tasks may begin."""
        if any(waiting.gated for waiting in self._waiting.values()):
            self._notify()

    def is_late(self, run: Run) -> bool:
        """Return whether several tasks of `run` wait that may begin."""
        return run in self._waiting and len(self._waiting[run].free) > MOST_UNSEEN

    def drop(self, run: Run) -> None:
        """Drop the tasks of `run` that have not begun, and let its spare thread end."""
        self._waiting.pop(run, None)
        if run in self._spares:
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the threads end after the tasks that they are at."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def join(self, deadline: float) -> None:
        """Wait for the threads to end, until `time.monotonic` is at the deadline."""
        for thread in [*self._threads, *self._spares.values()]:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _thread(self, name: str, only: Run | None) -> threading.Thread:
        # Daemons, because a program may end without closing its Node.
        return threading.Thread(target=self._loop, args=[only], name=name, daemon=True)

    def _notify(self) -> None:
        # Whoever waits longest may be a spare thread, which does not take every task.
        self._changed.notify(1 + len(self._spares))

    def _help(self, run: Run) -> None:
        """Start a spare thread if all are at tasks of other graphs, which may wait for `run`."""
        if self._free or run.doing[self] or run in self._spares:
            return
        self._spares[run] = self._thread(f"{self._name}, spare", run)
        try:
            self._spares[run].start()
        except BaseException:
            del self._spares[run]
            raise

    def _help_all(self) -> None:
        # Where no thread can be started, the next task that is taken tries again.
        with suppress(RuntimeError):
            for run in self._waiting:
                self._help(run)

    def _loop(self, only: Run | None) -> None:
        self._own.works = True
        while (task := self._next(only)) is not None:
            task.do()
            run = task.run
            del task
            if only is None:
                with self._lock:
                    self._free += 1
            run.end(self)
            del run
        if only is not None:
            with self._lock:
                self._spares.pop(only, None)

    def _next(self, only: Run | None) -> TaskFuture | None:
        with self._changed:
            while (task := self._take(only)) is None and not self._is_over(only):
                self._changed.wait()
            return task

    def _is_over(self, only: Run | None) -> bool:
        return self._stopped or (only is not None and only.over)

    def _take(self, only: Run | None) -> TaskFuture | None:
        for run, waiting in self._waiting.items():
            if only not in (None, run) or run.unseen[self] >= self._most_unseen:
                continue
            gates = self._behind is None or not self._behind.is_late(run)
            if task := waiting.pop(gates):
                # Graphs of several threads take turns.
                del self._waiting[run]
                if waiting.free or waiting.gated:
                    self._waiting[run] = waiting
                run.unseen[self] += 1
                run.doing[self] += 1
                if only is None:
                    self._free -= 1
                    self._help_all()
                # There may be room for another one.
                self.look_at_gates()
                return task
        return None
