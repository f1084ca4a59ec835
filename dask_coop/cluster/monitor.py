"""Show this library's work on a cluster: counts of rounds, events, /metrics, the task stream.

Counters live where distributed keeps its own, and are summed up when somebody looks::

    worker:     chunk functions, kernels, rounds --> digests_total ------------> its /metrics
                                                          | heartbeat
    scheduler:                               cumulative_worker_metrics ---+
                calls, messages, fallbacks --> digests_total -------------+----> /metrics, /coop,
                                                                                 performance_report

Counts within a task have the key ("execute", name of the task, activity, unit), all others
("coop", activity, unit). Every call and every fallback is also an event of `TOPIC`. A failure here
is a warning in the log and fails no call (`showing`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, wraps
from html import escape
from importlib.util import find_spec
from time import perf_counter
from typing import Any
from weakref import WeakSet

import numpy as np
from distributed import Client, Scheduler, SchedulerPlugin, Worker

from dask_coop.cluster.counts import FORMATS, TOPIC, showing, summary, totals
from dask_coop.meters import PREFIX

#: Color and thread name of collectives on the task stream; no task has either.
COLOR, THREAD = "#e6007e", "dask_coop"

CALLS = PREFIX + "collective-"
FALLBACKS = PREFIX + "fallbacks"
ROUNDS, SENT, RECEIVED = PREFIX + "rounds", PREFIX + "sent", PREFIX + "received"

Answer = dict[str, Any]
Asynchronous = Callable[..., Coroutine[Any, Any, Answer]]


def note(server: Scheduler | Worker, activity: str, value: float = 1, unit: str = "count") -> None:
    """Add to a server's counter; called in the thread of its event loop."""
    with showing():
        server.digest_metric(("coop", activity, unit), value)


@contextmanager
def metered(worker: Worker) -> Iterator[None]:
    """Credit the worker with counts made within, in every thread that has the context."""
    counts: list[tuple[str, float, str]] = []

    def keep() -> None:
        for count in counts:
            note(worker, *count)

    # Wake the event loop once, however many chunks count.
    with ExitStack() as meter:
        with showing():
            from distributed.metrics import context_meter

            meter.enter_context(context_meter.add_callback(lambda *count: counts.append(count)))
            meter.callback(worker.loop.add_callback, keep)
        yield


def of_worker(worker: Worker, handler: Asynchronous) -> Asynchronous:
    """Return a worker's handler of rounds that also counts them."""
    _show(worker, "worker")

    @wraps(handler)
    async def counted(**message: Any) -> Answer:
        start = perf_counter()
        try:
            with metered(worker):
                return await handler(**message)
        finally:
            note(worker, ROUNDS)
            note(worker, ROUNDS, perf_counter() - start, "seconds")

    return counted


def of_scheduler(scheduler: Scheduler, handler: Asynchronous) -> Asynchronous:
    """Return a scheduler's handler of calls that also counts each and logs it as an event.

    Messages name the public `function`, which may make several calls.
    """
    action = handler.__name__

    @wraps(handler)
    async def counted(*, function: str, **message: Any) -> Answer:
        start = perf_counter()
        answer: Answer = {"status": "failed"}
        try:
            answer = await handler(**message)
        finally:
            seconds = perf_counter() - start
            note(scheduler, CALLS + function)
            note(scheduler, CALLS + function, seconds, "seconds")
            event = {"action": action, "function": function, "status": answer["status"]}
            event["seconds"] = seconds
            reason = {"reason": answer["reason"]} if "reason" in answer else {}
            with showing():
                scheduler.log_event(TOPIC, event | reason)
        return answer

    return counted


def counted_message(send: Asynchronous) -> Asynchronous:
    """Decorate a sender of rounds so that messages are counted and drawn on the task stream."""

    @wraps(send)
    async def counted(server: Any, address: str, handler: str, **message: Any) -> Answer:
        start = perf_counter()
        answer = await send(server, address, handler, **message)
        with showing():
            note(server, SENT)
            note(server, SENT, _nbytes(message.values()), "bytes")
            note(server, RECEIVED, _nbytes(answer.values()), "bytes")
            _draw(server, address, handler, perf_counter() - start, answer["status"])
        return answer

    return counted


def _draw(server: Any, address: str, handler: str, seconds: float, status: str) -> None:
    """Draw a message that was just answered on the task stream."""
    # The plugin exists once somebody has looked at the stream.
    stream = getattr(server, "plugins", {}).get(task_stream.TaskStreamPlugin.name)
    if stream is None:
        return
    from distributed.metrics import time

    now = time()
    stream.transition(
        handler,
        "processing",
        "memory",
        startstops=[{"action": "compute", "start": now - seconds, "stop": now}],
        status="OK" if status == "OK" else "error",
        worker=address,
        thread=THREAD,
        nbytes=0,
        type="",
    )


def _nbytes(values: Iterable[Any]) -> int:
    """Return the bytes of arrays and buffers in nested sequences, serialized ones included."""
    from distributed.protocol import Serialize, Serialized
    from distributed.utils import nbytes

    total = 0
    for value in values:
        if isinstance(value, bytes | memoryview | np.ndarray):
            total += nbytes(value)
        elif isinstance(value, list | tuple):
            total += _nbytes(value)
        elif isinstance(value, Serialized):
            total += sum(map(nbytes, value.frames))
        elif isinstance(value, Serialize):
            total += _nbytes([value.data])
    return total


def _color(message: dict[str, Any]) -> Any:
    is_ours = message.get("thread") == THREAD and message.get("status") == "OK"
    return COLOR if is_ours else _color_of_task(message)


# Clients without this library do not know an action of our own and would draw nothing.
with showing():
    from distributed.diagnostics import task_stream

    _color_of_task = task_stream.colors["compute"]
    task_stream.colors["compute"] = _color


def fell_back(client: Client | None, function: str, reason: str) -> None:
    """Log the event that a collective runs as a graph, without waiting for the scheduler."""
    if client is None:
        with suppress(ValueError):
            client = Client.current()
    with showing():
        if client is not None and client.status == "running":
            event = {"action": "fallback", "function": function, "reason": reason}
            client.loop.add_callback(_log_event, client, event)


async def _log_event(client: Client, event: dict[str, Any]) -> None:
    # If the scheduler is out of reach, the graph will raise.
    with showing(), suppress(OSError):
        await client.scheduler.log_event(topic=TOPIC, msg=event)


class Monitor(SchedulerPlugin):  # type: ignore[misc]
    """Count fallbacks, and show the counters on the scheduler's dashboard."""

    name = "dask-coop-monitor"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        with showing():
            for _, event in scheduler.get_events(TOPIC):
                self.log_event(TOPIC, event)
        _show(scheduler, "scheduler")
        with showing():
            _report(scheduler)
        # A scheduler with a dashboard has imported bokeh.
        if "bokeh" in sys.modules:
            with showing():
                from dask_coop.cluster.page import add_page

                add_page(scheduler)

    def log_event(self, topic: str, msg: Any) -> None:
        """Count a fallback; distributed calls this for every event."""
        if topic == TOPIC and isinstance(msg, dict) and msg.get("action") == "fallback":
            note(self._scheduler, FALLBACKS)


def _report(scheduler: Scheduler) -> None:
    """Add the counters to performance reports."""
    report = scheduler.handlers["performance_report"]

    async def performance_report(code: str = "", **message: Any) -> str:
        with showing():
            lines = escape("\n".join(summary(scheduler)))
            code = f"{code}\n\n{lines}"
        page: str = await report(code=code, **message)
        return page

    scheduler.handlers["performance_report"] = performance_report


def _families(servers: Iterable[Any], name: Callable[[str], str]) -> Iterator[Any]:
    """Yield a family of counters for each unit, summed over the servers of this process."""
    from prometheus_client.core import CounterMetricFamily

    sums: Counter[tuple[str, str]] = Counter()
    for server in list(servers):
        for activity, units in totals(server).items():
            sums.update({(unit, activity): value for unit, value in units.items()})
    for unit in FORMATS:
        text = f"What dask_coop has done, in {unit}, by activity"
        family = CounterMetricFamily(name(f"coop_{unit}"), text, labels=["activity"])
        for (counted, activity), value in sorted(sums.items()):
            if counted == unit:
                family.add_metric([activity], value)
        yield family


@cache
def _collector(subsystem: str) -> Any:
    """Return the Prometheus collector of servers of a kind."""
    from distributed.http.prometheus import PrometheusCollector
    from prometheus_client import REGISTRY

    class Collector(PrometheusCollector):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(None)
            self.subsystem = subsystem
            self.servers: WeakSet[Any] = WeakSet()

        def collect(self) -> Iterator[Any]:
            """Yield the counters; prometheus_client calls this."""
            with showing():
                yield from _families(self.servers, self.build_name)

    collector = Collector()
    REGISTRY.register(collector)
    return collector


def _show(server: Scheduler | Worker, subsystem: str) -> None:
    """Add a server's counters to its /metrics, if Prometheus's client is installed."""
    if find_spec("prometheus_client"):
        with showing():
            _collector(subsystem).servers.add(server)
