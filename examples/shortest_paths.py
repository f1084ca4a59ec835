"""Shortest paths
==============

A matrix has the travel times along single roads. Its product with itself, with minimum in place of
addition and addition in place of multiplication, has the shortest times along up to two roads; the
product of that with itself, along up to four. So ``log2(places)`` products by ``dc.matmul`` find
the travel times between all places of a town. The matrices may be larger than memory, or live on
GPUs. The map shows the minutes from the most central place, over a river with two bridges.

Run it as ``python examples/shortest_paths.py --side 20 --out demo``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop.cli import backends

#: Every so many columns an avenue crosses the town; two of them have a bridge.
AVENUE = 4


class Roads(NamedTuple):
    """Places with their coordinates in km, and two-way roads: their ends and seconds of travel."""

    places: Any
    ends: Any
    seconds: Any


def build_town(side: int, seed: int = 0) -> Roads:
    """Return a town of ``side * side`` places around a grid, with a river that has two bridges."""
    rng = np.random.default_rng(seed)
    row, column = (index.ravel() for index in np.indices((side, side)))
    places = np.stack((column, row), 1) + rng.uniform(-0.3, 0.3, (side * side, 2))
    number = np.arange(side * side).reshape(side, side)
    along = np.stack((number[:, :-1].ravel(), number[:, 1:].ravel()), 1)
    across = np.stack((number[:-1].ravel(), number[1:].ravel()), 1)

    upper = across[:, 0]
    avenue = column[upper] % AVENUE == 0
    avenues = np.unique(column[upper][avenue])
    middle = len(avenues) // 2
    bridge = np.isin(column[upper], avenues[middle : middle + 2])
    river = row[upper] == side // 2 - 1
    exists = np.where(river, bridge, avenue | (rng.random(len(across)) < 0.8))

    ends = np.concatenate((along, across[exists]))
    fast = np.concatenate((np.zeros(len(along), "?"), avenue[exists]))
    length = np.linalg.norm(places[ends[:, 0]] - places[ends[:, 1]], axis=1)
    speed = np.where(fast, 60, 30) * rng.uniform(0.6, 1, len(ends))
    # Whole seconds, whose sums float32 holds exactly.
    return Roads(places, ends, np.ceil(length / speed * 3600))


def tabulate(roads: Roads) -> Any:
    """Return the seconds between places with a road, 0 on the diagonal, inf elsewhere."""
    seconds = np.full((len(roads.places), len(roads.places)), np.inf, "f4")
    np.fill_diagonal(seconds, 0)
    for a, b in (roads.ends.T, roads.ends.T[::-1]):
        seconds[a, b] = roads.seconds
    return seconds


def shortest_paths(lengths: da.Array) -> da.Array:
    """Return the lengths of the shortest paths between all pairs of nodes.

    Parameters
    ----------
    lengths : dask.array.Array
        Of shape ``(nodes, nodes)``: those of edges, inf where there is none, 0 on the diagonal.
    """
    joined = 1
    while joined < lengths.shape[0] - 1:
        lengths = dc.matmul(lengths, lengths, semiring="min_plus")
        joined *= 2
    return lengths


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds the travel times of a town.")
    parser.add_argument("--side", type=int, default=20, metavar="N", help="places along a side")
    parser.add_argument("--chunk", type=int, default=128, metavar="N", help="the side of a chunk")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG"
    )
    given = parser.parse_args()
    if given.side < 2:
        parser.error(f"a town has at least 2 places along a side, not {given.side}")

    roads = build_town(given.side)
    with backends.start() as runtime:
        minutes = shortest_paths(runtime.move(da.from_array(tabulate(roads), given.chunk))) / 60
        average = dc.mean(minutes, axis=1)
        counts, edges = dc.histogram(minutes, 50)
        start = perf_counter()
        longest, average, counts, edges, times = runtime.compute(
            dc.max(minutes), average, counts, edges, minutes
        )
        seconds = perf_counter() - start
        print(f"backend: {runtime.name}")
    centre = int(np.argmin(average))
    print(f"places: {len(roads.places)}, roads: {len(roads.ends)}")
    print(f"paths: {times.size}, in {seconds:.2f} s")
    print(f"minutes: {average.mean():.1f} on average, {float(longest):.1f} at most")
    print(f"centre: place {centre}, {average[centre]:.1f} minutes from the others on average")
    path = given.out / "shortest-paths.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_map(path, roads, times[centre], counts, edges)
    print(f"figure: {path}")


def save_map(path: Path, roads: Roads, minutes: Any, counts: Any, edges: Any) -> None:
    from matplotlib import pyplot
    from matplotlib.collections import LineCollection

    figure = pyplot.figure(figsize=(9.6, 5.6), layout="constrained")
    figure.suptitle(
        "Travel times in a town with two bridges", fontsize="x-large", fontweight="bold"
    )
    left, right = figure.subplots(1, 2, width_ratios=(5, 3))
    left.add_collection(LineCollection(roads.places[roads.ends], colors="0.7", zorder=1))
    places = left.scatter(*roads.places.T, c=minutes, s=24, cmap="viridis", zorder=2)
    centre = roads.places[np.argmin(minutes)]
    left.plot(*centre, "*", color="#c8553d", markersize=16, markeredgecolor="white")
    # Between the rows that only bridges join.
    middle = round(len(roads.places) ** 0.5) // 2 - 0.5
    left.axhspan(middle - 0.2, middle + 0.2, color="#d5e6f3", zorder=0)
    left.set_title("minutes from the star, the most central place")
    left.set_aspect("equal")
    left.axis("off")
    figure.colorbar(places, ax=left, label="minutes", shrink=0.8)
    right.stairs(counts, edges, fill=True, color="0.4")
    right.set_title("all pairs of places")
    right.set(xlim=(edges[0], edges[-1]), ylim=0)
    right.set(xlabel="travel time, minutes", ylabel="pairs of places")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
