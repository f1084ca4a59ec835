"""Node, on GPUs that are made up."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import io
import itertools
import operator
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu
from dask._task_spec import Alias, DataNode, List, Task, TaskRef
from dask.callbacks import Callback
from dask.diagnostics import ProgressBar
from dask.highlevelgraph import HighLevelGraph
from support.host_cupy.gpus import FakeGpus, OnGpu, on_gpu

import dask_coop as dc
from dask_coop import chunks
from dask_coop.chunks.cupy.eligibility import Objection
from dask_coop.node import node as module
from dask_coop.node import run
from dask_coop.node.node import HOST_THREADS
from dask_coop.node.placement import OnAllGpus
from dask_coop.node.threads import MOST_UNSEEN


@pytest.fixture
def multichunk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what stands in for `dask_coop.chunks.cupy.multichunk`; it objects to all chunks."""
    team = SimpleNamespace(objection="")
    fake = SimpleNamespace(Team=lambda *_: team, objection=Objection("GPUs are fakes"))
    monkeypatch.setattr(run, "_multichunk", lambda: fake)
    monkeypatch.setattr(run, "objection_to_chunks", lambda xs, team: fake.objection)
    return fake


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, multichunk: SimpleNamespace) -> FakeGpus:
    fake = FakeGpus(4)
    monkeypatch.setattr(module, "_peers", lambda: fake)
    return fake


@pytest.fixture
def node(gpus: FakeGpus) -> Iterator[dc.Node]:
    node = dc.Node()
    yield node
    node.close()


def array_on(device: int, n: int = 1) -> DataNode:
    return DataNode("", on_gpu(np.ones(n), device))


def refs(*keys: Any) -> list[TaskRef]:
    return [TaskRef(key) for key in keys]


def test_new_chunks_lie_in_contiguous_runs(gpus: FakeGpus, node: dc.Node) -> None:
    keys = [("x", i) for i in range(10)]
    graph = {key: Task(key, gpus.make, key[1]) for key in reversed(keys)}
    found = node.get(graph, keys)
    assert [x.device for x in found] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert [int(x.value) for x in found] == list(range(10))


def test_chosen_gpus_are_the_ones_that_are_used(gpus: FakeGpus) -> None:
    keys = [("x", i) for i in range(4)]
    with dc.Node([3, 1]) as node:
        found = node.get({key: Task(key, gpus.make, 0) for key in keys}, keys)
    assert [x.device for x in found] == [3, 3, 1, 1]
    assert ("connect", (3, 1)) in gpus.log


def test_a_task_goes_where_most_bytes_are_and_gets_the_others(
    gpus: FakeGpus, node: dc.Node
) -> None:
    graph = {
        "a": array_on(0),
        "b": array_on(2, 100),
        "c": array_on(1),
        "sum": Task("sum", gpus.add, *refs("a", "b", "c")),
    }
    assert node.get(graph, "sum").device == 2
    ((sources, destination),) = gpus.moves()
    assert (sorted(sources), destination) == ([0, 1], 2)
    assert graph["a"].value.device == 0


def test_of_gpus_with_as_many_bytes_the_dealt_one_is_taken(gpus: FakeGpus, node: dc.Node) -> None:
    graph = {("a", i): array_on(i) for i in range(4)}
    keys = [("s", i) for i in range(8)]
    graph |= {key: Task(key, gpus.add, *refs(*(("a", i) for i in range(4)))) for key in keys}
    assert [x.device for x in node.get(graph, keys)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_arrays_inside_of_tasks_are_seen(gpus: FakeGpus, node: dc.Node) -> None:
    """Dask puts chunks that were persisted into the tasks that use them."""
    literal, mine = on_gpu([1.0], 1), on_gpu([2.0, 3.0], 3)
    add = Task("add", gpus.add, TaskRef("x"), literal)
    fused = Task.fuse(DataNode("x", mine), add, key="add")
    assert node.get({"add": fused}, "add").device == 3
    assert gpus.moves() == [((1,), 3)]
    assert add.args[1] is literal


def test_what_is_only_handed_on_stays_where_it_is(gpus: FakeGpus, node: dc.Node) -> None:
    graph = {
        **{("a", i): Task(("a", i), gpus.make, i) for i in range(4)},
        "list": List(*refs(*(("a", i) for i in range(4)))),
        "second": Task("second", operator.getitem, TaskRef("list"), 1),
        "alias": Alias("alias", "second"),
    }
    everything, second, alias = node.get(graph, ["list", "second", "alias"])
    assert [x.device for x in everything] == [0, 1, 2, 3]
    assert second is alias is everything[1]
    assert gpus.moves() == []


def test_an_array_in_a_list_is_moved_to_who_uses_it(gpus: FakeGpus, node: dc.Node) -> None:
    def total(arrays: list[OnGpu]) -> OnGpu:
        return gpus.add(*arrays)

    graph = {("a", i): Task(("a", i), gpus.make, i) for i in range(4)}
    graph["sum"] = Task("sum", total, List(*refs(*graph)))
    assert node.get(graph, "sum").value == 6
    assert gpus.moves() == [((1, 2, 3), 0)] or len(gpus.moves()[0][0]) == 3


def test_every_gpu_works_at_the_same_time(gpus: FakeGpus, node: dc.Node) -> None:
    """Even where the first tasks in Dask's order are all of one GPU."""
    together = threading.Barrier(4, timeout=20)
    graph = {("x", i): Task(("x", i), together.wait) for i in range(200)}
    assert len(node.get(graph, list(graph))) == 200


def test_few_chunks_are_in_memory_at_a_time(gpus: FakeGpus) -> None:
    """Consumers go before further producers, and no thread runs away from the scheduler."""
    live, most, lock = 0, 0, threading.Lock()

    def produce(i: int) -> OnGpu:
        nonlocal live, most
        with lock:
            live += 1
            most = max(most, live)
        return gpus.make(i)

    def consume(*_: Any) -> int:
        nonlocal live
        with lock:
            live -= 1
        return 1

    graph: dict[Any, Any] = {}
    for i in range(300):
        graph["x", i] = Task(("x", i), produce, i)
        graph["y", i] = Task(("y", i), consume, TaskRef(("x", i)))
    graph["sum"] = Task("sum", sum, List(*refs(*(("y", i) for i in range(300)))))
    with dc.Node([0, 1]) as node:
        assert node.get(graph, "sum") == 300
    # Those that are made, those that `get_async` has not seen, and those that wait.
    assert most <= 2 * (HOST_THREADS + 2 * MOST_UNSEEN + 2)


def test_an_exception_says_where_and_keeps_its_traceback(gpus: FakeGpus, node: dc.Node) -> None:
    def fails(x: OnGpu) -> None:
        raise ZeroDivisionError("no")

    graph = {"a": array_on(2), "bad": Task("bad", fails, TaskRef("a"))}
    with pytest.raises(ZeroDivisionError, match="no") as caught:
        node.get(graph, "bad")
    assert caught.value.__notes__ == ["in task 'bad' on GPU 2"]
    assert "fails" in [entry.name for entry in caught.traceback]
    assert [entry[0] for entry in gpus.log][-1] == "lead"


def test_a_move_that_fails_is_the_tasks_failure(
    gpus: FakeGpus, node: dc.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(*_: Any) -> None:
        raise MemoryError("full")

    monkeypatch.setattr(gpus, "move", move)
    graph = {"a": array_on(2), "b": array_on(1, 9), "s": Task("s", gpus.add, *refs("a", "b"))}
    with pytest.raises(MemoryError, match="full") as caught:
        node.get(graph, "s")
    assert caught.value.__notes__ == ["in task 's' on GPU 1"]


class Stopper(Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(posttask=self.stop)

    def stop(self, *_: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [False, True])
def test_on_an_error_nothing_begins_and_nothing_goes_on(
    gpus: FakeGpus, node: dc.Node, interrupted: bool
) -> None:
    running, begun, ended = threading.Event(), [], []

    def slow() -> None:
        begun.append(1)
        running.set()
        time.sleep(0.2)
        ended.append(1)

    def quick() -> None:
        assert running.wait(20)
        if not interrupted:
            raise ZeroDivisionError

    graph: dict[Any, Any] = {("y", i): Task(("y", i), slow) for i in range(40)}
    graph["x"] = Task("x", quick)
    callbacks = [Stopper()._callback] if interrupted else None
    expected = KeyboardInterrupt if interrupted else ZeroDivisionError
    with pytest.raises(expected):
        node.get(graph, list(graph), callbacks=callbacks)
    after = len(begun)
    assert len(ended) == after < 40
    time.sleep(0.05)
    assert len(begun) == after
    assert node.get({"a": Task("a", gpus.make, 1)}, "a").value == 1


def test_a_failed_task_can_be_run_again_here(gpus: FakeGpus, node: dc.Node) -> None:
    threads = []

    def fails() -> None:
        threads.append(threading.current_thread())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        node.get({"a": Task("a", fails)}, "a", rerun_exceptions_locally=True)
    assert threads[-1] is threading.current_thread() is not threads[0]


def test_threads_may_compute_at_the_same_time(gpus: FakeGpus, node: dc.Node) -> None:
    together = threading.Barrier(2, timeout=20)
    first = {"a": Task("a", together.wait)}
    # On GPU 2, for the first graph keeps GPU 0 until both have come.
    second = {("x", 0): Task(("x", 0), abs, -1), ("x", 1): Task(("x", 1), together.wait)}
    other = threading.Thread(target=lambda: node.get(first, "a"))
    other.start()
    assert node.get(second, list(second))[0] == 1
    other.join()


def test_graphs_of_two_threads_take_turns_on_a_gpu(gpus: FakeGpus) -> None:
    begin, done = threading.Event(), threading.Event()

    def long(i: int) -> None:
        begin.set()
        time.sleep(0.005)

    with dc.Node([0]) as node:
        graph = {("x", i): Task(("x", i), long, i) for i in range(80)}
        other = threading.Thread(target=lambda: (node.get(graph, list(graph)), done.set()))
        other.start()
        assert begin.wait(20)
        node.get({"a": Task("a", gpus.make, 1)}, "a")
        assert not done.is_set()
        other.join()


def test_dasks_arrays_functions_and_diagnostics_work(gpus: FakeGpus) -> None:
    host = np.random.default_rng(0).integers(-99, 99, (60, 50))
    x, out = da.from_array(host, chunks=(7, 20)), io.StringIO()
    with dc.Node() as node, ProgressBar(out=out):
        assert repr(node).endswith("idle>")
        kept = (x + 1).persist()
        total, running, (counts, _) = dask.compute(
            dc.sum(kept), dc.cumsum(kept, axis=0), dc.histogram(kept, bins=9, range=(-99, 99))
        )
        rechunked = kept.rechunk((11, 9)).compute()
        product = da.tensordot(kept, kept.T, axes=1).compute()
    assert "100% Completed" in out.getvalue()
    assert total == (host + 1).sum()
    np.testing.assert_array_equal(running, (host + 1).cumsum(0))
    np.testing.assert_array_equal(counts, np.histogram(host + 1, 9, (-99, 99))[0])
    np.testing.assert_array_equal(rechunked, host + 1)
    np.testing.assert_array_equal(product, (host + 1) @ (host + 1).T)


def test_callbacks_learn_of_every_task_and_its_gpu(gpus: FakeGpus, node: dc.Node) -> None:
    seen = []
    graph = {("x", i): Task(("x", i), gpus.make, i) for i in range(4)}
    with Callback(posttask=lambda key, value, dsk, state, worker: seen.append((key[1], worker))):
        node.get(graph, list(graph))
    names = {i: f"dask_coop GPU {i}, host thread" for i in range(4)}
    assert sorted(key for key, _ in seen) == [0, 1, 2, 3]
    assert all(name.startswith(names[key]) for key, name in seen)


def test_keys_may_be_nested_and_the_graph_an_old_one(gpus: FakeGpus, node: dc.Node) -> None:
    graph = {"a": 1, "b": (operator.add, "a", 2), "c": ["a", "b"], "d": (sum, "c")}
    assert node.get(graph, [["a", ["b"]], "c"]) == ((1, (3,)), [1, 3])
    assert node.get(graph, "d", num_workers=7) == 4
    assert node.get(graph, []) == ()
    cache: dict[str, int] = {}
    assert node.get(graph, "b", cache=cache) == 3
    assert cache["b"] == 3


def test_variables_of_the_context_reach_the_tasks(gpus: FakeGpus, node: dc.Node) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    token = variable.set(5)
    assert node.get({"a": Task("a", variable.get)}, "a") == 5
    variable.reset(token)


def test_a_task_may_compute(gpus: FakeGpus) -> None:
    def inner(i: int) -> int:
        x = da.ones(10, chunks=2).map_blocks(lambda block: block * gpus.current())
        return int(x.sum().compute())

    with dc.Node() as node:
        graph = {("x", i): Task(("x", i), inner, i) for i in range(4)}
        assert node.get(graph, list(graph)) == (0, 10, 20, 30)


def test_the_block_sets_dasks_scheduler_and_restores_it(gpus: FakeGpus) -> None:
    with dask.config.set(scheduler="synchronous"):
        with dc.Node() as node:
            assert dask.config.get("scheduler") == node.get
            name = da.ones(3).map_blocks(lambda x: threading.current_thread().name, dtype=object)
            assert str(name.compute()).startswith("dask_coop GPU 0, host thread")
        assert dask.config.get("scheduler") == "synchronous"
    with pytest.raises(RuntimeError, match=r"closed.*dask_coop\.Node\(\)"):
        node.get({"a": 1}, "a")
    with pytest.raises(RuntimeError, match="closed"), node:
        pass
    node.close()
    assert repr(node) == "<Node: 4 x Fake (0, 1, 2, 3), 16 GiB, closed>"


@pytest.mark.parametrize("order", sorted({*itertools.permutations("aabc")}))
@pytest.mark.parametrize("given", ["synchronous", None])
def test_blocks_end_in_any_order(gpus: FakeGpus, order: Sequence[str], given: str | None) -> None:
    """As those of several threads may."""
    nodes = {name: dc.Node([0]) for name in "abc"}
    chosen = {} if given is None else {"scheduler": given}
    with dask.config.set(chosen):
        before = dict(dask.config.config)
        opened = []
        for name in "aabc":
            nodes[name].__enter__()
            opened.append(name)
            assert dask.config.get("scheduler") == nodes[name].get
        for name in order:
            nodes[name].__exit__()
            # Of a Node with two blocks the latest one.
            del opened[len(opened) - 1 - opened[::-1].index(name)]
            expected = nodes[opened[-1]].get if opened else given
            assert dask.config.get("scheduler", None) == expected
            assert not opened or da.ones(3).sum().compute() == 3
        assert dask.config.config == before


def test_what_a_block_chooses_holds_to_its_end(gpus: FakeGpus) -> None:
    with dc.Node([0]) as outer:
        with dask.config.set(scheduler="threads"):
            with dc.Node([0]):
                dask.config.set(scheduler="synchronous")
            assert dask.config.get("scheduler") == "threads"
        assert dask.config.get("scheduler") == outer.get


def test_the_scheduler_works_outside_of_a_block(node: dc.Node) -> None:
    assert da.ones(10, chunks=3).sum().compute(scheduler=node.get) == 10


def threads_of_nodes() -> list[str]:
    """Return the names of the threads of all Nodes."""
    beginnings = "dask_coop GPU", "dask_coop launches"
    return [t.name for t in threading.enumerate() if t.name.startswith(beginnings)]


def test_what_runs_may_end_after_close(gpus: FakeGpus) -> None:
    node = dc.Node()
    graph = {
        "a": Task("a", lambda: (node.close(), repr(node))[1]),
        "b": Task("b", lambda text: text, TaskRef("a")),
    }
    assert "closed" in node.get(graph, "b")
    assert not threads_of_nodes()


def test_a_node_that_is_forgotten_ends_its_threads(gpus: FakeGpus) -> None:
    node = dc.Node()
    node.get({"a": Task("a", gpus.make, 1)}, "a")
    del node
    gc.collect()
    assert not threads_of_nodes()


def test_the_callers_streams_are_waited_for_and_wait(gpus: FakeGpus, node: dc.Node) -> None:
    me, every = threading.current_thread(), (0, 1, 2, 3)
    graph = {"a": Task("a", gpus.log.append, ("run",)), "b": Task("b", abs, TaskRef("missing"))}
    node.get(graph, "a")
    assert gpus.log[1:] == [("follow", me, every), ("run",), ("lead", me, every)]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_kept(gpus: FakeGpus, node: dc.Node, fails: bool) -> None:
    made = []

    def make(i: int) -> OnGpu:
        x = gpus.make(np.arange(i))
        made.append(weakref.ref(x))
        return x

    def last(*_: Any) -> OnGpu:
        if fails:
            raise ZeroDivisionError
        return make(3)

    def compute() -> None:
        held = on_gpu([1], 1)
        made.append(weakref.ref(held))
        graph: dict[Any, Any] = {("x", i): Task(("x", i), make, i) for i in range(8)}
        graph["held"] = DataNode("held", held)
        graph["last"] = Task("last", last, *refs(*graph))
        try:
            result = node.get(graph, ["last", ("x", 2)])
            assert result[0].value.size == 3
        except ZeroDivisionError:
            assert fails

    gc.collect()
    gc.disable()
    try:
        compute()
        assert len(made) == 10 - fails
        assert [ref() for ref in made if ref() is not None] == []
    finally:
        gc.enable()


class Adds(OnAllGpus):
    """A function that adds on all GPUs, by the plain graph."""

    def __init__(self, node: dc.Node, gpus: FakeGpus) -> None:
        self.node, self.gpus = node, gpus

    def __call__(self, *arrays: OnGpu) -> Any:
        assert [x.device for x in arrays] == [0, 1, 2, 3]
        if self.node is None:
            raise ZeroDivisionError
        graph: dict[Any, Any] = {("in", i): DataNode("", x) for i, x in enumerate(arrays)}
        outs = [("out", i) for i in range(4)]
        graph |= {key: Task(key, self.gpus.add, TaskRef(("in", key[1]))) for key in outs}
        return threading.current_thread().name, list(self.node._run(graph, outs))


def test_what_works_on_all_gpus_gets_all_arrays_in_a_thread_of_its_own(
    gpus: FakeGpus, node: dc.Node
) -> None:
    graph: dict[Any, Any] = {("x", i): Task(("x", i), gpus.make, i) for i in range(4)}
    graph["everything"] = Task("everything", Adds(node, gpus), *refs(*graph))
    name, arrays = node.get(graph, "everything")
    assert name == "dask_coop launches"
    assert [x.device for x in arrays] == [0, 1, 2, 3]
    assert gpus.moves() == []
    graph["everything"] = Task("everything", Adds(None, gpus), *graph["everything"].args)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError) as caught:
        node.get(graph, "everything")
    assert caught.value.__notes__ == ["in task 'everything' on all GPUs"]


def test_launches_that_do_not_suit_run_their_plain_tasks(
    node: dc.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.arange(100)
    x = da.from_array(array, chunks=10).persist(scheduler=node.get)
    total, running = dask.compute(dc.sum(x), dc.cumsum(x), scheduler=node.get)
    assert total == array.sum()
    np.testing.assert_array_equal(running, array.cumsum())
    lines = sorted(node.explain().splitlines())
    assert [line.partition("-")[0] for line in lines] == ["cumsum", "sum"]
    assert all(line.endswith(": plain tasks, because GPUs are fakes") for line in lines)
    fake = SimpleNamespace(objection="the GPUs differ")
    with monkeypatch.context() as patch:
        patch.setattr(node._launcher, "_team", fake)
        assert dc.sum(x).compute(scheduler=node.get) == array.sum()
    assert node.explain().endswith("plain tasks, because the GPUs differ")
    dc.sum(da.ones((4, 4), chunks=2), axis=0).compute(scheduler=node.get)
    assert node.explain().endswith("plain tasks, because it leaves axes that are not reduced")
    da.ones(3, chunks=2).compute(scheduler=node.get)
    assert node.explain() == ""


def test_launches_over_suitable_chunks_are_one_call(
    node: dc.Node, multichunk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def scan(team: Any, op: Any, xs: Any, wanted: Any, spec: Any) -> list[Any]:
        calls.append((op.monoid.name, len(xs), list(wanted)))
        return [np.full(x.shape, i) for i, x in enumerate(xs)]

    def reduce(team: Any, op: Any, xs: Any, origins: Any) -> Any:
        calls.append((op.monoid.name, len(xs)))
        return (np.float64(7), *op.monoid.identity(op.element)[1:])

    def histogram(team: Any, op: Any, xs: Any, grid: Any) -> Any:
        calls.append((op.monoid.name, len(xs)))
        return (np.array([1, 2]),) if grid.bins[0].n == 2 else None

    multichunk.objection = None
    multichunk.scan, multichunk.reduce, multichunk.histogram = scan, reduce, histogram
    x = da.from_array(np.arange(40.0), chunks=10).persist(scheduler=node.get)
    assert dc.sum(x).compute(scheduler=node.get) == 7
    assert node.explain().endswith("one launch over 4 chunks")
    np.testing.assert_array_equal(
        dc.cumsum(x).compute(scheduler=node.get), np.repeat(np.arange(4), 10)
    )
    assert (dc.histogram(x, 2, (0, 40))[0].compute(scheduler=node.get) == [1, 2]).all()
    assert (dc.histogram(x, 4, (0, 40))[0].compute(scheduler=node.get) == 10).all()
    assert node.explain().endswith("the table does not fit the memory of a block")
    counted = [("counts", 4)]
    sums = ("compensated_sum", 4), ("compensated_sum", 4, [True] * 4)
    assert calls == [*sums, *counted, *counted]


def test_dask_looks_at_no_chunk_of_launches(
    node: dc.Node, multichunk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer for a task a chunk than the GPUs take for the work."""
    multichunk.objection = None
    multichunk.scan = lambda team, op, xs, wanted, spec: [np.full(x.shape, 2.0) for x in xs]
    multichunk.reduce = lambda team, op, xs, origins: op.monoid.identity(op.element)
    multichunk.histogram = lambda team, op, xs, grid: (np.arange(2),)
    graphs: list[int] = []
    run_graph, cull = module.local.get_async, HighLevelGraph.cull

    def counting(submit: Any, workers: int, dsk: Any, *args: Any, **options: Any) -> Any:
        graphs.append(len(dsk))
        return run_graph(submit, workers, dsk, *args, **options)

    def optimizing(graph: HighLevelGraph, keys: Any) -> Any:
        graphs.append(-1)
        return cull(graph, keys)

    monkeypatch.setattr(module.local, "get_async", counting)
    # Dask's optimizer begins with it.
    monkeypatch.setattr(HighLevelGraph, "cull", optimizing)

    def looked_at(lazy: Any) -> list[int]:
        graphs.clear()
        lazy.persist(scheduler=node.get)
        persisted = [*graphs]
        graphs.clear()
        lazy.compute(scheduler=node.get)
        return [*persisted, *graphs]

    for n in (4, 300):
        x = da.ones(2 * n, chunks=2).persist(scheduler=node.get)
        assert looked_at(dc.sum(x)) == looked_at(dc.histogram(x, 2, (0, 1))[0]) == []
        assert looked_at(dc.cumsum(x)) == []
        assert node.explain().endswith(f"one launch over {n} chunks")
        # What is not of the library may be worth optimizing, and other optimizers may be wanted.
        assert -1 in looked_at(dc.cumsum(x) + 1)
        assert -1 in looked_at(dc.cumsum(da.ones(2 * n, chunks=2)))
        with dask.config.set(array_optimize=lambda dsk, keys: dsk.cull(keys)):
            assert -1 in looked_at(dc.sum(x))


def test_a_launch_over_chunks_in_memory_is_made_in_the_calling_thread(
    gpus: FakeGpus, multichunk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is made of its state, on the GPU where it would be made by the GPU's thread."""
    begun: list[Any] = []
    asarray = chunks.asarray

    def reduce(team: Any, op: Any, xs: Any, origins: Any) -> Any:
        begun.append(threading.current_thread())
        gpus.use(0)
        return op.monoid.identity(op.element)

    def recording(x: Any, kind: str) -> Any:
        begun.append(gpus.current())
        return asarray(x, kind)

    multichunk.objection, multichunk.reduce = None, reduce
    node = dc.Node([3, 2])
    x = da.ones(10, chunks=5).persist(scheduler="sync")
    gpus.use(1)
    monkeypatch.setattr(chunks, "asarray", recording)
    assert dc.sum(x).compute(scheduler=node.get) == 0
    assert begun == [threading.current_thread(), 3]
    assert gpus.current() == 1
    assert not threads_of_nodes()
    monkeypatch.setattr(chunks, "asarray", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        dc.sum(x).compute(scheduler=node.get)
    (note,) = caught.value.__notes__
    assert note.startswith("in task ('sum-")
    assert note.endswith("on GPU 3")
    assert gpus.current() == 1
    node.close()


def test_a_launch_ends_before_an_interrupt_is_raised(
    node: dc.Node, multichunk: SimpleNamespace
) -> None:
    ended = []

    def reduce(team: Any, op: Any, xs: Any, origins: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        ended.append(1)
        return op.monoid.identity(op.element)

    multichunk.objection, multichunk.reduce = None, reduce
    x = da.ones(10, chunks=5).persist(scheduler=node.get)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            dc.sum(x).compute(scheduler=node.get)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [1]


def test_a_launch_that_fails_says_so(node: dc.Node, multichunk: SimpleNamespace) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("barrier")

    multichunk.objection, multichunk.reduce = None, fails
    with pytest.raises(ZeroDivisionError, match="barrier") as caught:
        dc.sum(da.ones(10, chunks=5).persist(scheduler=node.get)).compute(scheduler=node.get)
    assert caught.value.__notes__[0].endswith("on all GPUs")


def test_a_launch_that_nobody_asked_for_is_not_run(
    node: dc.Node, multichunk: SimpleNamespace
) -> None:
    multichunk.objection, multichunk.reduce = None, None
    x = da.ones(10, chunks=5).persist(scheduler=node.get)
    chunk = node.get(dict(dc.sum(x).dask), (x.name, 0))
    np.testing.assert_array_equal(chunk, np.ones(5))


def test_reductions_hold_few_chunks_that_are_made_on_the_way(node: dc.Node) -> None:
    alive: set[int] = set()
    most: list[int] = [0]
    lock = threading.Lock()

    def forget(number: int) -> None:
        with lock:
            alive.discard(number)

    def make(block_info: Any = None) -> Any:
        chunk, number = np.ones(100), block_info[None]["chunk-location"][0]
        weakref.finalize(chunk, forget, number)
        with lock:
            alive.add(number)
            most[0] = max(most[0], len(alive))
        return chunk

    x = da.map_blocks(make, chunks=((100,) * 200,), dtype="f8", meta=np.empty(0))
    for lazy in (dc.sum(x), dc.sum(x + 1), dc.histogram(x, 3, (0, 2))[0]):
        most[0] = 0
        lazy.compute(scheduler=node.get)
        assert most[0] < 60
    assert "made on the way" in node.explain()


def test_callbacks_stay_registered_when_a_launch_falls_back(node: dc.Node) -> None:
    x = da.ones(100, chunks=10).persist(scheduler=node.get)
    seen: list[Any] = []
    with Callback(pretask=lambda key, *_: seen.append(key)) as callback:
        before = set(Callback.active)
        dc.cumsum(x).compute(scheduler=node.get)
        assert Callback.active == before
    assert callback is not None
    assert any("launch" in str(key) for key in seen)


def test_a_node_computes_where_an_event_loop_runs(node: dc.Node) -> None:
    async def cell() -> Any:
        with node:
            return dc.cumsum(da.ones(10, chunks=3)).compute()

    np.testing.assert_array_equal(asyncio.run(cell()), np.arange(1, 11))


@pytest.mark.parametrize("timeout", ["0s", "-1 s", "soon"])
def test_a_timeout_is_a_positive_span(gpus: FakeGpus, timeout: str) -> None:
    message = "must be a positive span of time such as '30s', got"
    with (
        dask.config.set({"coop.barrier-timeout": timeout}),
        pytest.raises(ValueError, match=message),
    ):
        dc.Node()


def test_memory_and_names(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.n = 6
    with dc.Node([5, 1]) as node:
        assert repr(node) == "<Node: 1 x Other, 1 x Fake (5, 1), 8 GiB, idle>"
        memory = node.memory()
        assert memory == {5: (5 << 30, 2 << 30, 3 << 30, 4 << 30), 1: (1 << 30, *memory[5][1:])}
        assert str(memory[1]) == (
            "Memory(used=1.00 GiB, pool=2.00 GiB, free=3.00 GiB, total=4.00 GiB)"
        )
        states = []
        node.get({"a": Task("a", lambda: states.append(repr(node)))}, "a")
        assert "computing" in states[0]


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ([0, 1, 0], ValueError, "distinct; device 0 is there 2 times"),
        ([-1], ValueError, "0 to 3, got -1"),
        ([4], ValueError, "0 to 3, got 4"),
        ([], ValueError, "got none"),
        (0, TypeError, "sequence of ordinals, got 0"),
        (["0"], TypeError, "sequence of ordinals, got \\['0'\\]"),
    ],
)
def test_wrong_devices_are_named(
    gpus: FakeGpus, devices: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        dc.Node(devices)


def test_a_machine_without_gpus_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    if missing_for_gpu():
        with pytest.raises(RuntimeError, match=r"(?s)Node .*Dask's own schedulers"):
            dc.Node()
    monkeypatch.setattr(module, "_peers", lambda: FakeGpus(0))
    with pytest.raises(RuntimeError, match=r"finds no NVIDIA GPU; .*Dask's own schedulers"):
        dc.Node()
