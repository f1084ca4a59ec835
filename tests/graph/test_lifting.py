"""Small stored chunks are read and lifted in runs: the same results, in fewer tasks and reads."""

from __future__ import annotations

import gc
import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.array.optimization import optimize
from dask.graph_manipulation import clone
from dask.highlevelgraph import HighLevelGraph
from dask.utils import key_split

import dask_coop as dc
from dask_coop.files.codecs import Chain
from dask_coop.graph.files import lifting

ROWS, COLUMNS = 203, 20
ARRAY = np.random.default_rng(3).normal(size=(ROWS, COLUMNS)).round(2).astype("f4")
ARRAY[5, 3] = np.nan


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Have the same runs on every machine."""
    with dask.config.set(num_workers=1, scheduler="threads"):
        yield


def save(folder: Path, **options: Any) -> Any:
    """Store `ARRAY` in 21 chunks of ten rows, of which one is not stored."""
    options = {"chunks": (10, COLUMNS), "fill_value": 7, **options}
    array = zarr.create_array(folder / "x.zarr", shape=ARRAY.shape, dtype="f4", **options)
    array[:] = ARRAY
    for missing in (folder / "x.zarr").rglob("3/0"):
        missing.unlink()
    return array


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of what is decoded from now on."""
    sizes: list[int] = []
    decode = Chain.decode

    def noted(self: Any, data: Any, *more: Any) -> Any:
        sizes.append(data.nbytes)
        return decode(self, data, *more)

    monkeypatch.setattr(Chain, "decode", noted)
    return sizes


def runs(*lazy: Any) -> int:
    """Return how many tasks read and lift runs, of those that Dask runs for some results."""
    graph = HighLevelGraph.merge(*(x.dask for x in lazy))
    names = map(key_split, optimize(graph, [x.__dask_keys__() for x in lazy]))
    return sum(name.startswith("lift-from-zarr") for name in names)


def test_a_task_reads_and_lifts_several_chunks(tmp_path: Path, decoded: list[int]) -> None:
    x = dc.from_zarr(save(tmp_path))
    # Runs of 21 // 4 chunks, within those that a task combines: 5, 5, 5, 1 and 5.
    assert runs(dc.std(x)) == 5
    dc.std(x).compute()
    assert len(decoded) == 20


def test_reductions_of_a_call_share_runs(tmp_path: Path, decoded: list[int]) -> None:
    x = dc.from_zarr(save(tmp_path))
    several = dc.mean(x), dc.std(x, ddof=1), dc.argmax(x), dc.histogram(x, 5, (0, 1))[0]
    assert runs(*several) == 5
    dask.compute(*several)
    assert len(decoded) == 20


@pytest.mark.parametrize(
    "others",
    [
        lambda x: [x + 1],
        lambda x: [x, dc.cumsum(x, axis=0)],
        lambda x: [dc.histogram(x, 5, (0, 1), weights=x)[0], da.nansum(x)],
    ],
)
def test_chunks_that_others_need_are_read_once(
    others: Any, tmp_path: Path, decoded: list[int]
) -> None:
    x = dc.from_zarr(save(tmp_path))
    several = [dc.nanmean(x), dc.nanstd(x), *others(x)]
    assert runs(*several) == 0
    got = dask.compute(*several)
    assert len(decoded) == 20
    np.testing.assert_array_equal(got[0], dc.nanmean(x).compute())
    np.testing.assert_array_equal(got[1], dc.nanstd(x).compute())


def test_chunks_of_different_runs_are_read_once(tmp_path: Path, decoded: list[int]) -> None:
    x = dc.from_zarr(save(tmp_path, chunks=(34, 5)))
    several = [dc.max(x, axis=0, split_every=2), dc.nanmean(x)]
    assert runs(several[0]) > 0
    got = dask.compute(*several)
    assert len(decoded) == zarr.open_array(tmp_path / "x.zarr").nchunks_initialized
    for result, alone in zip(got, several, strict=True):
        np.testing.assert_array_equal(result, alone.compute())


CALLS: dict[str, Callable[[Any], Any]] = {
    "sum": dc.sum,
    "sum, float64": lambda x: dc.sum(x, dtype="f8"),
    "nanmean": lambda x: dc.nanmean(x, axis=0),
    "std": lambda x: dc.std(x, axis=(0, 1), keepdims=True),
    "nanvar by line": lambda x: dc.nanvar(x, axis=1),
    "argmax": lambda x: dc.argmax(x),
    "nanargmin": lambda x: dc.nanargmin(x, axis=0),
    "min": lambda x: dc.nanmin(x),
    "reproducible": lambda x: dc.sum(x, reproducible=True),
    "describe": lambda x: dc.describe(x).mean,
    "skew": lambda x: dc.skew(x, axis=None),
    "any": lambda x: dc.any(x),
    "pairs of states": lambda x: dc.mean(x, split_every=2),
    "topk": lambda x: dc.topk(x, 3, axis=0),
    "distinct": lambda x: dc.unique(x),
    "histogram": lambda x: dc.histogram(x, 5, (0, 1))[0],
    "histogram by line": lambda x: dc.histogram(x, 5, (0, 1), axis=1)[0],
    "median": dc.nanmedian,
    "ufunc": lambda x: dc.reduce(x, np.maximum),
}

STORED: dict[str, dict[str, Any]] = {
    "zstd": {},
    "none": {"compressors": None},
    "columns": {"chunks": (7, 6)},
    "shards": {"chunks": (5, 10), "shards": (10, 20)},
    "big-endian": {"dtype": ">f4"},
    "F": {"zarr_format": 2, "order": "F"},
}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("call", CALLS)
def test_results_have_the_bits_of_chunks_in_memory(call: str, stored: str, tmp_path: Path) -> None:
    options = {"dtype": "f4", "chunks": (10, COLUMNS), "fill_value": 7, **STORED[stored]}
    array = zarr.create_array(tmp_path / "x.zarr", shape=ARRAY.shape, **options)
    array[:] = ARRAY
    x = dc.from_zarr(array)
    in_memory = da.from_array(np.asarray(array[:]), chunks=x.chunks)
    got, expected = CALLS[call](x), CALLS[call](in_memory)
    np.testing.assert_array_equal(got.compute(), expected.compute())
    assert got.chunks == expected.chunks or np.isnan(got.shape).any()


@pytest.mark.parametrize("chunks", [(20, 20), (15, 7), (8, 20)])
def test_chunks_other_than_the_stored_ones(chunks: Any, tmp_path: Path) -> None:
    array = save(tmp_path)
    x = dc.from_zarr(array, chunks=chunks)
    in_memory = da.from_array(array[:], chunks=chunks)
    assert dc.nanstd(x).compute() == dc.nanstd(in_memory).compute()


def test_a_state_that_is_a_view_of_its_chunk(tmp_path: Path) -> None:
    first = dc.Monoid("first", lambda a, b: a, 0, "f4", commutative=False, check=False)
    array = save(tmp_path, chunks=(20, 1))
    x = dc.from_zarr(array)
    got = dc.reduce(x, first, axis=0, split_every=4)
    assert runs(got) > 0
    np.testing.assert_array_equal(got.compute(), array[0])


def test_few_or_large_chunks_are_read_apart(tmp_path: Path, monkeypatch: Any) -> None:
    array = save(tmp_path)
    x = dc.from_zarr(array)
    assert lifting.run_length(x, 8) == 5
    assert lifting.run_length(x, float("nan")) == 1
    assert lifting.run_length(x, 10 * COLUMNS) == 1
    assert lifting.run_length(x + 1, 8) == 1
    assert lifting.run_length(dc.from_zarr(array, inline_array=True), 8) == 1
    for settings in ({"num_workers": 5}, {"scheduler": "distributed"}):
        with dask.config.set(settings):
            assert lifting.run_length(x, 8) == 1
    with dask.annotate(priority=1):
        assert lifting.run_length(x, 8) == 1
    monkeypatch.setattr(lifting, "RUN_BYTES", 2000)
    assert lifting.run_length(x, 8) == 2


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_chunks_in_memory_in_the_place_of_stored_ones(order: Any, tmp_path: Path) -> None:
    x = dc.from_zarr(save(tmp_path))
    held = x.persist()
    # The layer of one graph takes the place of that of another.
    several = [dc.nanmean(x), dc.nanstd(x, split_every=2), da.nansum(held)]
    for y in several[:2]:
        # Dask culls layers that do not depend on one another in any order.
        (name,) = (n for n, layer in y.dask.layers.items() if type(layer) is lifting.Combines)
        assert f"original-{x.name}" in y.dask.dependencies[name]
        y.dask.validate()
    expected = [y.compute() for y in several]
    got = dask.compute(*(several[i] for i in order))
    assert [*got] == [expected[i] for i in order]


def test_graphs_that_are_optimized_copied_or_not_optimized(tmp_path: Path) -> None:
    x = dc.from_zarr(save(tmp_path))
    mean, expected = dc.nanmean(x), dc.nanmean(x).compute()
    assert runs(mean) == 5
    (optimized,) = dask.optimize(mean)
    sent = pickle.loads(pickle.dumps(mean))
    for other in (optimized, dc.nanmean(clone(x)), sent, optimized + 0 * mean):
        assert other.compute() == expected
    assert runs(sent) == 5
    assert dask.compute(mean, optimize_graph=False) == (expected,)
    assert mean.compute(scheduler="processes") == expected
    del mean, optimized, sent, other
    gc.collect()
    assert len(lifting._culled.layers) == 0


def test_workers_of_a_cluster_get_runs(tmp_path: Path) -> None:
    from support.clusters import cluster

    x = dc.from_zarr(save(tmp_path))
    several = dc.nanmean(x), dc.nanstd(x)
    expected = dask.compute(*several)
    with cluster(1, threads=2) as client:
        assert client.gather(client.compute(several)) == [*expected]


MEMORY = """
import resource, sys
import dask, numpy as np
import dask_coop as dc
small, large = (dc.from_zarr(path) for path in sys.argv[1:])
with dask.config.set(num_workers=2):
    dask.compute(dc.sum(small), dc.std(small), scheduler="threads")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dask.compute(dc.sum(large), dc.std(large), scheduler="threads")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_of_three_chunks_a_thread(tmp_path: Path) -> None:
    # The smaller array has the loops for large chunks compiled before.
    for name, rows in (("small", 1 << 14), ("large", 1 << 20)):
        array = zarr.create_array(tmp_path / name, shape=(rows, 64), chunks=(rows, 1), dtype="f4")
        array[:, ::8] = 1
    assert lifting.run_length(dc.from_zarr(tmp_path / "large"), 8) == 8
    given = [sys.executable, "-c", MEMORY, str(tmp_path / "small"), str(tmp_path / "large")]
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2 * 3 * (4 << 10)


def test_explain_tells_of_runs(tmp_path: Path) -> None:
    x = dc.from_zarr(save(tmp_path))
    reads, mean = dc.explain(dc.mean(x))
    assert reads.method == "21 tasks that read and decode zstd"
    assert mean.method == (
        "tree over 21 chunks, up to 16 states a task; 24 tasks; "
        "one reads and lifts up to 5 chunks that nothing else needs"
    )
    assert "reads and lifts" not in dc.explain(dc.mean(x + 1))[-1].method
    (mean,) = dc.explain(dask.optimize(dc.mean(x)))
    assert mean.method == "tree over 21 chunks, which 5 tasks read and lift; 8 tasks"


@pytest.mark.parametrize("compressor", ["zstd", None])
def test_a_damaged_chunk_is_named(compressor: Any, tmp_path: Path) -> None:
    save(tmp_path, compressors=compressor and zarr.codecs.ZstdCodec())
    (tmp_path / "x.zarr/c/6/0").write_bytes(b"damaged")
    with pytest.raises(OSError, match=r"x\.zarr: cannot read the chunk 'c/6/0'"):
        dc.sum(dc.from_zarr(tmp_path / "x.zarr")).compute()
