"""Sums that do not depend on how an array is cut
==============================================

The same numbers are summed in chunks of many sizes. Dask's sums differ in their last digits from
one size to the next, because every cut changes the order of additions, and roundings with it.
``dc.sum`` carries along what additions round off, and ``reproducible=True`` has the same bits for
every chunking, scheduler and machine. The plot shows how far each sum is from the exact one.

Run it as ``python examples/reproducible.py --size 4000000 --out demo``.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop.cli import backends

#: What sums the numbers, by what it is called in the figure.
SUMS = {
    "dask.array.sum": da.sum,
    "dc.sum": dc.sum,
    "dc.sum, reproducible": lambda x: dc.sum(x, reproducible=True),
}
COLORS = ("#c8553d", "#588b4b", "#2b5d8a")


def measurements(size: int) -> Any:
    """Return numbers of many magnitudes, positive and negative."""
    rng = np.random.default_rng(0)
    return rng.normal(size=size) * 10 ** rng.uniform(-4, 4, size)


def chunk_sizes(size: int, count: int) -> list[int]:
    """Return sizes of chunks, from the whole array down to a thousandth of it."""
    return sorted({max(1, round(size / cuts)) for cuts in np.geomspace(1, 1000, count)})


# %%
# One graph holds the sums of all chunkings, and of all three functions.


def sums(values: Any, sizes: list[int], runtime: backends.Runtime) -> dict[str, Any]:
    """Return the sums for every size of chunks, by what summed them."""
    arrays = [runtime.move(da.from_array(values, size, name=False)) for size in sizes]
    lazy = [add(x) for add in SUMS.values() for x in arrays]
    found = np.array(runtime.compute(*lazy), "f8").reshape(len(SUMS), len(sizes))
    return dict(zip(SUMS, found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Sums an array in chunks of many sizes.")
    parser.add_argument(
        "--size", type=int, default=4_000_000, metavar="N", help="how many numbers (4000000)"
    )
    parser.add_argument(
        "--chunkings", type=int, default=40, metavar="N", help="how many sizes of chunks (40)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()

    values = measurements(given.size)
    sizes = chunk_sizes(given.size, given.chunkings)
    exact = math.fsum(values)
    with backends.start() as runtime:
        start = perf_counter()
        found = sums(values, sizes, runtime)
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    print(f"numbers: {given.size}, cut in {len(sizes)} ways, summed in {seconds:.2f} s")
    for name, results in found.items():
        off = np.abs(results - exact).max() / np.spacing(abs(exact))
        print(f"{name}: {len(set(results.tolist()))} results, off by up to {off:.0f} last digits")
    path = given.out / "reproducible.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, given.size, sizes, found, exact)
    print(f"figure: {path}")


def save_figure(
    path: Path, size: int, sizes: list[int], found: dict[str, Any], exact: float
) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(12, 6), layout="constrained")
    figure.suptitle(
        "One array, summed in chunks of many sizes", fontsize="x-large", fontweight="bold"
    )
    chunks = np.ceil(size / np.array(sizes))
    sizes_of_dots = (6, 9, 4)
    for (name, results), color, dot in zip(found.items(), COLORS, sizes_of_dots, strict=True):
        distinct = len(set(results.tolist()))
        label = f"{name}: {distinct} result{'s' * (distinct > 1)}"
        off = (results - exact) / np.spacing(abs(exact))
        axes.plot(chunks, off, "o-", color=color, markersize=dot, linewidth=1, label=label)
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set(xscale="log", xlabel="chunks")
    axes.set_ylabel("difference from the exact sum,\nin units of its last binary digit")
    axes.legend(loc="best", frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
