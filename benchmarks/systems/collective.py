"""The three ways beside dask.array: ``python -m benchmarks.systems.collective``; --cpu: no GPU.

The same array is in memory in 16, 32, 64 and 128 chunks, first on the workers of a cluster, one for
each GPU, then on the GPUs of a `dask_coop.Node`. A sample is the time from the call of the function
to its result: values on the host for the collective, arrays in memory for the others, with every
GPU synchronised. A time is recorded only after its result has been checked.

``python -m benchmarks.systems.collective --write`` makes the figures of docs/collective.md from
benchmarks/results/collective/*.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from .. import report
from . import node

Row = dict[str, Any]

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "collective"
PAGE = HERE.parent / "docs" / "collective.md"

SAMPLES, FEW = 15, 5
#: The number of elements, and the numbers of chunks.
SIZE, CPU_SIZE, COUNTS = 1 << 32, 1 << 17, (16, 32, 64, 128)
BINS = (256, 16_384)
WORKS = ("cumsum", "sum", "min", "describe", *(f"histogram, {bins} bins" for bins in BINS))
DA, PLAIN, COLLECTIVE = "dask.array", 'engine="auto"', 'engine="collective"'
NODE = "dask_coop.Node"
#: The contenders, and the colours and markers of their lines.
CONTENDERS = {
    DA: ("#6a994e", "^"),
    PLAIN: ("#8d6a9f", "D"),
    COLLECTIVE: ("#c8553d", "o"),
    NODE: ("#2f6f9f", "s"),
}


def call(module: Any, work: str, x: Any, **engine: str) -> list[Any]:
    """Return the results of `module`'s function."""
    if work == "cumsum":
        return [module.cumsum(x, axis=0, **engine)]
    if work in ("sum", "min"):
        return [getattr(module, work)(x, **engine)]
    if work == "describe":
        if not hasattr(module, "describe"):
            return [
                getattr(module, name)(x) for name in ("min", "max", "sum", "mean", "var", "std")
            ]
        return list(module.describe(x, **engine))
    return [module.histogram(x, int(work.split()[1]), (0.0, 1.0), **engine)[0]]


def check(work: str, results: Sequence[Any], truth: dict[str, Any]) -> None:
    """Raise unless results on the host are right; for a scan these are the ends of the chunks."""
    close = partial(np.testing.assert_allclose, rtol=1e-5)
    if work == "cumsum":
        close(results[0], np.cumsum(truth["sums"]))
    elif work == "sum":
        close(results[0], sum(truth["sums"]))
    elif work == "min":
        close(results[0], truth["min"])
    elif work == "describe":
        # dask.array lacks the first two, which are counts.
        low, _, total, *_ = results[-6:]
        close([low, total], [truth["min"], sum(truth["sums"])])
    else:
        np.testing.assert_array_equal(results[0], truth[work])


def truths(xp: Any, blocks: Iterator[Any]) -> dict[str, Any]:
    """Return the right results, computed from the chunks themselves."""
    found: dict[str, Any] = {"sums": [], "min": math.inf, **dict.fromkeys(WORKS[4:], 0)}
    for x in blocks:
        found["sums"].append(float(x.sum(dtype="f8")))
        found["min"] = min(found["min"], float(x.min()))
        for work, bins in zip(WORKS[4:], BINS, strict=True):
            # The edges are multiples of powers of two, so that this is exact.
            table = xp.bincount((x * bins).astype("i4"), minlength=bins)
            found[work] = found[work] + (table if xp is np else xp.asnumpy(table))
    return found


def to_host(work: str, results: Sequence[Any]) -> list[Any]:
    """Return results in the form that `check` expects."""
    import dask

    if work == "cumsum":
        (x,) = results
        like = np.empty(0, "f8")
        return [x.map_blocks(_end, chunks=((1,) * x.npartitions,), dtype="f8", meta=like).compute()]
    return [_host(value) for value in dask.compute(*results)]


def _end(x: Any) -> Any:
    return _host(x[-1:]).astype("f8")


def _host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x


def samples(run: Callable[[], Any], most: int, forget: Callable[[], None]) -> list[float]:
    """Return the milliseconds from the call to the result, after two calls that do not count.

    A result may have the name of the one before; `forget` waits until that is gone.
    """
    times = []
    for _ in range(most + 2):
        start = perf_counter()
        result = run()
        times.append((perf_counter() - start) * 1e3)
        del result
        forget()
    return times[2:]


def on_cluster(client: Any, sync: Any, xp: Any, size: int, count: int) -> Iterator[Row]:
    """Time dask.array, the plain graph and the collective on a cluster."""
    import dask
    import dask.array as da
    from distributed import wait

    import dask_coop

    def lazy(module: Any, work: str) -> Any:
        results = dask.persist(*call(module, work, x))
        wait(results)
        sync()
        return results

    def at_once(work: str) -> Any:
        return call(dask_coop, work, x, engine="collective")

    def forget() -> None:
        while (
            max(client.run_on_scheduler(node._count_tasks), sum(client.run(_count_data).values()))
            > count
        ):
            sleep(0.001)

    workers = len(client.nthreads())
    x = spread(client, xp, size // count, count)
    wait(x)
    truth = truths(xp, (chunk(xp, size // count, i) for i in range(count)))
    _free()
    for work in WORKS:
        for name, run, most in (
            (DA, partial(lazy, da, work), FEW),
            (PLAIN, partial(lazy, dask_coop, work), FEW),
            (COLLECTIVE, partial(at_once, work), SAMPLES),
        ):
            try:
                check(work, to_host(work, run()), truth)
                forget()
                times = samples(run, most, forget)
            except Exception as error:  # a peer may fail
                note = f"{type(error).__name__}: {error}"[:200]
                yield row(work, name, workers, count, note=note)
                continue
            yield row(work, name, workers, count, times)


def on_node(gpus: int, xp: Any, size: int) -> Iterator[Row]:
    """Time the functions on a node."""
    import dask

    import dask_coop

    def run(work: str, x: Any) -> Any:
        results = dask.persist(*call(dask_coop, work, x))
        node._synchronise_all(gpus)
        return results

    with dask_coop.Node(range(gpus)):
        for count in COUNTS:
            x = array(xp, size // count, count).persist()
            truth = truths(xp, (chunk(xp, size // count, i) for i in range(count)))
            for work in WORKS:
                check(work, to_host(work, run(work, x)), truth)
                times = samples(partial(run, work, x), SAMPLES, lambda: None)
                yield row(work, NODE, gpus, count, times)
            del x


def chunk(xp: Any, size: int, index: int) -> Any:
    """Return numbers from 0 up to 1, in no order."""
    if xp is not np:
        return node.chunk(size, index)
    return np.random.default_rng(index).random(size, "f4")


def array(xp: Any, size: int, count: int) -> Any:
    """Return the lazy array of those chunks."""
    if xp is not np:
        return node.array(size, count)
    import dask.array as da

    def make(size: int, block_info: Any = None) -> Any:
        return chunk(np, size, block_info[None]["chunk-location"][0])

    return da.map_blocks(make, size, chunks=((size,) * count,), dtype="f4", meta=np.empty(0, "f4"))


def spread(client: Any, xp: Any, size: int, count: int) -> Any:
    """Return the array in memory, with the same number of neighbouring chunks on every worker."""
    from dask.array import Array
    from dask.highlevelgraph import HighLevelGraph

    workers = sorted(client.nthreads())
    layer = {}
    for i in range(count):
        on = workers[i * len(workers) // count]
        key = f"chunk-{count}-{i}"
        layer["x", i] = client.submit(chunk, xp, size, i, key=key, workers=[on], pure=False)
    graph = HighLevelGraph.from_collections("x", layer)
    return Array(graph, "x", ((size,) * count,), meta=xp.empty(0, "f4"))


def _free() -> None:
    import sys

    if cupy := sys.modules.get("cupy"):
        cupy.get_default_memory_pool().free_all_blocks()


def _count_data(dask_worker: Any) -> int:
    return len(dask_worker.data)


def row(
    work: str,
    contender: str,
    workers: int,
    chunks: int,
    times: list[float] | None = None,
    **more: Any,
) -> Row:
    """Return a row of the results, and print it."""
    made = {"work": work, "contender": contender, "workers": workers, "chunks": chunks, **more}
    if times is not None:
        made |= {"ms": statistics.median(times), "samples": [round(ms, 4) for ms in times]}
    shown = f"{made['ms']:8.4g} ms" if "ms" in made else made.get("note")
    print(f"{workers} workers {chunks:4} chunks  {work:22} {contender:22} {shown}", flush=True)
    return made


def measure_gpus(size: int) -> tuple[dict[str, Any], list[Row]]:
    """Measure on 2 GPUs and on all."""
    import cupy
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    import dask_coop

    from ..timers import find_timer, machine_facts

    gpus = cupy.cuda.runtime.getDeviceCount()
    rows: list[Row] = []
    for some in sorted({2, gpus}):
        devices = list(range(some))
        with (
            LocalCUDACluster(CUDA_VISIBLE_DEVICES=devices, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            client.register_plugin(dask_coop.CoopPlugin(["float32"]))
            sync = partial(client.run, node._synchronise)
            for count in COUNTS:
                rows += on_cluster(client, sync, cupy, size, count)
        rows += on_node(some, cupy, size)
        for ordinal in devices:
            with cupy.cuda.Device(ordinal):
                cupy.get_default_memory_pool().free_all_blocks()
    return machine_facts(find_timer(False)) | {"workers": gpus}, rows


def measure_cpu(size: int) -> tuple[dict[str, Any], list[Row]]:
    """Measure on a cluster of two processes."""
    from distributed import Client, LocalCluster

    from ..timers import find_timer, machine_facts

    rows: list[Row] = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for count in COUNTS:
            rows += on_cluster(client, lambda: None, np, size, count)
    return machine_facts(find_timer(True)) | {"workers": 2}, rows


def run(out: Path, cpu: bool, size: int) -> Path:
    """Measure, and write a file of results into `out`."""
    machine, rows = (measure_cpu if cpu else measure_gpus)(size)
    out.mkdir(parents=True, exist_ok=True)
    on = "2-processes" if cpu else f"{machine['workers']}-gpus"
    path = out / f"{on}.json"
    path.write_text(as_text(machine | {"size": size}, rows))
    return path


def keep(machine: dict[str, Any], rows: Iterable[Row], target: Path) -> None:
    """Print results as they come, and write them to a file each time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    kept: list[Row] = []
    for row in rows:
        print(row, flush=True)
        kept.append(row)
        target.write_text(as_text(machine, kept))


def as_text(machine: dict[str, Any], rows: list[Row]) -> str:
    """Return the results as JSON, one row a line."""
    lines = ",\n".join(map(json.dumps, rows))
    return f'{{"machine": {json.dumps(machine)},\n"rows": [\n{lines}\n]}}\n'


def figures(folder: Path, start: Path) -> str:
    """Return the figures of the page in the folder `start` for the results in `folder`."""
    parts = []
    found_in = {path: json.loads(path.read_text()) for path in folder.glob("*.json")}
    # The last run of each kind: on GPUs, and without.
    for path in {
        bool(found_in[path]["machine"]["gpu"]): path for path in sorted(found_in)
    }.values():
        found = found_in[path]
        machine, rows = found["machine"], found["rows"]
        versions = report.versions_of(machine)
        gpu = machine["gpu"]
        where = f"{machine['workers']} x {gpu['name']}" if gpu else "Two processes on two cores"
        parts += [
            f"### {where} ({path.stem})",
            f"{machine['date']}. {versions}. {machine['size'] * 4 / 2**20:,g} MiB of float32, as "
            f"many chunks on each worker; medians of {SAMPLES} calls, of {FEW} on graphs, in "
            "milliseconds from the call to the result"
            + (" with every GPU synchronised." if gpu else "."),
            few(rows),
            f"![Time against the number of chunks]({relative(path.with_suffix('.svg'), start)})",
            f"[{path.name}]({relative(path, start)}) has all numbers of chunks and workers.",
        ]
    return "\n\n".join(parts)


def relative(path: Path, start: Path) -> str:
    """Return the relative path of a file from a folder."""
    return os.path.relpath(path, start)


def few(rows: list[Row]) -> str:
    """Return the times for the most workers and chunks."""
    workers, chunks = (max(r[what] for r in rows) for what in ("workers", "chunks"))
    times = {(r["work"], r["contender"], r["workers"], r["chunks"]): r.get("ms") for r in rows}
    names = [name for name in CONTENDERS if any(r["contender"] == name for r in rows)]
    lines = []
    for work in WORKS:
        each = [times.get((work, name, workers, chunks)) for name in names]
        lines.append([work, *map(_shown, each)])
    return report.table([f"{chunks} chunks", *names], lines)


def _shown(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.1f}"


def draw(path: Path) -> Path:
    """Draw time against the number of chunks, beside the results at `path`."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = json.loads(path.read_text())["rows"]
    most = max(r["workers"] for r in rows)
    figure = Figure(figsize=(10, 6), layout="constrained")
    figure.suptitle("Milliseconds from the call to the result against the number of chunks")
    # The same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "dask_coop", "svg.fonttype": "none"}):
        for axes, work in zip(figure.subplots(2, 3, sharex=True).flat, WORKS, strict=True):
            for name, (color, marker) in CONTENDERS.items():
                points = sorted(
                    (r["chunks"], r["ms"])
                    for r in rows
                    if (r["work"], r["contender"], r["workers"]) == (work, name, most) and "ms" in r
                )
                if points:
                    axes.plot(*zip(*points, strict=True), marker=marker, color=color, label=name)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(work)
            axes.grid(alpha=0.3)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        target = path.with_suffix(".svg")
        figure.savefig(target, metadata={"Date": None})
    return target


def write(page: Path = PAGE, folder: Path = RESULTS) -> None:
    """Draw the plots, and write the figures into the page, between its marks."""
    for path in folder.glob("*.json"):
        draw(path)
    node.write(figures(folder, page.parent), page)


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--cpu", action="store_true", help="NumPy chunks, on two processes")
    parser.add_argument("--size", type=int, help="elements in all")
    parser.add_argument("--write", action="store_true", help="only write docs/collective.md anew")
    options = parser.parse_args()
    if not options.write:
        print(run(options.out, options.cpu, options.size or (CPU_SIZE if options.cpu else SIZE)))
    if options.write or options.out == RESULTS:
        write()


if __name__ == "__main__":
    main()
