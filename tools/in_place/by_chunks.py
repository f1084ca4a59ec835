"""Call functions of ours with arrays in memory, cut into chunks, and report which were called."""

import json
import os
from collections import Counter

import dask
import dask.array as da
import numpy as np

served, refused = Counter(), Counter()


def chunked(x):
    """Return a lazy array of up to three chunks along each axis."""
    x = np.asarray(x)
    return da.from_array(x, chunks=tuple(max(1, -(-n // 3)) for n in x.shape))


def compute(name, function, *arguments, **keywords):
    """Return the result of a function in memory, and count the call if ours serves it."""
    result = function(*arguments, **keywords)
    with dask.config.set({"optimization.fuse.active": False}):
        (result,) = dask.compute(result, scheduler="sync")
    served[name] += 1
    return result


def pytest_sessionfinish():
    with open(f"report-{os.getpid()}.json", "w") as file:
        json.dump({"served": served, "refused": refused}, file)
