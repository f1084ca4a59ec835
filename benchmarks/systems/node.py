"""`dask_coop.Node` beside a LocalCUDACluster: ``python -m benchmarks.systems.node``, on GPUs.

All contenders get the same float32 chunks of 1 GiB, in memory where they were made. A sample is the
time from the call of the function to its result in memory with every GPU synchronised, Dask's own
work included. The time of a *launch* is the device's, between two events around one launch, over
4 GiB a GPU. A time is recorded only after its result has been checked.

``python -m benchmarks.systems.node --write`` makes the figures of docs/node.md from
benchmarks/results/node/*.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from .. import report

Row = dict[str, Any]
Sync = Callable[[], None]

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "node"
PAGE = HERE.parent / "docs" / "node.md"

SAMPLES, ROUNDS = 9, 1000
#: Elements and number of the chunks, and those of a GPU in a launch.
SIZE, CHUNKS, ALONE = 1 << 28, 16, 4
BINS = (256, 16_384)
WORKS = ("cumsum", "sum", *(f"histogram, {bins} bins" for bins in BINS))
DA, PLAIN = "dask.array, LocalCUDACluster", "dask_coop, LocalCUDACluster"
NODE, LAUNCH = "dask_coop.Node", "launch"
FLAGS = "words in peer memory"

#: A kernel that keeps a GPU busy, and for how many nanoseconds.
SPIN = """extern "C" __global__ void spin(long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}"""
SPINNING = 500_000

#: The marks around the figures in the page.
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def chunk(size: int, index: int) -> Any:
    """Return numbers from 0 up to 1, in no order, on the current GPU."""
    import cupy

    words = cupy.arange(size, dtype="u4")
    words = (words + np.uint32(index + 1)) * np.uint32(2_654_435_761)
    return ((words ^ (words >> np.uint32(15))) >> np.uint32(8)).astype("f4") * np.float32(2**-24)


def array(size: int, count: int) -> Any:
    """Return the lazy array of those chunks."""
    import cupy
    import dask.array as da

    def make(size: int, block_info: Any = None) -> Any:
        return chunk(size, block_info[None]["chunk-location"][0])

    meta = cupy.empty(0, "f4")
    return da.map_blocks(make, size, chunks=((size,) * count,), dtype="f4", meta=meta)


def call(module: Any, work: str, x: Any) -> Any:
    """Return the lazy result of `module`'s function."""
    if work == "cumsum":
        return module.cumsum(x, axis=0)
    if work == "sum":
        return module.sum(x)
    return module.histogram(x, int(work.split()[1]), (0.0, 1.0))[0]


def samples(
    lazy: Callable[[], Any], wait: Callable[[Any], None], forget: Callable[[], None]
) -> list[float]:
    """Return the milliseconds from the call to the result, after some calls that do not count.

    A result has the name of the one before; `forget` waits until that is gone.
    """
    times = []
    for _ in range(SAMPLES + 3):
        start = perf_counter()
        result = lazy().persist()
        wait(result)
        times.append((perf_counter() - start) * 1e3)
        del result
        forget()
    return times[3:]


def truths(size: int, count: int) -> dict[str, Any]:
    """Return the right results, computed from the chunks themselves."""
    import cupy

    found: dict[str, Any] = {"sums": [], **{work: 0 for work in WORKS[2:]}}
    for index in range(count):
        x = chunk(size, index)
        found["sums"].append(float(x.sum(dtype="f8")))
        for work, bins in zip(WORKS[2:], BINS, strict=True):
            # The edges are multiples of powers of two, so that this is exact.
            found[work] += cupy.asnumpy(cupy.bincount((x * bins).astype("i4"), minlength=bins))
    return found


def check(work: str, result: Any, truth: dict[str, Any]) -> None:
    """Raise unless a result, as blocks on the host, is right."""
    if work == "cumsum":
        # The last element of each chunk.
        np.testing.assert_allclose(result, np.cumsum(truth["sums"]), rtol=1e-6)
    elif work == "sum":
        np.testing.assert_allclose(float(result), sum(truth["sums"]), rtol=1e-6)
    else:
        np.testing.assert_array_equal(result, truth[work])


def ends(x: Any) -> Any:
    """Return the last element of each chunk."""
    import cupy

    meta = cupy.empty(0, "f8")
    return x.map_blocks(lambda c: c[-1:].astype("f8"), chunks=((1,) * x.npartitions,), meta=meta)


def to_host(work: str, result: Any) -> Any:
    """Return a result in the form that `check` expects."""
    import cupy

    return cupy.asnumpy((ends(result) if work == "cumsum" else result).compute())


def on_cluster(gpus: int, size: int, count: int, truth: dict[str, Any]) -> Iterator[Row]:
    """Time dask.array and the plain graph of this library on a cluster with a worker a GPU."""
    import dask.array as da
    from dask_cuda import LocalCUDACluster
    from distributed import Client, wait

    import dask_coop

    devices = list(range(gpus))
    with (
        LocalCUDACluster(CUDA_VISIBLE_DEVICES=devices, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(dask_coop.CoopPlugin(["float32"]))
        x = array(size, count).persist()
        wait(x)

        def done(result: Any) -> None:
            wait(result)
            client.run(_synchronise)

        def forget() -> None:
            while client.run_on_scheduler(_count_tasks) > count:
                sleep(0.001)

        for work in WORKS:
            for name, module in ((DA, da), (PLAIN, dask_coop)):
                try:
                    check(work, to_host(work, call(module, work, x).persist()), truth)
                    forget()
                    times = samples(partial(call, module, work, x), done, forget)
                except Exception as error:  # a peer may fail
                    yield _row(work, name, gpus, note=f"{type(error).__name__}: {error}"[:200])
                    continue
                yield _row(work, name, gpus, times)


def _count_tasks(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def _synchronise() -> None:
    import cupy

    cupy.cuda.Device().synchronize()


def on_node(gpus: int, size: int, count: int, truth: dict[str, Any]) -> Iterator[Row]:
    """Time this library on the node."""
    import dask_coop

    def done(result: Any) -> None:
        _synchronise_all(gpus)

    with dask_coop.Node(range(gpus)) as node:
        x = array(size, count).persist()
        for work in WORKS:
            check(work, to_host(work, call(dask_coop, work, x).persist()), truth)
            times = samples(partial(call, dask_coop, work, x), done, lambda: None)
            said = str(node.explain())
            yield _row(work, NODE, gpus, times, explain=said)


def _synchronise_all(gpus: int) -> None:
    import cupy

    for ordinal in range(gpus):
        cupy.cuda.Device(ordinal).synchronize()


def launches(gpus: int, size: int) -> Iterator[Row]:
    """Time the launches alone, over `ALONE` chunks a GPU."""
    import cupy

    from dask_coop.algebra.bins import Grid, find_bins
    from dask_coop.algebra.monoids import COUNTS, SUM
    from dask_coop.algebra.operation import bind
    from dask_coop.algebra.scan_spec import ScanSpec
    from dask_coop.chunks.cupy import multichunk
    from dask_coop.cuda import team as teams

    team = teams.Team(range(gpus), 30.0)
    xs = []
    for index in range(ALONE * gpus):
        with cupy.cuda.Device(index // ALONE):
            xs.append(chunk(size, index))
    _synchronise_all(gpus)
    dtype = np.dtype("f4")
    op = bind(SUM, dtype, dtype, "sum")
    works: dict[str, Callable[[], Any]] = {
        "cumsum": lambda: multichunk.scan(team, op, xs, [True] * len(xs), ScanSpec(0)),
        "sum": lambda: multichunk.reduce(team, op, xs, None),
    }
    counts = bind(COUNTS, np.dtype("i8"), np.dtype("i8"), "histogram")
    for work, bins in zip(WORKS[2:], BINS, strict=True):
        grid = Grid((find_bins(bins, (0.0, 1.0), dtype),))
        works[work] = partial(multichunk.histogram, team, counts, xs, grid)
    for work, run in works.items():
        with _timed(teams) as times:
            for _ in range(SAMPLES + 3):
                run()
        yield _row(work, LAUNCH, gpus, times[3:])


def barriers_in_a_row() -> str:
    """Return a program of barriers, which counts them and the words that they did not order.

    At each barrier, a GPU publishes its number into the `words` of every GPU, one for each of them
    and zero before, and every block then reads it. The blocks add to out[0] the barriers that held,
    and to out[1] the words that were out of date.
    """
    from dask_coop.cuda.programs.reduce import BLOCKS, THREADS

    return f"""#include "barrier.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS}, {BLOCKS})
entry(unsigned rounds, unsigned* const* words, u64* out, const __grid_constant__ Peers peers,
      unsigned epoch) {{
  u64 held = 0, behind = 0;
  for (unsigned round = 1; round <= rounds; ++round) {{
    bool in_time = peer_barrier(peers, epoch + round, [&] {{
      if (threadIdx.x < peers.count) words[threadIdx.x][peers.rank] = round;
    }});
    if (!in_time) break;
    ++held;
    if (threadIdx.x < peers.count) behind += words[peers.rank][threadIdx.x] < round;
  }}
  if (threadIdx.x == 0) atomicAdd(out, held);
  if (behind) atomicAdd(out + 1, behind);
}}
"""


def barriers(gpus: int) -> Row:
    """Time a barrier, from many in a row with a block a multiprocessor."""
    import cupy

    from dask_coop.cuda import team as teams
    from dask_coop.cuda.devices import device
    from dask_coop.cuda.programs.reduce import THREADS

    ordinals = range(gpus)
    words, outs, lists = [], [], []
    for ordinal in ordinals:
        with cupy.cuda.Device(ordinal):
            words.append(cupy.zeros(gpus, "u4"))
            outs.append(cupy.zeros(2, "u8"))
    for ordinal in ordinals:
        with cupy.cuda.Device(ordinal):
            lists.append(cupy.asarray(np.array([array.data.ptr for array in words], "u8")))

    def arguments(rounds: int, rank: int, peers: Any, epoch: Any) -> list[Any]:
        addresses = np.uint64(lists[rank].data.ptr), np.uint64(outs[rank].data.ptr)
        return [np.uint32(rounds), *addresses, peers, epoch]

    size, what = (device(0).processors, THREADS, 0, ordinals), "barriers in a row"
    times: dict[int, list[float]] = {}
    for rounds in (0, ROUNDS) * SAMPLES:
        # The numbers of a team's launches would not continue those of so many barriers.
        team = teams.Team(ordinals, 30.0)
        for array in words:
            with array.device:
                array.fill(0)
        with _timed(teams) as taken:
            team.launch(barriers_in_a_row(), *size, partial(arguments, rounds), what)
        times.setdefault(rounds, []).extend(taken)
    empty = statistics.median(times[0])
    each = [(ms - empty) / ROUNDS for ms in times[ROUNDS]]
    return _row("barrier", FLAGS, gpus, each)


@contextmanager
def _timed(teams: Any) -> Iterator[list[float]]:
    """Collect the milliseconds between events around every launch, on the stream of rank 0.

    The launch is queued while a kernel keeps every GPU busy, that of rank 0 for longest.
    """
    import cupy

    spin = cupy.RawKernel(SPIN, "spin")
    original = teams.launch_on_all
    times: list[float] = []
    pairs: list[tuple[Any, Any]] = []

    def launch(source: str, blocks: int, threads: int, *where: Any) -> None:
        ordinals, streams = where[:2]
        for ordinal, address in list(zip(ordinals, streams, strict=True))[::-1]:
            with cupy.cuda.Device(ordinal), cupy.cuda.ExternalStream(address):
                spin((1,), (1,), (np.int64(SPINNING),))
        with cupy.cuda.Device(ordinals[0]):
            stream = cupy.cuda.ExternalStream(streams[0])
            before, after = (cupy.cuda.Event() for _ in range(2))
            before.record(stream)
            original(source, blocks, threads, *where)
            after.record(stream)
        pairs.append((before, after))

    teams.launch_on_all = launch
    try:
        yield times
    finally:
        teams.launch_on_all = original
        for before, after in pairs:
            after.synchronize()
            times.append(cupy.cuda.get_elapsed_time(before, after))


def _row(
    work: str, contender: str, gpus: int, times: list[float] | None = None, **more: Any
) -> Row:
    row = {"work": work, "contender": contender, "gpus": gpus, **more}
    if times is not None:
        row |= {"ms": statistics.median(times), "samples": [round(ms, 6) for ms in times]}
    shown = f"{row['ms']:8.4g} ms" if "ms" in row else row.get("note")
    print(f"{gpus} GPUs  {work:22} {contender:30} {shown}", flush=True)
    return row


def run(out: Path, size: int = SIZE, count: int = CHUNKS) -> Path:
    """Measure on all GPUs of this machine, and write a file of results into `out`."""
    import cupy

    from ..timers import find_timer, machine_facts

    gpus = cupy.cuda.runtime.getDeviceCount()
    rows: list[Row] = []
    for some in sorted({1, 2, gpus}):
        rows += launches(some, size)
        rows += [barriers(some)] if some > 1 else []
    cupy.get_default_memory_pool().free_all_blocks()
    truth = truths(size, count)
    for some in sorted({2, gpus}):
        rows += on_node(some, size, count, truth)
        for ordinal in range(gpus):
            with cupy.cuda.Device(ordinal):
                cupy.get_default_memory_pool().free_all_blocks()
        rows += on_cluster(some, size, count, truth)
    machine = machine_facts(find_timer(False)) | {"gpus": gpus, "size": size, "chunks": count}
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{gpus}-gpus-cuda-{machine['versions']['CUDA runtime']}.json"
    path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    return path


def figures(folder: Path) -> str:
    """Return the figures of docs/node.md for the results in `folder`."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text())
        machine, rows = results["machine"], results["rows"]
        times = {(r["work"], r["contender"], r["gpus"]): r.get("ms") for r in rows}
        most = machine["gpus"]
        versions = report.versions_of(machine)
        parts.append(
            f"{machine['gpus']} x {machine['gpu']['name']}, {machine['date']}. {versions}. "
            f"{machine['chunks']} chunks of {machine['size'] * 4 / 2**30:g} GiB of float32; "
            f"medians of {SAMPLES} calls, in milliseconds from the call to the result with "
            "every GPU synchronised."
        )
        names = (DA, PLAIN, NODE)
        table = [[work, *(_shown(times[work, name, most]) for name in names)] for work in WORKS]
        parts.append(report.table(["work", *names], table))
        counts = sorted({r["gpus"] for r in rows if r["contender"] == LAUNCH})
        head = ["one launch", *(f"{n} GPU{'s' * (n > 1)}" for n in counts)]
        table = [[work, *(_shown(times[work, LAUNCH, n]) for n in counts)] for work in WORKS]
        parts.append(f"The launch alone, over {ALONE} such chunks on every GPU.{_floor(machine)}")
        parts.append(report.table(head, table))
        for r in rows:
            if r["work"] == "barrier" and "ms" in r:
                parts.append(
                    f"A barrier of {r['gpus']} GPUs by {r['contender']}: {1e3 * r['ms']:.1f} us."
                )
    return "\n\n".join(parts)


def _floor(machine: dict[str, Any]) -> str:
    """Return a sentence on the time for a launch's bytes, at the GPU's rates measured alone."""
    for path in sorted(RESULTS.parent.glob("*.json")):
        results = json.loads(path.read_text())
        gpu = results["machine"]["gpu"]
        if gpu and gpu["name"] == machine["gpu"]["name"]:
            rates = results["ceilings"]
            nbytes = ALONE * machine["size"] * 4
            read, copy = (
                nbytes * times * rates[what]["ms"] / rates[what]["bytes"]
                for what, times in (("read", 1), ("copy", 2))
            )
            return (
                f" At the rates of that GPU's memory, reading them takes {read:.2f} ms, and "
                f"reading and then copying them {read + copy:.2f} ms."
            )
    return ""


def _shown(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.2f}"


def write(told: str, page: Path) -> None:
    """Write figures into a page, between its marks."""
    text = page.read_text()
    before, marked = text.split(BEGIN)
    after = marked.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{told}\n{END}{after}")


def holds(told: str, page: Path) -> bool:
    """Return whether a page has these figures."""
    return f"{BEGIN}\n{told}\n{END}" in page.read_text()


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--size", type=int, default=SIZE, help="elements of a chunk")
    parser.add_argument("--write", action="store_true", help="only write docs/node.md anew")
    options = parser.parse_args()
    if not options.write:
        print(run(options.out, options.size))
    if options.write or options.out == RESULTS:
        write(figures(RESULTS), PAGE)


if __name__ == "__main__":
    main()
