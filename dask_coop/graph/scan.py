"""The cross-chunk step of a scan: a spine of levels, or a chain.

A scan lifts every chunk, turns the states into *base sums* (the combined states before each chunk),
and scans every chunk from its base.  Beyond `prefixes.GROUP` chunks, fewer where states are large,
the states are taken in groups, so that no message holds more than the states of one group::

    x0..xk --lift--> states --combine--> one total a group         (upsweep)
                                          |
                                        prefixes                   (spine: of many, in groups too)
                                          |
                     states --prefixes--> the bases of a group     (downsweep)
                                          |
    x0..xk ----------------------------scan--> y0..yk

A scan of k chunks has at most 2k + 2k/31 + 4 tasks, and none has more than 33 inputs.  A scan task
takes its base out of its group's list by position, so there are no getitem tasks. The last chunk of
a line and the last group are not reduced, because nothing follows them.  A reverse scan takes the
chunks from the last to the first. A scan with restarts has states that tell whether it restarted.

A chain reads every chunk once, and needs the memory of one::

    x0 --step--> (y0, state) --+--> y0
                               +--> state
                                      |
                       x1 --------- step --> (y1, state) --+--> y1       4k - 3 tasks

Messages are states: NumPy scalars or small arrays.  This module only builds graphs; the functions
of its tasks are in `dask_coop.graph.tasks`.
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
        The prefix of keys.
    twice : bool
        Whether to compute chunks for each of the two passes, rather than keep them in memory.
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
    # Copies with other keys; otherwise the scheduler would keep data that both passes need.
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
        groups = spine(states, partial, lifted, size, name, token, line)
        for j, index in enumerate(blocks):
            key = (f"{name}-{token}", *index)
            group, position = divmod(j - 1, size)
            arguments: dict[str, Any] = shared(threads)
            if j:
                arguments |= {"bases": TaskRef(groups[group]), "position": position}
            layer[key] = take(index, key, tasks.downsweep, op, spec.part(first=j == 0), **arguments)
    graph = HighLevelGraph.merge(*(a.dask for a in _arrays(first) + _arrays(source)))
    state = f"{name}-state-{token}"
    # Without fusing, the layers below are those of the chunks; no need to search for owners.
    named = None if twice else {name for a in _arrays(source) for name in a.__dask_layers__()}
    if states:
        graph = add(graph, state, states, named)
    below = owners(graph, layer) if named is None else named | ({state} if states else set())
    return wrap(graph, below, f"{name}-{token}", layer, op, spec, x)


def chain(op: Operation, spec: ScanSpec, source: Flagged, name: str) -> Array:
    """Scan the lines of an array chunk after chunk, each from the state of the one before."""
    if executor.runner() is not None:
        raise Declined("a sequential scan takes a step for each chunk")
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

        def make(j: int, key: Key, function: Any, blocks: list[Key] = blocks, **refs: Any) -> Task:
            return take(blocks[j], key, function, op, spec.part(first=j == 0), **refs)

        keys = [(f"{name}-{token}", *index) for index in blocks]
        stepped, results = tasks.chain(keys, part, make)
        steps |= stepped
        layer |= results
    graph = HighLevelGraph.merge(*(a.dask for a in _arrays(source)))
    if steps:
        graph = add(graph, f"{name}-steps-{token}", steps)
    return wrap(graph, owners(graph, layer), f"{name}-{token}", layer, op, spec, x)


def _by_strategy(op: Operation) -> Operation:
    return op.by(config.get("coop.strategy.scan", AUTO, *SCAN))


def _taker(source: Flagged, join: bool) -> Callable[..., Task]:
    """Return a function that makes the task that takes a chunk and its head flags.

    With `join`, the tasks that make the chunk are fused into it.
    """
    x, heads = source
    sources = Sources(_arrays(source)) if join else None

    def take(
        index: Key, key: Key, function: Any, op: Operation, spec: ScanSpec, **arguments: Any
    ) -> Task:
        block, flags = (x.name, *index), None
        arguments |= declared_by(block=x, heads=heads)
        if heads is not None:
            flags = (heads.name, *(index if heads.ndim == x.ndim else (index[spec.axis],)))
            arguments["heads"] = TaskRef(flags)
        task = Task(key, function, op=op, spec=spec, block=TaskRef(block), **arguments)
        if sources is None:
            return task
        # Flags along the axis alone serve all lines, so they are no task's own.
        exclusive = [block, flags] if heads is not None and heads.ndim == x.ndim else [block]
        return sources.join(task, exclusive)

    return take


def lines(x: Array, spec: ScanSpec) -> Iterator[tuple[Key, list[Key]]]:
    """Yield the index of each line of blocks, and the indices of its blocks in scan order."""
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
    """Return the array of `layer`, which scans `x`, on the layers `below` of `graph`."""
    out_chunks = list(x.chunks)
    if spec.initial:
        step = -1 if spec.reverse else 1
        first, *others = x.chunks[spec.axis][::step]
        out_chunks[spec.axis] = (first + 1, *others)[::step]
    return array(graph, below, name, layer, x._meta, tuple(out_chunks), op.output)


def group_size(op: Operation, spec: ScanSpec, x: Array) -> int:
    """Return how many states of chunks one task of a scan combines."""
    return at_a_time(GROUP, block_bytes(op, x, (spec.axis,)))


def spine(
    layer: Layer,
    op: Any,
    lifted: list[Key],
    size: int,
    name: str,
    token: str,
    line: Key,
    functions: tuple[Callable[..., Any], Callable[..., Any]] = (tasks.combine, tasks.prefixes),
) -> list[Key]:
    """Add the tasks that make base sums of a line's states; return one key for each group.

    The `functions` combine states of `op`, and return all their prefixes.
    """

    def add(key: Key, function: Any, states: Sequence[Key], **above: Any) -> Key:
        layer[key] = Task(key, function, op=op, states=refs(states), **above)
        return key

    def total(level: int, g: int, states: Sequence[Key]) -> Key:
        return add((f"{name}-total-{token}", *line, *at(level), g), functions[0], states)

    def bases(level: int, g: int, states: Sequence[Key], above: Key | None, position: int) -> Key:
        base = {} if above is None else {"above": TaskRef(above), "position": position}
        kind = "spine" if level else "base"
        key = (f"{name}-{kind}-{token}", *line, *at(level), g)
        return add(key, functions[1], states, **base)

    def at(level: int) -> tuple[int, ...]:
        return (level,) if level else ()

    return by_groups(lifted, size, total, bases)
