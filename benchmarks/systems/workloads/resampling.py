"""Monthly means of 47,892 days on 833 x 833 points, in 21,168 chunks: dask/dask#11853."""

from typing import Any

from benchmarks.systems.workloads.measured import days, tell


def build(size: int) -> Any:
    chunk = 119 if size > 119 else size
    return days((47_892, size, size), (111, chunk, chunk)).resample(time="MS").mean()


if __name__ == "__main__":
    tell(build, 833, 30)
