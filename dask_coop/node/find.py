"""Multi-chunk launches, found in a graph that is about to run, among the tasks that they replace.

What a plain graph does in 2k tasks and a tree can be one task, where one call works on all chunks::

    x0 --lift--> s0 -+                          x0 -+
    x1 --lift--> s1 -+-combine--> s -> result   x1 -+-launch--> s -> result
    x2 --lift--> s2 -+                          x2 -+

    x0 --lift--> s0 -+                          x0 -+        +--> y0
    x1 --lift--> s1 -+-prefixes--> bases        x1 -+-launch-+--> y1
    x2 --------------scan from a base--> y2     x2 -+        +--> y2

The graph is not built differently for that: what its tasks do (`dask_coop.graph.tasks`), its shape
and the order of its states tell all that a launch needs. So the same array computes under every
scheduler, and what a launch replaces is kept beside it, for chunks that turn out not to suit.
Dask's optimiser may have fused such tasks with their neighbours; those are taken apart again.

A launch takes all chunks at a time. So a reduction of chunks that are made on the way, and let go
of one after the other, gets none: there may be more of them than memory. A scan holds them in any
case, unless it can be a chain of chunks that come from the host (`dask_coop.node.streams`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
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

#: What a launch replaces, and what its results are made by.
_REPLACED: Set[type[OurTask] | None] = frozenset(
    {
        *(LiftTask, CountTask, CombineTask, EvaluateTask, AggregateTask, TabulateTask),
        CollectTask,
        *(UpsweepTask, PrefixesTask, DownsweepTask),
    }
)

#: What the tasks of a graph do, of those that are the library's.
Kinds = dict[Any, type[OurTask]]

_COMPUTED = Objection("its states are computed already")
_MADE_ON_THE_WAY = Objection("its chunks are made on the way, one after the other: persist them")
_FROM_HOST = Objection("its chunks come from the host, one after the other")
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
        None of a launch that collects samples.
    blocks : tuple of keys
        The chunks, in the order in which their states combine.
    outputs : tuple of keys
        What it makes: of a reduction one state, of a scan the chunks that are wanted, and a chunk
        for each of what is collected.
    plain : dict
        The tasks that it replaces, which make the same of the chunks.
    origins : tuple of Origin, optional
        Where the chunks are in the array, for operations that tell an argument index.
    spec : ScanSpec, optional
        Of a scan: how it runs.
    wanted : tuple of bool
        Of a scan: whether a chunk's results are among the outputs.
    grid : Grid, Digits or TaskRef, optional
        Of a histogram: what it counts into, and what is collected; or the task that makes it.
    declared : dtype, optional
        What the array of the chunks declares.
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
        """The name of the array that it makes, or of its states."""
        return str(self.key[0]).removeprefix("launch-")

    @property
    def needs(self) -> tuple[Any, ...]:
        """The keys of its inputs: those of the chunks, and of a grid that is made by a task."""
        return (*self.blocks, self.grid.key) if isinstance(self.grid, TaskRef) else self.blocks


class Found(NamedTuple):
    """The multi-chunk launches of a graph.

    Attributes
    ----------
    graph : dict
        The graph, without tasks that are fused with those that a launch replaces.
    plain : dict
        The graph where there are to be no launches.
    launches : list of MultichunkLaunch
    others : dict of str to Objection
        Why reductions, scans and histograms have to stay as they are, by the name of their result.
    """

    graph: Graph
    plain: Graph
    launches: list[MultichunkLaunch]
    others: dict[str, Objection]


def find_launches(graph: Graph, wanted: Set[Any]) -> Found:
    """Find the multi-chunk launches of a graph of tasks that makes what is `wanted`.

    Without any, the graph that is returned is `graph` itself.
    """
    whole, homes = taken_apart(graph, _REPLACED)
    kinds = {key: kind for key, task in whole.items() if (kind := kind_of(task))}
    if _REPLACED.isdisjoint(kinds.values()):
        return Found(graph, graph, [], {})
    others: dict[str, Objection] = {}
    chains = streams.chains(whole, kinds, wanted)
    if chains:
        others |= {name_of(key): _FROM_HOST for key in chains.keys() & kinds.keys()}
        whole = whole | chains
        kinds = {key: kind for key, task in whole.items() if (kind := kind_of(task))}
    scans = list(_scans(whole, kinds, others))
    made = {key for launch in scans for key in launch.outputs}
    trees: list[MultichunkLaunch] = []
    roots: Graph = {}
    for launch, ends in _trees(whole, kinds, others):
        if _are_held(launch, whole, kinds, wanted | made):
            trees.append(launch)
            roots |= ends
        else:
            on_host = streams.from_host(launch.blocks[:1], whole)
            others[launch.name] = _FROM_HOST if on_host else _MADE_ON_THE_WAY
    launches = [*_collections(whole, kinds, wanted | made), *trees, *scans]
    if chains:
        return Found(whole | roots, whole, launches, others)
    if not launches:
        return Found(graph, graph, [], others)
    if homes:
        used = roots.keys() | {
            key for one in launches for key in (*one.plain, *one.outputs, *one.needs)
        }
        opened = {homes[key] for key in used if key in homes}
        if len(opened) < len(set(homes.values())):
            whole, _ = taken_apart(graph, _REPLACED, opened)
    return Found(whole | roots, graph, launches, others)


def _are_held(launch: MultichunkLaunch, graph: Graph, kinds: Kinds, there: Set[Any]) -> bool:
    """Return whether the chunks of a reduction are all in memory at a time, with or without it.

    Those are that are computed, or that something needs besides states of their own. What was
    collected of chunks is read several times.
    """
    lazy = {key for key in launch.blocks if key not in there and not _is_data(graph, key)}
    lazy = {key for key in lazy if kinds.get(key) is not CollectTask}
    if lazy:
        for key, task in graph.items():
            if kinds.get(key) not in streams.LETS_GO:
                lazy -= task.dependencies
    return not lazy


def _collections(graph: Graph, kinds: Kinds, there: Set[Any]) -> Iterator[MultichunkLaunch]:
    """Find what collects samples of chunks that are in memory, or are made by launches: `there`."""
    arrays: dict[str, Graph] = {}
    for key, kind in kinds.items():
        if kind is CollectTask:
            arrays.setdefault(name_of(key), {})[key] = graph[key]
    there = {*there, *(key for plain in arrays.values() for key in plain)}
    for name, plain in arrays.items():
        found = _read_all([*plain.values()], CollectTask)
        blocks = tuple(one.samples[0] for one in found)
        if len(blocks) > 1 and all(key in there or _is_data(graph, key) for key in blocks):
            launch = f"launch-{name}", 0
            given = {"grid": found[0].grid, "declared": _declared(found[0], 0)}
            yield MultichunkLaunch(launch, None, blocks, (*plain,), plain, **given)


def _is_data(graph: Graph, key: Any) -> bool:
    while isinstance(node := graph.get(key), Alias):
        key = node.target
    return isinstance(node, DataNode)


def put_in(
    graph: Graph,
    launch: MultichunkLaunch,
    call: Callable[..., Any],
    values: list[Any] | None = None,
) -> None:
    """Put one task, which calls `call` with a list of inputs, in the place of those of a launch.

    Inputs that are there are its `values`. What only the tasks replaced need stays in `graph`, for
    Dask to cull.
    """
    inputs = refs(launch.needs) if values is None else values
    graph[launch.key] = Task(launch.key, call, inputs)
    for i, key in enumerate(launch.outputs):
        graph[key] = Task(key, operator.getitem, TaskRef(launch.key), i)


def _leaves(graph: Graph, keys: Iterable[Any], tree: Graph) -> Iterator[Any]:
    """Yield the keys of the lifts below `keys`, in order; add the tasks that combine to `tree`."""
    for key in keys:
        if combining := read(graph.get(key), CombineTask):
            tree[key] = graph[key]
            yield from _leaves(graph, combining.states, tree)
        else:
            yield key


def _trees(
    graph: Graph, kinds: Kinds, others: dict[str, Objection]
) -> Iterator[tuple[MultichunkLaunch, Graph]]:
    """Find reductions and histograms: what the same states end in is one launch.

    Along with each come the tasks that make results of its state, to take the place of theirs.
    """
    roots: dict[tuple[Any, ...], list[Any]] = {}
    for key, kind in kinds.items():
        if issubclass(kind, RootTask) and (root := read(graph[key], RootTask)):
            roots.setdefault(root.states, []).append(key)
    for states, keys in roots.items():
        tree: Graph = {}
        leaves = list(_leaves(graph, states, tree))
        if len(leaves) < 2:
            continue
        name = name_of(keys[0])
        nodes: list[Any] = [graph.get(key) for key in leaves]
        if not all(isinstance(node, Task) for node in nodes):
            others[name] = _COMPUTED
            continue
        if counts := _read_all(nodes, CountTask):
            op, blocks = counts[0].op, tuple(one.samples[0] for one in counts)
            reason, grid, origins = _objection_to_count(counts[0]), counts[0].grid, None
            declared = _declared(counts[0], 0)
        elif lifts := _read_all(nodes, LiftTask):
            op, blocks = lifts[0].op, tuple(one.block for one in lifts)
            reason, grid, origins = _objection_to_lift(lifts[0]), None, None
            declared = _declared(lifts[0], "block")
            if op.monoid.positional:
                origins = tuple(one.origin for one in lifts if one.origin is not None)
        else:
            others[name] = _NO_REDUCTION
            continue
        if reason:
            others[name] = reason
            continue
        state, launch = ((f"{prefix}-{name}", *index_of(keys[0])) for prefix in ("state", "launch"))
        tree |= {node.key: node for node in nodes}
        tree[state] = Task(state, tasks.combine, op=op, states=refs(states))
        ends = {key: tasks.on_states(graph[key], [state]) for key in keys}
        given = {"grid": grid, "declared": declared}
        yield MultichunkLaunch(launch, op, blocks, (state,), tree, origins, **given), ends


def _read_all(nodes: Sequence[Any], kind: type[Kind]) -> list[Kind]:
    """Return what tasks do that are all of one kind; of others, nothing."""
    found = []
    for node in nodes:
        if (one := read(node, kind)) is None:
            return []
        found.append(one)
    return found


def _declared(task: OurTask, at: Any) -> Any:
    """Return the dtype that an argument of a task declares."""
    declared = (task.declared or {}).get(at)
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
    """Find scans: the tasks of one name are one array, and one launch if it has one axis."""
    arrays: dict[str, list[Any]] = {}
    for key, kind in kinds.items():
        if kind is DownsweepTask:
            arrays.setdefault(name_of(key), []).append(key)
    for name, keys in arrays.items():
        (one,) = _read_all([graph[keys[0]]], DownsweepTask)
        sign = -1 if one.spec.reverse else 1
        keys.sort(key=lambda key: sign * key[1])
        first, last = _read_all([graph[keys[0]], graph[keys[-1]]], DownsweepTask)
        if last.bases is None:
            # A first chunk only: nothing crosses from one to another.
            continue
        if reason := _objection_to_scan(keys[0], first, last):
            others[name] = reason
            continue
        plain: Graph = {key: graph[key] for key in keys}
        scans = _read_all([*plain.values()], DownsweepTask)
        for scan in scans:
            if scan.bases is not None:
                _add_bases(graph, scan.bases, plain)
        if not all(isinstance(task, Task) for task in plain.values()):
            others[name] = _COMPUTED
            continue
        outputs = {scan.block: key for scan, key in zip(scans, keys, strict=True)}
        lifted = {lift.block for task in plain.values() if (lift := read(task, UpsweepTask))}
        blocks = sorted(lifted | outputs.keys(), key=lambda key: sign * key[1])
        if len({name_of(block) for block in blocks}) > 1:
            others[name] = _TWO_PASSES
            continue
        yield MultichunkLaunch(
            (f"launch-{name}", 0),
            one.op,
            tuple(blocks),
            tuple(outputs[block] for block in blocks if block in outputs),
            plain,
            spec=one.spec,
            wanted=tuple(block in outputs for block in blocks),
            declared=_declared(one, "block"),
        )


def _add_bases(graph: Graph, key: Any, plain: Graph) -> None:
    """Add the task `key`, which makes base sums, and all from the lifts on that it needs."""
    if key not in plain:
        task = plain[key] = graph[key]
        if isinstance(task, Task) and kind_of(task) is not UpsweepTask:
            for needed in task.dependencies:
                _add_bases(graph, needed, plain)


def _objection_to_scan(key: Any, first: DownsweepTask, last: DownsweepTask) -> Objection | None:
    """Say why no launch makes the chunks from `first`, which makes `key`, to `last`."""
    if len(index_of(key)) > 1:
        return Objection("it has several axes")
    if last.heads is not None:
        return Objection("it has segments")
    return objection_to_scan(first.op, first.spec) or objection_to_scan(last.op, last.spec)
