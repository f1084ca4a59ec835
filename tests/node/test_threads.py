"""The threads of a Node: random graphs, interrupts, and a Node that its own thread collects."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from dask._task_spec import Alias, Task, TaskRef
from dask.array.dispatch import to_cupy_dispatch
from dask.local import get_sync
from support.at_once import at_once
from support.host_cupy.gpus import FakeGpus, OnGpu
from support.processes import printed

import dask_coop as dc
from dask_coop.node import node as module
from dask_coop.node.placement import OnAllGpus
from dask_coop.node.threads import Lock, Run, TaskFuture, TaskQueue

pytestmark = [pytest.mark.xdist_group("node"), pytest.mark.timeout(60)]


class BrokenSource(Exception):
    """What random tasks raise."""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    fake = FakeGpus(3)
    monkeypatch.setattr(module, "_peers", lambda: fake)
    monkeypatch.setattr(module, "CPU_COUNT", 9)
    monkeypatch.setattr(module, "take_over", lambda _: lambda: True)
    monkeypatch.setattr(fake, "memory", lambda _: (0, 0, 1 << 30, 1 << 30))

    def put(x: Any) -> Any:
        return fake.put(x) if fake.current() >= 0 else np.array(x)

    monkeypatch.setitem(to_cupy_dispatch._lookup, np.ndarray, put)
    return fake


def make(n: int, delay: float, fails: bool) -> Any:
    time.sleep(delay)
    if fails:
        raise BrokenSource
    return np.full(n, float(n))


def add(n: int, delay: float, *xs: Any) -> Any:
    assert len({x.device for x in xs if isinstance(x, OnGpu)}) <= 1
    time.sleep(delay)
    return np.full(n, sum(float(x.sum()) for x in xs) % 1000)


def random_graph(chance: random.Random) -> tuple[dict[Any, Any], list[Any]]:
    """Return a graph of tasks on the host and on GPUs, fused ones too, and what is wanted."""
    graph: dict[Any, Any] = {}
    longest, fails = chance.choice([0, 0, 1e-3]), chance.choice([0, 0, 0.03])
    for i in range(chance.choice([5, 20, 60])):
        key, keys = (f"x{chance.randrange(4)}", i), list(graph)
        used = [TaskRef(chance.choice(keys[-9:])) for _ in range(chance.randint(1, 4)) if keys]
        n, delay = chance.choice([1, 9, 99]), chance.random() * longest
        kind = chance.choice(["make", "put", "copy", "add", "add", "alias"]) if keys else "make"
        read = Task(("read", i), make, n, delay, chance.random() < fails)
        copy = Task(("copy", i), to_cupy_dispatch, TaskRef(read.key))
        if kind == "make":
            graph[key] = Task(key, make, *read.args)
        elif kind == "put":
            last = Task(key, add, n, delay, TaskRef(copy.key), *used)
            graph[key] = Task.fuse(read, copy, last, key=key)
        elif kind == "copy":
            graph[key] = Task(key, to_cupy_dispatch, Task(None, add, n, delay, *used))
        elif kind == "add":
            graph[key] = Task(key, add, n, delay, *used)
        else:
            graph[key] = Alias(key, used[0].key)
    return graph, chance.sample(list(graph), min(3, len(graph)))


def compute(get: Any, seed: int) -> Any:
    graph, wanted = random_graph(random.Random(seed))
    try:
        return [x.tolist() for x in get(graph, wanted)]
    except BrokenSource:
        return "broken"


@pytest.mark.parametrize("limit", [1, 500, 5000, 1 << 20])
def test_random_graphs_of_several_threads(gpus: FakeGpus, limit: int) -> None:
    node = dc.Node(memory_limit=limit)

    def run(first: int) -> None:
        for seed in range(first, first + 8):
            assert compute(node.get, seed) == compute(get_sync, seed)

    at_once(run, range(limit, limit + 24, 8))
    assert not any(queue._waiting for queue in node._queues)
    assert not any(room._begun for room in node._rooms.values())
    node.close()


@pytest.fixture
def _interrupts() -> Iterator[None]:
    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(node: dc.Node, seed: int, after: float) -> None:
    """Compute a random graph, and interrupt that.

    An interrupt that comes while Python calls back that an object is gone raises nothing.
    """
    caller = threading.get_ident()
    timer = threading.Timer(after, signal.pthread_kill, (caller, signal.SIGINT))

    def until_then() -> None:
        timer.start()
        compute(node.get, seed)
        # It comes at the end of the graph, or later.
        timer.join()
        time.sleep(10)

    lost: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr("sys.unraisablehook", lambda told: lost.append(told.exc_type))
        until_then()
        assert lost == [KeyboardInterrupt]


@pytest.mark.usefixtures("_interrupts")
def test_a_node_works_after_interrupts(gpus: FakeGpus) -> None:
    node, chance = dc.Node(memory_limit=500), random.Random(17)
    for seed in range(50):
        interrupted(node, seed, chance.random() * 0.02)
    assert compute(node.get, 1) == compute(get_sync, 1)
    assert not any(queue._waiting for queue in node._queues)
    node.close()


def test_an_interrupt_leaves_no_lock_taken(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Condition is entered in Python, where an interrupt may come when it has the lock."""
    node, enter, caller = dc.Node(), threading.Condition.__enter__, threading.current_thread()

    def interrupted(condition: Any) -> bool:
        entered = enter(condition)
        if condition._lock is node._queues_lock and threading.current_thread() is caller:
            raise KeyboardInterrupt
        return entered

    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__enter__", interrupted)
        assert compute(node.get, 1) == compute(get_sync, 1)
        node.close()


def test_an_interrupt_while_threads_start(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    start, left = threading.Thread.start, [3]

    def interrupted(thread: threading.Thread) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        start(thread)

    node = dc.Node()
    keys = [("x", i) for i in range(30)]
    graph = {key: Task(key, make, 3, 0, False) for key in keys}
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            node.get(graph, keys)
    assert len(node.get(graph, keys)) == 30
    left[0] = 2
    other = dc.Node()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            other.get(graph, keys)
    other.close()
    node.close()


def test_a_gpu_that_fails_keeps_no_room(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise RuntimeError("no driver")

    keys = [("x", i) for i in range(9)]
    graph = {key: Task(key, make, 3, 0, False) for key in keys}
    node = dc.Node()
    with monkeypatch.context() as patch:
        patch.setattr(gpus, "use", fail)
        with pytest.raises(RuntimeError, match="no driver"):
            node.get(graph, keys)
    # As if another run of that name had begun, these would wait for ever.
    assert len(node.get(graph, keys)) == 9
    node.close()


def test_a_thread_may_end_its_node() -> None:
    """Garbage may be collected where it has the lock, which the other threads need to end."""
    lock: Any = Lock()
    queues = [TaskQueue(f"queue {i}", lock) for i in range(2)]
    run, ended = Run(queues, lock), threading.Event()

    def end() -> None:
        with lock:
            module._stop(queues, lambda: True)
        ended.set()

    begun = threading.Event()
    TaskFuture(run, queues[1], begun.set).add_done_callback(lambda _: None)
    assert begun.wait(20)
    TaskFuture(run, queues[0], end).add_done_callback(lambda _: None)
    assert ended.wait(20)
    for queue in queues:
        queue.join(time.monotonic() + 20)


def in_another_thread(get: Any, graph: dict[Any, Any], key: Any) -> Any:
    """Compute in a thread that a task has started, and wait for it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(get, graph, key).result(30)


def below(get: Any, x: Any, depth: int) -> float:
    """Return a number that a task computes by a graph of a task as it is itself."""
    if not depth:
        return 1.0
    key = "below", depth
    task = Task(key, below, get, x, depth - 1)
    return 1 + float(in_another_thread(get, {key: task}, key))


@pytest.mark.parametrize("of_gpu", [True, False])
def test_tasks_may_compute_in_threads_of_their_own(gpus: FakeGpus, of_gpu: bool) -> None:
    """More of them than there are threads, each of which waits for graphs in graphs."""
    node, x = dc.Node([0]), gpus.put(np.ones(3))
    x.device = 0
    given = x if of_gpu else None
    keys = [("x", i) for i in range(12)]
    graph = {key: Task(key, below, node.get, given, 3) for key in keys}
    assert node.get(graph, keys) == (4.0,) * 12
    before = threading.active_count()
    node.close()
    assert threading.active_count() < before
    assert not any(queue._spares for queue in node._queues)
    assert not any(queue._waiting for queue in node._queues)


class Waits(OnAllGpus):
    """What a launch is that falls back to a graph of its plain tasks, and so waits for these."""

    def __init__(self, get: Any, graph: dict[Any, Any]) -> None:
        self.get, self.graph = get, graph

    def __call__(self, *_: Any) -> Any:
        return in_another_thread(self.get, self.graph, "x")


def test_a_launch_may_wait_for_a_launch(gpus: FakeGpus) -> None:
    with dc.Node([0]) as node:
        graph: dict[Any, Any] = {"x": Task("x", float, 7)}
        for _ in range(3):
            graph = {"x": Task("x", Waits(node.get, graph))}
        assert node.get(graph, "x") == 7


def test_a_graph_of_the_same_names_may_be_waited_for(gpus: FakeGpus) -> None:
    """The first of a name runs alone, but not where it waits for another one."""
    with dc.Node(memory_limit=1) as node:
        assert node.get({"x": Task("x", below, node.get, None, 1)}, "x") == 2
        name = "below", 0
        task = Task(name, in_another_thread, node.get, {name: Task(name, float, 3)}, name)
        assert node.get({name: task}, name) == 3


def test_graphs_of_several_threads_end_their_spare_threads(gpus: FakeGpus) -> None:
    node, together = dc.Node([1]), threading.Barrier(20, timeout=30)

    def run(i: int) -> None:
        # On a thread for each, of which a GPU has fewer.
        assert node.get({"x": Task("x", lambda: together.wait() >= 0)}, "x")

    threads = [threading.Thread(target=run, args=[i]) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    node.close()
    assert not any(queue._spares for queue in node._queues)
    assert not [t for t in threading.enumerate() if "spare" in t.name]


ENDS = """
import sys, threading
sys.path[:0] = {path!r}
from dask._task_spec import Task
from support.host_cupy.gpus import FakeGpus
import dask_coop as dc
from dask_coop.node import node as module
module._peers, module.take_over = lambda: FakeGpus(2), lambda _: lambda: True
module.END_SECONDS = 0.2
node, begun = dc.Node(), threading.Event()
work = lambda: (begun.set(), threading.Event().wait())
graph = {{i: Task(i, work) for i in range(9)}}
threading.Thread(target=node.get, args=(graph, list(graph)), daemon=True).start()
begun.wait()
"""


def test_a_program_ends_although_a_daemon_thread_computes() -> None:
    code = ENDS.format(path=sys.path)
    printed("-c", code, timeout=40)
