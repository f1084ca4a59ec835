"""Reductions of groups of NumPy chunks: a state for each group, for several operations at a time.

One compiled loop (loops/groups.py) computes sums, counts, means, extrema and variances, and reads a
chunk once for all of them. Operations without a loop go by sorting, which works for any monoid::

    elements  a b c d e    sorted by group, in their order    a c | b d e
    groups    0 1 0 1 1    states of one element each         A C | B D E
                           neighbours of a group combined     AC | BD E
                           until each group has one           AC | BDE

So a group is combined as a tree of its elements, and its digits depend on its elements alone.

First and last elements are taken from where their groups begin and end. Only if NaN are there and
to be left out, a loop looks further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import (
    COMPENSATED_MEAN,
    COMPENSATED_SUM,
    COUNT,
    FIRST,
    LAST,
    MAX,
    MEAN,
    MIN,
    NANMAX,
    NANMIN,
    NO_INDEX,
    SUM,
    VAR,
    MonoidRow,
    State,
)
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.paired import COMOMENTS
from dask_coop.chunks import paired
from dask_coop.chunks.numpy.lines import aligned, find_layout, flatten, read_only
from dask_coop.chunks.numpy.loop_table import loops, loops_for
from dask_coop.chunks.numpy.reduce import lift
from dask_coop.chunks.states import boxes

Array = np.ndarray[Any, Any]

#: The most elements that are turned into states at a time, unless one line has more.
_BLOCK = 1 << 18

#: The most elements of lines that groups are filled up to, as a multiple of the groups' elements.
_FILLED = 4

#: Lines that one loop works on together (loops/lanes.py); table entries that stay in the caches.
_LANES, _TABLES_CACHED = 8, 1 << 15


def lift_groups(ops: Sequence[Operation], x: Array, codes: Array, n: int) -> list[State]:
    """Reduce the elements of each group of the chunk `x` to states, by several operations."""
    x, codes = np.asarray(x), np.asarray(codes)
    if any(isinstance(op.monoid, paired.BY_SUMS) for op in ops):
        return paired.each_of_groups(lift_groups, ops, x, codes, n, _pairs)
    states: dict[int, State] = {}
    if loops_for("groups", x.size) is not None and x.size and n:
        for reading in _readings(ops, x.dtype):
            states |= _Chunk(x, codes, n).read(reading)
    for i, op in enumerate(ops):
        if op.monoid in (FIRST, LAST) and (state := _ends(op, x, codes, n)) is not None:
            states[i] = state
    if missing := [i for i in range(len(ops)) if i not in states]:
        states |= zip(missing, _sorted([ops[i] for i in missing], x, codes, n), strict=True)
    return [states[i] for i in range(len(ops))]


def _pairs(op: Operation, x: Array, codes: Array, n: int) -> State | None:
    """Return the state of pairs by a compiled loop, or None."""
    if op.monoid is not COMOMENTS or not n or loops_for("paired", x.size) is None:
        return None
    return _Chunk(x, codes, n).pairs(op.skipna)


# By compiled loops.


#: The tables that each row needs: argument names of the loops, in the order of its fields.
_TABLES: dict[MonoidRow, tuple[str, ...]] = {
    COUNT: ("count",),
    SUM: ("total",),
    COMPENSATED_SUM: ("total", "excess"),
    MEAN: ("total", "count"),
    COMPENSATED_MEAN: ("total", "excess", "count"),
    VAR: ("count", "mean", "m2"),
    MIN: ("low",),
    NANMIN: ("low",),
    MAX: ("high",),
    NANMAX: ("high",),
}


@dataclass
class _Reading:
    """Operations that share one read of a chunk.

    Attributes
    ----------
    skip : bool
        Whether NaN are left out.
    tables : dict of str to dtype and identity
        Dtype and identity of each table that is written.
    ops : dict of int to Operation
        The operations, by their positions.
    """

    skip: bool
    tables: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    ops: dict[int, Operation] = field(default_factory=dict)

    def takes(self, skip: bool, tables: dict[str, tuple[Any, Any]]) -> bool:
        """Return whether an operation can share this read: its tables agree with those here."""
        return skip == self.skip and all(
            repr(self.tables.get(name, table)) == repr(table) for name, table in tables.items()
        )


def _readings(ops: Sequence[Operation], dtype: np.dtype[Any]) -> list[_Reading]:
    """Group the operations that have loops into reads of a chunk of a dtype."""
    readings: list[_Reading] = []
    for number, op in enumerate(ops):
        names = _TABLES.get(op.monoid)
        # No loop reads elements that are only counted.
        reads = op.monoid is not COUNT or op.skipna
        if names is None or (reads and op.element != dtype):
            continue
        if reads and (dtype.kind not in "biuf" or dtype == "f2"):
            continue
        if dtype.kind == "b" and names[0] in ("low", "high"):
            continue
        skip = dtype.kind == "f" and (op.skipna or op.monoid in (NANMIN, NANMAX))
        fields = zip(op.monoid.dtypes(dtype), op.monoid.identity(dtype), strict=True)
        tables = dict(zip(names, fields, strict=True))
        reading = next((other for other in readings if other.takes(skip, tables)), None)
        if reading is None:
            readings.append(reading := _Reading(skip))
        reading.tables |= tables
        reading.ops[number] = op
    return readings


class _Chunk:
    """A chunk and its codes in the form that the loops read."""

    def __init__(self, x: Array, codes: Array, n: int) -> None:
        self._x = aligned(x.view("u1") if x.dtype.kind == "b" else x)
        self._codes, self._n = codes, n
        self._layout = find_layout(self._x, tuple(range(x.ndim - codes.ndim, x.ndim)))

    def read(self, reading: _Reading) -> dict[int, State]:
        """Return the states of the operations of a reading, from one read of the chunk."""
        split, counts = self._layout.split(self._x), None
        across = split.shape[2] > 1
        of_loop = reading.skip or ("mean" in reading.tables and not across)
        if "count" in reading.tables and not of_loop:
            # The counts of all lines are equal.
            inside = self._codes.reshape(-1)
            counts = np.bincount(inside[inside >= 0], minlength=self._n)
        loop = self._across if across else self._along if self._kept else self._zones
        needed = {
            name: table
            for name, table in reading.tables.items()
            if name != "count" or counts is None
        }
        tables = loop(split, reading.skip or None, needed) if needed else {}
        if counts is not None:
            tables["count"] = np.broadcast_to(counts, (*self._kept, self._n))
        elif "count" in tables:
            tables["count"] = tables["count"].astype("i8", copy=False)
        return {
            number: tuple(tables[name] for name in _TABLES[op.monoid])
            for number, op in reading.ops.items()
        }

    @property
    def _kept(self) -> tuple[int, ...]:
        kept: tuple[int, ...] = self._x.shape[: self._x.ndim - self._codes.ndim]
        return kept

    def pick(self, backwards: bool) -> State | None:
        """Return the first or last element other than NaN of each group; None if out of order."""
        along = self._layout.order[self._layout.start : self._layout.stop]
        if sorted(along) != [*along]:
            return None
        split = self._layout.split(self._x)
        memory, *steps = flatten(split)
        outer, length, inner = split.shape
        value = np.full((outer, self._n, inner), np.nan, self._x.dtype)
        index = np.full(value.shape, NO_INDEX)
        tables = value.reshape(-1), index.reshape(-1), np.empty(self._n, "i8")
        sizes = outer, length, inner, self._n
        loops("groups").pick(memory, *steps, self._line(), *sizes, backwards, *tables)
        return self._last(value), self._last(index)

    def pairs(self, skipna: bool) -> State:
        """Return the state of pairs, which are complex numbers."""
        split = self._layout.split(self._x)
        memory, *steps = flatten(split)
        outer, length, inner = split.shape
        state = np.zeros((outer * self._n * inner, len(COMOMENTS.fields)))
        sizes = outer, length, inner, self._n
        loops("paired").lift_groups(
            memory.view(split.real.dtype), *steps, self._line(), *sizes, skipna or None, state
        )
        fields = np.ascontiguousarray(state.T).reshape(-1, outer, self._n, inner)
        return tuple(map(self._last, fields))

    def _line(self) -> Array:
        """Return the codes of the elements of a line, in their order in memory."""
        layout, first = self._layout, len(self._kept)
        order = [d - first for d in layout.order[layout.start : layout.stop]]
        return self._flat(self._codes.transpose(order))

    def _flat(self, codes: Array) -> Array:
        narrow = "i4" if self._n <= np.iinfo("i4").max else "i8"
        return read_only(np.ascontiguousarray(codes, narrow))

    def _across(self, split: Array, skip: Any, specs: dict[str, Any]) -> dict[str, Array]:
        """Return the tables of blocks of neighbouring lines."""
        memory, *steps = flatten(split)
        outer, length, inner = split.shape
        tables = _new(specs, (outer, self._n, inner))
        sizes = outer, length, inner, self._n
        seen = np.empty(self._n if "mean" in specs else 0, "i8")
        loops("groups").across(
            memory, *steps, self._line(), *sizes, skip, *_arguments(tables), seen
        )
        return {name: self._last(table) for name, table in tables.items()}

    def _last(self, table: Array) -> Array:
        """Return a table with the groups' axis last, behind the kept axes in their order."""
        order, start, stop = self._layout.order, self._layout.start, self._layout.stop
        sides = [[self._x.shape[d] for d in part] for part in (order[:start], order[stop:])]
        back = [*np.argsort(order[:start] + order[stop:]), self._x.ndim - (stop - start)]
        shape = (*sides[0], self._n, *sides[1])
        return np.moveaxis(table.reshape(shape), start, -1).transpose(back)

    def _along(self, split: Array, skip: Any, specs: dict[str, Any]) -> dict[str, Array]:
        """Return the tables of lines."""
        if split.shape[1] > 1 and split.strides[1] != split.itemsize:
            split = np.ascontiguousarray(split)
        memory, step, _ = flatten(split)
        lines, length, _ = split.shape
        if self._side_by_side(lines, length, step, specs):
            return self._sorted_back(self._in_lanes(memory, lines, length, skip, specs))
        tables = _new(specs, (lines, self._n))
        sizes = lines, length, self._n
        loops("groups").along(memory, step, self._line(), 0, *sizes, skip, *_arguments(tables))
        return self._sorted_back(tables)

    def _sorted_back(self, tables: dict[str, Array]) -> dict[str, Array]:
        """Return the tables of lines with the axes in their original order."""
        order = self._layout.order[: self._layout.start]
        sides, back = [self._x.shape[d] for d in order], [*np.argsort(order), len(order)]
        return {
            name: table.reshape(*sides, self._n).transpose(back) for name, table in tables.items()
        }

    def _side_by_side(self, lines: int, length: int, step: int, specs: dict[str, Any]) -> bool:
        """Return whether the loop that takes eight lines at a time applies to the chunk."""
        few = _LANES * (self._n + 1) * len(specs) <= _TABLES_CACHED and self._n <= length
        return (
            few
            and self._x.dtype.kind == "f"
            and lines >= _LANES
            and step == length
            and ("mean" not in specs)
        )

    def _in_lanes(
        self, memory: Array, lines: int, length: int, skip: Any, specs: dict[str, Any]
    ) -> dict[str, Array]:
        """Return the tables of lines, computed eight lines at a time."""
        codes = self._line()
        tables = {name: np.empty((lines, self._n), dtype) for name, (dtype, _) in specs.items()}
        low, high = (float(specs[name][1]) if name in specs else 0.0 for name in ("low", "high"))
        codes = read_only(np.where(codes < 0, codes.dtype.type(self._n), codes))
        sizes = lines, length, self._n
        arguments = _arguments(tables)[:5]
        loops("group_lanes").in_lanes(
            memory, codes, *sizes, skip is not None, (low, high), *arguments
        )
        return tables

    def _zones(self, split: Array, skip: Any, specs: dict[str, Any]) -> dict[str, Array]:
        """Return the tables of all elements."""
        if split.shape[1] > 1 and split.strides[1] != split.itemsize:
            split = np.ascontiguousarray(split)
        codes = self._codes.transpose(self._layout.order)
        repeated = next((i for i, step in enumerate(codes.strides) if step), codes.ndim)
        if 0 < repeated < codes.ndim:
            # Labels along the last axes only, which are read again for each index of the others.
            codes = codes[(0,) * repeated]
        codes, tables = self._flat(codes), _new(specs, (self._n,))
        sizes = split.size // codes.size, codes.size, 0
        loops("groups").along(
            read_only(split), codes.size, codes, 0, *sizes, skip, *_arguments(tables)
        )
        return tables


def _new(specs: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Array]:
    """Return new tables by name, filled with identities."""
    return {
        name: np.full(shape, value, "f8" if name == "count" else dtype)
        for name, (dtype, value) in specs.items()
    }


def _arguments(tables: dict[str, Array]) -> list[Array | None]:
    """Return the tables as the loops expect them: flat, and None for missing ones."""
    names = "total", "excess", "count", "low", "high", "mean", "m2"
    return [tables[name].reshape(-1) if name in tables else None for name in names]


# By the places of groups.


def _ends(op: Operation, x: Array, codes: Array, n: int) -> State | None:
    """Return the first or last element of each group, and its index; None if sorting is needed."""
    if not x.size or not n:
        return None
    flat, index = codes.reshape(-1), np.full(n, NO_INDEX)
    numbers = np.arange(flat.size)
    if op.monoid is FIRST:
        flat, numbers = flat[::-1], numbers[::-1]
    inside = flat >= 0
    # A group keeps the last number that is assigned.
    index[flat[inside]] = numbers[inside]
    none = index == NO_INDEX
    at: tuple[Any, ...] = np.unravel_index(np.where(none, 0, index), codes.shape)
    value = x[(..., *at)]
    if op.skipna and x.dtype.kind in "fc" and np.isnan(value[..., ~none]).any():
        by_loop = x.dtype in ("f4", "f8") and loops_for("groups", x.size) is not None
        return _Chunk(x, codes, n).pick(op.monoid is LAST) if by_loop else None
    if none.any():
        value[..., none] = 0
    return value, np.broadcast_to(index, value.shape)


# By sorting.


def _sorted(ops: Sequence[Operation], x: Array, codes: Array, n: int) -> list[State]:
    """Reduce groups by sorting their elements once for all operations."""
    kept = x.shape[: x.ndim - codes.ndim]
    states = [identities(op, (*kept, n)) for op in ops]
    flat = codes.reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[np.searchsorted(flat[order], 0) :]
    groups, lengths = np.unique(flat[order], return_counts=True)
    if not x.size or not order.size:
        return states
    for at in boxes(kept, max(1, _BLOCK // order.size)):
        block = x[at]
        part = block.reshape(*block.shape[: len(kept)], flat.size)[..., order]
        for op, state in zip(ops, states, strict=True):
            for table, values in zip(state, _by_runs(op, part, order, lengths), strict=True):
                table[at][..., groups] = values
    return states


def identities(op: Operation, shape: tuple[int, ...]) -> State:
    """Return the identity state for each group."""
    dtypes, values = op.monoid.dtypes(op.element), op.monoid.identity(op.element)
    return tuple(np.full(shape, value, dtype) for value, dtype in zip(values, dtypes, strict=True))


def _by_lines(op: Operation, part: Array, lengths: Array) -> State:
    """Reduce each run of the last axis as a line, filled up to the longest."""
    there = np.arange(lengths.max()) < lengths[:, np.newaxis]
    lines = np.zeros((*part.shape[:-1], *there.shape), part.dtype)
    lines[..., there] = part
    return lift(op, lines, (part.ndim,), None if there.all() else there)


def _by_runs(op: Operation, part: Array, order: Array, lengths: Array) -> State:
    """Combine the elements of each run of the last axis; `order` has their original indices."""
    about_equal = len(lengths) * lengths.max() <= _FILLED * order.size
    if about_equal and op.monoid.lift is None and not op.monoid.positional:
        return _by_lines(op, part, lengths)
    shape = part.shape
    lifted = lift(op, part[..., np.newaxis], (part.ndim,))
    state = tuple(np.broadcast_to(field, shape) for field in lifted)
    if op.monoid.positional:
        value, index, *others = state
        state = (value, np.where(index == NO_INDEX, index, order), *others)
    while lengths.max() > 1:
        starts = np.cumsum(lengths) - lengths
        within = np.arange(state[0].shape[-1]) - np.repeat(starts, lengths)
        left = np.flatnonzero(within % 2 == 0)
        paired = within[left] + 1 < np.repeat(lengths, (lengths + 1) // 2)
        first = left[paired]
        combined = op.monoid.combine(
            tuple(field[..., first] for field in state),
            tuple(field[..., first + 1] for field in state),
        )
        after = tuple(field[..., left] for field in state)
        for target, values in zip(after, combined, strict=True):
            target[..., paired] = values
        state, lengths = after, (lengths + 1) // 2
    return state
