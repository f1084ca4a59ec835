"""Groups: ``python -m benchmarks.systems.grouped [--cpu]``, on a GPU or without one.

Statistics of groups of one large array, beside flox with each of its engines, or beside CuPy and
PyTorch. Every result is compared with the peer's before its time is recorded.
``python -m benchmarks.systems.grouped --write`` makes the figures of docs/grouped.md from
benchmarks/results/grouped/*.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from . import collective, grouped_gpu, node
from .order import HERE, OURS, Row, compared, facts

RESULTS = HERE / "results" / "grouped"
PAGE = HERE.parent / "docs" / "grouped.md"

#: flox's engines; the fastest counts.
ENGINES = ("flox", "numpy", "numbagg")
#: The statistics of flox's own benchmark.
FUNCS = ("sum", "nansum", "mean", "nanmean", "max", "nanmax", "count")

Call = Callable[[], Any]


def shapes() -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield name, array, labels and axes: those of flox's benchmark, and two of grids in time."""
    n = 3000
    rng = np.random.default_rng(0)
    by_five = np.repeat(np.arange(n // 5), 5)
    yield "3,000 float64, 5 groups", np.ones(n), np.repeat(np.arange(5), n // 5), -1
    yield "3,000 x 3,000 float64, 600 groups along axis 1", np.ones((n, n)), by_five, -1
    yield "3,000 x 3,000 float64, 600 groups, all", np.ones((n, n)), by_five[np.newaxis], None
    shuffled = rng.permutation(by_five)
    yield "3,000 x 3,000 float64, 600 groups in any order", np.ones((n, n)), shuffled, -1
    months = np.arange(8760) // 730
    field = rng.random((8760, 2048), dtype="f4")
    yield "8,760 x 2,048 float32, 12 groups along axis 0", field, months, 0
    yield "8,760 x 2,048 float32, 365 groups along axis 0", field, np.arange(8760) // 24, 0
    zones = rng.integers(0, 1000, (4096, 4096), dtype="i4")
    yield "4,096 x 4,096 float32, 1,000 zones", rng.random((4096, 4096), dtype="f4"), zones, None


def chunk(x: Any, labels: Any, funcs: list[Any], axis: Any) -> Call:
    """Return a call of our function for an array that is one chunk."""
    import dask
    import dask.array as da

    import dask_coop as dc

    if axis == 0:
        x = x.T
    whole = da.from_array(x, chunks=-1, name=False, asarray=False)
    lazy, _ = dc.groupby_reduce(whole, labels, func=funcs)
    return partial(dask.compute, *lazy, scheduler="synchronous")


def theirs(x: Any, labels: Any, func: str, axis: Any, engine: str) -> Call:
    """Return a call of flox for a NumPy array."""
    flox: Any = import_module("flox")
    if axis == 0:
        x = x.T
    return lambda: flox.groupby_reduce(x, labels, func=func, engine=engine)[0]


def on_host(samples: int, only: str = "") -> Iterator[Row]:
    """Measure NumPy chunks, beside flox; calls take turns."""
    for name, x, labels, axis in shapes():
        for func in FUNCS:
            work = f"{func} of {name}"
            if only not in work:
                continue
            calls: dict[str, Call] = {OURS: chunk(x, labels, [func], axis)}
            calls |= {f"flox, {e}": theirs(x, labels, func, axis, e) for e in ENGINES}
            yield from beside(work, calls, samples)
        work = f"mean, std and max of {name}"
        if only in work:
            yield from beside(work, {OURS: chunk(x, labels, ["mean", "std", "max"], axis)}, samples)


def beside(work: str, calls: dict[str, Call], samples: int) -> Iterator[Row]:
    """Yield the least time of each of several calls, in ms; raise if their results differ."""
    expected: Any = None
    left: dict[str, Call] = {}
    for by, call in calls.items():
        try:
            result = call()
            result = result[0] if isinstance(result, tuple) else result
            expected = result if expected is None else expected
            np.testing.assert_allclose(result, expected, rtol=1e-4)
            left[by] = call
        except Exception as error:
            yield {"work": work, "by": by, "note": f"{type(error).__name__}: {error}"[:200]}
    times: dict[str, list[float]] = {by: [] for by in left}
    for _ in range(samples):
        for by, call in left.items():
            begin = time.perf_counter()
            call()
            times[by].append(1e3 * (time.perf_counter() - begin))
    for by, milliseconds in times.items():
        yield {"work": work, "by": by, "ms": min(milliseconds)}


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--only", default="", help="the works whose names have this in them")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--write", action="store_true", help="only write docs/grouped.md anew")
    options = parser.parse_args()
    if not options.write:
        rows = (
            on_host(options.samples, options.only)
            if options.cpu
            else grouped_gpu.on_gpu(options.samples)
        )
        path = options.results / ("cpu.json" if options.cpu else "gpu.json")
        collective.keep(facts(not options.cpu), rows, path)
    if options.write or options.results == RESULTS:
        node.write(compared(RESULTS), PAGE)


if __name__ == "__main__":
    main()
