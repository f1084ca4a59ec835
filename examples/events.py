"""Events above a threshold
========================

``dc.flatnonzero`` returns the places where a long signal exceeds a threshold, with known chunk
sizes, so they can be compared, sliced and counted like any array before they are computed. The
upper plot shows the start of each event. The lower one shows the intervals between events: at
random times, they lie along a straight line on a logarithmic scale.

Run it as ``python examples/events.py --size 3000000 --out demo``.
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

#: The share of samples at which a pulse begins, and how many samples it takes to fall to a third.
RATE = 0.001
DECAY = 40

#: The samples that the figure shows.
SHOWN = 20_000

BINS = 60


def signal(size: int, chunk: int) -> da.Array:
    """Return pulses at random times, which decay, under noise."""
    rng = da.random.default_rng(0)
    like = {"size": size, "chunks": chunk}
    begins = rng.random(**like) < RATE
    logarithm = da.where(begins, da.log(1.5 + rng.exponential(**like)), -np.inf)
    # What decays falls by a straight line of its logarithm: the highest pulse is a running maximum.
    fallen = da.arange(size, chunks=chunk) / DECAY
    pulses = da.exp(dc.cummax(logarithm + fallen) - fallen)
    return pulses + rng.normal(scale=0.1, **like)


def find_events(x: da.Array, threshold: float, dead: int = 0) -> da.Array:
    """Return the samples at which a signal begins to exceed a threshold.

    Parameters
    ----------
    x : dask.array.Array
        Of one axis.
    threshold : float
        What it has to exceed.
    dead : int
        How many samples it has to be below, for another event to begin.

    Returns
    -------
    dask.array.Array
        Lazy, ascending, in chunks of known and equal sizes, for which the signal is computed when
        this is called.
    """
    above = dc.flatnonzero(x > threshold, sizes="compute", balanced=True)
    # As they ascend, the greatest one before a sample is its predecessor; before the first, the
    # least integer.
    previous = dc.cummax(above, exclusive=True)
    return dc.select(above, above > previous + 1 + dead, sizes="compute", balanced=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds what exceeds a threshold, and when.")
    parser.add_argument("--size", type=int, default=3_000_000, metavar="N", help="how many samples")
    parser.add_argument(
        "--chunk", type=int, default=250_000, metavar="N", help="samples in a chunk"
    )
    parser.add_argument("--threshold", type=float, default=1.0, metavar="X", help="what to exceed")
    parser.add_argument(
        "--dead", type=int, default=20, metavar="N", help="samples below it between two events"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()

    with backends.start() as runtime:
        start = perf_counter()
        x = runtime.move(signal(given.size, given.chunk))
        events = find_events(x, given.threshold, given.dead)
        if events.size < 2:
            parser.error(
                f"an interval takes 2 events, and there are {events.size} above "
                f"{given.threshold:g}; give a lower --threshold or a larger --size"
            )
        intervals = da.diff(events)
        counts, edges = dc.histogram(intervals, BINS)
        shown, places, average, counts, edges = runtime.compute(
            x[:SHOWN], events, dc.mean(intervals), counts, edges
        )
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    print(f"samples: {given.size} in {x.npartitions} chunks, in {seconds:.2f} s")
    print(f"events: {events.size}, in chunks of {', '.join(map(str, sorted({*events.chunks[0]})))}")
    print(f"interval: {float(average):.1f} samples on average")
    path = given.out / "events.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(path, given.threshold, shown, places, float(average), counts, edges)
    print(f"figure: {path}")


def save_figure(
    path: Path, threshold: float, x: Any, places: Any, average: float, counts: Any, edges: Any
) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9.6, 5.6), layout="constrained")
    figure.suptitle(
        "Events above a threshold come at random", fontsize="x-large", fontweight="bold"
    )
    above, below = figure.subplots(2, 1)
    above.plot(np.arange(len(x)), x, color="0.5", linewidth=0.7)
    above.axhline(threshold, color="0.2", linestyle="--", linewidth=1, label="threshold")
    near = places[places < len(x)]
    above.plot(near, x[near], "v", color="#c8553d", markersize=6, label="start of an event")
    above.set(xlim=(0, len(x)), xlabel="sample", ylabel="signal, volts")
    above.legend(loc="upper center", bbox_to_anchor=(0.5, 1.13), ncols=2, frameon=False)

    below.stairs(counts, edges, fill=True, color="0.6", label="intervals between events")
    expected = counts.sum() * -np.diff(np.exp(-edges / average))
    middle = (edges[1:] + edges[:-1]) / 2
    below.plot(middle, expected, color="#17395c", label="expected at random")
    below.set(xlim=(0, edges[-1]), ylim=(0.5, 2 * counts.max()), yscale="log")
    below.set(xlabel="samples from one event to the next", ylabel="intervals per bin")
    below.legend(loc="upper right")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
