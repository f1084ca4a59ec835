"""Run the calls of cases by Dask's graph, by `Node`, or by messages on a cluster.

The engine of a case follows from its two numbers, as the case itself does::

    graph        get_sync                                         every case
    node         Node.get, on all GPUs that this process sees     CuPy chunks
    held         the same, with chunks that are in memory         CuPy chunks
    collective   chunks in memory on two workers of this          functions that have `engine`, and
                 process                                          do not decline it
    dask-array   get_sync, of arrays of that package              where it is installed
"""

from __future__ import annotations

import atexit
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.local import get_sync

import dask_coop as dc
from dask_coop.errors import Declined, RefusedByDask
from fuzz.case import Case, Operand

ENGINES = ("graph", "node", "collective", "held", "dask-array")

#: Of as many cases one is run by each engine that is not the graph.
SHARE = 5


def engine_of(case: Case, seed: int, index: int, xp: ModuleType, allowed: tuple[str, ...]) -> str:
    """Return the engine of a case, one of those allowed; the graph where it has no other."""
    on_gpu = xp is not np
    able = {"graph": True, "node": on_gpu, "collective": _has_engine(case), "held": on_gpu}
    # Files are read as Dask's arrays, and theirs have no `to_backend` for NumPy.
    is_dasks = (
        case.installed or case.family in ("file", "stored") or getattr(case, "backend", False)
    )
    is_dasks = is_dasks or da.array_expr_enabled()
    able["dask-array"] = _have_theirs() and not is_dasks
    others = [name for name in allowed if name != "graph" and able[name]]
    drawn = int(np.random.default_rng((seed, index, 2)).integers(SHARE))
    if not others or ("graph" in allowed and drawn >= len(others)):
        return "graph"
    return others[drawn % len(others)]


def _has_engine(case: Case) -> bool:
    function = getattr(dc, case.function, None)
    # Expressions have other keys than what is in memory on a cluster.
    is_dasks = case.installed or da.array_expr_enabled()
    masked = any(operand.mask is not None for operand in case.inputs)
    return (
        callable(function)
        and "engine" in inspect.signature(function).parameters
        and not ({"engine"} & case.options.keys() or is_dasks or masked)
    )


@cache
def _have_theirs() -> bool:
    return find_spec("dask_array") is not None


@dataclass(frozen=True)
class Placed(Operand):
    """An operand whose chunks are in memory on the cluster of this process."""

    def build(self, xp: Any, arrays: Any = da) -> Any:
        """Return the Dask array, persisted."""
        return _client().persist(super().build(xp))


class Held(Operand):
    """An operand whose chunks are in memory."""

    def build(self, xp: Any, arrays: Any = da) -> Any:
        """Return the Dask array, persisted."""
        return super().build(xp).persist(scheduler=get_sync)


class OfTheirs(Operand):
    """An operand that is an array of the package dask-array."""

    def build(self, xp: Any, arrays: Any = da) -> Any:
        """Return its array."""
        return super().build(xp, import_module("dask_array"))


def call(case: Case, xp: ModuleType, engine: str) -> tuple[tuple[Any, ...], str]:
    """Call the function of a case; return its results and the engine that has run it."""
    if engine == "collective":
        try:
            with dask.config.set({"coop.engine": "collective", "coop.fallback": "raise"}):
                return _of(case, Placed).call(xp), engine
        except (Declined, dc.Refused, RefusedByDask, dc.FallbackWarning):
            return case.call(xp), "graph"
    if engine == "dask-array":
        return tuple(map(_lowered, _of(case, OfTheirs).call(xp))), engine
    return (_of(case, Held) if engine == "held" else case).call(xp), engine


def _lowered(result: Any) -> Any:
    """Return a result with the graph by which that package computes it, as a Dask array."""
    if isinstance(result, da.Array):
        raise TypeError("a result of arrays of dask-array is an array of Dask's")
    if not hasattr(result, "__dask_graph__"):
        return result
    graph = result.__dask_graph__()
    return da.Array(graph, result.name, result.chunks, dtype=result.dtype, meta=result._meta)


def _of(case: Case, kind: type[Operand]) -> Case:
    """Return a case with operands of a kind."""
    return replace(
        case,
        inputs=tuple(kind(**vars(operand)) for operand in case.inputs),
        operands={name: kind(**vars(operand)) for name, operand in case.operands.items()},
    )


def scheduler(engine: str) -> Callable[..., Any]:
    """Return what computes the keys of a graph."""
    match engine:
        case "node" | "held":
            return _node().get
        case "collective":
            return _client().get
    return get_sync


@cache
def _node() -> dc.Node:
    node = dc.Node()
    atexit.register(close, _node)
    return node


@cache
def _client() -> Any:
    from distributed import Client, LocalCluster

    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "silence_logs": 50}
    with dask.config.set({"distributed.worker.memory.terminate": False}):
        cluster = LocalCluster(**settings, dashboard_address=None)
    client = Client(cluster, set_as_default=False)
    atexit.register(close, _client)
    return client


def close(*made: Any) -> None:
    """Close the cluster and the node, if there are any, so that the next call makes new ones."""
    for make in made or (_client, _node):
        if make.cache_info().currsize:
            found = make()
            cluster = getattr(found, "cluster", None)
            found.close()
            if cluster is not None:
                cluster.close()
            make.cache_clear()
