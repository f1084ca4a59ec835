"""What Dask makes of our graphs: tasks that are fused with those that make their chunks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.utils import assert_eq
from dask.blockwise import Blockwise
from dask.local import get_sync

import dask_coop as dc
from dask_coop.algebra.monoids import SUM
from dask_coop.algebra.operation import Operation
from dask_coop.graph import tasks
from dask_coop.graph.fusion import Blocks
from dask_coop.node.find import find_launches

LIFT = tasks.LiftTask
#: So that there are two levels of tasks that combine.
CHUNKS = 48
SIZE = 8 * CHUNKS
ARRAY = np.random.default_rng(7).integers(-50, 50, SIZE).astype("f8")

#: Arrays in chunks, and the tasks that make a chunk of each and stay tasks of their own.
SOURCES: dict[str, tuple[Callable[[], Any], int]] = {
    "data": (lambda: da.from_array(ARRAY, chunks=8), 1),
    "data and more": (lambda: da.from_array(ARRAY, chunks=8) + 1, 1),
    "made block by block": (lambda: da.ones(SIZE, chunks=8) + 1, 0),
    "functions of blocks": (
        lambda: da.ones(SIZE, chunks=8).map_blocks(np.sin).map_blocks(np.cos),
        0,
    ),
    "random": (lambda: da.random.random(SIZE, chunks=8), 1),
    "slices": (lambda: da.ones(2 * SIZE, chunks=16)[::2], 1),
    "persisted": (lambda: da.ones(SIZE, chunks=8).persist(scheduler="sync"), 1),
}

#: Ours, and what comes closest in Dask.
RESULTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum": (dc.sum, da.sum),
    "mean": (dc.mean, da.mean),
    "var": (dc.var, da.var),
    "max": (dc.max, da.max),
    "nansum": (dc.nansum, da.nansum),
    "argmax": (dc.argmax, lambda x: da.argmax(x, axis=0)),
    "masked sum": (lambda x: dc.sum(x, where=x > 0), lambda x: da.sum(da.where(x > 0, x, 0))),
    "describe": (lambda x: dc.describe(x).var, da.var),
    "histogram": (
        lambda x: dc.histogram(x, 9, (-50, 50))[0],
        lambda x: da.histogram(x, 9, (-50, 50))[0],
    ),
    "weighted": (
        lambda x: dc.histogram(x, 9, (-50, 50), weights=x)[0],
        lambda x: da.histogram(x, 9, (-50, 50), weights=x)[0],
    ),
}


def optimized(x: Any) -> dict[Any, Any]:
    """Return the graph that a scheduler gets."""
    (best,) = dask.optimize(x)
    return dict(best.__dask_graph__())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", RESULTS)
def test_lifts_are_fused_with_what_makes_their_chunks(name: str, source: str) -> None:
    make, own = SOURCES[source]
    ours, theirs = (optimized(function(make())) for function in RESULTS[name])
    assert len(ours) <= len(theirs)
    if name != "masked sum":
        # Of a tree of 48 states: three tasks, and what ends it.
        assert len(ours) <= CHUNKS * (1 + own) + 3 + 2


@pytest.mark.parametrize("method", ["reduce-then-scan", "recompute"])
@pytest.mark.parametrize("source", SOURCES)
def test_scans_are_a_lift_and_a_scan_a_chunk(source: str, method: Any) -> None:
    make, _ = SOURCES[source]
    graph = optimized(dc.cumsum(make(), method=method))
    for kind in (tasks.UpsweepTask, tasks.DownsweepTask):
        assert sum(tasks.does_any(task, {kind}) for task in graph.values()) <= CHUNKS


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", RESULTS)
def test_tasks_of_a_chunk_take_no_more_bytes_than_dasks(name: str, source: str) -> None:
    make, _ = SOURCES[source]
    ours, theirs = (optimized(function(make())) for function in RESULTS[name])
    of_ours, of_theirs = (
        sum(len(cloudpickle.dumps(task)) for task in graph.values()) for graph in (ours, theirs)
    )
    assert of_ours <= of_theirs


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "m8[s]", "c16"])
def test_operations_name_their_dtypes(dtype: str) -> None:
    x = da.from_array(np.zeros(8).astype(dtype), chunks=4)
    found = (tasks.read(task, tasks.OurTask) for task in dict(dc.sum(x).dask).values())
    for op in {one.op for one in found if one}:
        assert pickle.loads(pickle.dumps(op)) == op
        assert len(pickle.dumps(op)) < 120


def test_dtypes_without_a_name_are_kept() -> None:
    element = np.dtype([("x", "f8")])
    op = Operation(SUM, element, np.dtype("f8"), skipna=True)
    assert pickle.loads(pickle.dumps(op)) == op


@pytest.mark.parametrize("shape", [(), (7,), (6, 7), (2, 3, 4)])
def test_blocks_are_the_tasks_that_dask_makes(shape: tuple[int, ...]) -> None:
    x = da.ones(shape, chunks=(2,) * len(shape))
    grid = dc.histogram(x, 3, weights=x)[0]
    layers = [
        layer
        for lazy in (dc.argmax(x), dc.sum(x, where=x > 1), grid)
        for layer in lazy.dask.layers.values()
        if isinstance(layer, Blocks)
    ]
    assert len(layers) == 4
    for layer in layers:
        made = dict(layer)
        general = layer._cull({key[1:] for key in made})
        assert type(general) is Blockwise
        expected = dict(general)
        assert made.keys() == expected.keys()
        for key, task in made.items():
            kind = tasks.read(task, tasks.OurTask)
            assert kind == tasks.read(expected[key], tasks.OurTask)
            assert task.dependencies == expected[key].dependencies


def test_some_blocks_need_only_theirs() -> None:
    x = da.ones((6, 8), chunks=(2, 2))
    graph = optimized(dc.argmax(x + 1, axis=1)[:2])
    assert sum(tasks.does_any(task, {LIFT}) for task in graph.values()) == 4


@pytest.mark.parametrize("name", RESULTS)
def test_layers_that_were_fused_are_taken_apart(name: str) -> None:
    ours, _ = RESULTS[name]
    lazy = ours((da.from_array(ARRAY, chunks=8) + 1).map_blocks(np.negative))
    graph = optimized(lazy)
    kinds = set(tasks.KINDS.values())
    assert any(tasks.is_fused(task) for task in graph.values())
    whole, homes = tasks.taken_apart(graph, kinds)
    found = [tasks.read(task, tasks.OurTask) for task in whole.values()]
    lifts = [one for one in found if isinstance(one, LIFT | tasks.CountTask)]
    blocks = {one.block if isinstance(one, LIFT) else one.samples[0] for one in lifts}
    assert len(lifts) == len(blocks) == CHUNKS
    assert blocks <= whole.keys()
    assert set(homes.values()) <= graph.keys()
    keys = lazy.__dask_keys__()
    assert_eq(np.array(get_sync(whole, keys)), np.array(get_sync(graph, keys)))


def test_lifts_of_what_is_fused_get_no_launch() -> None:
    # Its chunks are made one after the other, so they are not all there at a time.
    x = da.from_array(ARRAY, chunks=8).persist(scheduler="sync")
    lazy = dc.argmax((x + 1) * 2)
    found = find_launches(graph := optimized(lazy), set(lazy.__dask_keys__()))
    assert not found.launches
    assert found.graph is graph
    assert [str(reason) for reason in found.others.values()] == [
        "its chunks are made on the way, one after the other: persist them"
    ]
