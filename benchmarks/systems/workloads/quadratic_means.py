"""Means of squares and of a product, 5,000 times: pangeo-data/distributed-array-examples#2."""

from typing import Any

import xarray as xr

from benchmarks.systems.workloads.measured import days, tell


def build(times: int) -> Any:
    u, v = (days((times, 987, 1920), (10, 987, 1920), seed=seed) for seed in (1, 2))
    squares = xr.Dataset({"uu": u**2, "vv": v**2, "uv": u * v})
    return squares.mean("time", skipna=False)


if __name__ == "__main__":
    tell(build, 5000, 20)
