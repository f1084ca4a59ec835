"""xarray's functions of whole lines, with ours installed, of lines in several chunks.

`test_installed_xarray` holds their results to xarray's; here are who served them, how, and what
its calls do not draw.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from dask.callbacks import Callback

import dask_coop as dc

xr: Any = pytest.importorskip("xarray")
pd: Any = pytest.importorskip("pandas")
pytest.importorskip("flox")
pytest.importorskip("scipy")

from support.xarray_calls import field, outcome  # noqa: E402

from dask_coop.api import interpolation  # noqa: E402

#: Calls by what is reported of them.
SERVED = {
    "x.interpolate_na('time')": "interpolate_na",
    "x.interpolate_na('time', method='nearest', limit=2)": "interpolate_na",
    "x.interpolate_na('time', method='pchip')": "interpolate_na",
    "x.interp(time=pd.date_range('2001-01-01 05:00', periods=9, freq='11h'))": "interp",
    "x.resample(time='6h').interpolate('linear')": "interp",
    "x.rank('time')": "rank",
    "x.weighted(w).quantile(0.3)": "weighted.quantile",
    "x.rolling_exp(time=3).mean()": "rolling_exp.mean",
    "x.polyfit('time', 1).polyfit_coefficients": "polyfit",
}


#: xarray's function that a call is left to.
LEFT = "apply_variable_ufunc"


def whole_lines(x: Any) -> bool:
    """Return whether a graph has a block with all elements along the first dimension."""
    return any("rechunk-merge" in str(key) for key in x.__dask_graph__())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str, str, str]]:
    """Return the counts of calls from here on."""
    calls: Counter[tuple[str, str, str, str]] = Counter()
    monkeypatch.setattr("dask_coop.api.call.report._calls", calls)
    return calls


@pytest.mark.parametrize("call", SERVED)
def test_calls_are_served_by_us(call: str, served: Counter[tuple[str, str, str, str]]) -> None:
    if "rank" in call:
        pytest.importorskip("bottleneck")
    found = outcome(call, field("f8"), installed=True)
    assert not isinstance(found, Exception), found
    names = {(name, by) for name, _, by, _ in served}
    assert (SERVED[call], "dask_coop") in names
    differs = {name: why for name, _, _, why in served}
    assert ("chunks" in differs[SERVED[call]]) == (SERVED[call] == "interp")
    assert "Dask" not in {by for _, by in names}


@pytest.mark.parametrize("call", SERVED)
def test_nothing_is_computed_before_it_is_wanted(call: str) -> None:
    if "rank" in call:
        pytest.importorskip("bottleneck")
    x = field("f8")
    x.data = x.data.map_blocks(_raise, dtype="f8", meta=x.data._meta)
    assert lazily(call, x).chunks is not None


@pytest.mark.parametrize("call", SERVED)
def test_a_call_has_the_same_keys_again(call: str) -> None:
    if "rank" in call:
        pytest.importorskip("bottleneck")
    first, again = (lazily(call, field("f4")).data.name for _ in range(2))
    assert first == again


def lazily(call: str, x: Any) -> Any:
    """Return the lazy result of a call, with ours installed."""
    w = xr.DataArray(np.ones(6), {"y": x.y}, "y")
    with dc.installed():
        return eval(call, {"x": x, "w": w, "pd": pd})


@pytest.mark.parametrize(
    "call", ["x.interpolate_na('t')", "x.interp(t=[3.5, 20.5])", "x.polyfit('t', 1)"]
)
def test_arrays_of_dask_array_are_served(call: str) -> None:
    theirs = pytest.importorskip("dask_array")
    y = np.random.default_rng(0).random((40, 3))
    y[3:9, 1] = np.nan
    in_memory = xr.DataArray(y, {"t": np.arange(40.0)}, ("t", "a"))
    x = in_memory.copy(data=theirs.from_array(y, chunks=(7, 2)))
    with dc.installed():
        found = eval(call, {"x": x})
    arrays = found.data_vars.values() if isinstance(found, xr.Dataset) else [found]
    assert {type(array.data) for array in arrays} == {theirs.Array}
    xr.testing.assert_allclose(found.compute(), eval(call, {"x": in_memory}))


def _raise(block: Any) -> Any:
    raise AssertionError("computed")


@pytest.mark.each(3)
@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("chunks", [1, 3, 7, (2, 0, 1, 9, 4, 14)])
@pytest.mark.parametrize("missing", [0.0, 0.2, 0.6, 0.95, 1.0])
def test_gaps_are_filled_as_in_memory(
    xp: ModuleType, method: interpolation.Method, dtype: str, chunks: Any, missing: float
) -> None:
    rng = np.random.default_rng(3)
    y = rng.normal(size=(5, 4, 30)).astype(dtype)
    y[rng.random(y.shape) < 0.05] = np.inf
    y[rng.random(y.shape) < missing] = np.nan
    x = np.cumsum(rng.integers(1, 9, 30)).astype("f8")
    array = xr.DataArray(y, {"t": x}, ("a", "b", "t"))
    expected = array.interpolate_na("t", method=method)
    lazy = to_chunks(xp, y, (2, 3, chunks))
    found = interpolation.fill_between(lazy, x, method)
    assert found.dtype == dtype
    assert found.chunks == lazy.chunks
    filled = to_numpy(xp, found)
    if xp is np:
        np.testing.assert_array_equal(filled, expected.values)
    else:
        # A GPU fuses the product with the sum.
        np.testing.assert_allclose(filled, expected.values, rtol=1e-3 if dtype == "f2" else 1e-6)


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.9, 1.0])
def test_gaps_are_as_long_as_xarrays(xp: ModuleType, missing: float) -> None:
    rng = np.random.default_rng(4)
    y = rng.normal(size=(5, 30))
    y[rng.random(y.shape) < missing] = np.nan
    x = np.cumsum(rng.integers(1, 9, 30)).astype("f8")
    array = xr.DataArray(y, {"t": x}, ("a", "t"))
    expected = xr.core.missing._get_nan_block_lengths(array, "t", x)
    found = interpolation.fill_between(to_chunks(xp, y, (2, 7)), x, "length")
    np.testing.assert_array_equal(to_numpy(xp, found), expected.values)


def test_a_single_line_is_filled() -> None:
    line = np.array([np.nan, 1, np.nan, np.nan, 4, np.nan])
    for method, expected in {
        "linear": [np.nan, 1, 2, 3, 4, np.nan],
        "nearest": [np.nan, 1, 1, 4, 4, np.nan],
        "length": [1, 0, 3, 3, 0, 1],
    }.items():
        found = interpolation.fill_between(da.from_array(line, chunks=2), np.arange(6.0), method)
        np.testing.assert_array_equal(found.compute(scheduler="sync"), expected)


def test_linear_gaps_are_filled_without_gathered_lines() -> None:
    x = xr.DataArray(da.ones((300, 300), chunks=100), dims=("t", "a"), name="x")
    with dc.installed():
        filled = x.interpolate_na("t")
        gathered = x.interpolate_na("t", method="cubic")
    sizes = [np.prod(block.shape) for block in computed_blocks(filled)]
    assert max(sizes) <= 100 * 100
    assert whole_lines(gathered)
    assert gathered.chunks == x.chunks


def computed_blocks(x: Any) -> list[Any]:
    """Return all arrays that tasks of a graph make."""
    made = []

    class Spy(Callback):  # type: ignore[misc,name-defined]
        def _posttask(self, key: Any, result: Any, *others: Any) -> None:
            if isinstance(result, np.ndarray):
                made.append(result)

    with Spy():
        x.compute(scheduler="sync", optimize_graph=False)
    # The last one is the result.
    return [block for block in made if block.shape != x.shape]


@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("chunks", [1, 2, 5, 30])
def test_values_between_positions_are_those_of_scipy(method: str, chunks: int) -> None:
    rng = np.random.default_rng(4)
    x = np.cumsum(rng.integers(1, 9, 30)).astype("f8")
    y = rng.normal(size=(4, 30))
    y[rng.random(y.shape) < 0.1] = np.nan
    array = xr.DataArray(y, {"t": x}, ("a", "t"))
    ends = [x[0] - 3, x[0], x[4], x[4] + 0.25, x[-1], x[-1] + 2]
    at = np.sort([*rng.uniform(x[0], x[-1], 20), *ends])
    for kwargs in ({}, {"fill_value": "extrapolate"}, {"fill_value": -1.0}):
        for where in (at, at[-2:], [at[5]], at[5]):
            expected = array.interp(t=where, method=method, kwargs=kwargs)
            with dc.installed():
                found = array.chunk(t=chunks, a=3).interp(t=where, method=method, kwargs=kwargs)
            assert found.chunks is not None
            xr.testing.assert_allclose(found.compute(), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("x.interp(t=[9.5, 3.5, 4.0])", "positions that increase"),
        (
            "x.interp(t=xr.DataArray([[1.5, 3.0], [0.5, 9.0]], dims=('i', 'j')))",
            "along one dimension",
        ),
        (
            "x.interp(t=xr.DataArray(da.from_array([1.5, 9.0, 99, 3], chunks=2), dims='i'))",
            "positions that are in memory",
        ),
        ("x.interp(t=[1.5, 3.0], method='quadratic')", "linear or nearest"),
    ],
)
def test_what_we_do_not_interpolate_is_xarrays(
    call: str, why: str, served: Counter[tuple[str, str, str, str]]
) -> None:
    x = xr.DataArray(np.random.default_rng(0).random((12, 3)), {"t": np.arange(12.0)}, ("t", "a"))
    names = {"xr": xr, "da": da}
    expected = eval(call, names | {"x": x})
    with dc.installed():
        found = eval(call, names | {"x": x.chunk(t=5)})
        explained = {row.operation: row for row in dc.explain(found)}
    xr.testing.assert_allclose(found.compute(), expected.compute())
    reported = [reason for name, _, by, reason in served if (name, by) == (LEFT, "Dask")]
    assert reported
    assert all(why in reason for reason in reported)
    assert explained[LEFT].served_by == "Dask"
    assert why in explained[LEFT].why


def test_windows_that_are_constructed_are_xarrays_views() -> None:
    x = field("f4").chunk(time=10)

    def built() -> Any:
        return x.rolling(time=7, center=True).construct("window")

    with dc.installed():
        windows = built()
        mean = windows.mean("window")
        # Dask's views take no memory, until ours or others reduce them.
        explained = {row.operation: row.served_by for row in dc.explain(mean)}
    assert (explained["sliding_window_view"], explained["nanmean"]) == ("Dask", "dask_coop")
    xr.testing.assert_identical(windows.compute(), built().compute())
    assert windows.chunks == built().chunks
    block = dask.get(dict(windows.data.__dask_graph__()), windows.data.__dask_keys__()[1][0][0])
    assert len({block.strides[windows.get_axis_num(d)] for d in ("time", "window")}) == 1
    # xarray adds float32.
    xr.testing.assert_allclose(mean, built().mean("window"), rtol=1e-5, atol=1e-5)


def test_functions_of_users_are_left_alone() -> None:
    x = xr.DataArray(da.ones((6, 4), chunks=2), dims=("t", "a"))
    with dc.installed(), pytest.raises(ValueError, match="consists of multiple chunks"):
        xr.apply_ufunc(
            np.cumsum, x, input_core_dims=[["t"]], output_core_dims=[["t"]], dask="parallelized"
        )


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "?"])
def test_exponential_means_are_those_of_pandas(dtype: str) -> None:
    x = field(dtype)
    with dc.installed():
        windows = {key: x.rolling_exp(time=3, window_type=key) for key in ("span", "com")}
        found = {key: rolling.mean() for key, rolling in windows.items()}
        attrs = windows["span"].mean(keep_attrs=False).attrs
        of_dataset = xr.Dataset({"a": x, "b": x["y"] + 0.5}).rolling_exp(time=3).mean()
    frame = pd.DataFrame(x.values.astype("f8"))
    for key, means in found.items():
        expected = frame.ewm(**{key: 3}).mean().to_numpy()
        np.testing.assert_allclose(means.values, expected, rtol=1e-5)
        assert (means.name, means.attrs, means.dims) == (x.name, x.attrs, x.dims)
        assert means.chunks == x.chunks
    assert attrs == {}
    np.testing.assert_array_equal(of_dataset.a, found["span"])
    xr.testing.assert_equal(of_dataset.b, x["y"] + 0.5)


@pytest.mark.parametrize("name", ["sum", "var", "std", "cov", "corr"])
def test_exponential_statistics_are_those_of_pandas(name: str) -> None:
    x = field("f8")
    others = [x**2] if name in ("cov", "corr") else []
    with dc.installed():
        found = getattr(x.rolling_exp(time=3), name)(*others)
    frame = pd.DataFrame(x.values)
    for i in range(frame.shape[1]):
        squares = [frame[i] ** 2] if others else []
        expected = getattr(frame[i].ewm(span=3), name)(*squares)
        np.testing.assert_allclose(found.values[:, i], expected, rtol=1e-9, atol=1e-12)
    assert (found.name, found.attrs, found.dims) == (x.name, x.attrs, x.dims)
    assert found.chunks == x.chunks


def test_methods_of_arrays_on_any_chunks_are_those_in_memory(xp: ModuleType) -> None:
    rng = np.random.default_rng(6)
    y = rng.normal(size=(30, 4))
    y[rng.random(y.shape) < 0.3] = np.nan
    in_memory = xr.DataArray(y, {"t": np.arange(30.0)}, ("t", "a"), name="x")
    x = in_memory.copy(data=to_chunks(xp, y, (7, 3)))
    calls = ["x.interpolate_na('t', limit=2)", "x.interpolate_na('t', max_gap=3)"]
    if xp is np:
        # xarray divides coefficients by an array of NumPy's, which CuPy refuses.
        calls.append("x.polyfit('t', 1).polyfit_coefficients")
    with dc.installed():
        found = {call: eval(call, {"x": x}) for call in calls}
        means = x.rolling_exp(t=3).mean()
    for call, lazy in found.items():
        expected = eval(call, {"x": in_memory}).transpose(*lazy.dims)
        np.testing.assert_allclose(to_numpy(xp, lazy.data), expected, rtol=1e-9, atol=1e-9)
    expected = pd.DataFrame(y).ewm(span=3).mean()
    np.testing.assert_allclose(to_numpy(xp, means.data), expected, rtol=1e-9)


@pytest.mark.skipif(find_spec("numbagg") is not None, reason="numbagg is there")
def test_exponential_windows_without_numbagg_are_those_of_lazy_arrays() -> None:
    with dc.installed(), pytest.raises(ImportError, match="numbagg"):
        field("f8").compute().rolling_exp(time=3)
    with pytest.raises(ImportError, match="numbagg"):
        field("f8").rolling_exp(time=3)


def test_arrays_that_fit_a_chunk_are_left_alone(
    served: Counter[tuple[str, str, str, str]],
) -> None:
    x = field("f8").chunk(time=-1, y=2)
    with dc.installed():
        x.interpolate_na("time")
        x.interp(time="2001-01-03")
    assert not served


def test_gathered_lines_have_the_size_of_chunks() -> None:
    pytest.importorskip("bottleneck")
    x = xr.DataArray(da.ones((400, 400), chunks=(100, 400)), dims=("t", "a"))
    with dc.installed():
        ranks = x.rank("t")
    assert max(block.nbytes for block in computed_blocks(ranks)) <= 4 * 100 * 400 * 8
    assert ranks.chunks == x.chunks
