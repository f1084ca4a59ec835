"""Memory of results is used again, and never while somebody has it."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.at_once import at_once
from support.processes import python

from dask_coop.cuda.host_memory import HostMemory


def test_results_are_ordinary_arrays() -> None:
    x = HostMemory(1 << 20).empty((3, 5, 7), np.dtype("c8"))
    assert type(x) is np.ndarray
    assert (x.shape, x.dtype) == ((3, 5, 7), np.dtype("c8"))
    assert x.flags.c_contiguous
    assert x.flags.writeable
    assert x.flags.aligned
    x[:] = np.arange(105).reshape(3, 5, 7)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)), x)


def test_memory_is_used_again_by_what_is_as_long() -> None:
    memory = HostMemory(1 << 20)
    x = memory.empty((1000,), np.dtype("f8"))
    address = x.ctypes.data
    assert memory.empty((1000,), np.dtype("f8")).ctypes.data != address
    del x
    assert memory.empty((999,), np.dtype("f8")).ctypes.data != address
    again = memory.empty((50, 40), np.dtype("i4"))
    assert again.ctypes.data == address


@pytest.mark.parametrize(
    "see",
    [
        lambda x: x[5:10],
        lambda x: x.reshape(10, 100).T[3:],
        lambda x: memoryview(x),
        lambda x: x.view("u1").view(np.recarray),
        lambda x: np.frombuffer(x, "u1"),
    ],
)
def test_what_is_still_seen_is_not_used_again(see: Callable[[Any], Any]) -> None:
    memory = HostMemory(1 << 20)
    x = memory.empty((1000,), np.dtype("i8"))
    x[:] = 7
    kept = see(x)
    address = x.ctypes.data
    del x
    other = memory.empty((1000,), np.dtype("i8"))
    assert other.ctypes.data != address
    assert memory.nbytes == 0
    del kept
    assert memory.nbytes == 8000


def test_what_is_kept_is_bounded_and_the_oldest_goes() -> None:
    memory = HostMemory(10_000)
    arrays = [memory.empty((n,), np.dtype("u1")) for n in (4000, 5000, 6000, 10_001)]
    last = arrays[2].ctypes.data
    for _ in range(4):
        del arrays[0]
        assert memory.nbytes <= 10_000
    assert memory.nbytes == 6000
    assert memory.empty((6000,), np.dtype("u1")).ctypes.data == last
    memory.clear()
    assert memory.nbytes == 0


def test_garbage_that_is_collected_while_the_lock_is_held_is_freed() -> None:
    memory = HostMemory(1 << 20)
    x = memory.empty((1000,), np.dtype("u1"))
    with memory._lock:
        del x
        gc.collect()
    assert memory.nbytes == 0


def test_threads_never_get_the_same_memory() -> None:
    memory = HostMemory(1 << 20)

    def go(i: int) -> None:
        for turn in range(300):
            x = memory.empty((512,), np.dtype("i4"))
            x[:] = 1000 * i + turn
            y = x[:7]
            del x
            z = memory.empty((512,), np.dtype("i4"))
            z[:] = -1
            assert (y == 1000 * i + turn).all()

    at_once(go, range(6))


def test_processes_fork_and_end_with_results() -> None:
    code = """
import os
import numpy as np
from dask_coop.cuda.host_memory import HostMemory

memory = HostMemory(1 << 30)
x = memory.empty((1 << 20,), np.dtype("i8"))
x[:] = 3
dropped = memory.empty((1 << 20,), np.dtype("i8"))
del dropped
memory._lock.acquire()
child = os.fork()
if child == 0:
    memory.forget()
    assert memory.nbytes == 0 and (x == 3).all()
    x[:] = 4
    del x
    os._exit(memory.nbytes != 8 << 20)
assert os.waitpid(child, 0)[1] == 0
assert (x == 3).all()
print("done")
"""
    done = python("-W", "error", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
