"""Weighted draws
==============

The cumulative sum of the weights gives each element an interval as long as its weight. A uniform
random number lies in one of these intervals, and ``dc.searchsorted`` finds which, chunk by chunk.
The plot compares the draws with the weights: 95 % of the differences should lie within two standard
deviations, the grey band.

Run it as ``python examples/sampling.py --draws 1000000 --out demo``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop.cli import backends

BINS = 200


def landscape(size: int, chunk: int) -> da.Array:
    """Return weights: three hills, uneven from one element to the next, and a stretch of zeros."""
    place = da.linspace(0, 1, size, chunks=chunk)
    hills = sum(
        height * da.exp(-(((place - middle) / width) ** 2))
        for height, middle, width in ((1, 0.2, 0.06), (2, 0.5, 0.03), (0.7, 0.75, 0.12))
    )
    uneven = da.random.default_rng(0).exponential(size=size, chunks=chunk)
    return da.where(abs(place - 0.35) < 0.03, 0, (hills + 0.1) * uneven)


def draw(weights: da.Array, numbers: da.Array) -> da.Array:
    """Return the elements that numbers draw by the weights.

    Parameters
    ----------
    weights : dask.array.Array
        Not negative, of one axis.
    numbers : dask.array.Array
        Evenly distributed from 0 to 1, without 1, of any shape.

    Returns
    -------
    dask.array.Array
        Lazy: an index for each number, in its chunks. What has no weight is not drawn, but where
        rounding makes a difference of sums that should be equal.
    """
    sums = dc.cumsum(weights)
    return dc.searchsorted(sums, numbers * sums[-1], side="right")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws from an array by its weights.")
    parser.add_argument("--size", type=int, default=1_000_000, metavar="N", help="how many weights")
    parser.add_argument("--draws", type=int, default=1_000_000, metavar="N", help="how many draws")
    parser.add_argument(
        "--chunk", type=int, default=100_000, metavar="N", help="weights, and draws, in a chunk"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        weights = runtime.move(landscape(given.size, given.chunk))
        numbers = da.random.default_rng(1).random(given.draws, chunks=given.chunk)
        drawn = draw(weights, runtime.move(numbers))
        place = runtime.move(da.arange(given.size, chunks=given.chunk))
        bins, whole = min(BINS, given.size), (0, given.size)
        counts, edges = dc.histogram(drawn, bins, whole)
        expected, _ = dc.histogram(place, bins, whole, weights=weights)
        expected = expected / dc.sum(weights) * given.draws
        start = perf_counter()
        counts, expected = runtime.compute(counts, expected)
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    print(f"draws: {given.draws} from {given.size} weights, in {seconds:.2f} s")
    beyond = np.abs(deviations(counts, expected)) > 2
    print(f"bins: {bins}, of which {beyond.sum()} deviate by more than 2 standard deviations")
    path = given.out / "sampling.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, counts, expected, edges)
    print(f"figure: {path}")


def deviations(counts: Any, expected: Any) -> Any:
    """Return by how many standard deviations of chance counts are off; 0 where none is expected."""
    chance = np.sqrt(expected * (1 - expected / counts.sum()))
    return np.divide(counts - expected, chance, out=np.zeros(len(counts)), where=chance > 0)


def save_figure(path: Path, counts: Any, expected: Any, edges: Any) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9.6, 5.6), layout="constrained")
    figure.suptitle("Random draws follow their weights", fontsize="x-large", fontweight="bold")
    above, below = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    above.stairs(counts, edges, fill=True, color="0.75", label="draws")
    above.stairs(expected, edges, color="#c8553d", linewidth=1.2, label="expected from the weights")
    above.set(xlim=(edges[0], edges[-1]), ylim=0, ylabel="draws per bin")
    above.legend(loc="upper right")
    below.axhspan(-2, 2, color="0.93")
    below.stairs(deviations(counts, expected), edges, color="0.3", linewidth=1, baseline=None)
    below.set(xlabel="index of the element", ylabel="difference,\nstd. deviations")
    below.xaxis.set_major_formatter("{x:,.0f}")
    above.yaxis.set_major_formatter("{x:,.0f}")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
