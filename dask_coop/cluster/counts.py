"""Sums up what servers have counted, for tables; a fault while it does so is a warning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from dask.utils import format_bytes, format_time
from distributed import Scheduler, Worker

from dask_coop.cluster.private import logger, said
from dask_coop.meters import PREFIX

#: The topic of the events: ``client.get_events("dask_coop")``.
TOPIC = "dask_coop"

#: The fallbacks that are shown, at most.
_MOST = 20


@contextmanager
def showing() -> Iterator[None]:
    """Have what fails within be a warning: of each fault one a process."""
    try:
        yield
    except Exception as error:
        _warn(said(error))


@lru_cache(100)
def _warn(fault: str) -> None:
    logger.warning("dask_coop cannot show what it does: %s", fault)


def totals(server: Scheduler | Worker) -> dict[str, dict[str, float]]:
    """Return what is counted of each activity, by its unit."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(int))
    for kept in (server.digests_total, getattr(server, "cumulative_worker_metrics", {})):
        for key, value in kept.items():
            if isinstance(key, tuple) and len(key) > 2 and str(key[-2]).startswith(PREFIX):
                found[key[-2].removeprefix(PREFIX)][key[-1]] += value
    return dict(sorted(found.items()))


#: How what is counted in a unit is written.
WRITTEN: dict[str, Callable[[float], str]] = {
    "count": lambda n: f"{n:,.0f}",
    "seconds": format_time,
    "bytes": lambda n: str(format_bytes(int(n))),
}


def summary(scheduler: Scheduler) -> Iterator[str]:
    """Yield lines of all that was counted since the scheduler started, and the last fallbacks."""
    yield "dask_coop, since the scheduler started"
    for activity, units in totals(scheduler).items():
        told = (f"{WRITTEN[unit](units[unit]):>12} {unit}" for unit in WRITTEN if unit in units)
        yield f"  {activity:24}{' '.join(told)}"
    for event in fallbacks(scheduler):
        yield f"  {event['function']} ran as a graph: {event['reason']}"


def fallbacks(scheduler: Scheduler) -> list[dict[str, Any]]:
    """Return the events of the last fallbacks, with when they were, the last one first."""
    told = (
        {"time": when, **event}
        for when, event in reversed(scheduler.get_events(TOPIC))
        if isinstance(event, dict) and event.get("action") == "fallback"
    )
    return [event for event, _ in zip(told, range(_MOST), strict=False)]
