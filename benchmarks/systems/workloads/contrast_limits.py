"""The 1st and 99th percentile of 2,000 frames: napari/napari#9486, at the size of #2888."""

from typing import Any

import dask.array as da

from benchmarks.systems.workloads.measured import field, tell


def build(frames: int) -> Any:
    volume = field((frames, 1080, 1920), (1, 1080, 1920))
    return da.percentile(volume.ravel(), [1, 99])


if __name__ == "__main__":
    tell(build, 2000, 50)
