"""Accuracy: errors of results beside those of NumPy, Dask and CuPy, and where bits differ.

``python -m benchmarks.systems.accuracy [--gpu]`` compares results with exact arithmetic: sums of
floats with ``math.fsum``, which rounds once, means and variances with fractions. ``--write`` makes
the figures of docs/numbers.md and its plots from benchmarks/results/accuracy/*.json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

import dask_coop as dc

from .. import report
from . import collective, node, order

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "accuracy"
PAGE = HERE.parent / "docs" / "numbers.md"
#: Where the page finds them.
PLOTS = "../benchmarks/results/accuracy"

NUMPY, DASK, OURS, REPRODUCIBLE = "NumPy", "dask.array", "dask_coop", "dask_coop, reproducible"
CUPY, OURS_GPU = "CuPy", "dask_coop, CuPy chunks"

#: The style of each contender's line.
LINES = {
    NUMPY: ("#2b5d8a", "o-"),
    DASK: ("#6a994e", "s-"),
    CUPY: ("#8d3b72", "^-"),
    OURS: ("#c8553d", "D-"),
    OURS_GPU: ("#e0a458", "v--"),
    REPRODUCIBLE: ("#444444", "x:"),
}

#: Elements of arrays, and of their chunks.
SIZES = (10**3, 10**4, 10**5, 10**6, 10**7)
CHUNK = 100_000

Row = dict[str, Any]
Call = Callable[[Any], Any]


def samples(work: str, n: int) -> Any:
    """Return the elements for a work."""
    rng = np.random.default_rng(n)
    if "1e8" in work:
        return 1e8 + rng.normal(size=n)
    if "signs" in work:
        return rng.normal(size=n) * 10.0 ** rng.integers(-8, 9, n)
    x = rng.random(n)
    return x.astype("f4") if "float32" in work else x


def exact(work: str, x: Any) -> float:
    """Return the exact result, rounded once; for running sums the last one."""
    total = math.fsum(x.tolist())
    if not work.startswith("var"):
        return total
    mean, near = Fraction(total) / len(x), total / len(x)
    # Elements are within a factor of two of their mean, so these differences are exact.
    squares = Fraction(math.fsum(((x - near) ** 2).tolist()))
    return float(squares / len(x) - (mean - Fraction(near)) ** 2)


#: The works: their words, and their calls in NumPy, Dask and this library.
WORKS: dict[str, Callable[[Any, Any], Any]] = {
    "sum of float32": lambda lib, x: lib.sum(x),
    "sum of float64": lambda lib, x: lib.sum(x),
    "sum of float64 of both signs": lambda lib, x: lib.sum(x),
    "var of float64 near 1e8": lambda lib, x: lib.var(x),
    "cumsum of float32": lambda lib, x: lib.cumsum(x, axis=0)[-1],
    "cumsum of float64": lambda lib, x: lib.cumsum(x, axis=0)[-1],
}


def contenders(gpu: bool) -> Iterator[tuple[str, Any, Call]]:
    """Yield the contenders: name, library, and function that makes an array from NumPy's."""

    def lazy(x: Any) -> Any:
        return da.from_array(x, chunks=CHUNK)

    yield NUMPY, np, lambda x: x
    yield DASK, da, lazy
    yield OURS, dc, lazy
    if gpu:
        import cupy

        yield CUPY, cupy, cupy.asarray
        yield OURS_GPU, dc, lambda x: dc.to_gpu(lazy(x))


def error(found: Any, expected: float, dtype: Any) -> float:
    """Return the relative error, in units of half an epsilon of the result's dtype."""
    off = abs(float(Fraction(float(found)) - Fraction(expected)))
    return off / (abs(expected) * float(np.finfo(dtype).eps) / 2)


def value(result: Any) -> float:
    """Return a result of any library as a number."""
    return float(result.compute() if hasattr(result, "compute") else result)


def errors(sizes: tuple[int, ...], gpu: bool) -> Iterator[Row]:
    """Yield the errors of each work, by contender and number of elements."""
    for work, call in WORKS.items():
        for n in sizes:
            x = samples(work, n)
            expected = exact(work, x)
            for by, library, make in contenders(gpu):
                computed = value(call(library, make(x)))
                yield {"work": work, "by": by, "n": n, "error": error(computed, expected, x.dtype)}


def spread(n: int, chunkings: int, gpu: bool) -> Iterator[Row]:
    """Yield the errors of sums, for one chunking after another."""
    x = samples("sum of float64 of both signs", n)
    expected = exact("sum", x)
    chunks = [int(c) for c in np.unique(np.geomspace(n // 500, n, chunkings).astype(int))]
    calls: dict[str, Call] = {
        DASK: da.sum,
        OURS: dc.sum,
        REPRODUCIBLE: lambda y: dc.sum(y, reproducible=True),
    }
    if gpu:
        calls[OURS_GPU] = lambda y: dc.sum(dc.to_gpu(y))
    for by, call in calls.items():
        sums = [value(call(da.from_array(x, chunks=c))) for c in chunks]
        ulp = float(np.spacing(abs(expected)))
        off = [float(Fraction(v) - Fraction(expected)) / ulp for v in sums]
        yield {"work": "chunkings", "by": by, "n": n, "chunks": chunks, "off": off}


def figures(folder: Path) -> str:
    """Return the figures of the page for the results in `folder`."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text())
        machine, rows = results["machine"], results["rows"]
        parts += order.heading(path, machine)
        tried = [row for row in rows if row["work"] != "chunkings"]
        by = list(dict.fromkeys(row["by"] for row in tried))
        table, n = [], max(row["n"] for row in tried)
        for work in dict.fromkeys(row["work"] for row in tried):
            mine = {r["by"]: r["error"] for r in tried if (r["work"], r["n"]) == (work, n)}
            table.append([work, *(f"{mine[name]:.3g}" for name in by)])
        parts += [
            f"![Errors against the number of elements]({PLOTS}/{path.stem}-errors.svg)",
            f"![Sums of the same numbers in other chunks]({PLOTS}/{path.stem}-chunks.svg)",
            report.table([f"error in {n:,} elements", *by], table),
        ]
        table = []
        for row in rows:
            if row["work"] == "chunkings":
                off = row["off"]
                most = f"{max(map(abs, off)):g}"
                table.append([row["by"], f"{len(off)}", f"{len(set(off))}", most])
        head = ["sums of the same numbers by", "chunkings", "different results"]
        parts.append(report.table([*head, "farthest from the exact sum, in last places"], table))
    return "\n\n".join(parts) or "No results are there yet."


def draw(folder: Path) -> list[Path]:
    """Draw the results in `folder`, beside them, and return the paths."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn = []
    # The same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "dask_coop", "svg.fonttype": "none"}):
        for path in sorted(folder.glob("*.json")):
            rows = json.loads(path.read_text())["rows"]
            drawn += [_errors(rows, path, Figure), _chunks(rows, path, Figure)]
    return drawn


def _errors(rows: list[Row], path: Path, make: Any) -> Path:
    tried = [row for row in rows if row["work"] != "chunkings"]
    works = list(dict.fromkeys(row["work"] for row in tried))
    figure = make(figsize=(10, 6), layout="constrained")
    for work, axes in zip(works, figure.subplots(2, -(-len(works) // 2)).flat, strict=False):
        for by in dict.fromkeys(row["by"] for row in tried):
            mine = [row for row in tried if (row["work"], row["by"]) == (work, by)]
            color, style = LINES[by]
            # Exact results have no logarithm of their error: draw them at the lower end.
            heights = [max(row["error"], 0.01) for row in mine]
            axes.plot(
                [row["n"] for row in mine], heights, style, color=color, label=by, markersize=4
            )
        axes.axhline(1, color="0.7", linewidth=0.8, zorder=0)
        axes.set(xscale="log", yscale="log", title=work, ylim=(0.008, None))
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("elements")
    figure.supylabel("error, in units of one rounding (0.01: none)")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    target = path.with_name(f"{path.stem}-errors.svg")
    figure.savefig(target, metadata={"Date": None})
    return target


def _chunks(rows: list[Row], path: Path, make: Any) -> Path:
    figure = make(figsize=(10, 3.4), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        if row["work"] == "chunkings":
            color, style = LINES[row["by"]]
            axes.plot(
                row["chunks"], row["off"], style[0], color=color, label=row["by"], markersize=4
            )
    axes.set(
        xscale="log", xlabel="elements of a chunk", ylabel="sum less the exact one, last places"
    )
    axes.set_yscale("symlog", linthresh=1)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    target = path.with_name(f"{path.stem}-chunks.svg")
    figure.savefig(target, metadata={"Date": None})
    return target


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="beside CuPy, on a GPU")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--write", action="store_true", help="only write docs/numbers.md anew")
    options = parser.parse_args()
    if not options.write:
        rows = chain(errors(SIZES, options.gpu), spread(10**6, 60, options.gpu))
        path = options.results / ("gpu.json" if options.gpu else "cpu.json")
        collective.keep(order.facts(options.gpu), rows, path)
    if options.write or options.results == RESULTS:
        node.write(figures(RESULTS), PAGE)
        draw(RESULTS)


if __name__ == "__main__":
    main()
