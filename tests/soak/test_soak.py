"""A short run; and that a run sees what is wrong, lost, late or growing."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import CancelledError, Client
from fuzz.work import chunks_of
from support.clusters import eventually, persist

import dask_coop as dc
from benchmarks.systems import node
from soak import page, run
from soak.calls import CALLS, Call
from soak.phase import Found, Phase
from soak.phase import run as phase_of
from soak.phases import PHASES, chosen
from soak.watch import Watched, stacks, wait

# Sockets of processes that were killed are closed by nobody.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


# distributed imports numba-cuda for CuPy chunks, of which NumPy 2.5 warns.
CUPY = pytest.param(
    "cupy", marks=[pytest.mark.gpu, pytest.mark.filterwarnings("ignore:The 'generic' unit")]
)


@pytest.mark.parametrize("kind", ["numpy", CUPY])
def test_a_short_run_finds_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    xp = chunks_of(kind)
    # As many events as there is time for.
    monkeypatch.setattr(run, "PAUSE", 0.05)
    report = run.soak(14, 3, deadline=200, per_round=7, xp=xp)
    assert {fault: report[fault] for fault in page.FAULTS} == {fault: [] for fault in page.FAULTS}
    assert run.count(report) == 14
    assert min(report["by"].values()) > 0
    assert report["events"].total() > 5
    assert [each["calls"] for each in report["rounds"]] == [7, 14]
    assert "| wrong results | 0 |" in page.summary(page.machine(xp) | report)


@pytest.mark.parametrize(
    ("phase", "size"), [(phase, size) for phase, size in zip(PHASES, (1, 1, 3, 1, 1), strict=True)]
)
def test_a_short_phase_finds_nothing(phase: Phase, size: int) -> None:
    report, is_late = phase_of(phase, 100, size)
    assert not is_late
    assert report["faults"] == []
    assert report["counts"]["calls"] > 0
    assert report["counts"].get("chunks spilled at the end", 1) > 0


def broken(thread: Watched, found: Found, size: int) -> None:
    found.call("sum", lambda: size, 3)
    found.call("sum", lambda: size, 4)
    found.require(False, "it was closed")
    raise RuntimeError("no cluster")


def test_a_broken_promise_is_found() -> None:
    report, is_late = phase_of(Phase("one", "None.", broken, 3), 9)
    wrong, closed, ended = report["faults"]
    assert "Mismatched elements: 1 / 1" in wrong
    assert closed == "it was closed"
    assert "RuntimeError: no cluster" in ended
    assert report["counts"] == {"calls": 2}
    assert not is_late
    found = page.faults({"phases": {"one": report}})
    assert found == {"broken promises in phase one": report["faults"]}
    assert "| broken promises in phase one | 3 |" in page.summary(
        page.machine(np) | {"phases": {"one": report}}
    )


def test_a_phase_that_never_ends_is_late(capsys: pytest.CaptureFixture[str]) -> None:
    end = threading.Event()

    def waits(thread: Watched, found: Found, size: int) -> None:
        with thread.doing("to wait"):
            end.wait()

    try:
        report, is_late = phase_of(Phase("one", "None.", waits, 3), 0.2)
    finally:
        end.set()
    assert report["faults"] == ["one: to wait for 0 s"]
    assert is_late
    assert "in waits" in capsys.readouterr().out


def test_phases_are_chosen_by_name() -> None:
    assert chosen("idle, calls") == ["idle", "calls"]
    assert chosen("") == ["calls", "memory", "callers", "pool", "idle", "adaptive"]
    with pytest.raises(SystemExit, match=r"of calls, memory, .*, got 'memori'"):
        chosen("idle,memori")


class Caller:
    """A caller on a cluster in this process, of one array, which the test gives calls."""

    def __init__(self, client: Client, host: Any, chunks: Any) -> None:
        self.report: Any = {name: [] for name in ("wrong", "lost")}
        self.report |= {"calls": Counter(), "by": Counter(), "raised": 0, "lost with a worker": 0}
        self.chaos: Any = SimpleNamespace(killed=0)
        self._caller = run.Caller(client, random.Random(1), self.chaos, self.report)
        self._held = run.Held(host, persist(client, host, chunks))

    def call(self, ours: Any, numpy: Any, killed: int | None = None) -> None:
        self.one(Call("it", ours, numpy, lazy=True), killed)

    def one(self, call: Call, killed: int | None = None) -> None:
        held = run.Held(self._held.host, self._held.x, killed)
        self._caller._one(Watched("client", print), held, call)


def test_calls_are_what_numpy_makes_of_the_same_array() -> None:
    host = np.random.default_rng(1).integers(-9, 9, (8, 6)).astype("i4")
    with Client(processes=False, dashboard_address=":0", set_as_default=False) as client:
        caller = Caller(client, host, (3, 4))
        for call in CALLS:
            caller.one(call)
        assert caller.report["wrong"] == caller.report["lost"] == []
        assert caller.report["calls"].keys() == {call.name for call in CALLS}
        del caller


def test_what_is_wrong_or_lost_is_found() -> None:
    def lose(x: Any) -> Any:
        raise CancelledError("gone")

    with Client(processes=False, dashboard_address=":0", set_as_default=False) as client:
        caller = Caller(client, np.arange(6), 2)
        caller.call(dc.sum, np.sum)
        assert caller.report["wrong"] == []
        caller.call(dc.sum, np.prod)
        assert "Mismatched elements: 1 / 1" in caller.report["wrong"].pop()
        caller.call(dc.sum, lambda x: run.outcome(lambda: dc.sum(x, axis=7)))
        assert "was to be raised" in caller.report["wrong"].pop()
        # What tasks make is never lost; the result of a scan is, with a worker alone.
        caller.call(lose, np.sum)
        assert "gone" in caller.report["wrong"].pop()
        caller.call(lose, np.sum, killed=0)
        assert "gone" in caller.report["lost"].pop()
        caller.chaos.killed = 1
        caller.call(lose, np.sum, killed=0)
        assert caller.report["lost with a worker"] == 1
        assert caller.report["wrong"] == caller.report["lost"] == []
        del caller


def test_what_hangs_is_late_and_shows_its_stack(tmp_path: Path) -> None:
    end = threading.Event()

    def never_ending(thread: Watched) -> None:
        with thread.doing("to wait"):
            end.wait()

    loop = asyncio.new_event_loop()
    try:
        assert wait([Watched("one", lambda thread: None)], 0.2) == []
        assert wait([Watched("one", never_ending)], 0.2) == ["one: to wait for 0 s"]
        assert "in never_ending" in stacks(loop, [], tmp_path)
    finally:
        end.set()
        loop.close()
    eventually(lambda: "one" not in {thread.name for thread in threading.enumerate()})


def rounds(**growing: int) -> list[dict[str, Any]]:
    """Return rounds in which something grows by so much each time."""
    used = {"pid": 1, "threads": 9, "descriptors": 30, "memory": 200 << 20}
    return [
        {who: {name: n + growing.get(name, 0) * i for name, n in used.items()} for who in page.WHO}
        for i in range(30)
    ]


def test_what_grows_is_found() -> None:
    assert run.grown(rounds()) == []
    assert run.grown(rounds(threads=1)[:5]) == []
    for what, step in (("threads", 1), ("descriptors", 2), ("memory", 2 << 20)):
        found = run.grown(rounds(**{what: step}))
        assert [words.split(":")[0] for words in found] == [f"{what} of the {w}" for w in page.WHO]
    assert run.grown(rounds(pid=1)) == [f"the process of the {w} was another" for w in page.WHO]


def test_the_page_holds_the_result() -> None:
    told = page.figures()
    assert node.holds(told, page.PAGE), "write it anew"
    for path in page.RESULTS.values():
        assert run.count(json.loads(path.read_text())) >= 2000
