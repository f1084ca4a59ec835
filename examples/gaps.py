"""Gaps filled, a series smoothed
==============================

``dc.ffill`` fills short gaps of a sensor's series with the last sample before them, wherever chunks
end, and keeps long gaps. ``dc.move_mean`` smooths the series by the mean of two hours around each
sample. ``dc.cumulative_trapezoid`` integrates the flow over time; during long gaps it integrates
``dc.ewm_mean``, an average that weights the last day before the gap most. The plot shows four days
with three long gaps, and the volume.

Run it as ``python examples/gaps.py --days 30 --out demo``.
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

#: Samples of a day: one a minute.
DAY = 1440


def series(days: int, chunk: int) -> da.Array:
    """Return a flow in litres a minute, with noise, lost samples and outages of hours."""
    rng = da.random.default_rng(3)
    n, like = days * DAY, {"size": days * DAY, "chunks": chunk}
    hour = da.arange(n, chunks=chunk) / 60
    flow = 20 + 8 * da.sin(hour / 12 * np.pi) + 3 * da.sin(hour / 60) + rng.normal(scale=2, **like)
    # An outage lasts as long as few numbers of a running sum come between two integers.
    outage = dc.cumsum(rng.random(**like) < 6 / DAY) % 8 == 7
    return da.where(outage | (rng.random(**like) < 0.15), np.nan, flow)


def fill_and_smooth(x: da.Array, limit: int, window: int) -> tuple[da.Array, da.Array]:
    """Return a series with its short gaps filled, and the smoothed one, with gaps where it has."""
    filled = dc.ffill(x, limit=limit)
    smooth = dc.move_mean(filled, window, min_count=1, center=True)
    return filled, da.where(da.isnan(filled), np.nan, smooth)


def volume(filled: da.Array) -> da.Array:
    """Return the litres up to each sample; long gaps have the mean of what is before them."""
    flow = da.where(da.isnan(filled), dc.ewm_mean(filled, halflife=DAY), filled)
    # Before the first sample there is none but that.
    return dc.cumulative_trapezoid(dc.bfill(flow), dx=1, initial=0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fills, smooths and integrates a sensor's series.")
    parser.add_argument("--days", type=int, default=30, metavar="N", help="days of the series")
    parser.add_argument("--chunk", type=int, default=5000, metavar="N", help="samples in a chunk")
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="samples filled in a row"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        x = runtime.move(series(given.days, given.chunk))
        filled, smooth = fill_and_smooth(x, given.limit, 121)
        found = runtime.compute(x, filled, smooth, volume(filled))
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    raw, full, _, litres = found
    print(f"samples: {x.size} in {x.npartitions} chunks, in {seconds:.2f} s")
    print(
        f"missing: {np.isnan(raw).sum()}, of which {np.isnan(full).sum()} in gaps too long to fill"
    )
    print(f"volume: {litres[-1] / 1000:.1f} cubic metres")
    path = given.out / "gaps.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, *found)
    print(f"figure: {path}")


def save_figure(path: Path, raw: Any, filled: Any, smooth: Any, litres: Any) -> None:
    from matplotlib import pyplot

    day = np.arange(len(raw)) / DAY
    figure = pyplot.figure(figsize=(9.6, 5.6), layout="constrained")
    figure.suptitle("Short gaps are filled, long ones stay", fontsize="x-large", fontweight="bold")
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 2), sharex=True)
    shown = day < 4
    where = np.isnan(filled[shown])
    upper.fill_between(
        day[shown],
        0,
        1,
        where=where,
        color="0.92",
        transform=upper.get_xaxis_transform(),
        label="too long to fill",
        linewidth=0,
    )
    upper.plot(day[shown], raw[shown], ".", color="0.65", markersize=2, label="samples")
    added = np.where(np.isnan(raw), filled, np.nan)
    upper.plot(day[shown], added[shown], "+", color="#c8553d", markersize=4, label="filled")
    upper.plot(day[shown], smooth[shown], color="#17395c", linewidth=2, label="mean of two hours")
    upper.set(ylabel="flow, litres a minute")
    upper.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=4, frameon=False)
    lower.plot(day[shown], litres[shown] / 1000, color="0.2")
    lower.set(xlabel="day", ylabel="volume, cubic metres", xlim=(0, day[shown][-1]), ylim=(0, None))
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
