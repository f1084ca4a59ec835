"""Sum up the counters of servers for tables; a fault meanwhile is only a warning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
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
    """Turn exceptions raised within into warnings in the log, each fault once a process."""
    try:
        yield
    except Exception as error:
        _warn(said(error))


@lru_cache(100)
def _warn(fault: str) -> None:
    logger.warning("dask_coop cannot show what it does: %s", fault)


def totals(server: Scheduler | Worker) -> dict[str, dict[str, float]]:
    """Return the counters of each activity, by unit."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(int))
    for digests in (server.digests_total, getattr(server, "cumulative_worker_metrics", {})):
        for key, value in digests.items():
            if isinstance(key, tuple) and len(key) > 2 and str(key[-2]).startswith(PREFIX):
                sums[key[-2].removeprefix(PREFIX)][key[-1]] += value
    return dict(sorted(sums.items()))


#: The function that formats a count, by its unit.
FORMATS: dict[str, Callable[[float], str]] = {
    "count": lambda n: f"{n:,.0f}",
    "seconds": format_time,
    "bytes": lambda n: str(format_bytes(int(n))),
}


def summary(scheduler: Scheduler) -> Iterator[str]:
    """Yield lines with all counters since the scheduler started, and the last fallbacks."""
    yield "dask_coop, since the scheduler started"
    for activity, units in totals(scheduler).items():
        columns = (f"{FORMATS[unit](units[unit]):>12} {unit}" for unit in FORMATS if unit in units)
        yield f"  {activity:24}{' '.join(columns)}"
    for event in fallbacks(scheduler):
        yield f"  {event['function']} ran as a graph: {event['reason']}"


def fallbacks(scheduler: Scheduler) -> list[dict[str, Any]]:
    """Return the events of the last fallbacks with their times, the latest first."""
    events = (
        {"time": when, **event}
        for when, event in reversed(scheduler.get_events(TOPIC))
        if isinstance(event, dict) and event.get("action") == "fallback"
    )
    return [*islice(events, _MOST)]
