"""Threads with buffers: whatever fails, nothing is used after the caller has it back."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from support.host_cupy.driver import FakeDriver

from dask_coop.cuda.ring import Counter, Ring, ThreadBuffers
from dask_coop.errors import Closed


def ring(driver: FakeDriver, threads: int = 3) -> Ring:
    return Ring("test", threads, lambda: None, lambda: driver.buffer(64))


def test_each_thread_has_two_buffers_of_its_own() -> None:
    rows: dict[int, Any] = {}
    together = threading.Barrier(3)

    def copy(own: ThreadBuffers) -> None:
        rows[threading.get_ident()] = own.table.tolist()
        together.wait(60)

    made = ring(FakeDriver())
    for _ in range(2):
        made.run(copy, Counter(), 9)
    assert len(rows) == 3
    flat = [number for table in rows.values() for row in table for number in row]
    assert (len(flat), len(set(flat))) == (18, 18)
    assert len(made.buffers) == 6
    made.close()
    assert made.buffers == []


def test_an_array_of_few_pieces_takes_few_threads() -> None:
    calls, two = list[ThreadBuffers](), threading.Barrier(2)

    def copy(own: ThreadBuffers) -> None:
        two.wait(60)
        calls.append(own)

    made = ring(FakeDriver())
    made.run(copy, Counter(), 2)
    assert len(calls) == 2
    made.close()


@pytest.mark.parametrize("error", [MemoryError("no more"), KeyboardInterrupt()])
def test_what_a_thread_raises_stops_the_others_and_reaches_the_caller(error: BaseException) -> None:
    driver, counter, first, running = FakeDriver(), Counter(), threading.Lock(), [0]

    def copy(own: ThreadBuffers) -> None:
        running[0] += 1
        driver._copy(own.buffers[0].address, own.buffers[0].address, 8, own.buffers[0].stream.ptr)
        if first.acquire(blocking=False):
            raise error
        while not counter.stopped:
            time.sleep(0.001)
        time.sleep(0.05)
        running[0] -= 1

    made = ring(driver)
    with pytest.raises(type(error)):
        made.run(copy, counter, 3)
    # The one that raised, and nobody else.
    assert running == [1]
    assert not driver.waiting
    made.run(lambda own: None, Counter(), 3)
    made.close()


def test_a_buffer_that_cannot_be_made_is_the_callers_error() -> None:
    def fail() -> Any:
        raise MemoryError("no pinned memory")

    made, counter = Ring("test", 2, lambda: None, fail), Counter()
    with pytest.raises(MemoryError, match="no pinned memory"):
        made.run(lambda own: None, counter, 2)
    assert counter.stopped
    made.close()


def test_ctrl_c_stops_loops_that_run_without_the_gil() -> None:
    pytest.importorskip("numba")
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import signal
import threading
import numpy as np
from support.host_cupy.driver import FakeDriver
from dask_coop.cuda import copies_numba as copies
from dask_coop.cuda.ring import Counter, FileRange, Ring, runs

# What a shell starts in the background does not hear of it.
signal.signal(signal.SIGINT, signal.default_int_handler)
driver = FakeDriver()
made = Ring("test", 2, lambda: None, lambda: driver.buffer(64))
x = np.zeros(1 << 30, "u1")
rows, run = runs(x)
counter = Counter()
addresses = driver.addresses()
job = copies.Job(x.ctypes.data, x.ctypes.data, x.nbytes, 64, counter.address, 0)
ended = []
given = addresses, job, rows, run, FileRange(-1, 0, False)
copy = lambda own: ended.append(copies.fill(*given, own.table))
threading.Thread(target=lambda: (__import__("time").sleep(1), print("go", flush=True))).start()
try:
    made.run(copy, counter, 2)
except KeyboardInterrupt:
    print(ended, not driver.waiting)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "go\n"
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert output == "[0, 0] True\n", errors


def test_several_callers_share_the_threads() -> None:
    """None leaves the others without, and none has all of them beside others."""
    driver = FakeDriver()
    ring = Ring("test", 4, lambda: None, lambda: driver.buffer(64))
    inside, out = threading.Semaphore(0), threading.Event()
    began: dict[str, int] = {"first": 0, "second": 0}

    def call(name: str) -> None:
        def copy(own: ThreadBuffers) -> None:
            began[name] += 1
            inside.release()
            assert out.wait(20)

        ring.run(copy, Counter(), 4)

    threads = [threading.Thread(target=call, args=[name]) for name in began]
    threads[0].start()
    for _ in range(4):
        assert inside.acquire(timeout=20)
    threads[1].start()
    time.sleep(0.1)
    out.set()
    for thread in threads:
        thread.join(20)
    ring.close()
    assert began == {"first": 4, "second": 2}


def test_a_thread_that_cannot_enter_is_the_callers_error_and_tries_again() -> None:
    driver, fails = FakeDriver(), [True, True]

    def enter() -> None:
        if fails:
            fails.pop()
            raise OSError("no context")

    made = Ring("test", 1, enter, lambda: driver.buffer(64))
    for _ in range(2):
        with pytest.raises(OSError, match="no context"):
            made.run(lambda own: None, Counter(), 1)
    copied: list[int] = []
    made.run(lambda own: copied.append(len(own.buffers)), Counter(), 1)
    assert copied == [2]
    made.close()


def test_a_ring_that_is_closed_meanwhile_says_so() -> None:
    made, counter = ring(FakeDriver()), Counter()
    submit, ended = made._pool.submit, list[bool]()

    def closing(*given: Any) -> Any:
        submitted = submit(*given)
        threading.Thread(target=made.close).start()
        while not made._pool._shutdown:
            time.sleep(0.001)
        return submitted

    made._pool.submit = closing  # type: ignore[method-assign]
    with pytest.raises(Closed, match="after shutdown"):
        made.run(lambda own: ended.append(counter.stopped), counter, 3)
    assert len(ended) == 1
    assert counter.stopped
