"""The cross-chunk step of a scan: a spine of levels, or a chain.

A scan lifts every chunk, turns the states into *base sums* (what comes before each chunk), and
scans every chunk from its base.  Beyond `prefixes.GROUP` chunks, fewer where states are large, the
states are taken in groups, so that no message holds more than that many of them::

    x0..xk --lift--> states --combine--> one total a group         (upsweep)
                                          |
                                        prefixes                   (spine: of many, in groups too)
                                          |
                     states --prefixes--> the bases of a group     (downsweep)
                                          |
    x0..xk ----------------------------scan--> y0..yk

Of k chunks a scan is at most 2k + 2k/31 + 4 tasks, and none has more than 33 inputs.  A scan task
takes its base out of its group's list by position, so there are no getitem tasks, and neither the
last chunk of a line nor the last group is reduced, for nothing comes after them.  A reverse scan
takes the chunks from the last to the first, and one that restarts has states that tell whether it
did.

A chain reads every chunk once, and needs the memory of one::

    x0 --step--> (y0, state) --+--> y0
                               +--> state
                                      |
                       x1 --------- step --> (y1, state) --+--> y1       4k - 3 tasks

Messages are states: NumPy scalars or small arrays.  Everything here builds graphs and nothing
computes; what tasks do is in `dask_coop.graph.tasks`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec, segmented
from dask_coop.algebra.strategies import AUTO, SCAN
from dask_coop.chunks.dtypes import declared_by
from dask_coop.errors import Declined
from dask_coop.graph import config, executor, tasks
from dask_coop.graph.fusion import Sources, add, copy, owners
from dask_coop.graph.layers import Key, Layer, array, block_bytes
from dask_coop.graph.prefixes import GROUP, at_a_time, by_groups
from dask_coop.graph.tasks import refs
from dask_coop.graph.threads import shared, threads_for

#: Elements and, where a scan restarts, head flags in the same chunks.
Flagged = tuple[Array, Array | None]


def scan(op: Operation, spec: ScanSpec, source: Flagged, name: str, twice: bool = False) -> Array:
    """Scan the lines of an array by reduce-then-scan.

    Parameters
    ----------
    op : Operation
    spec : ScanSpec
    source : tuple of dask.array.Array
        The elements and their head flags, if any.
    name : str
        What keys begin with.
    twice : bool
        Whether chunks are made for each of the two passes, and not kept between them.
    """
    x, heads = source
    chunks.kind(x._meta)
    op = _by_strategy(op)
    if (run := executor.runner()) is not None:
        return run.scan(op, spec, source, name)
    threads = threads_for(x)
    token = tokenize(op, spec, source, twice, threads > 1)
    size = group_size(op, spec, x)
    partial = op if heads is None else replace(op, monoid=segmented(op.monoid))
    # Under other keys, or the scheduler would keep what several chunks of both passes are made of.
    first = (copy(x), None if heads is None else copy(heads)) if twice else source
    take_first, take = _taker(first, twice), _taker(source, twice)
    states: Layer = {}
    layer: Layer = {}
    for line, blocks in lines(x, spec):
        lifted: list[Key] = []
        for index in blocks[:-1]:
            key = (f"{name}-lift-{token}", *index)
            states[key] = take_first(index, key, tasks.upsweep, op, spec, **shared(threads))
            lifted.append(key)
        groups = _spine(states, partial, lifted, size, name, token, line)
        for j, index in enumerate(blocks):
            key = (f"{name}-{token}", *index)
            group, position = divmod(j - 1, size)
            rest: dict[str, Any] = shared(threads)
            if j:
                rest |= {"bases": TaskRef(groups[group]), "position": position}
            layer[key] = take(index, key, tasks.downsweep, op, spec.part(first=j == 0), **rest)
    graph = HighLevelGraph.merge(*(a.dask for a in _arrays(first) + _arrays(source)))
    state = f"{name}-state-{token}"
    # What is not joined needs every chunk, and the owners of these are known.
    named = None if twice else {name for a in _arrays(source) for name in a.__dask_layers__()}
    if states:
        graph = add(graph, state, states, named)
    below = owners(graph, layer) if named is None else named | ({state} if states else set())
    return wrap(graph, below, f"{name}-{token}", layer, op, spec, x)


def chain(op: Operation, spec: ScanSpec, source: Flagged, name: str) -> Array:
    """Scan the lines of an array chunk after chunk, each from the state that the last has left."""
    if executor.runner() is not None:
        raise Declined("a chain is a step a chunk")
    x = source[0]
    chunks.kind(x._meta)
    op = _by_strategy(op)
    token = tokenize(op, spec, source, "chain")
    take = _taker(source, join=True)
    steps: Layer = {}
    layer: Layer = {}

    def part(of: str, key: Key) -> Key:
        return (f"{name}-{of}-{token}", *key[1:])

    for _, blocks in lines(x, spec):

        def make(j: int, key: Key, function: Any, blocks: list[Key] = blocks, **rest: Any) -> Task:
            return take(blocks[j], key, function, op, spec.part(first=j == 0), **rest)

        keys = [(f"{name}-{token}", *index) for index in blocks]
        stepped, made = tasks.chain(keys, part, make)
        steps |= stepped
        layer |= made
    graph = HighLevelGraph.merge(*(a.dask for a in _arrays(source)))
    if steps:
        graph = add(graph, f"{name}-steps-{token}", steps)
    return wrap(graph, owners(graph, layer), f"{name}-{token}", layer, op, spec, x)


def _by_strategy(op: Operation) -> Operation:
    return op.by(config.get("coop.strategy.scan", AUTO, *SCAN))


def _taker(source: Flagged, join: bool) -> Callable[..., Task]:
    """Return what makes the task of a function that takes a chunk and its head flags.

    Where they `join`, the tasks that make the chunk become part of it.
    """
    x, heads = source
    sources = Sources(_arrays(source)) if join else None

    def take(
        index: Key, key: Key, function: Any, op: Operation, spec: ScanSpec, **rest: Any
    ) -> Task:
        block, flags = (x.name, *index), None
        rest |= declared_by(block=x, heads=heads)
        if heads is not None:
            flags = (heads.name, *(index if heads.ndim == x.ndim else (index[spec.axis],)))
            rest["heads"] = TaskRef(flags)
        task = Task(key, function, op=op, spec=spec, block=TaskRef(block), **rest)
        if sources is None:
            return task
        # Head flags of one line serve other lines too.
        mine = [block, flags] if heads is not None and heads.ndim == x.ndim else [block]
        return sources.join(task, mine)

    return take


def lines(x: Array, spec: ScanSpec) -> Iterator[tuple[Key, list[Key]]]:
    """Yield, for every line of blocks, its index and those of its blocks in the order of a scan."""
    axis, k = spec.axis, x.numblocks[spec.axis]
    order = range(k)[::-1] if spec.reverse else range(k)
    for line in itertools.product(*(range(n) for d, n in enumerate(x.numblocks) if d != axis)):
        yield line, [(*line[:axis], j, *line[axis:]) for j in order]


def _arrays(source: Flagged) -> list[Array]:
    return [array for array in source if array is not None]


def wrap(
    graph: HighLevelGraph,
    below: set[str],
    name: str,
    layer: Layer,
    op: Operation,
    spec: ScanSpec,
    x: Array,
) -> Array:
    """Make an array of `layer`, which scans `x`, on the layers `below` of `graph`."""
    out_chunks = list(x.chunks)
    if spec.initial:
        step = -1 if spec.reverse else 1
        first, *rest = x.chunks[spec.axis][::step]
        out_chunks[spec.axis] = (first + 1, *rest)[::step]
    return array(graph, below, name, layer, x._meta, tuple(out_chunks), op.output)


def group_size(op: Operation, spec: ScanSpec, x: Array) -> int:
    """Return how many states of the chunks of a scan are combined one after the other."""
    return at_a_time(GROUP, block_bytes(op, x, (spec.axis,)))


def _spine(
    layer: Layer, op: Operation, lifted: list[Key], size: int, name: str, token: str, line: Key
) -> list[Key]:
    """Add the tasks that make base sums of a line's states; return one key a group."""

    def add(key: Key, function: Any, states: Sequence[Key], **rest: Any) -> Key:
        layer[key] = Task(key, function, op=op, states=refs(states), **rest)
        return key

    def total(level: int, g: int, states: Sequence[Key]) -> Key:
        return add((f"{name}-total-{token}", *line, *at(level), g), tasks.combine, states)

    def bases(level: int, g: int, states: Sequence[Key], above: Key | None, position: int) -> Key:
        rest = {} if above is None else {"above": TaskRef(above), "position": position}
        part = "spine" if level else "base"
        key = (f"{name}-{part}-{token}", *line, *at(level), g)
        return add(key, tasks.prefixes, states, **rest)

    def at(level: int) -> tuple[int, ...]:
        return (level,) if level else ()

    return by_groups(lifted, size, total, bases)
