"""Why a collective runs as a graph is said in plain words, and nothing does in silence."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.local import get_sync
from distributed import Client
from distributed.core import Status
from support.clusters import addresses, cluster, persist, wait_for

import dask_coop as dc
from dask_coop.cluster import client as cluster_client

pytestmark = [
    pytest.mark.xdist_group("reasons"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

LINE = np.arange(12)

WITH_ENGINE = {
    name: function
    for name, function in ((name, getattr(dc, name)) for name in dc.__all__)
    if inspect.isfunction(function) and "engine" in inspect.signature(function).parameters
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster(2, 1, memory_limit="1GB") as client:
        yield client


@contextmanager
def status_of(client: Client, worker: str, status: Status) -> Iterator[None]:
    """Let the scheduler take a worker for one of another status."""
    state = client.cluster.scheduler.workers[worker]
    before, state.status = state.status, status
    try:
        yield
    finally:
        state.status = before


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.paused, r"is paused: its memory is \d+% full$"),
        (Status.closing_gracefully, "is being retired$"),
        (Status.closing, "is closing$"),
    ],
)
def test_a_worker_that_does_not_run(
    client: Client, fallbacks: Any, status: Status, words: str
) -> None:
    worker, _ = addresses(client)
    x = client.persist(da.from_array(LINE, chunks=6), workers=[worker])
    wait_for(x)
    with status_of(client, worker, status), dask.config.set({"coop.fallback": "raise"}):
        for call in (dc.sum, dc.cumsum):
            with pytest.raises(dc.Declined) as caught:
                call(x, engine="collective")
            said, _, _ = str(caught.value).partition("; with coop.fallback=")
            assert re.search(rf"^chunk .* cannot be used: worker {worker} {words}", said)
    assert dc.sum(x, engine="collective") == LINE.sum()
    assert fallbacks() == []


class OthersFuture:
    """A future of another scheduler, such as Frisky's."""

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return LINE


def others_get(*args: Any, **kwargs: Any) -> Any:
    """Compute a graph, as that scheduler does."""
    return get_sync(*args, **kwargs)


def test_another_scheduler_than_distributeds(client: Client, fallbacks: Any) -> None:
    others_get.__module__ = "frisky._dask_config"
    held = da.Array({("x", 0): OthersFuture()}, "x", ((12,),), dtype=LINE.dtype)
    lazy = da.from_array(LINE, chunks=6)
    where = "workers of distributed's scheduler"
    # A client in use does not matter: Dask computes by the configured scheduler.
    with dask.config.set(scheduler=others_get):
        scan = dc.cumsum(lazy, engine="collective")
        np.testing.assert_array_equal(scan, LINE.cumsum())
        said = f"not on {where}, on which collectives run, as Dask computes by frisky"
        assert said in fallbacks()[0]
        said = f"x are futures of frisky, and collectives run on {where}"
        with dask.config.set({"coop.fallback": "raise"}), pytest.raises(dc.Declined, match=said):
            dc.sum(held, engine="collective")
        # What distributed's client has persisted is on its workers.
        x = client.persist(lazy)
        assert dc.sum(x, engine="collective") == LINE.sum()
        assert fallbacks() == []
    with dask.config.set({"coop.fallback": "raise"}):
        said = f"x are futures of another scheduler, and collectives run on {where}"
        with pytest.raises(dc.Declined, match=said):
            dc.sum(held, engine="collective")
        with pytest.raises(dc.Declined, match="not in memory on a cluster: persist them"):
            dc.sum(lazy, engine="collective")


def test_masked_chunks_of_an_array_that_is_not(client: Client, fallbacks: Any) -> None:
    plain = da.from_array(LINE.reshape(4, 3), chunks=2)
    x = plain.map_blocks(lambda block: np.ma.masked_less(block, 4), meta=plain._meta)
    x = client.persist(x)
    wait_for(x)
    np.testing.assert_array_equal(
        dc.max(x, 1, engine="collective").mask, [True, False, False, False]
    )
    (said,) = fallbacks()
    assert "chunks are masked, and the meta of their array is not" in said
    with dask.config.set({"coop.fallback": "raise"}), pytest.raises(dc.Declined, match="masked"):
        dc.max(x, 1, engine="collective")


def call_of(name: str, client: Client) -> Any:
    """Return what calls a function with arrays on the cluster."""
    x = persist(client, np.linspace(-1, 1, 60).reshape(10, 6), 3)
    if next(iter(inspect.signature(WITH_ENGINE[name]).parameters)) == "mask":
        mask = persist(client, np.linspace(-1, 1, 60).reshape(10, 6) > 0, 3)
        values = (x,) if name == "run_events" else ()
        return lambda **kw: WITH_ENGINE[name](mask, *values, axis=0, **kw)
    line, counts = persist(client, LINE / 2, 5), persist(client, LINE % 5, 5)
    sum_ = dc.Monoid("sum", np.add, 0, "f8", commutative=True)
    given: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "argtopk": ((line, 3), {}),
        "bincount": ((counts,), {}),
        "cumulative_trapezoid": ((x,), {"axis": 0}),
        **{name: ((x, 0), {"com": 1}) for name in ("ewm_mean", "ewm_sum", "ewm_var", "ewm_std")},
        "ewm_cov": ((x, x, 0), {"com": 1}),
        "ewm_corr": ((x, x, 0), {"com": 1}),
        "groupby_reduce": ((line, LINE % 3), {"func": "mean"}),
        "groupby_scan": ((line, LINE % 3), {"func": "cumsum"}),
        "histogram": ((x, 5), {}),
        "histogram2d": ((line, line, 5), {}),
        "histogramdd": (((line, line), 4), {}),
        "linregress": ((line, line), {}),
        "moment": ((x, 3), {}),
        "percentile": ((x, 30), {}),
        "nanpercentile": ((x, 30), {}),
        "quantile": ((x, 0.3), {}),
        "nanquantile": ((x, 0.3), {}),
        "reduce": ((line, sum_), {}),
        "scan": ((line, sum_), {}),
        "topk": ((x, 3), {}),
    }
    if name == "to_hist":
        hist = pytest.importorskip("boost_histogram")
        return lambda **kw: dc.to_hist(line, hist.axis.Regular(3, 0, 6), **kw)
    takes_axis = "axis" in inspect.signature(WITH_ENGINE[name]).parameters
    args, kwargs = given.get(name, ((x,), {"axis": 0} if takes_axis else {}))
    return lambda **kw: WITH_ENGINE[name](*args, **kwargs, **kw)


@pytest.mark.parametrize("name", WITH_ENGINE)
def test_a_call_asks_the_workers_or_says_why_not(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked, ask = [], cluster_client._round

    def noted(handler: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(handler)
        return ask(handler, *args, **kwargs)

    monkeypatch.setattr(cluster_client, "_round", noted)
    monkeypatch.setattr("dask_coop.api.call.public.compute", refuse)
    call = call_of(name, client)
    try:
        call(engine="collective")
    except UnsaidError:
        # What is lazy still is made by tasks.
        assert fallbacks()
    else:
        assert asked or fallbacks()


class UnsaidError(Exception):
    """Something was to be computed by a graph."""


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise UnsaidError


@pytest.mark.parametrize("name", WITH_ENGINE)
def test_docstrings_lead_to_where_reasons_are_found(name: str) -> None:
    seen = set()
    while name not in seen:
        seen.add(name)
        doc = inspect.getdoc(WITH_ENGINE[name]) or ""
        (said,) = re.findall(r"^[\w, ]*\bengine\b.*\n((?:    .*\n?)+)", doc, re.MULTILINE)
        if "coop.fallback" in said and "docs/collective.md" in said:
            return
        (name,) = re.findall(r":func:`(?:dask_coop\.)?(\w+)`", said)
    pytest.fail(f"{seen} refer to one another")
