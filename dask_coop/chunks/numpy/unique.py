"""Distinct values of NumPy chunks, and the positions of elements in sorted values.

NumPy sorts numbers by vector instructions, in less time than a hash table takes. Integers of a
small range index a table directly::

    integers of a small range    counted, as `bincount` counts; looked up in a table
    all else                     sorted; equal neighbours are a run, and its start is a value
    several states               merged, by a compiled loop where Numba is there
    elements in sorted values    searched for, many at a time, by a compiled loop; without Numba
                                 in sorted order, in which NumPy finds them far faster
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_coop.algebra.bins import Integers
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.backend import Side
from dask_coop.chunks.distinct import Distinct, gathered, keeps_nan, named
from dask_coop.chunks.numpy.histogram import tally
from dask_coop.chunks.numpy.keys import Bits, elements, find_bits, keys_of
from dask_coop.chunks.numpy.loop_table import loops_for
from dask_coop.chunks.numpy.sorting import sort

Array = np.ndarray[Any, Any]

#: The most table entries for each element that is looked up or counted.
_ROOM = 2
#: The most values that elements are compared with one by one.
_FEW = 8
#: The most values for each element that the compiled loop searches for.
_MANY = 16
#: The fewest elements that are sorted before they are searched for.
_WORTH_SORTING = 1 << 10


def distinct(op: Operation, monoid: Distinct, x: Array) -> State:
    """Return the state of the chunk `x`; indices count in C order."""
    # A chunk's strings may differ in length from the declared dtype.
    x = np.asarray(x).reshape(-1)
    if x.dtype.kind not in "SU":
        x = x.astype(op.element, copy=False)
    return _distinct(monoid, x)


def _distinct(monoid: Distinct, x: Array) -> State:
    if x.dtype.kind in "mM" and monoid.equal_nan and (keys := _keys(x)) is not None:
        # NumPy sorts integers faster, and their range may be small.
        values, *fields = _distinct(monoid, keys)
        return (elements(values, x.dtype), *fields)
    if (span := _span(x, x.size)) is not None:
        return _counted(monoid, x, *span)
    order = None
    if monoid.positional:
        order = np.argsort(x)
        x = x[order]
    else:
        # NumPy's stable sort of narrow integers is a radix sort, which is faster.
        x = sort(x, kind="stable" if x.dtype.kind in "iu" and x.itemsize <= 2 else None)
    return _runs(monoid, x, order, None)


def merge_distinct(monoid: Distinct, states: Sequence[State]) -> State:
    """Merge the states of several blocks into one."""
    fields = gathered(monoid, states)
    if (loops := loops_for("unique", sum(map(len, fields[0])))) is not None:
        keys = [_keys(values) for values in fields[0]]
        if all(key is not None for key in keys) and not keeps_nan(monoid, fields[0][0].dtype):
            return _merged(monoid, loops, keys, fields)
    values = np.concatenate(fields[0])
    if len(fields) == 1:
        # A stable sort of sorted runs takes little time.
        return _runs(monoid, sort(values, kind="stable"), None, None)
    order = np.argsort(values, kind="stable")
    _, index, counts = named(monoid, tuple(np.concatenate(field)[order] for field in fields))
    return _runs(monoid, values[order], index, counts)


def positions(values: Array, x: Array) -> Array:
    """Return the positions of the elements of `x`, all present, in sorted distinct `values`."""
    flat = x.reshape(-1)
    if (span := _span(values, x.size)) is not None:
        low, n = span
        table = np.empty(n, "i8")
        table[_offsets(values, low)] = np.arange(len(values))
        places = table.take(_signed(_offsets(flat, low)))
    else:
        # Complex NaN sort in several orders.
        places = np.minimum(_search(values, flat, "left"), max(len(values) - 1, 0))
    return places.reshape(x.shape)


def isin(x: Array, values: Array) -> Array:
    """Return whether each element of `x` is among sorted distinct `values` of the same dtype."""
    present = np.zeros(x.size, "?")
    # NaN equals nothing.
    flat, values = x.reshape(-1), values[values == values]
    if len(values) <= _FEW:
        for value in values:
            present |= flat == value
    elif (span := _span(values, x.size)) is not None:
        low, n = span
        # The last entry is for elements beyond the table, which are not among the values.
        table = np.zeros(n + 1, "?")
        table[_offsets(values, low)] = True
        offsets = _offsets(flat, low)
        # If the table is longer than offsets can reach, no element lies beyond it.
        if n <= np.iinfo(offsets.dtype).max:
            offsets = np.minimum(offsets, offsets.dtype.type(n))
        present = table.take(_signed(offsets))
    elif (known := _searchable(values, flat)) is not None:
        loops, keys, bits = known
        present = loops.contains(keys, bits)
    else:
        order, sorted_ = _sorted(flat)
        at = np.minimum(np.searchsorted(values, sorted_), len(values) - 1)
        present[order] = values[at] == sorted_
    return present.reshape(x.shape)


def searchsorted(a: Array, v: Array, side: Side) -> Array:
    """Return NumPy's ``searchsorted(a, v, side)``, int64 of the shape of `v`."""
    if not len(a):
        return np.zeros(v.shape, "i8")
    common = np.result_type(a.dtype, v.dtype)
    a, v = (x.astype(common, copy=False) for x in (a, v))
    # Most elements lie before or behind all of a chunk's values; comparisons with NaN are false.
    with np.errstate(invalid="ignore"):
        behind, before = (v >= a[-1], v < a[0]) if side == "right" else (v > a[-1], v <= a[0])
    places = np.where(behind, len(a), 0)
    if (within := ~(behind | before)).all():
        places = _search(a, v.reshape(-1), side).reshape(v.shape)
    elif within.any():
        places[within] = _search(a, v[within], side)
    return places


def _merged(
    monoid: Distinct, loops: Any, keys: Sequence[Any], fields: Sequence[Sequence[Array]]
) -> State:
    """Merge states, whose values have these keys, by the compiled loop."""
    none = np.empty(0, "i8")
    parts = []
    for key, state in zip(keys, zip(*fields, strict=True), strict=True):
        _, index, counts = named(monoid, state)
        parts.append((key, none if index is None else index, none if counts is None else counts))
    merged, index, counts = loops.merge(parts)
    values = elements(merged, fields[0][0].dtype)
    return (
        values,
        *([index] if monoid.positional else []),
        *([counts] if monoid.counting else []),
    )


def _runs(monoid: Distinct, x: Array, index: Array | None, counts: Array | None) -> State:
    """Return the state of sorted elements, which may come from several states.

    `index` has the (first) index of each element; without `counts`, each counts once.
    """
    starts = np.flatnonzero(_begins(monoid, x))
    fields = [x[starts]]
    if index is not None:
        fields.append(np.minimum.reduceat(index, starts) if len(x) else index)
        if keeps_nan(monoid, x.dtype):
            # Each of these runs is one element, and they are in index order.
            nans = np.flatnonzero(np.isnan(fields[0]))
            order = nans[np.argsort(fields[1][nans])]
            for field in fields:
                field[nans] = field[order]
    if monoid.counting:
        if counts is None:
            fields.append(np.diff(starts, append=len(x)))
        else:
            fields.append(np.add.reduceat(counts, starts) if len(x) else counts)
    return tuple(fields)


def _begins(monoid: Distinct, x: Array) -> Array:
    """Return where sorted elements differ from the one before."""
    begins = np.empty(len(x), "?")
    begins[:1] = True
    np.not_equal(x[1:], x[:-1], out=begins[1:])
    if monoid.equal_nan and len(x) and x.dtype.kind in "fcmM" and np.isnan(x[-1]):
        # Complex numbers with a NaN are last, too, but in no single order.
        nans = np.isnan(x) if x.dtype.kind == "c" else None
        first = np.searchsorted(x, x[-1]) if nans is None else np.searchsorted(nans, True)
        begins[first] = True
        begins[first + 1 :] = False
    return begins


def _counted(monoid: Distinct, x: Array, low: int, n: int) -> State:
    """Return the state of integers in ``range(low, low + n)``."""
    offsets = _offsets(x, low)
    counts = tally(_signed(offsets), Integers(n), None, "i8")
    present = np.flatnonzero(counts)
    fields = [(present.astype(offsets.dtype) + _wrapped(low, offsets.dtype)).view(x.dtype)]
    if monoid.positional:
        first = np.empty(n, "i8")
        # The last of several assignments to an entry wins.
        first[_signed(offsets)[::-1]] = np.arange(x.size - 1, -1, -1)
        fields.append(first[present])
    if monoid.counting:
        fields.append(counts[present])
    return tuple(fields)


def _span(x: Array, elements: int) -> tuple[int, int] | None:
    """Return the least integer and the length of a table for all; None where no table is made."""
    if x.dtype.kind not in "biu" or not x.size:
        return None
    low, high = int(x.min()), int(x.max())
    n = high - low + 1
    return (low, n) if n <= _ROOM * elements else None


def _offsets(x: Array, low: int) -> Array:
    """Return integers minus `low`, unsigned, so that integers below `low` become the largest."""
    x = x.view(f"u{x.itemsize}")
    return x - _wrapped(low, x.dtype) if low else x


def _signed(offsets: Array) -> Array:
    """Return offsets into a table in a dtype that NumPy's take uses without a copy, if possible."""
    return offsets.view("i8") if offsets.itemsize == 8 else offsets


def _wrapped(number: int, dtype: np.dtype[Any]) -> Any:
    return dtype.type(number & np.iinfo(dtype).max)


def _keys(values: Array) -> Array | None:
    """Return the keys of sorted values or of dates, or None if they exceed 64 bits."""
    bits = find_bits(values)
    return None if bits is None else keys_of(bits)


def _searchable(values: Array, x: Array) -> tuple[Any, Array, Bits] | None:
    """Return the loops, the values' keys and the elements' bits, or None if the loop cannot run."""
    loops, bits = loops_for("unique", x.size), find_bits(x)
    # Keys of many values would take longer to make than a search for few elements.
    if loops is None or bits is None or not 0 < len(values) <= _MANY * x.size:
        return None
    keys = _keys(values)
    return None if keys is None else (loops, keys, bits)


def _search(values: Array, x: Array, side: Side) -> Array:
    """Return the number of sorted values before each element; ``side`` as in np.searchsorted."""
    if (known := _searchable(values, x)) is not None:
        loops, keys, bits = known
        places: Array = loops.search(keys, bits, side == "right")
        return places
    # Sorting strings compares them as often as searching for them.
    if x.size < _WORTH_SORTING or x.dtype.kind in "SU":
        return np.searchsorted(values, x, side)
    order, in_order = _sorted(x)
    indices = np.empty(x.size, "i8")
    indices[order] = np.searchsorted(values, in_order, side)
    return indices


def _sorted(x: Array) -> tuple[Any, Array]:
    """Return the indices that sort elements, and the sorted elements."""
    with np.errstate(invalid="ignore"):
        if np.all(x[1:] >= x[:-1]):
            return slice(None), x
    order = np.argsort(x)
    return order, x[order]
