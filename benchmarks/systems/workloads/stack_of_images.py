"""A stack of 25 images of 4096 x 4096, clipped three times, and its mean: astropy/ccdproc#624."""

from typing import Any

import dask.array as da

from benchmarks.systems.workloads.measured import field, tell


def build(size: int) -> Any:
    stack = field((25, size, size), (5, min(size, 1024), min(size, 1024)))
    for _ in range(3):
        middle, spread = da.nanmedian(stack, axis=0), da.nanstd(stack, axis=0)
        stack = da.where(abs(stack - middle) > 1.5 * spread, float("nan"), stack)
    return da.nanmean(stack, axis=0)


if __name__ == "__main__":
    tell(build, 4096, 512)
