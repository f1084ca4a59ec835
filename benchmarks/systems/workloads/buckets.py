"""Means of 4,087 x 4,087 pixels in 1,200 x 1,200 buckets: pytroll/pyresample#418 and #432."""

from typing import Any

import dask.array as da

from benchmarks.systems.workloads.measured import field, tell


def build(size: int) -> Any:
    out = size * 1200 // 4087
    pixels = field((size, size), (1000, 1000))
    places = [da.arange(size, chunks=1000) * out // size for _ in "yx"]
    bucket = (places[0][:, None] * out + places[1][None]).ravel()
    options = {"bins": out * out, "range": (0, out * out)}
    counts, _ = da.histogram(bucket, **options)
    sums, _ = da.histogram(bucket, weights=pixels.ravel(), **options)
    return sums / counts


if __name__ == "__main__":
    tell(build, 4087, 2000)
