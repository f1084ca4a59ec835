"""Slow work that threads share: each piece is done once, and pieces beside each other.

NVRTC compiles without Python's lock, so threads do for it.
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
    """Decorates a function of hashable arguments whose results are kept.

    Threads that call it with the same arguments at a time wait for one of them. What raises an
    error is not kept. An interrupt is that thread's own: another one that waits takes its place.
    """

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._results: dict[Any, Future[T]] = {}

    def __call__(self, *given: Any) -> T:
        """Return what the function returns."""
        while True:
            if (result := self._results.get(given)) is None:
                self._do(given)
                continue
            with suppress(CancelledError):
                return result.result()

    def _do(self, given: tuple[Any, ...]) -> None:
        """Call the function, unless another thread has begun that."""
        mine: Future[T] = Future()
        # From here on, for an interrupt may come anywhere, and others wait for what stands there.
        try:
            if self._results.setdefault(given, mine) is mine:
                mine.set_result(self._make(*given))
        except BaseException as error:
            if self._results.get(given) is mine:
                del self._results[given]
            if isinstance(error, Exception) and not mine.done():
                mine.set_exception(error)
            # Others that wait for a thread which is interrupted, or exits, take its place.
            mine.cancel()
            raise

    def has(self, *given: Any) -> bool:
        """Tell whether a call with these arguments was begun, and did not fail."""
        return given in self._results


def begin(work: once[Any], calls: Iterable[tuple[Any, ...]]) -> None:
    """Begin the calls that were not begun before, in a thread each, and don't wait.

    Who makes such a call meets the error that it raises.
    """
    for call in calls:
        if not work.has(*call):
            # What is compiled counts as the caller's (`dask_coop.meters`).
            given = _try, work, call
            run = copy_context().run
            threading.Thread(target=run, args=given, name="dask_coop-compiler").start()


def _try(work: once[Any], call: tuple[Any, ...]) -> None:
    with suppress(Exception):
        work(*call)


def for_each(work: Callable[[T], object], items: Iterable[T], stop: threading.Event) -> None:
    """Call `work` with each of the items, in as many threads as there are processors.

    It ends early when `stop` is set, when the interpreter exits, and with the first error.

    Raises
    ------
    Exception
        What `work` raised first.
    """
    rest, lock = iter(items), threading.Lock()
    errors: list[Exception] = []

    def left() -> Iterator[T]:
        while not (errors or stop.is_set()) and threading.main_thread().is_alive():
            with lock:
                try:
                    item = next(rest)
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
