"""Box filters and moving averages
===============================

Three calls of ``dc.box_filter``, one after the other, smooth a noisy picture nearly as a Gaussian
filter does. ``dc.move_mean`` and ``dc.move_std`` smooth a noisy series; their windows of 30 days
are longer than its chunks. One reading of 1e16 spoils the windows that contain it, and no others.

Run it as ``python examples/smooth.py --side 400 --out demo``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_coop as dc


def field(side: int = 400, seed: int = 0) -> tuple[Any, da.Array]:
    """Return waves in a field, and the same with noise and a few readings that are far off."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side
    clean = np.sin(14 * x + 5 * np.sin(6 * y)) + np.cos(9 * y * (1 + x))
    noisy = clean + rng.normal(0, 0.8, clean.shape)
    noisy[rng.random(clean.shape) < 0.002] += 20
    return clean, da.from_array(noisy, chunks=(90, 150))


def smooth(picture: da.Array, size: int = 9, times: int = 3) -> da.Array:
    """Return means of boxes of means of boxes: lazy, in the chunks of the picture."""
    for _ in range(times):
        picture = dc.box_filter(picture, size)
    return picture


def series(days: int = 400, seed: int = 1) -> da.Array:
    """Return hourly readings of a year with its days, a lasting gap and one reading far off."""
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    values = 12 - 9 * np.cos(2 * np.pi * hours / 8766) + 4 * np.sin(2 * np.pi * hours / 24)
    values += rng.normal(0, 2, hours.size).cumsum() / 60 + rng.normal(0, 1.5, hours.size)
    values[3000:3700] = np.nan
    values[6000] = 1e16
    return da.from_array(values, chunks=500)


def trend(x: da.Array, hours: int = 24 * 30) -> tuple[da.Array, da.Array]:
    """Return centred means and deviations of a month, where at least a quarter of it is there."""
    given = {"min_count": hours // 4, "center": True}
    return dc.move_mean(x, hours, **given), dc.move_std(x, hours, **given)


def main() -> None:
    parser = argparse.ArgumentParser(description="Smooths a noisy picture and a noisy series.")
    parser.add_argument(
        "--side", type=int, default=400, metavar="N", help="pixels of a side of the picture (400)"
    )
    parser.add_argument(
        "--days", type=int, default=400, metavar="N", help="days of the series (400)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()
    clean, noisy = field(given.side)
    readings = series(given.days)
    means, deviations = trend(readings)
    results = dask.compute(noisy, smooth(noisy), readings, means, deviations)
    print(f"off by {_off(results[0], clean):.2f} before, {_off(results[1], clean):.2f} after")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "smooth.png"
    save(path, clean, *results)
    print(f"figure: {path}")


def _off(a: Any, b: Any) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)))


def save(
    path: Path, clean: Any, noisy: Any, smoothed: Any, readings: Any, means: Any, deviations: Any
) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9.6, 6.0), layout="constrained")
    figure.suptitle(
        "Smoothed by box filters and by moving means", fontsize="x-large", fontweight="bold"
    )
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    pictures = {"original": clean, "with noise": noisy, "after three box filters": smoothed}
    for axes, (name, picture) in zip(above.subplots(1, 3), pictures.items(), strict=True):
        axes.imshow(picture, cmap="viridis", vmin=-2.5, vmax=2.5)
        axes.set_title(name)
        axes.axis("off")
    axes = below.subplots()
    day = np.arange(readings.size) / 24
    axes.plot(day, readings, ".", ms=1, color="0.7", label="hourly readings, one of them 1e16")
    axes.fill_between(day, means - deviations, means + deviations, color="tab:orange", alpha=0.3)
    axes.plot(day, means, color="tab:red", label="mean and standard deviation of 30 days")
    axes.set(xlim=(0, day[-1]), ylim=(-12, 36), xlabel="day", ylabel="temperature, °C")
    axes.text(6000 / 24, -10, "windows with\nthe 1e16", ha="center")
    axes.legend(loc="upper left", markerscale=6)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
