"""Threads share slow work: each piece is done once, and pieces beside each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.processes import printed

from dask_coop.cuda import sharing
from dask_coop.cuda.sharing import begin, for_each, once

SECONDS = 60


def test_what_threads_want_at_a_time_is_made_once() -> None:
    may_end = threading.Event()
    made: list[int] = []

    def make(x: int, by: int) -> int:
        made.append(x)
        assert may_end.wait(SECONDS)
        return x * by

    work = once(make)
    with ThreadPoolExecutor(4) as threads:
        results = [threads.submit(work, 6, 7) for _ in range(4)]
        may_end.set()
        assert [result.result(SECONDS) for result in results] == [42] * 4
    assert work(6, 7) == 42
    assert made == [6]
    assert work(3, 7) == 21
    assert made == [6, 3]


def test_an_error_reaches_all_who_wait_and_is_not_kept() -> None:
    may_end = threading.Event()
    calls: list[str] = []

    def make(source: str) -> str:
        calls.append(source)
        assert may_end.wait(SECONDS)
        if len(calls) == 1:
            raise ValueError(f"{source} does not compile")
        return source

    work = once(make)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(work, "this")
        while not calls:
            pass
        second = threads.submit(work, "this")
        while not (second.running() or second.done()):
            pass
        may_end.set()
        with pytest.raises(ValueError, match="this does not compile"):
            first.result(SECONDS)
        # It waited for the first, or came when that had failed.
        if error := second.exception(SECONDS):
            assert isinstance(error, ValueError)
    assert work("this") == "this"
    assert work.has("this")
    assert not work.has("that")


@pytest.mark.parametrize("stopped", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_that_of_one_thread(stopped: type[BaseException]) -> None:
    """The others don't hear of it: one of them does the work."""
    may_end, calls = threading.Event(), list[int]()

    def make(x: int) -> int:
        calls.append(x)
        if len(calls) == 1:
            assert may_end.wait(SECONDS)
            raise stopped
        return x

    work = once(make)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(work, 6)
        while not calls:
            pass
        others = [threads.submit(work, 6) for _ in range(3)]
        while not all(other.running() for other in others):
            pass
        may_end.set()
        with pytest.raises(stopped):
            first.result(SECONDS)
        assert [other.result(SECONDS) for other in others] == [6] * 3
    assert calls == [6, 6]


class Interrupted(dict[Any, Any]):
    """Is interrupted when it has stored something."""

    def setdefault(self, *given: Any) -> Any:
        super().setdefault(*given)
        raise KeyboardInterrupt


def test_an_interrupt_before_the_work_leaves_nobody_waiting() -> None:
    work = once(abs)
    work._results = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        work(-6)
    assert not work.has(-6)
    work._results = dict(work._results)
    assert work(-6) == 6


def test_calls_are_begun_beside_each_other_and_their_errors_left_to_who_makes_them() -> None:
    meeting = threading.Barrier(2, timeout=SECONDS)

    def make(name: str) -> str:
        # Which none would pass alone.
        meeting.wait()
        if name == "bad":
            raise ValueError(name)
        return name

    work = once(make)
    begin(work, [("a",), ("b",)])
    assert (work("a"), work("b")) == ("a", "b")
    begin(work, [("a",), ("b",)])
    begin(work, [("bad",), ("c",)])
    assert work("c") == "c"
    while work.has("bad"):
        pass
    begin(work, [("d",)])
    with pytest.raises(ValueError, match="bad"):
        work("bad")
    assert work("d") == "d"


def test_all_items_are_worked_on_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "cores", lambda: 3)
    meeting = threading.Barrier(3, timeout=SECONDS)
    seen: set[tuple[int, int]] = set()

    def work(item: int) -> None:
        meeting.wait()
        seen.add((item, threading.get_ident()))

    for_each(work, range(9), threading.Event())
    assert sorted(item for item, _ in seen) == list(range(9))
    assert len({thread for _, thread in seen}) == 3


def test_the_first_error_ends_it_and_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "cores", lambda: 1)
    seen: list[int] = []

    def work(item: int) -> None:
        seen.append(item)
        if item == 2:
            raise ValueError("two")

    with pytest.raises(ValueError, match="two"):
        for_each(work, range(9), threading.Event())
    assert seen == [0, 1, 2]


def test_it_ends_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "cores", lambda: 1)
    stop, seen = threading.Event(), []

    def work(item: int) -> None:
        seen.append(item)
        if item == 3:
            stop.set()

    for_each(work, range(9), stop)
    assert seen == [0, 1, 2, 3]


def test_an_interpreter_that_exits_does_not_wait_for_all() -> None:
    code = (
        "import threading, time\n"
        "from dask_coop.cuda.sharing import for_each\n"
        "given = lambda item: time.sleep(0.01), range(10**6), threading.Event()\n"
        "threading.Thread(target=for_each, args=given).start()\n"
    )
    printed("-c", code, timeout=SECONDS)
