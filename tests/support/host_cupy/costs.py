"""Print the GPU calls that a chunk costs: `python -m support.host_cupy.costs`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import DataNode

import dask_coop as dc
from dask_coop.graph import joined
from support.host_cupy import counted

GROUPS, MANY, MONTHS = np.arange(1_000), np.arange(10_000), np.arange(12)


def _by(func: str, groups: Any = GROUPS) -> Callable[[Any, Any], Any]:
    return lambda x, by: dc.groupby_reduce(x, by, func=func, expected_groups=groups)[0]


#: Calls of an array and of labels in the same chunks.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, by: dc.sum(x),
    "nanmean": lambda x, by: dc.nanmean(x),
    "sum, columns": lambda x, by: dc.sum(x, axis=0),
    "sum, rows": lambda x, by: dc.sum(x, axis=1),
    "std, columns": lambda x, by: dc.std(x, axis=0),
    "argmax, rows": lambda x, by: dc.argmax(x, axis=1),
    "max where": lambda x, by: dc.max(x, axis=0, where=by > 2, initial=0),
    "describe": lambda x, by: tuple(dc.describe(x)),
    "histogram": lambda x, by: dc.histogram(x, 8, (0, 5))[0],
    "histogram, rows": lambda x, by: dc.histogram(x, 8, (0, 5), axis=1)[0],
    "histogram, weights": lambda x, by: dc.histogram(x, 8, (0, 5), weights=x)[0],
    "histogram2d": lambda x, by: dc.histogram2d(x, by, 8, ((0, 5), (0, 5)))[0],
    "bincount": lambda x, by: dc.bincount(by.ravel(), minlength=8),
    "digitize": lambda x, by: dc.digitize(x, np.arange(5.0)),
    "cumsum, columns": lambda x, by: dc.cumsum(x, axis=0),
    "cumsum, rows": lambda x, by: dc.cumsum(x, axis=1),
    "ffill, columns": lambda x, by: dc.ffill(x, axis=0),
    "ffill, rows": lambda x, by: dc.ffill(x, axis=1),
    "move_mean, columns": lambda x, by: dc.move_mean(x, 7, axis=0),
    "move_mean, rows": lambda x, by: dc.move_mean(x, 7, axis=1),
    "move_median, columns": lambda x, by: dc.move_median(x, 7, axis=0),
    "move_median, rows": lambda x, by: dc.move_median(x, 7, axis=1),
    "sum by group": _by("sum"),
    "sum by many groups": _by("sum", MANY),
    "mean by group": _by("mean"),
    "max by group": _by("max"),
    "var by group": _by("var"),
    "mean by month": lambda x, by: _by("mean", MONTHS)(x, np.arange(x.shape[1]) % 12),
    "topk, columns": lambda x, by: dc.topk(x, 10, axis=0),
    "topk, rows": lambda x, by: dc.topk(x, 10, axis=1),
    "median, rows": lambda x, by: dc.median(x, axis=1),
    "unique": lambda x, by: dc.unique(by),
    "isin": lambda x, by: dc.isin(by, [1, 2]),
    "flatnonzero": lambda x, by: dc.flatnonzero(x),
}


def on_gpu(name: str, n: int, dtype: str) -> da.Array:
    """Return an array of `n` chunks in the memory of the GPU."""
    rng, name = np.random.default_rng(0), f"{name}-{n}"
    tasks = {
        (name, i, 0): DataNode(
            (name, i, 0), counted.on_gpu(rng.integers(0, 5, (64, 4096)).astype(dtype))
        )
        for i in range(n)
    }
    graph = HighLevelGraph({name: MaterializedLayer(tasks)}, {name: set()})
    meta = counted.on_gpu(np.zeros((0, 0), dtype))
    return da.Array(graph, name, ((64,) * n, (4096,)), meta=meta)


def cost(call: Callable[[Any, Any], Any], few: int = 8, many: int = 16) -> list[float]:
    """Return the waits, allocations, and kernels or copies that another chunk costs."""
    costs = []
    # The first fills caches.
    for n in (few, few, many):
        result = call(on_gpu("x", n, "f4"), on_gpu("by", n, "i4"))
        counted.counts.clear()
        dask.compute(result, scheduler="sync")
        names = counted.WAITS, counted.ALLOCATIONS, counted.QUEUED
        costs.append([counted.counts[name] for name in names])
    return [(b - a) / (many - few) for a, b in zip(*costs[1:], strict=True)]


def main() -> None:
    """Print the costs by call, of chunks that stay apart and of those that are joined."""
    counted.installed()
    large, costs = joined.LARGE_BYTES, {}
    for name, call in CALLS.items():
        joined.LARGE_BYTES = 0
        apart = cost(call)
        joined.LARGE_BYTES = large
        costs[name] = apart, cost(call)
    json.dump(costs, sys.stdout)


if __name__ == "__main__":
    main()
