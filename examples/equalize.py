"""Histogram equalisation: spreads a picture's values over the whole scale.

    python examples/equalize.py skimage:moon --out demo

One histogram of all pixels, its cumulative sum, and a lookup in that, chunk by chunk. Nothing is
computed before the end, and the picture may be larger than memory or live on a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop.cli import backends
from dask_coop.cli.readers import open_source
from dask_coop.errors import UserError


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Equalises a picture's histogram.")
    parser.add_argument("source", help="a picture, an array of one, or skimage:NAME")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()
    try:
        source = open_source(given.source)
    except UserError as error:
        parser.error(str(error))
    before = source.array
    if before.ndim == 3 and before.shape[2] == 4:
        before = before[:, :, :3]  # transparency is no brightness
    if before.ndim != 2 and not (before.ndim == 3 and before.shape[2] == 3):
        parser.error(f"{given.source} has shape {before.shape}; give a grey or a colour picture")

    with backends.start() as runtime:
        before = runtime.move(before)
        after = equalize(before)
        scale = (0, 256) if before.dtype == np.uint8 else None
        counts = [dc.histogram(x, 256, scale)[0] for x in (before, after)]
        results = runtime.compute(before, after, *counts)
        print(f"backend: {runtime.name}")
    path = given.out / f"{source.stem}-equalized.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_comparison(path, source.name, *results)
    print(f"figure: {path}")


def save_comparison(
    path: Path, title: str, before: Any, after: Any, counts_before: Any, counts_after: Any
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    figure.suptitle(title, fontsize="x-large", fontweight="bold", parse_math=False)
    columns = figure.subplots(2, 2, height_ratios=(5, 1)).T
    for (above, below), name, picture, counts in zip(
        columns, ("before", "after"), (before, after), (counts_before, counts_after), strict=True
    ):
        low, high = (0, 255) if picture.dtype == np.uint8 else (picture.min(), picture.max())
        above.imshow((picture - low) / (high - low), cmap="gray", vmin=0, vmax=1)
        above.set_title(name)
        above.axis("off")
        below.stairs(counts, np.linspace(low, high, len(counts) + 1), fill=True, color="0.4")
        below.set(xlim=(low, high), ylim=0, yticks=[], xlabel="value")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
