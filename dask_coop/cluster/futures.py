"""Find the client or the scheduler that futures belong to, and wait until they are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import distributed
from dask.array.core import Array
from dask.base import get_scheduler
from dask.task_spec import Alias
from distributed import Client, Future

from dask_coop.errors import Declined


def wait(futures: Sequence[Future[Any]]) -> None:
    """Wait until all futures of a client are done.

    `distributed.wait` serves only the current client, and making a client current changes Dask's
    configuration for all threads: two threads that do so may leave it changed.
    """
    if not futures:
        return
    client = futures[0].client
    try:
        from distributed.client import _wait
    except ImportError:
        with client.as_current():
            distributed.wait(futures)
    else:
        client.sync(_wait, futures)


def futures_of_blocks(x: Array, indices: Sequence[tuple[int, ...]]) -> list[Future[Any]]:
    """Return the futures of an array's blocks, or decline."""
    layer, name = x.dask.layers.get(x.name, {}), x.name
    nodes = [layer.get((name, *index)) for index in indices]
    for i, node in enumerate(nodes):
        while isinstance(node, Alias):
            node = nodes[i] = x.dask.get(node.target)
        if isinstance(node, Future):
            continue
        other = _other_scheduler()
        if _is_future(node):
            raise Declined(
                f"the chunks of {name} are futures of {other or 'another scheduler'}, and "
                "collectives run on workers of distributed's scheduler"
            )
        if other:
            raise Declined(
                f"the chunks of {name} are not on workers of distributed's scheduler, on which "
                f"collectives run, as Dask computes by {other}"
            )
        raise Declined(f"the chunks of {name} are not in memory on a cluster: persist them")
    return nodes


def _is_future(node: Any) -> bool:
    """Return whether a node of a graph is a future, of any scheduler."""
    return all(hasattr(type(node), name) for name in ("done", "result"))


def _other_scheduler() -> str:
    """Return the package of Dask's scheduler in use; "" for those of Dask, distributed and ours."""
    package, _, _ = (getattr(get_scheduler(), "__module__", None) or "").partition(".")
    return "" if package in ("dask", "distributed", "dask_coop") else package


def is_persisted(x: Any) -> bool:
    """Return whether all chunks of an array are futures."""
    return all(isinstance(node, Future) for node in dict(x.__dask_graph__()).values())


def client_of(collections: Sequence[Any]) -> Client | None:
    """Return the client of the first future in the graphs of collections, or None."""
    for collection in collections:
        for node in collection.__dask_graph__().values():
            if isinstance(node, Future):
                return node.client
    return None
