"""What a scheduler bears, by chunks and workers: ``python -m benchmarks.systems.scale``.

The scheduler is a process of its own. All workers live in this one, so that a machine with two
cores has 256; chunks have 64 elements, so that there is nothing to do but messages. Of every call
the time, the scheduler's processor time, and the longest that its event loop was held are written
down, after its result was found right.

The figures of docs/production.md are made of benchmarks/results/scale/cpu.json, by
``python -m benchmarks.systems.scale --write``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import report
from . import collective, node

Row = dict[str, Any]

RESULTS = collective.HERE / "results" / "scale" / "cpu.json"
PAGE = collective.HERE.parent / "docs" / "production.md"

CHUNKS, WORKERS = (1_000, 10_000, 100_000), (1, 16, 64, 256)
#: The workers and the most chunks with which graphs are measured.
GRAPH_WORKERS, GRAPH_CHUNKS = 16, 1_000
#: Elements of a chunk.
SIZE = 64
WORKS = ("sum", "cumsum")
#: How many chunks are sent at a time, so that no connection times out.
BATCH = 2_000
#: What is extrapolated to: chunks and workers.
FAR = (1_000_000, 1_000)
#: How often the loop is looked after, in seconds.
TICK = 0.001


def start_watching(dask_scheduler: Any) -> None:
    """Have a scheduler notice how long its loop is held."""
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
    """Return the processor time so far, and the longest that the loop was held since asked last."""
    import time

    held, dask_scheduler.held = dask_scheduler.held, 0.0
    return time.process_time(), held


def tasks(dask_scheduler: Any) -> int:
    """Return how many keys a scheduler knows."""
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


def measure(client: Any, workers: int, count: int, graphs: bool) -> Iterator[Row]:
    """Measure every work on so many chunks."""
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
    # What a first call brings along, such as plugins and imports, is no matter of size.
    collective.check("sum", [at_once("sum")], {"sums": [SIZE * count]})
    for work in WORKS:
        for name, call in by.items():
            before, _ = client.run_on_scheduler(read)
            start = time.perf_counter()
            found = call(work)
            seconds = time.perf_counter() - start
            after, held = client.run_on_scheduler(read)
            last = found[-1] if work == "cumsum" else found
            assert np.asarray(last).item() == SIZE * count
            del found, last
            while client.run_on_scheduler(tasks) > count:
                time.sleep(0.01)
            row = {"work": work, "contender": name, "workers": workers, "chunks": count}
            row |= {"seconds": seconds, "scheduler": after - before, "held": held}
            print(row, flush=True)
            yield row


def run(chunks: Sequence[int], workers: Sequence[int]) -> dict[str, Any]:
    """Measure on clusters of so many workers."""
    import dask
    from distributed import Client, SpecCluster, Worker
    from distributed.deploy.subprocess import SubprocessScheduler

    from ..timers import find_timer, machine_facts

    rows: list[Row] = []
    options = {"nthreads": 1, "memory_limit": 0, "dashboard": False}
    scheduler = {"cls": SubprocessScheduler, "options": {"scheduler_kwargs": {"dashboard": False}}}
    quiet = {
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.limit": "1 hour",
        # All workers begin at the same time, in one thread.
        "distributed.comm.timeouts.connect": "10 minutes",
    }
    for count in workers:
        with (
            dask.config.set(quiet),
            SpecCluster(
                workers={i: {"cls": Worker, "options": options} for i in range(count)},
                scheduler=scheduler,
                silence_logs=50,
            ) as cluster,
            Client(cluster) as client,
        ):
            client.run_on_scheduler(start_watching)
            for each in chunks:
                graphs = count == GRAPH_WORKERS and each <= GRAPH_CHUNKS
                rows += measure(client, count, each, graphs)
    return {"machine": machine_facts(find_timer(True)), "rows": rows}


def line(rows: Sequence[Row], work: str) -> tuple[float, float, float]:
    """Return the scheduler's seconds of a collective: of each call, chunk and worker."""
    used = [r for r in rows if (r["work"], r["contender"]) == (work, collective.COLLECTIVE)]
    # Relative errors count, so that few chunks are heard beside many.
    table = np.array([[1, r["chunks"], r["workers"]] for r in used])
    seconds = np.array([r["scheduler"] for r in used])
    found = np.linalg.lstsq(table / seconds[:, None], np.ones(len(used)), rcond=None)[0]
    call, chunk, worker = (max(float(each), 0.0) for each in found)
    return call, chunk, worker


def figures(found: dict[str, Any]) -> str:
    """Return what the page says of results."""
    rows, machine = found["rows"], found["machine"]
    lines = [
        [
            *(r["work"], r["contender"], f"{r['chunks']:,}", str(r["workers"])),
            *(f"{r['seconds']:.2f}", f"{r['scheduler']:.2f}"),
            *(f"{r['scheduler'] / r['chunks'] * 1e6:.0f}", f"{r['held'] * 1e3:,.0f}"),
        ]
        for r in sorted(rows, key=lambda r: (r["work"], r["contender"], r["chunks"], r["workers"]))
    ]
    head = ["work", "by", "chunks", "workers", "s", "scheduler, s", "us a chunk", "loop held, ms"]
    parts = [
        f"{machine['date']}. {report.versions_of(machine)}. {machine['processors']} processors "
        f"({machine['processor']}).",
        report.table(head, lines),
    ]
    for work in WORKS:
        call, chunk, worker = line(rows, work)
        far = call + chunk * FAR[0] + worker * FAR[1]
        parts.append(
            f"`{work}` by a collective takes the scheduler {call * 1e3:.1f} ms, {chunk * 1e6:.0f} "
            f"us a chunk and {worker * 1e3:.2f} ms a worker; by this line {far:.0f} s for "
            f"{FAR[0]:,} chunks on {FAR[1]:,} workers."
        )
    return "\n\n".join(parts)


def write() -> None:
    """Write the figures into the page, between its marks."""
    node.write(figures(json.loads(RESULTS.read_text())), PAGE)


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--write", action="store_true", help="only write docs/production.md anew")
    given = parser.parse_args()
    if not given.write:
        found = run(given.chunks, given.workers)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(collective.as_text(found["machine"], found["rows"]))
    if given.write or given.out == RESULTS:
        write()


if __name__ == "__main__":
    main()
