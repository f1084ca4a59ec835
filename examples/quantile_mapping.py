"""Quantile mapping of a model
===========================

A model that is too warm or too cold, and too lively, is corrected day by day: each temperature
keeps its rank among the model's days within two weeks of that day of the year, and takes what
observations have at this rank. ``dc.quantile`` finds the quantiles of all windows over all years;
each chunk of time is then taken along them. The first half of the years is learned from, and the
maps are of the others: how far warm days are off, before and after. The fields are generated, in
years of 365 days.

Run it as ``python examples/quantile_mapping.py --years 20 --out demo``.
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

#: Rows and columns of the fields: northern latitudes, and longitudes.
SHAPE = 12, 24
#: Days of a year, and of a window around each of them.
YEAR, WINDOW = 365, 31
#: The quantiles of a window. What is beyond is corrected as the outermost ones are.
SHARES = np.linspace(0.01, 0.99, 33)
#: The cell that is drawn by itself.
CELL = 8, 5
#: The colour and line style of each curve.
LOOKS = {"observed": ("#333333", "-"), "model": ("#c8553d", "--"), "corrected": ("#2b5d8a", "--")}


def fields(years: int, chunk: int) -> tuple[da.Array, da.Array]:
    """Return observed and modelled temperatures, along latitude, longitude and days."""
    latitude = np.deg2rad(np.linspace(20, 75, SHAPE[0]))[:, np.newaxis, np.newaxis]
    longitude = np.deg2rad(np.linspace(7.5, 352.5, SHAPE[1]))[:, np.newaxis]
    land = np.clip(0.4 + np.sin(2 * longitude + 1) + 0.5 * np.sin(5 * longitude), 0, 1)
    of_year = np.arange(years * YEAR) % YEAR / YEAR
    winter = np.cos(2 * np.pi * (of_year - 0.05))
    mean = 40 * np.cos(latitude) ** 2 - 8 - (5 + 12 * land) * np.sin(latitude) * winter
    # The model is off from place to place, too cold over land in winter, and too lively.
    bias = 2 * np.sin(3 * longitude + 2 * latitude) - land * (2 + 2 * winter)
    rng, pair = da.random.default_rng(0), []
    for steady, spread in ((mean, 3 + 2 * land), (mean + bias, 4 + 3 * land - land * winter)):
        noise = rng.normal(size=steady.shape, chunks=(-1, -1, chunk))
        weather = 2 * dc.ewm_mean(noise, axis=-1, alpha=0.4)
        # Cold spells reach farther than warm ones.
        weather = spread * (weather - 0.1 * weather**2)
        pair.append((da.from_array(steady, chunks=noise.chunks) + weather).astype("f4"))
    return pair[0], pair[1]


def quantiles_by_day(x: da.Array, shares: Any, window: int = WINDOW) -> da.Array:
    """Return quantiles of the days around each day of the year, of all years together.

    Parameters
    ----------
    x : dask.array.Array
        Whole years of 365 days along the last axis, in any chunks.
    shares : array_like
        The quantiles.
    window : int
        How many days of each year belong to a day. The first days of a year have the last ones
        beside them.

    Returns
    -------
    dask.array.Array
        Lazy: an axis of quantiles, those of `x`, and the days of the year in the place of time.
    """
    # A task lays out the windows of some cells.
    lines = x.rechunk({0: 1, x.ndim - 1: -1})
    days = ((x.shape[-1] // YEAR,), (YEAR,), (window,))
    windows = lines.map_blocks(
        lay_out,
        window,
        dtype=x.dtype,
        chunks=(*lines.chunks[:-1], *days),
        new_axis=(x.ndim, x.ndim + 1),
        meta=np.empty_like(x._meta, shape=(0,) * (x.ndim + 2)),
    )
    return dc.quantile(windows, shares, axis=(x.ndim - 1, x.ndim + 1))


def lay_out(block: Any, window: int) -> Any:
    """Return a view of years, their days, and the window around each."""
    years, before = block.reshape(*block.shape[:-1], -1, YEAR), window // 2
    ends = years[..., YEAR - before :], years, years[..., : window - 1 - before]
    around = np.concatenate(ends, axis=-1)
    return np.lib.stride_tricks.sliding_window_view(around, window, axis=-1)


def correct(x: da.Array, model: da.Array, observed: da.Array) -> da.Array:
    """Return temperatures of a model, from its quantiles by day and those that were observed."""
    cells, time, share, day = tuple(range(x.ndim - 1)), x.ndim - 1, x.ndim, x.ndim + 1
    days = da.arange(x.shape[-1], chunks=x.chunks[-1]) % YEAR
    model, observed = (y.rechunk((-1, *x.chunks[:-1], -1)) for y in (model, observed))
    return da.blockwise(
        follow,
        (*cells, time),
        *(x, (*cells, time), days, (time,)),
        *(model, (share, *cells, day), observed - model, (share, *cells, day)),
        concatenate=True,
        dtype=x.dtype,
        meta=x._meta,
    )


def follow(block: Any, day: Any, model: Any, change: Any) -> Any:
    """Return a chunk with the changes at its ranks, between the quantiles of each day."""
    day = np.asarray(day, like=block)
    model, change = model[..., day], change[..., day]
    place = np.clip((model <= block).sum(0, keepdims=True), 1, len(model) - 1)
    low, high = (np.take_along_axis(model, at, 0)[0] for at in (place - 1, place))
    first, last = (np.take_along_axis(change, at, 0)[0] for at in (place - 1, place))
    share = np.clip((block - low) / np.maximum(high - low, 1e-6), 0, 1)
    return (block + first + share * (last - first)).astype(block.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description="Corrects a model by quantiles of observations.")
    parser.add_argument("--years", type=int, default=20, metavar="N", help="years of 365 days")
    parser.add_argument("--chunk", type=int, default=800, metavar="N", help="days in a chunk")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        observed, model = map(runtime.move, fields(given.years, given.chunk))
        half = given.years // 2 * YEAR
        learned = (quantiles_by_day(x[..., :half], SHARES) for x in (model, observed))
        arrays = dict(zip(LOOKS, (observed, model, correct(model, *learned)), strict=True))
        later = {name: x[..., half:] for name, x in arrays.items()}
        warm = [dc.quantile(x, 0.95, axis=-1) for x in later.values()]
        shares = [0.05, 0.5, 0.95]
        cell = [quantiles_by_day(x[CELL][np.newaxis], shares) for x in later.values()]
        found = runtime.compute(*warm, *cell)
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    warm, cell = found[:3], [quantiles[:, 0] for quantiles in found[3:]]
    print(f"days: {model.shape[-1]} of {SHAPE[0]} x {SHAPE[1]} cells, in {seconds:.2f} s")
    before, after = (float(np.abs(x - warm[0]).mean()) for x in warm[1:])
    print(f"warm days: off by {before:.2f} degrees before, {after:.2f} after")
    path = given.out / "quantile_mapping.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, warm, cell)
    print(f"figure: {path}")


def save_figure(path: Path, warm: Any, cell: Any) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(12, 7), layout="constrained")
    figure.suptitle("Quantile mapping", fontsize="x-large", fontweight="bold")
    upper, lower = figure.subfigures(2, 1, height_ratios=(4, 3))
    for axes, name in zip(upper.subplots(1, 2, sharey=True), ("model", "corrected"), strict=True):
        for (known, look), (low, middle, high) in zip(LOOKS.items(), cell, strict=True):
            if known in ("observed", name):
                day = np.arange(1, YEAR + 1)
                color, style = look
                axes.fill_between(day, low, high, color=color, alpha=0.2, linewidth=0)
                axes.plot(day, middle, style, color=color, label=known)
        axes.set(title=f"a cell, observed and {name}", xlabel="day of the year", xlim=(1, YEAR))
        axes.legend(loc="upper left", frameon=False)
        if name == "model":
            axes.set_ylabel("degrees Celsius: median, and 5 to 95 %")
    errors = [x - warm[0] for x in warm[1:]]
    limit = float(np.abs(errors).max())
    maps = lower.subplots(1, 2, sharey=True)
    for axes, error, name in zip(maps, errors, ("model", "corrected"), strict=True):
        drawn = axes.imshow(
            error,
            extent=(0, 360, 20, 75),
            origin="lower",
            aspect="auto",
            cmap="cividis",
            vmin=-limit,
            vmax=limit,
        )
        axes.set(title=f"95th percentile, {name} less observed", xlabel="longitude, degrees")
    maps[0].set_ylabel("latitude, degrees")
    lower.colorbar(drawn, ax=maps, label="degrees Celsius")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
