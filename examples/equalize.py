"""Equalisation and CLAHE of a large mosaic
========================================

The panels of this mosaic are lit unevenly. Equalisation spreads the values of all pixels evenly
over the scale: it takes one histogram and its cumulative sum, and looks up each pixel in it, chunk
by chunk. Dark corners stay dark. CLAHE (contrast-limited adaptive histogram equalisation) takes a
histogram of each tile, from one call with ``axis=``, and blends the look-ups of the four tiles
around each pixel. The picture may be larger than memory, or live on a GPU.

Run it as ``python examples/equalize.py --copies 8 --out demo``, or on your own picture with
``--copies 1``.
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
from dask_coop.errors import UserError


def mosaic(panel: da.Array, copies: int) -> da.Array:
    """Return mirrored panels beside and below each other; if there are several, lit unevenly."""
    row = da.concatenate([panel[:, :: -1 if i % 2 else 1] for i in range(copies)], axis=1)
    whole = da.concatenate([row[:: -1 if i % 2 else 1] for i in range(copies)])
    if copies == 1:
        return whole
    y, x = (np.linspace(0, 1, n) for n in whole.shape[:2])
    light = 0.2 + 0.8 * np.exp(-3 * ((y[:, np.newaxis] - 0.4) ** 2 + (x - 0.3) ** 2))
    lit = da.from_array(light.astype("f4").reshape(*light.shape, *(1,) * (panel.ndim - 2)))
    return (whole * lit).astype(panel.dtype)


def equalize(image: da.Array, bins: int = 256, limit: float = 4.0) -> da.Array:
    """Return the picture with its values spread evenly over the scale, as far as `limit` lets them.

    Parameters
    ----------
    image : dask.array.Array
        Grey or colour, of any shape; the channels of a colour picture share one histogram, which
        keeps what is grey grey.
    bins : int
        How many levels are told apart.
    limit : float
        How many times the average a bin may count; what it holds above that is given to all bins.
        It bounds the contrast: without it (``numpy.inf``) an even background turns to noise.

    Returns
    -------
    dask.array.Array
        Lazy. uint8 for uint8, from 0 to 255; float32 from 0 to 1 for other dtypes.
    """
    is_uint8 = image.dtype == np.uint8
    counts, edges = dc.histogram(image, bins, range=(0, 256) if is_uint8 else None)
    cut = da.minimum(counts, limit * dc.mean(counts))
    counts = cut + (dc.sum(counts) - dc.sum(cut)) / bins
    shares = dc.cumsum(counts) / dc.sum(counts)
    levels = da.rint(shares * 255).astype("u1") if is_uint8 else shares.astype("f4")
    meta = image._meta.astype(levels.dtype)
    return image.map_blocks(look_up, edges=edges, levels=levels, dtype=levels.dtype, meta=meta)


def look_up(block: Any, edges: Any, levels: Any) -> Any:
    """Return the level of the bin that each value lies in; NumPy and CuPy alike."""
    inner = np.asarray(edges, like=block)[1:-1]
    return levels[np.searchsorted(inner, block, side="right")]


def clahe(image: da.Array, size: int = 128, bins: int = 256, limit: float = 3.0) -> da.Array:
    """Return the picture with the values of each of its parts spread evenly over the scale.

    Parameters
    ----------
    image : dask.array.Array
        uint8, grey or colour, whose channels share a histogram.
    size : int
        Pixels of a side of a tile, each of which has a histogram.
    bins, limit
        As those of `equalize`.

    Returns
    -------
    dask.array.Array
        Lazy, uint8.
    """
    rows, columns, *channels = image.shape
    whole = [(0, -rows % size), (0, -columns % size), *((0, 0) for _ in channels)]
    tiled = da.pad(image, whole, mode="symmetric").rechunk({0: 8 * size, 1: 8 * size})
    n, m = (length // size for length in tiled.shape[:2])
    # Tiles have axes of their own, of which there is a histogram for each position.
    tiled = tiled.reshape(n, size, m, size, *channels)
    along = (1, 3, *range(4, tiled.ndim))
    counts, _ = dc.histogram(tiled, bins, (0, 256), axis=along)
    cut = da.minimum(counts, limit * dc.mean(counts, axis=-1, keepdims=True))
    counts = cut + (dc.sum(counts - cut, axis=-1, keepdims=True)) / bins
    shares = dc.cumsum(counts, axis=-1) / dc.sum(counts, axis=-1, keepdims=True)
    levels = (shares * 255).astype("f4")
    return image.map_blocks(
        blend, levels=levels, size=size, bins=bins, dtype="u1", meta=image._meta
    )


def blend(block: Any, levels: Any, size: int, bins: int, block_info: Any) -> Any:
    """Return the levels of the four nearest tiles, weighted by how near they are."""
    places = block_info[0]["array-location"][:2]
    near = [nearest(*place, size, n, block) for place, n in zip(places, levels.shape, strict=False)]
    shape = (*block.shape[:2], *(1,) * (block.ndim - 2))
    found = 0
    for row, weight_of_row in near[0]:
        for column, weight_of_column in near[1]:
            weight = (weight_of_row[:, np.newaxis] * weight_of_column).reshape(shape)
            row_of, column_of = (
                one.reshape(-1, *(1,) * (block.ndim - 1 - axis))
                for axis, one in enumerate((row, column))
            )
            found = found + weight * levels[row_of, column_of, block.astype("i4") * bins // 256]
    return np.rint(found).astype("u1")


def nearest(start: int, stop: int, size: int, tiles: int, like: Any) -> list[tuple[Any, Any]]:
    """Return the two nearest tiles to each pixel along an axis, and their weights."""
    place = (np.arange(start, stop, like=like) + 0.5) / size - 0.5
    first = np.floor(place)
    share = (place - first).astype("f4")
    pairs = (first, 1 - share), (first + 1, share)
    return [(np.clip(tile, 0, tiles - 1).astype("i4"), weight) for tile, weight in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description="Equalises a mosaic's histogram.")
    parser.add_argument(
        "source",
        nargs="?",
        default="skimage:retina",
        help="a picture, an array of one, or skimage:NAME (skimage:retina)",
    )
    parser.add_argument(
        "--copies", type=int, default=2, metavar="N", help="panels beside and below each other (2)"
    )
    parser.add_argument("--tile", type=int, default=128, metavar="N", help="pixels of a side (128)")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()
    try:
        source = open_source(given.source)
    except UserError as error:
        parser.error(str(error))
    panel = source.array
    if panel.ndim == 3 and panel.shape[2] == 4:
        panel = panel[:, :, :3]  # transparency is no brightness
    if panel.ndim != 2 and not (panel.ndim == 3 and panel.shape[2] == 3):
        parser.error(f"{given.source} has shape {panel.shape}; give a grey or a colour picture")
    if panel.dtype != np.uint8:
        parser.error(f"{given.source} has values of {panel.dtype}; CLAHE takes pictures of uint8")

    with backends.start() as runtime:
        start = perf_counter()
        before = runtime.move(mosaic(panel, given.copies))
        pictures = [before, equalize(before), clahe(before, given.tile)]
        counts = [dc.histogram(x, 256, (0, 256))[0] for x in pictures]
        # As many pixels as are seen.
        step = max(1, max(before.shape[:2]) // 1000)
        results = runtime.compute(*(x[::step, ::step] for x in pictures), *counts)
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    print(f"pixels: {before.shape[0]} x {before.shape[1]}, in {seconds:.2f} s")
    path = given.out / f"{source.stem}-equalized.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_comparison(path, source.name, results[:3], results[3:])
    print(f"figure: {path}")


def save_comparison(path: Path, title: str, pictures: Any, counts: Any) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9.6, 4.8), layout="constrained")
    figure.suptitle(
        f"More contrast in {title}", fontsize="x-large", fontweight="bold", parse_math=False
    )
    columns = figure.subplots(2, 3, height_ratios=(5, 1)).T
    names = ("before", "equalised", "CLAHE")
    for (above, below), name, picture, heights in zip(
        columns, names, pictures, counts, strict=True
    ):
        above.imshow(picture, cmap="gray", vmin=0, vmax=255)
        above.set_title(name)
        above.axis("off")
        below.stairs(heights, np.arange(257), fill=True, color="0.4")
        # A dark background would make a spike that flattens all else.
        below.set(xlim=(0, 256), ylim=(0, 1.1 * np.quantile(heights, 0.98)))
        below.set(yticks=[], xlabel="pixel value")
    columns[0, 1].set_ylabel("pixels")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
