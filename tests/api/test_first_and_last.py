"""First and last elements of groups under install(), held to xarray in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dask_coop as dc
from dask_coop.chunks.numpy import grouped, loop_table

xr = pytest.importorskip("xarray")
pandas = pytest.importorskip("pandas")
pytest.importorskip("flox")
pytest.importorskip("numba")

RNG = np.random.default_rng(7)
DAYS = 400


def values(dtype: str) -> Any:
    x = 50 * RNG.standard_normal((DAYS, 6, 5))
    if dtype == "M8[ns]":
        dates = np.datetime64("2000-01-01", "ns") + (1e12 * x).astype("m8[ns]")
        dates[RNG.random(x.shape) < 0.2] = "NaT"
        return dates
    x = x.astype(dtype)
    if x.dtype.kind == "f":
        x[RNG.random(x.shape) < 0.2] = np.nan
        # Land, some missing days, and a month of nothing.
        x[:, :2], x[3:9], x[31:60] = np.nan, np.nan, np.nan
    return x


def array(dtype: str) -> Any:
    dims, days = ("time", "y", "x"), pandas.date_range("2000-01-01", periods=DAYS)
    return xr.DataArray(values(dtype), dims=dims, coords={"time": days}, name="v")


#: What makes groups: of several chunks, of days that are in one, many, and some of no element.
GROUPS: dict[str, Callable[[Any], Any]] = {
    "year": lambda x: x.groupby("time.year"),
    "month": lambda x: x.groupby("time.month"),
    "day of the year": lambda x: x.groupby("time.dayofyear"),
    "weeks": lambda x: x.resample(time="7D"),
    "days": lambda x: x.resample(time="1D"),
    "every other day": lambda x: x.isel(time=SOME_DAYS).resample(time="1D"),
    "late": lambda x: x.groupby(x.time.dt.year.where(x.time.dt.year > 2000).rename("late")),
    "bins": lambda x: x.groupby_bins(
        x.time.dt.dayofyear.rename("day"), [0, 9, 10, 200, 300, 400, 500]
    ),
}
SOME_DAYS = np.flatnonzero(np.arange(DAYS) % 3 > 0)


@pytest.fixture(autouse=True)
def _without_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for small chunks, and refuse to sort."""
    monkeypatch.setitem(loop_table.WORTH_COMPILING, "groups", 1)

    def refuse(ops: Any, x: Any, codes: Any, n: int) -> Any:
        if x.size and n:
            raise AssertionError("elements are sorted by their groups")
        return original(ops, x, codes, n)

    original = grouped._sorted
    monkeypatch.setattr(grouped, "_sorted", refuse)


@pytest.mark.each(2)
@pytest.mark.parametrize("chunks", [{"time": 90, "y": 4}, {"time": 25}, {"x": 3}])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("dtype", ["f4", "i4", "M8[ns]"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_as_xarray_in_memory(dtype: str, groups: str, chunks: dict[str, int]) -> None:
    x, group = array(dtype), GROUPS[groups]
    for name in ("first", "last"):
        for skipna in (None, False) if dtype == "f4" else (None,):
            expected = getattr(group(x), name)(skipna=skipna)
            with dc.installed():
                result = getattr(group(x.chunk(chunks)), name)(skipna=skipna)
                assert served(result)
                result = result.compute()
            if dtype == "i4" and groups in ("every other day", "bins"):
                # In memory, groups of no element are the least integer.
                expected = expected.where(expected != np.iinfo("i4").min)
            xr.testing.assert_equal(result, expected)


def served(result: Any) -> bool:
    return any("groupby" in str(name) for name in result.__dask_graph__().layers)


@pytest.mark.parametrize("transposed", [("y", "x", "time"), ("y", "time", "x")])
def test_time_may_be_any_axis(transposed: tuple[str, ...]) -> None:
    x = array("f4").transpose(*transposed)
    expected = x.groupby("time.month").last()
    with dc.installed():
        lazy = x.chunk(time=90, y=2).groupby("time.month").last()
        xr.testing.assert_identical(lazy.compute(), expected)


@pytest.mark.parametrize("func", ["nanfirst", "nanlast", "first", "last"])
def test_groups_along_two_axes_are_in_the_order_of_the_whole_array(func: str) -> None:
    x = values("f8")
    labels = RNG.integers(0, 4, x.shape[1:])
    expected = np.full((DAYS, 4), np.nan)
    for at, picture in enumerate(x):
        for label in range(4):
            members = picture[labels == label]
            members = members[~np.isnan(members)] if func.startswith("nan") else members
            if len(members):
                expected[at, label] = members[0 if func.endswith("first") else -1]
    import dask.array as da

    for chunks in ((100, 6, 5), (200, 4, 2)):
        lazy = da.from_array(x, chunks=chunks)
        for by in (labels, da.from_array(labels, chunks=chunks[1:])):
            expected_groups = None if by is labels else np.arange(4)
            result, _ = dc.groupby_reduce(lazy, by, func=func, expected_groups=expected_groups)
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("chunks", [12, 40])
def test_where_most_groups_have_no_element(chunks: int) -> None:
    import dask.array as da

    x, labels = values("f8")[:40, 3:, 0].T, 6 * np.arange(40) + 3
    funcs = ["first", "nanlast", "mean", "nansum", "count", "nanmax", "min"]
    lazy = da.from_array(x, chunks=(2, chunks))
    for expected in (np.arange(245), np.arange(200, 245), np.arange(300, 305)):
        fills: tuple[Any, ...] = (None, -7.5)
        for fill in fills:
            options: dict[str, Any] = {"expected_groups": expected, "fill_value": fill}
            together, _ = dc.groupby_reduce(lazy, labels, func=funcs, **options)
            for func, result in zip(funcs, together, strict=True):
                whole, _ = dc.groupby_reduce(x, labels, func=func, **options)
                alone, _ = dc.groupby_reduce(lazy, labels, func=func, **options)
                assert result.dtype == whole.dtype
                np.testing.assert_array_equal(result, alone)
                np.testing.assert_allclose(result, whole, rtol=1e-15)
                present = np.isin(expected, labels)
                absent = np.asarray(result)[:, ~present]
                assert (absent == (fill if fill else absent[:1, :1])).all() or np.isnan(
                    absent
                ).all()
                if func == "first":
                    at = (expected[present] - 3) // 6
                    taken = np.where(np.isnan(x[:, at]) & (fill is not None), fill or 0, x[:, at])
                    np.testing.assert_array_equal(np.asarray(result)[:, present], taken)
