"""What a cluster shows of this library, on real processes: meters, events, /metrics, the page."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import dask
import dask.array as da
import numpy as np
import pytest
from bokeh.client import pull_session
from distributed import Client, performance_report
from distributed.diagnostics.task_stream import rectangles
from support import browser
from support.clusters import addresses, cluster, eventually, persist, values

import dask_coop as dc
from dask_coop.cluster.counts import TOPIC
from dask_coop.cluster.monitor import COLOR, Monitor
from dask_coop.cluster.scheduler import SchedulerRounds
from dask_coop.cluster.worker import REDUCE, SCAN
from dask_coop.errors import Declined

pytestmark = pytest.mark.xdist_group("monitor")

LINE = np.arange(1000.0)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Return a client of two workers, which has called one collective."""
    with cluster(2, 2) as client:
        dc.sum(persist(client, LINE, 100), engine="collective")
        yield client


@pytest.fixture
def x(client: Client) -> da.Array:
    return persist(client, LINE, 100)


def counts(client: Client) -> dict[tuple[str, ...], float]:
    """Return what the scheduler has been told by its workers, with the name of the task."""

    def told(dask_scheduler: Any) -> Any:
        kept = dask_scheduler.cumulative_worker_metrics
        return {k: v for k, v in kept.items() if isinstance(k, tuple) and "coop-" in str(k[-2])}

    found: dict[tuple[str, ...], float] = client.run_on_scheduler(told)
    return found


def added(client: Client, call: Callable[[], Any], wanted: dict[tuple[str, ...], float]) -> None:
    """Hold a call to what it adds to the scheduler's counts, once heartbeats have told of it."""
    before = counts(client)
    call()

    def news() -> dict[tuple[str, ...], float]:
        after = counts(client)
        return {key: after.get(key, 0) - before.get(key, 0) for key in wanted}

    eventually(lambda: news() == wanted, 20, lambda: f"{news()}, and not {wanted}")


def page(client: Client, route: str, port: int | None = None) -> str:
    link = client.dashboard_link.replace("status", route)
    if port is not None:
        link = f"http://127.0.0.1:{port}/{route}"
    text: str = urlopen(link, timeout=60).read().decode()
    return text


def metric(text: str, name: str, activity: str) -> float:
    """Return the value of a counter in what Prometheus is told, 0 if it is not there."""
    found = re.search(rf'^{name}{{activity="{activity}"}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0


def test_a_graph_is_counted_by_its_tasks(client: Client) -> None:
    lazy = dc.cumsum(da.from_array(LINE, chunks=250))
    # Of four chunks three are lifted; each is scanned.
    scans = ("execute", "cumsum", "coop-scan", "count")
    added(client, lambda: values(client, lazy), {scans: 4})
    lifted = sum(v for k, v in counts(client).items() if k[0] == "execute" and k[2] == "coop-lift")
    assert lifted == 3


def test_reading_is_counted_in_bytes_and_seconds(client: Client, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(tmp_path / "x", data=np.tile(LINE, 1000), chunks=(250_000,))
    path = str(tmp_path / "x")

    def totals() -> dict[tuple[str, str], float]:
        sums: Counter[tuple[str, str]] = Counter()
        for key, value in counts(client).items():
            if key[-2] in ("coop-read", "coop-decode"):
                sums[key[-2], key[-1]] += value
        return dict(sums)

    before = totals()
    assert values(client, dc.sum(dc.from_zarr(path))) == LINE.sum() * 1000

    def news(activity: str, unit: str) -> float:
        return totals().get((activity, unit), 0) - before.get((activity, unit), 0)

    eventually(lambda: news("coop-decode", "bytes") == array.nbytes)
    assert news("coop-read", "bytes") == array.nbytes_stored() - len(
        (tmp_path / "x" / "zarr.json").read_bytes()
    )
    assert 0 < news("coop-read", "seconds") < 60
    assert 0 < news("coop-decode", "seconds") < 60
    shown = page(client, "metrics")
    assert metric(shown, "dask_scheduler_coop_bytes_total", "decode") >= array.nbytes


def test_a_collective_is_counted_by_its_rounds(client: Client, x: da.Array) -> None:
    wanted = {
        ("coop", "coop-rounds", "count"): 4,
        ("coop", "coop-lift", "count"): 10,
        ("coop", "coop-scan", "count"): 10,
    }
    added(client, lambda: dc.cumsum(x, engine="collective"), wanted)
    assert 0 < counts(client)["coop", "coop-rounds", "seconds"] < 60


def test_calls_and_fallbacks_are_events(client: Client, x: da.Array) -> None:
    seen = len(client.get_events(TOPIC))
    dc.sum(x, engine="collective")
    dc.cumsum(x, engine="collective")
    with client.as_current():
        dc.min(da.from_array(LINE, chunks=100), engine="collective")
    eventually(lambda: len(client.get_events(TOPIC)) == seen + 3)
    first, second, last = (event for _, event in client.get_events(TOPIC)[seen:])
    assert (first["action"], first["function"], first["status"]) == ("reduce", "sum", "OK")
    assert (second["action"], second["function"], second["status"]) == ("scan", "cumsum", "OK")
    assert 0 < second["seconds"] < 60
    assert (last["action"], last["function"]) == ("fallback", "min")
    assert "not in memory on a cluster: persist them" in last["reason"]


def test_calls_of_a_function_are_told_by_its_name(client: Client, x: da.Array) -> None:
    seen = len(client.get_events(TOPIC))
    # Its digits are counted, and what they leave is looked for, in several calls.
    assert dc.median(x, axis=0, engine="collective") == 499.5
    told = [event for _, event in client.get_events(TOPIC)[seen:]]
    assert {event["function"] for event in told} == {"median"}
    assert {event["action"] for event in told} <= {"reduce", "fallback"}


def test_what_the_scheduler_declines_is_told_with_the_reason(client: Client, x: da.Array) -> None:
    def set_status(status: str, dask_scheduler: Any) -> None:
        from distributed.core import Status

        for worker in dask_scheduler.workers.values():
            worker.status = Status[status]

    seen = len(client.get_events(TOPIC))
    client.run_on_scheduler(set_status, "paused")
    try:
        with dask.config.set({"coop.fallback": "raise"}), pytest.raises(Declined):
            dc.sum(x, engine="collective")
    finally:
        client.run_on_scheduler(set_status, "running")
    eventually(lambda: len(client.get_events(TOPIC)) == seen + 2)
    call, fallback = (event for _, event in client.get_events(TOPIC)[seen:])
    assert (call["status"], fallback["action"]) == ("declined", "fallback")
    assert "is paused: its memory is" in call["reason"]
    assert call["reason"] == fallback["reason"]


def test_prometheus_is_told_by_the_scheduler_and_by_workers(client: Client, x: da.Array) -> None:
    before = page(client, "metrics")
    dc.sum(x, engine="collective")
    after = page(client, "metrics")
    for unit, activity, least in (
        ("count", "collective-sum", 1),
        ("seconds", "collective-sum", 1e-6),
        ("count", "sent", 2),
        ("bytes", "sent", 100),
        ("bytes", "received", 100),
    ):
        name = f"dask_scheduler_coop_{unit}_total"
        assert metric(after, name, activity) - metric(before, name, activity) >= least, activity
    ports = client.run(lambda dask_worker: dask_worker.http_server.port)
    assert len(ports) == 2
    for port in ports.values():
        told = page(client, "metrics", port)
        assert metric(told, "dask_worker_coop_count_total", "rounds") >= 1
        assert metric(told, "dask_worker_coop_seconds_total", "rounds") > 0


def test_rounds_are_on_the_task_stream_in_a_color_of_their_own(client: Client, x: da.Array) -> None:
    # Somebody looks.
    client.get_task_stream()
    start = time.time()
    dc.cumsum(x, engine="collective")
    values(client, dc.sum(da.from_array(LINE, chunks=100)))
    records = client.get_task_stream(start=start)
    drawn = rectangles(records)
    ours = [i for i, color in enumerate(drawn["color"]) if color == COLOR]
    assert Counter(drawn["name"][i] for i in ours) == {REDUCE: 2, SCAN: 2}
    assert {drawn["worker"][i] for i in ours} == {*addresses(client)}
    assert all(drawn["duration"][i] > 0 for i in ours)
    assert len(ours) < len(drawn["color"])


def test_the_page_has_calls_times_and_fallbacks(client: Client, x: da.Array) -> None:
    dc.sum(x, engine="collective")
    with client.as_current():
        dc.max(da.from_array(LINE, chunks=100), engine="collective")
    # Its own navigation leads to it, and that of the other pages.
    for route in ("coop", "status"):
        assert '<a href="coop">Coop</a>' in page(client, route)
    session = pull_session(url=client.dashboard_link.replace("status", "coop"))
    try:
        assert session.document.title == "Dask: Coop"
        (told,) = session.document.roots
        assert re.search(
            r">collective-sum</td><td[^>]*>\d+</td><td[^>]*>[\d.]+ m?s</td>", told.text
        )
        assert re.search(
            r">sent</td><td[^>]*>\d+</td><td[^>]*></td><td[^>]*>[\d.]+ k?i?B</td>", told.text
        )
        assert re.search(r">max</td><td[^>]*>the chunks of array-\w+ are not in memory", told.text)
    finally:
        session.close()


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium or Chrome")
def test_a_browser_shows_the_page(client: Client, x: da.Array) -> None:
    with client.as_current():
        dc.min(da.from_array(LINE, chunks=100), engine="collective")

    async def look() -> tuple[str, list[str]]:
        async with browser.tab() as tab:
            shown = f"{browser.TEXT}.includes('collective-sum')"
            await tab.show(client.dashboard_link.replace("status", "coop"), shown)
            # It is told of what happens while somebody looks.
            await asyncio.to_thread(dc.prod, x, engine="collective")
            await tab.show(await tab.evaluate("document.URL"), shown.replace("sum", "prod"))
            return await tab.evaluate(browser.TEXT), tab.errors

    text, errors = asyncio.run(look())
    assert errors == []
    for words in ("activity", "sent", "The last collectives that ran as graphs", " min "):
        assert words in text


def test_it_is_there_once_however_often_rounds_are_registered() -> None:
    with cluster(1) as client:
        dc.sum(persist(client, LINE, 100), engine="collective")
        # The scheduler runs in this process.
        scheduler = client.cluster.scheduler
        before = scheduler.plugins[Monitor.name], scheduler.handlers["performance_report"]
        client.unregister_scheduler_plugin(SchedulerRounds.name)
        client.register_plugin(SchedulerRounds())
        assert before == (scheduler.plugins[Monitor.name], scheduler.handlers["performance_report"])


def test_a_performance_report_holds_them(client: Client, x: da.Array, tmp_path: Path) -> None:
    name = tmp_path / "report.html"
    with client.as_current(), performance_report(filename=str(name)):
        dc.cumsum(x, engine="collective")
        dc.max(da.from_array(LINE, chunks=100), engine="collective")
    text = name.read_text()
    assert re.search(r"collective-cumsum +[1-9]\d* count", text)
    assert re.search(r"fallbacks +[1-9]\d* count", text)
    assert "max ran as a graph: the chunks of array-" in text
    assert COLOR in text
    # What distributed tells remains.
    assert "Calling Code" in text
