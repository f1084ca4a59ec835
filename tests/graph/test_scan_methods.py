"""The methods of scans: their graphs, what they read, and how much they hold in memory."""

from __future__ import annotations

import math
import weakref
from itertools import product
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.utils import same_keys
from dask.base import key_split
from dask.task_spec import Task

import dask_coop as dc
from dask_coop.chunks.numpy import scan as numpy_scan
from dask_coop.graph.fusion import copy

GROUP = 32
METHODS = ("reduce-then-scan", "sequential", "recompute")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"exclusive": True},
    {"reverse": True},
    {"include_initial": True},
    {"segments": True},
    {"reverse": True, "segments": True},
)


class Counter:
    """How many arrays are alive, and how many were at once."""

    def __init__(self) -> None:
        self.made = self.now = self.most = 0

    def note(self, array: Any) -> Any:
        """Count an array for as long as it lives."""
        self.made, self.now = self.made + 1, self.now + 1
        self.most = max(self.most, self.now)
        weakref.finalize(array, self._drop)
        return array

    def _drop(self) -> None:
        self.now -= 1


class Nowhere:
    """A target of stores."""

    def __setitem__(self, place: Any, values: Any) -> None:
        pass


CHUNKS, LENGTH = 40, 100


@pytest.fixture(name="results")
def _results(monkeypatch: pytest.MonkeyPatch) -> Counter:
    results, scan = Counter(), numpy_scan.scan

    def noting(*args: Any) -> Any:
        values, state = scan(*args)
        results.note(values.base if values.base is not None else values)
        return values, state

    monkeypatch.setattr(numpy_scan, "scan", noting)
    return results


def source(loads: Counter) -> da.Array:
    """Return an array whose chunks are read, counted, and then worked on."""

    def load(block_id: Any) -> Any:
        return np.full(LENGTH, block_id[0])

    def decode(block: Any) -> Any:
        return loads.note(-block)

    kind = {"dtype": "i8", "meta": np.empty(0, "i8")}
    return da.map_blocks(load, chunks=((LENGTH,) * CHUNKS,), **kind).map_blocks(decode, **kind)


def marked(x: da.Array, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with head flags that are made of the chunks themselves."""
    return {**options, "segments": x % 7 == 0} if "segments" in options else options


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sequential_reads_once_and_holds_one_chunk(
    results: Counter, options: dict[str, Any]
) -> None:
    loads = Counter()
    x = source(loads)
    lazy = dc.cumsum(x, method="sequential", **marked(x, options))
    da.store(lazy, Nowhere(), scheduler="synchronous")
    assert (loads.made, loads.most) == (CHUNKS, 1)
    # The results of a step may wait for those of the next.
    assert (results.made, results.most <= 2) == (CHUNKS, True)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_recompute_reads_twice_and_holds_nothing_in_between(
    results: Counter, options: dict[str, Any]
) -> None:
    loads = Counter()
    x = source(loads)
    lazy = dc.cumsum(x, method="recompute", **marked(x, options))
    da.store(lazy, Nowhere(), scheduler="synchronous")
    assert (loads.made, loads.most) == (2 * CHUNKS - 1, 1)
    assert (results.made, results.most) == (CHUNKS, 1)


def test_threads_hold_a_chunk_each(results: Counter) -> None:
    for method in ("sequential", "recompute"):
        loads = Counter()
        lazy = dc.cumsum(source(loads), method=method)
        da.store(lazy, Nowhere(), scheduler="threads", num_workers=4)
        assert loads.most <= 4, method


def test_reduce_then_scan_reads_once_and_holds_what_it_has_read() -> None:
    loads = Counter()
    da.store(dc.cumsum(source(loads)), Nowhere(), scheduler="synchronous")
    assert loads.made == CHUNKS
    assert loads.most > CHUNKS // 2


def added(lazy: da.Array, x: da.Array) -> int:
    return len(dict(lazy.dask)) - len(dict(x.dask))


@pytest.mark.parametrize("k", [1, 2, 17, 34, 100])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_cost_no_tasks(k: int, options: dict[str, Any]) -> None:
    x = da.zeros(2 * k, chunks=2)
    below = x
    if "segments" in options:
        options = {**options, "segments": x > 0}
        below = options["segments"]
    groups = math.ceil((k - 1) / GROUP)
    spine = groups if groups <= 1 else groups + (groups - 1) + 1
    assert added(dc.cumsum(x, **options), below) == (k - 1) + k + spine
    assert added(dc.cumsum(x, method="sequential", **options), below) == 4 * k - 3


def test_no_task_is_called_getitem_and_layers_are_whole() -> None:
    for method, options, rows in product(METHODS, OPTIONS, (2, 30)):
        x = da.ones((30, 4), chunks=(rows, 3))
        lazy = dc.cumsum(x, 0, method=method, **marked(x, options))
        lazy.dask.validate()
        assert not [k for k in lazy.dask.keys() - x.dask.keys() if key_split(k) == "getitem"]


def test_the_same_call_has_the_same_keys_and_another_others() -> None:
    x = da.ones(30, chunks=4)
    names = set()
    for method in METHODS:
        for options in OPTIONS:
            first, second = (dc.cumsum(x, method=method, **marked(x, options)) for _ in range(2))
            assert same_keys(first, second)
            assert dict(first.dask).keys() == dict(second.dask).keys()
            names.add(first.name)
    assert len(names) == 3 * len(OPTIONS)


def test_segments_of_a_line_and_of_every_element_agree() -> None:
    array = np.arange(60).reshape(6, 10)
    x, heads = da.from_array(array, chunks=(2, 3)), np.arange(10) % 4 == 0
    for method in METHODS:
        line = dc.cumsum(x, 1, segments=heads, method=method)
        every = dc.cumsum(x, 1, segments=np.tile(heads, (6, 1)), method=method)
        np.testing.assert_array_equal(line.compute(), every.compute())


def sources(array: Any) -> dict[str, da.Array]:
    x = da.from_array(array, chunks=(4, 5))
    return {
        "array": x,
        "sum": x + x.sum(),
        "rechunked": x.rechunk((3, 7)),
        "sliced": x[1:-1, ::2],
        "transposed": x.T,
        "stacked": da.stack([x[0], x[1], x[2]]),
        "delayed": da.from_delayed(dask.delayed(np.asarray)(array), array.shape, array.dtype),
        "persisted": x.persist(scheduler="synchronous"),
        "reduced": x.sum(axis=0, keepdims=True, split_every=2),
        "scanned": da.cumsum(x, axis=0),
        "reshaped": x.reshape(12, 7, 2)[:, :, 0],
    }


@pytest.mark.parametrize("method", ["sequential", "recompute"])
@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_chunks_may_come_from_anywhere(method: str, scheduler: str) -> None:
    array = np.random.default_rng(5).integers(0, 99, (12, 14))
    for name, x in sources(array).items():
        expected = x.compute(scheduler="synchronous")
        for axis in (None, 0, 1):
            with dask.config.set({"optimization.fuse.active": name != "sum"}):
                result = dc.cumsum(x, axis, method=method).compute(scheduler=scheduler)
            np.testing.assert_array_equal(result, np.cumsum(expected, axis), name)


def test_a_copy_shares_data_and_no_task() -> None:
    array = np.random.default_rng(5).integers(0, 99, (12, 14))
    for name, x in sources(array).items():
        again = copy(x)
        again.dask.validate()
        np.testing.assert_array_equal(again.compute(), x.compute(), name)
        mine, its = again.dask.layers[again.name], dict(x.dask)
        assert mine.keys().isdisjoint(its)
        needed = set().union(*(task.dependencies for task in mine.values())) - mine.keys()
        assert not [key for key in needed if isinstance(its[key], Task)], name
        assert again.chunks == x.chunks
        assert dict(again.dask).keys() == dict(copy(x).dask).keys()
