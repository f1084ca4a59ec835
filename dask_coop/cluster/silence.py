"""Workers that are lost or fall silent in the middle of a round, which are not waited for.

A worker sends the scheduler heartbeats also while it works, so how long a chunk takes does not
matter. One that is stopped, or whose machine hangs, sends none, and its connection stays open:
distributed removes it after ``distributed.scheduler.worker-ttl``, and a round declines after the
configuration's ``coop.collective.timeout``, which a client sends with its message.
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

#: How often a worker is looked at in the time for which it may be silent, at least, and the longest
#: time between two looks, in seconds.
LOOKS, LONGEST = 8, 0.5

#: Seconds, of the call that the scheduler serves.
_timeout: ContextVar[float] = ContextVar("dask_coop.cluster.silence")


def timeout() -> float:
    """Return the seconds for which a worker may be silent, as configured."""
    return float(config.get("coop.collective.timeout", config.SPAN))


def seconds() -> float:
    """Return for how long workers of the call that the scheduler serves may be silent."""
    return _timeout.get()


def timed(handler: Handler) -> Handler:
    """Return a handler of the scheduler whose messages say how long workers may be silent."""

    async def handle(*, timeout: float, **message: Any) -> dict[str, Any]:
        token = _timeout.set(timeout)
        try:
            return await handler(**message)
        finally:
            _timeout.reset(token)

    return handle


async def given_up(
    scheduler: Scheduler, addresses: Iterable[str], asked: asyncio.Future[Any]
) -> dict[str, Any] | None:
    """Wait for an answer; return why it is waited for no more, or None when it is there.

    Looks are counted, and not seconds: while the scheduler is busy with something else, it takes in
    no heartbeats.
    """
    longest = max(seconds(), 3 * heartbeat_interval(len(scheduler.workers)))
    pause = min(longest / LOOKS, LONGEST)
    seen = {a: (_last_seen(scheduler, a), 0) for a in addresses}
    while not (await asyncio.wait({asked}, timeout=pause))[0]:
        for address, (last, looks) in seen.items():
            now = _last_seen(scheduler, address)
            if not now:
                # To connect to it would be tried for long.
                return {"status": "declined", "reason": f"worker {address} was lost"}
            seen[address] = (now, looks + 1 if now == last else 0)
            if seen[address][1] * pause >= longest:
                reason = (
                    f"worker {address} has not been heard of for {longest:.3g} s: it is stopped or "
                    "hangs (coop.collective.timeout says how long that may be). A graph that needs "
                    f"its chunks waits until it goes on, or {_until_lost(scheduler)}"
                )
                return {"status": "declined", "reason": reason, "is_silent": True}
    return None


def _until_lost(scheduler: Scheduler) -> str:
    """Say when distributed takes a silent worker for lost."""
    key = "distributed.scheduler.worker-ttl"
    if not scheduler.worker_ttl:
        return f"for ever, as {key} is not set"
    return f"is lost after {key}, {scheduler.worker_ttl:.3g} s"


def _last_seen(scheduler: Scheduler, address: str) -> float:
    worker = scheduler.workers.get(address)
    return float(worker.last_seen) if worker else 0.0
