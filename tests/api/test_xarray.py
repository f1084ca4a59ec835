"""xarray: results keep the labels of its arrays, and our functions run inside apply_ufunc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from support.calls import refuse
from support.host_cupy import lists
from support.processes import printed

import dask_coop as dc
from dask_coop.api.call import labelled
from dask_coop.errors import pip_install

xr: Any = pytest.importorskip("xarray")


def temperature() -> tuple[Any, Any]:
    """Return an array, and a lazy one of its elements with labels."""
    host = np.random.default_rng(0).normal(size=(20, 6, 5))
    coords = {
        "time": np.arange(20) * 0.5,
        "y": 10 * np.arange(6),
        "area": (("y", "x"), host[0] ** 2),
        "zone": ("time", list("abcd" * 5)),
    }
    lazy = da.from_array(host, chunks=(7, 3, 5))
    return host, xr.DataArray(lazy, coords, ("time", "y", "x"), "t", {"units": "K"})


#: A function of an array, and xarray's.
FUNCTIONS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda x: dc.sum(x), lambda x: x.sum()),
    (lambda x: dc.mean(x, 0), lambda x: x.mean("time")),
    (lambda x: dc.std(x, axis=(-1, 0)), lambda x: x.std(("time", "x"))),
    (lambda x: dc.argmax(x, 1), lambda x: x.argmax("y")),
    (lambda x: dc.max(x, 1, keepdims=True), lambda x: x.max("y", keepdims=True)),
    (lambda x: dc.sum(a=x, axis=0), lambda x: x.sum("time")),
    (lambda x: dc.reduce(x, np.add, axis=0), lambda x: x.sum("time")),
    (lambda x: dc.cumsum(x, axis=1), lambda x: x.cumsum("y")),
    (lambda x: dc.cumsum(x[:, 0, 0]), lambda x: x[:, 0, 0].cumsum("time")),
    (lambda x: dc.ffill(x, 0), lambda x: x),
    (lambda x: dc.median(x, 0), lambda x: x.median("time")),
    (lambda x: dc.transpose(x, (2, 0, 1)), lambda x: x.transpose("x", "time", "y")),
    (lambda x: dc.transpose(x), lambda x: x.T),
    (lambda x: dc.move_max(x, 3, 2, axis=0), lambda x: x.rolling(time=3, min_periods=2).max()),
    (lambda x: dc.isin(x, x[0]), lambda x: x.isin(x[0])),
    (lambda x: dc.to_host(x), lambda x: x),
]


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS)
def test_results_keep_labels(
    function: Callable[[Any], Any], expected: Callable[[Any], Any]
) -> None:
    host, x = temperature()
    wanted = expected(x.copy(data=host))
    found = function(x)
    assert isinstance(found.data, da.Array)
    xr.testing.assert_allclose(found.compute(), wanted)
    assert (found.name, found.attrs) == ("t", x.attrs)
    assert found.indexes.keys() == wanted.indexes.keys()


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS[:7] + FUNCTIONS[-6:-4])
def test_variables_keep_dimensions_and_attributes(
    function: Callable[[Any], Any], expected: Callable[[Any], Any]
) -> None:
    host, x = temperature()
    wanted = expected(x.variable.copy(data=host))
    found = function(x.variable)
    assert type(found) is xr.Variable
    assert isinstance(found.data, da.Array)
    xr.testing.assert_allclose(found, wanted)
    assert found.attrs == x.attrs


@pytest.mark.parametrize(("q", "axis"), [(0.5, None), ([0.1, 0.9], 0), (np.array(0.3), (0, 2))])
def test_quantiles_have_a_coordinate(q: Any, axis: Any) -> None:
    host, x = temperature()
    dims = None if axis is None else [x.dims[d] for d in np.atleast_1d(axis)]
    expected = x.copy(data=host).quantile(q, dims)
    xr.testing.assert_allclose(dc.quantile(x, q, axis).compute(), expected)
    xr.testing.assert_allclose(
        dc.percentile(x, np.multiply(q, 100), axis).compute(), expected, rtol=1e-12
    )
    lazy = dc.quantile(x, da.asarray(q), axis)
    assert "quantile" not in lazy.coords
    xr.testing.assert_allclose(lazy.compute(), expected.drop_vars("quantile"))


def test_a_quantile_may_be_delayed() -> None:
    host, x = temperature()
    found = dc.quantile(x, delayed(0.5), axis=0)
    np.testing.assert_allclose(found, np.median(host, 0))
    assert found.dims == ("y", "x")


def test_results_of_several_arrays_have_labels_each() -> None:
    host, x = temperature()
    found = dc.describe(x, axis=0)
    assert isinstance(found, dc.Description)
    xr.testing.assert_allclose(found.var.compute(), x.copy(data=host).var("time"))
    days = dc.describe(x.time.astype("M8[D]"))
    assert days.sum is None
    assert days.count == 20


def test_what_lies_beside_finds_its_dimensions_by_name() -> None:
    host, x = temperature()
    plain = x.copy(data=host)
    mask = (plain > 0).transpose("x", "time", "y")
    for where in (mask, mask.chunk(x=2), mask.variable):
        np.testing.assert_allclose(dc.sum(x, 0, where=where), host.sum(0, where=host > 0))
        np.testing.assert_allclose(dc.sum(plain, 0, where=where), host.sum(0, where=host > 0))
    rows = dc.sum(x, (0, 2), where=x.y > 20)
    np.testing.assert_allclose(rows, np.where(np.arange(6) > 2, host.sum((0, 2)), 0))
    weights = xr.DataArray(np.arange(6.0), dims="y")
    counts, edges = dc.histogram(x, 4, (-2, 2), weights=weights)
    beside = np.broadcast_to(np.arange(6.0)[:, np.newaxis], host.shape)
    np.testing.assert_allclose(counts, np.histogram(host, edges, weights=beside)[0])
    with pytest.raises(ValueError, match=r"has no dimension 'z'"):
        dc.sum(x, where=xr.DataArray([True], dims="z"))
    with pytest.raises(ValueError, match="align"):
        dc.sum(x, where=(x.y > 20).assign_coords(y=np.arange(6)))


def test_what_is_spread_is_read_by_no_chunk_twice() -> None:
    _, x = temperature()
    seen: list[tuple[int, ...]] = []

    def look(block: Any) -> Any:
        seen.append(block.shape)
        return block > 0

    flags = x.y.copy(data=da.from_array(x.y.values, chunks=3).map_blocks(look, dtype="?"))
    dc.sum(x, where=flags).compute(scheduler="sync")
    # Dask looks at an empty one while it builds the graph.
    assert [shape for shape in seen if shape != (0,)] == [(3,)] * 2


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (dc.cumsum, np.cumsum),
        (lambda x: dc.sort(x, None), lambda x: np.sort(x, None)),
        (lambda x: dc.histogram(x, 8)[0], lambda x: np.histogram(x, 8)[0]),
        (lambda x: dc.unique(x), np.unique),
        (lambda x: dc.select(x, x > 0), lambda x: x[x > 0]),
        (lambda x: dc.nonzero(x > 0)[0], lambda x: np.nonzero(x > 0)[0]),
        (
            lambda x: dc.groupby_reduce(x, [0, 0, 1, 1, 0], func="sum")[0],
            lambda x: np.stack([x[..., [0, 1, 4]].sum(-1), x[..., 2:4].sum(-1)], -1),
        ),
        (lambda x: dc.matmul(x, x.transpose("time", "x", "y")), lambda x: x @ x.swapaxes(1, 2)),
    ],
)
def test_results_without_its_dimensions_are_dasks_arrays(
    function: Callable[[Any], Any], expected: Callable[[Any], Any]
) -> None:
    host, x = temperature()
    lazy = function(x)
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy.compute(), expected(host))


def test_axes_that_are_not_there_are_told_in_our_words() -> None:
    _, x = temperature()
    for function in (dc.sum, dc.cumsum, dc.topk):
        given = {"k": 2} if function is dc.topk else {}
        with pytest.raises(np.exceptions.AxisError):
            function(x, axis=3, **given)
    with pytest.raises(TypeError, match="sum takes axis=, not dim="):
        dc.sum(x, dim="time")
    with pytest.raises(ValueError, match="q of one dimension at most, got 2"):
        dc.quantile(x, [[0.5]], axis=0)


def test_nothing_is_computed_while_graphs_are_built() -> None:
    _, x = temperature()
    with dask.config.set(scheduler=refuse):
        for function, _ in FUNCTIONS:
            function(x)


@pytest.mark.parametrize("missing", ["xarray", "pandas"])
def test_without_xarray_all_else_works_and_the_accessor_says_what_is_missing(missing: str) -> None:
    code = f"""
import sys
sys.modules["{missing}"] = None
import dask_coop as dc
print(dc.sum([1, 2]).compute())
try:
    import dask_coop.xarray
except ImportError as error:
    print(error)
"""
    total, said = printed("-c", code).splitlines()
    assert total == "3"
    assert "dask_coop.xarray needs xarray" in said
    assert pip_install("xarray") in said


def test_functions_run_inside_apply_ufunc() -> None:
    host, x = temperature()
    total = xr.apply_ufunc(
        dc.cumsum,
        x,
        input_core_dims=[["time"]],
        output_core_dims=[["time"]],
        kwargs={"axis": -1},
        dask="allowed",
    ).transpose(*x.dims)
    assert isinstance(total.data, da.Array)
    assert total.dims == x.dims
    np.testing.assert_allclose(total.compute(), host.cumsum(0))
    spread = xr.apply_ufunc(
        dc.var, x, input_core_dims=[["time"]], kwargs={"axis": -1}, dask="allowed"
    )
    assert spread.dims == ("y", "x")
    np.testing.assert_allclose(spread.compute(), host.var(0))


def test_functions_run_through_map_blocks() -> None:
    host, x = temperature()
    x = x.reset_coords(drop=True)
    within = x.chunk(time=-1).map_blocks(
        lambda block: block - dc.mean(block.data, axis=0).compute()
    )
    np.testing.assert_allclose(within.compute(), host - host.mean(0))


def test_what_lies_beside_chunks_on_gpus_goes_there() -> None:
    host, x = temperature()
    of_lists = x.data.map_blocks(
        lists.from_numpy, dtype="f8", meta=lists.from_numpy(np.zeros((0, 0, 0)))
    )
    with lists.in_cupys_place():
        there = x.copy(data=of_lists)
        beside = labelled.spread(there, there.area)
        assert isinstance(beside._meta, lists.ListArray)
        assert beside.chunks == there.chunks
        total = dc.sum(there, 0)
        found, sums = (lists.plain(one.compute(scheduler="sync")) for one in (beside, total.data))
    assert total.dims == ("y", "x")
    np.testing.assert_allclose(sums, host.sum(0))
    np.testing.assert_array_equal(found, np.broadcast_to(x.area, host.shape))
