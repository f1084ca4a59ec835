"""Statistics, a histogram and a scan on a cluster: one process for each GPU, or for each CPU.

python examples/cluster.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import dask
import dask.array as da
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, wait

import dask_coop as dc
from dask_coop.cli import info


@contextmanager
def timed(what: str) -> Iterator[None]:
    start = perf_counter()
    yield
    print(f"{what}: {perf_counter() - start:.2f} s")


# The guard is needed: the cluster's processes import this file.
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Computes on a cluster of this machine's GPUs.")
    parser.add_argument("--size", type=int, default=2**25, metavar="N", help="how many values")
    parser.add_argument("--chunk", type=int, default=2**22, metavar="N", help="values in a chunk")
    given = parser.parse_args()

    gpus = info.cupy_gpus()
    if gpus:
        from dask_cuda import LocalCUDACluster

        cluster = LocalCUDACluster()
    else:
        cluster = LocalCluster(CPU_COUNT, threads_per_worker=1)

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
            description = dc.Description(*dask.compute(*dc.describe(x)))
        print(
            f"  mean {float(description.mean):.6f}, standard deviation {float(description.std):.6f}"
        )

        with timed("histogram"):
            counts, _ = dc.histogram(x, bins=8, range=(-4, 4))
            counts = counts.compute()
        print(f"  {counts} in 8 bins from -4 to 4")

        with timed("cumsum"):
            sums = dc.cumsum(x).persist()
            wait(sums)
        print(f"  last element {float(sums[-1].compute()):.3f}")
