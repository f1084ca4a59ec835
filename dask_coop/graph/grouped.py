"""The cross-chunk step of groups: trees of tables, each of the groups that its chunks have.

A chunk is lifted to a state for each of its own groups. Up the tree the groups of a table are the
union of those below it. All that is known when the graph is built: what tasks get is where a
table's groups are in the next one::

    chunk 0   groups 0 1    -+
    chunk 1   groups 1 2    -+-merge-->  groups 0 1 2    -+
    chunk 2   groups 2 3    -+                            +-finish-->  result, groups 0 to 4
    chunk 3   groups 3 4    -+-merge-->  groups 2 3 4    -+

Where groups lie within few chunks, as days do, the result has several blocks along them, each of
the groups that begin in a chunk, and made of the tables of few::

    chunk 0   days 0 1 2    ---------->  result, days 0 1 2
    chunk 1   days 2 3 4    ---------->  result, days 3 4         day 2 goes to the first

Of labels that are lazy no more is known than which groups there may be: tables have all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import reduce
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
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.chunks.dtypes import casts
from dask_coop.chunks.labels import Coder
from dask_coop.errors import Declined
from dask_coop.graph import executor
from dask_coop.graph.fusion import Blocks, TrailingBlocks, add
from dask_coop.graph.layers import FAN_IN, Key, Layer, Origins, array, block_bytes, joined
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.tasks import refs
from dask_coop.graph.threads import lift_groups_by_threads, shared, threads_for

Codes = np.ndarray[Any, Any]
Ops = tuple[Operation, ...]

#: Makes an array of the states of a block, one for each operation, and which groups are known to
#: have no element.
Finalize = Callable[[list[State], Codes | None], Any]

#: Where groups are in a table: an array, or a slice of neighbours.
Places = Codes | slice

#: How many blocks of a result a chunk's table may go to, on average, where a result has several
#: along the groups.
_SHARED = 2


class Known(NamedTuple):
    """Labels that are known: the group of each element.

    Attributes
    ----------
    codes : numpy.ndarray of int
        With the label axes of the array, those along which labels are broadcast of length one; -1
        for elements that are left out.
    rows : int
        How many of these axes, the first ones, are kept.
    """

    codes: Codes
    rows: int = 0

    @property
    def ndim(self) -> int:
        """How many label axes there are."""
        return self.codes.ndim


class Lazy(NamedTuple):
    """Labels that are computed with the chunks.

    Attributes
    ----------
    arrays : tuple of dask.array.Array
        In the chunks of the array's last axes.
    coder : Coder
        What makes codes of their chunks.
    rows : int
        As of `Known`.
    """

    arrays: tuple[Array, ...]
    coder: Coder
    rows: int = 0

    @property
    def ndim(self) -> int:
        """How many label axes there are."""
        return int(self.arrays[0].ndim)


def reduction(
    ops: Ops,
    x: Array,
    labels: Known | Lazy,
    shape: tuple[int, ...],
    outputs: Mapping[str, tuple[Finalize, Any]],
) -> list[Array]:
    """Reduce the groups of `x` by several operations, once, to one array for each of `outputs`.

    Parameters
    ----------
    ops : tuple of Operation
    x : dask.array.Array
        The label axes are the last ones.
    labels : Known or Lazy
    shape : tuple of int
        The groups along each axis that the result has for them.
    outputs : mapping of str to (callable, dtype)
        Name, function from the states to the result, and dtype of each array. Its axes are those
        that are kept, and one for the groups, which become those of `shape`.
    """
    if (run := executor.runner()) is not None:
        return _at_once(run, ops, x, labels, shape, outputs)
    n, kept = math.prod(shape), x.ndim - labels.ndim + labels.rows
    axes = tuple(range(kept, x.ndim))
    threads = threads_for(x)
    token = tokenize(ops, x, labels, shape, threads > 1)
    name = next(iter(outputs)) if len(outputs) == 1 else "groupby"
    lifted = f"{name}-lift-{token}"
    layer, tables = _lifts(lifted, ops, x, labels, n, threads)
    graph = HighLevelGraph.from_collections(
        lifted, layer, dependencies=[x, *(labels.arrays if isinstance(labels, Lazy) else ())]
    )
    order = [*itertools.product(*(range(x.numblocks[axis]) for axis in axes))]
    own = None if tables is None else [tables.groups(index) for index in order]
    ranges = _cut(own, shape)
    spans = None if own is None else _spans(own)
    nbytes = sum(block_bytes(op, x, axes) for op in ops)
    plans = [_plan(own, spans, len(order), nbytes, *ends) for ends in ranges]

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
            given = {"ops": ops, "finalize": finalize, "dtype": dtype, **merge}
            given |= {"shape": (sizes[number], *shape[1:]), "absent": plans[number].absent}
            to = chunks.kind(x._meta)
            out_layer[key] = Task(key, finish, to=to, states=refs(keys), **given)
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
    """Return the results of all states, in NumPy."""
    if isinstance(labels, Lazy):
        raise Declined("labels are lazy")
    n = math.prod(shape)
    tables = Tables(labels, x.chunks[x.ndim - labels.ndim :], n)
    states, absent = run.groups(ops, x, tables), tables.absent()
    results = []
    for finalize, dtype in outputs.values():
        blocks = {}
        for index, own in states.items():
            blocks[*index, *(0,) * len(shape)] = finish(
                ops=ops,
                states=[own],
                places=None,
                n=n,
                absent=absent,
                finalize=finalize,
                dtype=dtype,
                shape=shape,
                to="numpy",
            )
        results.append(joined(blocks))
    return results


def _lifts(
    name: str, ops: Ops, x: Array, labels: Known | Lazy, n: int, threads: int
) -> tuple[Blocks, Tables | None]:
    """Return the tasks that lift chunks, and which groups each has, where that is known."""
    named: dict[str, Any] = {"block": x}
    first = x.ndim - labels.ndim
    if any(op.monoid.positional for op in ops):
        named["origin"] = Origins(x, tuple(range(first + labels.rows, x.ndim)))
    given: dict[str, Any] = {"ops": ops, "rows": labels.rows, **shared(threads)}
    if isinstance(labels, Known):
        tables = Tables(labels, x.chunks[first:], n)
        named["codes"] = _CodesOfBlocks(x, tables)
        return Blocks(name, x.ndim, lift, (), named, **given), None if labels.rows else tables
    given |= {"coder": labels.coder, "n": n}
    return TrailingBlocks(name, x.ndim, lift_lazy, labels.arrays, named, **given), None


class Tables:
    """The tables of the blocks of known labels: which groups they have, and codes in them."""

    def __init__(self, labels: Known, sizes: tuple[tuple[int, ...], ...], n: int) -> None:
        self._labels = labels
        self.n: int = n
        self._ends = [cached_cumsum(each, initial_zero=True) for each in sizes]
        self._found: dict[Key, tuple[Codes, Codes]] = {}
        self._numbers = np.empty(n, "i8")

    @property
    def ndim(self) -> int:
        """How many label axes there are."""
        return self._labels.ndim

    def __dask_tokenize__(self) -> Any:
        """Return what tells it from others."""
        return type(self).__name__, self._labels, self.n

    @property
    def rows(self) -> int:
        """How many of these, the first ones, are kept."""
        return self._labels.rows

    @property
    def nbytes(self) -> int:
        """The bytes of all codes."""
        return self._labels.codes.size * np.dtype(_narrow(self.n)).itemsize

    def absent(self) -> Codes | None:
        """Return which groups no element has, if some are; None also where rows are kept."""
        codes = self._labels.codes
        groups = _distinct(codes[codes >= 0], self.n)
        if self.rows or len(groups) == self.n:
            return None
        found = np.ones(self.n, "?")
        found[groups] = False
        return found

    def groups(self, index: Key) -> Codes:
        """Return the groups of the block at an index of the label axes, sorted."""
        return self._block(index)[1]

    def places(self, index: Key) -> Places:
        """Return where the groups of the block at an index are among all groups."""
        return _as_slice(self.groups(index))

    def codes(self, index: Key) -> tuple[Codes, int]:
        """Return the codes of the block at an index of the label axes, and how many groups."""
        codes, groups = self._block(index)
        return codes, len(groups)

    def _block(self, index: Key) -> tuple[Codes, Codes]:
        codes = self._labels.codes
        # Along axes of length one there is one block of labels.
        at = tuple(i if n > 1 else 0 for i, n in zip(index, codes.shape, strict=True))
        if at not in self._found:
            cuts = zip(at, self._ends, codes.shape, strict=True)
            block = codes[
                tuple(slice(ends[i], ends[i + 1]) if n > 1 else slice(None) for i, ends, n in cuts)
            ]
            self._found[at] = self._relabelled(block)
        return self._found[at]

    def _relabelled(self, block: Codes) -> tuple[Codes, Codes]:
        if self._labels.rows:
            # Each row of elements has groups of its own.
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


class _CodesOfBlocks(BlockwiseDep):  # type: ignore[misc]
    """The codes of the blocks of an array, and how many groups they are of."""

    produces_tasks = False

    def __init__(self, x: Array, tables: Tables) -> None:
        self.numblocks = x.numblocks
        self._tables = tables

    def __getitem__(self, index: Key) -> tuple[Codes, int]:
        """Return the codes of the block at an index."""
        return self._tables.codes(index[-self._tables.ndim :])

    def __dask_tokenize__(self) -> Any:
        """Return what tells it from others."""
        return type(self).__name__, self.numblocks, self._tables


# How tables are put together.


class Merge(NamedTuple):
    """How several tables become one: where groups are in each and in the one, and its length.

    None stands for tables that all have the same groups.
    """

    places: list[tuple[Places, Places]] | None
    n: int


class Plan(NamedTuple):
    """What a block of a result is made of.

    Attributes
    ----------
    sources : list of int
        The numbers of the tables that it takes.
    levels : list of (int, list of Merge)
        How so many of them at a time, and of what they become, are put together.
    last : Merge
        How those that are left are.
    absent : numpy.ndarray of bool or None
        Which groups are in no table, if some are.
    """

    sources: list[int]
    levels: list[tuple[int, list[Merge]]]
    last: Merge
    absent: Codes | None


def _cut(tables: list[Codes] | None, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the groups that each block of a result has, from one to before another."""
    n = math.prod(shape)
    whole = [(0, n)]
    if tables is None or len(tables) < 2 or not n:
        return whole
    # Blocks are cut along the first axis only.
    width = math.prod(shape[1:])
    begins = np.full(shape[0], -1)
    for number in range(len(tables) - 1, -1, -1):
        begins[tables[number] // width] = number
    # A group that is nowhere goes with the one before it.
    known = np.maximum.accumulate(np.where(begins >= 0, np.arange(shape[0]), 0))
    begins = begins[known]
    edges = [0, *(np.flatnonzero(np.diff(begins)) + 1), shape[0]]
    of_block = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    taken = sum(len(np.unique(of_block[groups // width])) for groups in tables)
    if len(edges) == 2 or taken > _SHARED * len(tables):
        return whole
    return [(int(a) * width, int(b) * width) for a, b in itertools.pairwise(edges)]


def _spans(tables: list[Codes]) -> Codes:
    """Return the first and the last group of each table, which an empty one has the wrong way."""
    ends = [(groups[0], groups[-1]) if len(groups) else (0, -1) for groups in tables]
    return np.array(ends).reshape(-1, 2)


def _plan(
    tables: list[Codes] | None,
    spans: Codes | None,
    count: int,
    nbytes: float,
    start: int,
    stop: int,
) -> Plan:
    """Return what the block of a result is made of that has the groups from `start` to `stop`.

    A group has so many bytes in a table.
    """
    n = stop - start
    levels: list[tuple[int, list[Merge]]] = []
    if tables is None or spans is None:
        same, fan_in, left = Merge(None, n), at_a_time(FAN_IN, n * nbytes), count
        while left > fan_in:
            left = -(-left // fan_in)
            levels.append((fan_in, [same] * left))
        return Plan([*range(count)], levels, same, None)
    # There may be as many blocks of a result as tables, of which each has a few.
    near = np.flatnonzero((spans[:, 0] < stop) & (spans[:, 1] >= start)).tolist()
    within = {i: _within(tables[i], start, stop) for i in near}
    sources = [i for i, part in within.items() if len(part)]
    # A block of a result is made of something.
    sources = sources or [0]
    # Of the tables of chunks, those groups are taken that the block has.
    have = [tables[i] for i in sources]
    while len(have) > (fan_in := at_a_time(FAN_IN, max(map(len, have)) * nbytes)):
        level, above = [], []
        for i in range(0, len(have), fan_in):
            parts_of = have[i : i + fan_in]
            union = reduce(np.union1d, (_within(groups, start, stop) for groups in parts_of))
            level.append(placed(parts_of, union))
            above.append(union)
        levels.append((fan_in, level))
        have = above
    whole = np.arange(start, stop)
    present = np.zeros(n, "?")
    for part in within.values():
        present[part - start] = True
    return Plan(sources, levels, placed(have, whole), None if present.all() else ~present)


def _within(groups: Codes, start: int, stop: int) -> Codes:
    return groups[slice(*np.searchsorted(groups, [start, stop]))]


def placed(tables: list[Codes], union: Codes) -> Merge:
    """Return how tables of sorted groups become one of their union, or of a part of it."""
    if all(np.array_equal(groups, union) for groups in tables):
        return Merge(None, len(union))
    places = []
    for groups in tables:
        source = np.flatnonzero(np.isin(groups, union))
        places.append((_as_slice(source), _as_slice(np.searchsorted(union, groups[source]))))
    return Merge(places, len(union))


def _as_slice(places: Codes) -> Places:
    if len(places) and places[-1] - places[0] == len(places) - 1:
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _merges(
    layer: Layer, ops: Ops, plan: Plan, keys: list[Key], prefix: Key, to_one: bool
) -> tuple[list[Key], dict[str, Any]]:
    """Add the tasks of a plan; return the keys that are left, and how they are put together."""
    levels, last = plan.levels, plan.last
    if to_one:
        levels, last = [*levels, (len(keys), [last])], Merge(None, last.n)
    for depth, (fan_in, level) in enumerate(levels):
        above: list[Key] = []
        for i, how in enumerate(level):
            key = (*prefix, depth, i)
            of = keys if len(level) == 1 else keys[i * fan_in :][:fan_in]
            layer[key] = Task(key, merge, ops=ops, states=refs(of), **how._asdict())
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
) -> list[State]:
    """Return the states of the groups of a block, whose labels are known."""
    known, n = codes
    ndim = known.ndim
    shape = block.shape[block.ndim - ndim :]
    on_device = chunks.asarray(known, chunks.kind(block))
    return lift_codes(ops, block, np.broadcast_to(on_device, shape), n, rows, origin, threads)


@casts
def lift_lazy(
    *labels: Any,
    ops: Ops,
    block: Any,
    coder: Coder,
    n: int,
    rows: int,
    origin: Origin | None = None,
    threads: int = 1,
) -> list[State]:
    """Return the states of all groups, of a block with the blocks of its labels."""
    codes = coder.codes(labels)
    codes = chunks.asarray(codes, chunks.kind(block))
    return lift_codes(ops, block, codes, n, rows, origin, threads)


def lift_codes(
    ops: Ops, block: Any, codes: Any, n: int, rows: int, origin: Origin | None, threads: int
) -> list[State]:
    """Return the states of `n` groups of a block, by the codes of its elements."""
    kept, outer = block.shape[: block.ndim - codes.ndim], codes.shape[:rows]
    if rows:
        # A row's groups have a table of their own.
        first = np.arange(math.prod(outer)).reshape(*outer, *(1,) * (codes.ndim - rows)) * n
        first = chunks.asarray(first, chunks.kind(block))
        codes = np.where(codes < 0, -1, codes + first)
    states = lift_groups_by_threads(ops, block, codes, n * math.prod(outer), threads)
    states = [tuple(field.reshape(*kept, *outer, n) for field in state) for state in states]
    if origin is None:
        return states
    lengths = codes.shape[rows:]
    return [
        op.shift(_within_row(state, math.prod(lengths)), lengths, origin)
        if op.monoid.positional
        else state
        for op, state in zip(ops, states, strict=True)
    ]


def _within_row(state: State, length: int) -> State:
    """Return a state with indices that count from the first element of a row."""
    value, index, *rest = state
    return (value, np.where(index == NO_INDEX, index, index % max(1, length)), *rest)


def merge(
    *, ops: Ops, states: list[list[State]], places: list[tuple[Places, Places]] | None, n: int
) -> list[State]:
    """Put tables together, in their order."""
    if places is None:
        return [op.combine([each[i] for each in states]) for i, op in enumerate(ops)]
    return [_merged(op, [each[i] for each in states], places, n) for i, op in enumerate(ops)]


def _merged(
    op: Operation, states: list[State], places: list[tuple[Places, Places]], n: int
) -> State:
    total = empty(op, states[0], n)
    for state, (source, target) in zip(states, places, strict=True):
        put_in(op, total, state, source, target)
    return total


def empty(op: Operation, like: State, n: int) -> State:
    """Return a table of so many groups without elements, for those of another one."""
    shape = (*like[0].shape[:-1], n)
    return tuple(
        np.full_like(field, value, shape=shape)
        for field, value in zip(like, op.monoid.identity(op.element), strict=True)
    )


def put_in(op: Operation, total: State, state: State, source: Places, target: Places) -> None:
    """Combine some groups of a table into those of a larger one, behind what these have."""
    so_far = tuple(field[..., target] for field in total)
    # Of CuPy chunks, small tables are on the host and large ones are not.
    own = (chunks.asarray(field[..., source], chunks.kind(total[0])) for field in state)
    combined = op.monoid.combine(so_far, tuple(own))
    for field, values in zip(total, combined, strict=True):
        field[..., target] = values


def finish(
    *,
    ops: Ops,
    states: list[list[State]],
    places: list[tuple[Places, Places]] | None,
    n: int,
    absent: Codes | None,
    finalize: Finalize,
    dtype: Any,
    shape: tuple[int, ...],
    to: str,
) -> Any:
    """Return a block of a result, made of the tables that it takes."""
    merged = merge(ops=ops, states=states, places=places, n=n)
    result = finalize(merged, absent)
    result = result.astype(dtype, copy=False).reshape(*result.shape[:-1], *shape)
    return chunks.asarray(result, to)
