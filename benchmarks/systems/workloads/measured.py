"""Measure a script: the tasks of its graph, the seconds to build and compute it, and the memory.

Seconds are the processor's, of all threads, which others on the machine change little.
"""

from __future__ import annotations

import ctypes
import gc
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import xarray as xr


def peak() -> int:
    """Return the largest resident memory of the process since the last reset, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def calm() -> int:
    """Give free memory back to the system, forget the peak, and return the memory that is left."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def noise(*places: Any) -> Any:
    """Return numbers in [0, 1) for places on each axis, the same for any chunks."""
    return np.modf(np.abs(np.sin(sum(places))) * 43758.5453)[0].astype("f4")


def field(shape: tuple[int, ...], chunks: tuple[int, ...], seed: float = 0) -> da.Array:
    """Return an array of noise, each chunk of which is made by a task."""
    axes = []
    for axis, (size, chunk) in enumerate(zip(shape, chunks, strict=True)):
        place = da.from_array(np.arange(size) * (12.9898 + 7 * axis) + seed, chunks=chunk)
        axes.append(place[(None,) * axis + (slice(None),) + (None,) * (len(shape) - axis - 1)])
    cut = da.core.normalize_chunks(chunks, shape)
    empty = np.empty((0,) * len(shape), "f4")
    return da.map_blocks(noise, *axes, dtype="f4", chunks=cut, meta=empty)


def days(
    shape: tuple[int, ...], chunks: tuple[int, ...], freq: str = "D", seed: float = 0
) -> xr.DataArray:
    """Return a field along time, with its dates."""
    names = ("time", "y", "x") if len(shape) == 3 else ("time", "level", "y", "x")
    time_ = xr.date_range("1959-01-01", periods=shape[0], freq=freq)
    return xr.DataArray(field(shape, chunks, seed), {"time": time_}, names)


def tell(build: Callable[[int], Any], full: int, small: int) -> None:
    """Print a line of JSON about the graph at the full size, and the result at a smaller one."""
    warnings.simplefilter("ignore")
    dask.optimize(build(small))
    before = calm()
    begin = time.process_time()
    (graph,) = dask.optimize(build(full))
    told: dict[str, Any] = {"build_s": time.process_time() - begin}
    told["tasks"] = len(dict(graph.__dask_graph__()))
    told["build_bytes"] = peak() - before
    del graph
    seconds = []
    for _ in range(2):
        before = calm()
        begin = time.process_time()
        (result,) = dask.compute(build(small), scheduler="threads")
        seconds.append(time.process_time() - begin)
        told["bytes"] = peak() - before
    told["s"] = min(seconds)
    arrays = result.data_vars.values() if isinstance(result, xr.Dataset) else [result]
    flat = np.concatenate([np.ravel(np.asarray(each, "f8")) for each in arrays])
    # Places of elements, not only their sum.
    told["check"] = float(np.nanmean(flat * (1 + np.arange(flat.size) % 7)))
    print(json.dumps(told))
