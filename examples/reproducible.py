"""Sums that do not depend on how an array is cut
==============================================

A ledger of large amounts has an opposite for each entry, and one cent more: its sum is 1 cent.
Every addition of floats is rounded, and the rounding depends on the order of the additions. So the
sum changes with the size of the chunks, by more than the cent. ``dc.sum(x, reproducible=True)``
returns the same bits for every chunking, scheduler and machine, here the exact cent; ``dc.sum`` has
smaller errors than ``dask.array.sum``. The plot shows the sums for many sizes of chunks.

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
    "dc.sum(..., reproducible=True)": lambda x: dc.sum(x, reproducible=True),
}


def ledger(size: int) -> Any:
    """Return amounts of many magnitudes, each with its opposite, shuffled; one cent is left."""
    rng = np.random.default_rng(0)
    amounts = np.round(10 ** rng.uniform(0, 12, size // 2), 2)
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

    figure, rows = pyplot.subplots(
        len(found), 1, figsize=(9.6, 6), sharex=True, sharey=True, layout="constrained"
    )
    figure.suptitle("The sum of a ledger is 1 cent", fontsize="x-large", fontweight="bold")
    chunks = np.ceil(size / np.array(sizes))
    for axes, (name, results) in zip(rows, found.items(), strict=True):
        off, distinct = np.abs(results - exact).max() * 100, len(set(results.tolist()))
        said = "always the same sum"
        if distinct > 1:
            said = f"{distinct} different sums, off by up to {off:.1f} cents"
        axes.set_title(f"{name}: {said}", loc="left", fontsize="medium")
        axes.axhline(exact * 100, color="0.3", linewidth=0.8)
        axes.plot(chunks, results * 100, "o", color="#2b5d8a", markersize=4)
        axes.grid(alpha=0.3)
    rows[1].set_ylabel("sum, cents")
    rows[-1].set(xscale="log", xlabel="number of chunks")
    rows[-1].xaxis.set_major_formatter("{x:,.0f}")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
