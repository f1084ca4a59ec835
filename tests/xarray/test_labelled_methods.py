"""Methods along named dimensions: xarray's own results, names, coordinates and attributes."""

from __future__ import annotations

import doctest
import inspect
import re
from collections import Counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask.array.utils import same_keys
from scipy import stats
from support.calls import refuse
from support.clusters import cluster, wait_for
from support.labelled import check, chunked, field, xr

import dask_coop as dc
from dask_coop.xarray import CoopDataArray, CoopDataset, methods

# xarray's functions say what they meet where all is NaN; ours do not, and are as right.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Degrees of freedom",
    "ignore:All-NaN slice",
    "ignore:invalid value encountered",
    "ignore:overflow",
)

DIMS = [None, ..., "time", "y", ("time", "x"), ["x", "y"]]


@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "min", "max", "count"])
def test_reductions_are_xarrays(name: str, dtype: str, dim: Any) -> None:
    x = field(dtype)
    check(getattr(chunked(x).coop, name)(dim), getattr(x, name)(dim))


@pytest.mark.parametrize("name", ["sum", "mean", "std", "max", "median"])
@pytest.mark.parametrize("skipna", [True, False, None])
@pytest.mark.parametrize("keep_attrs", [True, False, None])
def test_missing_elements_and_attributes_are_treated_as_xarray_does(
    name: str, skipna: Any, keep_attrs: Any
) -> None:
    x, given = field(), {"skipna": skipna, "keep_attrs": keep_attrs}
    check(getattr(chunked(x).coop, name)("time", **given), getattr(x, name)("time", **given))


@pytest.mark.parametrize("option", [True, False, "default"])
def test_xarrays_option_says_whether_attributes_are_kept(option: Any) -> None:
    x = field()
    with xr.set_options(keep_attrs=option):
        for name in ("mean", "cumsum"):
            check(getattr(chunked(x).coop, name)("time"), getattr(x, name)("time"))
    assert x.coop.mean(keep_attrs=True).attrs == x.attrs
    assert x.coop.cumsum("y", keep_attrs=False).attrs == {}


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        *((name, dim) for name in ("argmin", "argmax") for dim in ("time", "y")),
        *((name, "time") for name in ("any", "all")),
        *(("median", dim) for dim in (None, "time", ("y", "x"))),
    ],
)
def test_indices_truths_and_medians_are_xarrays(name: str, dim: Any) -> None:
    x = {"median": field(), "any": field() > 0, "all": field() > 0}.get(name, field().fillna(0))
    check(getattr(chunked(x).coop, name)(dim), getattr(x, name)(dim))


def test_what_xarray_has_no_word_for_is_numpys() -> None:
    x = field().fillna(0)
    lazy = chunked(x).coop
    check(lazy.ptp("y"), x.max("y") - x.min("y"))
    check(lazy.count_nonzero(("y", "x")), (x != 0).sum(("y", "x")).assign_attrs(x.attrs))
    check(lazy.norm("time"), (x**2).sum("time") ** 0.5)
    check(lazy.norm("time", ord=1), abs(x).sum("time"))
    check(lazy.moment(3, "time"), ((x - x.mean("time")) ** 3).mean("time"))
    check(lazy.reduce(np.maximum, "time"), x.max("time"))


@pytest.mark.parametrize("dim", [None, "time", ("time", "x")], ids=str)
@pytest.mark.parametrize("q", [0.3, [0.1, 0.5, 0.9]], ids=str)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
def test_quantiles_have_xarrays_coordinate(q: Any, dim: Any, dtype: str) -> None:
    x = field(dtype)
    # xarray drops a coordinate that has no dimension.
    expected = x.drop_vars("level").quantile(q, dim).assign_coords(level=500)
    percents = [30] if q == 0.3 else [10, 50, 90]
    for found in (
        chunked(x).coop.quantile(q, dim),
        chunked(x).coop.percentile(percents if isinstance(q, list) else percents[0], dim),
    ):
        assert found.dtype == expected.dtype
        check(found, expected)


def test_quantiles_by_other_methods_and_of_what_is_lazy() -> None:
    x = field().drop_vars("level")
    expected = x.quantile([0.5], "time", method="lower", skipna=False)
    check(chunked(x).coop.quantile([0.5], "time", method="lower", skipna=False), expected)
    found = chunked(x).coop.quantile(da.from_array([0.5]), "time", skipna=False)
    assert found.dims == ("quantile", "y", "x")
    assert "quantile" not in found.coords
    with pytest.raises(ValueError, match="one dimension at most, got 2"):
        chunked(x).coop.quantile([[0.1, 0.2]], "time")


@pytest.mark.parametrize("dim", ["time", "y"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", ["f8", "i4"])
def test_cumulative_functions_are_xarrays(name: str, dim: str, dtype: str) -> None:
    x = field(dtype) if name == "cumsum" else (field(dtype) % 3).astype(dtype)
    check(getattr(chunked(x).coop, name)(dim), getattr(x, name)(dim))
    check(getattr(chunked(x).coop, name)(dim, skipna=False), getattr(x, name)(dim, skipna=False))


def test_other_scans_keep_labels() -> None:
    x = field().fillna(0)
    host = x.values
    check(chunked(x).coop.cummax("time"), x.copy(data=np.maximum.accumulate(host, 0)))
    check(chunked(x).coop.cummin("y"), x.copy(data=np.minimum.accumulate(host, 1)))
    check(chunked(x).coop.logcumsumexp("x"), x.copy(data=np.logaddexp.accumulate(host, 2)))
    check(chunked(x).coop.scan(dc.monoids.MAX, "time"), x.copy(data=np.maximum.accumulate(host, 0)))


def test_states_are_combined_by_dimension() -> None:
    x = chunked(field())
    one, other = (
        x.coop.sum(("time", "x"), split_every=n) for n in ({"time": 2, "x": 2}, {"time": 3, "x": 2})
    )
    assert len(one.data.dask) > len(other.data.dask)
    check(one, field().sum(("time", "x")))


def test_a_scan_that_is_longer_has_no_coordinates_along_its_dimension() -> None:
    x = field().fillna(0)
    found = chunked(x).coop.cumsum("time", include_initial=True)
    assert found.sizes == {"time": 21, "y": 6, "x": 5}
    assert set(found.coords) == {"y", "lat", "area", "level"}
    np.testing.assert_allclose(found[1:], x.cumsum("time"))


def test_segments_find_their_dimensions_by_name() -> None:
    x = field().fillna(0)
    heads = x.zone == "a"
    expected = x.groupby(heads.cumsum("time").rename("g")).cumsum("time").transpose(*x.dims)
    expected = expected.drop_vars("g", errors="ignore")
    beside = heads.broadcast_like(x).transpose("x", "time", "y")
    for segments in (heads, heads.variable, heads.chunk(time=3), beside):
        check(chunked(x).coop.cumsum("time", segments=segments), expected)
    by_rows = x.groupby((x.y % 20 == 0).cumsum("y").rename("g")).cumsum("y").transpose(*x.dims)
    found = chunked(x).coop.cumsum("y", segments=x.y % 20 == 0)
    np.testing.assert_allclose(found, by_rows)
    with pytest.raises(np.exceptions.AxisError):
        dc.cumsum(x, axis=3, segments=heads)


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("name", ["ffill", "bfill"])
def test_fills_are_xarrays(name: str, limit: int | None) -> None:
    x = field()
    x[{"time": slice(4, 9)}] = np.nan
    with xr.set_options(use_bottleneck=True):
        expected = getattr(x, name)("time", limit)
    check(getattr(chunked(x).coop, name)("time", limit), expected)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(("window", "least"), [(5, 2), (9, None), (3, 3)])
@pytest.mark.parametrize("name", ["sum", "mean", "std", "var", "min", "max"])
def test_windows_are_xarrays(name: str, window: int, least: int | None, center: bool) -> None:
    x = field()
    rolling = x.rolling(time=window, min_periods=least, center=center)
    found = getattr(chunked(x).coop, f"move_{name}")("time", window, least, center=center)
    check(found, getattr(rolling, name)())


def test_weighted_means_are_pandas() -> None:
    x = field().isel(y=0, x=0)
    expected = x.to_pandas().ewm(span=4, min_periods=2).mean()
    found = chunked(x).coop.ewm_mean("time", span=4, min_periods=2)
    check(found, x.copy(data=expected))


@pytest.mark.parametrize(
    ("coord", "unit"), [("time", "D"), ("time", None), ("y", None), ("lat", None)]
)
def test_integrals_are_xarrays(coord: str, unit: str | None) -> None:
    x = field().fillna(0)
    expected = x.cumulative_integrate(coord, datetime_unit=unit).assign_attrs(x.attrs)
    check(chunked(x).coop.cumulative_trapezoid(coord, datetime_unit=unit), expected)


def test_boxes_go_along_named_dimensions() -> None:
    x = field().fillna(0)
    expected = x.rolling(x=3, center=True).mean()[..., 1:-1]
    found = chunked(x).coop.box_filter(x=3)
    check(found[..., 1:-1], expected)
    wrapped = x.pad(x=1, mode="wrap").rolling(x=3, center=True).mean()[..., 1:-1]
    check(chunked(x).coop.box_filter({"x": 3}, mode="wrap"), wrapped)
    check(chunked(x).coop.integral_image(("y", "x")), x.cumsum("y").cumsum("x"))


def test_order_along_a_dimension_drops_its_coordinates() -> None:
    x = field().fillna(0)
    lazy = chunked(x).coop
    left = x.isel(time=0, drop=True).coords
    expected = np.sort(x.values, 0)
    for found, wanted in (
        (lazy.sort("time"), expected),
        (lazy.topk(3, "time"), expected[:-4:-1]),
        (lazy.argtopk(-1, "time"), x.values.argmin(0)[np.newaxis]),
        (lazy.argsort("time", stable=True), np.argsort(x.values, 0, kind="stable")),
    ):
        np.testing.assert_array_equal(found, wanted)
        assert found.dims == x.dims
        assert found.name == "t2m"
        assert found.attrs == x.attrs
        xr.testing.assert_identical(found.coords.to_dataset(), left.to_dataset())


def test_ranks_and_repeats_leave_nan_out_as_xarray_does() -> None:
    x = field().round(-1)
    x[:, 2, 3] = 0  # SciPy warns of lines of NaN
    lazy = chunked(x).coop
    check(lazy.rankdata("time"), x.copy(data=stats.rankdata(x, axis=0, nan_policy="omit")))
    everywhere = lazy.rankdata("y", method="min", skipna=False)
    check(everywhere, x.copy(data=stats.rankdata(x, "min", axis=1, nan_policy="propagate")))
    for skipna, policy in ((None, "omit"), (False, "propagate")):
        found = lazy.mode("time", skipna=skipna)
        modes, counts = stats.mode(x.values, nan_policy=policy)
        check(found.mode, x.max("time").copy(data=modes))
        check(found.count, x.max("time").copy(data=counts.astype("i8")))
    distinct = [pd.Series(line).nunique() for line in x.values.reshape(20, 30).T]
    check(lazy.nunique("time"), x.max("time").copy(data=np.reshape(distinct, (6, 5))))
    assert not hasattr(CoopDataset, "mode")


def test_several_results_are_a_tuple_of_arrays() -> None:
    x = field().fillna(0)
    lazy = (chunked(x) > 0).coop.run_events("time", x, keep_attrs=False)
    eager = (x > 0).coop.run_events("time", x)
    assert isinstance(eager.sum.data, np.ndarray)
    for one, other in zip(lazy, eager, strict=True):
        check(one, other.drop_attrs(deep=False))
    assert (x > 0).coop.run_events("time").sum is None
    assert not lazy.sum.attrs


def test_a_description_is_a_dataset_of_one_read() -> None:
    x = field()
    found = chunked(x).coop.describe(("y", "x"))
    for name in ("count", "min", "max", "sum", "mean", "var", "std"):
        check(found[name], getattr(x, name)(("y", "x")).rename(name))
    check(found["nans"], x.isnull().sum(("y", "x")).assign_attrs(x.attrs).rename("nans"))
    assert list(found.data_vars) == list(dc.Description._fields)
    rows = dc.explain([one.data for one in found.values()])
    assert [row.operation for row in rows if row.served_by == "dask_coop"] == [
        "count, max, mean, min, nans, std, sum, var"
    ]
    assert not x.coop.describe(keep_attrs=False)["mean"].attrs
    assert set(x.time.coop.describe()) == {"count", "nans", "min", "max", "mean", "std"}


def test_value_counts_have_the_values_as_coordinate() -> None:
    x = field().zone
    for given in (x, x.chunk(time=7)):
        found = given.coop.value_counts(sort=False)
        expected = xr.DataArray([4] * 5, {"zone": list("abcde")}, "zone", "count")
        xr.testing.assert_identical(found, expected)
    shares = field("i4").rename(None).coop.value_counts(n=1, normalize=True)
    assert shares.dims == ("value",)
    assert shares.name == "proportion"


def test_labels_beside_the_elements_find_their_dimensions_by_name() -> None:
    x = field()
    turned = (x > 0).transpose("x", "time", "y")
    check(chunked(x).coop.sum("time", where=turned), x.where(x > 0).sum("time"))
    check(chunked(x).coop.sum(where=x.lat > 0), x.where(x.lat > 0).sum())
    weights = xr.where(x.lat > 0, 2, 1)
    twice = xr.concat([x, x.where(x.lat > 0, drop=True)], "y", coords="minimal", compat="override")
    found = chunked(x).coop.quantile(
        0.5, ("time", "y", "x"), weights=weights, method="inverted_cdf", skipna=True
    )
    assert found == twice.quantile(0.5, method="inverted_cdf")
    with pytest.raises(ValueError, match="align"):
        chunked(x).coop.sum(where=(x.y > 0).assign_coords(y=x.y + 1))
    with pytest.raises(ValueError, match="has no dimension 'z'"):
        chunked(x).coop.sum(where=xr.DataArray([True], dims="z"))


@pytest.mark.parametrize("name", ["mean", "cumsum", "move_sum", "quantile", "describe", "topk"])
def test_what_is_not_lazy_is_computed_and_what_is_stays_lazy(name: str) -> None:
    given = {"move_sum": ("time", 3), "quantile": (0.5, "time"), "topk": (2, "time")}
    x, args = field().fillna(0), given.get(name, ("time",))
    eager, lazy = getattr(x.coop, name)(*args), getattr(chunked(x).coop, name)(*args)
    for one in eager.data_vars.values() if name == "describe" else [eager]:
        assert isinstance(one.data, np.ndarray)
    xr.testing.assert_allclose(eager, lazy.compute())
    assert dask.is_dask_collection(lazy)


def test_nothing_is_computed_while_graphs_are_built() -> None:
    x = chunked(field())
    w = np.cos(np.deg2rad(x.lat))
    with dask.config.set(scheduler=refuse):
        x.coop.histogram(weights=w)
        x.coop.histogram((x + 1).rename("b"), bins=4, range=(-1, 1), dim="time")
        x.coop.groupby_reduce("time.month", func=["mean", "median"])
        x.coop.groupby_scan("zone", func="cumsum", dim="time")
        x.coop.describe()
        x.coop.cumulative_trapezoid("time")
        x.coop.box_filter(x=3)
        for row in methods.ROWS:
            given = {"order": 2, "q": 0.5, "k": 2, "window": 3, "monoid": dc.monoids.MAX}
            args = [given.get(name, "time") for name in row.positional[:2]]
            if row.name == "reduce":
                args[0] = np.maximum
            options = {"move_quantile": {"q": 0.5}}.get(row.name, {})
            if row.name.startswith("ewm_"):
                options = {"alpha": 0.5}
            if row.name in ("ewm_cov", "ewm_corr"):
                args[0] = x
            if row.name in ("move_cov", "move_corr"):
                args, options = [x, "time"], {"window": 3}
            if row.name in ("any", "all"):
                args[0] = ("time", "y")
            if row.name in ("ffill", "bfill"):
                args[1:] = [2]
            if row.name == "integral_image":
                args[0] = ["time"]
            if "min_length" in row.positional:
                args[1:] = [2]
            if row.name == "run_events":
                args[1:] = [x, 2]
            of = x > 0 if "run" in row.name else x
            getattr(of.coop, row.name)(*args, **options)


#: Calls of xarray's methods along a dimension in several chunks, and what is reported of them.
LIKE_XARRAY = {
    "x.interpolate_na('time')": "interpolate_na",
    "x.interpolate_na('time', limit=1, keep_attrs=False)": "interpolate_na",
    "x.interp(time=x.time.values[2:7] + np.timedelta64(5, 'h'))": "interp",
    "x.interp_like(x[2:7], method='nearest')": "interp",
    "x.rank('time', pct=True)": "rank",
    "x.polyfit('time', 1)": "polyfit",
    "x.to_dataset(name='t').interpolate_na('time')": "interpolate_na",
}


@pytest.mark.parametrize("call", LIKE_XARRAY)
def test_methods_of_xarrays_take_dimensions_in_several_chunks(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bottleneck" if "rank" in call else "scipy")
    counts: Counter[Any] = Counter()
    monkeypatch.setattr("dask_coop.api.call.report._calls", counts)
    name = re.findall(r"\.(\w+)\(", call)[-1 if "to_dataset" in call else 0]
    ours = call.replace(f".{name}(", f".coop.{name}(", 1)
    x = field()
    expected = eval(call, {"x": x, "np": np})
    with dask.config.set(scheduler=refuse):
        lazy = eval(ours, {"x": chunked(x), "np": np})
    assert dask.is_dask_collection(lazy)
    xr.testing.assert_allclose(lazy.compute(), expected)
    assert lazy.attrs == expected.attrs
    assert (LIKE_XARRAY[call], "dask_coop") in {(key[0], key[2]) for key in counts}
    xr.testing.assert_identical(eval(ours, {"x": x, "np": np}), expected)


def test_weighted_quantiles_are_xarrays() -> None:
    x = field()
    w = np.cos(np.deg2rad(x.lat))
    times = xr.DataArray(np.arange(1.0, 1 + x.sizes["time"]), dims="time")
    for q, dim, weights in ((0.3, "time", times), ([0.1, 0.9], ("y", "x"), w), (0.5, None, w)):
        expected = x.weighted(weights).quantile(q, dim=dim, keep_attrs=True)
        found = chunked(x).coop.weighted_quantile(q, weights, dim, keep_attrs=True)
        assert dask.is_dask_collection(found)
        xr.testing.assert_allclose(found.compute(), expected)
        assert found.attrs == expected.attrs
    with pytest.raises(ValueError, match="no dimension"):
        x.coop.weighted_quantile(0.5, w, "height")


def test_the_same_call_gives_the_same_keys() -> None:
    for call in (
        lambda x: x.coop.mean("time"),
        lambda x: x.coop.sum("time", where=x.lat > 0),
        lambda x: x.coop.histogram((x + 1).rename("b"), bins=4, range=(-1, 1), dim="time"),
        lambda x: x.coop.groupby_reduce("zone", func="mean"),
    ):
        assert same_keys(call(chunked(field())).data, call(chunked(field())).data)


def test_indexes_of_several_coordinates_stay_whole() -> None:
    x = field().drop_vars(["lat", "area"]).stack(cell=("y", "x"))
    lazy = x.copy(data=da.from_array(x.values, chunks=(7, 11)))
    check(lazy.coop.mean("time"), x.mean("time"))
    check(lazy.coop.sum("cell"), x.sum("cell"))
    check(lazy.coop.cumsum("time"), x.cumsum("time"))
    check(
        lazy.coop.quantile([0.1, 0.9], "time"),
        x.quantile([0.1, 0.9], "time").assign_coords(level=500),
    )
    assert set(lazy.coop.sort("cell").coords) == {"time", "zone", "level"}
    assert lazy.coop.histogram(bins=3, range=(-9, 9), dim="time").indexes["cell"].nlevels == 2


#: What tasks of which of our functions serve each method.
SERVED = {
    "mean": "nanmean",
    "std": "nanstd",
    "median": "nanmedian",
    "cumsum": "nancumsum",
    "cummax": "cummax",
    "ffill": "ffill",
    "argmax": "nanargmax",
}


@pytest.mark.parametrize("name", SERVED)
def test_graphs_are_made_of_our_tasks(name: str) -> None:
    found = getattr(chunked(field()).coop, name)("time")
    rows = dc.explain(found.data)
    served = {row.operation: row.served_by for row in rows}
    assert served.get(SERVED[name]) == "dask_coop", rows


def test_windows_groups_and_histograms_are_made_of_our_tasks() -> None:
    x = chunked(field())
    for found, operation in (
        (x.coop.move_mean("time", 3), "move_mean"),
        (x.coop.histogram(bins=3, range=(0, 1)), "histogram"),
        (x.coop.groupby_reduce("time.month", func="mean"), "groupby-nanmean"),
    ):
        rows = dc.explain(found.data)
        assert any(row.operation == operation and row.served_by == "dask_coop" for row in rows), (
            rows
        )


def test_a_dataset_has_each_of_its_variables_done() -> None:
    x = field()
    ds = xr.Dataset(
        {"t2m": x, "sst": x * 2, "height": ("y", np.arange(6.0)), "name": ("y", list("abcdef"))},
        attrs={"source": "model"},
    )
    lazy = ds.assign(t2m=chunked(x), sst=chunked(x * 2))
    numeric = ds.drop_vars("name")
    for dim in ("time", ("time", "y")):
        found = lazy.coop.mean(dim)
        assert found.attrs == ds.attrs
        xr.testing.assert_allclose(found.compute(), numeric.mean(dim))
    found = lazy.coop.mean()
    xr.testing.assert_allclose(found.compute(), numeric.mean())
    xr.testing.assert_allclose(
        lazy.coop.cumsum("time").compute(),
        xr.merge([numeric[["t2m", "sst"]].cumsum("time"), numeric[["height"]]]),
    )
    xr.testing.assert_identical(
        lazy.coop.count("time")[["t2m", "sst"]].compute(), ds[["t2m", "sst"]].count("time")
    )
    quantiles = lazy.coop.quantile([0.1, 0.9], "time")
    assert quantiles["t2m"].dims == ("quantile", "y", "x")
    assert quantiles["height"].dims == ("y",)
    means = lazy.coop.groupby_reduce("zone", func="mean")
    xr.testing.assert_allclose(means["sst"].compute(), (x * 2).groupby("zone").mean().rename("sst"))
    assert "name" not in means
    with pytest.raises(ValueError, match="no dimension 'depth'"):
        lazy.coop.mean("depth")
    with pytest.raises(TypeError, match="one func at a time"):
        lazy.coop.groupby_reduce("zone", func=["mean"])


def test_no_dimension_of_that_name() -> None:
    x = field()
    for call in (
        lambda: x.coop.mean("depth"),
        lambda: x.coop.cumsum("depth"),
        lambda: x.coop.describe(["time", "depth"]),
        lambda: x.coop.box_filter(depth=3),
    ):
        with pytest.raises(ValueError, match=r"no dimension 'depth' among \('time', 'y', 'x'\)"):
            call()
    with pytest.raises(ValueError, match=r"dim is one of .* got \('time', 'y'\)"):
        x.coop.cumsum(("time", "y"))
    with pytest.raises(TypeError, match="missing a required argument: 'dim'"):
        x.coop.cumsum()
    with pytest.raises(TypeError, match="unexpected keyword argument 'axis'"):
        x.coop.sum(axis=0)
    with pytest.raises(KeyError, match="no coordinate 'depth'"):
        x.coop.cumulative_trapezoid("depth")
    with pytest.raises(ValueError, match="one dimension, and 'area' has"):
        x.coop.cumulative_trapezoid("area")
    with pytest.raises(ValueError, match="a length along each dimension"):
        x.coop.box_filter()


METHODS = [
    getattr(owner, name)
    for owner in (CoopDataArray, CoopDataset)
    for name in vars(owner)
    if not name.startswith("_")
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_help_on_a_method_tells_of_its_parameters(method: Any) -> None:
    text = inspect.getdoc(method)
    assert text
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", text, flags=re.MULTILINE)
    assert parts[1::2][:3] == ["Parameters", "Returns", "Raises"]
    entries = re.findall(r"^(\*{0,2}\w[\w, ]*)(?: :.*)?$", parts[2], flags=re.MULTILINE)
    named = {name.strip("* ") for entry in entries for name in entry.split(",")}
    assert named == set(inspect.signature(method).parameters) - {"self"}
    assert not re.search(r"\bax[ei]s\b|:func:`(?!dask_coop|numpy)", text)
    assert parts[0].strip().endswith(".") or ";" in parts[0]


def test_signatures_are_those_that_are_told() -> None:
    told = {
        "sum": "(dim=None, *, dtype=None, keepdims=False, split_every=None, initial=None, "
        "where=True, reproducible=False, skipna=None, keep_attrs=None, engine='auto')",
        "quantile": "(q, dim=None, *, method='linear', keepdims=False, weights=None, "
        "split_every=None, recompute=False, error=None, skipna=None, keep_attrs=None, "
        "engine='auto')",
        "move_mean": "(dim, window, min_count=None, *, center=False, keep_attrs=None)",
        "sort": "(dim, *, kind=None, stable=None, descending=None, keep_attrs=None)",
    }
    for name, signature in told.items():
        assert str(inspect.signature(getattr(field().coop, name))) == signature


def test_examples_of_the_accessors_run() -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for owner in (CoopDataArray, CoopDataset):
        for example in finder.find(owner, owner.__name__):
            runner.run(example)
    assert runner.failures == 0
    assert runner.tries >= 20


def test_what_lies_on_a_cluster_is_worked_on_there_by_messages() -> None:
    x = field()
    with cluster(2) as client:
        there = x.copy(data=client.persist(da.from_array(x.values, chunks=(7, 6, 5))))
        wait_for(there.data)
        mean = there.coop.mean("time", engine="collective")
        running = there.coop.cumsum("time", engine="collective")
        counted = there.coop.histogram(bins=4, range=(-9, 9), engine="collective")
        # Values are there when the call returns, and those of scans stay on the cluster.
        assert isinstance(mean.data, np.ndarray)
        assert isinstance(counted.data, np.ndarray)
        assert len(running.data.dask.layers) == 1
        with client.as_current():
            xr.testing.assert_allclose(running.compute(), x.cumsum("time"))
    xr.testing.assert_allclose(mean, x.mean("time"))
    xr.testing.assert_identical(counted, x.coop.histogram(bins=4, range=(-9, 9)))


def test_axes_named_as_parameters_are() -> None:
    array = xr.DataArray([[1.0, 2, 4], [0, 3, 3]], dims=("function", "x"))
    array = array.assign_coords(x=[0, 1, 2], function=[0, 1])
    lazy = array.chunk(x=2)
    xr.testing.assert_allclose(lazy.coop.interp(x=[0.5, 1.5]).compute(), array.interp(x=[0.5, 1.5]))
    at = {"function": 0.5, "x": 1}
    xr.testing.assert_allclose(lazy.coop.interp(**at).compute(), array.interp(**at))
