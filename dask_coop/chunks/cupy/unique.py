"""Distinct values of CuPy chunks, and the positions of elements among sorted values.

Sorts and comparisons use keys, integers in the order of the elements, which the GPU sorts by radix.
NaN is the largest key, and no two values share a key, while CuPy treats subnormal float32 as zero.
Equal neighbours form a run, whose start is a value::

    elements --> keys --> sorted --> starts of runs --> values, counts, first indices

Integers of a small range are counted by bins instead, and few distinct elements of a large chunk in
hash tables (kernel_distinct.cuh). A sample gives an estimate of their number. If they fit a block's
table, one read counts them; if not, they are dealt by hash to buckets, whose distinct elements fit
a table each. If a table overflows, or there are too many from the beginning, the chunk is sorted.

Complex numbers have no integer keys and use the functions of NumPy chunks. States stay on the GPU,
because their lengths differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from dask_coop import chunks
from dask_coop.algebra.bins import Integers
from dask_coop.algebra.merges import equals
from dask_coop.algebra.monoids import MINMAX, State
from dask_coop.algebra.operation import Operation, bind
from dask_coop.chunks.backend import Side
from dask_coop.chunks.cupy.arrays import aligned, fields_of
from dask_coop.chunks.cupy.bin_lookup import MOST
from dask_coop.chunks.cupy.histogram_strategies import count
from dask_coop.chunks.cupy.reduce import reduce_lines
from dask_coop.chunks.cupy.select import flatnonzero
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.chunks.distinct import Distinct, gathered, keeps_nan, named
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import select as programs

Array = Any

#: The most entries of a table for each element that is counted.
_ROOM = 2

#: A float's bits as a key: NaN is `top`, zero of either sign is 0.
_TO_KEYS = cupy.ElementwiseKernel(
    "T x, T top, T infinity",
    "T y",
    "y = (x & top) > infinity ? top : x < 0 ? (T)-(x & top) : x",
    "sorted_keys",
)
_FROM_KEYS = cupy.ElementwiseKernel(
    "T x, T top", "T y", "y = x < 0 ? (T)(-x | ~top) : x", "values_of_keys"
)

#: The least bytes of a chunk: sorting fewer takes no longer than taking a sample.
LEAST = 1 << 27

#: The elements of a sample, and those counted at a time; counts of a block have 32 bits.
SAMPLE, _SLAB = 1 << 15, 1 << 28

#: The load of tables; the fuller they are, the farther keys lie from their slots.
_LOAD = 0.5

#: The possible numbers of buckets.
_BUCKETS = (1, 256, 512)

#: Elements at pseudorandom positions, which are the same on every run.
_SAMPLED = cupy.ElementwiseKernel(
    "raw T x, uint64 n",
    "T y",
    """
    unsigned long long h = (i + 1) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 27) * 0x94d049bb133111ebull;
    y = x[__umul64hi(h ^ h >> 31, n)]""",
    "sampled",
)

#: The least number of elements for each distinct one.
_REPEATS = 8


def distinct(op: Operation, monoid: Distinct, x: Array) -> State:
    """Return the state of the chunk `x`; indices count in C order."""
    x = contiguous(x).reshape(-1)
    if x.dtype.kind == "c":
        host = chunks.asarray(x, "numpy")
        state: State = chunks.backend_of(host).lift(op, host, (0,))
        return state
    for count_few in (_hashed, _counted):
        if (found := count_few(monoid, x)) is not None:
            return found
    keys, index = _keys(x), None
    if monoid.positional:
        # A stable sort leaves the first of a run first.
        index = cupy.argsort(keys, kind="stable")
        keys = keys[index]
    else:
        keys = cupy.sort(keys)
    return _runs(monoid, x.dtype, keys, index, None)


def merge_distinct(monoid: Distinct, states: Sequence[State]) -> State:
    """Return the merged state of several states."""
    with states[0][0].device:
        fields = tuple(
            parts[0] if len(parts) == 1 else cupy.concatenate(parts)
            for parts in gathered(monoid, states)
        )
        values, index, counts = named(monoid, fields)
        keys = _keys(values)
        if index is None and counts is None:
            return _runs(monoid, values.dtype, cupy.sort(keys), None, None)
        order = None
        if index is not None:
            # Sort by index first, because chunks may be in any order and a run's first must lead.
            order = cupy.argsort(index)
            keys = keys[order]
        by_key = cupy.argsort(keys, kind="stable")
        order = by_key if order is None else order[by_key]
        index, counts = (None if field is None else field[order] for field in (index, counts))
        return _runs(monoid, values.dtype, keys[by_key], index, counts)


def positions(values: Array, x: Array) -> Array:
    """Return the indices of the elements of `x` in the sorted distinct `values`."""
    found = searchsorted(values, x, "left")
    # Complex NaN compare in several ways.
    return cupy.minimum(found, max(len(values) - 1, 0)) if x.dtype.kind == "c" else found


def isin(x: Array, values: Array) -> Array:
    """Return whether the elements of `x` are among sorted distinct `values` of one dtype."""
    with x.device:
        if not len(values):
            return cupy.zeros(x.shape, "?")
        values = cupy.asarray(values)
        at = cupy.minimum(searchsorted(values, x, "left"), len(values) - 1)
        if x.dtype.kind == "c":
            return equals(values[at], x)
        keys, wanted = _keys(x), _keys(values)
        found = wanted[at] == keys
        return found & (keys != _top(x.dtype)) if x.dtype.kind == "f" else found


def searchsorted(a: Array, v: Array, side: Side) -> Array:
    """Return NumPy's ``searchsorted(a, v, side)``, int64 of the shape of `v`."""
    common = np.result_type(a.dtype, v.dtype)
    if common.kind == "c":
        on_host = [chunks.asarray(x, "numpy") for x in (a, v)]
        found = chunks.backend_of(on_host[0]).searchsorted(on_host[0], on_host[1], side)
        return chunks.asarray(found, "cupy")
    with v.device:
        keys, wanted = (_keys(cupy.asarray(x).astype(common, copy=False)) for x in (a, v))
        return cupy.searchsorted(keys, wanted.reshape(-1), side).reshape(v.shape)


def sorted_starts(keys: Array, alone: Any = None) -> Array:
    """Return the indices where runs of equal keys start; keys equal to `alone` do not join."""
    begins = cupy.empty(len(keys), "?")
    begins[:1] = True
    cupy.not_equal(keys[1:], keys[:-1], out=begins[1:])
    if alone is not None:
        begins |= keys == alone
    return flatnonzero(begins)


def _runs(
    monoid: Distinct, dtype: np.dtype[Any], keys: Array, index: Array | None, counts: Array | None
) -> State:
    """Return the state of sorted keys of elements of a dtype, from one or several states.

    `index` has the first index of each key, ascending within a run; without `counts`, each key
    counts once.
    """
    alone = _top(dtype) if keeps_nan(monoid, dtype) else None
    starts = sorted_starts(keys, alone)
    if len(starts) == len(keys) and (counts is not None) == monoid.counting:
        # No key repeats.
        once = (_values(keys, dtype), index, counts)
        return tuple(field for field in once if field is not None)
    fields = [_values(keys[starts], dtype)]
    if index is not None:
        fields.append(index[starts])
    if monoid.counting:
        ends = cupy.empty_like(starts)
        ends[:-1], ends[-1:] = starts[1:], len(keys)
        if counts is None:
            fields.append(ends - starts)
        else:
            upto = cupy.cumsum(counts)
            fields.append(upto[ends - 1] - upto[starts] + counts[starts])
    return tuple(fields)


def _counted(monoid: Distinct, x: Array) -> State | None:
    """Return the state of elements whose keys have a small range; None for others."""
    wide = x.dtype.kind == "f" and x.itemsize > 2
    if wide or monoid.positional or keeps_nan(monoid, x.dtype) or not x.size:
        return None
    integers = aligned(_keys(x))
    extrema = bind(MINMAX, integers.dtype, integers.dtype, "unique")
    states = reduce_lines(extrema, integers, (1, x.size, 1))
    low, high = map(int, fields_of(extrema, states, ()))
    n = high - low + 1
    if n > min(_ROOM * x.size, MOST):
        return None
    offsets = integers.view(f"u{x.itemsize}")
    # Unsigned arithmetic wraps, which suits negative integers.
    least = offsets.dtype.type(low & np.iinfo(offsets.dtype).max)
    table = cupy.zeros(n, "i8")
    count(offsets - least if low else offsets, None, Integers(n), table)
    found = flatnonzero(table != 0)
    values = _values((found.astype(offsets.dtype) + least).view(integers.dtype), x.dtype)
    return (values, table[found]) if monoid.counting else (values,)


def _hashed(monoid: Distinct, x: Array) -> State | None:
    """Return the state of many elements with few distinct ones; None for others."""
    known = x.dtype in programs.DISTINCT_DTYPES and x.nbytes >= LEAST
    if not known or monoid.positional or keeps_nan(monoid, x.dtype):
        return None
    if (parts := count_distinct(aligned(x))) is None:
        return None
    return merge_distinct(monoid, [part[: 1 + monoid.counting] for part in parts])


def _keys(x: Array) -> Array:
    """Return integers in the order of the elements, equal for equal elements."""
    if x.dtype.kind == "f":
        infinity = np.array(np.inf, x.dtype).view(f"i{x.itemsize}")[()]
        return _TO_KEYS(x.view(infinity.dtype), _top(x.dtype), infinity)
    return x.view("u1") if x.dtype.kind == "b" else x


def _values(keys: Array, dtype: np.dtype[Any]) -> Array:
    """Return the elements of a dtype with the given keys."""
    return (_FROM_KEYS(keys, _top(dtype)) if dtype.kind == "f" else keys).view(dtype)


def _top(dtype: np.dtype[Any]) -> Any:
    """Return the key of NaN."""
    integer = np.dtype(f"i{dtype.itemsize}").type
    return integer(np.iinfo(integer).max)


def count_distinct(x: Array) -> list[tuple[Array, Array]] | None:
    """Return distinct elements and their counts, or None if there are too many.

    Parameters
    ----------
    x : cupy.ndarray
        One axis, contiguous and aligned, of one of `programs.DISTINCT_DTYPES`, at least `LEAST`
        bytes.

    Returns
    -------
    list of tuples
        An element may be in several of the tuples, in any order; NaN is one value.
    """
    about = estimate(x)
    if about * _REPEATS > x.size:
        return None
    parts = []
    for begin in range(0, x.size, _SLAB):
        if (part := _count(x[begin : begin + _SLAB], about)) is None:
            return None
        parts.append(part)
    return parts


def estimate(x: Array) -> float:
    """Return a lower estimate of the number of distinct elements; infinity for very many."""
    some = _SAMPLED(x.view(f"u{x.itemsize}"), np.uint64(x.size), size=SAMPLE)
    keys = cupy.sort(some)
    starts = np.flatnonzero(cupy.asnumpy(keys[1:] != keys[:-1]))
    often = np.bincount(np.diff(starts, prepend=-1, append=SAMPLE - 1), minlength=3)
    once, twice = map(int, often[1:3])
    # Chao's estimate, a lower bound, of the distinct elements that the sample lacks.
    unseen = once**2 / (2 * twice) if twice else np.inf if once else 0
    return len(starts) + 1 + unseen


def _count(x: Array, about: float) -> tuple[Array, Array] | None:
    """Return distinct elements and their counts, or None if a table overflows."""
    gpu = device(cupy.cuda.runtime.getDevice())
    if (tuned := _tune(gpu, x.dtype, about)) is None:
        return None
    buckets, slots = tuned
    shared = programs.table_bytes(x.dtype, slots)
    given: tuple[Any, ...] = x.data.ptr, np.int64(x.size)
    if buckets == 1:
        source, blocks = programs.count_elements(x.dtype), gpu.processors
        given += (np.int64(-(-x.size // blocks // 64) * 64),)
    else:
        # Buckets of one size get a block each, and larger ones more.
        source, blocks = programs.count_lists(x.itemsize), buckets + buckets * 7 // 8
        tiles = -(-x.size // programs.dealt_tile(x.dtype))
        vectors = programs.vectors_of(x.dtype, buckets)
        lists, extents = cupy.empty(tiles * vectors * 16, "u1"), cupy.empty(tiles * buckets, "u4")
        sizes = cupy.zeros(buckets, "u4")
        deal, threads = programs.deal(x.dtype), programs.DEAL_THREADS
        prepare(deal, source)
        room = lists.data.ptr, extents.data.ptr, sizes.data.ptr
        launch(deal, tiles, threads, *given, np.int32(buckets), *room, shared=buckets * 8)
        given = *room, np.int32(buckets), np.int64(tiles), np.int32(vectors)
    most = min(blocks * (slots + 1), x.size)
    keys, counts, found = cupy.empty(most, x.dtype), cupy.empty(most, "i8"), cupy.zeros(2, "u8")
    given += np.uint32(slots), keys.data.ptr, counts.data.ptr, found.data.ptr
    launch(source, blocks, programs.COUNT_THREADS, *given, shared=shared)
    total, full = map(int, found.get())
    return None if full else (keys[:total], counts[:total])


def _tune(gpu: Device, dtype: np.dtype[Any], about: float) -> tuple[int, int] | None:
    """Return the number of buckets and the slots of each table, or None if too many are needed."""
    slots = programs.slots_in(dtype, gpu.shared_bytes)
    for buckets in _BUCKETS:
        if about <= buckets * slots * _LOAD:
            return buckets, slots
    return None
