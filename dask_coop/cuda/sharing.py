"""Share slow work among threads: each call runs once, and different calls run in parallel.

NVRTC compiles without Python's lock, so threads are enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from dask_coop.cuda.ring import cores

T = TypeVar("T")


class once(Generic[T]):
    """Cache the results of a function of hashable arguments, across threads.

    Threads that call it with the same arguments wait for one of them. Errors are not cached. If the
    thread that computes is interrupted, one of those that wait takes its place.
    """

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._results: dict[Any, Future[T]] = {}

    def __call__(self, *arguments: Any) -> T:
        """Return the function's result."""
        while True:
            if (result := self._results.get(arguments)) is None:
                self._compute(arguments)
                continue
            with suppress(CancelledError):
                return result.result()

    def _compute(self, arguments: tuple[Any, ...]) -> None:
        """Call the function, unless another thread already does."""
        mine: Future[T] = Future()
        # Within `try`, as an interrupt may come right after others begin to wait for this future.
        try:
            if self._results.setdefault(arguments, mine) is mine:
                mine.set_result(self._make(*arguments))
        except BaseException as error:
            if self._results.get(arguments) is mine:
                del self._results[arguments]
            if isinstance(error, Exception) and not mine.done():
                mine.set_exception(error)
            # If this thread is interrupted or exits, those that wait compute it.
            mine.cancel()
            raise

    def has(self, *arguments: Any) -> bool:
        """Return whether a call with these arguments has begun and not failed."""
        return arguments in self._results


def begin(work: once[Any], calls: Iterable[tuple[Any, ...]]) -> None:
    """Start the calls that have not begun yet, in a thread each, and don't wait.

    Errors are dropped; the caller that needs the result calls again and gets them.
    """
    for call in calls:
        if not work.has(*call):
            # In the caller's context, which counts compilations (`dask_coop.meters`).
            arguments = _try, work, call
            run = copy_context().run
            threading.Thread(target=run, args=arguments, name="dask_coop-compiler").start()


def _try(work: once[Any], call: tuple[Any, ...]) -> None:
    with suppress(Exception):
        work(*call)


def for_each(work: Callable[[T], object], items: Iterable[T], stop: threading.Event) -> None:
    """Call `work` with each of the items, in as many threads as there are processors.

    It ends early when `stop` is set, when the interpreter exits, and with the first error.

    Raises
    ------
    Exception
        The first exception of `work`.
    """
    iterator, lock = iter(items), threading.Lock()
    errors: list[Exception] = []

    def left() -> Iterator[T]:
        while not (errors or stop.is_set()) and threading.main_thread().is_alive():
            with lock:
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def run() -> None:
        try:
            for item in left():
                work(item)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=copy_context().run, args=(run,), name="dask_coop-compiler")
        for _ in range(cores())
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        # Such as Ctrl-C.
        stop.set()
        raise
    if errors:
        raise errors[0]
