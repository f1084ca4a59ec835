"""A recurrence as a scan
======================

The average ``y[i] = (1 - a) * y[i - 1] + a * x[i]`` seems to need one step after the other. But
each step is an affine map of ``y``, two such maps compose to another one, and composition is
associative: affine maps are a monoid. So ``dc.scan`` composes all chunks in parallel, and then
scans them. The plot shows a random walk with noise, and its moving averages with two half-lives.

Run it as ``python examples/recurrence.py --size 1000000 --out demo``.
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

#: The samples that the figure shows.
SHOWN = 5000


def moving_average(half_life: float) -> dc.Monoid:
    """Return the monoid of averages in which a sample's weight halves every so many samples.

    The state is a map ``y -> keep * y + total``. A series begins with no sample, not with a zero,
    so the total is divided by the weights that it is made of.
    """
    keep = 0.5 ** (1 / half_life)
    gain = 1 - keep
    return dc.Monoid(
        "moving_average",
        combine=lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
        identity=(1, 0),
        dtype=[("keep", "f8"), ("total", "f8")],
        lift=lambda x: (keep, gain * x),
        finalize=lambda f: f[1] / (1 - f[0]),
        cuda={
            "lift": f"{{{keep!r}, {gain!r} * x}}",
            "combine": "{a.keep * b.keep, b.keep * a.total + b.total}",
        },
    )


def signal(size: int, chunk: int) -> da.Array:
    """Return a random walk under noise."""
    rng = da.random.default_rng(0)
    walk = dc.cumsum(rng.normal(scale=0.05, size=size, chunks=chunk))
    return walk + rng.normal(size=size, chunks=chunk)


def main() -> None:
    parser = argparse.ArgumentParser(description="Averages a long signal as it goes.")
    parser.add_argument("--size", type=int, default=1_000_000, metavar="N", help="how many samples")
    parser.add_argument(
        "--chunk", type=int, default=100_000, metavar="N", help="samples in a chunk"
    )
    parser.add_argument("--half-life", type=float, default=50, metavar="N", help="in samples")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        x = runtime.move(signal(given.size, given.chunk))
        half_lives = (given.half_life, 10 * given.half_life)
        averages = [dc.scan(x, moving_average(half_life), axis=0) for half_life in half_lives]
        start = perf_counter()
        noise, left, *shown = runtime.compute(
            dc.std(x), dc.std(x - averages[0]), *(y[:SHOWN] for y in (x, *averages))
        )
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    print(f"samples: {given.size} in {x.npartitions} chunks, in {seconds:.2f} s")
    print(f"standard deviation: {float(noise):.3f}, around the average {float(left):.3f}")
    path = given.out / "moving-average.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, half_lives, *shown)
    print(f"figure: {path}")


def save_figure(path: Path, half_lives: tuple[float, float], x: Any, *averages: Any) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9.6, 4.0), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(
        "Exponential moving averages of a noisy series", fontsize="x-large", fontweight="bold"
    )
    axes.plot(np.arange(len(x)), x, ".", color="0.7", markersize=3, label="samples")
    looks = ({"color": "#c8553d"}, {"color": "#17395c", "linestyle": "--"})
    for y, half_life, look in zip(averages, half_lives, looks, strict=True):
        label = f"average, half-life of {half_life:g} samples"
        axes.plot(np.arange(len(y)), y, linewidth=2, label=label, **look)
    axes.set(xlim=(0, len(x)), xlabel="sample", ylabel="value")
    axes.legend(loc="upper right", ncols=3, framealpha=1)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
