"""Histograms of CuPy chunks: picks a strategy of kernel_histogram.cuh and its neighbours.

==================== ==============================================================================
strategy             counters
==================== ==============================================================================
``"plain"``          32 bits in the shared memory of every block, or 64 in global memory
``"shared"``         32 bits, all bins in the shared memory of every block
``"packed"``         16 bits, two a word; in several passes where they do not fit
``"split"``          32 bits; neighbouring blocks read the same samples and share the bins
``"passes"``         32 bits; the samples are read once for every window of bins that fits
``"distributed"``    32 bits, spread over the shared memory of a cluster (GPUs with Device.hopper)
``"partition"``      samples are dealt to buckets of 32,768 bins, and these counted one by one
``"global"``         64 bits in global memory
==================== ==============================================================================

"plain" is what is taken by default: docs/kernels.md says what is known of the others.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from dask_coop.bins import Bins
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import count as plain
from dask_coop.cuda.programs import histogram as programs

Array = Any

STRATEGIES = ("plain", "shared", "packed", "split", "passes", "distributed", "partition", "global")

#: Bytes of the lists of a slab of samples that is partitioned at a time.
_LISTS_BYTES = 1 << 29

#: The widest cluster whose blocks share their tables.
_CLUSTER = 16


def count(
    x: Array, weights: Array | None, bins: Bins, table: Array, *, strategy: str | None = None
) -> None:
    """Add the samples `x`, or their `weights`, to the `table` of `bins`.

    Parameters
    ----------
    x : cupy.ndarray
        Contiguous samples, at least one, not bool.
    weights : cupy.ndarray or None
        As many.
    bins : Bins
    table : cupy.ndarray
        A uint64 or int64 for every bin, or a float64 for weights that are floats.
    strategy : str, optional
        One of `STRATEGIES`, "plain" by default. Weights take "plain", "shared" or "global"; by the
        last two sums of floats do not depend on the order of the samples.

    Raises
    ------
    ValueError
        If the strategy is none of these, or not for this GPU or so many bins.
    """
    gpu = device(cupy.cuda.runtime.getDevice())
    if strategy is None or strategy == "plain":
        return _plain(gpu, x, weights, bins, table)
    if reason := _objection(gpu, bins.n, strategy, weights is not None):
        raise ValueError(f"strategy {strategy!r} {reason}")
    find, arguments, _edges = _finder(x.dtype, bins)
    if weights is not None:
        _weigh(gpu, find, arguments, x, weights, table, strategy == "shared")
    elif strategy == "partition":
        _partition(gpu, find, arguments, x, table)
    elif strategy == "global":
        source = programs.everywhere(find)
        launch(
            source, _blocks(gpu, x.size), programs.THREADS, *_samples(x), *arguments, table.data.ptr
        )
    elif strategy == "distributed":
        _distribute(gpu, find, arguments, x, table)
    else:
        _windows(gpu, find, arguments, x, table, strategy)


def _objection(gpu: Device, n: int, strategy: str, weighted: bool) -> str:
    """Say why a strategy can't be had; "" if it can."""
    if strategy not in STRATEGIES:
        return f"is none of {', '.join(STRATEGIES)}"
    if weighted and strategy not in ("shared", "global"):
        return "does not take weights"
    most = {
        "shared": _weighted_bins(gpu) if weighted else gpu.shared_bytes // 4,
        "split": gpu.shared_bytes // 4 * 8,
        "distributed": gpu.shared_bytes // 4 * _CLUSTER,
        "partition": programs.BUCKET * programs.BUCKETS,
    }.get(strategy, n)
    if n > most:
        return f"takes up to {most} bins here, not {n}"
    if strategy == "distributed" and not gpu.hopper:
        return f"needs compute capability 9.0, and this GPU is {gpu.arch}"
    return ""


def _samples(x: Array) -> tuple[int, Any]:
    return x.data.ptr, np.int64(x.size)


def _blocks(gpu: Device, size: int) -> int:
    # Counters have 32 bits, so no block may see more samples than they count.
    return max(min(gpu.processors, -(-size // (programs.THREADS * 16))), -(-size // (1 << 31)))


def _windows(
    gpu: Device, find: programs.Finder, arguments: Any, x: Array, table: Array, strategy: str
) -> None:
    n, packed = table.size, strategy == "packed"
    fits = gpu.shared_bytes // (2 if packed else 4) // 2 * 2
    windows = -(-n // fits)
    # Windows are even, because packed counters come in pairs.
    window = -(-n // windows // 2) * 2
    splits = windows if strategy == "split" else 1
    nbytes = window * (2 if packed else 4)
    # Two blocks have more loads in flight than one.
    blocks = 2 if find.frugal and not packed and nbytes <= gpu.shared_bytes // 2 - 2048 else 1
    shares = _blocks(gpu, x.size)
    if shares >= gpu.processors:
        shares = max(shares, gpu.processors * blocks // splits)
    source = programs.windows(find, packed, blocks)
    for first in range(0, n, window * splits):
        numbers = np.int32(first), np.int32(window), np.int32(splits)
        launch(
            source,
            shares * splits,
            programs.THREADS,
            *_samples(x),
            *arguments,
            table.data.ptr,
            *numbers,
            shared=nbytes,
            cluster=splits if gpu.hopper else 1,
        )


def _distribute(gpu: Device, find: programs.Finder, arguments: Any, x: Array, table: Array) -> None:
    n = table.size
    cluster = 2
    while -(-n // cluster) * 4 > gpu.shared_bytes:
        cluster *= 2
    window = -(-n // cluster)
    blocks = max(cluster, _blocks(gpu, x.size) // cluster * cluster)
    launch(
        programs.distributed(find),
        blocks,
        programs.THREADS,
        *_samples(x),
        *arguments,
        table.data.ptr,
        np.int32(window),
        shared=window * 4,
        cluster=cluster,
    )


def _partition(gpu: Device, find: programs.Finder, arguments: Any, x: Array, table: Array) -> None:
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
            programs.partition(find),
            tiles,
            programs.PARTITION_THREADS,
            *_samples(slab),
            *arguments,
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


def _weighted_bins(gpu: Device) -> int:
    """Return for how many bins shared memory holds the sums of weights."""
    return gpu.shared_bytes // 12


def _weigh(
    gpu: Device,
    find: programs.Finder,
    arguments: Any,
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
        programs.weigh(find, weights.dtype, shared),
        blocks,
        threads,
        *_samples(x),
        *arguments,
        weights.data.ptr,
        exponent,
        table.data.ptr,
        high,
        low,
        light,
        shared=12 * n if shared else 0,
    )
    settle = programs.settle(table.dtype)
    sources = high, low, light, exponent
    launch(settle, -(-n // threads), threads, table.data.ptr, *sources, np.int32(n))


def _plain(gpu: Device, x: Array, weights: Array | None, bins: Bins, table: Array) -> None:
    """Count in one table a block where that fits, and in the table itself where it does not."""
    edge = _comparison_dtype(x.dtype, bins.edges.dtype)
    edges = cupy.asarray(bins.edges.astype(edge))
    scale, slack = _plain_guess(bins, edge)
    shared = 0
    addresses = [x.data.ptr]
    if weights is not None:
        source = plain.weigh(x.dtype, edge, weights.dtype, table.dtype)
        addresses.append(weights.data.ptr)
    else:
        bytes_needed = bins.n * 4
        fits = bytes_needed <= gpu.shared_bytes
        source = plain.count(x.dtype, edge, fits)
        shared = bytes_needed if fits else 0
    limits = edge.type(bins.edges[0]), edge.type(bins.edges[-1])
    launch(
        source,
        _blocks(gpu, x.size),
        programs.THREADS,
        *addresses,
        np.int64(x.size),
        edges.data.ptr,
        np.int32(bins.n),
        *limits,
        edge.type(scale),
        edge.type(slack),
        table.data.ptr,
        shared=shared,
    )


def _plain_guess(bins: Bins, edge: np.dtype[Any]) -> tuple[float, float]:
    """Return the bins per unit, 0 where edges are not equidistant, and the slack of the guess.

    The slack bounds, in bins, the distance between ``(x - low) * scale`` in `edge` and the place of
    ``x`` among the rounded edges: a few roundings of numbers up to ``bins.n``, and the rounding of
    the edges themselves.
    """
    if bins.limits is None or edge.kind != "f":
        return 0.0, 0.0
    scale, rounding = _scale(bins.edges, edge)
    return scale, min(1.0, 4 * (rounding + bins.n * float(np.finfo(edge).eps)))


def _comparison_dtype(samples: np.dtype[Any], edges: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which the kernels compare as NumPy does for these two."""
    common = np.result_type(samples, edges)
    if common.kind == "f":
        # float16 compares the same as float32.
        return np.dtype("f4" if common.itemsize <= 4 else "f8")
    return np.dtype("u8" if common.kind == "u" else "i8")


#: From this doubt on, in bins, every sample is compared with an edge: most warps would have to.
_DOUBT = 1 / 256


def _finder(
    samples: np.dtype[Any], bins: Bins
) -> tuple[programs.Finder, tuple[Any, ...], Array | None]:
    """Return how samples find their bins, the arguments for it, and what these point to."""
    edge = _comparison_dtype(samples, bins.edges.dtype)
    edges = bins.edges.astype(edge)
    outer = np.int32(bins.n), edges[0], edges[-1]
    # The kernels round to the dtype of comparison, which for float16 is not that of the edges.
    if edge == bins.edges.dtype and bins.line is not None:
        step, start = bins.line
        linear = (*outer, np.float64(step), np.float64(start))
        for guess in (edge, np.dtype("f8")):
            scale, doubt = _guess(bins, edges, guess)
            if guess == edge and doubt <= _DOUBT:
                rest = float(scale) - float(guess.type(scale))
                numbers = guess.type(scale), guess.type(rest), guess.type(0.5 - doubt)
                return programs.finder("guessed", samples, edge, guess), (*linear, *numbers), None
            if doubt < 0.45 and (guess.itemsize == 8 or bins.n < 1 << 21):
                numbers = guess.type(start), guess.type(scale), guess.type(0)
                return programs.finder("nearest", samples, edge, guess), (*linear, *numbers), None
    table = cupy.asarray(edges)
    return programs.finder("searched", samples, edge, edge), (*outer, table.data.ptr), table


def _guess(bins: Bins, edges: Any, guess: np.dtype[Any]) -> tuple[float, float]:
    """Return the bins per unit, and a bound, in bins, of the error of a sample's place.

    The place ``(x - low) * scale`` is rounded three times in `guess`, as is `scale`; the edges are
    rounded in their dtype, twice where that is float64.
    """
    scale, rounding = _scale(edges, guess)
    if scale == 0:
        return 0.0, math.inf
    roundings = 2 if edges.itemsize == 8 else 0.6
    return scale, 2 * bins.n * float(np.finfo(guess).eps) + roundings * rounding


def _scale(edges: Any, guess: np.dtype[Any]) -> tuple[float, float]:
    """Return the bins per unit, 0 where `guess` cannot say, and the edges' rounding in bins."""
    low, high = float(edges[0]), float(edges[-1])
    with np.errstate(all="ignore"):
        scale = float(np.divide(len(edges) - 1, np.subtract(high, low)))
        if not 0 < float(guess.type(scale)) < math.inf:
            return 0.0, 0.0
    return scale, float(np.finfo(edges.dtype).eps) * max(abs(low), abs(high)) * scale
