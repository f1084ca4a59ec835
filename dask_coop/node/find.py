"""Find the tasks of a graph that multi-chunk launches can replace, just before the graph runs.

One call that works on all chunks can replace the 2k tasks and the tree of a plain graph::

    x0 --lift--> s0 -+                          x0 -+
    x1 --lift--> s1 -+-combine--> s -> result   x1 -+-launch--> s -> result
    x2 --lift--> s2 -+                          x2 -+

    x0 --lift--> s0 -+                          x0 -+        +--> y0
    x1 --lift--> s1 -+-prefixes--> bases        x1 -+-launch-+--> y1
    x2 --------------scan from a base--> y2     x2 -+        +--> y2

The graph is an ordinary one: a launch is derived from the work of the tasks
(`dask_coop.graph.tasks`), the shape of the graph and the order of the states. So the same array
computes under every scheduler, and a launch keeps the tasks that it replaces, in case the chunks
turn out not to suit. If Dask's optimiser has fused such tasks with others, they are taken apart
again.

A launch holds all chunks at a time. So a reduction gets none if its chunks are made one by one and
dropped: together they may exceed memory. A scan holds its chunks in any case, unless it can be a
chain over chunks from the host (`dask_coop.node.streams`).
"""

from __future__ import annotations

import operator
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from dask.task_spec import Alias, DataNode, Task, TaskRef

from dask_coop.algebra.operation import Operation, Origin
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.cupy.eligibility import (
    Objection,
    objection_to_counting,
    objection_to_grid,
    objection_to_operation,
    objection_to_scan,
)
from dask_coop.graph import tasks
from dask_coop.graph.joined import read_join
from dask_coop.graph.tasks import (
    AggregateTask,
    CollectTask,
    CombineTask,
    CountTask,
    DownsweepTask,
    EvaluateTask,
    Graph,
    Kind,
    LiftTask,
    OurTask,
    PrefixesTask,
    RootTask,
    TabulateTask,
    UpsweepTask,
    index_of,
    kind_of,
    name_of,
    read,
    refs,
    taken_apart,
)
from dask_coop.node import streams

#: The tasks that a launch replaces, and those that finish its results.
_REPLACED: Set[type[OurTask] | None] = frozenset(
    {
        *(LiftTask, CountTask, CombineTask, EvaluateTask, AggregateTask, TabulateTask),
        CollectTask,
        *(UpsweepTask, PrefixesTask, DownsweepTask),
    }
)

#: The kinds of the library's own tasks, by key.
Kinds = dict[Any, type[OurTask]]

#: The most joined chunks that a launch takes as they are: each costs the host microseconds.
_MOST_APART = 128

_COMPUTED = Objection("its states are computed already")
_MADE_ON_THE_WAY = Objection("its chunks are made on the way, one after the other: persist them")
_FROM_HOST = Objection("its chunks come from the host, one after the other")
_JOINED = Objection("its chunks are many and small, and are joined first")
_NO_REDUCTION = Objection("it is not a reduction")
_TWO_PASSES = Objection("its two passes read chunks of their own")


@dataclass(frozen=True)
class MultichunkLaunch:
    """A multi-chunk launch: one call that works on all chunks of an array.

    Attributes
    ----------
    key : tuple
        The key of its task.
    op : Operation or None
        None if the launch collects samples.
    blocks : tuple of keys
        The chunks, in the order in which their states combine.
    outputs : tuple of keys
        The results: one state of a reduction, the wanted chunks of a scan, or one chunk of samples
        for each block.
    plain : dict
        The tasks that it replaces, which make the same outputs.
    origins : tuple of Origin, optional
        The positions of the chunks in the array, for operations that return an argument index.
    spec : ScanSpec, optional
        For a scan, how it runs.
    wanted : tuple of bool
        For a scan, whether each chunk's result is among the outputs.
    grid : Grid, Digits or TaskRef, optional
        For a histogram, its bins; for a collection, the digits of the samples to collect; or a
        reference to the task that makes either.
    declared : dtype, optional
        The dtype that the array of the chunks declares.
    """

    key: Any
    op: Operation | None
    blocks: tuple[Any, ...]
    outputs: tuple[Any, ...]
    plain: Graph
    origins: tuple[Origin, ...] | None = None
    spec: ScanSpec | None = None
    wanted: tuple[bool, ...] = ()
    grid: Any = None
    declared: Any = None

    @property
    def name(self) -> str:
        """The name of the array of its results or states."""
        return str(self.key[0]).removeprefix("launch-")

    @property
    def needs(self) -> tuple[Any, ...]:
        """The keys of its inputs: the chunks, and the grid if a task makes that."""
        return (*self.blocks, self.grid.key) if isinstance(self.grid, TaskRef) else self.blocks


class Launches(NamedTuple):
    """The multi-chunk launches of a graph.

    Attributes
    ----------
    graph : dict
        The graph, in which no task that a launch replaces is fused with another one.
    plain : dict
        The graph to run if there can be no launches.
    launches : list of MultichunkLaunch
    others : dict of str to Objection
        Why other reductions, scans and histograms get no launch, by the name of their result.
    """

    graph: Graph
    plain: Graph
    launches: list[MultichunkLaunch]
    others: dict[str, Objection]


def find_launches(graph: Graph, wanted: Set[Any]) -> Launches:
    """Return the multi-chunk launches of a graph whose results are `wanted`.

    If there are none, its `graph` is the argument itself.
    """
    whole, homes = taken_apart(graph, _REPLACED)
    kinds = {key: kind for key, task in whole.items() if (kind := kind_of(task))}
    if _REPLACED.isdisjoint(kinds.values()):
        return Launches(graph, graph, [], {})
    others: dict[str, Objection] = {}
    chains = streams.chains(whole, kinds, wanted)
    if chains:
        others |= {name_of(key): _FROM_HOST for key in chains.keys() & kinds.keys()}
        whole = whole | chains
        kinds = {key: kind for key, task in whole.items() if (kind := kind_of(task))}
    scans = list(_scans(whole, kinds, others))
    scanned = {key for launch in scans for key in launch.outputs}
    trees: list[MultichunkLaunch] = []
    roots: Graph = {}
    for launch, ends in _trees(whole, kinds, others):
        if _are_held(launch, ChainMap(ends, whole), kinds, wanted | scanned):
            trees.append(launch)
            roots |= ends
        else:
            on_host = streams.from_host(launch.blocks[:1], whole)
            others[launch.name] = _FROM_HOST if on_host else _MADE_ON_THE_WAY
    launches = [*_collections(whole, kinds, wanted | scanned), *trees, *scans]
    if chains:
        return Launches(whole | roots, whole, launches, others)
    if not launches:
        return Launches(graph, graph, [], others)
    if homes:
        used = roots.keys() | {
            key for launch in launches for key in (*launch.plain, *launch.outputs, *launch.needs)
        }
        opened = {homes[key] for key in used if key in homes}
        if len(opened) < len(set(homes.values())):
            whole, _ = taken_apart(graph, _REPLACED, opened)
    return Launches(whole | roots, graph, launches, others)


def _are_held(
    launch: MultichunkLaunch, graph: Mapping[Any, Any], kinds: Kinds, in_memory: Set[Any]
) -> bool:
    """Return whether all chunks of a reduction are in memory at a time even without the launch.

    Chunks are if they are computed already, or if some task besides their lift needs them.
    Collected samples are, as several steps read them.
    """
    lazy = {key for key in launch.blocks if key not in in_memory and not _is_data(graph, key)}
    lazy = {key for key in lazy if kinds.get(key) is not CollectTask}
    if lazy:
        for key, task in graph.items():
            if kinds.get(key) not in streams.READ_ONCE:
                lazy -= task.dependencies
    return not lazy


def _collections(graph: Graph, kinds: Kinds, in_memory: Set[Any]) -> Iterator[MultichunkLaunch]:
    """Yield launches that collect samples of chunks that are data, or whose keys are `in_memory`.

    `in_memory` has the keys of results and of outputs of launches.
    """
    arrays: dict[str, Graph] = {}
    for key, kind in kinds.items():
        if kind is CollectTask:
            arrays.setdefault(name_of(key), {})[key] = graph[key]
    in_memory = set(in_memory).union(*arrays.values())
    for name, plain in arrays.items():
        collects = _read_all([*plain.values()], CollectTask)
        blocks = tuple(collect.samples[0] for collect in collects)
        if len(blocks) > 1 and all(key in in_memory or _is_data(graph, key) for key in blocks):
            first = collects[0]
            yield MultichunkLaunch(
                (f"launch-{name}", 0),
                None,
                blocks,
                (*plain,),
                plain,
                grid=first.grid,
                declared=_declared(first, 0),
            )


def _is_data(graph: Mapping[Any, Any], key: Any) -> bool:
    while isinstance(node := graph.get(key), Alias):
        key = node.target
    return isinstance(node, DataNode)


def put_in(
    graph: Graph,
    launch: MultichunkLaunch,
    call: Callable[..., Any],
    values: list[Any] | None = None,
) -> None:
    """Replace the tasks of a launch in `graph` by one that calls `call` with a list of inputs.

    Give `values` if the inputs are known. Tasks that are no longer needed stay for Dask to cull.
    """
    inputs = refs(launch.needs) if values is None else values
    graph[launch.key] = Task(launch.key, call, inputs)
    for i, key in enumerate(launch.outputs):
        graph[key] = Task(key, operator.getitem, TaskRef(launch.key), i)


def _leaves(graph: Graph, keys: Iterable[Any], tree: Graph) -> Iterator[Any]:
    """Yield the keys of the lifts below `keys`, in order; add the combining tasks to `tree`."""
    for key in keys:
        if combining := read(graph.get(key), CombineTask):
            tree[key] = graph[key]
            yield from _leaves(graph, combining.states, tree)
        else:
            yield key


def _trees(
    graph: Graph, kinds: Kinds, others: dict[str, Objection]
) -> Iterator[tuple[MultichunkLaunch, Graph]]:
    """Yield a launch for each reduction or histogram, and the tasks that finish its state.

    Results that are made of the same states have one launch. The tasks replace those in the graph.
    """
    roots: dict[tuple[Any, ...], list[Any]] = {}
    for key, kind in kinds.items():
        if issubclass(kind, RootTask) and (root := read(graph[key], RootTask)):
            roots.setdefault(root.states, []).append(key)
    for states, keys in roots.items():
        tree: Graph = {}
        leaves = list(_leaves(graph, states, tree))
        name = name_of(keys[0])
        nodes: list[Any] = [graph.get(key) for key in leaves]
        if len(leaves) == 1 and not _is_of_joined(nodes[0], graph):
            continue
        if not all(isinstance(node, Task) for node in nodes):
            others[name] = _COMPUTED
            continue
        if counts := _read_all(nodes, CountTask):
            op, blocks = counts[0].op, tuple(count.samples[0] for count in counts)
            reason, grid, origins = _objection_to_count(counts[0]), counts[0].grid, None
            declared = _declared(counts[0], 0)
        elif lifts := _read_all(nodes, LiftTask):
            op, blocks = lifts[0].op, tuple(lift.block for lift in lifts)
            reason, grid, origins = _objection_to_lift(lifts[0]), None, None
            declared = _declared(lifts[0], "block")
            if op.monoid.positional:
                origins = tuple(lift.origin for lift in lifts if lift.origin is not None)
        else:
            others[name] = _NO_REDUCTION
            continue
        if reason:
            others[name] = reason
            continue
        apart = _apart(graph, blocks)
        if apart:
            tree |= {key: graph[key] for key in blocks}
            if origins is not None:
                origins = _origins_apart(graph, blocks, origins)
            blocks = (*apart,)
        elif _is_of_joined(nodes[0], graph):
            others[name] = _JOINED
            continue
        state, launch = ((f"{prefix}-{name}", *index_of(keys[0])) for prefix in ("state", "launch"))
        tree |= {node.key: node for node in nodes}
        tree[state] = Task(state, tasks.combine, op=op, states=refs(states))
        ends = apart | {key: tasks.on_states(graph[key], [state]) for key in keys}
        yield (
            MultichunkLaunch(
                launch, op, blocks, (state,), tree, origins, grid=grid, declared=declared
            ),
            ends,
        )


def _is_of_joined(node: Any, graph: Graph) -> bool:
    """Return whether a task takes joined chunks."""
    needed = node.dependencies if isinstance(node, Task) else ()
    return any(read_join(graph.get(key)) is not None for key in needed)


def _apart(graph: Graph, blocks: Iterable[Any]) -> Graph:
    """Return nodes of the chunks that `blocks` join, in C order.

    None if a block joins none, or if they are so many that to join them takes less time.
    """
    apart: Graph = {}
    for key in blocks:
        if (task := read_join(graph.get(key))) is None or len(task.blocks) > _MOST_APART:
            return {}
        for place, block in zip(np.ndindex(*task.grid), task.blocks, strict=True):
            chunk = (f"{name_of(key)}-chunk", *index_of(key), *place)
            apart[chunk] = DataNode(chunk, block)
    return apart


def _origins_apart(
    graph: Graph, blocks: Iterable[Any], origins: Iterable[Origin]
) -> tuple[Origin, ...]:
    """Return the origins of the chunks that `blocks` join, given those of the blocks."""
    apart: list[Origin] = []
    for key, origin in zip(blocks, origins, strict=True):
        task = read_join(graph[key])
        assert task is not None
        for begins in task.begins():
            apart.append(
                tuple((at + begin, n) for begin, (at, n) in zip(begins, origin, strict=True))
            )
    return tuple(apart)


def _read_all(nodes: Sequence[Any], kind: type[Kind]) -> list[Kind]:
    """Return the tasks read as `kind`; an empty list unless all are of that kind."""
    tasks = [task for node in nodes if (task := read(node, kind)) is not None]
    return tasks if len(tasks) == len(nodes) else []


def _declared(task: OurTask, argument: Any) -> Any:
    """Return the dtype that is declared for an argument of a task, or None."""
    declared = (task.declared or {}).get(argument)
    return None if declared is None else np.dtype(declared)


def _objection_to_count(task: CountTask) -> Objection | None:
    if reason := objection_to_counting(task.op):
        return reason
    if task.weights is not None:
        return Objection("weights take several steps a chunk")
    if len(task.samples) > 1:
        return Objection("it has several coordinates")
    return None if isinstance(task.grid, TaskRef) else objection_to_grid(task.grid)


def _objection_to_lift(task: LiftTask) -> Objection | None:
    if task.where is not None:
        return Objection("it takes a mask")
    if len(task.axes) < len(index_of(task.block)):
        return Objection("it leaves axes that are not reduced")
    return objection_to_operation(task.op)


def _scans(graph: Graph, kinds: Kinds, others: dict[str, Objection]) -> Iterator[MultichunkLaunch]:
    """Yield a launch for each scan of a one-dimensional array, whose tasks share a name."""
    arrays: dict[str, list[Any]] = {}
    for key, kind in kinds.items():
        if kind is DownsweepTask:
            arrays.setdefault(name_of(key), []).append(key)
    for name, keys in arrays.items():
        (task,) = _read_all([graph[keys[0]]], DownsweepTask)
        sign = -1 if task.spec.reverse else 1
        keys.sort(key=lambda key: sign * key[1])
        first, last = _read_all([graph[keys[0]], graph[keys[-1]]], DownsweepTask)
        if last.bases is None:
            # A single chunk: no state goes from one to another.
            continue
        if reason := _objection_to_scan(keys[0], first, last):
            others[name] = reason
            continue
        plain: Graph = {key: graph[key] for key in keys}
        scans = _read_all([*plain.values()], DownsweepTask)
        for scan in scans:
            if scan.bases is not None:
                _add_bases(graph, scan.bases, plain)
        if not all(isinstance(node, Task) for node in plain.values()):
            others[name] = _COMPUTED
            continue
        outputs = {scan.block: key for scan, key in zip(scans, keys, strict=True)}
        lifted = {lift.block for node in plain.values() if (lift := read(node, UpsweepTask))}
        blocks = sorted(lifted | outputs.keys(), key=lambda key: sign * key[1])
        if len({name_of(block) for block in blocks}) > 1:
            others[name] = _TWO_PASSES
            continue
        yield MultichunkLaunch(
            (f"launch-{name}", 0),
            task.op,
            tuple(blocks),
            tuple(outputs[block] for block in blocks if block in outputs),
            plain,
            spec=task.spec,
            wanted=tuple(block in outputs for block in blocks),
            declared=_declared(task, "block"),
        )


def _add_bases(graph: Graph, key: Any, plain: Graph) -> None:
    """Add the task `key`, which makes base sums, and all below it down to the lifts."""
    if key not in plain:
        task = plain[key] = graph[key]
        if isinstance(task, Task) and kind_of(task) is not UpsweepTask:
            for needed in task.dependencies:
                _add_bases(graph, needed, plain)


def _objection_to_scan(key: Any, first: DownsweepTask, last: DownsweepTask) -> Objection | None:
    """Return why no launch can make the chunks from `first`, with key `key`, to `last`."""
    if len(index_of(key)) > 1:
        return Objection("it has several axes")
    if last.heads is not None:
        return Objection("it has segments")
    return objection_to_scan(first.op, first.spec) or objection_to_scan(last.op, last.spec)
