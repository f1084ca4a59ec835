"""Galaxies counted and measured
=============================

``dc.label`` labels regions that are brighter than their surroundings in the Hubble deep field,
which comes with scikit-image. A region that crosses chunks gets one label, the one that SciPy gives
it. ``dc.ndmeasure`` computes areas, sums of light and centres, each in one read of the picture.
Only the labels along the faces of chunks are compared, so the picture may be larger than memory.
The plots show the brightest regions, and how many regions have how much light.

Run it as ``python examples/galaxies.py --copies 4 --out demo``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop import ndmeasure
from dask_coop.cli import backends
from dask_coop.cli.describe.readers import open_source

#: Regions touch at their corners, too.
CORNERS = np.ones((3, 3))


def picture(copies: int, chunk: int) -> da.Array:
    """Return the brightness of the deep field, and its mirrored copies beside and below it."""
    field = open_source("skimage:hubble_deep_field").array
    row = da.concatenate([field[:, :: -1 if i % 2 else 1] for i in range(copies)], axis=1)
    whole = da.concatenate([row[:: -1 if i % 2 else 1] for i in range(copies)])
    return dc.mean(whole.rechunk((chunk, chunk, -1)), axis=2, dtype="f4")


def find(light: da.Array, above: float) -> tuple[da.Array, da.Array]:
    """Return labels of what is brighter by `above` than its surroundings, and their number."""
    return dc.label(dc.box_filter(light, 3) - dc.box_filter(light, 101) > above, CORNERS)


def measure(light: da.Array, labels: da.Array, count: int) -> dict[str, da.Array]:
    """Return measurements of all regions, by their names."""
    index = np.arange(1, count + 1)
    return {
        "area": ndmeasure.area(light, labels, index),
        "light": ndmeasure.sum_labels(light, labels, index),
        "centre": ndmeasure.center_of_mass(light, labels, index),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts and measures galaxies.")
    parser.add_argument(
        "--copies", type=int, default=1, metavar="N", help="pictures beside and below (1)"
    )
    parser.add_argument("--above", type=float, default=15, metavar="X", help="brightness (15)")
    parser.add_argument("--chunk", type=int, default=256, metavar="N", help="pixels of a chunk")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        x = picture(given.copies, given.chunk)
        light = runtime.move(x)
        labels, number = find(light, given.above)
        (number,) = runtime.compute(number)
        lazy = measure(light, labels, int(number))
        shown, *measured = runtime.compute(x, *lazy.values())
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    regions = dict(zip(lazy, measured, strict=True))
    print(f"pixels: {x.size} with {int(number)} regions, in {seconds:.2f} s")
    best = int(regions["light"].argmax())
    row, column = regions["centre"][best]
    print(f"the brightest region: {regions['area'][best]} pixels around ({row:.1f}, {column:.1f})")
    path = given.out / "galaxies.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, shown, regions)
    print(f"figure: {path}")


def save_figure(path: Path, shown: Any, regions: dict[str, Any]) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(8.8, 4.0), layout="constrained")
    figure.suptitle(
        "Bright regions of the Hubble deep field", fontsize="x-large", fontweight="bold"
    )
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    left.imshow(np.sqrt(shown), cmap="gray")
    best = np.argsort(regions["light"])[-60:]
    row, column = regions["centre"][best].T
    size = 4 * np.sqrt(regions["area"][best])
    left.scatter(column, row, size, facecolors="none", edgecolors="orange", linewidths=0.8)
    left.set_title("circles: the 60 brightest regions")
    left.set(xticks=[], yticks=[])
    bins = np.geomspace(regions["light"].min(), regions["light"].max(), 40)
    right.hist(regions["light"], bins, color="0.4")
    right.set(xscale="log", yscale="log", xlabel="light of a region, sum of pixel values")
    right.set(ylabel="regions", title=f"{len(regions['light']):,} regions")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
