"""A histogram while a file streams from the disk
==============================================

The tasks of one computation read a .npy file in stretches: while one chunk is read, others are
counted. With a GPU, ``dc.to_gpu`` reads chunks into pinned memory and copies them while others are
counted; without one, chunks are views of the mapped file. The plots show the growing histogram, and
when each stretch was done.

Run it as ``python examples/stream.py --size 64000000 --out demo``.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop.cli import backends

BINS, LIMITS = 300, (0.0, 12.0)


def write(path: Path, size: int) -> None:
    """Write a file of lifetimes: short ones, and more and more around seven."""
    rng = np.random.default_rng(0)
    out = np.lib.format.open_memmap(path, mode="w+", dtype="f4", shape=(size,))
    for start in range(0, size, 1 << 22):
        stop = min(start + (1 << 22), size)
        slow = rng.random(stop - start, "f4") < (start + stop) / 2 / size
        fast = rng.standard_exponential(stop - start, "f4")
        out[start:stop] = np.where(slow, rng.normal(7, 1, stop - start), fast)
    out.flush()


def count(x: da.Array, stretches: int) -> list[da.Array]:
    """Return a histogram of each of so many stretches of an array, with the time behind it."""
    ends = np.linspace(0, x.numblocks[0], stretches + 1).round().astype(int)
    parts = [x.blocks[a:b] for a, b in pairwise(ends) if a < b]
    counts = [dc.to_host(dc.histogram(part, BINS, LIMITS)[0]) for part in parts]
    return [one.map_blocks(stamp, dtype="f8", chunks=(BINS + 1,)) for one in counts]


def stamp(counts: Any) -> Any:
    """Return counts with the seconds of a clock behind them."""
    return np.append(counts, perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts a file while it is read.")
    parser.add_argument(
        "--size", type=int, default=32_000_000, metavar="N", help="numbers in the file (32000000)"
    )
    parser.add_argument(
        "--chunk", type=int, default=1_000_000, metavar="N", help="numbers in a chunk (1000000)"
    )
    parser.add_argument(
        "--stretches", type=int, default=16, metavar="N", help="histograms on the way (16)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()

    with TemporaryDirectory() as folder, backends.start() as runtime:
        file = Path(folder) / "lifetimes.npy"
        write(file, given.size)
        x = runtime.move(dc.from_npy(file, chunks=given.chunk))
        lazy = count(x, given.stretches)
        # What is launched first is loaded then, which would look like a slow disk.
        runtime.compute(*count(x.blocks[:1], 1))
        start = perf_counter()
        found = np.array(runtime.compute(*lazy))
        counts, seconds = found[:, :-1], found[:, -1] - start
        print(f"backend: {runtime.name}")
    print(f"numbers: {given.size} in {x.npartitions} chunks, in {seconds.max():.3f} s")
    print(f"counted: {counts.sum():.0f}, in {len(counts)} histograms")
    path = given.out / "stream.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, counts, seconds, x.nbytes)
    print(f"figure: {path}")


def save_figure(path: Path, counts: Any, seconds: Any, nbytes: int) -> None:
    from matplotlib import colormaps, pyplot

    figure = pyplot.figure(figsize=(9.6, 4.8), layout="constrained")
    figure.suptitle("A histogram grows while a file is read", fontsize="x-large", fontweight="bold")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    order = np.argsort(seconds)
    grown = counts[order].cumsum(axis=0)
    edges = np.linspace(*LIMITS, counts.shape[1] + 1)
    colors = colormaps["viridis"](np.linspace(0, 0.95, len(grown)))
    # The last is the largest, so it is drawn first.
    for some, color in zip(grown[::-1], colors[::-1], strict=True):
        left.stairs(some / 1e3, edges, fill=True, color=color)
    left.set(xlim=LIMITS, ylim=(0, np.quantile(grown[-1], 0.995) / 1e3))
    left.set(xlabel="lifetime, microseconds", ylabel="thousands of values per bin")
    left.set_title("after each stretch of the file, from dark to light")
    share = np.arange(1, len(order) + 1) / len(order)
    right.scatter(seconds[order] * 1e3, share * 100, c=colors, s=45, zorder=2)
    right.set(xlim=(0, None), ylim=(0, 103))
    right.set(xlabel="milliseconds since the start", ylabel="% of the file counted")
    right.set_title(f"{nbytes / 1e6:.0f} MB in {len(order)} stretches")
    right.grid(alpha=0.3)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
