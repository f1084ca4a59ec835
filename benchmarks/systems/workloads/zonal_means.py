"""Means of 3,143 counties, hourly for a year: coiled/benchmarks#1547, on a synthetic twin."""

from typing import Any

import flox.xarray
import numpy as np
import xarray as xr

from benchmarks.systems.workloads.measured import days, tell

COUNTIES = 3143


def build(size: int) -> Any:
    hours = 8760 if size > 400 else 240
    values = days((hours, size, size), (672, 350, 350), freq="h")
    rows = np.arange(size) * 56 // size
    counties = np.minimum(rows[:, None] * 57 + rows, COUNTIES - 1)
    zones = xr.DataArray(counties, dims=("y", "x"), name="county").chunk(y=350, x=350)
    return flox.xarray.xarray_reduce(
        values, zones, func="mean", expected_groups=np.arange(COUNTIES)
    )


if __name__ == "__main__":
    tell(build, 3840, 350)
