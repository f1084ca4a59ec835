"""Private names of distributed and Dask that are gone or changed: right results, and one warning.

They are gone to the modules of this library alone, so that the cluster goes on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import inspect
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from distributed import Client
from support.clusters import eventually, in_this_process, spread, values
from test_architecture import PACKAGE

import dask_coop as dc
from dask_coop.cluster import counts, monitor, private
from dask_coop.cluster.private import GRAPH, PRIVATE, UNSEEN, Private, relying
from dask_coop.cluster.scheduler import SchedulerRounds
from dask_coop.cluster.worker import WorkerRounds
from dask_coop.errors import Incompatible

pytestmark = pytest.mark.xdist_group("private")

HOST = np.arange(24)
OWN = dc.Monoid("own", np.add, 0, "i8", commutative=True)


def found(of: str) -> Any:
    """Return the class or module of that name."""
    try:
        return importlib.import_module(of)
    except ImportError:
        module, _, name = of.rpartition(".")
        return getattr(importlib.import_module(module), name)


@cache
def texts_of(kind: type) -> list[str]:
    """Return the files in which a class, and those that it is made of, are written."""
    modules = {each.__module__ for each in kind.__mro__}
    found = [sys.modules[name] for name in modules if name.startswith("distributed")]
    return [Path(str(module.__file__)).read_text() for module in found]


def name_of(row: Private) -> str:
    return f"{row.of.rpartition('.')[2]}.{row.name}"


@pytest.mark.parametrize("row", PRIVATE, ids=name_of)
def test_a_name_is_used_and_is_there(row: Private) -> None:
    for user in row.users.split():
        text = (PACKAGE / f"{user}.py").read_text()
        assert re.search(rf"\b{row.name}\b", text), f"{user} does not use {row.name}"
    thing = found(row.of)
    if not hasattr(thing, row.name):
        # What instances have is set by a method.
        assert any(re.search(rf"\bself\.{row.name}\b", text) for text in texts_of(thing))


def is_ours(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("dask_coop.")


class Gone:
    """An attribute of a class that raises where this library asks for it, or is something else."""

    def __init__(self, kind: type, name: str, instead: Any = None) -> None:
        self.kind, self.name, self.instead = kind, name, instead
        self.before = inspect.getattr_static(kind, name, None)

    def __get__(self, thing: Any, kind: Any = None) -> Any:
        if is_ours(sys._getframe(1)):
            return self.of_ours()
        if hasattr(self.before, "__get__"):
            return self.before.__get__(thing, kind)
        if thing is not None and self.name in getattr(thing, "__dict__", ()):
            return vars(thing)[self.name]
        if self.before is None:
            raise AttributeError(self.name)
        return self.before

    def of_ours(self) -> Any:
        if self.instead is None:
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {self.name!r}")
        return self.instead

    def __set__(self, thing: Any, value: Any) -> None:
        if is_ours(sys._getframe(1)):
            self.of_ours()
        if hasattr(self.before, "__set__"):
            self.before.__set__(thing, value)
        else:
            vars(thing)[self.name] = value


class Without(ModuleType):
    """A module that lacks a name."""

    def __init__(self, module: ModuleType, name: str) -> None:
        super().__init__(module.__name__)
        self.__dict__.update({k: v for k, v in vars(module).items() if k != name})


def take_away(patch: pytest.MonkeyPatch, row: Private, instead: Any = None) -> None:
    thing = found(row.of)
    if isinstance(thing, type):
        patch.setattr(thing, row.name, Gone(thing, row.name, instead), raising=False)
        return
    without = Without(thing, row.name)
    patch.setitem(sys.modules, row.of, without)
    parent, _, child = row.of.rpartition(".")
    patch.setattr(sys.modules[parent], child, without)
    forget(patch)


def forget(patch: pytest.MonkeyPatch) -> None:
    """Have the modules of collectives be imported anew; what is running keeps those it has."""
    package = importlib.import_module("dask_coop.cluster")
    for name in [name for name in sys.modules if name.startswith("dask_coop.cluster.")]:
        child = name.rpartition(".")[2]
        patch.setitem(sys.modules, name, sys.modules[name])
        del sys.modules[name]
        patch.delattr(package, child)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    # So that all modules are there, to be put back.
    for name in ("client", "plugin", "page"):
        importlib.import_module(f"dask_coop.cluster.{name}")
    with in_this_process(2) as client:
        yield client


@pytest.fixture
def client(cluster: Client) -> Iterator[Client]:
    """Return a client that has registered nothing, of a cluster that knows of nothing."""
    scheduler = cluster.cluster.scheduler
    scheduler.worker_plugins.pop(WorkerRounds.name, None)
    for name in (SchedulerRounds.name, monitor.Monitor.name):
        scheduler.plugins.pop(name, None)
    for server in (scheduler, *cluster.cluster.workers.values()):
        for name in {*SchedulerRounds.handlers, *WorkerRounds.handlers}:
            server.handlers.pop(name, None)
    counts._warn.cache_clear()
    with Client(scheduler.address, set_as_default=False) as client:
        yield client
    eventually(lambda: not scheduler.tasks, 5, lambda: scheduler.tasks)


def total(client: Client) -> None:
    found = dc.sum(spread(client, 4), engine="collective")
    assert values(client, found) == HOST.sum()


def here(client: Client) -> None:
    found = dc.cumsum(spread(client, 4), engine="collective")
    np.testing.assert_array_equal(values(client, found), HOST.cumsum())


def there(client: Client) -> None:
    found = dc.scan(spread(client, 4), OWN, engine="collective")
    np.testing.assert_array_equal(values(client, found), HOST.cumsum())


def in_a_tree(client: Client) -> None:
    found, _ = dc.histogram(spread(client, 4), 150_000, (0, 24), engine="collective")
    assert values(client, found.sum()) == 24


def with_labels(client: Client) -> None:
    x = spread(client, 4)
    found, _ = dc.groupby_reduce(x, HOST % 2, func="sum", engine="collective")
    np.testing.assert_array_equal(values(client, found), [HOST[::2].sum(), HOST[1::2].sum()])


CALLS: list[Callable[[Client], None]] = [total, here, there, in_a_tree, with_labels]


@pytest.fixture
def _labels_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_coop.cluster.client.THROUGH_BYTES", 0)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [r for r in caplog.records if r.name == "dask_coop.api.public"]
    return [r.getMessage() for r in records if r.levelno >= logging.WARNING]


@pytest.mark.usefixtures("_labels_are_sent")
def test_all_goes_well_with_all_names(client: Client, fallbacks: Any) -> None:
    for call in CALLS:
        call(client)
    assert fallbacks() == []


def using(row: Private) -> Callable[[Client], None]:
    """Return a call that uses a name."""
    if row.name == "_scatter":
        return with_labels
    return in_a_tree if "memory" in f"{row.of}{row.name}" else here


@pytest.mark.usefixtures("_labels_are_sent")
@pytest.mark.parametrize("row", [row for row in PRIVATE if row.without == GRAPH], ids=name_of)
def test_a_name_that_is_gone(
    client: Client, caplog: Any, monkeypatch: pytest.MonkeyPatch, row: Private
) -> None:
    with monkeypatch.context() as patch:
        take_away(patch, row)
        using(row)(client)
    (told,) = warnings_of(caplog)
    assert row.name in told


OTHERS = [
    row
    for row in PRIVATE
    if row.of.startswith("distributed") and row.without not in (GRAPH, UNSEEN)
]


@pytest.mark.parametrize("row", OTHERS, ids=name_of)
def test_calls_go_on_without(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch, row: Private
) -> None:
    with monkeypatch.context() as patch:
        take_away(patch, row)
        here(client)
    assert fallbacks() == []


def changed(*args: Any, **kwargs: Any) -> Any:
    raise TypeError("unexpected keyword argument")


#: Those that do something in the middle of a call.
CHANGED = {
    *("_scatter", "rpc", "new_task", "add_replica", "set_nbytes", "update_data", "batched_send"),
    "get_process_memory",
}


@pytest.mark.usefixtures("_labels_are_sent")
@pytest.mark.parametrize("row", [row for row in PRIVATE if row.name in CHANGED], ids=name_of)
def test_a_name_that_has_changed(
    client: Client, caplog: Any, monkeypatch: pytest.MonkeyPatch, row: Private
) -> None:
    call = there if row.name == "rpc" else using(row)
    with monkeypatch.context() as patch:
        take_away(patch, row, changed)
        call(client)
    (told,) = warnings_of(caplog)
    assert "TypeError" in told or row.of.endswith("Scheduler")
    assert re.search(r"unexpected keyword argument'\), \w+\.py:\d+|no attribute 'limit'", told)


def test_what_a_job_raises_is_raised(client: Client, fallbacks: Any) -> None:
    def lift(x: Any) -> Any:
        # What a monoid is probed with is smaller.
        return {}["mine"] if x.size > 2 else x

    own = dc.Monoid("own", np.add, 0, "i8", lift=lift, commutative=True)
    for function in (dc.reduce, dc.scan):
        with pytest.raises(KeyError, match="mine"):
            function(spread(client, 4), own, engine="collective")
    assert fallbacks() == []


@pytest.mark.parametrize(
    "kind",
    [KeyboardInterrupt, asyncio.CancelledError, concurrent.futures.CancelledError, OSError],
)
def test_what_is_not_for_a_graph_passes(kind: type[BaseException]) -> None:
    with pytest.raises(kind), relying():
        raise kind
    with pytest.raises(Incompatible, match="KeyError"), relying():
        raise KeyError


def test_futures_are_waited_for_without_the_private_function(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = client.submit(lambda: time.sleep(0.1))
    (row,) = (row for row in PRIVATE if row.name == "_wait")
    with monkeypatch.context() as patch:
        take_away(patch, row)
        importlib.import_module(f"dask_coop.{row.users.replace('/', '.')}").wait([future])
    assert future.status == "finished"


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "distributed.dask_coop"]


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return what tells of warnings that something is not shown."""
    private.logger.addHandler(caplog.handler)
    with caplog.at_level(logging.WARNING, logger=private.logger.name):
        yield lambda: logged(caplog)
    private.logger.removeHandler(caplog.handler)


async def as_it_was(code: str) -> str:
    return code


@pytest.mark.parametrize("row", [row for row in PRIVATE if row.without == UNSEEN], ids=name_of)
def test_what_cannot_be_shown_is_left_out(
    cluster: Client,
    client: Client,
    fallbacks: Any,
    shown: Any,
    monkeypatch: pytest.MonkeyPatch,
    row: Private,
) -> None:
    handlers = cluster.cluster.scheduler.handlers
    # distributed's takes its time.
    monkeypatch.setitem(handlers, "performance_report", as_it_was)
    # Somebody looks.
    client.get_task_stream()
    with monkeypatch.context() as patch:
        take_away(patch, row)
        importlib.import_module("dask_coop.cluster.monitor")
        here(client)
        report = cluster.sync(handlers["performance_report"], code="code")
    assert report.startswith("code")
    told = shown()
    assert any(row.name in each for each in told), told
    assert fallbacks() == []


@pytest.mark.parametrize("name", ["AddKeysMsg", "rpc", "handlers", "http_application"])
def test_servers_start_in_any_case(
    cluster: Client, shown: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scheduler = cluster.cluster.scheduler
    worker, *_ = cluster.cluster.workers.values()

    async def start(server: Any) -> None:
        # As a server does that was started with --preload dask_coop.
        await dc.dask_setup(server)
        if server is scheduler and SchedulerRounds.name in scheduler.plugins:
            await scheduler.plugins[SchedulerRounds.name].start(scheduler)

    for key in (SchedulerRounds.name, monitor.Monitor.name):
        scheduler.plugins.pop(key, None)
    with monkeypatch.context() as patch:
        for row in PRIVATE:
            if row.name == name:
                take_away(patch, row)
        for server in (scheduler, worker):
            cluster.sync(start, server)
    assert any(name in each for each in shown())
