"""Chunks in the memory of a GPU are joined: the same results in the same chunks, in fewer tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task, convert_legacy_graph
from dask.utils import ensure_dict
from support.host_cupy import backend as host_cupy
from support.host_cupy.gpus import FakeGpus

import dask_coop as dc
from dask_coop.algebra.strategies import AUTO, MULTICHUNK
from dask_coop.chunks.numpy import backend
from dask_coop.graph import joined
from dask_coop.node import find, inline
from dask_coop.node.find import find_launches

ARRAY = np.random.default_rng(0).random((100, 60)).astype("f4")
LABELS = (ARRAY * 5).astype("i4")
CHUNKS = [(10, 60), (10, 20), (7, 13), ((0, 3, 47, 50), (60,)), (100, 6)]

#: Calls of an array in memory, and of labels in the same chunks.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, _: dc.sum(x),
    "std": lambda x, _: dc.std(x, axis=0),
    "argmax": lambda x, _: dc.argmax(x, axis=1),
    "argmin of all": lambda x, _: dc.argmin(x),
    "min, kept": lambda x, _: dc.min(x, axis=0, keepdims=True),
    "where": lambda x, by: dc.sum(x, axis=1, where=by),
    "cumsum": lambda x, _: dc.cumsum(x, axis=0),
    "cumsum, reversed": lambda x, _: dc.scan(x, np.maximum, axis=1, reverse=True),
    "with the initial": lambda x, _: dc.cumulative_sum(x, axis=0, include_initial=True),
    "flat": lambda x, _: dc.cumsum(x),
    "ffill": lambda x, _: dc.ffill(x, axis=0),
    "window": lambda x, _: dc.move_mean(x, 7, axis=0),
    "unique": lambda x, by: dc.unique(by),
    "inverse": lambda x, by: dc.unique(by, return_inverse=True)[1],
    "counts": lambda x, by: dc.value_counts(by)[1],
    "isin": lambda x, by: dc.isin(by, [1, 3]),
    "digitize": lambda x, _: dc.digitize(x, np.linspace(0, 1, 5)),
    "histogram": lambda x, _: dc.histogram(x, 8, (0, 1))[0],
    "by line": lambda x, _: dc.histogram(x, 8, (0, 1), axis=1)[0],
    "weights": lambda x, by: dc.histogram(x, 8, (0, 1), weights=by)[0],
    "two coordinates": lambda x, by: dc.histogram2d(x, by, 4, ((0, 1), (0, 5)))[0],
    "topk": lambda x, _: dc.topk(x, 3, axis=0),
    "argtopk": lambda x, _: dc.argtopk(x, 3, axis=1),
    "median": lambda x, _: dc.median(x),
    "quantiles": lambda x, _: dc.quantile(x, [0.1, 0.5], axis=1),
    "groups": lambda x, by: dc.groupby_reduce(x, by, func="mean", expected_groups=np.arange(5))[0],
    "known groups": lambda x, _: dc.groupby_reduce(x, np.arange(60) % 5, func="max")[0],
    "sort": lambda x, _: dc.sort(x, axis=0),
    "sort of all": lambda x, _: dc.sort(x, axis=None),
    "order": lambda x, _: dc.argsort(x, axis=1),
    "order by two keys": lambda x, by: dc.lexsort((x, by), axis=0),
    "ranks": lambda x, _: dc.rankdata(x, axis=1),
    "ranks of all": lambda x, _: dc.rankdata(x),
    "deviations": lambda x, _: dc.mad_std(x, axis=0),
    "deviation of all": lambda x, _: dc.median_abs_deviation(x, None),
    "pairs of values": lambda x, by: dc.crosstab(by, by).count,
    "percentile of a score": lambda x, _: dc.percentileofscore(x, 0.5),
    "covariances": lambda x, _: dc.cov(x),
    "covariances of columns": lambda x, _: dc.cov(x, rowvar=False),
    "correlations": lambda x, _: dc.corrcoef(x),
    "fits": lambda x, _: dc.polyfit(np.arange(100.0), x, 2),
    "binned": lambda x, by: dc.binned_statistic(x, by, "mean", 5, (0, 1)).statistic,
    "numbers of bins": lambda x, by: dc.binned_statistic_2d(x, by, x, "sum", 5).binnumber,
    "labels": lambda x, by: dc.label(by)[0],
    "number of labels": lambda x, by: dc.label(by)[1],
    "filter": lambda x, _: dc.lfilter([1.0, 2.0], [1.0, 0.5], x, 0),
    "delays": lambda x, _: dc.lfilter([1.0, 2.0], [1.0, 0.5], x, 0, zi=np.ones((1, 60)))[1],
    "sections": lambda x, _: dc.sosfilt([[1.0, 2.0, 0.0, 1.0, 0.5, 0.0]], x, 1),
    "scan of groups": lambda x, _: dc.groupby_scan(x, np.arange(60) % 5, func="cumsum"),
}

#: Those that multiply matrices, or import what does.
OF_MATRICES = {"covariances", "covariances of columns", "correlations", "fits"}
OF_MATRICES |= {"filter", "delays", "sections"}

#: Those that gather lines, or flatten arrays, in chunks of their own.
MERGING = {"quantiles", "scan of groups", "flat", "sort", "order", "order by two keys"}
MERGING |= {"ranks of all", "deviations"}

#: Those that take chunks apart, or matrices of the host, which made-up GPUs do not multiply.
APART = {"with the initial", "filter", "delays", "sections"}

#: Those that put chunks in order one by one.
ORDERING = {"sort", "sort of all", "order", "order by two keys", "ranks of all"}


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Join chunks of NumPy, as those on a GPU are."""
    monkeypatch.setattr(backend, "most_joined", lambda x, ordered: 4 * 40 * 60)


def in_memory(array: Any, chunks: Any) -> da.Array:
    return da.from_array(array, chunks=chunks).persist(scheduler="sync")


def count(x: da.Array) -> int:
    """Return the number of tasks that join chunks."""
    tasks = ensure_dict(x.dask).values()
    return sum(isinstance(task, Task) and task.func is joined.join for task in tasks)


@pytest.mark.each(2)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_results_and_their_chunks_are_those_of_the_array(
    name: str, chunks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, by = in_memory(ARRAY, chunks), in_memory(LABELS, chunks)
    if name == "where":
        by = in_memory(LABELS > 2, chunks)
    wanted = CALLS[name](x, by)
    assert not count(wanted)
    monkeypatch.setattr(backend, "most_joined", lambda x, ordered: 4 * 40 * 60)
    result = CALLS[name](x, by)
    if name == "with the initial":
        assert not count(result)
        return
    assert count(result)
    known = all(n == n for along in wanted.chunks for n in along)
    # These merge chunks themselves.
    merging = name in MERGING and chunks != (10, 60)
    assert result.chunks == wanted.chunks or not known or merging
    assert result.dtype == wanted.dtype
    got, expected = dask.compute(result, wanted, scheduler="sync")
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    for index in np.ndindex(*result.numblocks) if known and result.ndim else ():
        block = result.blocks[index].compute(scheduler="sync")
        assert block.shape == tuple(n[i] for n, i in zip(result.chunks, index, strict=True))


@pytest.mark.usefixtures("joining")
def test_an_array_for_the_result_is_the_one_that_is_passed() -> None:
    x, out = in_memory(ARRAY, (10, 60)), in_memory(np.zeros_like(ARRAY), (10, 60))
    assert dc.cumsum(x, 0, None, out) is out
    np.testing.assert_allclose(out.compute(scheduler="sync"), ARRAY.cumsum(0), rtol=1e-5)


@pytest.mark.usefixtures("joining")
def test_neighbours_are_joined_along_the_first_axes_first() -> None:
    x = in_memory(ARRAY, (10, 20))
    rows = joined.joined([x])
    assert rows is not None
    assert rows.after == ((100,), (20, 20, 20))
    few = joined.joined([in_memory(ARRAY[:40], (10, 20))])
    assert few is not None
    assert few.after == ((40,), (60,))
    assert joined.joined([in_memory(ARRAY, (10, 60))]).after == ((40, 40, 20), (60,))  # type: ignore[union-attr]


@pytest.mark.usefixtures("joining")
@pytest.mark.parametrize(
    "arrays",
    {
        "lazy": lambda: [in_memory(ARRAY, 10) + 1],
        "one chunk": lambda: [in_memory(ARRAY, 100)],
        "other chunks": lambda: [in_memory(ARRAY, 10), in_memory(ARRAY, 20)],
        "one of them lazy": lambda: [in_memory(ARRAY, 10), in_memory(ARRAY, 10) + 1],
        "another dtype": lambda: [
            da.map_blocks(lambda b: b.astype("f8"), in_memory(ARRAY, 10), dtype="f4").persist(
                scheduler="sync"
            )
        ],
        "unknown lengths": lambda: [
            dc.compress(in_memory(ARRAY[0] > 0.5, 10), in_memory(ARRAY[0], 10)).persist()
        ],
        # The chunks of a result would not tell which axis they are of.
        "ambiguous": lambda: [in_memory(ARRAY[:60], ((10,) * 6, (20, 40)))],
        "masked": lambda: [in_memory(np.ma.array(ARRAY, mask=ARRAY > 0.5), 10)],
        "no elements": lambda: [in_memory(ARRAY[:0], 10)],
    }.values(),
)
def test_other_arrays_stay_as_they_are(
    arrays: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined, "_united", lambda sizes, most: [(0, len(sizes))])
    assert joined.joined(arrays()) is None


@pytest.mark.usefixtures("joining")
def test_large_chunks_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "LARGE_BYTES", 4 * 10 * 60)
    assert joined.joined([in_memory(ARRAY, (10, 60))]) is None
    assert joined.joined([in_memory(ARRAY, (9, 60))]) is not None


@pytest.mark.usefixtures("joining")
def test_chunks_that_go_to_workers_stay_as_they_are() -> None:
    x = in_memory(ARRAY, (10, 60))
    with dask.config.set(scheduler="dask.distributed"):
        assert joined.joined([x]) is None
    assert joined.joined([x]) is not None


@pytest.mark.usefixtures("joining")
@pytest.mark.parametrize("family", ["scan", "histogram"])
def test_chunks_that_are_to_go_together_stay_as_they_are(family: str) -> None:
    x = in_memory(ARRAY, (10, 60))
    with dask.config.set({f"coop.strategy.{family}": MULTICHUNK}):
        assert joined.joined([x]) is None
    with dask.config.set({f"coop.strategy.{family}": AUTO}):
        assert joined.joined([x]) is not None


@pytest.mark.usefixtures("joining")
def test_an_array_for_the_result_is_filled() -> None:
    out = da.zeros(60, chunks=60)
    x = in_memory(ARRAY, (10, 60))
    dc.sum(x, axis=0, out=out)
    np.testing.assert_allclose(out.compute(), ARRAY.sum(0), rtol=1e-5)


@pytest.mark.usefixtures("joining")
def test_explain_tells_that_chunks_are_joined() -> None:
    rows = dc.explain(dc.cumsum(in_memory(ARRAY, (10, 60)), axis=0))
    assert [row.operation for row in rows] == ["array-joined", "cumsum"]
    assert rows[0].method.startswith("10 chunks in the memory of a GPU, joined to 3; 3 tasks")


@pytest.mark.usefixtures("joining")
@pytest.mark.parametrize("name", ["sum", "argmin of all", "histogram"])
def test_launches_take_the_chunks_themselves(name: str) -> None:
    x = in_memory(ARRAY, (10, 20))
    lazy = CALLS[name](x, None)
    graph = ensure_dict(lazy.dask)
    wanted = {*dask.core.flatten(lazy.__dask_keys__())}
    (launch,) = find_launches(graph, wanted).launches
    assert len(launch.blocks) == 30
    found = find_launches(graph, wanted)
    blocks = [found.graph[key].value for key in launch.blocks]
    kept = [x.blocks[i, j].compute() for j in range(3) for i in range(10)]
    for block, of in zip(blocks, kept, strict=True):
        np.testing.assert_array_equal(block, of)
    if launch.origins is not None:
        starts = [(10 * i, 20 * j) for j in range(3) for i in range(10)]
        assert [tuple(at for at, _ in origin) for origin in launch.origins] == starts
    # The replaced tasks join the chunks.
    assert count(lazy) == 3
    assert sum(task.func is joined.join for task in launch.plain.values()) == 3


@pytest.mark.usefixtures("joining")
@pytest.mark.parametrize("sizes", [(1, 60), (1, 20)])
def test_many_chunks_are_joined_rather_than_launched_over(
    sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "_MOST_APART", 10)
    lazy = dc.sum(in_memory(ARRAY, sizes))
    found = find_launches(ensure_dict(lazy.dask), {*dask.core.flatten(lazy.__dask_keys__())})
    assert not found.launches
    assert str(*found.others.values()) == "its chunks are many and small, and are joined first"


@pytest.mark.parametrize("room", [1, 4 * 6000, 4 * 5999])
def test_large_chunks_to_sort_are_joined_if_all_have_room(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "most_joined", lambda x, ordered: room if ordered else 4 * 2400)
    monkeypatch.setattr(joined, "LARGE_BYTES", 4 * 600)
    x = in_memory(ARRAY.reshape(-1), 600)
    assert count(dc.sort(x)) == (room == 4 * 6000)
    assert dc.sort(x).chunks == x.chunks or room != 4 * 6000
    np.testing.assert_array_equal(dc.sort(x), np.sort(ARRAY, None))
    assert not count(dc.sum(x))
    assert not count(dc.argsort(x))
    assert not count(dc.sort(in_memory(ARRAY, (10, 60)), axis=0))
    # Smaller chunks are joined as those of other functions are.
    small = in_memory(ARRAY.reshape(-1), 300)
    assert count(dc.sort(small)) == (1 if room == 4 * 6000 else 3)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_coarsened_chunks_are_those_of_the_array(
    chunks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, windows = in_memory(ARRAY, chunks), {0: 2, 1: 5}
    alone = dc.coarsen(np.mean, x, windows)
    monkeypatch.setattr(backend, "most_joined", lambda x, ordered: 4 * 40 * 60)
    result = dc.coarsen(np.mean, x, windows)
    assert not count(alone)
    # Others are cut at borders of windows first.
    assert (count(result) > 0) == (chunks in {(10, 60), (10, 20)})
    assert result.chunks == alone.chunks
    np.testing.assert_allclose(result, alone, rtol=1e-6)


@pytest.mark.usefixtures("joining")
def test_a_node_runs_them_in_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_coop.node import node as nodes

    gpus = FakeGpus(1)
    gpus.device_of = lambda x: 0 if isinstance(x, np.ndarray) else None  # type: ignore[method-assign]
    monkeypatch.setattr(nodes, "_peers", lambda: gpus)
    x = in_memory(ARRAY, (10, 60))
    monkeypatch.setattr(dask.local, "get_async", None)
    with dc.Node():
        result = dc.std(x, axis=0).compute()
        scanned = dc.cumsum(x, axis=0).persist()
        assert scanned.numblocks == (10, 1)
        np.testing.assert_allclose(scanned.compute(), np.cumsum(ARRAY, 0), rtol=1e-5)
    np.testing.assert_allclose(result, ARRAY.std(0), rtol=1e-5)


@pytest.mark.parametrize("chunks", [(10, 60), (10, 20), (7, 13)])
def test_a_result_that_was_cut_is_not_put_together_again(
    chunks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "most_joined", lambda x, ordered: 1 << 30)
    x = in_memory(ARRAY, chunks)
    y = dc.cumsum(x, axis=0)
    parts = y.blocks[1:], y.blocks[::-1], y
    wanted = [part.compute(scheduler="sync") for part in parts]
    joined_again: list[Any] = []

    def get(dsk: Any, keys: Any, **_: Any) -> Any:
        layers = inline.built(dsk)
        assert layers is not None
        graph = convert_legacy_graph({k: v for layer in layers for k, v in layer.items()})

        def call(task: Any, data: Any) -> Any:
            joined_again.extend([task] * (task.func is inline.finalize))
            return task(data)

        results = inline.run(graph, dask.core.flatten([keys]), call)
        return dask.local.nested_get(keys, results)

    for part, expected, joins in zip(parts, wanted, (1, 1, 0), strict=True):
        joined_again.clear()
        np.testing.assert_array_equal(part.compute(scheduler=get), expected)
        assert len(joined_again) == joins


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("chunks", [*CHUNKS, (33, 7)], ids=str)
def test_chunks_are_joined_on_a_gpu(cp: Any, chunks: Any, dtype: str) -> None:
    array = (ARRAY * 100).astype(dtype)
    x = da.from_array(array, chunks=chunks)
    x = x.map_blocks(cp.asarray, meta=cp.empty((0, 0), dtype)).persist(scheduler="sync")
    result = joined.joined([x])
    assert result is not None
    (whole,) = result.arrays.values()
    assert whole.numblocks == (1, 1)
    np.testing.assert_array_equal(whole.compute(scheduler="sync").get(), array)


@pytest.mark.gpu
def test_chunks_of_three_axes_in_any_layout_are_joined_on_a_gpu(cp: Any) -> None:
    array = np.arange(4 * 6 * 10, dtype="f4").reshape(4, 6, 10)
    for chunks in ((2, 3, 5), (1, 6, 10), (4, 2, 10), (4, 6, 3)):
        x = da.from_array(array, chunks=chunks)
        x = x.map_blocks(lambda b: cp.asarray(b, order="F"), meta=cp.empty((0, 0, 0), "f4"))
        result = joined.joined([x.persist(scheduler="sync")])
        assert result is not None
        (whole,) = result.arrays.values()
        np.testing.assert_array_equal(whole.compute(scheduler="sync").get(), array)


@pytest.mark.gpu
@pytest.mark.parametrize("scheduler", ["sync", "threads", "node"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.cublas) if name in OF_MATRICES else name
        for name in CALLS
        if name != "with the initial"
    ],
)
def test_calls_on_a_gpu_make_as_few_launches_as_for_one_chunk(
    cp: Any, name: str, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask_coop.cuda import launch

    launches: list[str] = []
    monkeypatch.setattr(launch, "count", launches.append)
    labels = LABELS > 2 if name == "where" else LABELS
    expected = CALLS[name](in_memory(ARRAY, 100), in_memory(labels, 100)).compute()
    numbers = []
    with dc.Node([0]) as node:
        get = node.get if scheduler == "node" else scheduler
        for n in (100, 10, 5):
            x, by = (
                da.from_array(a, chunks=(n, 60))
                .map_blocks(cp.asarray, meta=cp.empty((0, 0), a.dtype))
                .persist(scheduler="sync")
                for a in (ARRAY, labels)
            )
            launches.clear()
            result = CALLS[name](x, by).compute(scheduler=get)
            numbers.append(len(launches))
            np.testing.assert_allclose(cp.asnumpy(result), expected, rtol=1e-5)
    # At most two arrays are joined.
    assert numbers[1] == numbers[2] <= numbers[0] + 2


# Chunks that tasks copy to a GPU, and those of results of joined ones.


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have chunks be copied to a GPU that is made up, and joined there."""
    with host_cupy.in_cupys_place(FakeGpus(1)):
        monkeypatch.setattr(host_cupy, "most_joined", lambda x, ordered: 4 * 40 * 60)
        yield


def made(x: da.Array) -> int:
    """Return the number of tasks that join chunks which others make."""
    tasks = ensure_dict(dask.optimize(x)[0].dask).values()
    return sum(task.func is joined.join_made for task in map(unfused, tasks) if task)


def unfused(task: Any) -> Any:
    inner = task.args[0].values() if isinstance(task, Task) and task.has_subgraph() else [task]
    found = [step for step in inner if isinstance(step, Task)]
    return next((step for step in found if step.func is joined.join_made), found and found[0])


@pytest.mark.usefixtures("copying")
@pytest.mark.each(2)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("name", [name for name in CALLS if name not in APART])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["as read", "transposed"])
def test_copied_chunks_are_joined(
    name: str, chunks: Any, order: tuple[int, int], tmp_path: Path
) -> None:
    back = tuple(np.argsort(order).tolist())

    def stored(array: Any, path: str) -> da.Array:
        np.save(tmp_path / path, array.transpose(back))
        cut = da.from_array(array, chunks=chunks).transpose(back).chunks
        return dc.from_npy(tmp_path / path, cut).transpose(order)

    labels = LABELS > 2 if name == "where" else LABELS
    x, by = stored(ARRAY, "x.npy"), stored(labels, "by.npy")
    wanted = CALLS[name](in_memory(ARRAY, chunks), in_memory(labels, chunks))
    result = CALLS[name](dc.to_gpu(x), dc.to_gpu(by))
    assert made(result) or name in ORDERING or chunks == (100, 6)
    known = all(n == n for along in wanted.chunks for n in along)
    assert result.chunks == wanted.chunks or not known or name in MERGING
    got, expected = dask.compute(dc.to_host(result), wanted, scheduler="sync")
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.usefixtures("copying")
def test_functions_of_results_of_joined_chunks_take_these(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAY)
    x = dc.to_gpu(dc.from_npy(tmp_path / "x.npy", (10, 60)))
    means = dc.move_mean(x, 5, min_count=1, axis=0)
    assert means.chunks == x.chunks
    lazy = dc.nanmax(means, axis=0)
    graph = ensure_dict(lazy.dask)
    assert not any(
        isinstance(t, Task) and t.func is joined.cut for t in dask.optimize(lazy)[0].dask.values()
    )
    assert sum(isinstance(t, Task) and t.func is joined.join_made for t in graph.values()) == 3
    np.testing.assert_allclose(
        dc.to_host(lazy).compute(scheduler="sync"),
        dc.move_mean(ARRAY, 5, min_count=1, axis=0).compute().max(0),
    )
    # Two of them, and one beside an array that is not joined.
    both = dc.sum(means, axis=0, where=dc.to_gpu(dc.from_npy(tmp_path / "x.npy", (10, 60))) > 0.5)
    wanted = dc.sum(dc.move_mean(ARRAY, 5, min_count=1, axis=0), axis=0, where=ARRAY > 0.5)
    np.testing.assert_allclose(*dask.compute(dc.to_host(both), wanted, scheduler="sync"), rtol=1e-6)
    pairs = dc.average(means, axis=0, weights=dc.cumsum(x, axis=0))
    wanted = dc.average(
        dc.move_mean(ARRAY, 5, min_count=1, axis=0).compute(), axis=0, weights=ARRAY.cumsum(0)
    )
    np.testing.assert_allclose(
        *dask.compute(dc.to_host(pairs), wanted, scheduler="sync"), rtol=1e-5
    )


@pytest.mark.usefixtures("copying")
def test_a_node_gets_copied_chunks_apart(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAY)
    x = dc.to_gpu(dc.from_npy(tmp_path / "x.npy", (10, 60)))
    with dask.config.set(scheduler=dask.get):
        assert joined.joined([x]) is None
    with dask.config.set(scheduler="dask.distributed"):
        assert joined.joined([x]) is None
    assert joined.joined([x]) is not None
    np.save(tmp_path / "line.npy", ARRAY.ravel())
    line = dc.to_gpu(dc.from_npy(tmp_path / "line.npy", 600))
    assert joined.joined([line]) is not None
    assert joined.joined([line], ordered=True) is None
    assert joined.joined([x + 1]) is None


def test_a_chunk_of_another_shape_is_refused() -> None:
    blocks = [np.zeros((3, 4)), np.zeros((2, 4))]
    sizes = ((3, 3), (4,))
    with pytest.raises(
        ValueError, match=r"a chunk has shape \(2, 4\), its array declares \(3, 4\)"
    ):
        joined.join_made(blocks, sizes, np.dtype("f8"))
    whole = joined.join_made([blocks[0], blocks[0].astype("f4")], sizes, np.dtype("f8"))
    assert (whole.shape, whole.dtype) == ((6, 4), np.float64)


@pytest.mark.usefixtures("copying")
def test_explain_tells_that_copied_chunks_are_joined(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAY)
    rows = dc.explain(dc.cumsum(dc.to_gpu(dc.from_npy(tmp_path / "x.npy", (10, 60))), axis=0))
    assert any(row.method.startswith("10 chunks, joined to 3 on the GPU") for row in rows)
