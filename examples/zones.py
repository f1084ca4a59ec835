"""Zonal statistics
================

``dc.groupby_reduce`` computes the areas, means, spreads, maxima and positions of the maxima of all
regions of a labelled picture in one read. The picture is the Hubble deep field that comes with
scikit-image. The brightest galaxy of each square of a grid is a maximum of a group, too, and a
region is all pixels nearest to one of these galaxies. The plots show the regions, their means with
the brightest pixel of each, and the maximum of each region beside its mean.

Run it as ``python examples/zones.py --copies 4 --out demo``.
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
from dask_coop.cli.describe.readers import open_source

#: What is found of each region.
FUNCS = ["count", "mean", "std", "max", "argmax"]


def picture(copies: int, chunk: int) -> da.Array:
    """Return the brightness of the deep field, and its mirrored copies beside and below it."""
    field = open_source("skimage:hubble_deep_field").array
    row = da.concatenate([field[:, :: -1 if i % 2 else 1] for i in range(copies)], axis=1)
    whole = da.concatenate([row[:: -1 if i % 2 else 1] for i in range(copies)])
    return dc.mean(whole.rechunk((chunk, chunk, -1)), axis=2, dtype="f4")


def coordinates(x: da.Array) -> list[da.Array]:
    """Return the rows of a picture as a column, and its columns as a row, in its chunks."""
    rows, columns = (da.arange(n, chunks=c) for n, c in zip(x.shape, x.chunks, strict=True))
    return [rows[:, np.newaxis], columns[np.newaxis]]


def squares(x: da.Array, side: int) -> tuple[da.Array, int]:
    """Return the number of the square that each pixel lies in, and how many squares there are."""
    row, column = coordinates(x)
    across = -(-x.shape[1] // side)
    return row // side * across + column // side, across * -(-x.shape[0] // side)


def nearest(x: da.Array, at: Any, reach: int) -> da.Array:
    """Return which of some places, of which one is within `reach`, is the nearest to each pixel."""
    return da.map_blocks(_nearest, *coordinates(x), at, reach, dtype="i4", chunks=x.chunks)


def _nearest(row: Any, column: Any, at: Any, reach: int) -> Any:
    best = np.full((row.shape[0], column.shape[1]), np.inf)
    found = np.zeros(best.shape, "i4")
    for i, (y, x) in enumerate(at):
        # What is farther from the block is nobody's nearest.
        in_rows = row[0, 0] - reach <= y <= row[-1, 0] + reach
        if in_rows and column[0, 0] - reach <= x <= column[0, -1] + reach:
            square = (row - y) ** 2 + (column - x) ** 2
            found = np.where(square < best, i, found)
            best = np.minimum(square, best)
    return found


def statistics(x: da.Array, labels: da.Array, count: int) -> dict[str, da.Array]:
    """Return statistics of all regions, by their names."""
    found, _ = dc.groupby_reduce(x, labels, func=FUNCS, expected_groups=range(count))
    return dict(zip(FUNCS, found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds statistics of a picture's regions.")
    parser.add_argument(
        "--copies", type=int, default=1, metavar="N", help="pictures beside and below (1)"
    )
    parser.add_argument("--side", type=int, default=110, metavar="N", help="of a square (110)")
    parser.add_argument("--chunk", type=int, default=512, metavar="N", help="pixels of a chunk")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        x = picture(given.copies, given.chunk)
        grid, count = squares(x, given.side)
        light = runtime.move(dc.box_filter(x, 5))
        (peaks,) = runtime.compute(statistics(light, runtime.move(grid), count)["argmax"])
        at = np.stack(np.divmod(peaks, x.shape[1]), 1)
        labels = nearest(x, at, 2 * given.side)
        lazy = statistics(runtime.move(x), runtime.move(labels), count)
        shown, zones, *found = runtime.compute(x, labels, *lazy.values())
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    found = dict(zip(lazy, found, strict=True))
    best = int(found["max"].argmax())
    row, column = divmod(int(found["argmax"][best]), x.shape[1])
    print(f"pixels: {x.size} in {count} regions, in {seconds:.2f} s")
    print(f"the brightest pixel: {found['max'][best]:.1f} at ({row}, {column}), in region {best}")
    print(f"areas: {found['count'].min()} to {found['count'].max()} pixels")
    path = given.out / "zones.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, shown, zones, found)
    print(f"figure: {path}")


def save_figure(path: Path, shown: Any, zones: Any, found: dict[str, Any]) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(11, 3.7), layout="constrained")
    figure.suptitle("Regions around bright galaxies", fontsize="x-large", fontweight="bold")
    left, middle, right = figure.subplots(1, 3, width_ratios=(3, 3, 3))
    left.imshow(np.sqrt(shown), cmap="gray")
    # As wide as can be seen.
    width = max(1, len(zones) // 250)
    edge = np.any([zones != np.roll(zones, width, axis) for axis in (0, 1)], axis=0)
    left.imshow(np.where(edge, 1.0, np.nan), cmap="Wistia", interpolation="nearest")
    left.set_title("galaxies and regions")
    row, column = np.divmod(found["argmax"], zones.shape[1])
    drawn = middle.imshow(found["mean"][zones], cmap="viridis", interpolation="nearest")
    middle.plot(column, row, ".", color="white", markersize=3)
    middle.set_title("means and brightest pixels")
    figure.colorbar(drawn, ax=middle, label="mean, pixel values 0 to 255", shrink=0.85)
    for axes in (left, middle):
        axes.set(xticks=[], yticks=[])
    area = right.scatter(found["mean"], found["max"], c=found["count"] / 1e3, s=16, cmap="plasma")
    right.set(xlabel="mean of a region", ylabel="maximum of a region", title="one dot a region")
    # As high as the pictures.
    right.set_box_aspect(shown.shape[0] / shown.shape[1])
    figure.colorbar(area, ax=right, label="thousands of pixels", shrink=0.85)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
