"""Distinct values of CuPy chunks, and the positions of elements among sorted values.

Sorts and comparisons use keys, integers in the order of the elements, which the GPU sorts by radix.
NaN is the largest key, and no two values share a key, while CuPy treats subnormal float32 as zero.
Equal neighbours form a run, whose start is a value::

    elements --> keys --> sorted --> starts of runs --> values, counts, first indices

Large chunks with few distinct elements are counted by hash instead, and integers of a small range
by bins. Complex numbers have no integer keys and use the functions of NumPy chunks. States stay on
the GPU, because their lengths differ.
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
from dask_coop.chunks.cupy.arrays import aligned, contiguous
from dask_coop.chunks.cupy.bin_index import MOST
from dask_coop.chunks.cupy.hashed import LEAST, count_distinct
from dask_coop.chunks.cupy.histogram_strategies import count
from dask_coop.chunks.cupy.reduce import reduce_lines
from dask_coop.chunks.cupy.select import flatnonzero
from dask_coop.chunks.cupy.states import fields_of
from dask_coop.chunks.distinct import Distinct, gathered, keeps_nan, named
from dask_coop.cuda.programs import distinct as programs

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
    known = x.dtype in programs.DTYPES and x.nbytes >= LEAST
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
