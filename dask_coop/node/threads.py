"""The threads of a `Node`: one for each GPU, and what they have to do.

`dask.local.get_async` hands out every task that is ready. A thread takes, of the tasks of its GPU,
one of those that became ready last, as `get_async` itself would: depth first, so that little is in
memory. It waits where `get_async` has not seen the last few tasks that it has done, and may have
better ones to give.
"""

from __future__ import annotations

import contextvars
import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

#: Finished tasks, of one GPU and one graph, that `get_async` may not have seen yet.
MOST_UNSEEN = 4


class Run:
    """One graph on its way; it counts how often `get_async` has looked for tasks that are ready."""

    def __init__(self) -> None:
        self.round = 0
        self.order = itertools.count()


class TaskFuture:
    """A task that was handed out; to `get_async`, a future.

    Parameters
    ----------
    run : Run
        The graph that it is of.
    thread : NodeThread or None
        The thread that is to do it; None for the thread that hands it out.
    work : callable
        What to do.
    """

    def __init__(self, run: Run, thread: NodeThread | None, work: Callable[[], Any]) -> None:
        self.run = run
        self.rank = -run.round, next(run.order)
        self._thread = thread
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
        if self._thread is None:
            self.do()
        else:
            self._thread.push(self)

    def do(self) -> None:
        """Do the work and call back."""
        work, self._work = self._work, None
        callback, self._callback = self._callback, None
        assert work is not None
        assert callback is not None
        try:
            self._outcome = self._context.run(work)
        except BaseException as error:
            self._error = error
        # The callback may be the end of the graph, whose arrays should go.
        del work
        callback(self)

    def result(self) -> Any:
        """Return what the work returned; `get_async` asks once, before it looks for new tasks."""
        self.run.round += 1
        if self._thread is not None:
            self._thread.saw(self.run)
        if self._error is not None:
            raise self._error
        return self._outcome


class NodeThread:
    """A thread that does tasks, those of a later round first.

    Parameters
    ----------
    name : str
        The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._waiting: dict[Run, list[TaskFuture]] = {}
        self._unseen: Counter[Run] = Counter()
        self._doing: Run | None = None
        self._stopped = False
        self._changed = threading.Condition()
        # A daemon, because a program may end without closing its Node.
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return self._thread is threading.current_thread()

    def push(self, task: TaskFuture) -> None:
        """Give the thread a task to do."""
        with self._changed:
            heapq.heappush(self._waiting.setdefault(task.run, []), task)
            self._changed.notify_all()

    def saw(self, run: Run) -> None:
        """Say that `get_async` has seen one more finished task of `run`."""
        with self._changed:
            self._unseen[run] -= 1
            self._changed.notify_all()

    def finish(self, run: Run) -> None:
        """Drop the tasks of `run` that have not begun, and wait for the one that has."""
        with self._changed:
            self._waiting.pop(run, None)
            try:
                self._changed.wait_for(lambda: self._doing is not run)
            finally:
                self._unseen.pop(run, None)

    def stop(self) -> None:
        """End the thread once it has nothing to do."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if not self.is_current:
            self._thread.join()

    def _loop(self) -> None:
        while (task := self._next()) is not None:
            task.do()
            del task
            with self._changed:
                self._doing = None
                self._changed.notify_all()

    def _next(self) -> TaskFuture | None:
        with self._changed:
            while True:
                for run, tasks in self._waiting.items():
                    if self._unseen[run] < MOST_UNSEEN:
                        task = heapq.heappop(tasks)
                        # Graphs of several threads take turns.
                        del self._waiting[run]
                        if tasks:
                            self._waiting[run] = tasks
                        self._unseen[run] += 1
                        self._doing = run
                        return task
                if self._stopped:
                    return None
                self._changed.wait()
