"""Five-number summary and outliers
================================

``dc.quantile`` computes exact quartiles of a year of a pressure sensor, and of each day, without a
sort. Tukey's fences lie 1.5 times the distance of the quartiles below the lower and above the upper
quartile; samples beyond them are outliers. ``dc.select`` selects the outliers with known chunk
sizes, so their number is known before they are read. The plot shows the quartiles of each day, the
fences, the outliers, and the box plot of all samples.

Run it as ``python examples/sensors.py --days 365 --out demo``.
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

#: Samples of a day: one every ten seconds.
DAY = 8640

#: The share of samples that the sensor gets wrong.
WRONG = 3e-5


def series(days: int, chunk: int) -> da.Array:
    """Return the pressure in bar, a day in each row, with a few wrong samples."""
    rng = da.random.default_rng(0)
    like = {"size": (days, DAY), "chunks": (chunk, DAY)}
    hour = da.linspace(0, 24, DAY, endpoint=False, chunks=DAY)
    load = 0.5 * da.cos((hour - 4) / 12 * np.pi)
    slow = dc.cumsum(rng.normal(scale=0.02, size=(days, 1), chunks=(chunk, 1)), axis=0)
    right = 6 + load + slow + rng.normal(scale=0.1, **like)
    error = da.where(rng.random(**like) < 0.5, -3, 3) + rng.normal(**like)
    return da.where(rng.random(**like) < WRONG, 6 + error, right)


def five_numbers(x: da.Array, axis: int | None = None) -> da.Array:
    """Return minimum, lower quartile, median, upper quartile and maximum."""
    return dc.quantile(x, [0, 0.25, 0.5, 0.75, 1], axis=axis)


def fences(summary: Any, reach: float = 1.5) -> tuple[float, float]:
    """Return what outliers are below and above: `reach` times as far out as quartiles are apart."""
    _, lower, _, upper, _ = map(float, summary)
    return lower - reach * (upper - lower), upper + reach * (upper - lower)


def find_outliers(x: da.Array, low: float, high: float) -> tuple[da.Array, ...]:
    """Return the samples that are below or above, and before them their indices along each axis.

    Chunk sizes are known, for which the samples are compared when this is called.
    """
    # Kept, a byte a sample, since it is read four times: for either, counted and selected by.
    is_outlier = ((x < low) | (x > high)).persist()
    indices = dc.nonzero(is_outlier, sizes="compute")
    return (*indices, dc.select(x, is_outlier, sizes="compute"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Summarises a sensor's series.")
    parser.add_argument(
        "--days", type=int, default=365, metavar="N", help=f"how many, of {DAY} samples each"
    )
    parser.add_argument("--chunk", type=int, default=30, metavar="N", help="days in a chunk")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        x = runtime.move(series(given.days, given.chunk))
        summary, days = runtime.compute(five_numbers(x), five_numbers(x, axis=1))
        low, high = fences(summary)
        day, sample, values = find_outliers(x, low, high)
        inside = (x >= low) & (x <= high)
        whiskers = (dc.min(x, where=inside, initial=high), dc.max(x, where=inside, initial=low))
        *whiskers, day, sample, values = runtime.compute(*whiskers, day, sample, values)
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    print(f"samples: {x.size} in {x.npartitions} chunks, in {seconds:.2f} s")
    names = ("minimum", "lower quartile", "median", "upper quartile", "maximum")
    for name, number in zip(names, summary, strict=True):
        print(f"{name}: {number:.4f} bar")
    print(f"outliers: {values.size}, below {low:.4f} or above {high:.4f} bar")
    path = given.out / "sensors.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, summary, days, whiskers, (low, high), day + sample / DAY, values)
    print(f"figure: {path}")


def save_figure(
    path: Path, summary: Any, days: Any, whiskers: Any, limits: Any, when: Any, values: Any
) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9.6, 4.8), layout="constrained")
    figure.suptitle("Samples beyond the fences are outliers", fontsize="x-large", fontweight="bold")
    left, right = figure.subplots(1, 2, width_ratios=(6, 1), sharey=True)
    _, lower, median, upper, _ = np.repeat(days, 2, axis=1)
    edges = np.repeat(np.arange(days.shape[1] + 1), 2)[1:-1]
    left.fill_between(
        edges, lower, upper, color="0.8", linewidth=0, label="between quartiles of a day"
    )
    left.plot(edges, median, color="0.3", linewidth=1, label="median")
    left.hlines(
        limits,
        0,
        edges[-1],
        color="0.5",
        linestyle="--",
        linewidth=1,
        label="fences: quartiles ± 1.5 x their distance",
    )
    left.plot(when, values, ".", color="#c8553d", markersize=5, label=f"{values.size} outliers")
    left.set(xlim=(0, edges[-1]), xlabel="day", ylabel="pressure, bar")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2, frameon=False)

    numbers = dict(zip(("q1", "med", "q3"), map(float, summary[1:4]), strict=True))
    box = {**numbers, "whislo": float(whiskers[0]), "whishi": float(whiskers[1]), "fliers": values}
    right.bxp(
        [box],
        widths=0.5,
        medianprops={"color": "black"},
        flierprops={"marker": ".", "markeredgecolor": "#c8553d", "markersize": 5},
    )
    right.set(xticks=[], xlabel="all samples")
    right.tick_params(left=False)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
