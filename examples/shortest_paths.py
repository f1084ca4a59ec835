"""Shortest paths between all pairs of a graph's nodes, by squaring its matrix of distances.

    python examples/shortest_paths.py --nodes 300

Over the semiring of minimum and addition a product of distance matrices joins paths: of one edge at
first, of up to two after the first product, of up to four after the second. So ``log2(nodes)``
products find them all, and the matrices may be larger than memory or live on GPUs.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop import runners


def random_graph(nodes: int, edges: int, seed: int = 0) -> Any:
    """Return the lengths of edges between nodes at random, inf where there is none."""
    rng = np.random.default_rng(seed)
    lengths = np.full((nodes, nodes), np.inf, "f4")
    lengths[rng.integers(nodes, size=edges), rng.integers(nodes, size=edges)] = rng.integers(
        1, 100, edges
    )
    np.fill_diagonal(lengths, 0)
    return lengths


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


def floyd_warshall(lengths: Any) -> Any:
    """Return the same by taking in one node after the other, in NumPy."""
    found = lengths.copy()
    for node in range(len(found)):
        np.minimum(found, found[:, node, None] + found[node], out=found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds all shortest paths of a random graph.")
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--degree", type=int, default=4, help="edges that leave a node, on average")
    parser.add_argument("--chunk", type=int, default=128, help="the side of a chunk")
    given = parser.parse_args()

    lengths = random_graph(given.nodes, given.nodes * given.degree)
    with runners.start() as runner:
        lazy = shortest_paths(runner.place(da.from_array(lengths, chunks=given.chunk)))
        start = perf_counter()
        (found,) = runner.compute(lazy)
        seconds = perf_counter() - start
        print(f"engine: {runner.name}")
    reached = np.isfinite(found)
    print(f"paths: {reached.sum()} between {given.nodes} nodes, in {seconds:.2f} s")
    print(f"longest: {found[reached].max():g}")
    same = np.array_equal(found, floyd_warshall(lengths))
    print(f"as by Floyd and Warshall: {'yes' if same else 'no'}")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
