"""Runs a list of cases, with copies and every kind of kernel, under compute-sanitizer's tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

# cuda-bindings asks the driver for functions that it is too old for: no error of ours. Those of
# launches are raised in Python.
TOOLS = {
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": (),
    "synccheck": (),
    "initcheck": (),
}

# Lines for a thread, a few, a warp and a block, and one that several blocks share; the same with
# other lines beside them, few and many, and so many that a thread takes whole ones.
ROWS = ((2000, 5), (300, 100), (40, 3000), (3, 20_004), (5,), (100_003,))
COLUMNS = ((100_003, 3), (300, 257), (7, 5000), (5, 700, 9), (2, 2000, 64), (2, 1 << 21))

# The same for scans, as (outer, n, inner).
LINES = (
    *((300, 100, 1), (40, 3000, 1), (3, 20_004, 1), (1, 100_003, 1)),
    *((300, 7, 41), (2, 1000, 37), (1, 1501, 4224)),
)

MATMULS = (
    ("f4", "plus_times"),
    ("f8", "min_plus"),
    ("i4", "max_plus"),
    ("i8", "max_min"),
    ("i1", "plus_times"),
    ("i4", "plus_times"),
    ("?", "or_and"),
)


def kinds(source: str) -> set[str]:
    """Return the functions of kernels/ that a program is made of."""
    body = source[source.index("entry(") :]
    return set(re.findall(r"^ +(\w+)(?:<[^;()]*>)?\(", body[body.index("{\n") :], re.MULTILINE))


def every_strategy(module: Any, call: Callable[..., Any]) -> None:
    """Call with no strategy and with each of the module's that can be had."""
    call()
    for strategy in getattr(module, "STRATEGIES", ()):
        # One that is not for this GPU, dtype or shape says so.
        with suppress(ValueError):
            call(strategy=strategy)


def cases() -> None:
    """Launch kernels on small and odd sizes."""
    import cupy
    import dask.array as da
    import numpy as np

    import dask_coop
    from dask_coop.algebra import monoids
    from dask_coop.algebra.bins import Grid, find_bins
    from dask_coop.algebra.operation import Operation, bind
    from dask_coop.algebra.scan_spec import ScanSpec
    from dask_coop.chunks.cupy import backend, hashed, multichunk
    from dask_coop.cuda import team as teams

    # The package has functions of the same names.
    scan, histogram, transpose, matmul = (
        import_module(f"dask_coop.chunks.cupy.{name}")
        for name in ("scan", "histogram_strategies", "transpose", "matmul")
    )
    rng = np.random.default_rng(0)
    sums = {}
    for name in ("f4", "i4"):
        dtype = np.dtype(name)
        sums[name] = bind(monoids.SUM, dtype, dtype, "cases")
    f4 = np.dtype("f4")
    for shape in ROWS + COLUMNS:
        x = cupy.asarray(rng.random(shape, dtype="f4"))
        for axis in (*range(x.ndim), None):
            axes = tuple(range(x.ndim)) if axis is None else (axis,)
            # States of ARGMAX have bytes between their fields.
            for monoid in (
                *(monoids.SUM, monoids.MINMAX, monoids.MOMENTS, monoids.REPRODUCIBLE_SUM),
                monoids.ARGMAX,
            ):
                backend.lift(bind(monoid, f4, f4, "cases"), x, axes)
    for shape in LINES:
        for name, op in sums.items():
            x = cupy.asarray(rng.integers(0, 99, shape).astype(name))
            (state,) = op.monoid.dtypes(op.element)
            for base in (None, cupy.ones(shape[::2], state)):
                y = cupy.empty_like(x)
                every_strategy(scan, partial(scan.scan_lines, op, x, y, base, shape))
                heads = cupy.asarray(rng.random(shape) < 0.01)
                scan.scan_lines(op, x, y, base, shape, segments=heads)
    # In the order of elements, as states of two fields.
    affine = dask_coop.Monoid(
        "affine",
        lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
        (1, 0),
        "f8,f8",
        lift=lambda x: (x, x),
        finalize=lambda f: f[1],
        cuda={"lift": "{x, x}", "combine": "{a.f0 * b.f0, b.f0 * a.f1 + b.f1}"},
    )
    op = Operation(affine, f4, affine.result)
    for shape in LINES:
        x = cupy.asarray(rng.random(shape, dtype="f4"))
        backend.lift(op, x, (1,))
        y = cupy.empty(16 * x.size, "u1")
        every_strategy(scan, partial(scan.scan_lines, op, x, y, None, shape))
    for name in ("f4", "i4", "u1"):
        x = cupy.asarray(rng.integers(0, 200_000, 100_003).astype(name))
        for n in (10, 60_000, 131_072, 300_000)[: 1 if name == "u1" else None]:
            bins = find_bins(n, (0, 200_000), x.dtype)
            for kind in (None, "f8", "i8"):
                weights = kind and cupy.ones(x.shape, kind)
                table = cupy.zeros(n, kind or "i8")
                every_strategy(histogram, partial(histogram.count, x, weights, bins, table))
    for name in ("i4", "f8"):
        # So many are in one table, and in those of buckets.
        for few in (10, 15_000):
            x = cupy.asarray(rng.integers(0, few, 200_003).astype(name))
            assert hashed.count_distinct(x) is not None
    for name in ("f4", "i8"):
        x = cupy.asarray(rng.integers(0, 100, (33, 1001)).astype(name))
        lazy = da.from_array(x, chunks=(20, 600), asarray=False)
        for result in (
            dask_coop.digitize(lazy, [10, 20, 77], right=True),
            dask_coop.histogram(lazy, 7, (3, 90), axis=0, flow=True)[0],
            dask_coop.histogram2d(lazy.ravel(), lazy.ravel(), 9)[0],
            dask_coop.sum(lazy, axis=1, where=lazy > 50),
            dask_coop.var(lazy, axis=0, where=lazy > 50),
            dask_coop.cumsum(lazy, axis=1, segments=lazy > 98, reverse=True),
        ):
            result.compute(scheduler="synchronous")
    for name in ("f4", "i8"):
        for shape in ((50, 300), (500, 60), (5000, 7), (100_003, 2)):
            x = cupy.asarray(rng.integers(0, 9999, shape).astype(name))
            backend.order_statistics(x, (0,), np.zeros((x.shape[1], 2), "i8"))
        x = cupy.asarray(rng.integers(0, 9999, 300_003).astype(name))
        lazy = da.from_array(x, chunks=200_001, asarray=False)
        for result in (
            dask_coop.quantile(lazy, [0.1, 0.5, 0.9]),
            dask_coop.topk(lazy, 20),
            dask_coop.select(lazy, lazy > 5000),
            dask_coop.flatnonzero(lazy > 9000),
        ):
            result.compute(scheduler="synchronous")
    rows = [monoids.SUM, monoids.MEAN, monoids.VAR, monoids.MAX, monoids.ARGMAX]
    for name in ("f4", "f8", "i4"):
        dtype = np.dtype(name)
        ops = [bind(row, dtype, row.output(dtype), "cases") for row in rows]
        for shape in ((70_003,), (700, 90), (90, 700), (3, 200, 70)):
            x = cupy.asarray(rng.integers(0, 99, shape).astype(name))
            for n in (3, 300, 20_000, 400_000):
                for lies in (x, x.T):
                    codes = cupy.asarray(rng.integers(-1, n, lies.shape[-1]))
                    for some in (ops, ops[:1], ops[3:4]):
                        backend.lift_groups(some, lies, codes, n)
    for shape in ((700, 90), (90, 700), (5, 30_003)):
        x = cupy.asarray(rng.random(shape, dtype="f4"))
        lazy = da.from_array(cupy.where(x < 0.2, cupy.nan, x), chunks=-1, asarray=False)
        for axis in (0, 1):
            window = min(40, shape[axis])
            for result in (
                *(dask_coop.ffill(lazy, axis), dask_coop.bfill(lazy, axis, 3)),
                *(dask_coop.ewm_mean(lazy, axis, span=9), dask_coop.logcumsumexp(lazy, axis)),
                *(f(lazy, window, 1, axis) for f in (dask_coop.move_mean, dask_coop.move_max)),
                *(f(lazy, 3, 1, axis) for f in (dask_coop.move_std, dask_coop.move_min)),
            ):
                result.compute(scheduler="synchronous")
    for name in ("u1", "u2", "f4", "f8", "c16"):
        for shape, axes in (
            ((300, 257), (1, 0)),
            ((33, 7, 65), (2, 0, 1)),
            ((33, 7, 65), (1, 0, 2)),
        ):
            x = cupy.asarray(rng.integers(0, 99, shape).astype(name))
            every_strategy(transpose, partial(transpose.transpose, x, axes))
    for name, semiring in MATMULS:
        a, b = (cupy.asarray(rng.integers(0, 2, s).astype(name)) for s in ((257, 131), (131, 190)))
        for strategy in ("bytes", "tiles"):
            with suppress(ValueError):
                matmul.matmul(a, b, semiring, strategy)
    # One GPU is a team too, and the sanitizer runs the kernels of several one at a time.
    team = teams.Team([0], 60.0)
    grids = [Grid((find_bins(n, (0, 99), f4),)) for n in (10, 60_000)]
    counts = bind(monoids.COUNTS, np.dtype("i8"), np.dtype("i8"), "cases")
    for name, op in sums.items():
        xs = [cupy.asarray(rng.integers(0, 99, n).astype(name)) for n in (5000, 0, 1, 300_003)]
        multichunk.reduce(team, op, xs, None)
        for monoid in (monoids.MOMENTS, monoids.ARGMAX):
            multichunk.lift_all(bind(monoid, f4, f4, "cases"), xs)
            multichunk.reduce(team, bind(monoid, f4, f4, "cases"), xs, None)
        for spec in (ScanSpec(0), ScanSpec(0, exclusive=True, reverse=True)):
            multichunk.scan(team, op, xs, [True, True, False, True], spec)
            swept = multichunk.upsweep(op, spec, xs)
            assert swept is not None
            states, memo = swept
            multichunk.downsweep(op, spec, xs, list(zip(*states, strict=True)), memo)
        for grid in grids:
            multichunk.histogram(team, counts, xs, grid)
    cupy.cuda.runtime.deviceSynchronize()


def transfers() -> None:
    """Copy arrays to the GPU and back, in small pieces."""
    import cupy
    import numpy as np

    from dask_coop.cuda import transfer

    # So that few elements are many pieces, with a last one that is shorter.
    transfer.BUFFER_BYTES, transfer.SMALL_BYTES = 4096, 1
    rng = np.random.default_rng(0)
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


def run_cases() -> None:
    """Run the cases as this GPU does, and as one without clusters and bulk copies."""
    import cupy

    from dask_coop.chunks.cupy import program_sets
    from dask_coop.cuda import compiler, launch
    from dask_coop.cuda import team as teams
    from dask_coop.cuda.devices import device

    # Without a pool, whose blocks are larger than what was asked for and seldom fresh.
    cupy.cuda.set_allocator(None)
    launched: set[str] = set()
    load, options = launch.load, compiler._options

    def recording(source: str, *arguments: Any, **options: Any) -> Any:
        launched.update(kinds(source))
        return load(source, *arguments, **options)

    launch.load = teams.load = recording
    # All kernels are called `entry`: only by their lines can one be told from another.
    compiler._options = lambda *how, **more: replace(options(*how, **more), lineinfo=True)
    transfers()
    cases()
    if device(0).hopper:
        os.environ["DASK_COOP_PORTABLE"] = "1"
        device.cache_clear()
        cases()
    listed = set().union(*map(kinds, program_sets.everything()))
    if missing := listed - launched:
        raise SystemExit(f"no case launches {', '.join(sorted(missing))}")


def main(tools: list[str]) -> int:
    """Run the cases alone, then under all tools at a time; return the worst exit status."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise SystemExit("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    run = [sys.executable, __file__, "--cases"]
    # What this compiles, the others find in the cache.
    subprocess.run(run, check=True)
    worst, start = 0, monotonic()
    with TemporaryDirectory() as folder:
        running = {}
        for tool in tools:
            command = [sanitizer, "--tool", tool, "--error-exitcode", "1", *TOOLS[tool], *run]
            with Path(folder, tool).open("w") as log:
                running[tool] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        for tool, process in running.items():
            status = process.wait()
            if status:
                print(Path(folder, tool).read_text())
            found = "found something" if status else "clean"
            print(f"{tool}: {found}, {monotonic() - start:.0f} s", flush=True)
            worst = max(worst, abs(status))
    return worst


if __name__ == "__main__":
    if sys.argv[1:] == ["--cases"]:
        run_cases()
    else:
        raise SystemExit(main(sys.argv[1:] or list(TOOLS)))
