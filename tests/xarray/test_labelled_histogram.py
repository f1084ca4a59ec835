"""Histograms with labels: NumPy's counts, xhistogram's names."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from support.calls import refuse
from support.labelled import chunked, field, xr

import dask_coop as dc
import dask_coop.xarray

assert dask_coop.xarray
# NumPy warns of a density without samples, too.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
EDGES = np.array([-20.0, -5.0, 0.0, 1.0, 15.0])


def counts(x: Any, bins: Any, weights: Any = None, density: bool = False) -> Any:
    valid = np.isfinite(x)
    w = None if weights is None else np.broadcast_to(weights, x.shape)[valid]
    return np.histogram(x[valid], bins, weights=w, density=density)[0]


@pytest.mark.parametrize("density", [False, True])
def test_a_histogram_is_named_as_its_variable(density: bool) -> None:
    x = field()
    found = chunked(x).coop.histogram(bins=EDGES, density=density)
    assert dask.is_dask_collection(found.data)
    assert found.name == "histogram_t2m"
    assert found.dims == ("t2m_bin",)
    assert found.attrs == {}
    np.testing.assert_allclose(found, counts(x.values, EDGES, density=density))
    np.testing.assert_array_equal(found.t2m_bin, (EDGES[1:] + EDGES[:-1]) / 2)
    np.testing.assert_array_equal(found.t2m_bin_left, EDGES[:-1])
    np.testing.assert_array_equal(found.t2m_bin_right, EDGES[1:])
    assert found.t2m_bin.attrs == x.attrs
    assert found.sel(t2m_bin=7, method="nearest") == found[-1]
    # A slice has the edges of its own bins.
    assert float(found[1:3].t2m_bin_left[0]) == -5
    assert set(found.coords) == {"t2m_bin", "t2m_bin_left", "t2m_bin_right", "level"}
    assert chunked(x).coop.histogram(bins=EDGES, bin_dim_suffix="_class").dims == ("t2m_class",)


@pytest.mark.parametrize("dim", ["time", ("time", "x"), None])
def test_there_is_one_for_each_position_along_the_other_dimensions(dim: Any) -> None:
    x = field()
    w = np.cos(np.deg2rad(x.lat))
    found = chunked(x).coop.histogram(bins=EDGES, dim=dim, weights=w)
    gone = x.dims if dim is None else (dim,) if isinstance(dim, str) else dim
    left = [one for one in x.dims if one not in gone]
    assert found.dims == (*left, "t2m_bin")
    weights = w.broadcast_like(x).transpose(*left, *gone).values
    host = x.transpose(*left, *gone).values
    shape = [x.sizes[one] for one in left]
    expected = np.stack(
        [counts(host[at], EDGES, weights[at]) for at in np.ndindex(*shape)]
    ).reshape(*shape, -1)
    np.testing.assert_allclose(found, expected)
    for name in left:
        if name in x.coords:
            xr.testing.assert_identical(
                found[name], x[name].drop_vars(["time", "zone", "area"], errors="ignore")
            )


def test_names_and_counts_are_those_of_xhistogram() -> None:
    xhistogram = pytest.importorskip("xhistogram.xarray").histogram
    x = field().fillna(99)
    y = (x * 0.5 + x.lat / 10).rename("sst").assign_attrs(units="C")
    w = np.cos(np.deg2rad(x.lat)).broadcast_like(x)
    for dim in (None, ["time"], ["time", "x"]):
        for weights in (None, w):
            ours = chunked(x).coop.histogram(bins=EDGES, dim=dim, weights=weights)
            theirs = xhistogram(x, bins=[EDGES], dim=dim, weights=weights)
            assert ours.dims == theirs.dims
            assert ours.name == theirs.name
            xr.testing.assert_identical(ours.t2m_bin.variable, theirs.t2m_bin.variable)
            np.testing.assert_allclose(ours, theirs)
            joint = chunked(x).coop.histogram(
                chunked(y), bins=[EDGES, EDGES + 1], dim=dim, weights=weights
            )
            theirs = xhistogram(x, y, bins=[EDGES, EDGES + 1], dim=dim, weights=weights)
            assert joint.dims == theirs.dims
            assert joint.name == theirs.name == "histogram_t2m_sst"
            np.testing.assert_allclose(joint, theirs)


@pytest.mark.parametrize("dim", [None, "time", ("y", "x")])
@pytest.mark.parametrize("density", [False, True])
def test_joint_histograms_are_numpys(dim: Any, density: bool) -> None:
    x = field()
    y = (x.isel(time=0, drop=True) / 2).rename("u").transpose("x", "y")
    w = np.cos(np.deg2rad(x.lat))
    found = chunked(x).coop.histogram(
        y.chunk(x=2), bins=[4, EDGES], range=[(-10, 10), None], dim=dim, weights=w, density=density
    )
    gone = x.dims if dim is None else (dim,) if isinstance(dim, str) else dim
    left = [one for one in x.dims if one not in gone]
    assert found.dims == (*left, "t2m_bin", "u_bin")
    assert found.dtype == np.float64
    whole = [one.transpose(*left, *gone) for one in xr.broadcast(x, y, w)]
    for at in np.ndindex(*[x.sizes[one] for one in left]):
        a, b, weights = (one.values[at].ravel() for one in whole)
        valid = np.isfinite(a) & np.isfinite(b)
        expected, *edges = np.histogram2d(
            a[valid],
            b[valid],
            [np.linspace(-10, 10, 5), EDGES],
            weights=weights[valid],
            density=density,
        )
        np.testing.assert_allclose(found[at], expected, atol=1e-12)
    np.testing.assert_array_equal(found.t2m_bin_left, edges[0][:-1])
    assert {"t2m_bin", "u_bin"} <= found.indexes.keys()


def test_samples_on_edges_are_in_the_bins_that_numpy_puts_them_in() -> None:
    rng = np.random.default_rng(1)
    x = xr.DataArray(rng.integers(-1, 5, (40, 3)), dims=("t", "y"), name="a")
    y = xr.DataArray(rng.integers(-1, 5, (40, 3)).astype("f4"), dims=("t", "y"), name="b")
    edges = [np.arange(4), np.array([0.0, 1, 2, 4])]
    found = x.chunk(t=7).coop.histogram(y.chunk(t=9), bins=edges, dim="t")
    for at in range(3):
        expected = np.histogram2d(x[:, at].values, y[:, at].values, edges)[0]
        np.testing.assert_array_equal(found[at], expected)


def test_ranges_that_are_found_stay_lazy() -> None:
    x = field()
    found = chunked(x).coop.histogram(bins=7)
    assert dask.is_dask_collection(found.t2m_bin.data)
    assert not found.indexes
    known = x.coop.histogram(bins=7)
    assert isinstance(known.data, np.ndarray)
    valid = x.values[np.isfinite(x.values)]
    expected, edges = np.histogram(valid, 7)
    for one in (found.compute(), known):
        np.testing.assert_array_equal(one, expected)
        np.testing.assert_array_equal(one.t2m_bin_right, edges[1:])
    assert "t2m_bin" in known.indexes
    assert "t2m_bin" in found.compute().set_xindex("t2m_bin").indexes
    joint = chunked(x).coop.histogram((chunked(x) + 1).rename("b"), bins=3)
    assert dask.is_dask_collection(joint.b_bin.data)
    np.testing.assert_array_equal(joint, np.histogram2d(valid, valid + 1, 3)[0])
    with pytest.raises(ValueError, match="NaN"):
        x.coop.histogram(bins=7, skipna=False)


def test_options_go_through() -> None:
    x, w = field().fillna(0), field().fillna(1)
    one, other = (
        x.chunk(time=n).coop.histogram(bins=EDGES, weights=w, reproducible=True) for n in (7, 20)
    )
    np.testing.assert_array_equal(one, other)
    rows = dc.explain(one.data)
    assert [row.operation for row in rows if row.served_by == "dask_coop"][-1] == "histogram"
    lists = x.coop.histogram(bins=[EDGES]), x.coop.histogram(bins=list(EDGES))
    xr.testing.assert_identical(*lists)
    same = x.coop.histogram(bins=4, range=(-9, 9)), x.coop.histogram(bins=[4], range=[(-9, 9)])
    xr.testing.assert_identical(*same)
    y = (x + 1).rename("b")
    for bins, limits in (
        (4, (-9, 9)),
        ([4, 4], [(-9, 9)] * 2),
        ((4, np.linspace(-9, 9, 5)), (-9, 9)),
    ):
        found = x.coop.histogram(y, bins=bins, range=limits)
        np.testing.assert_array_equal(
            found, np.histogram2d(x.values.ravel(), y.values.ravel(), 4, [(-9, 9)] * 2)[0]
        )
    lazy = chunked(x).coop.histogram(bins=da.from_array(EDGES))
    np.testing.assert_array_equal(lazy, counts(x.values, EDGES))


def test_ranges_may_be_lazy_and_numbers_of_bins_are_known() -> None:
    x = field().fillna(0)
    low, high = chunked(x).data.min(), delayed(9.0)
    with dask.config.set(scheduler=refuse):
        found = chunked(x).coop.histogram(bins=5, range=(low, high))
    expected, edges = np.histogram(x, 5, (x.values.min(), 9.0))
    done = found.compute()
    np.testing.assert_array_equal(done, expected)
    np.testing.assert_allclose(done.t2m_bin_left, edges[:-1])
    for bins in ("sturges", delayed(5)):
        known = x.coop.histogram(bins=bins)
        expected, edges = np.histogram(x, bins if isinstance(bins, str) else 5)
        np.testing.assert_array_equal(known, expected)
        np.testing.assert_array_equal(known.t2m_bin_left, edges[:-1])
        with pytest.raises(ValueError, match="only when it is computed"):
            chunked(x).coop.histogram(bins=bins)


def test_a_dataset_is_counted_by_names() -> None:
    x = field().fillna(0)
    ds = xr.Dataset({"t2m": x, "sst": x + 1})
    xr.testing.assert_identical(ds.coop.histogram("t2m", bins=EDGES), x.coop.histogram(bins=EDGES))
    given = {"bins": EDGES, "dim": "time"}
    found = ds.coop.histogram("t2m", "sst", weights="area", **given)
    expected = x.coop.histogram(ds.sst, weights=x.area, **given)
    xr.testing.assert_identical(found, expected)
    with pytest.raises(TypeError, match="takes names of variables"):
        ds.coop.histogram()


def test_what_cannot_be_counted_is_refused_with_what_would() -> None:
    x = field()
    y = x.rename("b")
    for call, error, words in (
        (lambda: x.rename(None).coop.histogram(), ValueError, "has no name"),
        (lambda: x.coop.histogram(x), ValueError, "names of their own"),
        (lambda: x.coop.histogram(weights=np.ones(3)), TypeError, "are a DataArray"),
        (lambda: x.coop.histogram(y, bins=4, dim="time"), ValueError, "range of 't2m'"),
        (lambda: x.coop.histogram(y, bins=[1.5, 2.5]), ValueError, "list with one for each"),
        (lambda: x.coop.histogram(bins=4, range=3), ValueError, "range of 1 arrays"),
        (lambda: x.coop.histogram(y.rename(x="z"), bins=4), ValueError, "has all its dimensions"),
        (lambda: x.coop.histogram(y.assign_coords(y=y.y + 1)), ValueError, "align"),
        (lambda: x.coop.histogram(dim="depth"), ValueError, "no dimension 'depth'"),
        (lambda: x.zone.coop.histogram(), TypeError, "does not take samples"),
    ):
        with pytest.raises(error, match=words):
            call()
