"""Groups by coordinates: what xarray's groupby and flox's xarray_reduce return."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from support.labelled import check, chunked, field, xr

import dask_coop as dc
import dask_coop.xarray

assert dask_coop.xarray
xarray_reduce: Any = pytest.importorskip("flox.xarray").xarray_reduce

pytestmark = pytest.mark.filterwarnings(
    "ignore:Degrees of freedom", "ignore:All-NaN slice", "ignore:invalid value encountered"
)


@pytest.mark.parametrize("by", ["zone", "time.month", "time", "y", "lat"])
@pytest.mark.parametrize("func", ["sum", "mean", "std", "min", "max", "count", "first", "median"])
def test_statistics_of_groups_are_xarrays(func: str, by: str) -> None:
    x = field()
    expected = getattr(x.groupby(by), func)()
    if func == "first" and by in ("time", "y"):
        # Of groups of one element each xarray returns the array itself.
        expected = expected.drop_vars({"time": ["zone"], "y": ["lat", "area"]}[by])
    check(chunked(x).coop.groupby_reduce(by, func=func), expected)


@pytest.mark.parametrize("skipna", [True, False, None])
@pytest.mark.parametrize("keep_attrs", [True, False, None])
def test_missing_elements_and_attributes_are_treated_as_xarray_does(
    skipna: Any, keep_attrs: Any
) -> None:
    x, given = field(), {"skipna": skipna, "keep_attrs": keep_attrs}
    expected = x.groupby("zone").mean(**given)
    check(chunked(x).coop.groupby_reduce("zone", func="mean", **given), expected)


def test_more_dimensions_than_the_labels_have_are_reduced() -> None:
    x = field()
    for dim in (("time", "x"), ...):
        expected = x.groupby("zone").mean(dim)
        check(chunked(x).coop.groupby_reduce("zone", func="mean", dim=dim), expected)
    with pytest.raises(ValueError, match=r"along dimensions of their labels, \['time'\]"):
        x.coop.groupby_reduce("zone", func="mean", dim="y")


def test_labels_are_arrays_of_some_dimensions() -> None:
    x = field()
    land = xr.where(x.area > 0.5, "land", "sea").rename("cover")
    turned = land.transpose("x", "y")
    expected = x.groupby(land).mean()
    for labels in (land, turned):
        check(chunked(x).coop.groupby_reduce(labels, func="mean"), expected)
    # Of some of their dimensions: what xarray has no groupby for.
    found = chunked(x).coop.groupby_reduce(land, func="sum", dim="x", fill_value=0)
    flox = xarray_reduce(x, land, func="sum", dim="x", fill_value=0)
    check(found, flox)


def test_several_labels_have_a_group_for_each_combination() -> None:
    x = field()
    month = x["time.month"]
    for by in (("zone", month), (month, x.lat > 0), ("y", "time.month")):
        arrays = [x[one] if isinstance(one, str) else one for one in by]
        expected = xarray_reduce(x, *arrays, func="mean")
        check(chunked(x).coop.groupby_reduce(*by, func="mean"), expected)


def test_bins_are_an_index_of_intervals() -> None:
    x = field()
    edges = [-60, 0, 20, 60]
    expected = x.groupby_bins("lat", edges).mean()
    found = chunked(x).coop.groupby_reduce("lat", func="mean", expected_groups=edges, isbin=True)
    check(found, expected)
    bins = pd.IntervalIndex.from_breaks(edges, closed="left")
    found = chunked(x).coop.groupby_reduce("lat", func="mean", expected_groups=bins)
    np.testing.assert_allclose(found, x.groupby_bins("lat", edges, right=False).mean())
    np.testing.assert_allclose(found.sel(lat_bins=3), found[:, 1])
    two = chunked(x).coop.groupby_reduce(
        "zone", "lat", func="max", expected_groups=(None, edges), isbin=(False, True)
    )
    flox = xarray_reduce(
        x, "zone", "lat", func="max", expected_groups=(None, edges), isbin=(False, True)
    )
    assert two.dims == flox.dims
    np.testing.assert_allclose(two, flox)


def test_groups_that_are_expected_are_filled() -> None:
    x = field()
    found = chunked(x).coop.groupby_reduce(
        "zone", func="mean", expected_groups=["e", "q", "a"], sort=False
    )
    assert list(found.zone.values) == ["e", "q", "a"]
    assert found.sel(zone="q").isnull().all()
    np.testing.assert_allclose(found.sel(zone="a"), x.groupby("zone").mean().sel(zone="a"))
    lazy = x.zone.chunk(time=6)
    with pytest.raises(ValueError, match="'zone' is lazy, so that"):
        chunked(x).coop.groupby_reduce(lazy, func="mean")
    found = chunked(x).coop.groupby_reduce(lazy, func="mean", expected_groups=list("abcde"))
    check(found, x.groupby("zone").mean())


def test_several_statistics_are_a_dataset_of_one_read() -> None:
    x = field()
    found = chunked(x).coop.groupby_reduce("zone", func=["mean", "std", "count"])
    assert list(found.data_vars) == ["mean", "std", "count"]
    without = x.coop.groupby_reduce("zone", func=["mean", "std"], keep_attrs=False)
    assert not without["mean"].attrs
    assert not without["std"].attrs
    for name, one in found.items():
        check(one, getattr(x.groupby("zone"), name)().rename(name))
    span = dc.Monoid(
        "span",
        np.maximum,
        -np.inf,
        ("f8", (2,)),
        lift=lambda x: np.stack([x, -x], -1),
        finalize=lambda v: v[..., 0] + v[..., 1],
    )
    y = x.fillna(0)
    found = chunked(y).coop.groupby_reduce("zone", func=[span])["span"]
    np.testing.assert_allclose(found, y.groupby("zone").max() - y.groupby("zone").min())


@pytest.mark.parametrize("q", [0.5, [0.1, 0.9]], ids=str)
def test_quantiles_of_groups_have_a_dimension_behind_all_others(q: Any) -> None:
    x = field()
    expected = x.groupby("zone").quantile(q)
    check(chunked(x).coop.groupby_reduce("zone", func="quantile", q=q), expected)


def test_variances_take_what_they_divide_by() -> None:
    x = field()
    expected = x.groupby("zone").var(ddof=1)
    check(chunked(x).coop.groupby_reduce("zone", func="var", ddof=1), expected)


def test_pairs_of_groups_are_those_of_xarrays_cov_and_corr() -> None:
    x = field()
    y = (2 * x + np.random.default_rng(1).normal(size=x.shape)).transpose("x", "time", "y")
    lazy = chunked(x).coop.groupby_reduce("zone", func=["cov", "corr"], y=y.chunk(time=3))
    in_memory = x.coop.groupby_reduce("zone", func="cov", y=y, ddof=0)
    assert dask.is_dask_collection(lazy["cov"].data)
    assert type(in_memory.data) is np.ndarray
    zones = [(zone, a, y.sel(time=a.time)) for zone, a in x.groupby("zone")]
    for zone, a, b in zones:
        of_zone = lazy.sel(zone=zone)
        for got, want in (
            (of_zone["cov"], xr.cov(a, b, "time")),
            (of_zone["corr"], xr.corr(a, b, "time")),
            (in_memory.sel(zone=zone), xr.cov(a, b, "time", ddof=0)),
        ):
            np.testing.assert_allclose(got, want, 1e-10)
    spoiled = x.coop.groupby_reduce("zone", func="cov", y=y, skipna=False)
    assert np.isnan(spoiled).sum() > np.isnan(in_memory).sum()


def test_either_variable_of_pairs_may_have_fewer_dimensions() -> None:
    x = field().fillna(0)
    days = xr.DataArray(np.arange(20.0) ** 2, {"time": x.time, "zone": x.zone}, "time", "days")
    lazy = days.coop.groupby_reduce("zone", func="slope", y=chunked(x))
    other = chunked(x).coop.groupby_reduce("zone", func="slope", y=days)
    assert lazy.dims == other.dims == ("zone", "y", "x")
    assert (lazy.name, other.name) == ("days", "t2m")
    for zone in "abcde":
        there = x.zone == zone
        a, b = days[there].values, x[there].values.reshape(4, -1)
        for got, slope in ((lazy, np.polyfit(a, b, 1)[0]), (other, None)):
            line = got.sel(zone=zone).values.reshape(-1)
            if slope is None:
                slope = [np.polyfit(column, a, 1)[0] for column in b.T if np.ptp(column)]
                line = line[np.ptp(b, 0) > 0]
            np.testing.assert_allclose(line, slope, 1e-9)
    with pytest.raises(ValueError, match="which has no dimension 'time'"):
        days.coop.groupby_reduce("zone", func="cov", y=x.isel(time=0))
    with pytest.raises(ValueError, match="cannot align"):
        x.coop.groupby_reduce("zone", func="cov", y=x.isel(time=slice(3, 9)))


@pytest.mark.parametrize("by", ["zone", "time.month"])
def test_scans_of_groups_are_xarrays(by: str) -> None:
    x = field()
    expected = x.groupby(by).cumsum("time").transpose(*x.dims)
    check(
        chunked(x).coop.groupby_scan(by, func="cumsum", dim="time"),
        expected.assign_coords(x.coords),
    )
    host = x.fillna(0)
    moved = chunked(host).coop.groupby_scan("y", func="cumsum", dim="time", keep_attrs=False)
    # Each of its labels is along another dimension, so that there is one group of each line.
    np.testing.assert_allclose(moved, host.cumsum("time"))
    assert moved.attrs == {}


def test_what_is_not_lazy_is_computed() -> None:
    x = field()
    for found in (
        x.coop.groupby_reduce("zone", func="mean"),
        x.coop.groupby_reduce("zone", func=["mean"])["mean"],
        x.coop.groupby_scan("zone", func="cumsum", dim="time"),
    ):
        assert isinstance(found.data, np.ndarray)
    xr.testing.assert_allclose(x.coop.groupby_reduce("zone", func="mean"), x.groupby("zone").mean())


def test_labels_that_do_not_fit_are_refused_with_what_would() -> None:
    x = field()
    stacked = x.stack(cell=("y", "x"))
    with pytest.raises(TypeError, match="'cell' has a MultiIndex; group by levels of it: 'y', 'x'"):
        stacked.coop.groupby_reduce("cell", func="mean")
    # Its levels are labels like any other.
    y = stacked.dropna("cell", how="all")
    xr.testing.assert_allclose(
        y.coop.groupby_reduce("y", func="mean").drop_vars("y"),
        y.groupby("y").mean().drop_vars("y"),
    )
    for by, error, words in (
        ("zones", KeyError, "no coordinate 'zones' to group by"),
        (x.zone.rename(None), ValueError, "have no name"),
        (xr.DataArray([1, 2], dims="z", name="z"), ValueError, "has no 'z'"),
        (x.y.assign_coords(y=x.y + 1), ValueError, "align"),
        (3, KeyError, "no coordinate 3"),
        (x.zone.rename("x"), ValueError, "keeps one of that name; rename the labels"),
    ):
        with pytest.raises(error, match=words):
            x.coop.groupby_reduce(by, func="mean")
    with pytest.raises(TypeError, match="groups need labels"):
        x.coop.groupby_reduce(func="mean")
    with pytest.raises(
        TypeError, match=r"y is a DataArray, .* got ndarray; xr.DataArray\(y, dims="
    ):
        x.coop.groupby_reduce("zone", func="cov", y=x.values)
    with pytest.raises(ValueError, match="does not know func='modal'"):
        x.coop.groupby_reduce("zone", func="modal")
