"""Sums of 6,667 labelled regions, or as many as is said: dask/dask-image#238."""

import sys
from importlib import import_module
from typing import Any

import dask.array as da
import numpy as np

from benchmarks.systems.workloads.measured import field, tell


def build(count: int) -> Any:
    shape, chunks = (19, 512, 512), (5, 256, 256)
    labels = np.arange(19 * 512 * 512).reshape(shape) % (count + 1)
    return sum_labels(field(shape, chunks), da.from_array(labels, chunks), range(1, count + 1))


if __name__ == "__main__":
    # dask_image.ndmeasure, or a module with the same names.
    sum_labels: Any = import_module(sys.argv[1]).sum_labels
    tell(build, int(sys.argv[2]), 667)
