"""Arrays of the package dask-array, which are expressions: public functions take and return them.

Dask 2026.8 mixes up the results of a `dask.compute` of such arrays together with Dask's own, so
these are computed apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from graph.test_graphs import collections, collections_of_no_axes, numbers
from support.clusters import cluster
from support.processes import printed

import dask_coop as dc
from dask_coop.errors import Refused

HOST = np.random.default_rng(0).random((40, 30))


# Imported by the tests and not when they are collected: it sets defaults of Dask's configuration.
@pytest.fixture(scope="module")
def xa() -> Any:
    """Return the package."""
    return pytest.importorskip("dask_array")


@pytest.fixture
def x(xa: Any) -> Any:
    """Return an array of two operations."""
    return xa.from_array(HOST, chunks=(7, 30)) + 1


@pytest.fixture(autouse=True)
def _uninstalled() -> Iterator[None]:
    yield
    dc.uninstall()


def is_theirs(xa: Any, value: Any) -> bool:
    return isinstance(value, xa.Array)


@pytest.mark.parametrize("build", [collections, collections_of_no_axes], ids=["axes", "no axes"])
def test_every_public_function_gives_what_it_gives_for_dasks_arrays(
    xa: Any, build: Callable[..., dict[str, Any]]
) -> None:
    array = numbers() if build is collections else np.array(7.0)
    chunks = 2 if build is collections else -1
    theirs = build(xa.from_array(array, chunks=chunks))
    dasks = build(da.from_array(array, chunks=chunks))
    # Lazy histograms and states are Delayed, which the test itself makes arrays.
    delayed = ("of an axis", "by its state")
    made = {name: lazy for name, lazy in theirs.items() if not name.endswith(delayed)}
    results = dict(zip(made, dask.compute(*made.values(), scheduler="sync"), strict=True))
    expected = dict(zip(dasks, dask.compute(*dasks.values(), scheduler="sync"), strict=True))
    for name, lazy in made.items():
        assert is_theirs(xa, lazy), name
        assert lazy.dtype == dasks[name].dtype, name
        np.testing.assert_equal(lazy.chunks, dasks[name].chunks, err_msg=name)
        np.testing.assert_array_equal(results[name], expected[name], err_msg=name)
    for name in theirs.keys() - made:
        np.testing.assert_array_equal(theirs[name].compute(), expected[name], err_msg=name)


def test_results_go_on_as_their_expressions(xa: Any, x: Any) -> None:
    total, y = dc.sum(x, axis=0), HOST + 1
    np.testing.assert_allclose((x / total - total).sum().compute(), (y / y.sum(0) - y.sum(0)).sum())
    np.testing.assert_allclose(
        dc.cumsum(dc.cumsum(x, axis=0) + x, axis=1).compute(), (y.cumsum(0) + y).cumsum(1)
    )
    np.testing.assert_allclose(dc.mean(x[3:9].T, axis=1).compute(), y[3:9].mean(0))
    kept = dc.cumsum(x, axis=0).persist()
    assert kept.chunks == x.chunks
    np.testing.assert_allclose(dc.sum(kept * 2).compute(), (y.cumsum(0) * 2).sum())


def test_their_keys_stay_theirs(x: Any) -> None:
    keys = [x.__dask_keys__()[0][0], x.__dask_keys__()[-1][0]]
    scan = dc.cumsum(x, axis=0)
    graph = dict(scan.__dask_graph__())
    assert graph.keys() >= {*keys, *x.__dask_graph__().keys()}
    assert scan.name == dc.cumsum(x, axis=0).name != dc.cumsum(x + 1, axis=0).name
    assert scan.persist().name == scan.name


def test_both_kinds_in_one_call_give_theirs(xa: Any, x: Any) -> None:
    weights = da.from_array(HOST, chunks=(7, 30))
    counts, _ = dc.histogram(x, 5, (1, 2), weights=weights)
    assert is_theirs(xa, counts)
    np.testing.assert_allclose(
        counts.compute(), np.histogram(HOST + 1, 5, (1, 2), weights=HOST)[0], rtol=1e-14
    )
    other, _ = dc.histogram(weights, 5, (0, 1), weights=x)
    assert is_theirs(xa, other)


def test_masked_arrays_unknown_sizes_and_objects(xa: Any, x: Any) -> None:
    masked = np.ma.masked_greater(HOST, 0.5)
    got = dc.sum(xa.from_array(masked, chunks=(7, 30)), axis=0).compute()
    np.testing.assert_allclose(got, masked.sum(0))
    some = x[x > 1.5]
    assert np.isnan(some.shape[0])
    y = HOST + 1
    np.testing.assert_allclose(dc.cumsum(some).compute(), y[y > 1.5].cumsum())
    objects = dc.sum(x.astype(object), axis=0)
    assert is_theirs(xa, objects)
    np.testing.assert_allclose(objects.compute().astype("f8"), y.sum(0))


def test_out_is_refused(x: Any) -> None:
    with pytest.raises(Refused, match="out= takes no array of dask-array; leave it off"):
        dc.sum(x, axis=0, out=dc.max(x, axis=0))


def test_explain_shows_ours_and_theirs(x: Any) -> None:
    ours, *_ = (row for row in dc.explain(dc.cumsum(x, axis=0)) if row.operation == "cumsum")
    assert ours.served_by == "dask_coop"
    assert ours.method.startswith("reduce-then-scan over 6 chunks")
    assert ours.why == "float64 in NumPy chunks"
    assert {row.served_by for row in dc.explain(x.sum())} == {"Dask"}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda xa, x: x.sum(axis=0), lambda y: y.sum(0)),
        (lambda xa, x: np.cumsum(x, axis=1), lambda y: y.cumsum(1)),
        (lambda xa, x: xa.quantile(x, 0.3, axis=0), lambda y: np.quantile(y, 0.3, 0)),
        (lambda xa, x: x.argmax(1), lambda y: y.argmax(1)),
        (lambda xa, x: xa.histogram(x, bins=[1, 1.5, 2])[0], None),
        (lambda xa, x: xa.bincount((x * 9).astype("i8").ravel(), minlength=99), None),
        (lambda xa, x: np.linalg.norm(x), np.linalg.norm),
        (lambda xa, x: xa.push(x, None, 0), lambda y: y),
        (lambda xa, x: np.sum(x.astype("f4"), axis=1, dtype="f8"), None),
    ],
)
def test_their_functions_are_ours_under_install(
    xa: Any, x: Any, call: Callable[..., Any], expected: Callable[..., Any] | None
) -> None:
    plain = call(xa, x)
    with dc.installed():
        ours = call(xa, x)
    assert is_theirs(xa, ours)
    assert (ours.chunks, ours.dtype) == (plain.chunks, plain.dtype)
    right = plain.compute() if expected is None else expected(HOST + 1)
    np.testing.assert_allclose(ours.compute(), right, rtol=1e-6)
    assert dc.explain(ours)[-1].served_by == "dask_coop"
    assert dc.explain(call(xa, x))[-1].served_by == "Dask"


def test_what_ours_refuse_is_theirs_under_install(xa: Any, x: Any) -> None:
    dc.install()
    edges = xa.histogram(x, bins=[1, 1.5, 2])[1]
    assert is_theirs(xa, edges)
    total = x.sum(axis=0, out=(out := xa.zeros(30)))
    np.testing.assert_allclose(out.compute(), (HOST + 1).sum(0))
    assert dc.explain(total)[-1].served_by == "Dask"
    assert isinstance(xa.sum(HOST).compute(), float)


def test_installed_before_they_are_imported() -> None:
    pytest.importorskip("dask_array")
    printed(
        "-c",
        """
import sys
import dask_coop as dc
dc.install()
assert "dask_array" not in sys.modules
import dask_array as xa
assert dc.explain(xa.ones(9, chunks=2).sum())[-1].served_by == "dask_coop"
dc.uninstall()
assert dc.explain(xa.ones(9, chunks=2).sum())[-1].served_by == "Dask"
""",
    )


def test_arrays_with_labels(xa: Any, x: Any) -> None:
    xr = pytest.importorskip("xarray")
    import dask_coop.xarray  # noqa: F401

    coords = {"row": np.arange(40.0), "zone": ("row", np.arange(40) % 3)}
    data = xr.DataArray(x, coords, ("row", "column"), "a")
    plain = data.copy(data=HOST + 1)
    other = (data + 1).rename("b"), (plain + 1).rename("b")
    bins = {"bins": 4, "range": (1, 3), "dim": "row"}
    for got, expected in [
        (dc.sum(data, 0), plain.sum("row")),
        (dc.sum(data, where=data.row > 9), plain[10:].sum()),
        (data.coop.mean("row"), plain.mean("row")),
        (data.coop.cumsum("row"), plain.cumsum("row")),
        (data.coop.quantile([0.1, 0.9], "row"), plain.quantile([0.1, 0.9], "row")),
        (data.coop.move_max("row", 9), plain.rolling(row=9).max()),
        (data.coop.groupby_reduce("zone", func="std"), plain.groupby("zone").std()),
        (data.coop.describe("row")["var"], plain.var("row").rename("var")),
        (
            data.coop.histogram(weights=data.row, **bins),
            plain.coop.histogram(weights=data.row, **bins),
        ),
        (data.coop.histogram(other[0], **bins), plain.coop.histogram(other[1], **bins)),
        (data.coop.histogram(other[0], bins=3), plain.coop.histogram(other[1], bins=3)),
    ]:
        assert is_theirs(xa, got.data), got
        xr.testing.assert_allclose(got.compute(), expected)


def test_xarray_with_their_arrays_under_install() -> None:
    pytest.importorskip("xarray")
    pytest.importorskip("dask_array")
    # Registering them cannot be taken back.
    printed(
        "-W",
        "ignore",
        "-c",
        """
import numpy as np, xarray as xr, dask_array as xa, dask_coop as dc
xa.xarray.register()
dc.install()
host = np.random.default_rng(0).random((40, 30))
host[host > 0.9] = np.nan
zone = xr.DataArray(np.arange(40) % 3, dims="row", name="zone")
plain = xr.DataArray(host, dims=("row", "column"))
data = plain.chunk(row=7)
for call in (
    lambda d: d.sum("row"),
    lambda d: d.mean("row"),
    lambda d: d.std(),
    lambda d: d.fillna(0).astype("i8").sum("row"),
    lambda d: d.cumsum("row"),
    lambda d: d.ffill("row"),
    lambda d: d.rolling(row=5, min_periods=1).mean(),
    lambda d: d.groupby(zone).mean(),
    lambda d: d.fillna(0).median("row"),
):
    got = call(data)
    assert type(got.data) is xa.Array, type(got.data)
    assert "dask_coop" in [row.served_by for row in dc.explain(got.data)], call
    xr.testing.assert_allclose(got.compute(), call(plain))
""",
    )


def test_graphs_and_collectives_on_a_cluster(xa: Any, fallbacks: Callable[[], list[str]]) -> None:
    with cluster(2) as client:
        x = (xa.from_array(HOST, chunks=(7, 30)) + 1).persist(scheduler=client)
        y = HOST + 1
        np.testing.assert_allclose(dc.cumsum(x, 0).compute(scheduler=client), y.cumsum(0))
        assert dc.sum(x, engine="collective") == dc.sum(da.from_array(y, (7, 30))).compute()
        scan = dc.cumsum(x, 0, engine="collective")
        assert is_theirs(xa, scan)
        np.testing.assert_allclose(scan.compute(scheduler=client), y.cumsum(0))
        assert dc.max(scan, engine="collective") == pytest.approx(y.cumsum(0).max(), rel=1e-14)
        assert fallbacks() == []
        # They are not in memory there.
        lazy = xa.from_array(HOST, chunks=(7, 30))
        np.testing.assert_allclose(dc.sum(lazy, engine="collective"), HOST.sum())
        assert "are not in memory on a cluster: persist them" in fallbacks()[0]


@pytest.mark.gpu
def test_a_node_runs_their_graphs(x: Any) -> None:
    with dc.Node() as node:
        got = dc.cumsum(dc.to_gpu(x), axis=0).compute(scheduler=node)
    np.testing.assert_allclose(got.get(), (HOST + 1).cumsum(0))
