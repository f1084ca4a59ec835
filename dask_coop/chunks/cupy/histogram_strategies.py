"""Histograms of CuPy chunks, by the strategies of `algebra/strategies.py`.

A strategy is a row of `_STRATEGIES`. "auto" picks the one that is expected to be the fastest.
Weights have three: "shared", with three words of shared memory a bin, if they fit; then "split",
with one word a bin, and with carries and a few excess bins in global memory; otherwise "global".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.algebra.bins import Integers
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.edges import Bins
from dask_coop.algebra.strategies import AUTO, MULTICHUNK, refusal
from dask_coop.chunks.cupy.bin_lookup import Lookup, look_up
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import histogram as programs
from dask_coop.cuda.programs import multichunk

Array = Any

#: Bytes of the lists for a slab of samples, which is partitioned in one go.
_LISTS_BYTES = 1 << 29

#: The sizes of clusters that share a table: the smallest that holds the bins is the fastest.
_CLUSTERS: tuple[int, ...] = (2, 4, 8, 16)

#: Picoseconds to find the bin of a sample, besides those of its strategy.
_FINDING = {
    "guessed": 0.0,
    "unit": 0.0,
    "digit": 0.0,
    "digits": 0.2,
    "linear": 1.0,
    "searched": 2.5,
}

#: Picoseconds of a launch, of each bin of a block's window that is cleared and read at the end, and
#: of each bin that is added to the table.
_LAUNCHING, _CLEARING, _ADDING = 5.2e6, 150.0, 2.0

#: The number of weights among which the largest is searched for.
_LOOKED_AT = 1 << 21

#: How far bins may exceed the words of shared memory before two blocks share the samples: a few
#: samples in global memory cost less than reading all samples twice.
_BEYOND = 1.6


def count(
    x: Array,
    weights: Array | None,
    bins: Bins | Integers | Digits,
    table: Array,
    strategy: str = AUTO,
) -> None:
    """Add the counts of samples `x`, or the sums of their `weights`, to the `table` of `bins`.

    Parameters
    ----------
    x : cupy.ndarray
        Contiguous samples, at least one, not bool.
    weights : cupy.ndarray or None
        One for each sample.
    bins : Bins, Integers or Digits
    table : cupy.ndarray
        A uint64 or int64 for every bin, or a float64 for float weights.
    strategy : str
        "auto", or a name of `algebra.strategies.HISTOGRAM`. Float sums do not depend on the order
        of the samples.

    Raises
    ------
    ValueError
        If the strategy does not support this GPU, dtype or number of bins.
    """
    gpu = device(cupy.cuda.runtime.getDevice())
    weighted = weights is not None
    lookup = look_up(gpu, x.dtype, bins, 12 if weighted else 4)
    case = _Case(gpu, bins.n, x.size, x.itemsize, lookup.finder.kind, lookup.staged)
    if strategy == AUTO:
        strategy = _choose(case, weighted)
    elif reason := _objection(case, strategy, weighted):
        raise refusal("histogram", strategy, reason)
    if weights is None:
        launches = _STRATEGIES[strategy].launches(case, lookup, x, table)
    else:
        launches = _weigh(case, lookup, x, Weights(weights), table, strategy)
    for step in launches:
        _start(step)


class Weights(NamedTuple):
    """Weights to add, or squares of their deviations to add.

    Attributes
    ----------
    values : cupy.ndarray
        Contiguous.
    term : programs.Term
    at : tuple of int
        The addresses of the term's tables: of int64 to which the numbers of weights are added, or
        0, and of uint32 for the largest sizes of weights; or of means and of scales.
    skipna : bool
        Whether weights that are counted or sized are without NaN.
    """

    values: Array
    term: programs.Term = "weights"
    at: tuple[int, ...] = ()
    skipna: bool = False

    @property
    def is_float(self) -> bool:
        """Whether floats are added."""
        return self.term == "squares" or self.values.dtype.kind == "f"

    @property
    def bin_bytes(self) -> int:
        """The bytes of shared memory of a bin."""
        return {"weights": 12, "counted": 16, "sized": 20, "squares": 22}[self.term]


def weigh(codes: Array, weights: Weights, n: int, table: Array) -> None:
    """Add weights by their codes to the `table` of n groups, as `count` does by bins.

    Parameters
    ----------
    codes : cupy.ndarray of int32
        Contiguous; at least one.
    weights : Weights
    n : int
    table : cupy.ndarray
        A uint64 or int64 for every group, or a float64 for floats.
    """
    x, gpu = codes.view("u4"), device(cupy.cuda.runtime.getDevice())
    lookup = look_up(gpu, x.dtype, Integers(n))
    case = _Case(gpu, n, x.size, 4, lookup.finder.kind, 0, weights.bin_bytes)
    for step in _weigh(case, lookup, x, weights, table, _choose(case, True)):
        _start(step)


def counts_beside(n: int) -> bool:
    """Return whether `weigh` has room in shared memory to count the weights of n groups."""
    gpu = device(cupy.cuda.runtime.getDevice())
    return n <= gpu.shared_bytes // 16 - programs.SPARE


class _Case(NamedTuple):
    """The facts on which the choice of a strategy depends.

    Attributes
    ----------
    gpu : Device
    n : int
        The number of bins.
    size, itemsize : int
        The number of samples, and the bytes of one.
    finder : str
        The way to find bins: the kind of a `programs.Finder`.
    staged : int
        Bytes of shared memory that the finder uses in every block.
    bin_bytes : int
        Bytes of shared memory that all sums of the weights of a bin take.
    """

    gpu: Device
    n: int
    size: int
    itemsize: int
    finder: str
    staged: int = 0
    bin_bytes: int = 12

    @property
    def words(self) -> int:
        """The words of shared memory available to counters."""
        return (self.gpu.shared_bytes - self.staged) // 4

    def fit(self, packed: bool = False) -> int:
        """Return the number of bins whose counters fit a block's shared memory, an even number."""
        return 2 * (self.words - 32) if packed else (self.words - 1) // 2 * 2

    def windows(self, packed: bool) -> int:
        """Return the number of windows that hold all bins."""
        return -(-self.n // self.fit(packed))

    def blocks(self, splits: int = 1) -> int:
        """Return how many blocks divide the samples, if `splits` blocks read the same ones."""
        most = max(1, self.gpu.processors // splits)
        # Counters have 32 bits, so a block may read only as many samples as they can count.
        return max(min(most, -(-self.size // (programs.THREADS * 16))), -(-self.size // (1 << 31)))

    @property
    def finding(self) -> float:
        """Picoseconds to find the bin of a sample."""
        return _FINDING[self.finder]

    def flushing(self, rows: int) -> float:
        """Picoseconds to add the tables of so many blocks to the one in global memory."""
        # Only bins with samples are added.
        occupied = self.n * -math.expm1(-self.size / rows / self.n)
        return _ADDING * rows * occupied


class _Launch(NamedTuple):
    """The arguments of `launch`."""

    source: str
    blocks: int
    threads: int
    arguments: tuple[Any, ...]
    shared: int = 0
    cluster: int = 1


def _start(step: _Launch) -> None:
    source, blocks, threads, arguments, shared, cluster = step
    launch(source, blocks, threads, *arguments, shared=shared, cluster=cluster)


class _Strategy(NamedTuple):
    """A row of the table.

    Attributes
    ----------
    launches : callable
        Yields the launches that add contiguous samples to a table.
    picoseconds : callable
        Estimates their time, fitted to an H100. Tables in shared memory cost time for each sample,
        at least that of reading it, and at the end an addition in global memory for each bin and
        block.
    most : callable
        The most bins.
    objection : callable
        Further reasons why the strategy does not apply, or "" if it does.
    """

    launches: Callable[[_Case, Lookup, Array, Array], Iterator[_Launch]]
    picoseconds: Callable[[_Case], float]
    most: Callable[[_Case], float] = lambda case: math.inf
    objection: Callable[[_Case], str] = lambda case: ""


def _objection(case: _Case, strategy: str, weighted: bool) -> str:
    """Return why a strategy does not apply, or "" if it does."""
    if strategy == MULTICHUNK:
        return "takes the chunks of a Node or a collective together, not one by one"
    if weighted and strategy not in _WEIGHED:
        return "does not take weights"
    row = _STRATEGIES[strategy]
    most = _WEIGHED[strategy](case) if weighted else row.most(case)
    if not weighted and (reason := row.objection(case)):
        return reason
    return f"takes up to {most} bins here, not {case.n}" if case.n > most else ""


@lru_cache(1024)
def _choose(case: _Case, weighted: bool) -> str:
    """Return the strategy with the least expected time among those that apply."""
    names = _WEIGHED if weighted else _STRATEGIES
    able = (name for name in names if not _objection(case, name, weighted))
    return next(able) if weighted else min(able, key=lambda n: _STRATEGIES[n].picoseconds(case))


def _samples(x: Array) -> tuple[Any, ...]:
    return x.data.ptr, np.int64(x.size)


# By value: samples of one byte.


def _by_value(case: _Case, lookup: Lookup, x: Array, table: Array) -> Iterator[_Launch]:
    arguments = *_samples(x), *lookup.arguments, table.data.ptr
    source = programs.by_value(lookup.finder)
    yield _Launch(source, case.blocks(), programs.THREADS, arguments)


def _needs_bytes(case: _Case) -> str:
    return f"takes samples of 1 byte, not {case.itemsize}" if case.itemsize > 1 else ""


# In the shared memory of every block, by windows of bins.


def _windows(
    case: _Case,
    lookup: Lookup,
    x: Array,
    table: Array,
    *,
    packed: bool = False,
    split: bool = False,
) -> Iterator[_Launch]:
    windows = case.windows(packed)
    # Windows are even, because packed counters come in pairs.
    window = -(-case.n // windows // 2) * 2
    splits = windows if split else 1
    nbytes = case.staged + programs.counters_bytes(window, packed)
    source, cluster = programs.windows(lookup.finder, packed), splits if case.gpu.hopper else 1
    for first in range(0, case.n, window * splits):
        numbers = map(np.int32, (first, window, splits))
        arguments = *_samples(x), *lookup.arguments, table.data.ptr, *numbers
        blocks = case.blocks(splits) * splits
        yield _Launch(source, blocks, programs.THREADS, arguments, nbytes, cluster)


def _by_windows(case: _Case, packed: bool = False, split: bool = False) -> float:
    windows = case.windows(packed)
    window = _LAUNCHING + _CLEARING * case.n / windows
    if not split or windows == 1:
        once = max(0.23 * case.itemsize, case.finding + (1.2 if packed else 0.9))
        return windows * (window + case.size * once) + case.flushing(case.blocks())
    # With more than two blocks to the same samples, their loads no longer meet in the cache.
    once = max((0.12 if windows <= 2 else 0.47) * case.itemsize, case.finding + 0.75)
    return window + windows * case.size * once + case.flushing(case.blocks(windows))


# Over the shared memory of a cluster.


def _distributed(case: _Case, lookup: Lookup, x: Array, table: Array) -> Iterator[_Launch]:
    cluster = _cluster(case)
    window = -(-case.n // cluster)
    blocks = max(cluster, case.blocks() // cluster * cluster)
    arguments = *_samples(x), *lookup.arguments, table.data.ptr, np.int32(window)
    source = programs.distributed(lookup.finder)
    yield _Launch(source, blocks, programs.THREADS, arguments, window * 4, cluster)


def _cluster(case: _Case) -> int:
    """Return the number of blocks that share a table: the least that holds the bins."""
    return next((k for k in _CLUSTERS if case.n <= case.fit() * k), _CLUSTERS[-1])


def _over_clusters(case: _Case) -> float:
    # Additions to another block's memory are serialized, and among more than two blocks the network
    # is the limit.
    cluster = _cluster(case)
    once, window = 6.0 if cluster == 2 else 20.0, _CLEARING * case.n / cluster
    return 2 * _LAUNCHING + window + case.size * (case.finding + once)


def _needs_clusters(case: _Case) -> str:
    if case.gpu.hopper:
        return ""
    return f"needs compute capability 9.0, and this GPU is {case.gpu.arch}"


# By buckets.


def _partition(case: _Case, lookup: Lookup, x: Array, table: Array) -> Iterator[_Launch]:
    buckets = -(-case.n // programs.BUCKET)
    tile = programs.PARTITION_THREADS * programs.PARTITION_ITEMS
    stride = tile // 8 + buckets
    most = min(-(-x.size // tile), max(1, _LISTS_BYTES // (stride * 16)))
    lists, offsets = cupy.empty(most * stride * 16, "u1"), cupy.empty(most * buckets, "u4")
    # A block for every multiprocessor, and further blocks for small buckets where these are many.
    processors = case.gpu.processors
    blocks = processors + (buckets if buckets > processors // 2 else 0)
    prepare(programs.partition(lookup.finder), programs.lists())
    for begin in range(0, x.size, most * tile):
        slab = x.reshape(-1)[begin : begin + most * tile]
        tiles = -(-slab.size // tile)
        sizes = cupy.zeros(buckets, "u4")
        room = lists.data.ptr, offsets.data.ptr, sizes.data.ptr, np.int32(buckets)
        yield _Launch(
            programs.partition(lookup.finder),
            tiles,
            programs.PARTITION_THREADS,
            (*_samples(slab), *lookup.arguments, *room),
            buckets * 8,
        )
        numbers = np.int64(tiles), np.int32(stride), np.int32(case.n)
        yield _Launch(
            programs.lists(),
            blocks,
            programs.THREADS,
            (*room, *numbers, table.data.ptr),
            programs.lists_shared_bytes(),
        )


def _by_buckets(case: _Case) -> float:
    buckets = -(-case.n // programs.BUCKET)
    once = case.finding + 3.7 + 0.004 * buckets
    # Blocks share buckets if these are few.
    return 20e6 + 20e6 / buckets + case.size * once + 3.0 * case.n


def _needs_lists(case: _Case) -> str:
    needed, has = programs.lists_shared_bytes(), case.gpu.shared_bytes
    return f"needs {needed} bytes of shared memory, and this GPU has {has}" if needed > has else ""


# In global memory.


def _everywhere(case: _Case, lookup: Lookup, x: Array, table: Array) -> Iterator[_Launch]:
    arguments = *_samples(x), *lookup.arguments, table.data.ptr
    source, shared = programs.everywhere(lookup.finder), programs.everywhere_shared_bytes()
    yield _Launch(source, case.blocks(), programs.THREADS, arguments, shared)


def _in_global_memory(case: _Case) -> float:
    # The table may be larger than the L2 cache.
    return 15e6 + case.size * (case.finding + (12.0 if case.n < 5e6 else 45.0))


_STRATEGIES = {
    "bytes": _Strategy(_by_value, lambda case: 0.0, objection=_needs_bytes),
    "shared": _Strategy(_windows, _by_windows, _Case.fit),
    "packed": _Strategy(partial(_windows, packed=True), partial(_by_windows, packed=True)),
    "split": _Strategy(
        partial(_windows, split=True), partial(_by_windows, split=True), lambda case: case.fit() * 8
    ),
    "distributed": _Strategy(
        _distributed, _over_clusters, lambda case: case.fit() * _CLUSTERS[-1], _needs_clusters
    ),
    "partition": _Strategy(
        _partition, _by_buckets, lambda case: programs.BUCKET * programs.BUCKETS, _needs_lists
    ),
    "global": _Strategy(_everywhere, _in_global_memory),
}

#: The most bins of the strategies for weights, the faster one first.
_WEIGHED: dict[str, Callable[[_Case], float]] = {
    "shared": lambda case: 4 * case.words // case.bin_bytes - programs.SPARE,
    "split": lambda case: 2 * (case.words - programs.SPARE),
    "global": lambda case: math.inf,
}


def _weigh(
    case: _Case, lookup: Lookup, x: Array, weights: Weights, table: Array, strategy: str
) -> Iterator[_Launch]:
    n, values, size = case.n, weights.values, weights.values.size
    if not weights.is_float:
        nowhere = np.int64(0)
        sums = nowhere, table.data.ptr, nowhere, nowhere, nowhere
        yield from _sum(case, lookup, x, weights, sums, 0, strategy)
        return
    words = (2 + programs.APART_WORDS) * n
    room = cupy.zeros(words + 1, "u8")
    high = room.data.ptr
    exponents = high + 8 * words
    sums = table.data.ptr, high, high + 8 * n, high + 16 * n, exponents
    # The largest of many weights is estimated from a sample, then verified.
    step = 1 if size <= _LOOKED_AT else size // _LOOKED_AT
    blocks, threads = case.blocks(), programs.THREADS
    settle = programs.settle()
    largest, looked_at = programs.largest(values.dtype), _samples(values)
    scales: tuple[int, ...] = ()
    if weights.term == "squares":
        largest, settle, scales = (
            programs.largest_square(values.dtype),
            programs.settle_squares(),
            weights.at[1:],
        )
        looked_at = x.data.ptr, *looked_at, np.int32(n), *weights.at
    prepare(largest, _summing(lookup, weights, strategy), settle)
    yield _Launch(largest, blocks, threads, (*looked_at, np.int64(step), exponents))
    yield from _sum(case, lookup, x, weights, sums, 0, strategy)
    if step > 1:
        again = high, np.int64(words), exponents
        yield _Launch(programs.clear(), blocks, threads, again)
        yield from _sum(case, lookup, x, weights, sums, 1, strategy)
    yield _Launch(settle, -(-n // threads), threads, (*sums, *scales, np.int32(n)))


_KINDS: dict[str, programs.Sums] = {"shared": "whole", "split": "lean", "global": "global"}


def _summing(lookup: Lookup, weights: Weights, strategy: str) -> str:
    values, kind = weights.values, _KINDS[strategy]
    return programs.weigh(lookup.finder, values.dtype, kind, weights.term, weights.skipna)


def _sum(
    case: _Case,
    lookup: Lookup,
    x: Array,
    weights: Weights,
    sums: tuple[Any, ...],
    number: int,
    strategy: str,
) -> Iterator[_Launch]:
    """Sum weights in a round: the first, or the one that repeats it only if need be."""
    source = _summing(lookup, weights, strategy)
    threads = programs.weighing_threads(lookup.finder, _KINDS[strategy], weights.term)
    arguments = *_samples(x), *lookup.arguments, weights.values.data.ptr, *sums, np.int32(number)
    term = (*map(np.uint64, weights.at),)
    if strategy == "global":
        yield _Launch(source, case.blocks(), threads, (*arguments, *term))
        return
    if strategy == "shared":
        splits, window, each = 1, case.n, case.bin_bytes
    else:
        fit, each = case.words - programs.SPARE, 4
        splits = 1 if case.n <= _BEYOND * fit else 2
        window = min(-(-case.n // splits), fit)
    nbytes = case.staged + each * (window + programs.SPARE)
    cluster = splits if case.gpu.hopper else 1
    blocks = case.blocks(splits) * splits
    numbers = np.int32(window), np.int32(splits)
    yield _Launch(source, blocks, threads, (*arguments, *numbers, *term), nbytes, cluster)


# Several chunks in one launch.


class MultichunkHistogram(NamedTuple):
    """One launch for the histogram of several chunks, on one GPU or on several.

    Attributes
    ----------
    source : str
        A program of `multichunk.histogram`, in blocks of `programs.THREADS`, one a multiprocessor.
    shared : int
        Dynamic shared memory of a block, in bytes.
    lookups : list of Lookup
        One for every GPU; their `tables` must outlive the launch.
    """

    source: str
    shared: int
    lookups: list[Lookup]


def multichunk_histogram(
    ordinals: Sequence[int], samples: np.dtype[Any], bins: Bins | Integers | Digits
) -> MultichunkHistogram | None:
    """Return the launch that counts several chunks; None if the counters do not fit a block.

    Parameters
    ----------
    ordinals : sequence of int
        GPUs of one model. Their tables of edges are copied on CuPy's current streams.
    samples : numpy.dtype
        Not bool, whose samples are counted as uint8.
    bins : Bins, Integers or Digits
    """
    gpu = device(ordinals[0])
    if multichunk.fit_counters(bins.n, gpu.shared_bytes) is None:
        return None
    lookups: list[Lookup] = []
    for ordinal in ordinals:
        # Without tables, the lookup is the same on all GPUs.
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
