"""Compile the loops over NumPy chunks ahead, and find the folder where Numba keeps them.

No loop is named here. Instead, public functions are called on chunks that are large enough for
their loops, in each of the memory layouts for which loops are compiled.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.system import CPU_COUNT

import dask_coop
from dask_coop.compiled.waits import WAITS
from dask_coop.errors import pip_install

#: The groups of `warm` that have loops.
GROUPS = ("reductions", "scans", "histograms")

#: The default dtypes for which loops are compiled.
DTYPES = ("float32", "float64", "int64")

ABSENT = (
    f"Numba is not installed; with `{pip_install('cpu')}` histograms, statistics and scans of "
    "NumPy chunks are compiled loops: fast, and on all threads at a time"
)

#: The rows and columns of a chunk. Functions use no loops for fewer elements or shorter lines.
_CHUNK = (128, 1024)

_RANGE, _EDGES = (0, 100), np.linspace(0, 10, 101) ** 2


def folder() -> str:
    """Return the folder in which Numba keeps the compiled loops, or "none: " and the reason."""
    if not exist():
        return f"none: {ABSENT}"
    from dask_coop.chunks.numpy.loops.selection import compress

    # Any loop of the folder has the path.
    loop: Any = compress
    path = loop.stats.cache_path
    return str(path) if path else "none: no folder can be written, so every process compiles them"


def exist() -> bool:
    """Return whether Numba is installed, and so there are loops."""
    return find_spec("numba") is not None


def warm(groups: Sequence[str], dtypes: Sequence[str]) -> Iterator[str]:
    """Compile the loops that are not on disk yet, and yield a line for each dtype and group.

    Parameters
    ----------
    groups : sequence of str
        Some of `GROUPS`.
    dtypes : sequence of str
        Names of dtypes; if empty, `DTYPES`.

    Notes
    -----
    Numba compiles in one thread of a process at a time, so several dtypes and groups are compiled
    by as many processes as there are processors.
    """
    tasks = [*itertools.product(dtypes or DTYPES, groups)]
    processes = min(len(tasks), CPU_COUNT)
    if processes < 2:
        yield from itertools.starmap(_warm, tasks)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(_warm, *zip(*tasks, strict=True))


def _warm(dtype: str, group: str) -> str:
    from numba.core import event

    WAITS.tells = False
    start = time.perf_counter()
    # Products of many elements overflow; the results are not used.
    quiet = np.errstate(all="ignore")
    with quiet, event.install_recorder("numba:compile") as recorder:
        for x in _arrays(np.dtype(dtype)):
            dask.compute(*_CALLS[group](x), scheduler="synchronous")
    compiled = sum(recorded.is_start for _, recorded in recorder.buffer)
    seconds = time.perf_counter() - start
    return f"NumPy {dtype} {group}: {compiled} loops compiled now, in {seconds:.1f} s"


def _arrays(dtype: np.dtype[Any]) -> Iterator[da.Array]:
    """Yield arrays of four chunks: that own their memory, that are views, and read-only ones."""
    rows, columns = _CHUNK
    x = (np.arange(4 * rows * columns) % 97).reshape(2 * rows, 2 * columns).astype(dtype)
    views = da.from_array(x, chunks=_CHUNK, name=False)
    yield views.map_blocks(np.array, dtype=dtype)
    yield views
    fixed = x.copy()
    fixed.flags.writeable = False
    yield da.from_array(fixed, chunks=_CHUNK, name=False).map_blocks(_fixed, dtype=dtype)


def _fixed(x: Any) -> Any:
    x = np.ascontiguousarray(x)
    x.flags.writeable = False
    return x


def _functions() -> Iterator[tuple[Callable[..., Any], set[str]]]:
    """Yield the public functions that take an array alone, with their parameters."""
    for name in dask_coop.__all__:
        function = getattr(dask_coop, name)
        if inspect.isfunction(function):
            parameters = [*inspect.signature(function).parameters.values()]
            if (
                "engine" in (p.name for p in parameters)
                and parameters[0].name != "mask"
                and all(p.default is not p.empty for p in parameters[1:])
            ):
                yield function, {p.name for p in parameters}


def _reductions(x: da.Array) -> Iterator[Any]:
    for function, takes in _functions():
        if "axis" not in takes or takes & {"include_initial", "bins", "segments", "dx"}:
            continue
        for axis in (None, 0, 1):
            yield from _results(function(x, axis=axis))
            if "reproducible" in takes:
                yield from _results(function(x, axis=axis, reproducible=True))
            if "where" in takes:
                start = {"initial": 1} if "initial" in takes else {}
                yield from _results(function(x, axis=axis, where=x > 3, **start))
    yield from _results(dask_coop.moment(x, 4))
    yield dask_coop.norm(x, 1, axis=0)
    yield dask_coop.select(x, x > 48)
    for func in ("sum", "mean", "nanmean", "std", "max"):
        yield dask_coop.groupby_reduce(x, np.arange(x.shape[1]) % 7, func=func)[0]
        yield dask_coop.groupby_reduce(x.T, np.arange(x.shape[0]) % 7, func=func)[0]
    by = np.arange(x.shape[1]) % 7
    yield dask_coop.groupby_reduce(x, by, func="cov", y=x)[0]
    yield dask_coop.groupby_reduce(x, by, func="nancov", y=x)[0]


def _scans(x: da.Array) -> Iterator[Any]:
    for function, takes in _functions():
        if "include_initial" in takes:
            for axis in (0, 1):
                yield function(x, axis=axis)
                yield function(x, axis=axis, include_initial=True)
                if "segments" in takes:
                    yield function(x, axis=axis, reverse=True)
                    yield function(x, axis=axis, exclusive=True)
                    yield function(x, axis=axis, segments=x > 90)
    for axis in (0, 1):
        for limit in (None, 3):
            yield dask_coop.ffill(x, axis, limit)
            yield dask_coop.bfill(x, axis, limit)
        yield from (dask_coop.ewm_mean(x, axis, span=9, adjust=flag) for flag in (True, False))
        yield dask_coop.cumulative_trapezoid(x, axis=axis)
        yield from (f(x > 90, axis) for f in (dask_coop.first_run, dask_coop.run_lengths))
        yield dask_coop.longest_run(x > 90, axis)
        yield dask_coop.ewm_sum(x, axis, span=9)
        yield from (dask_coop.ewm_var(x, axis, span=9), dask_coop.ewm_cov(x, x, axis, span=9))
    for name in ("sum", "mean", "var", "std", "min", "max"):
        for axis in (0, 1):
            yield getattr(dask_coop, f"move_{name}")(x, 30, axis=axis)


def _histograms(x: da.Array) -> Iterator[Any]:
    flat = x.ravel()
    for bins in (100, _EDGES):
        for axis in (None, 0, 1):
            yield dask_coop.histogram(x, bins, _RANGE, axis=axis)[0]
            yield dask_coop.histogram(x, bins, _RANGE, axis=axis, weights=x)[0]
    yield dask_coop.histogram(x, 1 << 16, _RANGE)[0]
    yield dask_coop.histogram(x, 10)[0]
    pairs = [_RANGE] * 2
    for both in (100, [_EDGES, _EDGES]):
        yield dask_coop.histogram2d(flat, flat, both, pairs)[0]
        yield dask_coop.histogram2d(flat, flat, both, pairs, weights=flat)[0]
    rows = da.stack([flat, flat], axis=1).rechunk({1: 2})
    yield dask_coop.histogramdd(rows, 100, pairs)[0]
    yield dask_coop.digitize(x, _EDGES)
    yield dask_coop.bincount(x.astype("i8"))
    yield dask_coop.bincount(x.astype("i8"), weights=x)
    # So many and so far apart that `unique` merges them, and `isin` searches.
    distinct = (da.arange(1 << 17, chunks=1 << 16) * 1000).astype(x.dtype)
    yield from dask_coop.unique(distinct, return_inverse=True, return_counts=True)
    yield dask_coop.isin(distinct, distinct[::2])


def _results(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple) else (result,)


_CALLS: dict[str, Callable[[da.Array], Iterator[Any]]] = {
    "reductions": _reductions,
    "scans": _scans,
    "histograms": _histograms,
}
