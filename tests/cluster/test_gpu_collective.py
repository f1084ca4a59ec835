"""Collectives of CuPy chunks: several chunks in one launch, and on a LocalCUDACluster."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop import chunks
from dask_coop.algebra import monoids
from dask_coop.algebra.bins import Grid, find_bins
from dask_coop.algebra.monoids import MonoidRow
from dask_coop.algebra.operation import bind, reproducible
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.cluster import jobs
from dask_coop.graph.prefixes import GROUP

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.xdist_group("node"),
    # Warnings of distributed's shutdown are not about this library.
    pytest.mark.filterwarnings("default"),
]

SIZES = (70_001, 0, 1, 33, 4096, 1_000_000, 0)


def values(dtype: str, n: int) -> Any:
    rng = np.random.default_rng(5)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(n) < 0.5
    if kind in "iu":
        return rng.integers(0, 100, n).astype(dtype)
    if kind == "c":
        return (rng.normal(size=n) + 1j * rng.normal(size=n)).astype(dtype)
    return rng.normal(size=n).astype(dtype)


def cut(host: Any, sizes: Any = SIZES, shift: int = 0) -> list[Any]:
    """Return chunks on the GPU, `shift` elements off alignment."""
    import cupy

    made = []
    for part in np.split(host, np.cumsum(sizes)[:-1]):
        room = cupy.empty(part.size + shift, host.dtype)
        room[shift:].set(part)
        made.append(room[shift:])
    return made


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(
    ("monoid", "dtype"),
    [
        (monoids.SUM, "f4"),
        (monoids.SUM, "c8"),
        (monoids.SUM, "i2"),
        (monoids.PROD, "f8"),
        (monoids.MIN, "u1"),
        (monoids.ARGMAX, "f4"),
        (monoids.MINMAX, "f2"),
        (monoids.VAR, "f4"),
        (monoids.MOMENTS, "f8"),
        (monoids.ALL, "?"),
        (monoids.COUNT_NONZERO, "f4"),
        (monoids.REPRODUCIBLE_SUM, "f4"),
    ],
    ids=lambda value: value.name if isinstance(value, MonoidRow) else value,
)
def test_states_of_several_chunks_are_those_of_each(
    monoid: MonoidRow, dtype: str, shift: int
) -> None:
    if monoid is monoids.REPRODUCIBLE_SUM:
        op = reproducible(bind(monoids.SUM, np.dtype(dtype), np.dtype(dtype), "test"))
    else:
        output = "f8" if monoid in (monoids.VAR, monoids.MOMENTS) else dtype
        op = bind(monoid, np.dtype(dtype), np.dtype(output), "test")
    xs = cut(values(dtype, sum(SIZES)), shift=shift)
    together = chunks.backend_of(xs[0]).lift_all(op, xs)
    assert together is not None
    for i, x in enumerate(xs):
        one = chunks.backend_of(x).lift(op, x, (0,))
        for field, got, wanted in zip(op.monoid.fields, together, one, strict=True):
            assert isinstance(got, np.ndarray)
            if x.size or field.name != "index":
                np.testing.assert_allclose(got[i], wanted, rtol=1e-12, err_msg=field.name)


@pytest.mark.parametrize("bins", [10, 5000])
def test_samples_of_several_chunks_are_counted_into_one_table(bins: int) -> None:
    host = values("f4", sum(SIZES))
    op = bind(monoids.COUNTS, np.dtype("i8"), np.dtype("i8"), "test")
    grid = Grid((find_bins(bins, (-2.0, 2.0), host.dtype),))
    xs = cut(host)
    (table,) = chunks.backend_of(xs[0]).histogram_all(op, xs, grid)
    np.testing.assert_array_equal(table, np.histogram(host, bins, (-2.0, 2.0))[0])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("monoid", "dtype"),
    [
        (monoids.SUM, "f4"),
        (monoids.SUM, "i4"),
        (monoids.SUM, "c16"),
        (monoids.SUM, "f2"),
        (monoids.MAX, "i8"),
        (monoids.MIN, "u1"),
    ],
    ids=lambda value: value.name if isinstance(value, MonoidRow) else value,
)
def test_a_scan_in_two_halves_is_that_of_the_whole(
    monoid: MonoidRow, dtype: str, exclusive: bool, reverse: bool, workers: int
) -> None:
    host = values(dtype, sum(SIZES))
    op = bind(monoid, host.dtype, host.dtype, "test")
    spec = ScanSpec(0, exclusive=exclusive, reverse=reverse)
    xs = cut(host)[:: -1 if reverse else 1]
    numbers = [list(range(len(xs)))[i::workers] for i in range(workers)]
    up, down = jobs.Upsweep(op, spec), jobs.Downsweep(op, spec)
    states, memos = [], []
    for mine in numbers:
        ((at, fields),), memo = up([(xs[i],) for i in mine], [None] * len(mine))
        states.append(jobs.Stacked(np.array(mine)[at], fields))
        memos.append(memo)
    assert all(memos)
    bases = {
        number: tuple(field[i] for field in part.fields)
        for part in jobs.Spine(op, (len(xs),), False, GROUP)(states)
        for i, number in enumerate(part.numbers)
    }
    results: list[Any] = [None] * len(xs)
    for mine, memo in zip(numbers, memos, strict=True):
        made = down([(xs[i],) for i in mine], [bases.get(i) for i in mine], memo)
        for i, y in zip(mine, made, strict=True):
            results[i] = y.get()
    got = np.concatenate(results[:: -1 if reverse else 1])
    lazy = da.from_array(host, chunks=-1)
    name = {"sum": "cumsum", "max": "cummax", "min": "cummin"}[monoid.name]
    wanted = getattr(dc, name)(lazy, 0, dtype, exclusive=exclusive, reverse=reverse).compute()
    assert got.dtype == wanted.dtype
    if host.dtype.kind in "fc":
        scale = np.abs(wanted[np.isfinite(wanted)]).max()
        tolerance = {"f2": 2e-3, "f4": 1e-6, "c16": 1e-12}[dtype] * scale
        np.testing.assert_allclose(got, wanted, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    dask_cuda = pytest.importorskip("dask_cuda")
    from distributed import Client

    with (
        dask_cuda.LocalCUDACluster(dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def persisted(client: Any, host: Any, sizes: Any) -> da.Array:
    """Return an array of CuPy chunks in memory on the workers."""
    import cupy
    from distributed import wait

    x = da.from_array(host, chunks=sizes)
    x = x.map_blocks(cupy.asarray, dtype=host.dtype, meta=cupy.empty((0,) * x.ndim, host.dtype))
    x = client.persist(x)
    wait(x)
    return x


@pytest.fixture
def collectively(fallbacks: Callable[[], list[str]]) -> Iterator[dict[str, str]]:
    """Return the keyword that asks for a collective, and see that there was no graph."""
    yield {"engine": "collective"}
    assert fallbacks() == []


def test_reductions_on_gpus_give_numpys_values(client: Any, collectively: dict[str, str]) -> None:
    host = values("f4", 60_000).reshape(300, 200)
    x = persisted(client, host, (37, 60))
    wide = host.astype("f8")
    assert float(dc.sum(x, **collectively)) == pytest.approx(wide.sum(), abs=1e-3)
    np.testing.assert_allclose(dc.mean(x, axis=1, **collectively), wide.mean(1), atol=1e-6)
    np.testing.assert_allclose(dc.var(x, axis=0, **collectively), wide.var(0), rtol=1e-5)
    assert dc.min(x, **collectively) == host.min()
    assert dc.argmax(x, **collectively) == host.argmax()
    np.testing.assert_array_equal(dc.argmin(x, axis=0, **collectively), host.argmin(0))
    found = dc.describe(x, **collectively)
    assert found.count == host.size
    assert found.std == pytest.approx(wide.std(), rel=1e-6)
    assert all(isinstance(value, np.generic) for value in found)


@pytest.mark.parametrize("groups", [12, 60_000])
def test_groups_on_gpus_give_numpys_values(
    client: Any, collectively: dict[str, str], groups: int
) -> None:
    """Also where their states are too large to go to the host chunk by chunk."""
    host = values("i4", 600_000).reshape(200, 3000)
    x = persisted(client, host, (37, 900))
    of_columns = np.arange(3000) // 250
    of_all = np.random.default_rng(6).integers(0, groups, host.shape)
    sums, highest = dc.groupby_reduce(x, of_columns, func=["sum", "max"], **collectively)[0]
    cut = host.reshape(200, 12, 250)
    np.testing.assert_array_equal(sums, cut.sum(2))
    np.testing.assert_array_equal(highest, cut.max(2))
    (total,), labels = dc.groupby_reduce(x, of_all, func=["sum"], **collectively)
    assert type(total) is np.ndarray
    wanted = np.bincount(of_all.ravel(), host.ravel(), groups)
    np.testing.assert_array_equal(total, wanted[labels])


@pytest.mark.parametrize("function", ["ffill", "bfill"])
def test_fills_on_gpus_stay_where_their_chunks_are(
    client: Any, collectively: dict[str, str], function: str
) -> None:
    import cupy

    host = values("f4", 100_003)
    host[np.random.default_rng(7).random(host.size) < 0.7] = np.nan
    x = persisted(client, host, 7_777)
    y = getattr(dc, function)(x, limit=9, **collectively)
    here, there = ({key[1]: at for key, at in client.who_has(a).items()} for a in (x, y))
    assert here == there
    wanted = getattr(dc, function)(da.from_array(host, chunks=-1), limit=9).compute()
    np.testing.assert_array_equal(cupy.asnumpy(y.compute()), wanted)


@pytest.mark.parametrize("bins", [7, 16_384, 300_000])
def test_histograms_on_gpus_count_as_numpy_does(
    client: Any, collectively: dict[str, str], bins: int
) -> None:
    host = values("f8", 100_000)
    x = persisted(client, host, 9_999)
    counts, edges = dc.histogram(x, bins, **collectively)
    wanted, wanted_edges = np.histogram(host, bins)
    assert type(counts) is np.ndarray
    np.testing.assert_array_equal(counts, wanted)
    np.testing.assert_array_equal(edges, wanted_edges)
    weights = persisted(client, np.ones(host.size), 9_999)
    if len(client.nthreads()) == 1:
        sums, _ = dc.histogram(x, 7, (-1, 1), weights=weights, **collectively)
        np.testing.assert_array_equal(sums, np.histogram(host, 7, (-1, 1))[0])


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"include_initial": True}])
def test_scans_on_gpus_stay_where_their_chunks_are(
    client: Any, collectively: dict[str, str], options: dict[str, Any]
) -> None:
    import cupy

    host = values("i4", 1_000_003)
    x = persisted(client, host, 77_777)
    y = dc.cumsum(x, axis=0, **options, **collectively)
    assert type(y._meta) is cupy.ndarray
    here, there = ({key[1]: at for key, at in client.who_has(a).items()} for a in (x, y))
    assert here == there
    wanted = dc.cumsum(da.from_array(host, chunks=-1), axis=0, **options).compute()
    np.testing.assert_array_equal(cupy.asnumpy(y.compute()), wanted)
    rows = persisted(client, host[:900_000].reshape(3000, 300), (700, 300))
    for axis in (0, 1):
        z = dc.cumsum(rows, axis=axis, **options, **collectively)
        wanted = dc.cumsum(da.from_array(host[:900_000].reshape(3000, 300)), axis, **options)
        np.testing.assert_array_equal(cupy.asnumpy(z.compute()), wanted.compute())


def _known(dask_scheduler: Any) -> int:
    return sum(str(key).startswith("('cumsum-") for key in dask_scheduler.tasks)


def _held(dask_worker: Any) -> int:
    return sum(str(key).startswith("('cumsum-") for key in dask_worker.data)


def results(client: Any) -> tuple[int, int]:
    """Return how many chunks of running sums the scheduler knows, and the workers hold."""
    return client.run_on_scheduler(_known), sum(client.run(_held).values())


def nothing_is_left(client: Any) -> None:
    deadline = time.monotonic() + 20
    while results(client) != (0, 0):
        gc.collect()
        assert time.monotonic() < deadline, results(client)
        time.sleep(0.01)


def test_results_are_let_go_of(client: Any, collectively: dict[str, str]) -> None:
    x = persisted(client, values("f4", 1 << 20), 1 << 16)
    nothing_is_left(client)
    y = dc.cumsum(x, axis=0, **collectively)
    assert results(client) == (x.npartitions, x.npartitions)
    del y
    nothing_is_left(client)


def _limit(nbytes: int) -> None:
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    # 0 takes the limit away.
    pool.set_limit(size=pool.used_bytes() + nbytes if nbytes else 0)


def test_what_runs_out_of_memory_says_so_and_leaves_nothing(client: Any) -> None:
    x = persisted(client, values("u1", 1 << 24), 1 << 20)
    client.run(_limit, 1 << 20)
    try:
        with pytest.raises(Exception, match=r"[Oo]ut of memory"):
            dc.cumsum(x, axis=0, dtype="f8", engine="collective")
    finally:
        client.run(_limit, 0)
    nothing_is_left(client)
    assert int(dc.cumsum(x, axis=0, engine="collective")[-1].compute()) == int(dc.sum(x).compute())
