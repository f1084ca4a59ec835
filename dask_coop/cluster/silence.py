"""Give up waiting for workers that are lost or fall silent in the middle of a round.

A worker sends heartbeats also while it works, so a chunk may take any time. A worker that is
stopped, or whose machine hangs, sends none, and its connection stays open. distributed removes it
after ``distributed.scheduler.worker-ttl``; a round declines after ``coop.collective.timeout``,
which the client sends with its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from distributed import Scheduler
from distributed.scheduler import heartbeat_interval

from dask_coop.cluster.versions import Handler
from dask_coop.graph import config

#: Fewest looks at a worker within the time that it may be silent, and the most seconds between two.
LOOKS, LONGEST = 8, 0.5

#: The timeout in seconds of the call that the scheduler serves in this context.
_timeout: ContextVar[float] = ContextVar("dask_coop.cluster.silence")


def timeout() -> float:
    """Return the configured seconds for which a worker may be silent."""
    return float(config.get("coop.collective.timeout", config.SPAN))


def seconds() -> float:
    """Return the seconds for which workers of the scheduler's current call may be silent."""
    return _timeout.get()


def timed(handler: Handler) -> Handler:
    """Return a scheduler's handler that takes the timeout from its messages."""

    async def handle(*, timeout: float, **message: Any) -> dict[str, Any]:
        token = _timeout.set(timeout)
        try:
            return await handler(**message)
        finally:
            _timeout.reset(token)

    return handle


async def given_up(
    scheduler: Scheduler, addresses: Iterable[str], answer: asyncio.Future[Any]
) -> dict[str, Any] | None:
    """Wait for an answer; return None once it is there, or an answer that declines.

    Looks are counted instead of seconds, because a busy scheduler reads no heartbeats.
    """
    longest = max(seconds(), 3 * heartbeat_interval(len(scheduler.workers)))
    pause = min(longest / LOOKS, LONGEST)
    seen = {a: (_last_seen(scheduler, a), 0) for a in addresses}
    while not (await asyncio.wait({answer}, timeout=pause))[0]:
        for address, (last, looks) in seen.items():
            now = _last_seen(scheduler, address)
            if not now:
                # Its connection may take long to fail.
                return {"status": "declined", "reason": f"worker {address} was lost"}
            seen[address] = (now, looks + 1 if now == last else 0)
            if seen[address][1] * pause >= longest:
                reason = (
                    f"worker {address} has not been heard of for {longest:.3g} s: it is stopped or "
                    "hangs (coop.collective.timeout sets this limit). A graph that needs "
                    f"its chunks waits until it goes on, or {_until_lost(scheduler)}"
                )
                return {"status": "declined", "reason": reason, "is_silent": True}
    return None


def _until_lost(scheduler: Scheduler) -> str:
    """Return when distributed gives up a silent worker, as the end of a message."""
    key = "distributed.scheduler.worker-ttl"
    if not scheduler.worker_ttl:
        return f"for ever, as {key} is not set"
    return f"is lost after {key}, {scheduler.worker_ttl:.3g} s"


def _last_seen(scheduler: Scheduler, address: str) -> float:
    worker = scheduler.workers.get(address)
    return float(worker.last_seen) if worker else 0.0
