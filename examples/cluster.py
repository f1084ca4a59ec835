"""On a cluster
============

One process for each GPU, or for each CPU where there is none, describes, counts and sums up an
array that all of them hold together. The plot shows the histogram and the running sum, a random
walk, of which only every so many elements come back.

Run it as ``python examples/cluster.py --size 33554432 --out demo``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, wait

import dask_coop as dc
from dask_coop.cli import info

#: The points of the running sum that the figure shows.
SHOWN = 2000


@contextmanager
def timed(what: str) -> Iterator[None]:
    start = perf_counter()
    yield
    print(f"{what}: {perf_counter() - start:.2f} s")


def save_figure(path: Path, size: int, counts: Any, edges: Any, walk: Any) -> None:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 4.0), layout="constrained")
    figure.suptitle(f"{size:,} numbers on a cluster", fontsize="x-large", fontweight="bold")
    left.stairs(counts / 1e6, edges, fill=True, color="0.75", label="counted")
    middle = (edges[1:] + edges[:-1]) / 2
    bell = np.exp(-(middle**2) / 2) / np.sqrt(2 * np.pi) * size * np.diff(edges)
    left.plot(middle, bell / 1e6, color="#c8553d", label="expected")
    left.set(xlim=(edges[0], edges[-1]), ylim=0, xlabel="value", ylabel="million values per bin")
    left.legend(loc="upper right", frameon=False)
    at = np.linspace(0, size, len(walk))
    right.plot(at / 1e6, walk, color="0.2", linewidth=0.8, label="running sum")
    right.fill_between(
        at / 1e6, -2 * np.sqrt(at), 2 * np.sqrt(at), color="0.92", label="where 95 % of walks are"
    )
    right.set(xlim=(0, size / 1e6), xlabel="million elements", ylabel="sum up to there")
    right.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=140)


# The guard is needed: the cluster's processes import this file.
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Computes on a cluster of this machine's GPUs.")
    parser.add_argument("--size", type=int, default=2**25, metavar="N", help="how many values")
    parser.add_argument("--chunk", type=int, default=2**22, metavar="N", help="values in a chunk")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG (this one)"
    )
    given = parser.parse_args()

    gpus = info.cupy_gpus()
    if gpus:
        from dask_cuda import LocalCUDACluster

        cluster = LocalCUDACluster(dashboard_address=None)
    else:
        cluster = LocalCluster(CPU_COUNT, threads_per_worker=1, dashboard_address=None)

    with cluster, Client(cluster) as client:
        client.register_plugin(dc.CoopPlugin())
        print(f"workers: {len(cluster.workers)}, on {', '.join(sorted(set(gpus))) or 'CPUs'}")

        x = da.random.default_rng(0).normal(size=given.size, chunks=given.chunk)
        if gpus:
            x = x.to_backend("cupy")
        with timed(f"array of {given.size} values in {x.npartitions} chunks"):
            x = x.persist()
            wait(x)

        with timed("describe"):
            description = dc.describe(x).compute()
        print(
            f"  mean {float(description.mean):.6f}, standard deviation {float(description.std):.6f}"
        )

        with timed("histogram"):
            counts, edges = dc.histogram(x, bins=100, range=(-5, 5))
            counts = dc.to_host(counts).compute()
        print(f"  {counts.sum()} values in {len(counts)} bins from -5 to 5")

        with timed("cumsum"):
            sums = dc.cumsum(x).persist()
            wait(sums)
        print(f"  last element {float(sums[-1].compute()):.3f}")
        walk = dc.to_host(sums[:: max(1, given.size // SHOWN)]).compute()

    figure_path = given.out / "cluster.png"
    given.out.mkdir(parents=True, exist_ok=True)
    save_figure(figure_path, given.size, counts, edges, walk)
    print(f"figure: {figure_path}")
