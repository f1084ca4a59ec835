"""A run: rounds of random calls, and what is left and used after each."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
import psutil
from distributed import CancelledError, Client, Worker, WorkerPlugin
from distributed.scheduler import DEFAULT_EXTENSIONS
from support.clusters import cluster, eventually, is_whole, on_workers, persist, values

from soak.calls import CALLS, MOST, WORDS, Call
from soak.chaos import FEWEST, SPARED, Chaos
from soak.watch import Stacks, Watched, stacks, wait

#: Calls in a round, of both clients together.
ROUND = 100
#: Seconds that a call, an event, or the end of a round may take.
DEADLINE = 120.0
#: Of calls, those by collectives.
COLLECTIVE = 0.7
#: How many results of scans a client keeps, which are called upon again.
KEPT = 4
#: Seconds between two events, on average.
PAUSE = 0.15
#: The least rounds of which it is said whether something grows.
JUDGED = 8

CONFIG = {
    # What is kept of events and messages is full before growth is judged.
    "distributed.admin.log-length": 100,
    "distributed.admin.low-level-log-length": 100,
    "distributed.scheduler.allowed-failures": 1000,
    "distributed.worker.memory.rebalance.measure": "managed",
    "distributed.worker.profile.enabled": False,
}


class NoSpans:
    """The scheduler's spans, of which distributed keeps each with its task groups until the end."""

    def __init__(self, scheduler: Any) -> None:
        pass

    def observe_tasks(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    def heartbeat(self, worker: Any, data: Any) -> None:
        pass


#: Beside the growth of one span a graph no other would be seen.
WITHOUT_SPANS = {"extensions": {**DEFAULT_EXTENSIONS, "spans": NoSpans}}

Report = dict[str, Any]


class OneGpu(WorkerPlugin):  # type: ignore[misc]
    """Gives workers one GPU each, in turn, before they use any."""

    name = "soak-gpu"
    idempotent = True

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus

    def setup(self, worker: Worker) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker.name) % self.gpus)


@dataclass(eq=False)
class Held:
    """An array in memory on the cluster.

    Attributes
    ----------
    host, x : array
    killed : int or None
        How many workers had been killed when it was made, if it is lost with one; None where tasks
        make it again.
    """

    host: Any
    x: da.Array
    killed: int | None = None


class Caller:
    """A client that calls what its dice say."""

    def __init__(
        self, client: Client, dice: random.Random, chaos: Chaos, report: Report, xp: Any = np
    ) -> None:
        self._client, self._dice, self._chaos, self._report = client, dice, chaos, report
        self._xp = xp
        self._calls = [call for call in CALLS if xp is np or not call.may_raise]
        self.pool: list[Held] = []

    def call(self, thread: Watched, count: int) -> None:
        """Make arrays, call so many functions, and let go of all."""
        with thread.doing("persist"):
            for _ in range(3):
                self._new()
        for _ in range(count):
            held = self._dice.choice(self.pool)
            # What scans make differs from NumPy's in last digits.
            able = [c for c in self._calls if held.killed is None or not c.is_exact]
            self._one(thread, held, self._dice.choice(able))
        self.pool.clear()

    def _new(self) -> None:
        rng = np.random.default_rng(self._dice.randrange(2**32))
        host, chunks = self._dice.choice(
            [
                (rng.integers(-MOST, MOST, 200), 9),
                (rng.normal(size=90), 11),
                (rng.integers(-MOST, MOST, (24, 18)).astype("i4"), (5, 7)),
                (rng.normal(size=(16, 12)), ((8, 0, 8), 5)),
                # As large as makes workers spill and move something.
                (rng.normal(size=(1000, 400)), (250, 400)),
            ]
        )
        self.pool.append(Held(host, persist(self._client, host, chunks, xp=self._xp)))

    def _one(self, thread: Watched, held: Held, call: Call) -> None:
        is_collective = not call.lazy and self._dice.random() < COLLECTIVE
        engine = {} if call.lazy else {"engine": "collective" if is_collective else "auto"}
        x = held.x
        name = f"{call.name} of {x.shape} {x.dtype} in {x.numblocks} chunks, {engine}"
        killed = self._chaos.killed
        expected = outcome(lambda: call.numpy(held.host))
        made: list[Any] = []
        with thread.doing(name):
            found = outcome(lambda: self._compute(call, x, engine, made))
        if isinstance(found, CancelledError) and (made or held.killed is not None):
            since = killed if held.killed is None else held.killed
            if self._chaos.killed > since:
                # As scattered data is, with the worker that had the only copy.
                self._report["lost with a worker"] += 1
            else:
                self._report["lost"].append(f"{name}: {found!r}")
            if held in self.pool and held.killed is not None:
                self.pool.remove(held)
            return
        if call.is_index and not isinstance(found, Exception):
            # Of elements that are alike but for their last digits any may be the greatest.
            found, expected = held.host.ravel()[found], held.host.ravel()[expected]
        if words := difference(found, expected, np.abs(held.host).max()):
            self._report["wrong"].append(f"{name}: {words}")
        self._report["calls"][call.name] += 1
        self._report["by"]["collective" if is_collective else "graph"] += 1
        self._report["raised"] += isinstance(expected, Exception)
        if made and not call.has_nan and not isinstance(found, Exception):
            self.pool.append(Held(expected, made[0], killed))
        if len(self.pool) > KEPT + 3:
            self.pool.pop(self._dice.randrange(len(self.pool)))
        if self.pool and self._dice.random() < 0.1:
            self.pool.pop(self._dice.randrange(len(self.pool)))
            with thread.doing("persist"):
                self._new()

    def _compute(self, call: Call, x: da.Array, engine: dict[str, str], made: list[Any]) -> Any:
        found = call.ours(x, **engine)
        if isinstance(found, da.Array):
            if engine.get("engine") == "collective":
                made.append(found)
            found = values(self._client, found)
        return found.get() if hasattr(found, "get") else found


def outcome(function: Any) -> Any:
    """Return what a function returns, or the exception that it raises."""
    try:
        return function()
    # A call's result is what it raises, too.
    except Exception as error:
        return error


def difference(found: Any, expected: Any, largest: float = 1.0) -> str:
    """Say how a result differs from NumPy's, of elements up to one; "" if it does not."""
    if isinstance(expected, Exception):
        right = isinstance(found, ValueError) and WORDS in str(found)
        return "" if right else f"{found!r} where {expected!r} was to be raised"
    if isinstance(found, Exception):
        return repr(found)
    try:
        # What of large elements adds up to next to nothing has as few digits with NumPy.
        near = 1e-9 * max(1.0, largest)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=near)
    except AssertionError as error:
        return str(error)
    return ""


class Fallbacks(logging.Handler):
    """Counts why collectives ran as graphs, whatever the worker and the chunk."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.INFO)
        self._counts = report["fell back"]

    def emit(self, record: logging.LogRecord) -> None:
        _, is_one, reason = record.getMessage().partition(" runs as a graph: ")
        if is_one:
            reason = re.sub(r"\w+://[\w.:-]+", "WORKER", reason)
            reason = re.sub(r"\('[\w-]+'(, \d+)+\)", "CHUNK", reason)
            self._counts[re.sub(r"\b0x\w+|\d+", "N", reason).partition(": ")[0]] += 1


@contextmanager
def counted(report: Report) -> Iterator[None]:
    logger, handler = logging.getLogger("dask_coop.api.public"), Fallbacks(report)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def soak(
    calls: int, seed: int, deadline: float = DEADLINE, per_round: int = ROUND, xp: Any = np
) -> Report:
    """Make a run, with chunks of NumPy or CuPy.

    Returns
    -------
    dict
        What happened; ``wrong``, ``lost``, ``hung``, ``left`` and ``grown`` are empty where all is
        well.
    """
    report: Report = {
        "seed": seed,
        "calls": Counter(),
        "by": Counter(),
        "events": Counter(),
        "fell back": Counter(),
        "raised": 0,
        "lost with a worker": 0,
        **{name: [] for name in ("wrong", "lost", "hung", "left", "rounds")},
    }
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(FEWEST, 2, CONFIG, memory_limit="1GB", scheduler_kwargs=WITHOUT_SPANS) as own,
        Client(own.cluster, set_as_default=False) as one,
        Client(own.cluster, set_as_default=False) as other,
        counted(report),
    ):
        own.register_plugin(Stacks(folder))
        if xp is not np:
            own.register_plugin(OneGpu(xp.cuda.runtime.getDeviceCount()))
        chaos = Chaos(own, seed)
        dice = [random.Random(f"{seed} {i}") for i in range(2)]
        callers = [Caller(c, d, chaos, report, xp) for c, d in zip((one, other), dice, strict=True)]
        while (done := count(report)) < calls and not report["hung"]:
            some = min(per_round, calls - done)
            report["hung"], failed = one_round(chaos, callers, some, deadline)
            report["wrong"] += failed
            if not report["hung"]:
                # The array that a thread's last frame held has gone with the thread.
                end = Watched("end", lambda thread: finish(own, chaos, report, thread, deadline))
                report["hung"] = wait([end], deadline)
                report["left"] += [end.failure] if end.failure else []
            if report["hung"]:
                told = stacks(own.cluster.loop.asyncio_loop, chaos.pids().values(), Path(folder))
                print(told, flush=True)
                report["hung"].append(told)
            report["events"] = chaos.came
            report["seconds"] = round(time.monotonic() - start)
            report["grown"] = grown(report["rounds"])
            print(f"{count(report):,} calls in {report['seconds']:,} s", flush=True)
            if report["hung"]:
                # Nothing that waits for the cluster would end.
                raise Hung(report)
            if report["left"]:
                # Of what is done next, that would be found again.
                break
    return report


class Hung(Exception):
    """Something had no end; the argument is the report."""


def count(report: Report) -> int:
    lost = report["lost with a worker"] + len(report["lost"])
    return sum(report["calls"].values()) + lost


def one_round(
    chaos: Chaos, callers: Sequence[Caller], calls: int, deadline: float
) -> tuple[list[str], list[str]]:
    """Let callers call and events happen; return what hung, and which threads failed."""

    def happen(thread: Watched) -> None:
        dice = random.Random(chaos.killed)
        while any(caller.is_alive() for caller in threads[:-1]):
            time.sleep(dice.expovariate(1 / PAUSE))
            if held := [held for caller in callers for held in caller.pool]:
                event = chaos.next()
                with thread.doing(event):
                    chaos.act(event, dice.choice(held).x)
            held = []

    shares = [calls - calls // 2, calls // 2]
    threads = [
        Watched(f"client {i}", lambda thread, c=caller, n=share: c.call(thread, n))
        for i, (caller, share) in enumerate(zip(callers, shares, strict=True))
    ]
    threads.append(Watched("chaos", happen))
    hung = wait(threads, deadline)
    return hung, [f"{thread.name} ended:\n{thread.failure}" for thread in threads if thread.failure]


def finish(client: Client, chaos: Chaos, report: Report, thread: Watched, deadline: float) -> None:
    """Hold a round to leave nothing, and measure processes."""
    with thread.doing("the end of a round"):
        chaos.rest()
        # What is left is told, before the deadline ends everything.
        eventually(lambda: is_whole(client), deadline * 0.4)
        eventually(lambda: not left(client), deadline * 0.4, lambda: left(client))
        chaos.shrink()
        spared = chaos.pids()[SPARED]
        (worker,) = (used for used in client.run(usage).values() if used["pid"] == spared)
        used = dict(zip(WHO, (usage(), worker), strict=True))
        report["rounds"].append({"calls": count(report), **used})


def left(client: Client) -> dict[str, Any]:
    """Return what workers hold, and the keys that the scheduler knows, with who wants them."""

    def keys(dask_scheduler: Any) -> dict[str, tuple[str, list[str]]]:
        return {
            str(key): (task.state, [client.client_key for client in task.who_wants or ()])
            for key, task in dask_scheduler.tasks.items()
        }

    # Of what is raised, tracebacks are circles, which hold arrays.
    gc.collect()
    found = {address: held for address, held in on_workers(client).items() if held}
    if asked := client.run_on_scheduler(keys):
        found["scheduler"] = asked
    return found


def usage() -> dict[str, int]:
    """Return what this process uses, memory in bytes, after it gave back what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    used = {
        "pid": process.pid,
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
        "memory": process.memory_full_info().uss,
    }
    if cupy := sys.modules.get("cupy"):
        used["GPU memory"] = cupy.get_default_memory_pool().used_bytes()
    return used


#: The processes that are measured.
WHO = ("scheduler", "worker")
#: How much more may be used in the last quarter of a run than in the third: so many, or a share.
#: Before that distributed fills what it keeps of logs, events and computations, up to a length.
ALLOWED = {
    "threads": (2, 0.0),
    "descriptors": (8, 0.0),
    "memory": (8 << 20, 0.03),
    "GPU memory": (1 << 20, 0.0),
}


def quarters(rounds: Sequence[dict[str, Any]], who: str, what: str) -> list[float]:
    """Return the medians over the quarters of a run; without CuPy there is no GPU memory in use."""
    used = [each[who].get(what, 0) for each in rounds]
    n = len(used)
    return [median(used[n * i // 4 : n * (i + 1) // 4]) for i in range(4)]


def grown(rounds: Sequence[dict[str, Any]]) -> list[str]:
    """Say what grows, if there are enough rounds to see it."""
    if len(rounds) < JUDGED:
        return []
    found = []
    for who in WHO:
        if len({each[who]["pid"] for each in rounds}) > 1:
            found.append(f"the process of the {who} was another")
        for what, (few, share) in ALLOWED.items():
            *_, before, after = quarters(rounds, who, what)
            if after > before + max(few, share * before):
                found.append(f"{what} of the {who}: {before:g}, then {after:g}")
    return found
