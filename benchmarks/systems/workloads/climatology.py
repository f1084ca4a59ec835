"""Hourly climatologies smoothed over 61 days: coiled/benchmarks#1552, on a synthetic twin."""

from typing import Any

import numpy as np
import xarray as xr

from benchmarks.systems.workloads.measured import days, tell


def smooth(means: xr.DataArray) -> xr.DataArray:
    """Return weighted means over 61 days, across the turn of the year."""
    weights = np.concatenate([np.linspace(0, 1, 31), np.linspace(1, 0, 31)[1:]])
    padded = means.chunk(dayofyear=-1).pad(dayofyear=30, mode="wrap")
    windows = padded.rolling(dayofyear=61, center=True).construct("day")
    return (
        windows.weighted(xr.DataArray(weights, dims="day"))
        .mean("day")
        .isel(dayofyear=slice(30, -30))
    )


def build(years: int) -> Any:
    y, x, chunk = (721, 1440, 40) if years > 8 else (36, 72, 400)
    field = days((years * 1460, y, x), (chunk, y, x), freq="6h")
    found = {}
    for hour in range(0, 24, 6):
        one = field.isel(time=field.time.dt.hour == hour)
        found[f"mean{hour}"] = smooth(one.groupby("time.dayofyear").mean())
        found[f"std{hour}"] = smooth(one.groupby("time.dayofyear").std())
    return xr.Dataset(found)


if __name__ == "__main__":
    tell(build, 16, 4)
