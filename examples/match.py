"""Histogram matching
==================

Histogram matching gives a picture the distribution of values of another one. ``dc.quantile``
computes exact quantiles of both, which make a curve from the values of the first to those of the
second; each chunk is mapped along it. The plot shows both pictures, the matched one, and the
distributions of each colour. The pictures may be larger than memory, or live on a GPU.

Run it as ``python examples/match.py skimage:astronaut skimage:coffee --out demo``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop.cli import backends
from dask_coop.cli.describe.readers import open_source
from dask_coop.errors import UserError

#: What the curves of red, green and blue are drawn in.
LOOKS = {"red": ("#c8553d", "-"), "green": ("#588b4b", "--"), "blue": ("#3d6fc8", ":")}


def match(image: da.Array, reference: da.Array, steps: int = 1000) -> da.Array:
    """Return a picture with its values in the same order, but distributed as another one's.

    Parameters
    ----------
    image, reference : dask.array.Array
        Both grey, of any shape, or both with colours along the last of three axes, of which each
        is matched on its own.
    steps : int
        Into how many equal parts the values of either are divided.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape of `image` and the dtype of `reference`.
    """
    if image.ndim == 3:
        colors = range(image.shape[2])
        pairs = [match(image[:, :, c], reference[:, :, c], steps) for c in colors]
        return da.stack(pairs, axis=-1)
    shares = np.linspace(0, 1, steps + 1)
    curve = {"before": dc.quantile(image, shares), "after": dc.quantile(reference, shares)}
    to = reference.dtype
    meta = image._meta.astype(to)
    return image.map_blocks(follow, **curve, to=to, dtype=to, meta=meta)


def follow(block: Any, before: Any, after: Any, to: np.dtype[Any]) -> Any:
    """Return what the curve makes of the values of a block; NumPy and CuPy alike."""
    values = np.interp(block.ravel(), before, after).reshape(block.shape)
    return (np.rint(values) if to.kind in "iu" else values).astype(to)


def open_picture(text: str) -> tuple[str, str, da.Array]:
    """Return a picture's name, a stem for files, and its values."""
    source = open_source(text)
    x = source.array
    if x.ndim == 3 and x.shape[2] == 4:
        x = x[:, :, :3]  # transparency is no colour
    if x.ndim != 2 and not (x.ndim == 3 and x.shape[2] == 3):
        raise UserError(f"{text} has shape {x.shape}; give a grey or a colour picture")
    return source.name, source.stem, x


def main() -> None:
    parser = argparse.ArgumentParser(description="Matches a picture's histogram to another one's.")
    for name, picture in (("source", "astronaut"), ("reference", "coffee")):
        parser.add_argument(
            name,
            nargs="?",
            default=f"skimage:{picture}",
            help=f"a picture, an array of one, or skimage:NAME (skimage:{picture})",
        )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()
    try:
        name, stem, image = open_picture(given.source)
        other, _, reference = open_picture(given.reference)
    except UserError as error:
        parser.error(str(error))
    if image.ndim != reference.ndim:
        parser.error("one picture is grey and the other has colours; give two of a kind")

    with backends.start() as runtime:
        image, reference = runtime.move(image), runtime.move(reference)
        pictures = [image, reference, match(image, reference)]
        counts, edges = zip(*map(histogram, pictures), strict=True)
        results = runtime.compute(*pictures, *counts, *edges)
        print(f"backend: {runtime.name}")
    path = given.out / f"{stem}-matched.png"
    given.out.mkdir(parents=True, exist_ok=True)
    names = (name, other, "matched")
    save_comparison(path, zip(names, results[:3], results[3:6], results[6:], strict=True))
    print(f"figure: {path}")


def histogram(x: da.Array) -> tuple[da.Array, Any]:
    """Return the counts of a grey picture, or those of each colour in a row, and their edges."""
    return dc.histogram(x, 256, (0, 256) if x.dtype == np.uint8 else None, axis=(0, 1))


def save_comparison(path: Path, shown: Iterable[tuple[str, Any, Any, Any]]) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(11.2, 5.6), layout="constrained")
    figure.suptitle(
        "A picture with the colours of another one", fontsize="x-large", fontweight="bold"
    )
    columns = figure.subplots(2, 3, height_ratios=(3, 1)).T
    for (above, below), (name, picture, counts, edges) in zip(columns, shown, strict=True):
        low, high = edges[0], edges[-1]
        above.imshow(np.clip((picture - low) / (high - low), 0, 1), cmap="gray", vmin=0, vmax=1)
        above.set_title(name, parse_math=False)
        above.axis("off")
        looks = LOOKS if counts.ndim > 1 else {"grey": ("0.2", "-")}
        for row, (label, (color, style)) in zip(np.atleast_2d(counts), looks.items(), strict=True):
            share = row.cumsum() / row.sum() * 100
            below.stairs(
                share,
                edges,
                color=color,
                linestyle=style,
                linewidth=1.5,
                baseline=None,
                label=label,
            )
        below.set(
            xlim=(low, high), ylim=(0, 100), xlabel="pixel value", ylabel="% of pixels\nup to here"
        )
        below.label_outer()
    columns[0, 1].legend(fontsize="small", frameon=False)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
