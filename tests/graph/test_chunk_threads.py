"""Chunks that several threads work on: when, with which results, and what of errors."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from support.clusters import cluster
from test_graphs import collections, numbers

import dask_coop as dc
from dask_coop.graph import tasks
from dask_coop.graph import threads as graph_threads


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have chunks of a few elements cut, and four threads even where there are fewer processors."""
    monkeypatch.setattr(graph_threads, "TILE", 64)
    monkeypatch.setattr(graph_threads, "MOST", 8)
    monkeypatch.setattr("dask.system.CPU_COUNT", 4)
    yield
    assert graph_threads._busy == 0


class Meeting:
    """What threads do that are to be at work at the same time: wait for one another."""

    def __init__(self, n: int) -> None:
        self.barrier = threading.Barrier(n)
        self.threads: set[int] = set()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() not in self.threads:
                self.threads.add(threading.get_ident())
                self.barrier.wait(10)
            return function(*args, **kwargs)

        return called


WORK: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "lift": ("lift", lambda x: dc.var(x)),
    "histogram": ("histogram", lambda x: dc.histogram(x, 5, (0, 9))[0]),
    "scan": ("scan", lambda x: dc.cumsum(x)),
    "scan of lines": ("scan", lambda x: dc.cumsum(x.reshape(40, 20), axis=1)),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.usefixtures("small")
def test_as_many_threads_work_on_a_chunk_as_there_are(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, work = WORK[name]
    backend = "dask_coop.chunks.numpy.backend"
    meeting = Meeting(4)
    monkeypatch.setattr(f"{backend}.{function}", meeting(getattr(threads_backend(), function)))
    array = np.arange(800.0) % 9
    result = work(da.from_array(array, chunks=-1)).compute(scheduler="sync")
    assert len(meeting.threads) == 4
    monkeypatch.undo()
    np.testing.assert_allclose(result, work(da.from_array(array, chunks=-1)), rtol=1e-15)


def threads_backend() -> Any:
    """Return the backend of NumPy chunks."""
    from dask_coop.chunks.numpy import backend

    return backend


@pytest.mark.parametrize(("chunks", "threads"), [(1, 4), (2, 2), (3, 1), (4, 1), (9, 1)])
@pytest.mark.usefixtures("small")
def test_threads_are_shared_among_few_chunks_only(chunks: int, threads: int) -> None:
    x = da.ones(1000 * chunks, chunks=1000)
    for lazy in (dc.sum(x), dc.histogram(x, 5, (0, 1))[0], dc.cumsum(x)):
        given = {
            task.kwargs.get("threads", 1)
            for task in dict(lazy.dask).values()
            if issubclass(tasks.kind_of(task) or int, LARGE)
        }
        assert given == {threads}


LARGE = (tasks.LiftTask, tasks.CountTask, tasks.ScanTask)


@pytest.mark.usefixtures("small")
def test_the_configuration_says_how_many() -> None:
    x = da.ones(1000, chunks=500)
    for given, expected in (("auto", 2), (1, 1), (2, 1), (3, 1), (8, 4)):
        with dask.config.set({"coop.threads": given}):
            assert graph_threads.threads_for(x) == expected
    for setting, expected in (({"scheduler": "sync"}, 1), ({"num_workers": 6}, 3)):
        with dask.config.set(setting):
            assert graph_threads.threads_for(x) == expected
    # Neither are small chunks, nor those of which nobody knows how large they are.
    assert graph_threads.threads_for(x.rechunk(100)[:200]) == 1
    assert graph_threads.threads_for(x[x > 0]) == 1
    for wrong in (0, -1, "two", 1.5):
        with (
            dask.config.set({"coop.threads": wrong}),
            pytest.raises(ValueError, match=r"coop.threads must be .* got"),
        ):
            dc.sum(x)


#: Elements that any order of additions sums up to the same.
EXACT = np.random.default_rng(3).integers(-50, 50, 1200).astype("f8")


@pytest.mark.parametrize("shape", [(1200,), (60, 20), (3, 400), (2, 30, 20)])
@pytest.mark.usefixtures("small")
def test_results_are_those_of_one_thread(shape: tuple[int, ...]) -> None:
    array = EXACT.reshape(shape)
    for x in (
        da.from_array(array, chunks=-1),
        da.from_array(np.where(array > 40, np.nan, array), chunks=-1),
        da.ma.masked_greater(da.from_array(array, chunks=-1), 40),
        da.from_array(np.asfortranarray(array), chunks=-1).astype("i4"),
    ):
        reductions = itertools.product(REDUCTIONS.items(), (None, *range(-x.ndim, 0)))
        scans = itertools.product(SCANS.items(), range(x.ndim))
        work = {(name, axis): (f, axis) for (name, f), axis in (*reductions, *scans)}
        several = computed(x, work)
        with dask.config.set({"coop.threads": 1}):
            one = computed(x, work)
        for name, result in several.items():
            expected = one[name]
            assert (type(result), result.dtype) == (type(expected), expected.dtype), name
            masks = map(np.ma.getmaskarray, (result, expected))
            np.testing.assert_array_equal(*masks, err_msg=str(name))
            np.testing.assert_allclose(result, expected, 1e-13, 1e-11, err_msg=str(name))


def computed(x: Any, work: dict[Any, tuple[Callable[[Any, Any], Any], Any]]) -> dict[Any, Any]:
    """Return results by their names."""
    with warnings.catch_warnings():
        # Of slices of nothing but NaN.
        warnings.simplefilter("ignore")
        lazy = [function(x, axis) for function, axis in work.values()]
        return dict(zip(work, dask.compute(*lazy, scheduler="sync"), strict=True))


REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    name: lambda x, axis, name=name: getattr(dc, name)(x, axis=axis)
    for name in (
        *("sum", "prod", "mean", "var", "min", "max", "argmin", "argmax", "any", "count_nonzero"),
        *("nansum", "nanmin", "nanvar", "norm", "ptp"),
    )
} | {
    "sum where": lambda x, axis: dc.sum(x, axis=axis, where=x > 0),
    "reproducible": lambda x, axis: dc.sum(x, axis=axis, reproducible=True),
    "moment": lambda x, axis: dc.moment(x, 3, axis=axis),
    "describe": lambda x, axis: dc.describe(x, axis=axis).var,
    "kept": lambda x, axis: dc.sum(x, axis=axis, keepdims=True),
    "ufunc": lambda x, axis: dc.reduce(x, np.maximum, axis=axis),
    "histogram": lambda x, _: dc.histogram(x, 9, (-50, 50), nan="omit")[0],
    "weighted": lambda x, _: dc.histogram(x, 9, (-50, 50), weights=x, nan="omit")[0],
    "flow": lambda x, _: dc.histogram(x, 9, (-20, 20), flow=True)[0],
    "pairs": lambda x, _: dc.histogram2d(x, 1 - x, 4, [(-50, 50)] * 2, nan="omit")[0],
}

SCANS: dict[str, Callable[[Any, Any], Any]] = {
    "cumsum": lambda x, axis: dc.cumsum(x, axis=axis),
    "narrow": lambda x, axis: dc.cumsum(x, axis=axis, dtype="f4"),
    "nancumsum": lambda x, axis: dc.nancumsum(x, axis=axis),
    "cummax": lambda x, axis: dc.cummax(x, axis=axis),
    "reverse": lambda x, axis: dc.cumsum(x, axis=axis, reverse=True),
    "exclusive": lambda x, axis: dc.cumsum(x, axis=axis, exclusive=True),
    "initial": lambda x, axis: dc.cumsum(x, axis=axis, include_initial=True),
    "initial, reverse": lambda x, axis: dc.cumsum(x, axis=axis, include_initial=True, reverse=True),
    "segments": lambda x, axis: dc.cumsum(x, axis=axis, segments=x > 45),
    "logcumsumexp": lambda x, axis: dc.logcumsumexp(x, axis=axis),
    "of two chunks": lambda x, axis: dc.cumsum(x.rechunk({axis: -(-x.shape[axis] // 2)}), axis),
}


@pytest.mark.usefixtures("small")
def test_results_are_the_same_however_many_threads_are_free() -> None:
    array = np.random.default_rng(5).standard_normal(5000) * 10.0 ** (np.arange(5000) % 9)
    x = da.from_array(array, chunks=2500)
    lazy = [dc.var(x), dc.mean(x), dc.cumsum(x), dc.histogram(x, 5, (-9, 9), weights=x)[0]]
    expected = dask.compute(*lazy, scheduler="sync")
    for threads in (1, 2, 3):
        found = graph_threads.within(threads, lambda: dask.compute(*lazy, scheduler="sync"))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("small")
def test_threads_at_work_are_no_more_than_there_are() -> None:
    seen: list[int] = []

    def work(_: int) -> None:
        seen.append(graph_threads._busy)

    def several() -> None:
        graph_threads._run_each(work, range(50), 4)

    callers = [threading.Thread(target=several) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    # A caller works in any case.
    assert len(seen) == 200
    assert max(seen) <= 4 + 3


@pytest.mark.usefixtures("small")
def test_errors_of_tiles_reach_the_caller() -> None:
    def fail(i: int) -> None:
        if i == 30:
            raise ValueError(f"part {i}")

    for threads in (1, 4):
        with pytest.raises(ValueError, match="part 30"):
            graph_threads._run_each(fail, range(50), threads)
    # With a helper at work that fails.
    started = threading.Event()
    caller = threading.get_ident()

    def fail_elsewhere(_: int) -> None:
        if threading.get_ident() != caller:
            started.set()
            raise ValueError("another thread")
        started.wait(10)

    with pytest.raises(ValueError, match="another thread"):
        graph_threads._run_each(fail_elsewhere, range(50), 2)
    x = da.from_array(np.full(1000, np.nan), chunks=-1)
    with pytest.raises(ValueError, match="not finite"):
        dc.histogram(x, 5)[0].compute(scheduler="sync")


@pytest.mark.usefixtures("small")
def test_what_users_wrote_is_called_in_one_thread() -> None:
    monoid = dc.Monoid("hypot", np.hypot, 0, "f8")
    for lazy in (
        dc.reduce(da.ones(1000, chunks=-1), monoid),
        dc.scan(da.ones(1000, chunks=-1), monoid),
    ):
        with dask.config.set({"coop.threads": 4}):
            seen = Meeting(1)
            with pytest.MonkeyPatch.context() as patch:
                backend = threads_backend()
                patch.setattr(backend, "lift", seen(backend.lift))
                patch.setattr(backend, "scan", seen(backend.scan))
                lazy.compute(scheduler="sync")
            assert len(seen.threads) == 1


def test_every_result_may_be_made_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_threads, "TILE", 8)
    monkeypatch.setattr("dask.system.CPU_COUNT", 64)
    x = da.from_array(numbers(), chunks=-1)
    several = dask.compute(collections(x))[0]
    with dask.config.set({"coop.threads": 1}):
        one = dask.compute(collections(x))[0]
    for name, result in several.items():
        np.testing.assert_allclose(result, one[name], rtol=1e-13, err_msg=name)


def work_in_a_worker(x: Any) -> Any:
    """Return how many threads may be at work, and how many were."""
    meeting = Meeting(2)
    with pytest.MonkeyPatch.context() as patch:
        backend = threads_backend()
        patch.setattr(graph_threads, "TILE", 64)
        patch.setattr(backend, "lift", meeting(backend.lift))
        graph_threads.lift_by_threads(dc_operation(x), x, (0,), None, 4)
    return graph_threads._most(), len(meeting.threads)


def dc_operation(x: Any) -> Any:
    """Return the operation of a sum."""
    graph = dict(dc.sum(da.from_array(x, chunks=-1)).dask)
    return next(does.op for t in graph.values() if (does := tasks.read(t, tasks.LiftTask)))


def test_a_worker_has_the_threads_that_it_was_given() -> None:
    with cluster(1, threads=2) as client:
        most, met = client.submit(work_in_a_worker, np.arange(1000.0)).result()
        assert most == met == 2
        x = da.arange(3.0 * 2**20, chunks=-1)
        with dask.config.set({"coop.threads": 2}):
            assert graph_threads.threads_for(x) == 2
            assert client.compute(dc.sum(x)).result() == x.sum().compute()
            last = client.compute(dc.cumsum(x)[-1]).result()
            assert last == x.sum().compute()
            (persisted,) = client.persist([x])
            total = dc.sum(persisted, engine="collective")
            scan = dc.cumsum(persisted, engine="collective")
            assert total == x.sum().compute()
            assert client.compute(scan[-1]).result() == last
