"""An unchanged xarray script
==========================

``heat`` is written for xarray and does not use this library. It runs twice: first with Dask's
functions, then under ``dc.installed()``, which replaces these by functions of this library. The
maps and curves show the results of the second run. The table is that of ``dc.report()``: it lists
the functions that were called, and which library ran them. Both runs agree to the last digits of
float32.

Run it as ``python examples/unchanged.py --years 10 --out demo``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

import dask_coop as dc

# %%
# The script, as it might have been written years ago: nothing below imports this library.


def heat(t2m: xr.DataArray) -> xr.Dataset:
    """Return what seasons are like everywhere, and the days of one place."""
    place = t2m.sel(lat=50, lon=20, method="nearest", drop=True).chunk(time=-1)
    return xr.Dataset(
        {
            "summer": t2m.sel(time=t2m.time.dt.month.isin([6, 7, 8])).mean("time"),
            "spread": t2m.groupby("time.month").mean("time").std("month"),
            "week": t2m.rolling(time=7).mean().min("time"),
            "day": place,
            "month": place.rolling(time=30, min_periods=20, center=True).mean(),
            "limits": place.quantile([0.05, 0.95], "time"),
            "degree_days": (place - 10).clip(min=0).cumsum("time"),
        }
    )


# %%
# The field that it works on is generated: a warm continent, seasons, weather, and gaps.


def field(years: int) -> xr.DataArray:
    """Return daily temperatures, in chunks of half a year."""
    time = xr.date_range("2001-01-01", periods=365 * years)
    lat, lon = np.linspace(30, 70, 60), np.linspace(-10, 50, 90)
    season = -np.cos(2 * np.pi * (np.arange(time.size) - 20) / 365.25)
    y, x = np.meshgrid((lat - 30) / 40, (lon + 10) / 60, indexing="ij")
    inland = np.clip(np.sin(np.pi * x) * (1.2 - y) + 0.15 * np.sin(9 * x + 7 * y), 0, 1)
    mean, swing = 24 - 26 * y + 3 * inland, 4 + 12 * inland
    chunks = (180, lat.size, lon.size)
    weather = da.random.default_rng(0).normal(0, 3, (time.size, *y.shape), chunks=chunks)
    values = weather + mean + swing * da.from_array(season, chunks=180)[:, None, None]
    gaps = da.random.default_rng(1).random((time.size, *y.shape), chunks=chunks) < 0.001
    return xr.DataArray(
        da.where(gaps, np.nan, values).astype("f4"),
        {"time": time, "lat": lat, "lon": lon},
        ("time", "lat", "lon"),
        attrs={"units": "degrees Celsius"},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs an xarray script as it is, served by us.")
    parser.add_argument("--years", type=int, default=4, metavar="N", help="of the field (4)")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()

    t2m = field(given.years).persist()
    plain = heat(t2m).compute()
    before = {row[:-1]: row.calls for row in dc.report()}
    with dc.installed():
        served = heat(t2m).compute()
    rows = [row for row in dc.report() if row.calls > before.get(row[:-1], 0)]
    apart = max(float((abs(served[x] - plain[x]) / abs(plain[x]).max()).max()) for x in plain)
    print(f"days: {t2m.sizes['time']} of {t2m.sizes['lat']} x {t2m.sizes['lon']} cells")
    print(f"calls: {', '.join(f'{row.function} by {row.served_by}' for row in rows)}")
    print(f"the two runs differ by {apart:.1e} of the largest value at most")
    path = given.out / "unchanged.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, served, rows, apart)
    print(f"figure: {path}")


def save_figure(path: Path, found: xr.Dataset, rows: Any, apart: float) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9.6, 6.0), layout="constrained")
    figure.suptitle(
        "An unchanged xarray script, run by dask_coop", fontsize="x-large", fontweight="bold"
    )
    above, below = figure.subfigures(2, 1, height_ratios=(5, 4))
    maps = {
        "summer": ("mean of June to August", "°C"),
        "spread": ("spread of monthly means", "std. deviation, °C"),
        "week": ("coldest week", "°C"),
    }
    for axes, (name, (title, unit)) in zip(above.subplots(1, 3), maps.items(), strict=True):
        found[name].plot(ax=axes, cmap="inferno", cbar_kwargs={"label": unit})
        axes.set(title=title, xlabel="longitude, °E", ylabel="latitude, °N")
    left, table = below.subplots(1, 2, width_ratios=(2, 1))
    left.plot(found.time, found.day, ".", color="0.75", markersize=2, label="days")
    left.plot(found.time, found.month, color="#c8553d", label="mean of 30 days")
    left.hlines(found.limits, *found.time[[0, -1]], color="0.4", linestyle="--", label="5 %, 95 %")
    left.set(xlabel="year", ylabel="temperature, °C", xlim=(found.time[0], found.time[-1]))
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    right = left.twinx()
    right.plot(found.time, found.degree_days / 1e3, color="#2b5d8a", linestyle="-.")
    right.set_ylabel("1,000 degree days > 10 °C", color="#2b5d8a")
    table.axis("off")
    table.set_title("dc.report()")
    lines = [f"{row.function:<16}{row.elements:<9}{row.served_by}" for row in rows]
    lines += ["", "largest difference from Dask:", f"{apart:.1e} of the largest value"]
    table.text(0, 0.95, "\n".join(lines), family="monospace", fontsize=9, va="top")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
