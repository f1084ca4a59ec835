"""Multi-chunk launches found in graphs: what they take, what they replace, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import DataNode, convert_legacy_graph, cull
from dask.array.utils import assert_eq
from dask.local import get_sync, nested_get

import dask_coop as dc
from dask_coop.chunks.cupy.eligibility import Objection
from dask_coop.node import inline
from dask_coop.node.find import MultichunkLaunch, find_launches, put_in


class Seen:
    """A scheduler that puts launches in and computes them by the tasks that they replace."""

    def __init__(self) -> None:
        self.launches: list[MultichunkLaunch] = []
        self.others: dict[str, Objection] = {}
        self.tasks = 0

    def get(self, dsk: Any, keys: Any, **_: Any) -> Any:
        graph = convert_legacy_graph(dsk if isinstance(dsk, dict) else dsk.__dask_graph__())
        wanted = set(dask.core.flatten([keys]))
        graph, _, launches, others = find_launches(graph, wanted)
        for launch in launches:
            put_in(graph, launch, lambda values, launch=launch: self.run(launch, values))
        graph = cull(graph, wanted)
        self.launches += launches
        self.others |= others
        self.tasks = len(graph)
        return get_sync(graph, keys)

    @staticmethod
    def run(launch: MultichunkLaunch, values: list[Any]) -> list[Any]:
        graph = launch.plain | dict(zip(launch.needs, values, strict=True))
        return list(get_sync(graph, list(launch.outputs)))


def there(array: Any, chunks: Any) -> da.Array:
    """Return an array with its chunks in memory."""
    return da.from_array(array, chunks=chunks).persist(scheduler="sync")


def numbers(n: int = 1000) -> Any:
    return np.random.default_rng(3).integers(-50, 50, n).astype("f8")


ARRAY = numbers()

REDUCTIONS = {
    "sum": lambda x: dc.sum(x),
    "kept": lambda x: dc.sum(x, keepdims=True),
    "reproducible": lambda x: dc.sum(x, reproducible=True),
    "var": lambda x: dc.var(x, ddof=1),
    "argmin": lambda x: dc.argmin(x),
    "argmax": lambda x: dc.argmax(x),
    "nansum": lambda x: dc.nansum(x),
    "any": lambda x: dc.any(x),
    "norm": lambda x: dc.norm(x),
    "ptp": lambda x: dc.ptp(x),
    "deep": lambda x: dc.max(x, split_every=2),
    "fused": lambda x: (dc.sum(x) - 3) * 2,
    "counted": lambda x: dc.count_nonzero(x),
    "described": lambda x: dc.describe(x).var + dc.describe(x).mean,
    "histogram": lambda x: dc.histogram(x, 7, (-50, 50))[0],
    "lazy range": lambda x: dc.histogram(x, 7)[0],
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("chunks", [30, (1, 0, 499, 500)])
def test_reductions_are_launches(name: str, chunks: Any) -> None:
    lazy = REDUCTIONS[name](there(ARRAY, chunks if chunks == 30 else (chunks,)))
    seen = Seen()
    assert_eq(lazy.compute(scheduler=seen.get), lazy.compute(scheduler="sync"))
    assert len(seen.launches) == (2 if name == "lazy range" else 1)
    assert not seen.others
    for launch in seen.launches:
        assert len(launch.blocks) == (34 if chunks == 30 else 4)


def test_all_axes_of_an_array_are_one_launch() -> None:
    array = ARRAY.reshape(20, 50)
    x = there(array, (6, 20))
    for lazy in (dc.sum(x), dc.argmax(x), dc.mean(x, axis=(0, 1), keepdims=True)):
        seen = Seen()
        assert_eq(lazy.compute(scheduler=seen.get), lazy.compute(scheduler="sync"))
        assert [len(launch.blocks) for launch in seen.launches] == [12]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_every_count_of_digits_is_a_launch(dtype: str) -> None:
    x = there(ARRAY.astype(dtype), 100)
    lazy = dc.median(x)
    seen = Seen()
    assert_eq(lazy.compute(scheduler=seen.get), np.median(ARRAY.astype(dtype)))
    assert [len(launch.blocks) for launch in seen.launches] == [10] * len(seen.launches)
    collecting = [launch for launch in seen.launches if launch.op is None]
    # Counts, and what is collected between the first ones.
    assert (len(seen.launches), len(collecting)) == ((4, 1) if dtype == "f4" else (7, 2))
    assert not seen.others


SCANS = {
    "cumsum": lambda x: dc.cumsum(x),
    "cumprod": lambda x: dc.cumprod(x / 50),
    "cummax": lambda x: dc.cummax(x),
    "nancumsum": lambda x: dc.nancumsum(x),
    "logcumsumexp": lambda x: dc.logcumsumexp(x),
    "reverse": lambda x: dc.cumsum(x, reverse=True),
    "exclusive": lambda x: dc.cumsum(x, exclusive=True),
    "fused": lambda x: dc.cumsum(x + 1) * 2,
    "flat": lambda x: dc.cumsum(x.reshape(20, 50), axis=None),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("chunks", [300, 10])
def test_scans_are_launches(name: str, chunks: int) -> None:
    lazy = SCANS[name](da.from_array(ARRAY, chunks=chunks))
    seen = Seen()
    assert_eq(lazy.compute(scheduler=seen.get), lazy.compute(scheduler="sync"))
    (launch,) = seen.launches
    assert all(launch.wanted)
    assert len(launch.outputs) == len(launch.blocks) >= 2


def test_a_scan_over_levels_of_groups_is_one_launch() -> None:
    array = numbers(1100)
    seen = Seen()
    assert_eq(dc.cumsum(there(array, 1)).compute(scheduler=seen.get), array.cumsum())
    assert [len(launch.blocks) for launch in seen.launches] == [1100]


@pytest.mark.parametrize("where", [slice(0, 5), slice(500, 520), slice(900, None), slice(0, 400)])
def test_parts_of_a_scan_need_what_is_before_them(where: slice) -> None:
    lazy = dc.cumsum(da.from_array(ARRAY, chunks=10))[where]
    seen = Seen()
    assert_eq(lazy.compute(scheduler=seen.get), ARRAY.cumsum()[where])
    if where == slice(0, 5):
        assert not seen.launches
        return
    (launch,) = seen.launches
    stop = where.stop or 1000
    assert [block[1] for block in launch.blocks] == list(range(len(launch.blocks)))
    assert len(launch.blocks) >= stop // 10
    assert sum(launch.wanted) == (stop - where.start) // 10


def test_a_launch_is_a_task_and_one_for_each_result() -> None:
    x = da.from_array(ARRAY, chunks=10).persist(scheduler="sync")
    seen = Seen()
    dc.cumsum(x).persist(scheduler=seen.get)
    assert seen.tasks == 100 + 1 + 100
    dc.sum(x).persist(scheduler=seen.get)
    assert seen.tasks == 100 + 1 + 2


def test_several_launches_follow_one_another() -> None:
    x = da.from_array(ARRAY, chunks=100)
    lazy = dc.sum(dc.cummax(dc.cumsum(x) - dc.mean(x)))
    seen = Seen()
    assert_eq(lazy.compute(scheduler=seen.get), lazy.compute(scheduler="sync"))
    assert len(seen.launches) == 4


OTHERS = {
    "it leaves axes": lambda x: dc.sum(x, axis=0),
    "it takes a mask": lambda x: dc.sum(x, where=x > 0),
    "it has several axes": lambda x: dc.cumsum(x, axis=0),
    "it has segments": lambda x: dc.cumsum(x[:, 0], segments=np.arange(20) % 3 == 0),
    "longer by one": lambda x: dc.cumsum(x[:, 0], include_initial=True),
    "two passes read": lambda x: dc.cumsum(x[:, 0], method="recompute"),
    "weights take": lambda x: dc.histogram(x, 5, (0, 1), weights=x)[0],
    "several coordinates": lambda x: dc.histogram2d(x[:, 0], x[:, 1], 5, [(0, 1), (0, 1)])[0],
    "more than one table": lambda x: dc.histogram(x, 5, (0, 1), flow=True)[0],
    "the largest integer": lambda x: dc.bincount(abs(x[:, 0]).astype(int), minlength=60),
    "moments of a high order": lambda x: dc.moment(x, 5),
    "made on the way": lambda x: dc.sum(x + 1),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_what_is_no_launch_says_why_and_computes(reason: str) -> None:
    lazy = OTHERS[reason](there(ARRAY.reshape(20, 50), (6, 20)))
    seen = Seen()
    assert_eq(lazy.compute(scheduler=seen.get), lazy.compute(scheduler="sync"))
    assert not seen.launches
    assert seen.others
    assert all(reason in str(why) for why in seen.others.values())


def test_one_chunk_is_no_launch() -> None:
    x = da.from_array(ARRAY, chunks=-1)
    for lazy in (dc.sum(x), dc.cumsum(x), dc.sum(da.from_array(ARRAY.reshape(2, 500), 1), axis=1)):
        seen = Seen()
        assert_eq(lazy.compute(scheduler=seen.get), lazy.compute(scheduler="sync"))
        assert not seen.launches


def test_a_reduction_of_what_stays_in_memory_is_a_launch() -> None:
    x = da.from_array(ARRAY, chunks=100) + 0
    for lazy, launches in (
        (x - dc.mean(x), 1),
        (dc.sum(dc.cumsum(x)), 2),
        (dc.sum(dc.cumsum(x) * 2), 1),
        (dc.sum(x) + dc.max(x), 0),
    ):
        seen = Seen()
        assert_eq(lazy.compute(scheduler=seen.get), lazy.compute(scheduler="sync"))
        assert len(seen.launches) == launches
    seen = Seen()
    dask.compute(x, dc.sum(x), scheduler=seen.get)
    assert len(seen.launches) == 1


@pytest.mark.parametrize("work", [lambda x: dc.sum(x + 1), lambda x: (x + 1) * 2])
def test_a_graph_without_launches_stays_as_it_is(work: Callable[[da.Array], da.Array]) -> None:
    (lazy,) = dask.optimize(work(da.from_array(ARRAY, chunks=10)))
    graph = convert_legacy_graph(dict(lazy.__dask_graph__()))
    tasks = dict(graph)
    found = find_launches(graph, set(dask.core.flatten(lazy.__dask_keys__())))
    assert not found.launches
    assert found.graph is graph
    assert graph == tasks


def test_chunks_that_are_computed_are_not_computed_again() -> None:
    generator = np.random.default_rng(0)
    x = da.map_blocks(lambda: generator.random(5), chunks=((5,) * 4,), dtype="f8")
    (total,) = dask.optimize(dc.sum(x))
    held = x.persist(scheduler="sync")
    seen = Seen()
    _, again = dask.compute(total, held, scheduler=seen.get)
    np.testing.assert_array_equal(again, held.compute(scheduler="sync"))


def test_data_may_have_aliases() -> None:
    x = there(ARRAY, 100)
    graph = dict(dc.sum(x).__dask_graph__())
    for i in range(10):
        graph["data", i] = DataNode(("data", i), graph[x.name, i])
        graph[x.name, i] = ("data", i)
    total = dc.sum(x)
    seen = Seen()
    assert seen.get(graph, (total.name,)) == ARRAY.sum()
    assert len(seen.launches) == 1


@pytest.mark.parametrize("name", [*REDUCTIONS, *SCANS])
def test_graphs_over_chunks_in_memory_are_run_in_the_calling_thread(name: str) -> None:
    lazy = (REDUCTIONS | SCANS)[name](there(ARRAY, 30))
    counts: list[int] = []

    def get(dsk: Any, keys: Any, **_: Any) -> Any:
        layers = inline.built(dsk)
        graph = convert_legacy_graph({k: v for layer in layers or [] for k, v in layer.items()})
        if layers is None or not inline.is_quick(graph):
            return get_sync(dsk, keys)
        wanted = set(dask.core.flatten([keys]))
        found = find_launches(graph, wanted)
        counts.append(len(found.launches))
        for launch in found.launches:
            put_in(found.graph, launch, partial(Seen.run, launch))
        results = inline.run(found.graph, wanted, lambda task, data: task(data))
        assert results.keys() == wanted
        return nested_get(keys, results)

    (result,) = dask.compute(lazy, scheduler=get)
    np.testing.assert_array_equal(result, dask.compute(lazy, scheduler="sync")[0])
    # Those without have steps of Dask's that might take long.
    wanted = {"described": [], "flat": [], "lazy range": [2]}
    assert counts == wanted.get(name, [1])


@pytest.mark.parametrize("q", [0.5, [0.1, 0.25, 0.9]])
@pytest.mark.parametrize("dtype", ["i4", "f4", "f8"])
def test_quantiles_are_launches_one_after_the_other(dtype: str, q: Any) -> None:
    array = numbers().astype(dtype)
    lazy = dc.quantile(there(array, 30), q)
    seen = Seen()
    (found,) = dask.compute(lazy, scheduler=seen.get)
    np.testing.assert_array_equal(found, np.quantile(array, q))
    done = ["count" if one.op else "collect" for one in seen.launches]
    assert done.count("count") >= 2
    assert "collect" in done
