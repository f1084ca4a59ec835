"""Run a list of cases, with copies and every kind of kernel, under compute-sanitizer's tools.

==================== ============================================================================
SANITIZE_PROCESSES   number of processes that share the GPUs at a time, each with at most 1 GiB of
                     arrays: by default up to 5
SANITIZE_REPORT      a file for the outcome, which `tools/gpu_run.py --add` reads
==================== ============================================================================
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any
from unittest.mock import patch

import dask.array as da
import numpy as np

import dask_coop
from dask_coop.algebra import monoids, strategies
from dask_coop.algebra.bins import Grid, find_bins
from dask_coop.algebra.operation import Operation, bind
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.labels import Coder, Values

REPOSITORY = Path(__file__).parents[1]

# A host's backtrace keeps the frames of every launch in Python, and the arrays in them.
_QUIET = ("--show-backtrace", "device")
# cuda-bindings looks up functions that an old driver lacks: not an error of ours. Errors of
# launches are raised in Python.
TOOLS = {
    "memcheck": (*_QUIET, "--report-api-errors", "no"),
    "racecheck": _QUIET,
    "synccheck": _QUIET,
    "initcheck": _QUIET,
}

#: The most bytes that a process allocates on a GPU, and the most states of groups in a case.
MOST_BYTES, MOST_STATES = 1 << 30, 1 << 23

#: Random cases of each family of tests/fuzz.
RANDOM = 3

# Lines for a thread, a few, a warp and a block, and one that several blocks share; the same with
# few or many other lines beside them, and with so many that a thread reads whole lines.
ROWS = ((2000, 5), (300, 100), (40, 3000), (3, 20_004), (5,), (100_003,))
COLUMNS = ((100_003, 3), (300, 257), (7, 5000), (5, 700, 9), (2, 2000, 64), (2, 1 << 21))

# The same for scans, as (outer, n, inner).
LINES = (
    *((300, 100, 1), (40, 3000, 1), (3, 20_004, 1), (1, 100_003, 1)),
    *((300, 7, 41), (2, 1000, 37), (1, 1501, 4224)),
)

GROUPED = ((70_003,), (3, 30_011), (30_011, 3), (700, 90), (90, 700), (3, 200, 70))
GROUPS = (3, 300, 20_000, 400_000)

MATMULS = (
    ("f4", "plus_times"),
    ("f8", "min_plus"),
    ("i4", "max_plus"),
    ("i8", "max_min"),
    ("i1", "plus_times"),
    ("i4", "plus_times"),
    ("?", "or_and"),
)

_F4 = np.dtype("f4")


def kinds(source: str) -> set[str]:
    """Return the functions of kernels/ that a program consists of."""
    body = source[source.index("entry(") :]
    return set(re.findall(r"^ +(\w+)(?:<[^;()]*>)?\(", body[body.index("{\n") :], re.MULTILINE))


def every_strategy(family: strategies.Family, call: Callable[[str], Any]) -> None:
    """Call with "auto" and with each strategy of a family that applies."""
    call(strategies.AUTO)
    for strategy in family:
        # Strategies that do not fit this GPU, dtype or shape raise.
        with suppress(ValueError):
            call(strategy)


def on_gpu(name: str) -> Any:
    """Return a module of CuPy chunks; the package has functions of the same names."""
    return import_module(f"dask_coop.chunks.cupy.{name}")


def sums() -> dict[str, Operation]:
    """Return sums of two dtypes."""
    dtypes = {name: np.dtype(name) for name in ("f4", "i4")}
    return {name: bind(monoids.SUM, dtype, dtype, "cases") for name, dtype in dtypes.items()}


def compute(*results: Any) -> None:
    """Compute lazy results one after the other."""
    for result in results:
        result.compute(scheduler="synchronous")


# The parts: each is a separate process, and takes CuPy and random numbers.


def reductions(cupy: Any, rng: np.random.Generator) -> None:
    """Reduce lines of any length."""
    backend = on_gpu("backend")
    for shape in ROWS + COLUMNS:
        x = cupy.asarray(rng.random(shape, dtype="f4"))
        for axis in (*range(x.ndim), None):
            axes = tuple(range(x.ndim)) if axis is None else (axis,)
            # States of ARGMAX have bytes between their fields.
            for monoid in (
                *(monoids.SUM, monoids.MINMAX, monoids.MOMENTS, monoids.REPRODUCIBLE_SUM),
                monoids.ARGMAX,
            ):
                backend.lift(bind(monoid, _F4, _F4, "cases"), x, axes)


def scans(cupy: Any, rng: np.random.Generator) -> None:
    """Scan lines of any length."""
    scan = on_gpu("scan")
    for shape in LINES:
        for name, op in sums().items():
            x = cupy.asarray(rng.integers(0, 99, shape).astype(name))
            (state,) = op.monoid.dtypes(op.element)
            for base in (None, cupy.ones(shape[::2], state)):
                y = cupy.empty_like(x)

                def lines(
                    name: str, op: Any = op, x: Any = x, y: Any = y, base: Any = base
                ) -> None:
                    scan.scan_lines(op.by(name), x, y, base, x.shape)

                every_strategy(strategies.SCAN, lines)
                heads = cupy.asarray(rng.random(shape) < 0.01)
                scan.scan_lines(op, x, y, base, shape, segments=heads)


def ordered(cupy: Any, rng: np.random.Generator) -> None:
    """Reduce and scan in the order of elements, as states of two fields."""
    scan, backend = on_gpu("scan"), on_gpu("backend")
    affine = dask_coop.Monoid(
        "affine",
        lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
        (1, 0),
        "f8,f8",
        lift=lambda x: (x, x),
        finalize=lambda f: f[1],
        cuda={"lift": "{x, x}", "combine": "{a.f0 * b.f0, b.f0 * a.f1 + b.f1}"},
    )
    op = Operation(affine, _F4, affine.result)
    for shape in LINES:
        x = cupy.asarray(rng.random(shape, dtype="f4"))
        backend.lift(op, x, (1,))
        y = cupy.empty(16 * x.size, "u1")

        def lines(name: str, x: Any = x, y: Any = y) -> None:
            scan.scan_lines(op.by(name), x, y, None, x.shape)

        every_strategy(strategies.SCAN, lines)


def histograms(cupy: Any, rng: np.random.Generator) -> None:
    """Count samples, and distinct elements."""
    histogram, unique = on_gpu("histogram_strategies"), on_gpu("unique")
    for name in ("f4", "i4", "u1"):
        x = cupy.asarray(rng.integers(0, 200_000, 100_003).astype(name))
        for n in (10, 60_000, 131_072, 300_000)[: 1 if name == "u1" else None]:
            bins = find_bins(n, (0, 200_000), x.dtype)
            for kind in (None, "f8", "i8"):
                weights = kind and cupy.ones(x.shape, kind)
                table = cupy.zeros(n, kind or "i8")
                every_strategy(
                    strategies.HISTOGRAM, partial(histogram.count, x, weights, bins, table)
                )
    # As if there were more weights than the search for the largest reads.
    x, weights = (cupy.asarray(rng.random(100_003)) for _ in range(2))
    bins, table = find_bins(10, (0, 1), x.dtype), cupy.zeros(10, "f8")
    with patch.object(histogram, "_LOOKED_AT", 5000):
        every_strategy(strategies.HISTOGRAM, partial(histogram.count, x, weights, bins, table))
    for name in ("i4", "f8"):
        # So many bins fit one table, and the tables of buckets.
        for few in (10, 15_000):
            x = cupy.asarray(rng.integers(0, few, 200_003).astype(name))
            assert unique.count_distinct(x) is not None


def lookups(cupy: Any, rng: np.random.Generator) -> None:
    """Find bins, count by lines, reduce and scan with masks."""
    for name in ("f4", "i8"):
        x = cupy.asarray(rng.integers(0, 100, (33, 1001)).astype(name))
        lazy = da.from_array(x, chunks=(20, 600), asarray=False)
        compute(
            dask_coop.digitize(lazy, [10, 20, 77], right=True),
            dask_coop.histogram(lazy, 7, (3, 90), axis=0, flow=True)[0],
            dask_coop.histogram2d(lazy.ravel(), lazy.ravel(), 9)[0],
            dask_coop.sum(lazy, axis=1, where=lazy > 50),
            dask_coop.var(lazy, axis=0, where=lazy > 50),
            dask_coop.cumsum(lazy, axis=1, segments=lazy > 98, reverse=True),
        )


def orders(cupy: Any, rng: np.random.Generator) -> None:
    """Find elements by their ranks, and by masks."""
    backend = on_gpu("backend")
    for name in ("f4", "i8"):
        for shape in ((50, 300), (500, 60), (5000, 7), (100_003, 2)):
            x = cupy.asarray(rng.integers(0, 9999, shape).astype(name))
            backend.order_statistics(x, (0,), np.zeros((x.shape[0] + 1, 2), "i8"))
        x = cupy.asarray(rng.integers(0, 9999, 300_003).astype(name))
        lazy = da.from_array(x, chunks=200_001, asarray=False)
        compute(
            dask_coop.quantile(lazy, [0.1, 0.5, 0.9]),
            dask_coop.topk(lazy, 20),
            dask_coop.select(lazy, lazy > 5000),
            dask_coop.flatnonzero(lazy > 9000),
        )


def group_cases() -> Iterator[tuple[tuple[int, ...], bool, int]]:
    """Yield shapes, whether they are transposed, and numbers of groups along the last axis."""
    for shape, transposed, n in product(GROUPED, (False, True), GROUPS):
        lines = math.prod(shape[1:] if transposed else shape[:-1])
        if lines * n <= MOST_STATES and (len(shape) > 1 or not transposed):
            yield shape, transposed, n


def groups(cupy: Any, rng: np.random.Generator) -> None:
    """Reduce few groups and many."""
    backend = on_gpu("backend")
    rows = [monoids.SUM, monoids.MEAN, monoids.VAR, monoids.MAX, monoids.ARGMAX]
    for name, (shape, transposed, n) in product(("f4", "f8", "i4"), group_cases()):
        dtype = np.dtype(name)
        ops = [bind(row, dtype, row.output(dtype), "cases") for row in rows]
        x = cupy.asarray(rng.integers(0, 99, shape).astype(name))
        x = x.T if transposed else x
        codes = cupy.asarray(rng.integers(-1, n, x.shape[-1]))
        ops += [replace(ops[i], skipna=True) for i in (0, 2)]
        count = bind(monoids.COUNT, dtype, np.dtype("i8"), "cases")
        for some in (ops, [ops[0], count], [ops[3], count], ops[2:3], ops[6:]):
            backend.lift_groups(some, x, codes, n)
        if len(shape) == 1:
            # As if there were more elements than are distributed at a time.
            with patch.object(on_gpu("many_groups"), "_LISTS_BYTES", 1):
                backend.lift_groups(ops[:1], x, codes, n)


def labels(cupy: Any, rng: np.random.Generator) -> None:
    """Code labels of groups that follow one another, are close, or lie anywhere."""
    backend = on_gpu("backend")
    for name, n in product(("i1", "i4", "u8", "f2", "f8"), (1, 7, 100, 20_000)):
        x = cupy.asarray(rng.integers(0, 120, 100_003).astype(name))
        for step in (1, 3, 1000):
            groups = Values(np.arange(n) * step), Values(np.arange(n) * step, np.arange(n)[::-1])
            for some in groups:
                for chunk in (x, x[1:]):
                    backend.codes(Coder((some,), (n,)), [chunk])
            backend.codes(Coder(groups, (n, n)), [x, x])


def windows(cupy: Any, rng: np.random.Generator) -> None:
    """Reduce windows, fill gaps, and measure runs."""
    for shape in ((700, 90), (90, 700), (5, 30_003)):
        x = cupy.asarray(rng.random(shape, dtype="f4"))
        lazy = da.from_array(cupy.where(x < 0.2, cupy.nan, x), chunks=-1, asarray=False)
        for axis in (0, 1):
            window = min(40, shape[axis])
            compute(
                *(dask_coop.ffill(lazy, axis), dask_coop.bfill(lazy, axis, 3)),
                *(dask_coop.ewm_sum(lazy, axis, span=9), dask_coop.ewm_var(lazy, axis, span=9)),
                dask_coop.ewm_cov(lazy, lazy, axis, span=9, adjust=False),
                *(dask_coop.ewm_mean(lazy, axis, span=9), dask_coop.logcumsumexp(lazy, axis)),
                *(f(lazy, window, 1, axis) for f in (dask_coop.move_mean, dask_coop.move_max)),
                *dask_coop.run_events(lazy > 0.4, lazy, axis, 2),
                *(f(lazy > 0.2, axis) for f in (dask_coop.longest_run, dask_coop.last_run)),
                *(f(lazy, 3, 1, axis) for f in (dask_coop.move_std, dask_coop.move_min)),
                *(dask_coop.move_median(lazy, w, 1, axis) for w in (window, min(80, shape[axis]))),
                *(f(lazy, 3, 1, axis) for f in (dask_coop.move_rank, dask_coop.move_argmin)),
            )


def matrices(cupy: Any, rng: np.random.Generator) -> None:
    """Transpose and multiply."""
    transpose, matmul = on_gpu("transpose"), on_gpu("matmul")
    for name in ("u1", "u2", "f4", "f8", "c16"):
        for shape, axes in (
            ((300, 257), (1, 0)),
            ((33, 7, 65), (2, 0, 1)),
            ((33, 7, 65), (1, 0, 2)),
        ):
            x = cupy.asarray(rng.integers(0, 99, shape).astype(name))
            every_strategy(strategies.TRANSPOSE, partial(transpose.transpose, x, axes))
    for name, semiring in MATMULS:
        a, b = (cupy.asarray(rng.integers(0, 2, s).astype(name)) for s in ((257, 131), (131, 190)))
        for strategy in ("bytes", "tiles"):
            with suppress(ValueError):
                matmul.matmul(a, b, semiring, strategy)


def chunks_together(cupy: Any, rng: np.random.Generator) -> None:
    """Launch kernels over several chunks; one GPU is a team, too."""
    from dask_coop.cuda import team as teams

    multichunk = on_gpu("multichunk")
    # The sanitizer runs the kernels of several GPUs one at a time.
    team = teams.Team([0], 60.0)
    grids = [Grid((find_bins(n, (0, 99), _F4),)) for n in (10, 60_000)]
    counts = bind(monoids.COUNTS, np.dtype("i8"), np.dtype("i8"), "cases")
    for name, op in sums().items():
        xs = [cupy.asarray(rng.integers(0, 99, n).astype(name)) for n in (5000, 0, 1, 300_003)]
        multichunk.reduce(team, op, xs, None)
        for monoid in (monoids.MOMENTS, monoids.ARGMAX):
            multichunk.lift_all(bind(monoid, _F4, _F4, "cases"), xs)
            multichunk.reduce(team, bind(monoid, _F4, _F4, "cases"), xs, None)
        for spec in (ScanSpec(0), ScanSpec(0, exclusive=True, reverse=True)):
            multichunk.scan(team, op, xs, [True, True, False, True], spec)
            swept = multichunk.upsweep(op, spec, xs)
            assert swept is not None
            states, memo = swept
            multichunk.downsweep(op, spec, xs, list(zip(*states, strict=True)), memo)
        for grid in grids:
            multichunk.histogram(team, counts, xs, grid)


def transfers(cupy: Any, rng: np.random.Generator) -> None:
    """Copy arrays to the GPU and back, in small pieces."""
    from dask_coop.cuda import transfer

    # Small pieces, so that few elements make many, with a shorter last one.
    transfer.BUFFER_BYTES, transfer.SMALL_BYTES = 4096, 1
    line, cube = rng.integers(0, 256, 100_003).astype("u1"), rng.random((33, 7, 65))
    for x in (
        *(line, line[::2], line[::-1], line[:1], cube, np.asfortranarray(cube)),
        *(cube[:, :, 3:60], cube.transpose(1, 0, 2), cube.astype(">f8"), cube.astype("c16")),
    ):
        for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
            with stream:
                there = transfer.to_device(x)
                np.testing.assert_array_equal(cupy.asnumpy(there), x)
                for y in (there + there.dtype.type(1), there[::2], there.T):
                    np.testing.assert_array_equal(transfer.to_host(y), cupy.asnumpy(y))
    transfer.close()


def random_cases(share: int, shares: int, cupy: Any, rng: np.random.Generator) -> None:
    """Check a few random cases of some families, so that every public function runs."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from fuzz.families import FAMILIES
    from fuzz.work import work

    for name in [*FAMILIES][share::shares]:
        if not FAMILIES[name].of_numpy_chunks:
            tally = work(cupy, 0, only=(name,), cases=RANDOM, patience=0)
            if tally.found:
                raise SystemExit(str(tally.found[0]))


_SHARES = 3
#: Each part is a process; those of the second table run once more with the kernels for GPUs without
#: clusters and bulk copies.
ONCE: dict[str, Callable[[Any, np.random.Generator], None]] = {
    "transfers": transfers,
    **{f"random_{i}": partial(random_cases, i, _SHARES) for i in range(_SHARES)},
}
TWICE: dict[str, Callable[[Any, np.random.Generator], None]] = {
    part.__name__: part
    for part in (
        *(reductions, scans, ordered, histograms, lookups, orders, groups, labels, windows),
        *(matrices, chunks_together),
    )
}
JOBS = (*ONCE, *TWICE, *(f"{name} portable" for name in TWICE))


def modest(cupy: Any) -> Callable[[int], Any]:
    """Return an allocator with a limit on all memory of a process.

    It is not a pool, whose blocks are larger than requested and seldom fresh.
    """
    live = 0

    class Memory(cupy.cuda.Memory):  # type: ignore[misc]
        def __init__(self, size: int) -> None:
            nonlocal live
            if live + size > MOST_BYTES:
                raise MemoryError(f"{live + size:,} bytes on the GPU, at most {MOST_BYTES:,}")
            live += size
            super().__init__(size)

        def __del__(self) -> None:
            nonlocal live
            live -= self.size

    return lambda size: cupy.cuda.MemoryPointer(Memory(size), 0)


def run_part(job: str, launched_file: str) -> None:
    """Run a part's cases, and write down the kinds of launched kernels."""
    import cupy

    from dask_coop.cuda import compiler, launch
    from dask_coop.cuda import team as teams
    from dask_coop.cuda.devices import device

    name, _, portable = job.partition(" ")
    if portable:
        if not device(0).hopper:
            return
        os.environ["DASK_COOP_PORTABLE"] = "1"
        device.cache_clear()
    cupy.cuda.set_allocator(modest(cupy))
    launched: set[str] = set()
    load, options = launch.load, compiler._options

    def recording(source: str, *arguments: Any, **options: Any) -> Any:
        launched.update(kinds(source))
        return load(source, *arguments, **options)

    launch.load = teams.load = recording
    # All kernels are called `entry`: only their lines tell one from another.
    compiler._options = lambda *how, **more: replace(options(*how, **more), lineinfo=True)
    (ONCE | TWICE)[name](cupy, np.random.default_rng(0))
    cupy.cuda.runtime.deviceSynchronize()
    Path(launched_file).write_text(json.dumps(sorted(launched)))


class Runner:
    """Runs parts in separate processes, spread over the GPUs."""

    def __init__(self, folder: str) -> None:
        import cupy

        self.folder, self.gpus = Path(folder), cupy.cuda.runtime.getDeviceCount()
        self.processes = int(os.environ.get("SANITIZE_PROCESSES") or min(5, os.cpu_count() or 1))

    def run(self, jobs: list[tuple[str, str]], sanitizer: str) -> dict[tuple[str, str], int]:
        """Run jobs, each with its tool or none; print what fails, and return all exit statuses."""
        with ThreadPoolExecutor(self.processes) as pool:
            numbered = [(i, *job, sanitizer) for i, job in enumerate(jobs)]
            return dict(zip(jobs, pool.map(lambda job: self._run(*job), numbered), strict=True))

    def launched(self) -> set[str]:
        """Return the kinds of kernels that parts have launched."""
        return {
            name for file in self.folder.glob("*.json") for name in json.loads(file.read_text())
        }

    def _run(self, number: int, tool: str, job: str, sanitizer: str) -> int:
        out = self.folder / f"{job.replace(' ', '-')}.json"
        command = [sys.executable, __file__, "--part", job, str(out)]
        if tool:
            own = ["--tool", tool, "--error-exitcode", "1", *TOOLS[tool]]
            command = [sanitizer, *own, *command]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        devices = visible.split(",") if visible else [*map(str, range(self.gpus))]
        gpu = {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]}
        done = subprocess.run(command, env=os.environ | gpu, capture_output=True, text=True)
        if done.returncode:
            print(f"{tool or 'alone'}, {job}:\n{done.stdout}{done.stderr}", flush=True)
        return done.returncode


def main(tools: list[str]) -> int:
    """Run the cases alone, then under all tools at a time; return the worst exit status."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise SystemExit("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    from dask_coop.chunks.cupy import program_sets

    start = monotonic()
    with TemporaryDirectory() as folder:
        runner = Runner(folder)
        # The others find in the cache what this compiles.
        if any(runner.run([("", job) for job in JOBS], sanitizer).values()):
            return 1
        listed = set().union(*map(kinds, program_sets.everything()))
        if missing := listed - runner.launched():
            raise SystemExit(f"no case launches {', '.join(sorted(missing))}")
        print(f"alone: {monotonic() - start:.0f} s", flush=True)
        found = runner.run([*product(tools, JOBS)], sanitizer)
    seconds = round(monotonic() - start)
    outcome = {}
    for tool in tools:
        failed = [job for job in JOBS if found[tool, job]]
        outcome[tool] = f"found something in {', '.join(failed)}" if failed else "clean"
        print(f"{tool}: {outcome[tool]}", flush=True)
    print(f"{len(JOBS)} parts, {seconds} s", flush=True)
    if report := os.environ.get("SANITIZE_REPORT"):
        from gpu_run import commit, machine

        entry = {**machine(), "commit": commit(), "seconds": seconds, "sanitized": outcome}
        Path(report).write_text(json.dumps(entry, indent=2) + "\n")
    return int(any(found.values()))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--part", job, launched_file]:
            run_part(job, launched_file)
        case given:
            sys.exit(main(given or list(TOOLS)))
