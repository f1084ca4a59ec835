"""Collectives give what graphs give, by one message a worker and round, on real processes."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen
from uuid import uuid4

import boost_histogram as bh
import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, futures_of
from fuzz.case import undeclared
from support.at_once import at_once
from support.clusters import (
    addresses,
    affine,
    asked,
    cluster,
    eventually,
    evict_all,
    hold_empty,
    on_scheduler,
    on_workers,
    orphans,
    persist,
    values,
    wait_for,
    watch,
)
from support.processes import python

import dask_coop as dc
from dask_coop.cluster import client as cluster_client
from dask_coop.cluster import scheduler as cluster_scheduler
from dask_coop.cluster.futures import is_persisted
from dask_coop.cluster.worker import REDUCE, SCAN
from dask_coop.graph import prefixes

pytestmark = pytest.mark.xdist_group("collective")

RNG = np.random.default_rng(3)
FLOATS = RNG.normal(size=(13, 7))
INTS = RNG.integers(-9, 9, (13, 7)).astype("i4")
LINE = RNG.integers(0, 50, 101)
AFFINE = affine(lambda x: (x.real, x.imag))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Return a client of three workers with two threads each."""
    # Else replicas that a test has made would be taken away.
    config = {"distributed.scheduler.active-memory-manager.start": False}
    with cluster(3, 2, config, memory_limit="1GB") as client:
        watch(client)
        yield client


@pytest.fixture(autouse=True)
def _no_orphans(client: Client) -> Iterator[None]:
    """Hold every test to leave nothing behind."""
    yield
    hold_empty(client)


@pytest.fixture
def fast(client: Client, fallbacks: Any) -> Iterator[None]:
    """Hold a test to what runs in rounds, and never as a graph."""
    asked(client)
    yield
    assert fallbacks() == []
    assert any(asked(client).values())


def same(found: Any, expected: Any, exactly: bool = False) -> None:
    """Hold values to their kind, dtype, shape and, up to rounding, numbers."""
    if isinstance(expected, tuple | list):
        assert type(found) is type(expected)
        for pair in zip(found, expected, strict=True):
            same(*pair, exactly)
        return
    assert isinstance(found, np.ndarray | np.generic), type(found)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "fc" and not exactly:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    else:
        np.testing.assert_array_equal(found, expected)


def agree(client: Client, call: Callable[..., Any]) -> Any:
    """Hold a call by a collective to the lazy one; return its values."""
    now = call(engine="collective")
    for part in now if isinstance(now, tuple | list) else [now]:
        assert not dask.is_dask_collection(part)
    same(now, values(client, call()))
    return now


def agree_in_place(client: Client, x: Any, call: Callable[..., Any]) -> Any:
    """Hold a scan by a collective to the lazy one, bit by bit, and its chunks to those of `x`."""
    of = client.who_has(x)
    now, lazy = call(engine="collective"), call()
    assert (now.chunks, now.dtype, now.shape) == (lazy.chunks, lazy.dtype, lazy.shape)
    assert type(now._meta) is type(lazy._meta)
    futures = futures_of(now)
    assert len(futures) == now.npartitions
    assert {f.status for f in futures} == {"finished"}
    for (_, *index), at in client.who_has(now).items():
        assert set(at) <= set(of[(x.name, *index)])
    found = values(client, now)
    same(found, values(client, lazy), exactly=True)
    return found


OF_NAN = ["sum", "prod", "min", "max", "mean", "var", "std", "argmin", "argmax"]
REDUCTIONS = ["ptp", "any", "all", "count_nonzero", *OF_NAN, *(f"nan{name}" for name in OF_NAN)]


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_numpys_and_the_graphs(client: Client, name: str) -> None:
    holes = np.where(FLOATS < -1.5, np.nan, FLOATS) if name.startswith("nan") else FLOATS
    several = [] if "arg" in name else [{"axis": (0, 1)}]
    options = [{}, {"axis": 0}, {"axis": -1, "keepdims": True}, *several]
    for host, dims in ((holes, (4, 3)), (INTS, ((5, 0, 8), 7)), (holes.astype("f4"), (13, 2))):
        x = persist(client, host, dims)
        for given in options:
            found = getattr(dc, name)(x, **given, engine="collective")
            expected = getattr(np, name)(host, **given)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
            assert (type(found), found.dtype) == (type(expected), expected.dtype)
    x = persist(client, holes, (4, 3))
    agree(client, lambda **kw: getattr(dc, name)(x, axis=0, **kw))


@pytest.mark.usefixtures("fast")
def test_the_best_elements_of_chunks_shorter_and_longer_than_they_are_many(client: Client) -> None:
    host = RNG.integers(0, 9, (40, 7))
    order = np.argsort(-host, 0, stable=True)
    for dims in (((3, 20, 2, 15), 3), (40, 7), (2, 7)):
        x = persist(client, host, dims)
        same(dc.argtopk(x, 6, axis=0, engine="collective"), order[:6])
        same(dc.topk(x, 6, axis=0, engine="collective"), np.take_along_axis(host, order[:6], 0))
        same(dc.topk(x, -3, engine="collective"), np.sort(host)[:, :3])
    line = persist(client, host[:, 0], ((1, 30, 4, 5),))
    same(dc.argtopk(line, 10, engine="collective"), order[:10, 0])


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "call",
    [
        lambda x, m, **kw: dc.sum(x, **kw),
        lambda x, m, **kw: dc.argmax(x, axis=1, **kw),
        lambda x, m, **kw: dc.min(x, where=m, initial=5, **kw),
        lambda x, m, **kw: dc.median(x, **kw),
        lambda x, m, **kw: dc.histogram(x, 4, (0, 9), weights=x, **kw)[0],
        lambda x, m, **kw: dc.groupby_reduce(x, np.arange(7) % 3, func="sum", **kw)[0],
        lambda x, m, **kw: dc.cumsum(x, axis=1, segments=m, **kw),
    ],
)
def test_chunks_become_what_their_arrays_declare(client: Client, call: Any) -> None:
    for dtype in ("f4", "i4", "i8"):
        hosts = np.abs(INTS).astype(dtype), INTS > 2
        honest = [da.from_array(host, chunks=(4, 3)) for host in hosts]
        others = []
        for host in hosts:
            chunks = persist(client, undeclared(host), (4, 3), everywhere=True)
            others.append(da.Array(chunks.dask, chunks.name, chunks.chunks, dtype=host.dtype))
        assert client.submit(np.result_type, futures_of(others[0])[0]).result() != dtype
        expected = values(client, call(*honest))
        same(values(client, call(*others, engine="collective")), expected, exactly=True)


@pytest.mark.usefixtures("fast")
def test_several_axes_of_three(client: Client) -> None:
    host = RNG.normal(size=(5, 6, 7))
    x = persist(client, host, (2, 3, 4))
    for axis in ((0, 2), (1, 2), 1):
        same(dc.sum(x, axis=axis, engine="collective"), host.sum(axis))
        same(dc.var(x, axis, keepdims=True, engine="collective"), host.var(axis, keepdims=True))
    same(dc.argmax(x, axis=1, engine="collective"), host.argmax(1))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "call",
    [
        lambda x, m, **kw: dc.sum(x, where=m, **kw),
        lambda x, m, **kw: dc.sum(x, axis=0, where=m, initial=5.5, **kw),
        lambda x, m, **kw: dc.prod(x, initial=2, **kw),
        lambda x, m, **kw: dc.min(x, axis=1, where=m, initial=0, **kw),
        lambda x, m, **kw: dc.max(x, initial=100, **kw),
        lambda x, m, **kw: dc.mean(x, axis=(0, 1), where=m, **kw),
        lambda x, m, **kw: dc.var(x, ddof=1, where=m, **kw),
        lambda x, m, **kw: dc.sum(x, dtype="f4", **kw),
        lambda x, m, **kw: dc.sum(x, reproducible=True, **kw),
        lambda x, m, **kw: dc.mean(x, axis=0, reproducible=True, **kw),
        lambda x, m, **kw: dc.moment(x, 3, axis=0, **kw),
        lambda x, m, **kw: dc.norm(x, **kw),
        lambda x, m, **kw: dc.describe(x, **kw),
        lambda x, m, **kw: dc.describe(x, axis=0, **kw),
    ],
)
def test_options_of_reductions(client: Client, call: Any) -> None:
    x = persist(client, FLOATS, (4, 3))
    mask = persist(client, FLOATS > -1, (4, 3), everywhere=True)
    agree(client, lambda **kw: call(x, mask, **kw))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "c8", "c16", ">f8"])
def test_dtypes(client: Client, dtype: str) -> None:
    x = persist(client, np.abs(INTS).astype(dtype), (4, 3))
    agree(client, lambda **kw: dc.sum(x, **kw))
    agree(client, lambda **kw: dc.mean(x, axis=1, **kw))
    agree_in_place(client, x, lambda **kw: dc.cumsum(x, axis=1, **kw))


@pytest.mark.usefixtures("fast")
def test_nan_and_infinity_warn_of_nothing(client: Client) -> None:
    host = np.array([1, np.inf, -np.inf, np.nan, 2, 3e38, 3e38, 3e38], "f4")
    x = persist(client, host, 2)
    for name in ("sum", "prod", "mean", "var", "min", "nanmax", "describe"):
        agree(client, lambda **kw: getattr(dc, name)(x, **kw))  # noqa: B023
    agree_in_place(client, x, lambda **kw: dc.cumsum(x, **kw))


@pytest.mark.usefixtures("fast")
def test_sums_of_float64_keep_what_additions_round_off(client: Client) -> None:
    host = np.random.default_rng(9).random(20_000)
    x, sums = persist(client, host, 700), [math.fsum(host[: i + 1]) for i in range(0, 20_000, 97)]
    assert float(dc.sum(x, engine="collective")) == math.fsum(host)
    running = values(client, dc.cumsum(x, engine="collective"))[::97]
    assert (abs(running - sums) / np.spacing(sums)).max() <= 16


SCANS = ["cumsum", "cumprod", "nancumsum", "nancumprod", "cummax", "cummin", "logcumsumexp"]


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("name", SCANS)
def test_scans_are_those_of_graphs_and_stay(client: Client, name: str) -> None:
    x = persist(client, FLOATS, ((5, 0, 8), (3, 4)))
    for axis, options in (
        (0, {}),
        (-1, {}),
        (0, {"reverse": True}),
        (0, {"exclusive": True}),
        (1, {"reverse": True, "exclusive": True}),
        (0, {"include_initial": True}),
        (1, {"include_initial": True, "reverse": True}),
    ):
        call = lambda **kw: getattr(dc, name)(x, axis, **options, **kw)  # noqa: B023, E731
        found = agree_in_place(client, x, call)
        if name.startswith("cums") and not options:
            same(found, np.cumsum(FLOATS, axis))


@pytest.mark.usefixtures("fast")
def test_gaps_are_filled_and_averaged(client: Client) -> None:
    gappy = np.where(RNG.random(FLOATS.shape) < 0.5, np.nan, FLOATS)
    x = persist(client, gappy, ((5, 0, 8), (3, 4)))
    for axis in (0, 1):
        agree_in_place(client, x, lambda **kw: dc.ffill(x, axis, **kw))  # noqa: B023
        agree_in_place(client, x, lambda **kw: dc.bfill(x, axis, 2, **kw))  # noqa: B023
        for adjust in (True, False):
            given = {"axis": axis, "span": 3, "adjust": adjust}
            agree_in_place(client, x, lambda **kw: dc.ewm_mean(x, **given, **kw))  # noqa: B023
            agree_in_place(client, x, lambda **kw: dc.ewm_var(x, **given, **kw))  # noqa: B023
        heads = persist(client, RNG.random(FLOATS.shape) < 0.3, x.chunks, everywhere=True)
        for call in (dc.ffill, partial(dc.bfill, limit=1), partial(dc.ewm_mean, com=1)):
            agree_in_place(client, x, partial(call, x, axis=axis, segments=heads))
    dates = np.where(np.isnan(gappy), np.datetime64("NaT", "s"), INTS.astype("M8[s]"))
    days = persist(client, dates, (4, 3))
    agree_in_place(client, days, lambda **kw: dc.ffill(days, 0, **kw))
    masked = client.persist(da.from_array(np.ma.masked_less(FLOATS, 0), chunks=(4, 3)))
    filled = values(client, dc.ffill(masked, 0, engine="collective"))
    same(filled.filled(7), values(client, dc.ffill(masked, 0)).filled(7))


@pytest.mark.usefixtures("fast")
def test_runs_go_over_chunks(client: Client) -> None:
    mask = RNG.random(FLOATS.shape) < 0.8
    x = persist(client, mask, ((5, 0, 8), (3, 4)))
    for axis in (0, 1):
        for name in ("longest_run", "count_runs", "count_in_runs", "first_run", "last_run"):
            call = partial(getattr(dc, name), x, axis)
            same(call(engine="collective"), values(client, call()))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("full", [True, False])
def test_scans_restart(client: Client, full: bool) -> None:
    x = persist(client, INTS, (4, 3))
    heads = RNG.random(INTS.shape if full else INTS.shape[:1]) < 0.3
    segments = persist(client, heads, (4, 3) if full else 4, everywhere=True)
    for options in ({}, {"reverse": True}, {"exclusive": True}, {"include_initial": True}):
        call = lambda **kw: dc.cumsum(x, 0, segments=segments, **options, **kw)  # noqa: B023, E731
        agree_in_place(client, x, call)
    if not full:
        line = persist(client, INTS[:, 0], 4)
        agree_in_place(client, line, lambda **kw: dc.cummax(line, segments=segments, **kw))


@pytest.mark.usefixtures("fast")
def test_scans_of_lines_and_of_cubes(client: Client) -> None:
    line = persist(client, LINE, 3)
    same(agree_in_place(client, line, lambda **kw: dc.cumsum(line, **kw)), np.cumsum(LINE))
    agree_in_place(client, line, lambda **kw: dc.cumulative_sum(line, include_initial=True, **kw))
    agree_in_place(client, line, lambda **kw: dc.cumulative_prod(line, dtype="f8", **kw))
    host = RNG.normal(size=(4, 5, 6))
    cube = persist(client, host, (2, 3, 4))
    for axis in range(3):
        found = agree_in_place(client, cube, lambda **kw: dc.cumsum(cube, axis, **kw))  # noqa: B023
        same(found, host.cumsum(axis))


@pytest.mark.each(2)
@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"exclusive": True}], ids=str)
@pytest.mark.parametrize("taken", [prefixes.TAKEN_BYTES, 40])
def test_scans_of_several_groups_of_chunks_have_the_bits_of_graphs(
    client: Client, options: dict[str, Any], taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "TAKEN_BYTES", taken)
    for host, chunks in ((RNG.normal(size=140) * 1e9, 2), (RNG.normal(size=(3, 140)), (3, 2))):
        x = persist(client, host, chunks)
        agree_in_place(client, x, lambda **kw: dc.cumsum(x, axis=-1, **options, **kw))  # noqa: B023
        agree_in_place(client, x, lambda **kw: dc.cumprod(x, axis=-1, **options, **kw))  # noqa: B023
    line = persist(client, np.where(RNG.random(140) < 0.9, np.nan, 1 + RNG.random(140)), 2)
    for call in (dc.ffill, partial(dc.bfill, limit=9), partial(dc.ewm_mean, span=30)):
        if not options:
            agree_in_place(client, line, partial(call, line))
    line = persist(client, RNG.normal(size=140).astype("f4"), 2)
    heads = persist(client, RNG.random(140) < 0.02, 2, everywhere=True)
    agree_in_place(client, line, lambda **kw: dc.cumsum(line, segments=heads, **options, **kw))
    own = persist(client, RNG.normal(size=140) + 1j, 2)
    agree_in_place(client, own, lambda **kw: dc.scan(own, AFFINE, **options, **kw))


MONTHS = np.repeat([3, 1, 2], [2, 2, 3])
ZONES = RNG.integers(-1, 4, FLOATS.shape)
SPAN = dc.Monoid(
    "span",
    np.maximum,
    -np.inf,
    ("f8", (2,)),
    lift=lambda x: np.stack([x, -x], -1),
    finalize=lambda v: (-v[..., 1], v[..., 0]),
)


@pytest.mark.each(2)
@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("by", "given"),
    [
        ([MONTHS], {"func": "sum"}),
        ([MONTHS], {"func": ["mean", "nanvar", "argmax", "last", "count"]}),
        (
            [MONTHS],
            {"func": "first", "expected_groups": [4, 3, 2], "fill_value": -1, "sort": False},
        ),
        ([MONTHS > 1, np.arange(7) % 3], {"func": ["min", "prod"]}),
        ([np.arange(7.0)], {"func": "max", "expected_groups": [0, 2.5, 6], "isbin": True}),
        ([ZONES], {"func": ["std", "nanmin", "nanargmin"]}),
        ([ZONES], {"func": "any", "axis": 1, "fill_value": False}),
        ([ZONES[:, :1]], {"func": "mean"}),
        ([MONTHS], {"func": SPAN}),
        ([MONTHS], {"func": AFFINE}),
    ],
)
def test_groups_of_known_labels(client: Client, by: Any, given: dict[str, Any]) -> None:
    holes = np.where(FLOATS > 1, np.nan, FLOATS)
    # Zero times NaN is NaN, so AFFINE has no identity then.
    for host in (FLOATS if given["func"] is AFFINE else holes, INTS):
        x = persist(client, host, ((5, 0, 8), (3, 4)))
        agree_nested(client, lambda **kw: dc.groupby_reduce(x, *by, **given, **kw))  # noqa: B023
    if by[0].ndim == 1:
        line = persist(client, FLOATS[0], 2)
        agree_nested(client, lambda **kw: dc.groupby_reduce(line, *by, **given, **kw))


def agree_nested(client: Client, call: Callable[..., Any]) -> None:
    """Hold a call that returns tuples of tuples to the lazy one."""

    def flat(result: Any) -> Any:
        if not isinstance(result, tuple):
            return [result]
        return [each for part in result for each in flat(part)]

    agree(client, lambda **kw: flat(call(**kw)))


@pytest.mark.usefixtures("fast")
def test_groups_are_one_read_and_days_stay_few(client: Client) -> None:
    host = RNG.integers(0, 99, 720)
    x, days = persist(client, host, 36), np.arange(720) // 24
    held = {worker: len(keys) for worker, keys in on_workers(client).items()}
    asked(client)
    given = {"func": ["mean", "max", "first"], "engine": "collective"}
    (means, highest, first), labels = dc.groupby_reduce(x, days, **given)
    assert asked(client) == {worker: [(REDUCE, n, 0)] for worker, n in held.items()}
    same(labels, np.arange(30))
    by_day = host.reshape(30, 24)
    same(means, by_day.mean(1))
    same(highest, by_day.max(1))
    same(first, by_day[:, 0])
    with pytest.raises(ValueError, match="Filling is required"):
        dc.groupby_reduce(x, days, func="sum", min_count=25, engine="collective")


BINS = [-2, -0.5, 0.1, 2.5]


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "call",
    [
        lambda s, **kw: dc.histogram(s.x, **kw),
        lambda s, **kw: dc.histogram(s.x, 5, (-1, 1), **kw),
        lambda s, **kw: dc.histogram(s.x, BINS, **kw),
        lambda s, **kw: dc.histogram(s.x, 4, weights=s.w, **kw),
        lambda s, **kw: dc.histogram(s.x, BINS, weights=s.w, reproducible=True, **kw),
        lambda s, **kw: dc.histogram(s.x, 4, density=True, **kw),
        lambda s, **kw: dc.histogram(s.x, BINS, axis=0, **kw),
        lambda s, **kw: dc.histogram(s.x, BINS, axis=1, flow=True, weights=s.w, **kw),
        lambda s, **kw: dc.histogram(s.x, 3, (-1, 1), flow=True, **kw),
        lambda s, **kw: dc.histogram(s.x, "sqrt", **kw),
        lambda s, **kw: dc.histogram(s.x, "scott", **kw),
        lambda s, **kw: dc.histogram2d(s.a, s.b, 3, **kw),
        lambda s, **kw: dc.histogramdd([s.x, s.w], (3, BINS), **kw),
        lambda s, **kw: dc.histogramdd([s.x, s.w], 4, [(-1, 1), (0, 2)], density=True, **kw),
        lambda s, **kw: dc.histogramdd(s.rows, 3, weights=s.b, **kw),
        lambda s, **kw: dc.median(s.x, **kw),
        lambda s, **kw: dc.nanquantile(s.x, [0.1, 0.9], keepdims=True, **kw),
    ],
)
def test_histograms(client: Client, call: Any) -> None:
    arrays = {
        "x": persist(client, FLOATS, (4, 3)),
        "w": persist(client, np.abs(FLOATS), (4, 3), everywhere=True),
        "a": persist(client, FLOATS[:, 0], 4),
        "b": persist(client, np.abs(FLOATS[:, 1]), 4, everywhere=True),
        "rows": persist(client, FLOATS[:, :2], (4, 2)),
    }
    agree(client, partial(call, SimpleNamespace(**arrays)))


@pytest.mark.usefixtures("fast")
def test_histograms_of_axes_come_back_filled(client: Client) -> None:
    x = persist(client, FLOATS, (4, 3))
    w = persist(client, np.abs(FLOATS), (4, 3), everywhere=True)
    axis = bh.axis.Regular(5, -1, 1)
    counted, weighed = bh.Histogram(axis), bh.Histogram(axis, storage=bh.storage.Weight())
    counted.fill(FLOATS.ravel())
    weighed.fill(FLOATS.ravel(), weight=np.abs(FLOATS).ravel())
    assert dc.to_hist(x, axis, engine="collective") == counted
    found = dc.to_hist(x, axis, w, engine="collective")
    np.testing.assert_allclose(found.values(flow=True), weighed.values(flow=True), rtol=1e-12)
    np.testing.assert_allclose(found.variances(flow=True), weighed.variances(flow=True), rtol=1e-12)


@pytest.mark.usefixtures("fast")
def test_bincount_of_tables_of_different_lengths(client: Client) -> None:
    host = np.sort(LINE)
    x, w = persist(client, host, 10), persist(client, np.sqrt(host), 10, everywhere=True)
    same(dc.bincount(x, engine="collective"), np.bincount(host))
    same(dc.bincount(x, minlength=70, engine="collective"), np.bincount(host, minlength=70))
    agree(client, lambda **kw: dc.bincount(x, w, **kw))
    agree(client, lambda **kw: dc.bincount(x, w, reproducible=True, **kw))


@pytest.mark.usefixtures("fast")
def test_ones_own_monoids(client: Client, fallbacks: Callable[[], list[str]]) -> None:
    host = RNG.normal(size=60) + 1j * RNG.normal(size=60)
    x = persist(client, host, 7)
    agree(client, lambda **kw: dc.reduce(x, AFFINE, **kw))
    agree_in_place(client, x, lambda **kw: dc.scan(x, AFFINE, **kw))
    agree_in_place(client, x, lambda **kw: dc.scan(x, AFFINE, reverse=True, **kw))
    square = persist(client, host.reshape(6, 10), (4, 3))
    agree(client, lambda **kw: dc.reduce(square, AFFINE, axis=1, **kw))
    agree_in_place(client, square, lambda **kw: dc.scan(square, AFFINE, axis=0, **kw))
    hypot = dc.Monoid("hypot", np.hypot, 0, "f8", lift=np.abs, commutative=True)
    agree(client, lambda **kw: dc.reduce(square, hypot, **kw))
    span = dc.Monoid(
        "span",
        np.minimum,
        np.inf,
        ("f8", (2,)),
        lift=lambda x: np.stack([x.real, -x.real], -1),
        finalize=lambda v: (v[..., 0], -v[..., 1]),
    )
    low, high = agree(client, lambda **kw: dc.reduce(square, span, axis=0, **kw))
    same(low, host.real.reshape(6, 10).min(0))
    same(high, host.real.reshape(6, 10).max(0))
    for i in (0, 1):
        agree_in_place(client, x, lambda i=i, **kw: dc.scan(x, span, **kw)[i])
    agree(client, lambda **kw: dc.reduce(square, np.logical_xor, **kw))
    agree(client, lambda **kw: dc.reduce(square, np.multiply, axis=1, **kw))
    agree_in_place(client, square, lambda **kw: dc.scan(square, np.logical_xor, axis=0, **kw))
    # A chain is left to the graph, whose results stay in memory as well.
    assert fallbacks() == []
    chained = dc.scan(x, span, method="sequential", engine="collective")
    assert fallbacks() == ["scan runs as a graph: a sequential scan takes a step for each chunk"]
    same(values(client, chained[0]), np.minimum.accumulate(host.real))
    y, total = 0, 0
    for a, b in zip(host.real, host.imag, strict=True):
        y, total = a * y + b, total + 1
    np.testing.assert_allclose(dc.reduce(x, AFFINE, engine="collective"), y)


@pytest.mark.usefixtures("fast")
def test_masked_arrays(client: Client) -> None:
    array = np.ma.array(FLOATS, mask=RNG.random(FLOATS.shape) < 0.4)
    array[:, 2] = np.ma.masked
    x = client.persist(da.from_array(array, chunks=(4, 3)))
    line = client.persist(da.from_array(np.ma.masked_greater(LINE, 30), chunks=17))
    calls = [
        *(partial(getattr(dc, name), x) for name in ("sum", "argmin", "nanmax", "norm")),
        *(partial(getattr(dc, name), x, axis=0) for name in ("mean", "var", "argmax", "all")),
        partial(dc.max, x, axis=0, keepdims=True),
        partial(dc.nanmin, client.persist(x * 1j), axis=0),
        partial(dc.describe, x, axis=0),
        partial(dc.histogram, x, 4),
        partial(dc.histogram, x, 4, (-1, 1), axis=0, flow=True, weights=x),
        partial(dc.bincount, line, minlength=70),
    ]
    for call in calls:
        now, lazy = call(engine="collective"), values(client, call())
        pairs = zip(now, lazy, strict=True) if isinstance(now, tuple) else [(now, lazy)]
        for found, expected in pairs:
            assert type(found) is type(expected)
            same(*map(np.ma.getmaskarray, (found, expected)))
            same(*(np.ma.filled(part, 7) for part in (found, expected)))
    running = values(client, dc.cumsum(x, 0, engine="collective"))
    same(running.mask, array.mask)
    same(running.filled(7), array.cumsum(0).filled(7))


@pytest.mark.usefixtures("fast")
def test_empty_arrays_and_one_chunk(client: Client) -> None:
    x = persist(client, np.empty((0, 3)), (1, 2))
    agree(client, lambda **kw: dc.sum(x, axis=0, **kw))
    agree(client, lambda **kw: dc.histogram(x, 3, (0, 1), **kw))
    agree_in_place(client, x, lambda **kw: dc.cumsum(x, 0, **kw))
    point = persist(client, np.float64(3), ())
    same(dc.sum(point, engine="collective"), np.float64(3))


@pytest.mark.usefixtures("fast")
def test_unknown_chunk_sizes(client: Client) -> None:
    x = persist(client, LINE, 10)
    x = client.persist(x[x % 3 == 0])
    host = LINE[LINE % 3 == 0]
    same(dc.sum(x, engine="collective"), host.sum())
    now = dc.cumsum(x, 0, engine="collective")
    same(values(client, now), np.cumsum(host))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda x, **kw: dc.cumsum(x, 0, method="sequential", **kw),
            "a sequential scan takes a step for each chunk",
        ),
        (lambda x, **kw: dc.cumsum(x, 0, method="recompute", **kw), ""),
        (lambda x, **kw: dc.cumsum(x, axis=None, **kw), "persist"),
        (lambda x, **kw: dc.histogram(x, da.from_array(np.array(BINS)), **kw), "lazy"),
        (lambda x, **kw: dc.histogram(x, 3, (x.min(), x.max()), **kw), "lazy"),
        (lambda x, **kw: dc.histogram(x, "sqrt", (-1, 1), **kw), "persist"),
        (lambda x, **kw: dc.quantile(x[:, None], 0.3, axis=0, **kw), "gathered"),
        (lambda x, **kw: dc.quantile(x, da.ones((), chunks=()) / 2, **kw), "lazy"),
        (
            lambda x, **kw: dc.quantile(x, 0.3, weights=x * 0 + 1, method="inverted_cdf", **kw),
            "weights",
        ),
        (lambda x, **kw: dc.sum(x + 1, **kw), "persist"),
        (lambda x, **kw: dc.norm(x, 1, axis=1, **kw), "persist"),
        (
            lambda x, **kw: dc.sum(x.astype("m8[s]"), axis=0, **kw),
            "sum of durations adds numbers that tasks make",
        ),
        (lambda x, **kw: dc.sum(da.ma.masked_less(x, 0), **kw), "persist"),
        (lambda x, **kw: dc.cumsum(x.astype("m8[s]"), 0, **kw), "persist"),
        (
            lambda x, **kw: dc.ffill(x, 0, method="sequential", **kw),
            "a sequential scan takes a step for each chunk",
        ),
        (lambda x, **kw: dc.ewm_mean(x, 0, com=1, min_periods=2, **kw), "min_periods takes a scan"),
        (lambda x, **kw: dc.cumulative_trapezoid(x, axis=0, **kw), "areas between samples"),
        (lambda x, **kw: dc.groupby_scan(x, MONTHS, func="cumsum", **kw), "put side by side"),
        (lambda x, **kw: dc.groupby_scan(x, MONTHS % 2, func="cummax", **kw), "put side by side"),
        (
            lambda x, **kw: dc.groupby_reduce(
                x, da.from_array(MONTHS, chunks=3), func="sum", expected_groups=[1, 2, 3], **kw
            ),
            "labels are lazy",
        ),
        (lambda x, **kw: dc.groupby_reduce(x, MONTHS, func="median", **kw), "are gathered"),
        (lambda x, **kw: dc.groupby_reduce(x, MONTHS, func="cov", y=x, **kw), "tasks make pairs"),
        (
            lambda x, **kw: dc.groupby_reduce(x.astype("M8[s]"), MONTHS, func="max", **kw),
            "dates are reduced by their ticks",
        ),
        (
            lambda x, **kw: dc.groupby_reduce(x, ZONES, func="sum", axis=0, fill_value=0, **kw),
            "put in another order",
        ),
        (lambda x, **kw: dc.groupby_reduce(x + 1, MONTHS, func="sum", **kw), "persist"),
    ],
)
def test_what_is_no_collective_is_a_graph_computed_at_once(
    client: Client, fallbacks: Any, call: Any, reason: str
) -> None:
    x = persist(client, FLOATS, (4, 3))
    now = call(x, engine="collective")
    said = fallbacks()
    if isinstance(now, da.Array):
        assert {f.status for f in futures_of(now)} == {"finished"}
        now = values(client, now)
    same(now, values(client, call(x)))
    if reason:
        assert len(said) == 1
        assert reason in said[0]
    else:
        assert said == []


def test_groups_with_large_labels_or_tables_are_a_graph(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = persist(client, FLOATS, (4, 3))
    monkeypatch.setattr(cluster_client, "MOST_BYTES", 300)
    agree_nested(client, lambda **kw: dc.groupby_reduce(x, ZONES, func="sum", **kw))
    agree_nested(client, lambda **kw: dc.groupby_reduce(x, MONTHS, func="sum", **kw))
    labels, tables = fallbacks()
    assert f"its labels are {4 * ZONES.size} bytes, more than 300" in labels
    # Each of 13 lines has three chunks of three groups; a state is a total and its excess.
    assert f"its states are {13 * 3 * 3 * 16} bytes, more than 300" in tables


def test_windows_are_lazy_whatever_the_engine(client: Client) -> None:
    x = persist(client, FLOATS, (4, 3))
    asked(client)
    with dask.config.set({"coop.engine": "collective"}):
        for call in (
            *(partial(getattr(dc, f"move_{name}"), window=3) for name in ("sum", "std", "max")),
            partial(dc.box_filter, size=3),
            dc.integral_image,
        ):
            assert not is_persisted(call(x))
            with pytest.raises(TypeError, match="unexpected keyword argument 'engine'"):
                call(x, engine="collective")
    assert not any(asked(client).values())


def test_an_array_in_no_cluster_and_an_array_of_numpy(client: Client, fallbacks: Any) -> None:
    for x in (FLOATS, da.from_array(FLOATS, chunks=5), da.from_array(FLOATS, chunks=5).persist()):
        same(dc.sum(x, axis=0, engine="collective"), FLOATS.sum(0))
        now = dc.cumsum(x, 0, engine="collective")
        assert all(isinstance(chunk, np.ndarray) for chunk in now.dask.values())
        same(now.compute(), FLOATS.cumsum(0))
        assert len(fallbacks()) == 2


def test_chunks_that_lie_apart_are_a_graph(client: Client, fallbacks: Any) -> None:
    one, other, _ = addresses(client)
    x, w = (
        client.persist(da.from_array(np.abs(FLOATS) + n, chunks=-1), workers=[worker])
        for n, worker in enumerate((one, other))
    )
    agree(client, lambda **kw: dc.histogram(x, 4, (0, 1), weights=w, **kw))
    (said,) = fallbacks()
    assert "chunks that belong together are not on one worker" in said
    assert f"on {one}" in said
    assert f"on {other}" in said


def test_chunks_of_two_clients_are_a_graph(client: Client, fallbacks: Any) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other:
        x, w = persist(client, LINE, 50), persist(other, LINE + 1, 50)
        agree(client, lambda **kw: dc.histogram(x, 3, (0, 9), weights=w, **kw))
        assert "several clients" in fallbacks()[0]


def test_chunks_that_are_still_made_are_waited_for(client: Client) -> None:
    # Their client is not the default one, whose event loop is another.
    def slowly(x: Any) -> Any:
        time.sleep(0.3)
        return x

    with cluster(1) as other, other.as_current():
        x = client.persist(da.from_array(LINE, chunks=30).map_blocks(slowly, dtype=LINE.dtype))
        same(dc.sum(x, engine="collective"), LINE.sum())
        y = persist(other, LINE + 1, 30)
        with pytest.raises(CancelledError, match="lost dependencies"):
            dc.histogram(x, 3, (0, 9), weights=y, engine="collective")


def test_no_call_changes_the_configuration_of_all_threads(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: Client) -> None:
        raise AssertionError("as_current sets Dask's scheduler for all threads")

    monkeypatch.setattr(Client, "as_current", never)
    x = client.persist(da.from_array(LINE, chunks=30))
    same(dc.sum(x, engine="collective"), LINE.sum())
    # What is no collective, and what is not in memory, is a graph of the client.
    for call in (dc.median, lambda x, **kw: dc.median(x, axis=0, **kw)):
        same(call(x, engine="collective"), np.median(LINE))
    same(dc.sum(x + 1, engine="collective"), (LINE + 1).sum())
    now = dc.cumsum(x + 1, engine="collective")
    same(values(client, now), (LINE + 1).cumsum())


def test_nothing_stays_of_a_scan_that_raises_as_a_graph(client: Client) -> None:
    def combine(a: Any, b: Any) -> Any:
        # Its laws are tried with small ones.
        if np.any(a >= 1e6):
            raise ValueError("no")
        return np.maximum(a, b)

    no = dc.Monoid("no", combine, -np.inf, "f8", commutative=True)
    x = da.from_array(np.arange(10.0) + 1e6, chunks=2)
    with client.as_current(), pytest.raises(ValueError, match="no") as caught:
        dc.scan(x, no, engine="collective")
    assert "combine" in "".join(traceback.format_tb(caught.value.__traceback__))
    del caught

    def futures() -> list[Any]:
        gc.collect()
        return [key for key in client.futures if str(key[0]).startswith("no-")]

    eventually(lambda: not futures(), 20, futures)


def test_a_chunk_that_failed_raises_what_it_raised(client: Client) -> None:
    def fail(x: Any) -> Any:
        raise OverflowError("too much")

    x = client.persist(da.from_array(LINE, chunks=30).map_blocks(fail, dtype=LINE.dtype))
    for call in (dc.sum, dc.cumsum):
        with pytest.raises(OverflowError, match="too much"):
            call(x, engine="collective")
    del x


def test_an_asynchronous_client_is_refused(client: Client) -> None:
    async def run() -> None:
        async with Client(
            client.scheduler.address, asynchronous=True, set_as_default=False
        ) as other:
            x = other.persist(da.from_array(LINE, chunks=30))
            for call in (dc.sum, dc.cumsum):
                with pytest.raises(RuntimeError, match="asynchronous"):
                    call(x, engine="collective")
            with other.as_current():
                for call in (dc.sum, dc.cumsum):
                    with pytest.raises(RuntimeError, match="asynchronous"):
                        call(da.from_array(LINE, chunks=30), engine="collective")

    asyncio.run(run())


def test_out(client: Client) -> None:
    x = persist(client, FLOATS, (4, 3))
    out = da.empty(7)
    with pytest.raises(ValueError, match="leave out off"):
        dc.sum(x, 0, out=out, engine="collective")
    with pytest.raises(ValueError, match="leave out off"):
        dc.argmin(x, 0, False, None, out, engine="collective")
    out = da.empty_like(x)
    assert dc.cumsum(x, 0, out=out, engine="collective") is out
    assert {f.status for f in futures_of(out)} == {"finished"}
    same(values(client, out), FLOATS.cumsum(0))


def test_the_engine_is_a_choice(client: Client, fallbacks: Any) -> None:
    x = persist(client, LINE, 30)
    for name in ("sum", "cumsum", "bincount"):
        function = getattr(dc, name)
        with pytest.raises(ValueError, match="engine must be one of auto, collective, got 'gpu'"):
            function(x, engine="gpu")
        assert dask.is_dask_collection(function(x))
    asked(client)
    with dask.config.set({"coop.engine": "collective"}):
        same(dc.sum(x), LINE.sum())
        assert {f.status for f in futures_of(dc.cumsum(x))} == {"finished"}
        assert any(asked(client).values())
    with (
        dask.config.set({"coop.engine": "sum"}),
        pytest.raises(ValueError, match=r"coop\.engine must be 'auto' or 'collective', got 'sum'"),
    ):
        dc.sum(x)
    dc.sum(x), dc.cumsum(x)
    assert not any(asked(client).values())
    assert fallbacks() == []


@pytest.mark.usefixtures("fast")
def test_errors_are_those_of_the_chunks(client: Client) -> None:
    x = persist(client, LINE - 40, 10)
    # In a tree, so that it comes from a worker that another one has asked.
    with pytest.raises(ValueError, match="negative"):
        dc.bincount(x, engine="collective")
    with pytest.raises(ValueError, match="not finite"):
        dc.histogram(persist(client, np.array([1, np.nan]), 1), engine="collective")

    def lift(x: Any) -> Any:
        if (x == 8).any() and x.size > 2:
            raise LookupError("an eight")
        return x

    picky = dc.Monoid("picky", np.add, 0, "i8", lift=lift, commutative=True)
    y = persist(client, np.arange(12), 4)
    for call in (dc.reduce, dc.scan):
        with pytest.raises(LookupError, match="an eight"):
            call(y, picky, engine="collective")


@pytest.mark.usefixtures("fast")
def test_one_message_a_worker_and_round(client: Client) -> None:
    x = persist(client, LINE, 5)
    held = {worker: len(keys) for worker, keys in on_workers(client).items()}
    assert sum(held.values()) == 21
    assert min(held.values()) > 0
    asked(client)

    def calls(*names: str) -> dict[str, Any]:
        return {worker: [(name, n, 0) for name in names] for worker, n in held.items()}

    for reduction in (dc.sum, dc.describe, dc.argmax):
        reduction(x, engine="collective")
        assert asked(client) == calls(REDUCE)
    dc.histogram(x, 5, (0, 1), engine="collective")
    assert asked(client) == calls(REDUCE)
    dc.histogram(x, 5, engine="collective")
    assert asked(client) == calls(REDUCE, REDUCE)
    now = dc.cumsum(x, engine="collective")
    assert asked(client) == calls(REDUCE, SCAN)
    assert now.npartitions == 21
    dc.sum(x, engine="collective")


@pytest.mark.parametrize(
    "call",
    [
        lambda x, **kw: dc.histogram(x, 40_000, (0, 50), **kw),
        lambda x, **kw: dc.histogram(x, 40_000, (0, 50), weights=x, **kw),
        lambda x, **kw: dc.histogramdd([x, x], 200, [(0, 50), (0, 50)], **kw),
        lambda x, **kw: dc.bincount(x, minlength=50_000, **kw),
        lambda x, **kw: dc.bincount(x, **kw),
        lambda x, **kw: dc.groupby_reduce(
            x, LINE, func="count", expected_groups=range(50_000), **kw
        ),
    ],
)
def test_large_tables_are_combined_in_a_tree(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    x = persist(client, LINE, 5)
    assert min(map(len, on_workers(client).values())) > 0
    dc.sum(x, engine="collective")
    asked(client)
    # The scheduler runs in this process: what it sends, and the bytes that come back.
    sent: list[int] = []
    send = cluster_scheduler.send

    async def counting(*args: Any, **message: Any) -> Any:
        answer = await send(*args, **message)
        sent.append(sum(map(len, answer["states"].frames)))
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(cluster_scheduler, "send", counting)
        now = call(x, engine="collective")
    calls = asked(client)
    assert sorted(below for ((_, _, below),) in calls.values()) == [0, 0, 2]
    assert sum(n for ((_, n, _),) in calls.values()) == x.npartitions
    hist = now[0] if isinstance(now, tuple) else now
    assert len(sent) == 1
    assert sent[0] < hist.nbytes + 2000
    same(now, values(client, call(x)))
    # Small ones are asked for by the scheduler.
    dc.histogram(x, 1000, (0, 50), engine="collective")
    assert {call for each in asked(client).values() for call in each} == {
        (REDUCE, len(keys & {f.key for f in futures_of(x)}), 0)
        for keys in on_workers(client).values()
    }
    assert fallbacks() == []


@pytest.mark.usefixtures("fast")
def test_the_scheduler_makes_no_tasks(client: Client) -> None:
    x = persist(client, LINE, 5)
    dc.sum(x, engine="collective")

    def transitions(dask_scheduler: Any) -> int:
        return dask_scheduler.transition_counter

    before = client.run_on_scheduler(transitions)
    dc.sum(x, engine="collective")
    dc.bincount(x, engine="collective")
    now = dc.cumsum(x, engine="collective")
    assert client.run_on_scheduler(transitions) == before
    assert now.npartitions == 21


@pytest.mark.usefixtures("fast")
def test_results_are_data_as_scattered_data_is(client: Client) -> None:
    x = persist(client, FLOATS, (4, 3))
    before = on_scheduler(client)

    def described(dask_scheduler: Any, keys: Any) -> Any:
        tasks = [dask_scheduler.tasks[key] for key in keys]
        return [(t.state, t.nbytes, t.prefix.name, len(t.who_wants), t.run_spec) for t in tasks]

    def used(dask_scheduler: Any) -> int:
        return sum(worker.nbytes for worker in dask_scheduler.workers.values())

    bytes_before = client.run_on_scheduler(used)
    now = dc.cumsum(x, 0, include_initial=True, engine="collective")
    keys = [future.key for future in futures_of(now)]
    sizes = [8 * int(np.prod(shape)) for shape in product(*now.chunks)]
    found = client.run_on_scheduler(described, keys=keys)
    assert sorted(found) == sorted(("memory", n, "cumsum", 1, None) for n in sizes)
    assert client.run_on_scheduler(used) == bytes_before + sum(sizes)
    assert orphans(client) == {}
    held = client.run(lambda dask_worker: {k: v.nbytes for k, v in dask_worker.data.items()})
    assert sum(n for each in held.values() for k, n in each.items() if k in keys) == sum(sizes)
    # Other references keep them, and so do graphs that are under way.
    half = now[:, :4]
    del now
    same(values(client, half), np.vstack([np.zeros(4), FLOATS[:, :4].cumsum(0)]))
    del half
    eventually(lambda: on_scheduler(client) == before and orphans(client) == {})
    assert client.run_on_scheduler(used) == bytes_before


@pytest.mark.usefixtures("fast")
def test_results_are_let_go_of_by_one_message(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = persist(client, LINE, 5)
    before, sent = on_scheduler(client), []
    held = set(client.futures)
    send = client._send_to_scheduler

    def noting(message: Any) -> None:
        sent.append(message)
        send(message)

    monkeypatch.setattr(client, "_send_to_scheduler", noting)
    results = [dc.cumsum(x, engine="collective")]
    kept = futures_of(results[0])[3]

    async def drop() -> None:
        # On the loop, so that nothing can be sent in the middle.
        results.clear()

    client.sync(drop)
    eventually(lambda: sum(map(len, on_scheduler(client).values())) == 21 + 1)
    assert kept.result().shape == (5,)
    assert [len(message["keys"]) for message in sent if "keys" in message] == [20]
    del kept
    eventually(lambda: on_scheduler(client) == before and orphans(client) == {})
    assert client.futures.keys() <= held


@pytest.mark.usefixtures("fast")
def test_results_are_on_the_dashboards_pages(client: Client) -> None:
    now = dc.cumsum(persist(client, FLOATS, (13, 7)), 0, engine="collective")
    (future,) = futures_of(now)
    (holder,) = client.who_has(future)[future.key]
    address = client.dashboard_link.removesuffix("/status")
    with urlopen(f"{address}/info/task/{quote(str(future.key), safe='')}.html") as answer:
        page = answer.read().decode()
    assert "memory" in page
    assert holder in page


@pytest.mark.usefixtures("fast")
def test_the_bytes_of_results_of_unknown_size_are_known(client: Client) -> None:
    x = client.persist(da.from_array(LINE, chunks=10))
    x = client.persist(x[x % 3 == 0])
    wait_for(x)
    now = dc.cumsum(x, 0, engine="collective")
    keys = {future.key for future in futures_of(now)}
    held = client.run(lambda dask_worker: {k: v.nbytes for k, v in dask_worker.data.items()})
    sizes = {k: n for each in held.values() for k, n in each.items() if k in keys}

    def known(dask_scheduler: Any) -> Any:
        total = sum(worker.nbytes for worker in dask_scheduler.workers.values())
        return {key: dask_scheduler.tasks[key].nbytes for key in keys}, total

    found, total = client.run_on_scheduler(known)
    assert found == sizes
    assert total == 2 * sum(sizes.values())


@pytest.mark.usefixtures("fast")
def test_inputs_and_results_are_spilled(client: Client) -> None:
    x = persist(client, FLOATS, (4, 3))
    evict_all(client)
    same(dc.sum(x, engine="collective"), FLOATS.sum())
    evict_all(client)
    now = dc.cumsum(x, 0, engine="collective")
    evict_all(client)
    spilled = client.run(lambda dask_worker: len(dask_worker.data.slow))
    assert sum(spilled.values()) == 2 * x.npartitions
    same(values(client, now), FLOATS.cumsum(0))
    evict_all(client)
    same(values(client, dc.cumsum(now, 1, engine="collective")), FLOATS.cumsum(0).cumsum(1))


def watched(folder: Path, may_end: Callable[[Path], bool]) -> dc.Monoid:
    """Return a sum whose chunks wait until they may end.

    Each leaves a file, in which stands how many were under way as it began.
    """

    def lift(x: Any) -> Any:
        # What a monoid is probed with is smaller.
        if x.size > 2:
            running = folder / f"{uuid4()}.running"
            running.touch()
            running.write_text(str(len(list(folder.glob("*.running")))))
            end = time.monotonic() + 60
            while not may_end(folder) and time.monotonic() < end:
                time.sleep(0.01)
            running.rename(running.with_suffix(".done"))
        return x

    return dc.Monoid("watched", np.add, 0, "i8", lift=lift, commutative=True)


@pytest.mark.usefixtures("fast")
def test_tasks_and_heartbeats_go_on_meanwhile(client: Client, tmp_path: Path) -> None:
    x = persist(client, np.arange(40), 10)
    monoid = watched(tmp_path, lambda folder: (folder / "open").exists())

    def seen() -> dict[str, float]:
        def times(dask_scheduler: Any) -> dict[str, float]:
            return {w.address: w.last_seen for w in dask_scheduler.workers.values()}

        return client.run_on_scheduler(times)

    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(dc.reduce(x, monoid, engine="collective"))
    )
    thread.start()
    eventually(lambda: [*tmp_path.iterdir()])
    before = seen()
    # One for each thread of each worker.
    futures = client.map(lambda i: i + 1, range(8), pure=False)
    assert client.gather(futures) == list(range(1, 9))
    eventually(lambda: all(after > before[worker] for worker, after in seen().items()))
    assert thread.is_alive()
    assert not list(tmp_path.glob("*.done"))
    (tmp_path / "open").touch()
    thread.join()
    assert found == [sum(range(40))]


@pytest.mark.usefixtures("fast")
def test_chunks_are_taken_by_as_many_threads_as_a_worker_has(
    client: Client, tmp_path: Path
) -> None:
    (worker, *_) = addresses(client)
    x = client.persist(da.from_array(np.arange(40), chunks=10), workers=[worker])
    wait_for(x)
    monoid = watched(tmp_path, lambda folder: len([*folder.iterdir()]) >= 2)
    assert dc.reduce(x, monoid, engine="collective") == sum(range(40))
    assert max(int(done.read_text()) for done in tmp_path.glob("*.done")) == 2


@pytest.mark.usefixtures("fast")
def test_calls_at_a_time_do_not_mix(client: Client) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other:
        arrays = [(c, np.arange(60) * n) for n, c in enumerate([client, client, other, other])]
        xs = [persist(c, host, 7) for c, host in arrays]

        def work(n: int) -> None:
            c, host = arrays[n]
            for _ in range(12):
                assert dc.sum(xs[n], engine="collective") == host.sum()
                now = dc.cumsum(xs[n], engine="collective")
                np.testing.assert_array_equal(values(c, now), host.cumsum())

        at_once(work, range(4))


def test_a_call_from_a_task(client: Client) -> None:
    x = persist(client, LINE, 20)

    def work(array: Any) -> Any:
        from distributed import worker_client

        with worker_client():
            mine = array.persist()
            return dc.sum(mine, engine="collective"), dc.cumsum(mine, engine="collective").compute()

    total, now = client.submit(work, da.from_array(LINE, chunks=20)).result()
    assert total == LINE.sum()
    same(now, LINE.cumsum())
    del x


def test_expressions() -> None:
    """Arrays of expressions are taken too, and come back as such."""
    program = """
import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, futures_of, wait
import dask_coop as dc
import logging

def transitions(dask_scheduler):
    return dask_scheduler.transition_counter

if __name__ == "__main__":
    assert da.array_expr_enabled()
    y = np.arange(42.0).reshape(6, 7)
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as c, Client(c) as client:
        logging.getLogger("dask_coop.api.public").setLevel(logging.INFO)
        logging.basicConfig()
        x = da.from_array(y, chunks=(2, 3)).persist()
        wait(x)
        total = dc.sum(x, axis=0, engine="collective")
        assert type(total) is np.ndarray
        np.testing.assert_array_equal(total, y.sum(0))
        hist, edges = dc.histogram(x, 4, (0, 42), engine="collective")
        assert type(hist) is type(edges) is np.ndarray
        tasks = client.run_on_scheduler(transitions)
        now = dc.cumsum(x, 0, engine="collective")
        assert isinstance(now, da.Array)
        assert {f.status for f in futures_of(now)} == {"finished"}
        assert tasks == client.run_on_scheduler(transitions)
        np.testing.assert_array_equal(now.compute(), y.cumsum(0))
        np.testing.assert_array_equal((now + x).compute(), y.cumsum(0) + y)
        more = dc.cumsum(x + 1, 0, engine="collective")
        np.testing.assert_array_equal(more.compute(), (y + 1).cumsum(0))
        print("done")
"""
    warnings = ("-W", "error::RuntimeWarning")
    done = python(*warnings, "-c", program, DASK_ARRAY__QUERY_PLANNING="true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "done\n"
    assert done.stderr.count("runs as a graph") == 1, done.stderr
