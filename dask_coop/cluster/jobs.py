"""What a worker does with all its chunks at a time: the jobs of a round of messages.

A job is called with the blocks of some chunks, of the dtypes that their arrays declare
(`as_declared`), and with what goes with each: where it is in the array, or its base sum. One that
reduces returns `Stacked` states, in NumPy, and a memo. A state may be that of several chunks, and
has the number of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.algebra.scan_spec import ScanSpec, segmented
from dask_coop.chunks import dtypes
from dask_coop.chunks.states import reduce_along
from dask_coop.cluster.gpus import by_gpu
from dask_coop.graph import grouped, tasks
from dask_coop.graph.prefixes import base_of, stacked

#: The blocks of one chunk: of the array, then of its mask, weights, head flags or coordinates.
Blocks = Sequence[Any]

#: States of more bytes than this are combined where they are made.
LARGE_STATE_BYTES = 1 << 10


class Stacked(NamedTuple):
    """States of one shape, along the first axis of each field, and the numbers of their chunks."""

    numbers: Any
    fields: State

    def of(self, numbers: Any) -> Stacked:
        """Return the states of some chunks, where all are in the order of their numbers."""
        rows = np.searchsorted(self.numbers, numbers)
        rows = rows[self.numbers[np.minimum(rows, len(self.numbers) - 1)] == numbers]
        return Stacked(self.numbers[rows], tuple(field[rows] for field in self.fields))


#: What a backend that reduces some chunks wants to see again when it scans them, if anything.
Memo = bytes

Reduced = tuple[list[Stacked], Memo]


@dataclass(frozen=True)
class Lift:
    """Reduces chunks over `axes`; what goes with a chunk is its group and its origin, or None."""

    op: Operation
    axes: tuple[int, ...]
    threads: int = 1
    declared: tuple[Any, ...] = ()

    @property
    def ops(self) -> tuple[Operation, ...]:
        """What the states are of."""
        return (self.op,)

    def __call__(self, blocks: Sequence[Blocks], extras: Sequence[Any]) -> Reduced:
        """Return the states."""
        together = _lift_all(self.op, blocks) if len(self.axes) == blocks[0][0].ndim else None
        if together is None:
            return _apart(self._one_by_one, blocks, extras), b""
        if not self.op.monoid.positional:
            return [together], b""
        groups, origins = _groups_and_origins(extras)
        states = [
            self.op.shift(tuple(field[i] for field in together.fields), x.shape, origin)
            for i, ((x,), origin) in enumerate(zip(blocks, origins, strict=True))
        ]
        return _gathered(self.op, groups, states), b""

    def _one_by_one(self, blocks: Sequence[Blocks], extras: Sequence[Any]) -> list[Stacked]:
        groups, origins = _groups_and_origins(extras)
        states = [
            tasks.lift(
                op=self.op,
                axes=self.axes,
                block=x,
                where=where,
                origin=origin,
                threads=self.threads,
            )
            for (x, where), origin in zip(map(_two, blocks), origins, strict=True)
        ]
        return _gathered(self.op, groups, states)


@dataclass(frozen=True)
class Count:
    """Counts samples into the bins of `grid`; what goes with a chunk is its group."""

    op: Operation
    grid: Any
    weighted: bool
    threads: int = 1
    declared: tuple[Any, ...] = ()

    @property
    def ops(self) -> tuple[Operation, ...]:
        """What the states are of."""
        return (self.op,)

    def __call__(self, blocks: Sequence[Blocks], extras: Sequence[Any]) -> Reduced:
        """Return the tables."""
        if len(blocks) > 1 and len(set(extras)) == 1 and (xs := _together(blocks)):
            table = chunks.backend_of(xs[0]).histogram_all(self.op, xs, self.grid)
            if table is not None:
                return stack([0], [table]), b""
        return _apart(self._one_by_one, blocks, extras), b""

    def _one_by_one(self, blocks: Sequence[Blocks], extras: Sequence[Any]) -> list[Stacked]:
        states = []
        for each in blocks:
            samples, weights = (each[:-1], each[-1]) if self.weighted else (each, None)
            state = tasks.count(
                *samples, op=self.op, grid=self.grid, weights=weights, threads=self.threads
            )
            states.append(state)
        return _gathered(self.op, extras, states)


class Labels(NamedTuple):
    """What goes with a chunk of which groups are reduced.

    Attributes
    ----------
    kept : tuple of int
        Which block it is along the axes that are kept.
    codes : tuple of (numpy.ndarray, int), optional
        The codes of its labels, and how many groups they are of; if there are none, they and the
        places are a block beside the chunk.
    places : numpy.ndarray or slice, optional
        Where these are among all groups.
    origin : Origin or None
    """

    kept: tuple[int, ...]
    codes: tuple[Any, int] | None
    places: grouped.Places | None
    origin: Origin | None


@dataclass(frozen=True)
class LiftGroups:
    """Reduces the groups of chunks by several operations; with each chunk go its `Labels`.

    Attributes
    ----------
    ops : tuple of Operation
    rows : int
        How many label axes are kept.
    n : int
        How many groups there are in all chunks.
    """

    ops: tuple[Operation, ...]
    rows: int
    n: int
    threads: int = 1
    declared: tuple[Any, ...] = ()

    def __call__(self, blocks: Sequence[Blocks], extras: Sequence[Labels]) -> Reduced:
        """Return tables of all groups, with the fields of all operations."""
        return _apart(self._one_by_one, blocks, extras), b""

    def _one_by_one(self, blocks: Sequence[Blocks], extras: Sequence[Labels]) -> list[Stacked]:
        in_any_order = all(op.monoid.commutative for op in self.ops)
        totals: dict[Any, list[State]] = {}
        numbers: dict[Any, int] = {}
        for i, ((x, *sent), labels) in enumerate(zip(blocks, extras, strict=True)):
            of_chunk: Any = sent[0] if sent else (labels.codes, labels.places)
            codes, places = of_chunk
            own = grouped.lift(
                ops=self.ops,
                block=x,
                codes=codes,
                rows=self.rows,
                origin=labels.origin,
                threads=self.threads,
            )
            key = labels.kept if in_any_order else i
            if key not in totals:
                numbers[key] = i
                totals[key] = [
                    grouped.empty(op, state, self.n)
                    for op, state in zip(self.ops, own, strict=True)
                ]
            for op, total, state in zip(self.ops, totals[key], own, strict=True):
                grouped.put_in(op, total, state, slice(None), places)
        states = (tuple(field for state in each for field in state) for each in totals.values())
        return stack(numbers.values(), states)


@dataclass(frozen=True)
class Upsweep:
    """Reduces chunks along the axis of a scan."""

    op: Operation
    spec: ScanSpec
    threads: int = 1
    declared: tuple[Any, ...] = ()

    def __call__(self, blocks: Sequence[Blocks], extras: Sequence[Any]) -> Reduced:
        """Return a state for every chunk, and a memo for `Downsweep`."""
        xs = _together(blocks) if blocks[0][0].ndim == 1 else []
        if xs and (swept := chunks.backend_of(xs[0]).upsweep(self.op, self.spec, xs)):
            fields, memo = swept
            return [Stacked(np.arange(len(blocks)), fields)], memo
        return _apart(self._one_by_one, blocks), b""

    def _one_by_one(self, blocks: Sequence[Blocks]) -> list[Stacked]:
        states = (
            tasks.upsweep(op=self.op, spec=self.spec, block=x, heads=heads, threads=self.threads)
            for x, heads in map(_two, blocks)
        )
        return stack(range(len(blocks)), states)


@dataclass(frozen=True)
class Spine:
    """Makes the base sums of the chunks of lines out of their states, in one place.

    Attributes
    ----------
    lines : tuple of int
        How many chunks each line has; chunks are numbered line by line, in the order of the scan.
    restarts : bool
        Whether the states are those of a scan that restarts.
    group : int
        How many of them are combined one after the other, as in the graph.
    """

    op: Operation
    lines: tuple[int, ...]
    restarts: bool
    group: int

    def __call__(self, parts: Iterable[Stacked]) -> list[Stacked]:
        """Return what comes before each chunk but the first of a line.

        Parameters
        ----------
        parts : iterable of Stacked
            A state for every chunk.
        """
        op = replace(self.op, monoid=segmented(self.op.monoid)) if self.restarts else self.op
        ends = np.cumsum((0, *self.lines))
        bases = []
        for numbers, fields in merged(parts):
            # The chunks of a line have states of one shape.
            for start, stop in pairwise(np.searchsorted(numbers, ends)):
                if stop - start < 2:
                    continue
                line = tuple(field[start : stop - 1] for field in fields)
                prefixes = base_of(self.op, stacked(op.monoid.combine, line, self.group))
                bases.append(Stacked(numbers[start + 1 : stop], prefixes))
        return bases


@dataclass(frozen=True)
class Downsweep:
    """Scans chunks; what goes with each is its base, None at the start of a line."""

    op: Operation
    spec: ScanSpec
    threads: int = 1
    declared: tuple[Any, ...] = ()

    def __call__(
        self, blocks: Sequence[Blocks], bases: Sequence[State | None], memo: Memo
    ) -> list[Any]:
        """Return the results of every chunk, which a GPU may still be working at."""
        if memo:
            xs = [x for (x,) in blocks]
            results: list[Any] = chunks.backend_of(xs[0]).downsweep(
                self.op, self.spec, xs, bases, memo
            )
            return results
        made = by_gpu(self._one_by_one, blocks, bases)
        of_chunks = {i: y for own, ys in made for i, y in zip(own, ys, strict=True)}
        return [of_chunks[i] for i in range(len(blocks))]

    def _one_by_one(self, blocks: Sequence[Blocks], bases: Sequence[State | None]) -> list[Any]:
        return [
            tasks.scan_from(
                op=self.op,
                spec=self.spec.part(base is None),
                block=x,
                heads=heads,
                base=base,
                threads=self.threads,
            )
            for (x, heads), base in zip(map(_two, blocks), bases, strict=True)
        ]


def as_declared(blocks: Sequence[Blocks], declared: Sequence[Any]) -> list[Blocks]:
    """Return the blocks of some chunks, of the dtypes that their arrays declare."""
    return [
        [
            block if dtype is None else dtypes.as_declared(block, dtype)
            for block, dtype in zip_longest(of_chunk, declared)
        ]
        for of_chunk in blocks
    ]


#: What makes the states of a reduction.
Job = Lift | Count | LiftGroups


def stack(numbers: Iterable[int], states: Iterable[State]) -> list[Stacked]:
    """Stack the states of each shape, moved to the host."""
    shapes: dict[Any, list[tuple[int, State]]] = {}
    for number, state in zip(numbers, states, strict=True):
        fields = [chunks.asarray(field, "numpy") for field in state]
        # A field that is one number for all lines has to go with the others in stacks, too.
        ndim = max(map(np.ndim, fields))
        on_host = tuple(np.expand_dims(f, tuple(range(ndim - np.ndim(f)))) for f in fields)
        shapes.setdefault(tuple(map(np.shape, on_host)), []).append((number, on_host))
    return [
        Stacked(
            np.array([number for number, _ in members]),
            tuple(map(np.stack, zip(*(state for _, state in members), strict=True))),
        )
        for members in shapes.values()
    ]


def merged(parts: Iterable[Stacked]) -> list[Stacked]:
    """Join parts with states of one shape, in the order of their numbers."""
    shapes: dict[Any, list[Stacked]] = {}
    for part in parts:
        shapes.setdefault(tuple(field.shape[1:] for field in part.fields), []).append(part)
    return [_in_order(alike) for alike in shapes.values()]


def _in_order(parts: Sequence[Stacked]) -> Stacked:
    numbers = np.concatenate([part.numbers for part in parts])
    if len(parts) == 1 and (np.diff(numbers) > 0).all():
        return parts[0]
    rows = np.empty(len(numbers), "i8")
    rows[np.argsort(numbers)] = np.arange(len(numbers))
    # States may be large: each goes to its place at once.
    columns = [*zip(*(part.fields for part in parts), strict=True)]
    fields = tuple(
        np.empty((len(rows), *column[0].shape[1:]), np.result_type(*column)) for column in columns
    )
    ends = np.cumsum([0, *(len(part.numbers) for part in parts)])
    for column, field in zip(columns, fields, strict=True):
        for values, (start, stop) in zip(column, pairwise(ends), strict=True):
            field[rows[start:stop]] = values
    return Stacked(np.sort(numbers), fields)


def combined(ops: Sequence[Operation], parts: Iterable[Stacked]) -> State:
    """Combine all states of some parts, those of each shape in the order of their numbers.

    States of several operations have the fields of one behind those of another.
    """
    parts = [*parts]
    if len(ops) == 1:
        return _combined(ops[0], parts)
    split = zip(*(apart(ops, fields) for _, fields in parts), strict=True)
    found: list[Any] = []
    for op, states in zip(ops, split, strict=True):
        own = [Stacked(part.numbers, state) for part, state in zip(parts, states, strict=True)]
        found += _combined(op, own)
    return tuple(found)


def combined_groups(
    ops: Sequence[Operation], parts: Sequence[Stacked], group_of: Any = None
) -> dict[int, State]:
    """Combine the states of each group of chunks, by the number of the first chunk it has here.

    Parameters
    ----------
    ops : sequence of Operation
    parts : sequence of Stacked
    group_of : numpy.ndarray, optional
        The number of the group of each chunk; by default all are of one.
    """
    if group_of is None:
        return {min(int(part.numbers.min()) for part in parts): combined(ops, parts)}
    members: dict[int, list[Stacked]] = {}
    for part in parts:
        mine = group_of[part.numbers]
        order = np.argsort(mine, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(mine[order])) + 1):
            fields = tuple(field[rows] for field in part.fields)
            members.setdefault(mine[rows[0]], []).append(Stacked(part.numbers[rows], fields))
    return {
        min(int(part.numbers.min()) for part in of_group): combined(ops, of_group)
        for of_group in members.values()
    }


def apart(ops: Sequence[Operation], fields: State) -> list[State]:
    """Return the state of each operation, of the fields of all."""
    ends = np.cumsum([0, *(len(op.monoid.dtypes(op.element)) for op in ops)])
    return [fields[start:stop] for start, stop in pairwise(ends)]


def _combined(op: Operation, parts: Sequence[Stacked]) -> State:
    if op.monoid.entries is not None:
        # Their shapes change as they combine, and those of several shapes stand among each other.
        states = {
            number: tuple(field[i] for field in fields)
            for numbers, fields in parts
            for i, number in enumerate(numbers)
        }
        return op.combine([states[number] for number in sorted(states)])
    return op.combine([reduce_along(op.monoid.combine, part.fields, 0) for part in merged(parts)])


def _together(blocks: Sequence[Blocks]) -> list[Any]:
    """Return the chunks, if there are backends that take several at a time; else they are many."""
    if len(blocks[0]) > 1 or chunks.kind(blocks[0][0]) != "cupy":
        return []
    return [x for (x,) in blocks]


def _lift_all(op: Operation, blocks: Sequence[Blocks]) -> Stacked | None:
    """Return the states of whole chunks, if the backend takes several chunks at a time."""
    if len(blocks) < 2 or not (xs := _together(blocks)):
        return None
    fields = chunks.backend_of(xs[0]).lift_all(op, xs)
    return None if fields is None else Stacked(np.arange(len(blocks)), fields)


def _groups_and_origins(extras: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(zip(*(extra or (None, None) for extra in extras), strict=True))


def _apart(
    reduce: Callable[..., list[Stacked]], blocks: Sequence[Blocks], *rest: Sequence[Any]
) -> list[Stacked]:
    """Return the states that a function makes of chunks, those of each GPU by themselves."""
    return [
        Stacked(np.asarray(own)[part.numbers], part.fields)
        for own, parts in by_gpu(reduce, blocks, *rest)
        for part in parts
    ]


def _two(blocks: Blocks) -> tuple[Any, Any]:
    return blocks[0], blocks[1] if len(blocks) > 1 else None


def _gathered(op: Operation, groups: Sequence[Any], states: Sequence[State]) -> list[Stacked]:
    """Stack states; where they are large and any order will do, first combine those of a group."""
    nbytes = sum(field.nbytes for field in states[0])
    if nbytes <= LARGE_STATE_BYTES or not op.monoid.commutative:
        return stack(range(len(states)), states)
    firsts: dict[Any, int] = {}
    members: dict[Any, list[State]] = {}
    for i, (group, state) in enumerate(zip(groups, states, strict=True)):
        firsts.setdefault(group, i)
        members.setdefault(group, []).append(state)
    return stack(firsts.values(), (op.combine(of_group) for of_group in members.values()))
