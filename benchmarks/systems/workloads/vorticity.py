"""Vorticity of 300 fields of 5000 x 5000: pangeo-data/distributed-array-examples#1."""

from typing import Any

from benchmarks.systems.workloads.measured import days, tell


def build(size: int) -> Any:
    shape, chunks = (300 if size == 5000 else 30, size, size), (1, size, size)
    u, v, area = (days(shape, chunks, seed=seed) for seed in (1, 2, 3))
    u, v, area = (
        each.pad(y=(1, 0), x=(1, 0), mode="wrap").chunk(y=size + 1, x=size + 1)
        for each in (u, v, area)
    )
    turning = (v * area).diff("x").isel(y=slice(1, None)) - (u * area).diff("y").isel(
        x=slice(1, None)
    )
    return turning.mean("time")


if __name__ == "__main__":
    tell(build, 5000, 500)
