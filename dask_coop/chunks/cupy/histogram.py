"""Histograms of CuPy chunks: picks a strategy of kernel_histogram.cuh and its neighbours.

==================== ==============================================================================
strategy             counters
==================== ==============================================================================
``"bytes"``          one for each value of samples of one byte, in shared memory
``"shared"``         32 bits, all bins in the shared memory of every block
``"packed"``         16 bits, two a word; in several passes where they do not fit
``"split"``          32 bits; neighbouring blocks read the same samples and share the bins
``"passes"``         32 bits; the samples are read once for every window of bins that fits
``"distributed"``    32 bits, spread over the shared memory of a cluster (GPUs with Device.hopper)
``"partition"``      samples are dealt to buckets of 32,768 bins, and these counted one by one
``"global"``         64 bits in global memory, with a cache of 32 bits in shared memory
==================== ==============================================================================

By default the strategy is taken that `_estimate` expects to be the fastest. Weights take "shared"
where it has room, and "global" otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.algebra.bins import Integers
from dask_coop.algebra.edges import Bins
from dask_coop.chunks.cupy.bin_lookup import Lookup, look_up
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import histogram as programs
from dask_coop.cuda.programs import multichunk

Array = Any

STRATEGIES = (
    "bytes",
    "shared",
    "packed",
    "split",
    "passes",
    "distributed",
    "partition",
    "global",
)

#: Bytes of the lists of a slab of samples that is partitioned at a time.
_LISTS_BYTES = 1 << 29

#: The widest cluster whose blocks share their tables.
_CLUSTER = 16


def count(
    x: Array,
    weights: Array | None,
    bins: Bins | Integers,
    table: Array,
    *,
    strategy: str | None = None,
) -> None:
    """Add the samples `x`, or their `weights`, to the `table` of `bins`.

    Parameters
    ----------
    x : cupy.ndarray
        Contiguous samples, at least one, not bool.
    weights : cupy.ndarray or None
        As many.
    bins : Bins or Integers
    table : cupy.ndarray
        A uint64 or int64 for every bin, or a float64 for weights that are floats.
    strategy : str, optional
        One of `STRATEGIES`, instead of the one that suits. Weights take "shared" and "global" only;
        sums of floats do not depend on the order of the samples.

    Raises
    ------
    ValueError
        If the strategy is none of these, or not for this GPU, dtype or so many bins.
    """
    gpu = device(cupy.cuda.runtime.getDevice())
    weighted = weights is not None
    lookup = look_up(gpu, x.dtype, bins, 12 if weighted else 4)
    case = _Case(gpu, bins.n, x.size, x.itemsize, lookup.finder.kind, lookup.staged)
    if strategy is None:
        strategy = _choose(case, weighted)
    elif reason := _objection(case, strategy, weighted):
        raise ValueError(f"strategy {strategy!r} {reason}")
    if weights is not None:
        _weigh(gpu, lookup, x, weights, table, strategy == "shared")
    elif strategy in ("bytes", "global"):
        by_value = strategy == "bytes"
        launch(
            (programs.by_value if by_value else programs.everywhere)(lookup.finder),
            _blocks(gpu, x.size),
            programs.THREADS,
            *_samples(x),
            *lookup.arguments,
            table.data.ptr,
            shared=0 if by_value else programs.everywhere_shared_bytes(),
        )
    elif strategy == "partition":
        _partition(gpu, lookup, x, table)
    elif strategy == "distributed":
        _distribute(gpu, lookup, x, table)
    else:
        _windows(gpu, lookup, x, table, strategy)


class _Case(NamedTuple):
    """What the choice of a strategy depends on."""

    gpu: Device
    n: int
    size: int
    itemsize: int
    finder: str
    staged: int = 0

    @property
    def words(self) -> int:
        """The words of shared memory that counters may take."""
        return (self.gpu.shared_bytes - self.staged) // 4

    def windows(self, packed: bool) -> int:
        """Return the number of windows that the bins make."""
        return -(-self.n // _fit(self.words, packed))


def _fit(words: int, packed: bool) -> int:
    """Return how many bins have counters in so many words, an even number."""
    return 2 * (words - 32) if packed else (words - 1) // 2 * 2


class MultichunkHistogram(NamedTuple):
    """The histogram of several chunks, on one GPU or on several, as one launch.

    Attributes
    ----------
    source : str
        A program of `multichunk.histogram`, in blocks of `programs.THREADS`, one a multiprocessor.
    shared : int
        Dynamic shared memory of a block, in bytes.
    lookups : list of Lookup
        Of every GPU; their `tables` must outlive the launch.
    """

    source: str
    shared: int
    lookups: list[Lookup]


def multichunk_histogram(
    ordinals: Sequence[int], samples: np.dtype[Any], bins: Bins | Integers
) -> MultichunkHistogram | None:
    """Return how one launch counts several chunks; None if the counters do not fit a block.

    Parameters
    ----------
    ordinals : sequence of int
        GPUs that are alike. Their tables of edges are copied on CuPy's current streams.
    samples : numpy.dtype
        Not bool, whose samples are counted as uint8.
    bins : Bins or Integers
    """
    gpu = device(ordinals[0])
    if multichunk.fit_counters(bins.n, gpu.shared_bytes) is None:
        return None
    lookups: list[Lookup] = []
    for ordinal in ordinals:
        # Without tables it is the same on all.
        if not lookups or lookups[0].tables:
            with cupy.cuda.Device(ordinal):
                lookups.append(look_up(gpu, samples, bins))
        else:
            lookups.append(lookups[0])
    fit = multichunk.fit_counters(bins.n, gpu.shared_bytes, lookups[0].staged)
    if fit is None:
        return None
    packed, shared = fit
    source = multichunk.histogram(lookups[0].finder, packed)
    return MultichunkHistogram(source, shared, lookups)


def _objection(case: _Case, strategy: str, weighted: bool) -> str:
    """Say why a strategy can't be had; "" if it can."""
    if strategy not in STRATEGIES:
        return f"is none of {', '.join(STRATEGIES)}"
    if weighted and strategy not in ("shared", "global"):
        return "does not take weights"
    if strategy == "bytes" and case.itemsize > 1:
        return f"takes samples of 1 byte, not {case.itemsize}"
    fit = _fit(case.words, False)
    most = {
        "shared": case.words // 3 if weighted else fit,
        "split": fit * 8,
        "distributed": fit * _CLUSTER,
        "partition": programs.BUCKET * programs.BUCKETS,
    }.get(strategy, case.n)
    if case.n > most:
        return f"takes up to {most} bins here, not {case.n}"
    if strategy == "distributed" and not case.gpu.hopper:
        return f"needs compute capability 9.0, and this GPU is {case.gpu.arch}"
    if (
        strategy == "partition"
        and (needed := programs.lists_shared_bytes()) > case.gpu.shared_bytes
    ):
        return f"needs {needed} bytes of shared memory, and this GPU has {case.gpu.shared_bytes}"
    return ""


def _choose(case: _Case, weighted: bool) -> str:
    """Return the strategy that is expected to be the fastest of those that can be had."""
    able = (name for name in STRATEGIES if not _objection(case, name, weighted))
    return min(able, key=lambda name: _estimate(case, name, weighted))


#: Picoseconds a sample to find its bin, beside those below.
_FINDING = {"guessed": 0.0, "unit": 0.0, "linear": 1.0, "searched": 2.5}


def _estimate(case: _Case, strategy: str, weighted: bool) -> float:
    """Return about how long a strategy takes, in picoseconds: as fitted to an H200.

    What is in shared memory costs a sample's time, at least that of reading it, and at the end an
    addition in global memory for each bin and block.
    """
    gpu, n, size = case.gpu, case.n, case.size
    finding, reading = _FINDING[case.finder], 0.23 * case.itemsize
    if weighted or strategy == "bytes":
        return 0.0 if strategy != "global" else 1.0
    launching, flushing = 5e6, 3.0 * n * _blocks(gpu, size)
    if strategy == "global":
        # The table may be larger than the L2 cache.
        return launching + size * (finding + (10.0 if n < 5e6 else 45.0))
    if strategy == "partition":
        buckets = -(-n // programs.BUCKET)
        return 2 * launching + size * (finding + 3.3 + 0.004 * buckets) + 60.0 * n
    if strategy == "distributed":
        return launching + size * (finding + 6.2) + flushing
    windows = case.windows(strategy == "packed")
    once = max(reading, finding + (1.2 if strategy == "packed" else 0.9))
    if strategy == "split":
        # Beyond two blocks to the same samples, their loads no longer meet in the cache.
        once = max(once, 0.7 if windows <= 2 else 0.9)
    return windows * (launching + size * once) + flushing


def _samples(x: Array) -> tuple[int, Any]:
    return x.data.ptr, np.int64(x.size)


def _blocks(gpu: Device, size: int, splits: int = 1) -> int:
    """Return the shares that samples are cut into, of which each is read by `splits` blocks."""
    most = max(1, gpu.processors // splits)
    # Counters have 32 bits, so no block may see more samples than they count.
    return max(min(most, -(-size // (programs.THREADS * 16))), -(-size // (1 << 31)))


def _windows(gpu: Device, lookup: Lookup, x: Array, table: Array, strategy: str) -> None:
    n, packed = table.size, strategy == "packed"
    words = (gpu.shared_bytes - lookup.staged) // 4
    windows = -(-n // _fit(words, packed))
    # Windows are even, because packed counters come in pairs.
    window = -(-n // windows // 2) * 2
    splits = windows if strategy == "split" else 1
    nbytes = lookup.staged + programs.counters_bytes(window, packed)
    source = programs.windows(lookup.finder, packed)
    for first in range(0, n, window * splits):
        numbers = np.int32(first), np.int32(window), np.int32(splits)
        launch(
            source,
            _blocks(gpu, x.size, splits) * splits,
            programs.THREADS,
            *_samples(x),
            *lookup.arguments,
            table.data.ptr,
            *numbers,
            shared=nbytes,
            cluster=splits if gpu.hopper else 1,
        )


def _distribute(gpu: Device, lookup: Lookup, x: Array, table: Array) -> None:
    n = table.size
    cluster = 2
    while -(-n // cluster) * 4 > gpu.shared_bytes:
        cluster *= 2
    window = -(-n // cluster)
    blocks = max(cluster, _blocks(gpu, x.size) // cluster * cluster)
    launch(
        programs.distributed(lookup.finder),
        blocks,
        programs.THREADS,
        *_samples(x),
        *lookup.arguments,
        table.data.ptr,
        np.int32(window),
        shared=window * 4,
        cluster=cluster,
    )


def _partition(gpu: Device, lookup: Lookup, x: Array, table: Array) -> None:
    n = table.size
    buckets = -(-n // programs.BUCKET)
    tile = programs.PARTITION_THREADS * programs.PARTITION_ITEMS
    stride = tile // 8 + buckets
    most = min(-(-x.size // tile), max(1, _LISTS_BYTES // (stride * 16)))
    slab_size = most * tile
    lists = cupy.empty(most * stride * 16, "u1")
    places = cupy.empty(most * buckets, "u4")
    # A block for every multiprocessor; small buckets' own blocks come on top where they are many.
    blocks = gpu.processors + (buckets if buckets > gpu.processors // 2 else 0)
    for begin in range(0, x.size, slab_size):
        slab = x.reshape(-1)[begin : begin + slab_size]
        tiles = -(-slab.size // tile)
        sizes = cupy.zeros(buckets, "u4")
        launch(
            programs.partition(lookup.finder),
            tiles,
            programs.PARTITION_THREADS,
            *_samples(slab),
            *lookup.arguments,
            lists.data.ptr,
            places.data.ptr,
            sizes.data.ptr,
            np.int32(buckets),
            shared=buckets * 8,
        )
        launch(
            programs.lists(),
            blocks,
            programs.THREADS,
            lists.data.ptr,
            places.data.ptr,
            sizes.data.ptr,
            np.int32(buckets),
            np.int64(tiles),
            np.int32(stride),
            np.int32(n),
            table.data.ptr,
            shared=programs.lists_shared_bytes(),
        )


def _weigh(
    gpu: Device,
    lookup: Lookup,
    x: Array,
    weights: Array,
    table: Array,
    shared: bool,
) -> None:
    n, blocks, threads = table.size, _blocks(gpu, x.size), programs.THREADS
    words = programs.LIGHT_WORDS if weights.dtype.kind == "f" else 0
    sums = cupy.zeros((2 + words) * n + 1, "u8")
    high = sums.data.ptr
    low, exponent, light = high + 8 * n, high + 16 * n, high + 16 * n + 8
    if weights.dtype.kind == "f":
        launch(programs.largest(weights.dtype), blocks, threads, *_samples(weights), exponent)
    launch(
        programs.weigh(lookup.finder, weights.dtype, shared),
        blocks,
        threads,
        *_samples(x),
        *lookup.arguments,
        weights.data.ptr,
        exponent,
        table.data.ptr,
        high,
        low,
        light,
        shared=12 * n + lookup.staged if shared else 0,
    )
    settle = programs.settle(table.dtype)
    sources = high, low, light, exponent
    launch(settle, -(-n // threads), threads, table.data.ptr, *sources, np.int32(n))
