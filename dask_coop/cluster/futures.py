"""Futures of any client: whose they are, and when they are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import distributed
from distributed import Client, Future


def wait(futures: Sequence[Future]) -> None:
    """Wait until all futures of a client are done.

    `distributed.wait` does so of the current client. To make one the current one changes Dask's
    configuration for all threads, and two of them may leave it changed.
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


def is_persisted(x: Any) -> bool:
    """Tell whether all chunks of an array are futures."""
    return all(isinstance(node, Future) for node in dict(x.__dask_graph__()).values())


def client_of(collections: Sequence[Any]) -> Client | None:
    """Return the client that futures in the graphs of some collections belong to."""
    for collection in collections:
        for node in collection.__dask_graph__().values():
            if isinstance(node, Future):
                return node.client
    return None
