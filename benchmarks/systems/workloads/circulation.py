"""Zonal means and eddy fluxes, daily: coiled/benchmarks#1554, on a synthetic twin."""

from typing import Any

import xarray as xr

from benchmarks.systems.workloads.measured import days, tell


def build(count: int) -> Any:
    levels, y, x = (37, 721, 1440) if count > 10 else (4, 90, 180)
    shape, chunks = (count * 24, levels, y, x), (24, 1, y, x)
    winds = xr.Dataset({name: days(shape, chunks, "h", seed) for seed, name in enumerate("UVWT")})
    means = winds.mean("x")
    eddies = winds - means
    eddies["uv"] = eddies.U * eddies.V
    eddies["vt"] = eddies.V * eddies.T
    eddies["uw"] = eddies.U * eddies.W
    fluxes = means.merge(eddies[["uv", "vt", "uw"]].mean("x"))
    return fluxes.resample(time="D").mean()


if __name__ == "__main__":
    tell(build, 20, 4)
