"""Climatology and anomalies
=========================

A climatology is the mean of each month of the year over all years. ``dc.groupby_reduce`` computes
means and standard deviations in one read of all days, and the means of all months in another. An
anomaly is the difference of a month from its climatology. The maps show the means of January and
July, and the spread of the days of January. Below, the anomalies of 30 years show a warming. The
data are synthetic.

Run it as ``python examples/climatology.py --years 30 --out demo``.
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

#: Rows and columns of the field: latitudes from pole to pole, and longitudes.
SHAPE = 36, 72


def field(years: int, chunk: int) -> tuple[da.Array, Any]:
    """Return temperatures, along latitude, longitude and days, and the month of each day."""
    start = np.datetime64("1991-01-01")
    days = np.arange(start, start.astype("M8[Y]") + years, dtype="M8[D]")
    latitude = np.deg2rad(np.linspace(-87.5, 87.5, SHAPE[0]))[:, np.newaxis, np.newaxis]
    longitude = np.deg2rad(np.linspace(2.5, 357.5, SHAPE[1]))[:, np.newaxis]
    # Continents, where seasons and weather are stronger.
    land = np.sin(2 * longitude + 1) + 0.7 * np.sin(3 * longitude + 4 * latitude)
    land = np.clip(land * np.cos(latitude) + 0.6 * np.sin(2 * latitude), 0, 1).astype("f4")
    of_year = (days - days.astype("M8[Y]")).astype("f4") / 365.25
    course = -(8 + 14 * land) * np.sin(latitude) * np.cos(2 * np.pi * (of_year - 0.05))
    # Warm and cold spells of half a year, and a trend.
    noise = np.random.default_rng(1).normal(size=len(days) + 180)
    spells = np.convolve(noise, np.full(180, 180**-0.5), "valid")[: len(days)] / 6
    warming = np.arange(len(days)) / len(days) * (0.5 + 1.5 * np.clip(np.sin(latitude), 0, 1))
    mean = 42 * np.cos(latitude) ** 2 - 16
    lazy = da.from_array(mean + course + warming + spells, chunks=(-1, -1, chunk))
    weather = da.random.default_rng(0).normal(size=lazy.shape, chunks=lazy.chunks)
    return (lazy + weather * (2 + 3 * land)).astype("f4"), days.astype("M8[M]")


def climatology(x: da.Array, months: Any) -> tuple[da.Array, da.Array]:
    """Return the mean and the standard deviation of each month of the year."""
    of_year = months.astype("i8") % 12
    (mean, std), _ = dc.groupby_reduce(x, of_year, func=["mean", "std"])
    return mean, std


def anomalies(x: da.Array, months: Any, mean: da.Array) -> da.Array:
    """Return how far the mean of each month is from that of its month of the year."""
    of_months, labels = dc.groupby_reduce(x, months, func="mean")
    return of_months - mean[..., labels.astype("i8") % 12]


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds a climatology and anomalies.")
    parser.add_argument("--years", type=int, default=30, metavar="N", help="how many, from 1991 on")
    parser.add_argument("--chunk", type=int, default=365, metavar="N", help="days in a chunk")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        x, months = field(given.years, given.chunk)
        x = runtime.move(x)
        mean, std = climatology(x, months)
        mean, std, rest = runtime.compute(mean, std, anomalies(x, months, mean))
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    print(f"days: {x.shape[-1]} of {SHAPE[0]} x {SHAPE[1]} cells, in {seconds:.2f} s")
    print(f"months: {rest.shape[-1]}, the warmest {rest.mean((0, 1)).max():+.2f} degrees")
    path = given.out / "climatology.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, mean, std, rest)
    print(f"figure: {path}")


def save_figure(path: Path, mean: Any, std: Any, rest: Any) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9.6, 5.6), layout="constrained")
    figure.suptitle(
        "Months of 30 years, and how far each is from usual", fontsize="x-large", fontweight="bold"
    )
    upper, lower = figure.subfigures(2, 1, height_ratios=(3, 4))
    *means, spread = upper.subplots(1, 3, sharey=True)
    of_map = {"extent": (0, 360, -90, 90), "origin": "lower", "cmap": "viridis"}
    limits = {"vmin": mean.min(), "vmax": mean.max()}
    for axes, month, name in zip(means, (0, 6), ("January", "July"), strict=True):
        drawn = axes.imshow(mean[..., month], **of_map, **limits)
        axes.set(title=f"mean of {name}", xlabel="longitude, degrees")
    means[0].set_ylabel("latitude, degrees")
    upper.colorbar(drawn, ax=means, label="°C", shrink=0.8)
    drawn = spread.imshow(std[..., 0], **of_map)
    spread.set(title="spread of January's days", xlabel="longitude, degrees")
    upper.colorbar(drawn, ax=spread, label="standard deviation, °C", shrink=0.8)
    left, right = lower.subplots(2, 1, height_ratios=(3, 2))
    whole = rest.mean(1)
    limit = float(np.abs(whole).max())
    years = 1991 + np.arange(rest.shape[-1] + 1) / 12
    drawn = left.pcolormesh(
        years, np.linspace(-90, 90, SHAPE[0] + 1), whole, cmap="cividis", vmin=-limit, vmax=limit
    )
    left.set(title="anomalies of months, by latitude", ylabel="latitude, degrees")
    lower.colorbar(drawn, ax=left, label="anomaly, °C")
    values = whole.mean(0)
    right.bar(years[:-1], values, width=1 / 12, color=np.where(values > 0, "#c8553d", "#4a7fb5"))
    right.axhline(0, color="0.3", linewidth=0.8)
    right.set(xlim=(years[0], years[-1]), xlabel="year", ylabel="mean, °C")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
