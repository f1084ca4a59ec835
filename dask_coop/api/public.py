"""The keyword `engine` of the public functions: whether they build graphs, or run at once."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import dask
import numpy as np
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.api.fallback import fall_back
from dask_coop.api.keywords import check_keywords
from dask_coop.api.planning import _map
from dask_coop.errors import Declined
from dask_coop.graph import executor

P = ParamSpec("P")
R = TypeVar("R")

#: "auto" is what the configuration's ``coop.engine`` says, by default a lazy graph.
Engine = Literal["auto", "collective"]

ENGINES = get_args(Engine)

logger = logging.getLogger(__name__)


def takes_engine(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function run at once, where its keyword `engine` or the configuration says so.

    A scan then returns an array in memory, and everything else values of NumPy. What can't be done
    by a collective is done by the graph that the function builds, if ``coop.fallback`` allows that.
    """
    signature = inspect.signature(function)
    is_scan = "include_initial" in signature.parameters

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        check_keywords(function.__name__, signature.parameters, kwargs)
        engine = kwargs.pop("engine", "auto")
        if executor.is_decided() or _chosen(engine) == "auto":
            return function(*args, **kwargs)
        if not is_scan and signature.bind(*args, **kwargs).arguments.get("out") is not None:
            raise ValueError(
                "out takes lazy results, and engine='collective' returns values; leave out off"
            )
        # Only who asks for it pays for importing distributed.
        from dask_coop.cluster.client import Collective

        declined = None
        try:
            with executor.running(Collective()):
                result = function(*args, **kwargs)
        except Declined as reason:
            # Its words only: its frames keep futures alive.
            declined = str(reason)
        if declined is not None:
            fall_back(logger, function.__name__, "runs as a graph", declined, Declined)
            with executor.running(None):
                result = function(*args, **kwargs)
        computed: R = _map(_in_memory, result) if is_scan else _values(result)
        return computed

    return wrapper


def _chosen(engine: Any) -> str:
    configured = dask.config.get("coop.engine", "auto")
    for name, value in (("engine", engine), ("coop.engine", configured)):
        if value not in ENGINES:
            raise ValueError(f"{name} must be one of {', '.join(ENGINES)}, got {value!r}")
    return str(configured if engine == "auto" else engine)


def _in_memory(x: Any) -> Any:
    """Return an array with its chunks computed, which stay where they are."""
    from distributed import futures_of, wait

    from dask_coop.cluster.client import client_of, is_persisted

    if is_persisted(x):
        return x
    client = client_of([x])
    with nullcontext() if client is None else client.as_current():
        x = x.persist()
        futures = futures_of(x)
        if futures:
            wait(futures)
    for future in futures:
        if future.status == "error":
            future.result()
    return x


def _values(result: Any) -> Any:
    """Return a result, or a tuple or list of them, with NumPy's values for what is lazy."""
    lazy: list[Any] = []
    _map(lambda part: lazy.append(part) if is_dask_collection(part) else None, result)
    if not lazy:
        return result
    from dask_coop.cluster.client import client_of

    client = client_of(lazy)
    with nullcontext() if client is None else client.as_current():
        computed = iter(dask.compute(*map(_to_host, lazy)))
    return _map(lambda part: next(computed) if is_dask_collection(part) else part, result)


def _to_host(x: Any) -> Any:
    meta = getattr(x, "_meta", None)
    if meta is None or not type(meta).__module__.startswith("cupy"):
        return x
    like = np.zeros((0,) * x.ndim, x.dtype)
    return x.map_blocks(chunks.asarray, "numpy", dtype=x.dtype, meta=like)
