"""The load that a scheduler bears: ``python -m benchmarks.systems.scale``, by chunks and workers.

The scheduler runs in its own process. Many workers share one process, so that a machine with few
cores can have 256: all in this process, or in as many as ``--processes`` says. Chunks have 64
elements, so that messages are the only work. For every call three numbers are recorded, once its
result is right: the time, the scheduler's processor time, and the longest time that its event loop
was blocked, in the call and while its results were released. The scheduler's idle load, for
heartbeats and for being watched, is subtracted from its time. Works that would not end within
`LIMIT` are left out, and the page says so.

``python -m benchmarks.systems.scale --write`` makes the figures and plots of docs/production.md
from benchmarks/results/scale/cpu.json, and a table from 16-cores.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from .. import report
from . import collective, node

Row = dict[str, Any]

RESULTS = collective.HERE / "results" / "scale" / "cpu.json"
#: The results of a machine with more processors, whose processes have fewer workers each.
WIDER = RESULTS.with_name("16-cores.json")
PLOT = RESULTS.with_suffix(".svg")
PAGE = collective.HERE.parent / "docs" / "production.md"

CHUNKS, WORKERS = (100, 1_000, 10_000, 100_000), (16, 1, 64, 256)
#: The most workers and the most chunks with which graphs are measured.
GRAPH_WORKERS, GRAPH_CHUNKS = 16, 1_000
#: Calls of a collective, of which the median counts. A graph is computed once, and so is a
#: collective of more chunks than `FEW`.
SAMPLES, FEW = 3, 10_000
#: Seconds after which no call begins.
LIMIT = 600
#: Elements of a chunk.
SIZE = 64
WORKS = ("sum", "cumsum")
#: The number of chunks that are sent at a time, so that no connection times out.
BATCH = 2_000
#: The chunks and workers for which the page extrapolates.
FAR = (1_000_000, 1_000)
#: The scheduler's stderr is a pipe that nobody reads; messages about workers would fill and block
#: it.
QUIET = {"DASK_LOGGING__DISTRIBUTED": "critical"}
#: Seconds between two checks of the loop.
TICK = 0.005
#: The workers in plots against chunks, and the chunks in plots against workers.
ACROSS = (16, 1_000)


def start_watching(dask_scheduler: Any) -> None:
    """Start a task in the scheduler that measures how long its loop is blocked."""
    import asyncio
    from time import perf_counter

    async def watch() -> None:
        before = perf_counter()
        while True:
            await asyncio.sleep(TICK)
            now = perf_counter()
            dask_scheduler.held = max(dask_scheduler.held, now - before - TICK)
            before = now

    dask_scheduler.held = 0.0
    dask_scheduler.watching = asyncio.ensure_future(watch())


def read(dask_scheduler: Any) -> tuple[float, float]:
    """Return the processor time so far, and the longest block of the loop since the last call."""
    import time

    held, dask_scheduler.held = dask_scheduler.held, 0.0
    return time.process_time(), held


def tasks(dask_scheduler: Any) -> int:
    """Return the number of keys that a scheduler knows."""
    return len(dask_scheduler.tasks)


def scattered(client: Any, count: int) -> Any:
    """Return an array of ones, whose chunks lie on all workers in turn."""
    from dask.array import Array
    from dask.highlevelgraph import HighLevelGraph

    name, chunk = f"ones-{count}", np.ones(SIZE)
    layer: dict[Any, Any] = {}
    for begin in range(0, count, BATCH):
        part = range(begin, min(count, begin + BATCH))
        layer |= client.scatter({(name, i): chunk for i in part})
    graph = HighLevelGraph.from_collections(name, layer)
    return Array(graph, name, ((SIZE,) * count,), meta=chunk[:0])


def measure(client: Any, workers: int, count: int, graphs: bool, end: float) -> Iterator[Row]:
    """Measure every work on so many chunks, until the time `end`."""
    import dask
    import dask.array as da
    from distributed import wait

    import dask_coop

    def at_once(work: str) -> Any:
        return getattr(dask_coop, work)(x, axis=0, engine="collective")

    def lazy(module: Any, work: str) -> Any:
        (made,) = dask.persist(getattr(module, work)(x, axis=0))
        wait(made)
        return made

    x = scattered(client, count)
    by: dict[str, Callable[[str], Any]] = {collective.COLLECTIVE: at_once}
    if graphs:
        by |= {collective.PLAIN: partial(lazy, dask_coop), collective.DA: partial(lazy, da)}

    def sample(work: str, call: Callable[[str], Any]) -> Row:
        before, _ = client.run_on_scheduler(read)
        start = time.perf_counter()
        result = call(work)
        seconds = time.perf_counter() - start
        after, held = client.run_on_scheduler(read)
        if work == "cumsum":
            # A graph of one chunk would bring the futures of all chunks to the scheduler.
            last = result.dask[result.__dask_keys__()[-1]].result()[-1]
        else:
            last = np.asarray(result)
        assert last.item() == SIZE * count
        del result, last
        while client.run_on_scheduler(tasks) > count:
            time.sleep(0.01)
        _, released = client.run_on_scheduler(read)
        times = {"seconds": seconds, "scheduler": after - before}
        return times | {"held": held, "released": released}

    # The costs of a first call, such as plugins and imports, do not depend on the size.
    collective.check("sum", [at_once("sum")], {"sums": [SIZE * count]})
    before, _ = client.run_on_scheduler(read)
    time.sleep(1)
    after, _ = client.run_on_scheduler(read)
    for work in WORKS:
        for name, call in by.items():
            if time.monotonic() > end:
                return
            samples = SAMPLES if name == collective.COLLECTIVE and count <= FEW else 1
            found = sorted((sample(work, call) for _ in range(samples)), key=_seconds)
            row = {"work": work, "contender": name, "workers": workers, "chunks": count}
            yield row | found[samples // 2] | {"idle": after - before}


def _seconds(row: Row) -> float:
    return float(row["seconds"])


@contextmanager
def elsewhere(
    scheduler: str, count: int, processes: int, options: dict[str, Any]
) -> Iterator[None]:
    """Run so many workers in separate processes."""
    import dask

    # Pass on the configuration as a nanny does.
    kept = dask.config.serialize(dask.config.global_config)
    environment = {**os.environ, "DASK_INTERNAL_INHERIT_CONFIG": kept}
    started = []
    for process in range(min(processes, count)):
        mine = range(process, count, processes)
        specs = {i: {"cls": "distributed.Worker", "opts": {"name": i, **options}} for i in mine}
        command = [sys.executable, "-m", "dask", "spec", scheduler, "--spec", json.dumps(specs)]
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def run(
    chunks: Sequence[int], workers: Sequence[int], processes: int = 1, limit: float = LIMIT
) -> Iterator[Row]:
    """Measure on clusters of so many workers, until the time is over."""
    import dask
    from distributed import Client, SpecCluster, Worker
    from distributed.deploy.subprocess import SubprocessScheduler

    end = time.monotonic() + limit
    options = {"nthreads": 1, "memory_limit": 0, "dashboard": False}
    scheduler = {"cls": SubprocessScheduler, "options": {"scheduler_kwargs": {"dashboard": False}}}
    quiet = {
        "distributed.worker.profile.enabled": False,
        "distributed.admin.system-monitor.interval": "1 hour",
        "distributed.admin.tick.limit": "1 hour",
        # All workers begin at the same time, in one thread.
        "distributed.comm.timeouts.connect": "10 minutes",
    }
    for count in workers:
        here = range(count if processes < 2 else 0)
        with (
            dask.config.set(quiet),
            patch.dict(os.environ, QUIET),
            SpecCluster(
                workers={i: {"cls": Worker, "options": options} for i in here},
                scheduler=scheduler,
                silence_logs=50,
            ) as cluster,
            Client(cluster) as client,
            elsewhere(cluster.scheduler_address, count - len(here), processes, options),
        ):
            client.wait_for_workers(count)
            client.run_on_scheduler(start_watching)
            a_chunk = 0.0
            for each in chunks:
                start = time.monotonic()
                # As long for each chunk as with fewer chunks.
                if start + a_chunk * each > end:
                    continue
                graphs = count <= GRAPH_WORKERS and each <= GRAPH_CHUNKS
                yield from measure(client, count, each, graphs, end)
                a_chunk = (time.monotonic() - start) / each if not graphs else 0.0


def net(row: Row) -> float:
    """Return the scheduler's seconds of a call, less its idle load."""
    return max(float(row["scheduler"] - row.get("idle", 0.0) * row["seconds"]), 1e-6)


def line(rows: Sequence[Row], work: str) -> tuple[float, float, float]:
    """Return the scheduler's seconds of a collective: for each call, chunk and worker."""
    used = [r for r in rows if (r["work"], r["contender"]) == (work, collective.COLLECTIVE)]
    # Fit relative errors, so that measurements with few chunks weigh as much as those with many.
    table = np.array([[1, r["chunks"], r["workers"]] for r in used])
    seconds = np.array([net(r) for r in used])
    coefficients = np.linalg.lstsq(table / seconds[:, None], np.ones(len(used)), rcond=None)[0]
    call, chunk, worker = (max(float(each), 0.0) for each in coefficients)
    return call, chunk, worker


#: Of the measured numbers of chunks and workers, those that the page shows.
SHOWN = ((1_000, 16), (100_000, 256))


def table(found: dict[str, Any]) -> list[str]:
    """Return results as a table, below a line on the machine."""
    rows, machine = found["rows"], found["machine"]
    rows = [r for r in rows if (r["chunks"], r["workers"]) in SHOWN]
    processes = "one process" if machine["processes"] < 2 else f"{machine['processes']} processes"
    lines = [
        [
            *(r["work"], r["contender"], f"{r['chunks']:,}", str(r["workers"])),
            *(f"{r['seconds']:.2f}", f"{net(r):.2f}"),
            *(f"{net(r) / r['chunks'] * 1e6:.0f}", f"{r['held'] * 1e3:,.0f}"),
            f"{r['released'] * 1e3:,.0f}" if "released" in r else "",
        ]
        for r in sorted(rows, key=lambda r: (r["work"], r["contender"], r["chunks"], r["workers"]))
    ]
    head = ["work", "by", "chunks", "workers", "s", "scheduler, s", "us a chunk"]
    head += ["loop held, ms", "after"]
    return [
        f"{machine['date']}. {report.versions_of(machine)}. {machine['processors']} processors "
        f"({machine['processor']}). All workers in {processes} beside the scheduler's.",
        *([machine["note"]] if "note" in machine else []),
        report.table(head, lines),
    ]


def figures(found: dict[str, Any]) -> str:
    """Return the figures of the page for these results."""
    rows = found["rows"]
    plot = f"![Scheduler time and loop lag]({collective.relative(PLOT, PAGE.parent)})"
    parts = [*table(found), plot]
    found_of = {(r["chunks"], r["workers"]) for r in rows if r["work"] == WORKS[-1]}
    if missing := [each for each in product(CHUNKS, sorted(WORKERS)) if each not in found_of]:
        left = "; ".join(f"{chunks:,} chunks on {workers} workers" for chunks, workers in missing)
        parts.append(f"Not measured, as there was no time left for it: {left}.")
    for work in WORKS:
        call, chunk, worker = line(rows, work)
        far = call + chunk * FAR[0] + worker * FAR[1]
        parts.append(
            f"`{work}` by a collective takes the scheduler {call * 1e3:.1f} ms, {chunk * 1e6:.0f} "
            f"us a chunk and {worker * 1e3:.2f} ms a worker; by this line {far:.0f} s for "
            f"{FAR[0]:,} chunks on {FAR[1]:,} workers: {chunk * FAR[0]:.1f} s for the chunks and "
            f"{worker * FAR[1]:.1f} s for the workers." + _graphs(rows, work)
        )
    return "\n\n".join(parts)


def told(found: dict[str, Any]) -> str:
    """Return the figures of these results, then those of the wider machine."""
    wider = json.loads(WIDER.read_text())
    return "\n\n".join([figures(found), "### With more processors", *table(wider)])


def _graphs(rows: Sequence[Row], work: str) -> str:
    """Return the sentence on the scheduler's time for graphs of so many chunks."""
    said = []
    for name in (collective.PLAIN, collective.DA):
        mine = [r for r in rows if (r["work"], r["contender"]) == (work, name)]
        if mine:
            a_chunk = max(mine, key=lambda r: (r["chunks"], r["workers"]))
            each = net(a_chunk) / a_chunk["chunks"]
            said.append(f"{each * FAR[0]:,.0f} s by {name}, at {each * 1e6:,.0f} us a chunk")
    if not said:
        return ""
    return f" At the cost per chunk of the largest measured graph it is {' and '.join(said)}."


def draw(rows: Sequence[Row], target: Path) -> None:
    """Draw the scheduler's time and its loop's lag, against chunks and against workers."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle("What a call costs the scheduler")
    ways = (
        ("chunks", f"on {ACROSS[0]} workers", "workers", ACROSS[0]),
        ("workers", f"of {ACROSS[1]:,} chunks", "chunks", ACROSS[1]),
    )
    # The same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "dask_coop", "svg.fonttype": "none"}):
        panels = figure.subplots(2, 2, sharey="row", sharex="col")
        for column, (along, words, fixed, at) in enumerate(ways):
            for row, (label, value) in enumerate((("processor", net), ("loop held", _held))):
                axes = panels[row][column]
                for name in (collective.DA, collective.PLAIN, collective.COLLECTIVE):
                    for work, style in zip(WORKS, ("--", "-"), strict=True):
                        mine = [
                            (r[along], value(r) * 1e3)
                            for r in rows
                            if (r["work"], r["contender"], r[fixed]) == (work, name, at)
                        ]
                        color, marker = collective.CONTENDERS[name]
                        if mine:
                            points = zip(*sorted(mine), strict=True)
                            look = {"marker": marker, "color": color, "label": f"{work}, {name}"}
                            axes.plot(*points, style, **look)
                axes.set_xscale("log")
                axes.set_yscale("log")
                axes.grid(alpha=0.3)
                axes.set_ylabel(f"{label}, ms")
                axes.set_title(words)
                if row:
                    axes.set_xlabel(along)
        named: dict[str, Any] = {}
        for axes in figure.axes:
            handles, labels = axes.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3)
        figure.savefig(target, metadata={"Date": None})


def _held(row: Row) -> float:
    return max(float(row["held"]), 1e-4)


def write() -> None:
    """Draw the plots, and write the figures into the page, between its marks."""
    results = json.loads(RESULTS.read_text())
    draw(results["rows"], PLOT)
    node.write(told(results), PAGE)


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--processes", type=int, default=1, help="in which the workers live")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds till no call begins")
    parser.add_argument("--write", action="store_true", help="only write docs/production.md anew")
    options = parser.parse_args()
    if not options.write:
        from ..timers import find_timer, machine_facts

        machine = {**machine_facts(find_timer(True)), "processes": options.processes}
        rows = run(options.chunks, options.workers, options.processes, options.limit)
        collective.keep(machine, rows, options.out)
    if options.write or options.out == RESULTS:
        write()


if __name__ == "__main__":
    main()
