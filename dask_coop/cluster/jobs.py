"""Jobs: the work of a worker on all its chunks in a round of messages.

A job is called with the blocks of chunks, in the dtypes that their arrays declare (`as_declared`),
and with one extra value a chunk: its position in the array, or its base sum. A job that reduces
returns `Stacked` states, in NumPy, and a memo. A state of several chunks has the number of the
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np

from dask_coop import chunks
from dask_coop.algebra.counted import is_mixed
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.algebra.scan_spec import ScanSpec, segmented
from dask_coop.chunks import dtypes, tables
from dask_coop.chunks.states import reduce_along
from dask_coop.cluster.gpus import by_gpu
from dask_coop.errors import Declined
from dask_coop.graph import grouped, tasks
from dask_coop.graph.prefixes import base_of, stacked

#: The blocks of one chunk: of the array, then of its mask, weights, head flags or coordinates.
Blocks = Sequence[Any]

#: A worker combines its states of more bytes than this before it sends them.
LARGE_STATE_BYTES = 1 << 10


class Stacked(NamedTuple):
    """States of one shape, stacked along the first axis, and the numbers of their chunks."""

    numbers: Any
    fields: State

    def of(self, numbers: Any) -> Stacked:
        """Return the states of the chunks in `numbers`; states must be sorted by number."""
        rows = np.searchsorted(self.numbers, numbers)
        rows = rows[self.numbers[np.minimum(rows, len(self.numbers) - 1)] == numbers]
        return Stacked(self.numbers[rows], tuple(field[rows] for field in self.fields))


#: Bytes that a backend makes while it reduces chunks and needs again to scan them; often empty.
Memo = bytes

Reduced = tuple[list[Stacked], Memo]


@dataclass(frozen=True)
class Lift:
    """Reduce chunks over `axes`. The extra of a chunk is its group and its origin, or None.

    `is_masked` says whether the meta of their array is masked.
    """

    op: Operation
    axes: tuple[int, ...]
    threads: int = 1
    declared: tuple[Any, ...] = ()
    is_masked: bool = False

    @property
    def ops(self) -> tuple[Operation, ...]:
        """The operations of the states."""
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
        if is_mixed(self.op, states):
            if not self.is_masked:
                raise Declined("chunks are masked, and the meta of their array is not")
            states = [state[: len(self.op.monoid.fields)] for state in states]
        return _gathered(self.op, groups, states)


@dataclass(frozen=True)
class Count:
    """Count samples into the bins of `grid`. The extra of a chunk is its group."""

    op: Operation
    grid: Any
    weighted: bool
    threads: int = 1
    declared: tuple[Any, ...] = ()

    @property
    def ops(self) -> tuple[Operation, ...]:
        """The operations of the states."""
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
        for of_chunk in blocks:
            *samples, weights = of_chunk if self.weighted else (*of_chunk, None)
            state = tasks.count(
                *samples, op=self.op, grid=self.grid, weights=weights, threads=self.threads
            )
            states.append(state)
        return _gathered(self.op, extras, states)


class Labels(NamedTuple):
    """The extra of a chunk whose groups are reduced.

    Attributes
    ----------
    kept : tuple of int
        The index of the chunk's block along the axes that are kept.
    codes : tuple of (numpy.ndarray, int), optional
        The codes of its labels, and the number of their groups; if None, codes and places come as
        a second block of the chunk.
    places : numpy.ndarray or slice, optional
        The positions of its groups among all groups.
    origin : Origin or None
    """

    kept: tuple[int, ...]
    codes: tuple[Any, int] | None
    places: tables.Places | None
    origin: Origin | None


@dataclass(frozen=True)
class LiftGroups:
    """Reduce the groups of chunks by several operations. The extra of a chunk is its `Labels`.

    Attributes
    ----------
    ops : tuple of Operation
    rows : int
        Number of label axes that are kept.
    n : int
        Number of groups in all chunks.
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
            lifted = grouped.lift(
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
                    tables.empty(op, state, self.n)
                    for op, state in zip(self.ops, lifted, strict=True)
                ]
            for op, total, state in zip(self.ops, totals[key], lifted, strict=True):
                tables.put_in(op, total, state, slice(None), places)
        states = (tuple(chain.from_iterable(of_ops)) for of_ops in totals.values())
        return stack(numbers.values(), states)


@dataclass(frozen=True)
class Upsweep:
    """Reduce chunks along the axis of a scan."""

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
    """Make the base sums of chunks from their states, all in one process.

    Attributes
    ----------
    lines : tuple of int
        Number of chunks of each line; chunks are numbered line by line, in the order of the scan.
    restarts : bool
        Whether the scan restarts at head flags.
    group : int
        Number of states that are combined one after the other, as in the graph.
    """

    op: Operation
    lines: tuple[int, ...]
    restarts: bool
    group: int

    def __call__(self, batches: Iterable[Stacked]) -> list[Stacked]:
        """Return the base of every chunk except the first of each line.

        Parameters
        ----------
        batches : iterable of Stacked
            A state for every chunk.
        """
        op = replace(self.op, monoid=segmented(self.op.monoid)) if self.restarts else self.op
        ends = np.cumsum((0, *self.lines))
        bases = []
        for numbers, fields in merged(batches):
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
    """Scan chunks, each from its base, which is None at the start of a line."""

    op: Operation
    spec: ScanSpec
    threads: int = 1
    declared: tuple[Any, ...] = ()

    def __call__(
        self, blocks: Sequence[Blocks], bases: Sequence[State | None], memo: Memo
    ) -> list[Any]:
        """Return the result of every chunk; a GPU may still be computing it."""
        if memo:
            xs = [x for (x,) in blocks]
            results: list[Any] = chunks.backend_of(xs[0]).downsweep(
                self.op, self.spec, xs, bases, memo
            )
            return results
        calls = by_gpu(self._one_by_one, blocks, bases)
        scanned = {i: y for indices, ys in calls for i, y in zip(indices, ys, strict=True)}
        return [scanned[i] for i in range(len(blocks))]

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
    """Return the blocks of chunks, cast to the dtypes that their arrays declare."""
    return [
        [
            block if dtype is None else dtypes.as_declared(block, dtype)
            for block, dtype in zip_longest(of_chunk, declared)
        ]
        for of_chunk in blocks
    ]


#: A job that makes the states of a reduction.
Job = Lift | Count | LiftGroups


def stack(numbers: Iterable[int], states: Iterable[State]) -> list[Stacked]:
    """Return states stacked by shape, moved to the host."""
    shapes: dict[Any, list[tuple[int, State]]] = {}
    for number, state in zip(numbers, states, strict=True):
        fields = [chunks.asarray(field, "numpy") for field in state]
        # A field that is one number for all lines gets as many dimensions as the others.
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


def merged(batches: Iterable[Stacked]) -> list[Stacked]:
    """Return one `Stacked` for each shape of states, sorted by number."""
    shapes: dict[Any, list[Stacked]] = {}
    for batch in batches:
        shapes.setdefault(tuple(field.shape[1:] for field in batch.fields), []).append(batch)
    return [_in_order(same_shape) for same_shape in shapes.values()]


def _in_order(batches: Sequence[Stacked]) -> Stacked:
    numbers = np.concatenate([batch.numbers for batch in batches])
    if len(batches) == 1 and (np.diff(numbers) > 0).all():
        return batches[0]
    rows = np.empty(len(numbers), "i8")
    rows[np.argsort(numbers)] = np.arange(len(numbers))
    # States may be large: copy each once, to its sorted row.
    columns = [*zip(*(batch.fields for batch in batches), strict=True)]
    fields = tuple(
        np.empty((len(rows), *column[0].shape[1:]), np.result_type(*column)) for column in columns
    )
    ends = np.cumsum([0, *(len(batch.numbers) for batch in batches)])
    for column, field in zip(columns, fields, strict=True):
        for values, (start, stop) in zip(column, pairwise(ends), strict=True):
            field[rows[start:stop]] = values
    return Stacked(np.sort(numbers), fields)


def combined(ops: Sequence[Operation], batches: Iterable[Stacked]) -> State:
    """Combine all states, those of each shape in the order of their numbers.

    The state of several operations is their fields, one operation's after the other's.
    """
    batches = [*batches]
    if len(ops) == 1:
        return _combined(ops[0], batches)
    numbers = [batch.numbers for batch in batches]
    by_op = zip(*(apart(ops, batch.fields) for batch in batches), strict=True)
    fields: list[Any] = []
    for op, states in zip(ops, by_op, strict=True):
        fields += _combined(op, [*map(Stacked, numbers, states)])
    return tuple(fields)


def combined_groups(
    ops: Sequence[Operation], batches: Sequence[Stacked], group_of: Any = None
) -> dict[int, State]:
    """Return the combined state of each group of chunks, by its lowest chunk number here.

    Parameters
    ----------
    ops : sequence of Operation
    batches : sequence of Stacked
    group_of : numpy.ndarray, optional
        The group of each chunk number; by default all chunks are one group.
    """
    if group_of is None:
        return {min(int(batch.numbers.min()) for batch in batches): combined(ops, batches)}
    members: dict[int, list[Stacked]] = {}
    for numbers, fields in batches:
        groups = group_of[numbers]
        order = np.argsort(groups, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            batch = Stacked(numbers[rows], tuple(field[rows] for field in fields))
            members.setdefault(groups[rows[0]], []).append(batch)
    return {
        min(int(batch.numbers.min()) for batch in of_group): combined(ops, of_group)
        for of_group in members.values()
    }


def apart(ops: Sequence[Operation], fields: State) -> list[State]:
    """Split the fields of several operations into one state an operation."""
    ends = np.cumsum([0, *(len(op.monoid.dtypes(op.element)) for op in ops)])
    return [fields[start:stop] for start, stop in pairwise(ends)]


def _combined(op: Operation, batches: Sequence[Stacked]) -> State:
    if op.monoid.entries is not None:
        # These states change shape as they combine, so shapes cannot be combined separately.
        states = {
            number: tuple(field[i] for field in fields)
            for numbers, fields in batches
            for i, number in enumerate(numbers)
        }
        return op.combine([states[number] for number in sorted(states)])
    return op.combine(
        [reduce_along(op.monoid.combine, batch.fields, 0) for batch in merged(batches)]
    )


def _together(blocks: Sequence[Blocks]) -> list[Any]:
    """Return the chunks if one launch can take several of them, else an empty list."""
    if len(blocks[0]) > 1 or chunks.kind(blocks[0][0]) != "cupy":
        return []
    return [x for (x,) in blocks]


def _lift_all(op: Operation, blocks: Sequence[Blocks]) -> Stacked | None:
    """Return the states of whole chunks if the backend takes several at a time, else None."""
    if len(blocks) < 2 or not (xs := _together(blocks)):
        return None
    fields = chunks.backend_of(xs[0]).lift_all(op, xs)
    return None if fields is None else Stacked(np.arange(len(blocks)), fields)


def _groups_and_origins(extras: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(zip(*(extra or (None, None) for extra in extras), strict=True))


def _apart(
    reduce: Callable[..., list[Stacked]], blocks: Sequence[Blocks], *arguments: Sequence[Any]
) -> list[Stacked]:
    """Return the states that `reduce` makes of chunks, called once for each GPU."""
    return [
        Stacked(np.asarray(indices)[batch.numbers], batch.fields)
        for indices, batches in by_gpu(reduce, blocks, *arguments)
        for batch in batches
    ]


def _two(blocks: Blocks) -> tuple[Any, Any]:
    return blocks[0], blocks[1] if len(blocks) > 1 else None


def _gathered(op: Operation, groups: Sequence[Any], states: Sequence[State]) -> list[Stacked]:
    """Stack states; if they are large and commute, combine those of each group first."""
    nbytes = sum(field.nbytes for field in states[0])
    if nbytes <= LARGE_STATE_BYTES or not op.monoid.commutative:
        return stack(range(len(states)), states)
    firsts: dict[Any, int] = {}
    members: dict[Any, list[State]] = {}
    for i, (group, state) in enumerate(zip(groups, states, strict=True)):
        firsts.setdefault(group, i)
        members.setdefault(group, []).append(state)
    return stack(firsts.values(), (op.combine(of_group) for of_group in members.values()))
