"""Summed-area tables: ink on unevenly lit paper
=============================================

No single threshold separates the ink of this page from its shadow. Here a pixel is ink if it is
darker than the mean of the box around it. A summed-area table gives the mean of any box from four
of its elements, however large the box is; ``dc.box_filter`` computes the same means in one call.
The plot shows the scanned page, the table, and the ink by one threshold (Otsu's) and by boxes.

Run it as ``python examples/summed_area.py --copies 8 --out demo``; the page comes with
scikit-image.
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


def pages(copies: int, chunk: int) -> tuple[da.Array, tuple[int, int]]:
    """Return a page and its mirrored copies beside and below it, and the shape of one."""
    page = open_source("skimage:page").array
    row = da.concatenate([page[:, :: -1 if i % 2 else 1] for i in range(copies)], axis=1)
    whole = da.concatenate([row[:: -1 if i % 2 else 1] for i in range(copies)])
    return whole.rechunk(chunk), page.shape


def means_by_table(table: da.Array, size: int) -> da.Array:
    """Return the means of all boxes that lie within a picture, by its summed-area table.

    Parameters
    ----------
    table : dask.array.Array
        Of shape ``(rows, columns)``: sums of all that is above and to the left, inclusive.
    size : int
        Pixels of a side of a box.

    Returns
    -------
    dask.array.Array
        Lazy, float64 of shape ``(rows - size, columns - size)``.
    """
    upper, lower = table[:-size], table[size:]
    total = lower[:, size:] - lower[:, :-size] - upper[:, size:] + upper[:, :-size]
    return total / size**2


def otsu(counts: Any) -> int:
    """Return the threshold that parts a histogram in two with the least spread within them."""
    values = np.arange(len(counts))
    below, above = np.cumsum(counts), np.cumsum(counts[::-1])[::-1]
    low = np.cumsum(counts * values) / np.maximum(below, 1)
    high = np.cumsum((counts * values)[::-1])[::-1] / np.maximum(above, 1)
    between = below[:-1] * above[1:] * (low[:-1] - high[1:]) ** 2
    return int(np.argmax(between))


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds the ink of an unevenly lit page.")
    parser.add_argument(
        "--copies", type=int, default=8, metavar="N", help="pages beside and below each other (8)"
    )
    parser.add_argument("--box", type=int, default=25, metavar="N", help="pixels of a side (25)")
    parser.add_argument("--chunk", type=int, default=512, metavar="N", help="pixels (512)")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        x, (rows, columns) = pages(given.copies, given.chunk)
        x = runtime.move(x)
        table = dc.integral_image(x)
        means = dc.box_filter(x, given.box)
        # Of a box of n pixels (n - 1) / 2 lie before its middle.
        first = given.box // 2 + 1
        inner = means[first : first - given.box, first : first - given.box]
        difference = dc.max(abs(means_by_table(table, given.box) - inner))
        counts, _ = dc.histogram(x, 256, (0, 256))
        ink = x < 0.9 * means
        one = (slice(rows), slice(columns))
        off, counts, *shown = runtime.compute(
            difference, counts, x[one], table[one], ink[one], dc.mean(ink)
        )
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    *shown, share = shown
    print(f"pixels: {x.size} in {x.npartitions} chunks, in {seconds:.2f} s")
    print(f"means by the table and by box_filter differ by {float(off):.1e} at most")
    print(f"ink: {float(share):.1%} of the pixels")
    path = given.out / "summed-area.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, *shown, otsu(counts), given.box)
    print(f"figure: {path}")


def save_figure(path: Path, page: Any, table: Any, ink: Any, threshold: int, box: int) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(9.6, 5.6), layout="constrained")
    figure.suptitle(
        "Local means find ink on unevenly lit paper", fontsize="x-large", fontweight="bold"
    )
    (scan, sums), (one, by_boxes) = axes
    scan.imshow(page, cmap="gray", vmin=0, vmax=255)
    scan.set_title("the page")
    drawn = sums.imshow(table / 1e6, cmap="viridis")
    sums.set_title("its summed-area table")
    figure.colorbar(drawn, ax=sums, label="sum of pixel values, millions", shrink=0.8)
    one.imshow(page > threshold, cmap="gray", interpolation="nearest")
    one.set_title(f"darker than {threshold}, Otsu's threshold")
    by_boxes.imshow(~ink, cmap="gray", interpolation="nearest")
    by_boxes.set_title(f"darker than 0.9 of the mean of {box} x {box} pixels")
    for each in axes.flat:
        each.axis("off")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
