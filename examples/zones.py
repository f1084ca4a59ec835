"""Zonal statistics
================

Areas, means, spreads, maxima and where these are: all statistics of all regions of a labelled
picture are found by ``dc.groupby_reduce`` in one read. The picture is generated, of stars of many
sizes over noise, and so are the labels: the cell of the nearest star. The plots show the regions,
their means with the place of the brightest pixel of each, and how area and maximum go together.

Run it as ``python examples/zones.py --size 2048 --out demo``.
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

#: What is found of each region.
FUNCS = ["count", "mean", "std", "max", "argmax"]


def stars(size: int, count: int) -> tuple[Any, Any]:
    """Return where stars are, and how bright."""
    rng = np.random.default_rng(0)
    return rng.random((count, 2)) * size, rng.pareto(1.5, count) + 1


def picture(size: int, count: int, chunk: int) -> tuple[da.Array, da.Array]:
    """Return a picture of stars, and which star is the nearest to each pixel."""
    at, bright = stars(size, count)
    y = da.arange(size, chunks=chunk)[:, np.newaxis]
    x = da.arange(size, chunks=chunk)[np.newaxis]
    near = da.map_blocks(_nearest, y, x, at, dtype="f8", chunks=(y.chunks[0], x.chunks[1]))
    labels = near.astype("i4")
    distance = da.map_blocks(_distance, y, x, labels, at, dtype="f8")
    width = size / count**0.5 / 6
    light = da.map_blocks(_light, distance, labels, bright, width, dtype="f8")
    noise = da.random.default_rng(1).normal(scale=0.05, size=(size, size), chunks=chunk)
    return (light + noise).astype("f4"), labels


def _nearest(y: Any, x: Any, at: Any) -> Any:
    best, found = np.full((y.shape[0], x.shape[1]), np.inf), np.zeros((y.shape[0], x.shape[1]))
    for i, (row, column) in enumerate(at):
        square = (y - row) ** 2 + (x - column) ** 2
        found = np.where(square < best, i, found)
        best = np.minimum(square, best)
    return found


def _distance(y: Any, x: Any, labels: Any, at: Any) -> Any:
    return np.hypot(y - at[labels, 0], x - at[labels, 1])


def _light(distance: Any, labels: Any, bright: Any, width: float) -> Any:
    return bright[labels] * np.exp(-((distance / width) ** 2))


def statistics(x: da.Array, labels: da.Array, count: int) -> dict[str, da.Array]:
    """Return statistics of all regions, by their names."""
    found, _ = dc.groupby_reduce(x, labels, func=FUNCS, expected_groups=range(count))
    return dict(zip(FUNCS, found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds statistics of a picture's regions.")
    parser.add_argument("--size", type=int, default=2048, metavar="N", help="pixels of a side")
    parser.add_argument("--stars", type=int, default=80, metavar="N", help="how many")
    parser.add_argument("--chunk", type=int, default=512, metavar="N", help="pixels of a chunk")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        x, labels = (runtime.move(one) for one in picture(given.size, given.stars, given.chunk))
        lazy = statistics(x, labels, given.stars)
        shown, zones, *found = runtime.compute(x, labels, *lazy.values())
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    found = dict(zip(lazy, found, strict=True))
    best = int(found["max"].argmax())
    row, column = divmod(int(found["argmax"][best]), given.size)
    print(f"pixels: {x.size} in {given.stars} regions, in {seconds:.2f} s")
    print(f"the brightest pixel: {found['max'][best]:.2f} at ({row}, {column}), in region {best}")
    print(f"areas: {found['count'].min()} to {found['count'].max()} pixels")
    path = given.out / "zones.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, shown, zones, found)
    print(f"figure: {path}")


def save_figure(path: Path, shown: Any, zones: Any, found: dict[str, Any]) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(12, 4.6), layout="constrained")
    figure.suptitle("Regions of a picture", fontsize="x-large", fontweight="bold")
    left, middle, right = figure.subplots(1, 3)
    size, step = len(shown), max(1, len(shown) // 512)
    extent = (0, size, size, 0)
    left.imshow(np.sqrt(np.clip(shown[::step, ::step], 0, 4)), cmap="gray", extent=extent)
    edges = zones[::step, ::step]
    edge = (np.diff(edges, axis=0, prepend=edges[:1]) != 0) | (
        np.diff(edges, axis=1, prepend=edges[:, :1]) != 0
    )
    left.imshow(np.where(edge, 1.0, np.nan), cmap="autumn", extent=extent, interpolation="nearest")
    left.set(title="picture and regions")
    row, column = np.divmod(found["argmax"], size)
    drawn = middle.imshow(
        np.log10(found["mean"])[edges], extent=extent, cmap="viridis", interpolation="nearest"
    )
    middle.plot(column, row, ".", color="white", markersize=3)
    middle.set(title="mean of a region, and its brightest pixel")
    figure.colorbar(drawn, ax=middle, label="log10 of the mean")
    right.scatter(found["count"], found["max"], c=np.log10(found["mean"]), s=16)
    right.set(xlabel="area, pixels", ylabel="maximum", yscale="log", title="areas and maxima")
    right.locator_params(axis="x", nbins=4)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
