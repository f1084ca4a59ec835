"""An xarray script without any mention of dask_coop: statistics of a field, timed one by one.

The field is in memory, or in the Zarr store of ``--store``. The script prints a line of JSON for
each statistic. `unchanged.py` runs it with and without `python -m dask_coop run`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import xarray as xr


def field(gib: float) -> xr.DataArray:
    """Return days of temperatures on a grid, some of them missing, in chunks of half a year."""
    days = max(60, int(gib * 2**30 / 4 / 256 / 360))
    rng = np.random.default_rng(0)
    values = np.empty((days, 256, 360), "f4")
    season = 10 * np.sin(np.arange(days) / 365.25 * 2 * np.pi)
    for day in range(days):
        rng.standard_normal(out=values[day], dtype="f4")
        values[day] += 280 + season[day]
    values[::50, :40] = np.nan
    coords = {"time": xr.date_range("2000-01-01", periods=days)}
    data = da.from_array(values, chunks=(180, 128, 180))
    return xr.DataArray(data, dims=("time", "lat", "lon"), coords=coords, name="t2m")


WORK: dict[str, Callable[[xr.DataArray], Any]] = {
    "mean": lambda t: t.mean("time"),
    "std": lambda t: t.std("time"),
    "groupby month": lambda t: t.groupby("time.month").mean(),
    "quantile": lambda t: t.quantile([0.1, 0.5, 0.9], "time"),
    "cumsum": lambda t: t.cumsum("time"),
    "rolling mean": lambda t: t.rolling(time=30).mean(),
    "histogram": lambda t: np.histogram(t.data, bins=100, range=(230, 330))[0],
}

#: Of a stored field. Results are small, so that the time is that of reading and of the statistic.
WORK_STORED: dict[str, Callable[[xr.DataArray], Any]] = {
    "climatology": lambda t: t.groupby("time.month").mean(),
    "quantile": WORK["quantile"],
    "warmest 30 days": lambda t: t.rolling(time=30).mean().max("time"),
}


def main() -> None:
    """Time everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the field")
    parser.add_argument("--store", help="Zarr store to read the variable t2m from")
    parser.add_argument("--samples", type=int, default=3)
    options = parser.parse_args()
    t = field(options.gib) if options.store is None else None
    for name, work in (WORK if options.store is None else WORK_STORED).items():
        times, parts = [], 0.0
        for _ in range(options.samples):
            begin = time.perf_counter()
            if options.store is not None:
                t = xr.open_zarr(options.store).t2m
            (result,) = dask.compute(work(t))
            times.append(time.perf_counter() - begin)
            values = np.asarray(result, "f8")
            parts = float(np.nanmean(values))
            del result, values
        print(json.dumps({"work": name, "s": times, "mean": parts}), flush=True)


if __name__ == "__main__":
    main()
