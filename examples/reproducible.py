"""Sums that do not depend on how an array is cut
==============================================

Every entry of this ledger has its opposite somewhere else, but for one cent. Additions round off
more than that, and what they round off depends on their order, so Dask's sum is another one for
every size of chunks. ``dc.sum`` carries along most of what additions round off, and
``reproducible=True`` has the same bits for every chunking, scheduler and machine. The plot shows
how far each sum is from the exact one.

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


def ledger(size: int) -> Any:
    """Return amounts of many magnitudes, each with its opposite, shuffled; one cent is left."""
    rng = np.random.default_rng(0)
    amounts = np.round(10 ** rng.uniform(0, 9, size // 2), 2)
    return rng.permutation(np.concatenate((amounts, -amounts, [0.01])))


def chunk_sizes(size: int, count: int) -> list[int]:
    """Return sizes of chunks, from the whole array down to a thousandth of it."""
    return sorted({-(-size // round(cuts)) for cuts in np.geomspace(1, 1000, count)})


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
        "--size", type=int, default=1_000_000, metavar="N", help="how many entries (1000000)"
    )
    parser.add_argument(
        "--chunkings", type=int, default=40, metavar="N", help="how many sizes of chunks (40)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()

    values = ledger(given.size)
    sizes = chunk_sizes(values.size, given.chunkings)
    exact = math.fsum(values)
    with backends.start() as runtime:
        start = perf_counter()
        found = sums(values, sizes, runtime)
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    print(f"entries: {values.size}, cut in {len(sizes)} ways, summed in {seconds:.2f} s")
    for name, results in found.items():
        distinct, off = len(set(results.tolist())), np.abs(results - exact).max()
        print(f"{name}: {distinct} result{'s' * (distinct > 1)}, off by up to {off:.2g}")
    path = given.out / "reproducible.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, values.size, sizes, found, exact)
    print(f"figure: {path}")


def save_figure(
    path: Path, size: int, sizes: list[int], found: dict[str, Any], exact: float
) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(12, 6), layout="constrained")
    figure.suptitle(
        "One ledger, summed in chunks of many sizes", fontsize="x-large", fontweight="bold"
    )
    chunks = np.ceil(size / np.array(sizes))
    sizes_of_dots = (6, 9, 4)
    for (name, results), color, dot in zip(found.items(), COLORS, sizes_of_dots, strict=True):
        most = np.abs(results - exact).max()
        same = len(set(results.tolist())) == 1
        label = f"{name}: {'the same bits every time' if same else f'off by up to {most:.1g}'}"
        axes.plot(
            chunks, results - exact, "o-", color=color, markersize=dot, linewidth=1, label=label
        )
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set(xscale="log", xlabel="number of chunks")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel(f"difference from the exact sum, which is {exact:g}")
    axes.legend(loc="best", frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
