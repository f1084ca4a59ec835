"""The cross-chunk step of groups: trees of tables with one row per group.

Each chunk is lifted to a table of the states of its own groups. Up the tree, a table's groups are
the union of the groups of the tables below it. The graph's builder knows these groups, so tasks
receive the positions of one table's groups in the next::

    chunk 0   groups 0 1    -+
    chunk 1   groups 1 2    -+-merge-->  groups 0 1 2    -+
    chunk 2   groups 2 3    -+                            +-finish-->  result, groups 0 to 4
    chunk 3   groups 3 4    -+-merge-->  groups 2 3 4    -+

Where each group lies within few chunks, as days do, the result has several blocks along the groups.
Each block has the groups that begin in one chunk and takes the tables of few chunks. Groups that
no other chunk has are finalized with their chunk, and none of their states waits for the others::

    chunk 0   days 0 1 2    ---------->  result, days 0 1 2
    chunk 1   days 2 3 4    ---------->  result, days 3 4         day 2 goes to the first

Where labels are lazy, every table has all groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array
from dask.blockwise import BlockwiseDep
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task
from dask.tokenize import tokenize
from dask.utils import cached_cumsum

from dask_coop import chunks
from dask_coop.algebra.monoids import NO_INDEX, State
from dask_coop.algebra.operation import Origin
from dask_coop.chunks.dtypes import casts
from dask_coop.chunks.labels import Coder
from dask_coop.chunks.tables import (
    Codes,
    Finalize,
    Ops,
    Places,
    as_slice,
    finish,
    finish_alone,
    merge_tables,
)
from dask_coop.errors import Declined
from dask_coop.graph import executor
from dask_coop.graph.fusion import Blocks, TrailingBlocks, add
from dask_coop.graph.layers import FAN_IN, Key, Layer, Origins, array, block_bytes, joined
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.tasks import refs
from dask_coop.graph.threads import lift_groups_by_threads, shared, threads_for

#: The most blocks of a result, on average, that may take the same chunk's table.
_SHARED = 2


class Known(NamedTuple):
    """Labels that are known when the graph is built: the group of each element.

    Attributes
    ----------
    codes : numpy.ndarray of int
        Has the label axes of the array, with length one where labels are broadcast; -1 leaves an
        element out.
    rows : int
        The number of leading label axes that the result keeps.
    """

    codes: Codes
    rows: int = 0

    @property
    def ndim(self) -> int:
        """The number of label axes."""
        return self.codes.ndim


class Lazy(NamedTuple):
    """Labels that are computed with the chunks.

    Attributes
    ----------
    arrays : tuple of dask.array.Array
        In the chunks of the array's last axes.
    coder : Coder
        Turns the labels of a chunk into codes.
    rows : int
        As in `Known`.
    """

    arrays: tuple[Array, ...]
    coder: Coder
    rows: int = 0

    @property
    def ndim(self) -> int:
        """The number of label axes."""
        return int(self.arrays[0].ndim)


def reduction(
    ops: Ops,
    x: Array,
    labels: Known | Lazy,
    shape: tuple[int, ...],
    outputs: Mapping[str, tuple[Finalize, Any]],
) -> list[Array]:
    """Reduce the groups of `x` by several operations in one pass; return an array per output.

    Parameters
    ----------
    ops : tuple of Operation
    x : dask.array.Array
        The label axes are the last ones.
    labels : Known or Lazy
    shape : tuple of int
        The number of groups along each of the result's group axes.
    outputs : mapping of str to (callable, dtype)
        Name, function from the states to the result, and dtype of each array. The function returns
        the kept axes and one axis of groups, which is reshaped to `shape`.
    """
    if (run := executor.runner()) is not None:
        return _at_once(run, ops, x, labels, shape, outputs)
    n, kept = math.prod(shape), x.ndim - labels.ndim + labels.rows
    axes = tuple(range(kept, x.ndim))
    threads = threads_for(x)
    token = tokenize(ops, x, labels, shape, threads > 1)
    name = next(iter(outputs)) if len(outputs) == 1 else "groupby"
    tables = None
    if isinstance(labels, Known):
        tables = Tables(labels, x.chunks[x.ndim - labels.ndim :], n)
    order = [*itertools.product(*(range(x.numblocks[axis]) for axis in axes))]
    known = None if tables is None or labels.rows else [*map(tables.groups, order)]
    ranges = _ranges(known, shape)
    spans = None if known is None else _spans(known)
    nbytes = sum(block_bytes(op, x, axes) for op in ops)
    alone = None
    if tables is not None and len(ranges) > 1 == len(outputs):
        alone = [*map(tables.alone, order)]
    plans = [_plan(known, alone, spans, len(order), nbytes, *ends) for ends in ranges]
    if alone is not None and any(plan.levels for plan in plans):
        # Tasks that merge tables for others take the states of all groups.
        plans = [_plan(known, None, spans, len(order), nbytes, *ends) for ends in ranges]
    ending = None
    if plans[0].alone is not None:
        (ending,) = outputs.values()
        token = tokenize(token, *ending)
    lifted = f"{name}-lift-{token}"
    layer = _lifts(lifted, ops, x, labels, tables, threads, ending)
    graph = HighLevelGraph.from_collections(
        lifted, layer, dependencies=[x, *(labels.arrays if isinstance(labels, Lazy) else ())]
    )

    merged, below, last = f"{name}-merge-{token}", Layer(), {}
    for index in itertools.product(*(range(x.numblocks[axis]) for axis in range(kept))):
        for number, plan in enumerate(plans):
            keys: list[Key] = [(lifted, *index, *order[i]) for i in plan.sources]
            prefix = (merged, *index, number)
            # Several outputs share the last states.
            last[index, number] = _merges(below, ops, plan, keys, prefix, len(outputs) > 1)
    if below:
        graph = add(graph, merged, below, {lifted})
    top = {str(key[0]) for keys, _ in last.values() for key in keys} or {lifted}
    width = math.prod(shape[1:])
    sizes = tuple((stop - start) // width if width else 0 for start, stop in ranges)
    sizes = sizes if width else (shape[0],)
    out_chunks = (*x.chunks[:kept], sizes, *((size,) for size in shape[1:]))
    results = []
    for output, (finalize, dtype) in outputs.items():
        out_name, out_layer = f"{output}-{tokenize(token, finalize, dtype)}", Layer()
        for (index, number), (keys, merge) in last.items():
            key = (out_name, *index, number, *(0,) * (len(shape) - 1))
            arguments = {"ops": ops, "finalize": finalize, "dtype": dtype, **merge}
            arguments |= {"gaps": plans[number].gaps, "alone": plans[number].alone}
            arguments["shape"] = (sizes[number], *shape[1:])
            to = chunks.kind(x._meta)
            out_layer[key] = Task(key, finish, to=to, states=refs(keys), **arguments)
        results.append(array(graph, top, out_name, out_layer, x._meta, out_chunks, dtype))
    return results


def _at_once(
    run: executor.Runner,
    ops: Ops,
    x: Array,
    labels: Known | Lazy,
    shape: tuple[int, ...],
    outputs: Mapping[str, tuple[Finalize, Any]],
) -> list[Any]:
    """Return the results that a runner computes at once, as NumPy arrays."""
    if isinstance(labels, Lazy):
        raise Declined("labels are lazy")
    n = math.prod(shape)
    tables = Tables(labels, x.chunks[x.ndim - labels.ndim :], n)
    states, absent = run.groups(ops, x, tables), tables.absent()
    results = []
    for finalize, dtype in outputs.values():
        blocks = {}
        for index, state in states.items():
            blocks[*index, *(0,) * len(shape)] = finish(
                ops=ops,
                states=[state],
                places=None,
                n=n,
                gaps=None,
                absent=absent,
                finalize=finalize,
                dtype=dtype,
                shape=shape,
                to="numpy",
            )
        results.append(joined(blocks))
    return results


def _lifts(
    name: str,
    ops: Ops,
    x: Array,
    labels: Known | Lazy,
    tables: Tables | None,
    threads: int,
    ending: tuple[Finalize, Any] | None,
) -> Blocks:
    """Return the layer that lifts chunks, and finalizes groups that no other has by `ending`."""
    inputs: dict[str, Any] = {"block": x}
    first = x.ndim - labels.ndim
    if any(op.monoid.positional for op in ops):
        inputs["origin"] = Origins(x, tuple(range(first + labels.rows, x.ndim)))
    arguments: dict[str, Any] = {"ops": ops, "rows": labels.rows, **shared(threads)}
    if isinstance(labels, Lazy):
        arguments["coder"] = labels.coder
        return TrailingBlocks(name, x.ndim, lift_lazy, labels.arrays, inputs, **arguments)
    assert tables is not None
    inputs["codes"] = _OfBlocks(x, tables, "codes")
    if ending is not None:
        inputs["alone"], arguments["ending"] = _OfBlocks(x, tables, "alone"), ending
    return Blocks(name, x.ndim, lift, (), inputs, **arguments)


class Tables:
    """The groups of each block of known labels, and the codes of its elements among them."""

    def __init__(self, labels: Known, sizes: tuple[tuple[int, ...], ...], n: int) -> None:
        self._labels = labels
        self.n: int = n
        self._ends = [cached_cumsum(lengths, initial_zero=True) for lengths in sizes]
        self._blocks: dict[Key, tuple[Codes, Codes]] = {}
        self._numbers = np.empty(n, "i8")

    @property
    def ndim(self) -> int:
        """The number of label axes."""
        return self._labels.ndim

    def __dask_tokenize__(self) -> Any:
        """Return the values that identify the tables in keys."""
        return type(self).__name__, self._labels, self.n

    @property
    def rows(self) -> int:
        """The number of leading label axes that the result keeps."""
        return self._labels.rows

    @property
    def nbytes(self) -> int:
        """The bytes of the codes of all blocks."""
        return self._labels.codes.size * np.dtype(_narrow(self.n)).itemsize

    def absent(self) -> Codes | None:
        """Return a mask of the groups without elements; None if all have some or rows are kept."""
        codes = self._labels.codes
        groups = _distinct(codes[codes >= 0], self.n)
        if self.rows or len(groups) == self.n:
            return None
        absent = np.ones(self.n, "?")
        absent[groups] = False
        return absent

    def groups(self, index: Key) -> Codes:
        """Return the groups of the block at an index of the label axes, sorted."""
        return self._block(index)[1]

    def places(self, index: Key) -> Places:
        """Return the positions of a block's groups among all groups."""
        return as_slice(self.groups(index))

    def alone(self, index: Key) -> Codes:
        """Return a mask of a block's groups that no other block has."""
        return np.equal(self._holders[self.groups(index)], 1)

    @cached_property
    def _holders(self) -> Codes:
        """The number of blocks that have each group."""
        holders = np.zeros(self.n, "i8")
        for index in itertools.product(*(range(len(ends) - 1) for ends in self._ends)):
            holders[self.groups(index)] += 1
        return holders

    def codes(self, index: Key) -> tuple[Codes, int]:
        """Return the codes of the block at an index of the label axes, and its number of groups."""
        codes, groups = self._block(index)
        return codes, len(groups)

    def _block(self, index: Key) -> tuple[Codes, Codes]:
        codes = self._labels.codes
        # Along axes of length one there is one block of labels.
        key = tuple(i if n > 1 else 0 for i, n in zip(index, codes.shape, strict=True))
        if key not in self._blocks:
            cuts = zip(key, self._ends, codes.shape, strict=True)
            block = codes[
                tuple(slice(ends[i], ends[i + 1]) if n > 1 else slice(None) for i, ends, n in cuts)
            ]
            self._blocks[key] = self._relabelled(block)
        return self._blocks[key]

    def _relabelled(self, block: Codes) -> tuple[Codes, Codes]:
        if self._labels.rows:
            # Every row has a table of all groups.
            return block.astype(_narrow(self.n)), np.arange(self.n)
        inside = block >= 0
        groups = _distinct(block[inside], self.n)
        self._numbers[groups] = np.arange(len(groups))
        codes = (
            np.where(inside, self._numbers[np.where(inside, block, 0)], -1)
            if len(groups)
            else block
        )
        return codes.astype(_narrow(len(groups))), groups


def _distinct(codes: Codes, n: int) -> Codes:
    if n > 4 * codes.size:
        return np.unique(codes)
    has = np.zeros(n, "?")
    has[codes] = True
    return np.flatnonzero(has)


def _narrow(n: int) -> str:
    return "i4" if n <= np.iinfo("i4").max else "i8"


class _OfBlocks(BlockwiseDep):  # type: ignore[misc]
    """The values for each block of an array of a method of tables: "codes" or "alone"."""

    produces_tasks = False

    def __init__(self, x: Array, tables: Tables, method: str) -> None:
        self.numblocks = x.numblocks
        self._tables, self._method = tables, method

    def __getitem__(self, index: Key) -> Any:
        """Return the argument of the block at an index."""
        return getattr(self._tables, self._method)(index[-self._tables.ndim :])

    def __dask_tokenize__(self) -> Any:
        """Return the values that identify the arguments in keys."""
        return type(self).__name__, self.numblocks, self._tables, self._method


# Plans of merges.


class Merge(NamedTuple):
    """The positions of the groups of several tables in a merged table of `n` groups.

    `places` has a pair for each table: positions in the table, and in the merged one. None means
    that all tables have the same groups.
    """

    places: list[tuple[Places, Places]] | None
    n: int


class Plan(NamedTuple):
    """The tables that a block of a result takes, and how tasks merge them.

    Attributes
    ----------
    sources : list of int
        The numbers of the chunks' tables that the block takes.
    levels : list of (int, list of Merge)
        For each level of the tree, the number of tables that a task merges, and its merges.
    last : Merge
        The merge of the tables that remain.
    gaps : tuple of Places, or None
        The positions in the block of the groups of the last merge, and of those that are in no
        table; None if all are of the last merge.
    alone : list of (Places, Places), or None
        For each source, the positions among its alone groups, and in the block.
    """

    sources: list[int]
    levels: list[tuple[int, list[Merge]]]
    last: Merge
    gaps: tuple[Places, Places] | None = None
    alone: list[tuple[Places, Places]] | None = None


def _ranges(tables: list[Codes] | None, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the first group, and the one after the last, of each block of a result."""
    n = math.prod(shape)
    whole = [(0, n)]
    if tables is None or len(tables) < 2 or not n:
        return whole
    # Several blocks along the first axis only.
    width = math.prod(shape[1:])
    begins = np.full(shape[0], -1)
    for number in range(len(tables) - 1, -1, -1):
        begins[tables[number] // width] = number
    # A group without elements goes to the block of the group before it.
    known = np.maximum.accumulate(np.where(begins >= 0, np.arange(shape[0]), 0))
    begins = begins[known]
    edges = [0, *(np.flatnonzero(np.diff(begins)) + 1), shape[0]]
    of_block = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    tables_taken = sum(len(np.unique(of_block[groups // width])) for groups in tables)
    if len(edges) == 2 or tables_taken > _SHARED * len(tables):
        return whole
    return [(int(a) * width, int(b) * width) for a, b in itertools.pairwise(edges)]


def _spans(tables: list[Codes]) -> Codes:
    """Return the first and the last group of each table; an empty table has 0 and -1."""
    ends = [(groups[0], groups[-1]) if len(groups) else (0, -1) for groups in tables]
    return np.array(ends).reshape(-1, 2)


def _plan(
    tables: list[Codes] | None,
    alone: list[Codes] | None,
    spans: Codes | None,
    count: int,
    nbytes: float,
    start: int,
    stop: int,
) -> Plan:
    """Return the plan of the block of a result with the groups from `start` to before `stop`.

    `alone` are masks of the groups that one table alone has, which are finalized there. `nbytes`
    is the size of a group's states.
    """
    n = stop - start
    levels: list[tuple[int, list[Merge]]] = []
    if tables is None or spans is None:
        same, fan_in, left = Merge(None, n), at_a_time(FAN_IN, n * nbytes), count
        while left > fan_in:
            left = -(-left // fan_in)
            levels.append((fan_in, [same] * left))
        return Plan([*range(count)], levels, same)
    # Only tables whose span overlaps the block's: there may be as many blocks as tables.
    near = np.flatnonzero((spans[:, 0] < stop) & (spans[:, 1] >= start)).tolist()
    within = {i: _within(tables[i], start, stop) for i in near}
    # A block without elements takes a table for its kind and dtypes.
    sources = [i for i, groups in within.items() if len(groups)] or [0]
    have = [tables[i] if alone is None else tables[i][~alone[i]] for i in sources]
    while len(have) > (fan_in := at_a_time(FAN_IN, max(map(len, have)) * nbytes)):
        level, above = [], []
        for i in range(0, len(have), fan_in):
            siblings = have[i : i + fan_in]
            union = reduce(np.union1d, (_within(groups, start, stop) for groups in siblings))
            level.append(placed(siblings, union))
            above.append(union)
        levels.append((fan_in, level))
        have = above
    present, merged = np.zeros((2, n), "?")
    for groups in within.values():
        present[groups - start] = True
    merged[:] = present
    places = None
    if alone is not None:
        finished = [tables[i][alone[i]] - start for i in sources]
        inside = [np.flatnonzero((groups >= 0) & (groups < n)) for groups in finished]
        targets = [groups[at] for groups, at in zip(finished, inside, strict=True)]
        merged[np.concatenate(targets)] = False
        places = [*zip(map(as_slice, inside), map(as_slice, targets), strict=True)]
    last = placed(have, np.flatnonzero(merged) + start)
    if merged.all():
        return Plan(sources, levels, last, None, places)
    gaps = as_slice(np.flatnonzero(merged)), as_slice(np.flatnonzero(~present))
    return Plan(sources, levels, last, gaps, places)


def _within(groups: Codes, start: int, stop: int) -> Codes:
    return groups[slice(*np.searchsorted(groups, [start, stop]))]


def placed(tables: list[Codes], union: Codes) -> Merge:
    """Return the merge of tables of sorted groups into their union, or into a subset of it."""
    if all(np.array_equal(groups, union) for groups in tables):
        return Merge(None, len(union))
    places = []
    for groups in tables:
        source = np.flatnonzero(np.isin(groups, union))
        places.append((as_slice(source), as_slice(np.searchsorted(union, groups[source]))))
    return Merge(places, len(union))


def _merges(
    layer: Layer, ops: Ops, plan: Plan, keys: list[Key], prefix: Key, to_one: bool
) -> tuple[list[Key], dict[str, Any]]:
    """Add the tasks of a plan; return the keys that remain, and the arguments of their merge."""
    levels, last = plan.levels, plan.last
    if to_one:
        levels, last = [*levels, (len(keys), [last])], Merge(None, last.n)
    for depth, (fan_in, level) in enumerate(levels):
        above: list[Key] = []
        for i, step in enumerate(level):
            key = (*prefix, depth, i)
            inputs = keys if len(level) == 1 else keys[i * fan_in :][:fan_in]
            layer[key] = Task(key, merge_tables, ops=ops, states=refs(inputs), **step._asdict())
            above.append(key)
        keys = above
    return keys, last._asdict()


# What runs inside the tasks.


@casts
def lift(
    *,
    ops: Ops,
    block: Any,
    codes: tuple[Codes, int],
    rows: int,
    origin: Origin | None = None,
    threads: int = 1,
    alone: Codes | None = None,
    ending: tuple[Finalize, Any] | None = None,
) -> Any:
    """Return the states of the groups of a block whose labels are known.

    With `ending`, return them `Finished`: those of the mask `alone` are finalized.
    """
    known, n = codes
    ndim = known.ndim
    shape = block.shape[block.ndim - ndim :]
    on_device = chunks.asarray(known, chunks.kind(block))
    of_block = np.broadcast_to(on_device, shape)
    states = lift_codes(ops, block, of_block, n, rows, origin, threads)
    return states if alone is None or ending is None else finish_alone(states, alone, *ending)


@casts
def lift_lazy(
    *labels: Any,
    ops: Ops,
    block: Any,
    coder: Coder,
    rows: int,
    origin: Origin | None = None,
    threads: int = 1,
) -> list[State]:
    """Return the states of all groups of a block, whose labels are lazy."""
    codes, first = chunks.backend_of(block).codes(coder, labels)
    codes = chunks.asarray(codes, chunks.kind(block))
    n = first + math.prod(coder.shape)
    states = lift_codes(ops, block, codes, n, rows, origin, threads)
    return [tuple(field[..., first:] for field in state) for state in states] if first else states


def lift_codes(
    ops: Ops, block: Any, codes: Any, n: int, rows: int, origin: Origin | None, threads: int
) -> list[State]:
    """Return the states of `n` groups of a block, given the codes of its elements."""
    kept, outer = block.shape[: block.ndim - codes.ndim], codes.shape[:rows]
    if rows:
        # Each row has its own table.
        first = np.arange(math.prod(outer)).reshape(*outer, *(1,) * (codes.ndim - rows)) * n
        first = chunks.asarray(first, chunks.kind(block))
        codes = np.where((codes < 0) | (codes >= n), -1, codes + first)
    states = lift_groups_by_threads(ops, block, codes, n * math.prod(outer), threads)
    states = [tuple(field.reshape(*kept, *outer, n) for field in state) for state in states]
    if origin is None:
        return states
    lengths = codes.shape[rows:]
    return [
        op.shift(_within_row(state, math.prod(lengths)) if rows else state, lengths, origin)
        if op.monoid.positional
        else state
        for op, state in zip(ops, states, strict=True)
    ]


def _within_row(state: State, length: int) -> State:
    """Return a state whose indices count from the first element of the row."""
    value, index, *others = state
    return (value, np.where(index == NO_INDEX, index, index % max(1, length)), *others)
