"""Chunks that come from the host go through a Node in a stream, in as much memory as there may be.

GPUs are made up: a chunk on one is a NumPy array that knows where it is, and its memory is counted.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import DataNode, List, Task, TaskRef, convert_legacy_graph
from dask.array import core
from dask.array.dispatch import to_cupy_dispatch, to_numpy_dispatch
from dask.local import get_sync
from support.host_cupy.gpus import FakeGpus, OnGpu

import dask_coop as dc
from dask_coop import chunks
from dask_coop.chunks.cupy.eligibility import Objection
from dask_coop.graph import tasks, transfer
from dask_coop.graph.transfer import copy_to_gpu, copy_to_host
from dask_coop.node import node as module
from dask_coop.node import run
from dask_coop.node.placement import copies_to_gpu, copies_to_host, deal
from dask_coop.node.room import parsed_limit
from dask_coop.node.streams import cut_copies

CHUNK, CHUNKS = 1000, 100
NBYTES = 8 * CHUNK
HOST = np.random.default_rng(17).integers(-9, 9, CHUNK * CHUNKS).astype("f8")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Return two GPUs of 10,000 chunks of memory, with scans that leave their results there."""
    fake = FakeGpus(2)
    monkeypatch.setattr(module, "_peers", lambda: fake)
    monkeypatch.setattr(module, "CPU_COUNT", 8)
    monkeypatch.setattr(fake, "memory", lambda _: (0, 0, 10_000 * NBYTES, 10_000 * NBYTES))
    launches = SimpleNamespace(Team=lambda *_: SimpleNamespace(objection=""))
    monkeypatch.setattr(run, "_multichunk", lambda: launches)
    monkeypatch.setattr(run, "objection_to_chunks", lambda *_: Objection("GPUs are fakes"))
    # These stand in for CuPy's functions, not for ours.
    monkeypatch.setattr(module, "take_over", lambda _: lambda: True)
    monkeypatch.setitem(to_cupy_dispatch._lookup, np.ndarray, fake.put)
    monkeypatch.setitem(to_numpy_dispatch._lookup, OnGpu, lambda x, **_: np.array(x))
    numpy = chunks.backend_of(HOST)

    def scan(op: Any, x: Any, *given: Any) -> Any:
        return fake.put(numpy.scan(op, x, *given), x)

    def scan_on(op: Any, x: Any, *given: Any) -> Any:
        y, state = numpy.scan_on(op, x, *given)
        return fake.put(y, x), state

    names = {name: getattr(numpy, name) for name in dir(numpy) if name[0] != "_"}
    backend = SimpleNamespace(**names | {"scan": scan, "scan_on": scan_on})
    monkeypatch.setattr(tasks.chunks, "backend_of", lambda *_: backend)
    monkeypatch.setattr(transfer.chunks, "asarray", lambda x, *_: np.array(x))
    monkeypatch.setattr(transfer.chunks, "put_into", lambda out, x, *_: np.copyto(out, x))
    return fake


@pytest.fixture
def node(gpus: FakeGpus) -> Iterator[Callable[..., dc.Node]]:
    """Return what makes a Node of `n` GPUs, whose `limit` is a number of chunks."""
    made: list[dc.Node] = []

    def make(n: int, limit: int) -> dc.Node:
        made.append(dc.Node(range(n), memory_limit=limit * NBYTES))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Target:
    """What takes chunks, and is no array of NumPy."""

    shape, dtype = HOST.shape, HOST.dtype

    def __init__(self) -> None:
        self.values = [0.0] * len(HOST)

    def __setitem__(self, index: Any, x: Any) -> None:
        self.values[index[0]] = x.tolist()


def to_gpu(host: Any = HOST) -> Any:
    x = da.from_array(host, chunks=CHUNK)
    return x.map_blocks(to_cupy_dispatch, dtype=x.dtype, meta=np.empty(0))


def to_host(x: Any) -> Any:
    return x.map_blocks(to_numpy_dispatch, dtype=x.dtype, meta=np.empty(0))


def slow_copy(x: Any, **_: Any) -> Any:
    time.sleep(0.002)
    return np.array(x)


WORK: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "sum": (dc.sum, HOST.sum()),
    "histogram": (lambda x: dc.histogram(x, 5, (-9, 9))[0], np.histogram(HOST, 5, (-9, 9))[0]),
    "two of one read": (lambda x: da.stack([dc.sum(x), dc.max(x)]), [HOST.sum(), HOST.max()]),
    "cumsum": (lambda x: to_host(dc.cumsum(x)), HOST.cumsum()),
    "reverse": (lambda x: to_host(dc.cumsum(x, reverse=True)), HOST[::-1].cumsum()[::-1]),
    "exclusive": (
        lambda x: to_host(dc.cumulative_sum(x, include_initial=True)),
        np.concatenate([[0], HOST.cumsum()]),
    ),
    "sequential": (lambda x: to_host(dc.cumsum(x, method="sequential")), HOST.cumsum()),
    "recompute": (lambda x: to_host(dc.cumsum(x, method="recompute")), HOST.cumsum()),
    "a scan's sum": (lambda x: dc.sum(dc.cumsum(x)), HOST.cumsum().sum()),
    "a scan's scan": (lambda x: to_host(dc.cumsum(dc.cumsum(x))), HOST.cumsum().cumsum()),
    "rows": (
        lambda x: to_host(dc.cumsum(x.reshape(CHUNKS, 20, 50), axis=0)),
        HOST.reshape(CHUNKS, 20, 50).cumsum(0),
    ),
    "segments": (
        lambda x: to_host(dc.cumsum(x, segments=da.zeros(len(HOST), dtype="?", chunks=CHUNK))),
        HOST.cumsum(),
    ),
    "a scan and a sum": (
        lambda x: da.concatenate([to_host(dc.cumsum(x)), dc.sum(x)[None]]),
        np.append(HOST.cumsum(), HOST.sum()),
    ),
    "of what is made there": (lambda x: to_host(dc.cumsum(x * 2)), (HOST * 2).cumsum()),
}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("work", WORK)
def test_few_chunks_are_on_a_gpu_at_a_time(gpus: FakeGpus, node: Any, work: str, n: int) -> None:
    call, expected = WORK[work]
    np.testing.assert_allclose(call(to_gpu()).compute(scheduler=node(n, 12).get), expected)
    # A chunk that others need is let in although there is no room.
    assert 0 < max(gpus.most.values()) <= 14 * NBYTES
    assert not any(gpus.used(gpu) for gpu in range(n))


def test_results_go_where_they_are_stored(gpus: FakeGpus, node: Any) -> None:
    out = np.empty_like(HOST)
    with node(2, 10):
        da.store(to_host(dc.cumsum(to_gpu())), out, lock=False)
    np.testing.assert_allclose(out, HOST.cumsum())
    assert max(gpus.most.values()) <= 10 * NBYTES


def test_results_come_into_one_array(
    gpus: FakeGpus, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("blocks are copied once more")

    made: list[Any] = []

    def empty(kind: str, shape: Any, dtype: Any) -> Any:
        made.append(np.empty(shape, dtype))
        return made[-1]

    monkeypatch.setattr(transfer.chunks, "empty_on_host", empty)
    monkeypatch.setattr(transfer.chunks, "can_move", lambda x, kind: isinstance(x, OnGpu))
    one = node(2, 10)
    lazy = dc.to_host(dc.cumsum(to_gpu()))
    rows = dc.to_host(dc.cumsum(to_gpu().reshape(CHUNKS, 20, 50), axis=0))
    with monkeypatch.context() as patch:
        patch.setattr(core, "concatenate3", refuse)
        both = dask.compute(lazy, dc.to_host(to_gpu()), scheduler=one.get)
        for result, whole, expected in zip(both, made[-2:], (HOST.cumsum(), HOST), strict=True):
            np.testing.assert_allclose(np.sort(result), np.sort(expected))
            assert any(result is each for each in made[-2:])
            assert whole.flags.writeable
        again = lazy.compute(scheduler=one.get)
        assert not np.shares_memory(again, both[0])
        table = rows.compute(scheduler=one.get)
        assert table is made[-1]
    np.testing.assert_allclose(both[0], HOST.cumsum())
    np.testing.assert_allclose(both[1], HOST)
    np.testing.assert_allclose(table, HOST.reshape(CHUNKS, 20, 50).cumsum(0))
    assert max(gpus.most.values()) <= 20 * NBYTES
    # Other results are as Dask makes them.
    count = len(made)
    first = dc.to_host(dc.cumsum(to_gpu()))
    np.testing.assert_allclose(first[5000:].compute(scheduler=one.get), HOST.cumsum()[5000:])
    twice = da.concatenate([first, first]).compute(scheduler=one.get)
    np.testing.assert_allclose(twice, np.tile(HOST.cumsum(), 2))
    np.testing.assert_allclose((first + 1).compute(scheduler=one.get), HOST.cumsum() + 1)
    blocks = one.get(dict(first.dask), first.__dask_keys__())
    np.testing.assert_allclose(np.concatenate(blocks), HOST.cumsum())
    assert len(made) == count
    # A chunk of another dtype than declared has no room in the whole.
    narrow = dc.to_host(to_gpu().map_blocks(lambda x: x.astype("f4"), dtype="f8"))
    result = narrow.compute(scheduler=one.get)
    assert result.dtype == "f8"
    np.testing.assert_allclose(result, HOST)


def test_blocks_of_several_gpus_are_joined_on_the_host(
    gpus: FakeGpus, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer.chunks, "can_move", lambda x, kind: isinstance(x, OnGpu))
    monkeypatch.setattr(transfer.chunks, "empty_on_host", lambda _, *given: np.empty(*given))
    x = dc.cumsum(to_gpu())
    blocks = List(*(TaskRef(key) for key in x.__dask_keys__()))
    graph = {**x.dask, "end": Task("end", transfer.join_on_host, blocks)}
    np.testing.assert_allclose(node(2, 10_000).get(graph, "end"), HOST.cumsum())
    # They stay where they are, without room for all of them on one GPU.
    assert min(gpus.most.values()) > 0
    assert gpus.moves() == []


@pytest.mark.parametrize("lock", [False, True])
def test_what_is_stored_in_memory_has_no_array_in_between(
    gpus: FakeGpus, node: Any, monkeypatch: pytest.MonkeyPatch, lock: bool
) -> None:
    put: list[Any] = []

    def put_into(out: Any, x: Any, nbytes: Any) -> None:
        put.append((out.base is not None, isinstance(x, OnGpu), nbytes))
        out[...] = x

    monkeypatch.setattr(transfer.chunks, "put_into", put_into)
    y = dc.cumsum(to_gpu()).map_blocks(copy_to_host, 1 << 27, dtype="f8", meta=np.empty(0))
    out = np.empty_like(HOST)
    one = node(2, 10)
    da.store(y, out, lock=lock, scheduler=one.get)
    np.testing.assert_allclose(out, HOST.cumsum())
    assert put == [(True, True, 1 << 27)] * CHUNKS
    # With what else there is to a store, and of two users of what is copied, all is as Dask has it.
    put.clear()
    out[:] = 0
    region = (slice(0, 50 * CHUNK),)
    da.store(y[: 50 * CHUNK], out, regions=region, lock=lock, scheduler=one.get)
    np.testing.assert_allclose(out[: 50 * CHUNK], HOST.cumsum()[: 50 * CHUNK])
    assert not out[50 * CHUNK :].any()
    stored = da.store(y, out, lock=lock, return_stored=True, scheduler=one.get)
    np.testing.assert_allclose(stored.compute(scheduler=one.get), HOST.cumsum())
    target = Target()
    da.store(y, target, lock=lock, scheduler=one.get)
    np.testing.assert_allclose(target.values, HOST.cumsum())


def test_a_slow_way_out_holds_up_the_way_in(
    gpus: FakeGpus, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(x: Any, **_: Any) -> Any:
        time.sleep(0.01)
        return np.array(x)

    monkeypatch.setitem(to_numpy_dispatch._lookup, OnGpu, slow)
    one = node(1, 10)
    y = to_host(dc.cumsum(to_gpu())).compute(scheduler=one.get)
    np.testing.assert_allclose(y, HOST.cumsum())
    assert max(gpus.most.values()) <= 10 * NBYTES
    assert "tasks waited until less than" in one.explain()
    assert "GPU 0: " in one.explain()


def test_chunks_that_are_the_same_data_come_in_their_turn(
    gpus: FakeGpus, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan of an array behind itself does not read what is far away for being at hand."""
    monkeypatch.setitem(to_numpy_dispatch._lookup, OnGpu, slow_copy)
    x = da.concatenate([da.from_array(HOST, chunks=CHUNK)] * 3)
    lazy = x.map_blocks(to_cupy_dispatch, dtype="f8", meta=np.empty(0))
    one = node(1, 10)
    y = to_host(dc.cumsum(lazy)).compute(scheduler=one.get)
    np.testing.assert_allclose(y, np.tile(HOST, 3).cumsum())
    assert max(gpus.most.values()) <= 10 * NBYTES
    assert "although" not in one.explain()


def test_what_kernels_take_when_they_are_loaded_counts(
    gpus: FakeGpus, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "outside", lambda _: 80 * NBYTES if gpus.puts else 0)
    monkeypatch.setitem(to_numpy_dispatch._lookup, OnGpu, slow_copy)
    to_host(dc.cumsum(to_gpu())).compute(scheduler=node(1, 90).get)
    assert gpus.most[0] <= 10 * NBYTES


def test_what_the_pool_keeps_counts_and_is_given_back(
    gpus: FakeGpus, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pool that finds no use for its free pieces, no more is held than the limit."""
    held, most = 0, 0
    put = to_cupy_dispatch._lookup[np.ndarray]

    def take_anew(x: Any, **given: Any) -> Any:
        nonlocal held, most
        held += x.nbytes
        most = max(most, held)
        return put(x, **given)

    def trim(ordinal: int) -> None:
        nonlocal held
        held = gpus.used(ordinal)

    monkeypatch.setitem(to_cupy_dispatch._lookup, np.ndarray, take_anew)
    monkeypatch.setattr(gpus, "held", lambda _: held)
    monkeypatch.setattr(gpus, "trim", trim)
    assert dc.sum(to_gpu()).compute(scheduler=node(1, 10).get) == HOST.sum()
    assert most <= 10 * NBYTES


def test_what_has_to_stay_goes_beyond_the_limit_and_is_told(gpus: FakeGpus, node: Any) -> None:
    one = node(1, 10)
    kept = to_gpu().persist(scheduler=one.get)
    np.testing.assert_array_equal(kept.map_blocks(np.asarray).compute(scheduler="sync"), HOST)
    assert gpus.used(0) == CHUNKS * NBYTES
    assert " began although more was" in one.explain()
    # And what comes next still ends.
    assert to_gpu(HOST[:5000]).sum().compute(scheduler=one.get) == HOST[:5000].sum()


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("method", ["reduce-then-scan", "sequential"])
def test_chunks_of_a_chain_are_dealt_in_turn(
    gpus: FakeGpus, node: Any, method: str, factor: int
) -> None:
    x = to_gpu() if factor == 1 else to_gpu() * factor
    to_host(dc.cumsum(x, method=method)).compute(scheduler=node(2, 10).get)
    ordinals = [ordinal for ordinal, _ in gpus.puts]
    # One GPU gets ahead of the other as far as its memory and its threads let it.
    first = ordinals[: CHUNKS // 2]
    assert abs(first.count(0) - first.count(1)) <= CHUNKS // 4
    keys = [("x", i) for i in range(5)]
    assert [*deal([*keys, "x"], 2, {"x"}).values()] == [0, 1, 0, 1, 0, 0]


def test_reads_of_a_chain_do_not_wait_for_its_steps(gpus: FakeGpus, node: Any) -> None:
    """Two chunks are copied before the first is scanned."""
    both = threading.Barrier(2, timeout=20)
    (lookup, seen) = to_cupy_dispatch._lookup, []
    put = lookup[np.ndarray]

    def together(x: Any, **_: Any) -> Any:
        seen.append(1)
        if len(seen) in (2, 3):
            both.wait()
        return put(x)

    lookup[np.ndarray] = together
    y = to_host(dc.cumsum(to_gpu(), method="sequential"))
    np.testing.assert_allclose(y.compute(scheduler=node(1, 12).get), HOST.cumsum())


def test_what_is_explained(gpus: FakeGpus, node: Any) -> None:
    one = node(2, 100)
    dask.compute(dc.sum(to_gpu()), to_host(dc.cummax(to_gpu())), scheduler=one.get)
    lines = sorted(line.partition("-")[2].partition(": ")[2] for line in one.explain().splitlines())
    assert lines == ["plain tasks, because its chunks come from the host, one after the other"] * 2
    persisted = dc.cumsum(to_gpu()).persist(scheduler=one.get)
    assert one.explain().endswith("because GPUs are fakes")
    assert persisted.npartitions == CHUNKS


def step(block: Any, base: Any) -> Any:
    return block + base


def fused(*parts: Task) -> Task:
    return Task.fuse(*parts, key=parts[-1].key)


def test_copies_are_cut_out_of_what_waits_for_more() -> None:
    read = Task(("h", 1), np.ones, 3)
    copy = Task(("g", 1), to_cupy_dispatch, TaskRef(("h", 1)))
    scan = Task(("y", 1), step, TaskRef(("g", 1)), TaskRef("base"))
    graph = {"base": DataNode("base", 1), ("y", 1): fused(read, copy, scan)}
    cut = cut_copies(graph)
    assert set(cut) == {"base", ("y-copy", 1), ("y", 1)}
    assert cut["y-copy", 1].dependencies == frozenset()
    assert cut["y", 1].dependencies == {("y-copy", 1), "base"}
    assert copies_to_gpu(cut["y-copy", 1])
    assert not copies_to_gpu(cut["y", 1])
    np.testing.assert_array_equal(get_sync(cut | {("y-copy", 1): DataNode("", 2)}, ("y", 1)), 3)
    # What waits for nothing else stays one task, and so does what is used twice.
    lone = {("y", 1): fused(read, copy, Task(("y", 1), abs, TaskRef(("g", 1))))}
    assert cut_copies(lone) is lone
    twice = Task(("y", 1), lambda *_: 1, TaskRef(("g", 1)), TaskRef(("h", 1)), TaskRef("base"))
    both = {"base": DataNode("base", 1), ("y", 1): fused(read, copy, twice)}
    assert cut_copies(both) is both


def test_copies_are_known_by_what_they_call() -> None:
    x = da.ones(3)
    for copy, copies in ((copy_to_gpu, copies_to_gpu), (copy_to_host, copies_to_host)):
        y = x.map_blocks(copy, None, dtype="f8", meta=np.empty(0))
        stored = da.store(y + 1, np.empty(3), compute=False)
        for lazy in (y, y + 1, stored):
            (graph,) = (convert_legacy_graph(dict(one.dask)) for one in dask.optimize(lazy))
            found = [copies(task) for task in graph.values() if isinstance(task, Task)]
            assert found == [True]
            other = copies_to_host if copies is copies_to_gpu else copies_to_gpu
            assert not any(map(other, graph.values()))
    cupy = SimpleNamespace(__module__="cupy._creation.from_data", __name__="asarray")
    assert copies_to_gpu(Task("y", cupy, 1))
    assert not copies_to_gpu(Task("y", np.asarray, 1))
    assert not copies_to_gpu(DataNode("y", 1))


def test_a_gate_that_fails_fails_its_task(
    gpus: FakeGpus, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used(_: int) -> int:
        raise RuntimeError("no driver")

    monkeypatch.setattr(gpus, "used", used)
    with pytest.raises(RuntimeError, match="no driver"):
        to_gpu().sum().compute(scheduler=node(1, 10).get)


@pytest.mark.parametrize("error", [OSError("torn"), MemoryError("full"), KeyboardInterrupt()])
def test_a_read_that_fails_ends_the_stream(gpus: FakeGpus, node: Any, error: BaseException) -> None:
    class Source:
        shape, ndim, dtype = HOST.shape, 1, HOST.dtype

        def __getitem__(self, index: Any) -> Any:
            if index[0].start == 20 * CHUNK:
                raise error
            return HOST[index]

    x = da.from_array(Source(), chunks=CHUNK, meta=np.empty(0))
    lazy = x.map_blocks(to_cupy_dispatch, dtype="f8", meta=np.empty(0))
    one = node(2, 10)
    for work in (dc.sum(lazy), to_host(dc.cumsum(lazy))):
        with pytest.raises(type(error)):
            work.compute(scheduler=one.get)
        gc.collect()
        assert not any(gpus.used(gpu) for gpu in range(2))
    assert dc.sum(to_gpu()).compute(scheduler=one.get) == HOST.sum()


@pytest.mark.parametrize(
    ("given", "expected"), [(None, 800), (0.25, 250), ("1 kB", 1000), (1.0, 1000), (2000, 2000)]
)
def test_a_limit_is_bytes_or_a_fraction(given: Any, expected: int) -> None:
    assert parsed_limit(given, 1000) == expected


@pytest.mark.parametrize("given", [0, -1, "much", "-1 GB", float("inf"), float("nan"), [1], True])
def test_other_limits_are_refused(gpus: FakeGpus, given: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"memory_limit must be .* got "):
        dc.Node(memory_limit=given)
