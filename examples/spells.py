"""Heat waves of each year
=======================

A heat wave is a spell of three days or more above the temperature that a cell exceeds on one day in
twenty. ``dc.run_events`` finds where spells begin, how long they last and how many degrees they
add up to, wherever chunks end, and ``dc.groupby_reduce`` makes years of these. The maps show how
heat waves become more frequent; below are a summer of one cell, and all cells' years. The field
is generated: continents, a year's course, weather that lasts some days and a trend.

Run it as ``python examples/spells.py --years 30 --out demo``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop.cli import backends

#: Rows and columns of the field: northern latitudes, and longitudes.
SHAPE = 18, 36
#: The cell that is drawn by itself.
CELL = 9, 14


class Years(NamedTuple):
    """Heat waves of each cell and year: numbers, days, the longest one, and degrees added up."""

    number: Any
    days: Any
    longest: Any
    degrees: Any


def field(years: int, chunk: int) -> tuple[da.Array, Any]:
    """Return temperatures, along latitude, longitude and days, and the year of each day."""
    start = np.datetime64("1991-01-01")
    days = np.arange(start, start.astype("M8[Y]") + years, dtype="M8[D]")
    latitude = np.deg2rad(np.linspace(20, 70, SHAPE[0]))[:, np.newaxis, np.newaxis]
    longitude = np.deg2rad(np.linspace(5, 355, SHAPE[1]))[:, np.newaxis]
    land = np.clip(0.4 + np.sin(2 * longitude + 1) + 0.5 * np.sin(5 * longitude), 0, 1)
    of_year = (days - days.astype("M8[Y]")).astype("f4") / 365.25
    course = -(5 + 12 * land) * np.sin(latitude) * np.cos(2 * np.pi * (of_year - 0.05))
    warming = np.arange(len(days)) / len(days) * (0.8 + 1.6 * land)
    mean = 40 * np.cos(latitude) ** 2 - 8
    rng = da.random.default_rng(0)
    noise = rng.normal(size=(*SHAPE, len(days)), chunks=(-1, -1, chunk))
    # Weather is as large as some cells, and lasts some days.
    noise = 5 * dc.box_filter(dc.box_filter(noise, 5, [0]), 5, [1], mode="wrap")
    weather = dc.ewm_mean(noise, axis=-1, alpha=0.35)
    years_of = days.astype("M8[Y]").astype("i8") + 1970
    warm = np.random.default_rng(1).normal(size=years)[years_of - 1991] / 2
    steady = da.from_array(mean + course + warming + warm, chunks=noise.chunks)
    return (steady + weather * (4 + 5 * land)).astype("f4"), years_of


def heat_waves(x: da.Array, limit: da.Array, years: Any, least: int) -> dc.RunEvents:
    """Return spells of at least some days above a limit, which end with their year."""
    above = x - limit[..., np.newaxis]
    begins = np.diff(years, prepend=years[0]) > 0
    return dc.run_events(above > 0, above, -1, least, segments=begins)


def of_years(events: dc.RunEvents, years: Any) -> Years:
    """Return what heat waves make of each year, by cell."""
    number, _ = dc.groupby_reduce(events.start, years, func="sum")
    (days, longest), _ = dc.groupby_reduce(events.length, years, func=["sum", "max"])
    degrees, _ = dc.groupby_reduce(events.sum, years, func="sum")
    return Years(number, days, longest, degrees)


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds the heat waves of each year.")
    parser.add_argument("--years", type=int, default=30, metavar="N", help="how many, from 1991 on")
    parser.add_argument("--chunk", type=int, default=500, metavar="N", help="days in a chunk")
    parser.add_argument("--least", type=int, default=3, metavar="N", help="days of a heat wave")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        x, years = field(given.years, given.chunk)
        x = runtime.move(x)
        limit = dc.quantile(x, 0.95, axis=-1).rechunk(-1)
        events = heat_waves(x, limit, years, given.least)
        one = x[CELL], limit[CELL], events.length[CELL]
        *waves, degrees, limit, length = runtime.compute(*of_years(events, years), *one)
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    found = Years(*waves)
    print(f"days: {x.shape[-1]} of {SHAPE[0]} x {SHAPE[1]} cells, in {seconds:.2f} s")
    often, most = found.number.mean(), found.longest.max()
    print(f"heat waves: {often:.2f} a year and cell, of up to {most} days")
    path = given.out / "spells.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, found, years, degrees, float(limit), length)
    print(f"figure: {path}")


def save_figure(
    path: Path, found: Years, years: Any, degrees: Any, limit: float, length: Any
) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(12, 7), layout="constrained")
    figure.suptitle("Heat waves", fontsize="x-large", fontweight="bold")
    upper, lower = figure.subfigures(2, 1, height_ratios=(3, 4))
    *means, longest = upper.subplots(1, 3, sharey=True)
    of_map = {"extent": (0, 360, 20, 70), "origin": "lower", "aspect": "auto"}
    names = np.unique(years)
    some = max(len(names) // 3, 1)
    parts = names[:some], names[-some:]
    days = [found.days[..., np.isin(names, part)].mean(-1) for part in parts]
    for axes, part, values in zip(means, parts, days, strict=True):
        drawn = axes.imshow(values, **of_map, cmap="YlOrRd", vmin=0, vmax=np.max(days))
        axes.set(title=f"{part[0]} to {part[-1]}", xlabel="longitude, degrees")
    means[0].set_ylabel("latitude, degrees")
    upper.colorbar(drawn, ax=means, label="days of heat waves a year", shrink=0.9)
    drawn = longest.imshow(found.longest.max(-1), **of_map, cmap="magma_r")
    longest.set(title="the longest one", xlabel="longitude, degrees")
    upper.colorbar(drawn, ax=longest, label="days", shrink=0.9)
    left, right = lower.subplots(2, 1)
    hottest = names[found.degrees[CELL].argmax()]
    day = np.arange(120, 280)
    summer, lengths = (values[years == hottest][day] for values in (degrees, length))
    left.plot(day, summer, color="0.3", linewidth=1)
    for begin in np.flatnonzero(lengths):
        left.axvspan(day[begin] - 0.5, day[begin] + lengths[begin] - 0.5, color="#f3cfc6")
    left.axhline(limit, color="#c8553d", linewidth=0.8, linestyle="--")
    left.set(title=f"a cell in {hottest}, its heat waves, and what it exceeds on one day in twenty")
    left.set(xlabel="day of the year", ylabel="degrees Celsius", xlim=(day[0], day[-1]))
    right.bar(names, found.number.mean((0, 1)), color="#c8553d", width=0.7)
    right.set(xlabel="year", ylabel="heat waves a cell")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
