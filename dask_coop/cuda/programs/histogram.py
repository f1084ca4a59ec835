"""The histograms: programs of kernel_histogram.cuh and its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from dask_coop.cuda.programs import ctype

#: Threads of a block.
THREADS = 1024

#: Threads of a block that partitions, and samples of each.
PARTITION_THREADS, PARTITION_ITEMS = 512, 16

#: The bins of a bucket; the most buckets; threads that share a list of samples of one.
BUCKET, BUCKETS, LIST_TEAM = 1 << 15, PARTITION_THREADS, 16


@dataclass(frozen=True)
class Finder:
    """How bins are found: one of the classes of bins.cuh.

    Attributes
    ----------
    kind : {"guessed", "nearest", "searched"}
    element, edge, guess : str
        The C++ names of the samples, of the edges, and of what places are computed in.
    """

    kind: Literal["guessed", "nearest", "searched"]
    element: str
    edge: str
    guess: str

    @property
    def parameters(self) -> str:
        """The kernel's parameters that make up the bins."""
        edge = "int n, E low, E high, "
        if self.kind == "searched":
            return edge + "const E* edges"
        return edge + "double step, double start, G first, G second, G third"

    @property
    def bins(self) -> str:
        """The C++ expression that makes the bins of them."""
        if self.kind == "searched":
            return "B{n, low, high, edges}"
        numbers = "first, second" + (", third" if self.kind == "guessed" else "")
        return f"B{{{{n, low, high, step, start}}, {numbers}}}"

    @property
    def frugal(self) -> bool:
        """Whether finding takes so few registers that two blocks fit a multiprocessor."""
        return self.kind == "guessed" and self.edge == "float"

    @property
    def type(self) -> str:
        """The C++ type of the bins."""
        if self.kind == "nearest":
            return "NearestBins<E, G>"
        return "GuessedBins<E>" if self.kind == "guessed" else "SearchedBins<E>"


def finder(
    kind: Literal["guessed", "nearest", "searched"],
    samples: np.dtype[Any],
    edge: np.dtype[Any],
    guess: np.dtype[Any],
) -> Finder:
    """Return how samples of one dtype find their bins between edges of another."""
    return Finder(kind, ctype(samples), ctype(edge), ctype(guess))


@cache
def windows(find: Finder, packed: bool, blocks: int) -> str:
    """Return the count in the shared memory of `blocks` blocks a multiprocessor."""
    # As many loads in flight as registers hold.
    unroll = 2 if blocks == 2 or find.kind == "nearest" else 4
    call = f"count_windows<T, B, {str(packed).lower()}, {THREADS}, {unroll}>"
    return _unit(
        "kernel_histogram.cuh",
        find,
        f"{THREADS}, {blocks}",
        "u64* table, int window_begin, int window, int splits",
        f"{call}(x, size, bins, table, window_begin, window, splits);",
    )


@cache
def distributed(find: Finder) -> str:
    """Return the count in the distributed shared memory of clusters."""
    call = f"count_distributed<T, B, {THREADS}>(x, size, bins, table, window);"
    return _unit("kernel_histogram.cuh", find, f"{THREADS}, 1", "u64* table, int window", call)


@cache
def everywhere(find: Finder) -> str:
    """Return the count in global memory."""
    call = f"count_global<T, B, {THREADS}>(x, size, bins, table);"
    return _unit("kernel_histogram.cuh", find, f"{THREADS}, 1", "u64* table", call)


@cache
def partition(find: Finder) -> str:
    """Return the partition of samples into lists a bucket."""
    call = f"partition<T, B, {PARTITION_THREADS}, {PARTITION_ITEMS}>"
    return _unit(
        "kernel_partition.cuh",
        find,
        f"{PARTITION_THREADS}, 2",
        "ListVector* lists, unsigned* places, unsigned* sizes, int buckets",
        f"{call}(x, size, bins, lists, places, sizes, buckets);",
    )


@cache
def lists() -> str:
    """Return the count of the lists that `partition` makes."""
    return f"""#include "kernel_partition.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS}, 1)
entry(const ListVector* lists, const unsigned* places, const unsigned* sizes, int buckets,
      i64 tiles, int stride, int n, u64* table) {{
  count_lists<{THREADS}, {LIST_TEAM}>(lists, places, sizes, buckets, tiles, stride, n, table);
}}
"""


def lists_shared_bytes() -> int:
    """Return the shared memory of a block of `lists`."""
    return BUCKET * 4 + 256


#: The words of global memory for a bin's light weights, as in kernel_weigh.cuh.
LIGHT_WORDS = 5


@cache
def weigh(find: Finder, weight: np.dtype[Any], shared: bool) -> str:
    """Return the sum of weights, in shared or in global memory."""
    is_float = str(weight.kind == "f").lower()
    name = "weigh_shared" if shared else "weigh_global"
    unroll = 2 if find.kind == "nearest" else 4
    return _unit(
        "kernel_weigh.cuh",
        find,
        f"{THREADS}, 1",
        f"const {ctype(weight)}* weights, const int* exponent, double* table, u64* above, "
        "u64* below, u64* light",
        f"{name}<T, B, {ctype(weight)}, {is_float}, {THREADS}, {unroll}>"
        "(x, weights, size, bins, exponent, table, above, below, light);",
    )


@cache
def largest(weight: np.dtype[Any]) -> str:
    """Return the search for the exponent of the largest weight."""
    return f"""#include "kernel_weigh.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const {ctype(weight)}* weights, i64 size, int* exponent) {{
  largest<{ctype(weight)}, {THREADS}>(weights, size, exponent);
}}
"""


@cache
def settle(total: np.dtype[Any]) -> str:
    """Return the step that adds the sums of weights to the table."""
    table = "double" if total.kind == "f" else "u64"
    return f"""#include "kernel_weigh.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS})
entry({table}* table, const u64* high, const u64* low, const u64* light, const int* exponent,
      int n) {{
  settle(table, high, low, light, exponent, n);
}}
"""


def _unit(header: str, find: Finder, bounds: str, parameters: str, call: str) -> str:
    return f"""#include "{header}"
using namespace coop;
using T = {find.element};
using E = {find.edge};
using G = {find.guess};
using B = {find.type};
extern "C" __global__ void __launch_bounds__({bounds})
entry(const T* x, i64 size, {find.parameters}, {parameters}) {{
  B bins = {find.bins};
  {call}
}}
"""
