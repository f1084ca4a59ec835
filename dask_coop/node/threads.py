"""The threads of a `Node`, and their queues of tasks.

`dask.local.get_async` hands out every task that is ready. Each goes to a queue: that of the thread
that launches on a GPU, or that of the GPU's host threads, which read, decode, generate and copy. A
thread takes the task of its queue that became ready last, as `get_async` itself would: depth first
needs the least memory. A thread pauses while `get_async` has yet to see the last few tasks that it
finished, as better ones may follow from them.

A task that may fill a GPU has a gate, which opens when there is room (`dask_coop.node.room`), or
when no other task of its graph is running that could make room.

A task may wait for another graph that it computes itself. So if all threads of a queue run tasks of
other graphs, a graph gets a spare thread there until it ends.
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

#: Reentrant, because garbage collection may stop a Node's threads while the lock is held.
Lock = threading.RLock


class Run:
    """A graph that is being computed: counts of its tasks, and of the rounds of `get_async`."""

    def __init__(self, queues: Sequence[TaskQueue], lock: Lock) -> None:
        self.round: int = 0
        self.order: Iterator[int] = itertools.count()
        self._queues, self._lock = queues, lock
        # Tasks handed out, not waiting at a gate, and not yet processed by `get_async`.
        self.busy: int = 0
        # Tasks that `get_async` is about to hand out.
        self.coming: int = 0
        # Tasks that threads have taken and `get_async` has not seen finished.
        self.unseen: Counter[TaskQueue] = Counter()
        # Whether no further task may begin.
        self.over: bool = False
        # Tasks that threads are running.
        self.doing: Counter[TaskQueue] = Counter()
        self._ends: SimpleQueue[None] = SimpleQueue()
        self._last: TaskFuture | None = None

    @property
    def is_stalled(self) -> bool:
        """Whether all tasks that are left wait at gates."""
        return not self.busy and not self.coming

    def see(self, task: TaskFuture) -> None:
        """Note that `get_async` looks at a finished task."""
        self.round += 1
        self._last = task

    def hand_out(self, task: TaskFuture) -> None:
        """Give a task to its queue, or run it here if it has none."""
        with self._lock:
            # Tasks that are ready at the start were never counted as coming.
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
        """Note that `get_async` has dropped a task's inputs: its callback after each task."""
        task, self._last = self._last, None
        assert task is not None
        with self._lock:
            self.coming = len(state["ready"])
            self.busy -= 1
            if task.queue is not None:
                task.queue.saw(self)
            self._wake()

    def finish(self) -> None:
        """Drop the tasks that have not begun, and wait for the others."""
        self._last = None
        with self._lock:
            self.over = True
            for queue in self._queues:
                queue.drop(self)
        # Not a Condition, which would keep the lock if an interrupt came while it acquires it.
        while self.doing.total():
            self._ends.get()

    def end(self, queue: TaskQueue) -> None:
        """Note that a thread has finished a task and holds no reference to it."""
        with self._lock:
            self.doing[queue] -= 1
        self._ends.put(None)

    def _wake(self) -> None:
        """Make threads check the gates again."""
        for queue in self._queues:
            queue.look_at_gates()


class TaskFuture:
    """A task that was handed out; `get_async` takes it for a future.

    Parameters
    ----------
    run : Run
        The graph of the task.
    queue : TaskQueue or None
        The queue of the task; None to run it in the thread that hands it out.
    work : callable
        Runs the task.
    gate : Gate, optional
    turn : int, optional
        Its rank among the tasks at gates; by default the task that became ready last is first.
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
        """Return whether this task runs before another one: the later round first."""
        return self.rank < other.rank

    def add_done_callback(self, callback: Callable[[TaskFuture], None]) -> None:
        """Hand out the task; `get_async` calls this once, with a callback for the task's end."""
        self._callback: Callable[[TaskFuture], None] | None = callback
        self.run.hand_out(self)

    def may_begin(self) -> bool:
        """Return whether the gate opens; an error of the gate becomes the task's."""
        assert self.gate is not None
        try:
            return self.gate.opens(self.run.is_stalled)
        except Exception as error:
            self._work, self._error = None, error
            return True

    def do(self) -> None:
        """Run the task and call back."""
        work, self._work = self._work, None
        callback, self._callback = self._callback, None
        assert callback is not None
        try:
            if work is not None:
                self._outcome = self._context.run(work)
        except BaseException as error:
            self._error = error
        # The callback may end the graph; then nothing here may keep its arrays alive.
        del work
        callback(self)

    def result(self) -> Any:
        """Return the result; `get_async` calls this once, before it looks for new tasks."""
        self.run.see(self)
        if self._error is not None:
            raise self._error
        return self._outcome


class Waiting:
    """The waiting tasks of a graph in a queue: one heap of free ones, one of those at gates."""

    def __init__(self) -> None:
        self.free: list[TaskFuture] = []
        self.gated: list[TaskFuture] = []

    def push(self, task: TaskFuture) -> None:
        """Add a task."""
        heapq.heappush(self.free if task.gate is None else self.gated, task)

    def pop(self, gates: bool) -> TaskFuture | None:
        """Remove and return a task that may begin, or None; `gates` says whether gates may open."""
        if self.free:
            return heapq.heappop(self.free)
        # Try the first only: if others could overtake it, it might wait for ever.
        if not self.gated or not gates:
            return None
        first = self.gated[0]
        if not first.may_begin():
            return None
        first.run.busy += 1
        return heapq.heappop(self.gated)


class TaskQueue:
    """A queue of tasks with its threads, which run tasks of later rounds first.

    Parameters
    ----------
    name : str
        Prefix of the threads' names.
    lock : threading.RLock
        The lock that all queues of a `Node` share.
    n : int
        Number of threads; they start with the first task.
    behind : TaskQueue, optional
        The queue of tasks that use the results of this one; no gate opens while many wait there.
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
        # Number of idle threads.
        self._free = n
        # Extra threads, which run the tasks of one graph only.
        self._spares: dict[Run, threading.Thread] = {}
        self._local = threading.local()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in one of the threads."""
        return hasattr(self._local, "works")

    # `Run` calls the following methods while it holds the lock.

    def push(self, task: TaskFuture) -> None:
        """Add a task."""
        if not self._started:
            for thread in self._threads:
                # After an interrupt some may be running already.
                if thread.ident is None:
                    thread.start()
            self._started = True
        self._waiting.setdefault(task.run, Waiting()).push(task)
        self._help(task.run)
        self._notify()

    def saw(self, run: Run) -> None:
        """Note that `get_async` has processed one more task of `run`."""
        run.unseen[self] -= 1
        self._notify()

    def look_at_gates(self) -> None:
        """Make threads check again whether tasks at gates may begin."""
        if any(waiting.gated for waiting in self._waiting.values()):
            self._notify()

    def is_late(self, run: Run) -> bool:
        """Return whether more than `MOST_UNSEEN` free tasks of `run` wait."""
        return run in self._waiting and len(self._waiting[run].free) > MOST_UNSEEN

    def drop(self, run: Run) -> None:
        """Drop the tasks of `run` that have not begun, and end its spare thread."""
        self._waiting.pop(run, None)
        if run in self._spares:
            self._changed.notify_all()

    def stop(self) -> None:
        """End the threads after their current tasks."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def join(self, deadline: float) -> None:
        """Wait for the threads to end, until `time.monotonic` reaches the deadline."""
        for thread in [*self._threads, *self._spares.values()]:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _thread(self, name: str, only: Run | None) -> threading.Thread:
        # Daemons, because a program may end without closing its Node.
        return threading.Thread(target=self._loop, args=[only], name=name, daemon=True)

    def _notify(self) -> None:
        # Wake one more than the spare threads, which do not take every task.
        self._changed.notify(1 + len(self._spares))

    def _help(self, run: Run) -> None:
        """Start a spare thread if all run tasks of other graphs, which may wait for `run`."""
        if self._free or run.doing[self] or run in self._spares:
            return
        self._spares[run] = self._thread(f"{self._name}, spare", run)
        try:
            self._spares[run].start()
        except BaseException:
            del self._spares[run]
            raise

    def _help_all(self) -> None:
        # If no thread can be started, the next task that a thread takes tries again.
        with suppress(RuntimeError):
            for run in self._waiting:
                self._help(run)

    def _loop(self, only: Run | None) -> None:
        self._local.works = True
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
                # Move the graph to the end, so that graphs take turns.
                del self._waiting[run]
                if waiting.free or waiting.gated:
                    self._waiting[run] = waiting
                run.unseen[self] += 1
                run.doing[self] += 1
                if only is None:
                    self._free -= 1
                    self._help_all()
                # There may be room for another task.
                self.look_at_gates()
                return task
        return None
