"""The page on xarray: its blocks run, and make what xarray makes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from test_readme import REPOSITORY, blocks

xr: Any = pytest.importorskip("xarray")
PAGE = REPOSITORY / "docs" / "xarray.md"


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """Return what the blocks of the page make, run one after another."""
    names: dict[str, Any] = {}
    for code in blocks(PAGE, "python"):
        exec(compile(code, PAGE.name, "exec"), names)
    return names


def same(found: Any, expected: Any) -> None:
    xr.testing.assert_allclose(found.compute(), expected.compute(), rtol=1e-9)
    assert found.attrs == expected.attrs


def test_climatology_and_anomalies(made: dict[str, Any]) -> None:
    t2m = made["t2m"].compute()
    groups = t2m.groupby("time.month")
    same(made["climatology"]["mean"], groups.mean().rename("mean"))
    same(made["climatology"]["std"], groups.std().rename("std"))
    same(made["anomaly"], groups - groups.mean())
    standardized = made["standardized"].groupby("time.month").std()
    np.testing.assert_allclose(standardized, 1)
    same(made["zones"], t2m.groupby_bins("lat", [-90, -30, 30, 90]).mean(...))


def test_histograms_by_area(made: dict[str, Any]) -> None:
    t2m = made["t2m"].compute()
    area = made["area"].broadcast_like(t2m).transpose(*t2m.dims)
    expected, edges = np.histogram(t2m, 40, (265, 305), weights=area, density=True)
    np.testing.assert_allclose(made["spread"], expected)
    np.testing.assert_allclose(made["spread"].t2m_bin_left, edges[:-1])
    assert made["spread"].t2m_bin.attrs == {"units": "K"}
    assert float(made["warm"].t2m_bin.min()) == 290.5
    total, _ = np.histogram(t2m, 40, (265, 305), weights=area)
    assert made["by_day"].dims == ("time", "t2m_bin")
    np.testing.assert_allclose(made["by_day"].sum("time"), total)
    assert made["both"].sizes == {"t2m_bin": 20, "anomaly_bin": 24}
    inside = (abs(made["anomaly"]) <= 12) & (t2m >= 265) & (t2m <= 305)
    assert made["both"].sum() == inside.sum()


def test_degree_days(made: dict[str, Any]) -> None:
    above = (made["t2m"].compute() - 283.15).clip(min=0).rename("degree_days")
    scans = above.groupby("time.year").cumsum("time").transpose(*above.dims)
    np.testing.assert_allclose(made["degree_days"], scans)
    same(made["a_year"], above.groupby("time.year").sum())


def test_exceedance(made: dict[str, Any]) -> None:
    t2m = made["t2m"].compute()
    same(made["summer_days"], (t2m > 298.15).groupby("time.year").sum())
    hot = t2m > t2m.quantile(0.95, "time")
    same(made["hot_days"], hot.sum("time").assign_attrs(made["hot_days"].attrs))
    cell = hot[:, 4, 4].values
    spells = [len(run) for run in re.findall("1+", "".join(map(str, cell.astype(int))))]
    assert made["longest_spell"][4, 4] == max(spells)
    assert made["heat_waves"][4, 4] == sum(n >= 3 for n in spells)
    longest = hot.groupby("time.year").map(lambda of: of.coop.longest_run("time"))
    found = made["longest_of_years"].transpose("year", ...)
    np.testing.assert_array_equal(found, longest.transpose(*found.dims))


def test_windows_and_gaps(made: dict[str, Any]) -> None:
    t2m = made["t2m"].compute()
    same(made["monthly"], t2m.rolling(time=30, min_periods=10, center=True).mean())
    cell = t2m[:, 4, 4].to_pandas()
    np.testing.assert_allclose(made["smooth"][:, 4, 4], cell.ewm(halflife=5).mean())
    wrapped = t2m.pad(lon=1, mode="wrap").rolling(lon=3, center=True).mean()[..., 1:-1]
    around = wrapped.rolling(lat=3, center=True).mean()[:, 1:-1]
    np.testing.assert_allclose(made["around"][:, 1:-1], around)
    with xr.set_options(use_bottleneck=True):
        filled = t2m.where(t2m < 297).ffill("time", 3)
    same(made["filled"], filled)
    energy = filled.fillna(285).cumulative_integrate("time", datetime_unit="D")
    same(made["energy"], energy.assign_attrs(made["energy"].attrs))


def test_one_read_and_no_accessor(made: dict[str, Any]) -> None:
    t2m = made["t2m"].compute()
    same(made["overview"]["std"], t2m.std(("lat", "lon")).rename("std"))
    np.testing.assert_array_equal(made["ten_warmest"], np.sort(t2m, 0)[:-11:-1])
    same(made["trend"], t2m.sum("time"))
    same(made["first"], t2m.mean("time"))


def test_all_methods_are_named() -> None:
    from dask_coop.xarray import CoopDataArray

    table = PAGE.read_text().partition("## Methods")[2].partition("\n\n`help(")[0]
    named = re.findall(r"`(\w+)`", re.sub(r"`dim`", "", table))
    assert sorted(named) == sorted(name for name in vars(CoopDataArray) if name[0] != "_")
