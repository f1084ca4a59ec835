"""Every strategy of every family, side by side: ``python -m benchmarks.strategies``, on a GPU.

Each row of `dask_coop.algebra.strategies` works on the same arrays in two ways: by the public
function on a Dask array of one CuPy chunk, timed from the call to the synchronised result; and by
the chunk's kernels alone, timed between two events without delays by the host. A time is recorded
only if the result is right. ``python -m benchmarks.strategies --write`` makes docs/strategies.md
from benchmarks/results/strategies/*.json and the tables of the package.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from dask_coop.algebra import strategies

from . import report
from .systems import collective, node, order
from .timers import KERNELS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "strategies"
PAGE = HERE.parent / "docs" / "strategies.md"

FAMILIES: dict[str, strategies.Family] = {
    "scan": strategies.SCAN,
    "histogram": strategies.HISTOGRAM,
    "transpose": strategies.TRANSPOSE,
    "matmul": strategies.MATMUL,
}

#: Sizes of clusters with which the distributed histogram is measured, besides its own.
CLUSTERS = (2, 4, 8, 16)

#: Kernels walk through inputs of so many bytes, several times the second-level cache.
WALKED = 1 << 28

#: The most elements of an array.
MOST = 1 << 30

#: Milliseconds of a sample, the most calls in it, and the number of samples.
SAMPLE_MS, MOST_CALLS, SAMPLES = 1.0, 20, 5

Row = dict[str, Any]
Array = Any


class Work(NamedTuple):
    """A work to measure.

    Attributes
    ----------
    family, name : str
    inputs : list of tuple of arrays
        Sets that kernels walk through; the public function uses the first.
    public : callable
        Makes one or more lazy Dask arrays from Dask arrays.
    kernels : callable
        Launches the kernels of a strategy on chunks, and returns the result.
    right : callable
        Returns whether a result of the first set is right.
    """

    family: str
    name: str
    inputs: list[tuple[Array, ...]]
    public: Callable[..., Any]
    kernels: Callable[..., Any]
    right: Callable[[Any], bool]


class Clock:
    """Times calls on the current GPU."""

    def __init__(self) -> None:
        import cupy

        self.xp: Any = cupy
        self._spin = cupy.RawModule(code=KERNELS).get_function("spin")

    def kernels(self, call: Callable[..., Any], inputs: list[tuple[Array, ...]]) -> float:
        """Return the milliseconds of GPU time of a call: the median of samples."""
        # The first call may load the program.
        call(*inputs[0])
        self.xp.cuda.runtime.deviceSynchronize()
        began = perf_counter()
        device = self._sample(call, inputs, 0, 1, 1.0)
        host = (perf_counter() - began) * 1e3
        batch = int(min(max(SAMPLE_MS / max(device, 1e-4), 1), MOST_CALLS))
        count = SAMPLES if device < 20 else 2
        return median(self._sample(call, inputs, i * batch, batch, host) for i in range(count))

    def _sample(
        self,
        call: Callable[..., Any],
        inputs: list[tuple[Array, ...]],
        at: int,
        batch: int,
        host: float,
    ) -> float:
        cuda = self.xp.cuda
        start, stop = cuda.Event(), cuda.Event()
        # The GPU waits until the host has queued all calls.
        self._spin((1,), (1,), (np.int64(min(2 * host * batch + 0.2, 20.0) * 1e6),))
        start.record()
        for i in range(at, at + batch):
            call(*inputs[i % len(inputs)])
        stop.record()
        stop.synchronize()
        return float(cuda.get_elapsed_time(start, stop)) / batch

    def whole(self, call: Callable[[], Any]) -> float:
        """Return the milliseconds of a call until its result is ready: the median of several."""
        times: list[float] = []
        while len(times) < SAMPLES and sum(times) < 100:
            began = perf_counter()
            call()
            self.xp.cuda.runtime.deviceSynchronize()
            times.append((perf_counter() - began) * 1e3)
        return median(times)

    def release(self) -> None:
        """Free unused memory."""
        self.xp.get_default_memory_pool().free_all_blocks()


def measure(clock: Clock, work: Work) -> Iterator[Row]:
    """Yield a row for "auto" and for each strategy that applies."""
    import dask

    arrays = [order.whole(x) for x in work.inputs[0]]
    key = f"coop.strategy.{work.family}"
    for name in (strategies.AUTO, *FAMILIES[work.family]):
        about = {"family": work.family, "work": work.name, "strategy": name}

        def call(name: str = name) -> Any:
            with dask.config.set({key: name, "scheduler": "sync"}):
                return dask.compute(work.public(*arrays))[0]

        try:
            if not work.right(call()):
                raise ArithmeticError("the result is wrong")
            times = {"call_ms": clock.whole(call)}
            times["ms"] = clock.kernels(partial(work.kernels, name), work.inputs)
            yield about | {field: float(f"{ms:.4g}") for field, ms in times.items()}
        except ValueError as error:
            # The strategy does not apply.
            yield about | {"note": str(error)[:160]}
        except Exception as error:
            yield about | {"note": f"{type(error).__name__}: {error}"[:160], "failed": True}
    if work.family == "histogram" and "200,000" in work.name:
        yield from clusters(clock, work)


def clusters(clock: Clock, work: Work) -> Iterator[Row]:
    """Yield the times of the distributed histogram with other clusters than its own."""
    from dask_coop.chunks.cupy import histogram_strategies as module

    kept = module._CLUSTERS
    for blocks in CLUSTERS:
        about = {
            "family": work.family,
            "work": work.name,
            "strategy": f"distributed, {blocks} blocks",
        }
        try:
            module._CLUSTERS = (blocks,)
            ms = clock.kernels(partial(work.kernels, "distributed"), work.inputs)
            yield about | {"ms": float(f"{ms:.4g}")}
        except ValueError as error:
            yield about | {"note": str(error)[:160]}
        except Exception as error:
            yield about | {"note": f"{type(error).__name__}: {error}"[:160], "failed": True}
        finally:
            module._CLUSTERS = kept


# The families.


def sets(make: Callable[[int], tuple[Array, ...]]) -> list[tuple[Array, ...]]:
    """Return sets of inputs, of about `WALKED` bytes together."""
    first = make(0)
    nbytes = sum(x.nbytes for x in first)
    return [first, *(make(seed) for seed in range(1, min(max(1, WALKED // nbytes), 256)))]


def scans(xp: Any, most: int) -> Iterator[Work]:
    """Yield cumulative sums of one line, of rows and of columns."""
    import dask_coop as dc
    from dask_coop.algebra.monoids import SUM
    from dask_coop.algebra.operation import bind, compensated

    cases: tuple[tuple[str, tuple[int, ...], int], ...] = (
        *(("float32", (1 << power,), 0) for power in (16, 18, 20, 22, 24, 26, 29)),
        ("float64", (1 << 26,), 0),
        ("float32", (1 << 10, 1 << 16), 1),
        ("float32", (1 << 16, 1 << 10), 1),
        ("float32", (1 << 20, 64), 1),
        ("float32", (1 << 10, 1 << 16), 0),
        ("float32", (1 << 16, 1 << 10), 0),
        ("float32", (1 << 20, 64), 0),
    )
    for name, shape, axis in cases:
        if math.prod(shape) > most:
            continue
        dtype = np.dtype(name)
        op = compensated(bind(SUM, dtype, dtype, "cumsum"))
        n = shape[axis]
        lines = math.prod(shape[:axis]), n, math.prod(shape[axis + 1 :])

        def make(seed: int, shape: Any = shape, dtype: Any = dtype) -> tuple[Array, Array]:
            x = xp.random.default_rng(seed).integers(0, 9, shape, dtype="i4").astype(dtype)
            return x, xp.empty_like(x)

        inputs = sets(make)

        def kernels(strategy: str, x: Array, y: Array, op: Any = op, lines: Any = lines) -> None:
            from dask_coop.chunks.cupy.scan import scan_lines

            scan_lines(op.by(strategy), x, y, None, lines)

        wanted = xp.cumsum(inputs[0][0], axis, dtype="i8")

        def right(result: Array, wanted: Array = wanted) -> bool:
            # Sums of small integers, which float32 rounds beyond 2**24.
            return bool((xp.abs(result - wanted) <= 1e-6 * wanted).all())

        public = partial(
            lambda x, y, axis, dtype: dc.cumsum(x, axis=axis, dtype=dtype), axis=axis, dtype=dtype
        )
        yield Work("scan", f"{_sizes(shape)} {name}, axis {axis}", inputs, public, kernels, right)


def histograms(xp: Any, most: int) -> Iterator[Work]:
    """Yield counts of few and many samples, in bins of equal and unequal width, and weights."""
    cases = [
        (name, power, bins)
        for name, powers, numbers in (
            ("float32", (18, 20, 22, 24, 28), (256, 16_384, 65_536, 100_000, 200_000, 400_000)),
            ("float32", (20, 24, 28), (1_000_000,)),
            ("float32, half of them equal", (20, 24), (65_536, 200_000)),
            ("uint8", (20, 28), (256,)),
            ("float32 with weights", (20, 26), (16_384, 65_536, 200_000)),
        )
        for power in powers
        for bins in numbers
        if 1 << power <= most
    ]
    for name, power, n in cases:
        yield _histogram(xp, name, power, n)


def _histogram(xp: Any, name: str, power: int, n: int) -> Work:
    import dask_coop as dc
    from dask_coop.algebra.bins import find_bins

    dtype = np.dtype(re.split(r"\W", name)[0])
    low, high = (0, 1) if dtype.kind == "f" else (0, n)
    weighted = name.endswith("weights")

    def make(seed: int) -> tuple[Array, ...]:
        rng = xp.random.default_rng(seed)
        if dtype.kind != "f":
            return (rng.integers(0, n, 1 << power, dtype="i4").astype(dtype),)
        x = rng.random(1 << power, dtype="f4")
        if "equal" in name:
            x[::2] = 0.3
        return (x, rng.random(x.size, dtype="f4")) if weighted else (x,)

    inputs, bins = sets(make), find_bins(n, (low, high), dtype)
    table = xp.zeros(n, "f8" if weighted else "i8")

    def kernels(strategy: str, x: Array, w: Array | None = None) -> None:
        from dask_coop.chunks.cupy.histogram_strategies import count

        count(x, w, bins, table, strategy)

    def public(x: Array, w: Any = None) -> Any:
        return dc.histogram(x, n, (low, high), weights=w)[0]

    def right(result: Any) -> bool:
        x, *w = inputs[0]
        at = xp.minimum((x.astype("f8") - low) * (n / (high - low)), n - 1).astype("i8")
        wanted = xp.cumsum(xp.bincount(at, *w, minlength=n))
        # Edges are rounded to float32, which moves a few samples across them.
        off = xp.abs(xp.cumsum(xp.asarray(result)) - wanted)
        return bool(off.max() <= 3 + 1e-6 * x.size)

    work = f"2^{power} {name}, {n:,} bins"
    return Work("histogram", work, inputs, public, kernels, right)


def transposes(xp: Any, most: int) -> Iterator[Work]:
    """Yield copies with axes in another order."""
    import dask_coop as dc

    for name, shape, axes in (
        ("float32", (1 << 10, 1 << 10), (1, 0)),
        ("float32", (1 << 14, 1 << 14), (1, 0)),
        ("float64", (1 << 13, 1 << 14), (1, 0)),
        ("uint8", (1 << 15, 1 << 15), (1, 0)),
        ("float32", (1 << 26, 3), (1, 0)),
        ("float32", (256, 512, 1024), (2, 1, 0)),
        ("float32", (256, 512, 1024), (1, 0, 2)),
        ("float32", (1 << 12, 1 << 12, 8), (1, 0, 2)),
    ):
        if math.prod(shape) > most:
            continue

        def make(seed: int, name: str = name, shape: Any = shape) -> tuple[Array, ...]:
            return (xp.random.default_rng(seed).integers(0, 99, shape, dtype="i4").astype(name),)

        inputs = sets(make)
        wanted = inputs[0][0].transpose(axes)

        def right(result: Array, wanted: Array = wanted) -> bool:
            return bool(result.flags.c_contiguous and (result == wanted).all())

        def kernels(strategy: str, x: Array, axes: Any = axes) -> Array:
            from dask_coop.chunks.cupy.transpose import transpose

            return transpose(x, axes, strategy)

        public = partial(dc.transpose, axes=axes, contiguous=True)
        work = f"{_sizes(shape)} {name} to axes {axes}"
        yield Work("transpose", work, inputs, public, kernels, right)


def products(xp: Any, most: int) -> Iterator[Work]:
    """Yield products of square matrices over some semirings."""
    import dask_coop as dc

    for name, side, ring in (
        ("float32", 512, "plus_times"),
        ("float32", 4096, "plus_times"),
        ("float64", 4096, "plus_times"),
        ("int8", 4096, "plus_times"),
        ("int32", 512, "plus_times"),
        ("int32", 4096, "plus_times"),
        ("int64", 2048, "plus_times"),
        ("float32", 4096, "min_plus"),
        ("bool", 4096, "or_and"),
    ):
        if side**2 > most:
            continue

        def make(seed: int, name: str = name, side: int = side) -> tuple[Array, Array]:
            rng = xp.random.default_rng(seed)
            pair = rng.integers(0, 3, (2, side, side), dtype="i4").astype(name)
            return pair[0], pair[1]

        inputs = [make(0)]
        a, b = inputs[0]
        rows = a[:3]
        if ring == "min_plus":
            wanted = (rows[:, :, None] + b[None]).min(1)
        else:
            wanted = xp.matmul(rows.astype("f8"), b.astype("f8")).astype("i8")
            wanted = wanted > 0 if ring == "or_and" else wanted.astype(name)

        def right(result: Array, wanted: Array = wanted) -> bool:
            return bool((result[:3] == wanted).all())

        def kernels(strategy: str, a: Array, b: Array, ring: str = ring) -> Array:
            from dask_coop.chunks.cupy.matmul import matmul

            return matmul(a, b, ring, strategy)

        public = partial(dc.matmul, semiring=ring)
        work = f"{side} x {side} {name}, {ring}"
        yield Work("matmul", work, inputs, public, kernels, right)


def together(xp: Any, clock: Clock) -> Iterator[Row]:
    """Yield calls of a `Node` on eight chunks: in one launch, and chunk by chunk."""
    import dask
    import dask.array as da

    import dask_coop as dc

    x = xp.random.default_rng(0).random(1 << 27, dtype="f4")
    lazy = da.from_array(x, chunks=1 << 24, name=False, asarray=False)
    with dc.Node():
        persisted = lazy.persist()
        calls: dict[str, Callable[[], Any]] = {
            "scan": lambda: dc.cumsum(persisted).persist(),
            "histogram": lambda: dc.histogram(persisted, 16_384, (0, 1))[0].compute(),
        }
        for family, call in calls.items():
            other = "single-pass" if family == "scan" else "shared"
            for name in (strategies.AUTO, strategies.MULTICHUNK, other):
                with dask.config.set({f"coop.strategy.{family}": name}):
                    call()
                    ms = clock.whole(call)
                work = "2^27 float32 in 8 chunks, by a Node" + ", 16,384 bins" * (
                    family == "histogram"
                )
                yield {
                    "family": family,
                    "work": work,
                    "strategy": name,
                    "call_ms": float(f"{ms:.4g}"),
                }


def _sizes(shape: tuple[int, ...]) -> str:
    powers = (f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 and n > 1024 else str(n) for n in shape)
    return " x ".join(powers)


def rows(seconds: float) -> Iterator[Row]:
    """Measure everything, for at most so many seconds."""
    began, clock = perf_counter(), Clock()
    for family in (transposes, products, scans, histograms):
        for work in family(clock.xp, MOST):
            if perf_counter() - began > seconds:
                yield {
                    "family": work.family,
                    "work": work.name,
                    "note": "no time was left",
                    "failed": True,
                }
                continue
            yield from measure(clock, work)
            del work
            clock.release()
    yield from together(clock.xp, clock)


# The page.

#: The works that the page shows for families with many.
SHOWN: dict[str, tuple[str, ...]] = {
    "scan": (
        *(f"2^{power} float32, axis 0" for power in (18, 22, 26, 29)),
        "2^26 float64, axis 0",
        *(f"1024 x 2^16 float32, axis {axis}" for axis in (1, 0)),
        *(f"2^20 x 64 float32, axis {axis}" for axis in (1, 0)),
    ),
    "histogram": (
        "2^20 float32, 256 bins",
        *(f"2^20 float32, {n:,} bins" for n in (65_536, 100_000, 200_000)),
        "2^22 float32, 65,536 bins",
        "2^24 float32, 65,536 bins",
        *(f"2^28 float32, {n:,} bins" for n in (16_384, 100_000, 400_000)),
        "2^20 float32, half of them equal, 65,536 bins",
        "2^28 uint8, 256 bins",
        "2^26 float32 with weights, 65,536 bins",
    ),
}


def figures(folder: Path) -> str:
    """Return the figures of the page: the strategies, and the results in `folder`."""
    # One GPU says enough; the results of others are beside it.
    path = max(folder.glob("*.json"))
    found, target = json.loads(path.read_text()), f"../benchmarks/results/strategies/{path.name}"
    parts = []
    for name, family in FAMILIES.items():
        head = ["strategy", "how", "reads and writes", "the fastest for"]
        lines = [[f"`{key}`", row.idea, row.moves, row.wins] for key, row in family.items()]
        parts += [f"## {name.capitalize()}", report.table(head, lines)]
        parts += compared(name, found, target)
    return "\n\n".join(parts)


def compared(family: str, found: dict[str, Any], target: str) -> list[str]:
    """Return one GPU's figures of a family."""
    machine, rows = found["machine"], found["rows"]
    times = {
        (row["work"], row["strategy"]): row["ms"]
        for row in rows
        if row["family"] == family and "ms" in row
    }
    works = dict.fromkeys(
        row["work"] for row in rows if row["family"] == family and "ms" in row and "call_ms" in row
    )
    names = [name for name in FAMILIES[family] if name != strategies.MULTICHUNK]
    chosen = [strategies.AUTO] if any(name == strategies.AUTO for _, name in times) else []
    shown, lines = [*chosen, *names], []
    for work in SHOWN.get(family, works):
        if work not in works:
            continue
        fastest = min(ms for (of, name), ms in times.items() if of == work and name in names)
        cells = []
        for name in shown:
            ms = times.get((work, name))
            said = "" if ms is None else microseconds(ms)
            cells.append(f"**{said}**" if ms == fastest and name in names else said)
        lines.append([work, *cells])
    head = ["work", *shown]
    said = f"### {machine['gpu']['name']}: {family}"
    about = (
        f"{machine['date']}. Microseconds of the kernels of one chunk, the fastest in bold; a "
        "strategy without a time does not support the case."
    )
    if not lines:
        return []
    shown_rows = report.excerpt(head, lines, target, most=6)
    return [said, about, shown_rows, *together_told(family, rows)]


def microseconds(ms: float) -> str:
    """Return milliseconds as microseconds of three digits or more."""
    return f"{1e3 * ms:,.0f}" if ms >= 0.1 else f"{1e3 * ms:.3g}"


def together_told(family: str, rows: list[Row]) -> list[str]:
    """Return the times of calls of a `Node`, in one launch and chunk by chunk."""
    found = [row for row in rows if row["family"] == family and "by a Node" in row["work"]]
    if not found:
        return []
    said = ", ".join(f"`{row['strategy']}` {microseconds(row['call_ms'])}" for row in found)
    return [f"{found[0]['work']}, microseconds of whole calls: {said}."]


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=95, help="begin nothing new after so many")
    parser.add_argument("--write", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    if options.write:
        node.write(figures(RESULTS), PAGE)
        return
    machine: Mapping[str, Any] = order.facts(True)
    name = re.sub(r"[^a-z0-9]+", "-", machine["gpu"]["name"].lower())
    collective.keep(dict(machine), rows(options.seconds), options.results / f"{name}.json")


if __name__ == "__main__":
    main()
