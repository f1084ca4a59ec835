"""Stages: the reductions, scans and histograms found again in a graph that is about to run.

What a plain graph does in 2k tasks and a tree can be one task, where one call works on all chunks::

    x0 --lift--> s0 -+                          x0 -+
    x1 --lift--> s1 -+-combine--> s -> result   x1 -+-stage--> s -> result
    x2 --lift--> s2 -+                          x2 -+

    x0 --lift--> s0 -+                          x0 -+       +--> y0
    x1 --lift--> s1 -+-prefixes--> bases        x1 -+-stage-+--> y1
    x2 --------------scan from a base--> y2     x2 -+       +--> y2

The graph is not built differently for that: what its tasks do (`dask_coop.graph.tasks`), its shape
and the order of its states tell all that a stage needs. So the same array computes under every
scheduler, and what a stage replaces is kept beside it, for chunks that turn out not to suit. Dask's
optimiser may have fused such tasks with their neighbours; those of a stage are taken apart again.

A stage takes all chunks at a time. So a reduction of chunks that are made on the way, and let go of
one after the other, is none: there may be more of them than memory. A scan holds them in any case.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from dask.task_spec import Alias, DataNode, Task, TaskRef

from dask_coop.algebra.operation import Operation, Origin
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.cupy.eligibility import (
    Objection,
    objection_to_grid,
    objection_to_histogram,
    objection_to_operation,
    objection_to_scan,
)
from dask_coop.graph import tasks
from dask_coop.graph.tasks import (
    AggregateTask,
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

#: What a stage replaces, and what its results are made by.
_PARTS: Set[type[OurTask] | None] = frozenset(
    {
        *(LiftTask, CountTask, CombineTask, EvaluateTask, AggregateTask, TabulateTask),
        *(UpsweepTask, PrefixesTask, DownsweepTask),
    }
)


@dataclass(frozen=True)
class Stage:
    """One call that works on all chunks of an array.

    Attributes
    ----------
    key : tuple
        The key of its task.
    op : Operation
    blocks : tuple of keys
        The chunks, in the order in which their states combine.
    outputs : tuple of keys
        What it makes: of a reduction one state, and of a scan the chunks that are wanted.
    plain : dict
        The tasks that it replaces, which make the same of the chunks.
    origins : tuple of Origin, optional
        Where the chunks are in the array, for operations that tell indices.
    spec : ScanSpec, optional
        Of a scan: how it runs.
    wanted : tuple of bool
        Of a scan: whether a chunk's results are among the outputs.
    grid : Grid or key, optional
        Of a histogram: what it counts into, or the key of the task that makes it.
    """

    key: Any
    op: Operation
    blocks: tuple[Any, ...]
    outputs: tuple[Any, ...]
    plain: Graph
    origins: tuple[Origin, ...] | None = None
    spec: ScanSpec | None = None
    wanted: tuple[bool, ...] = ()
    grid: Any = None

    @property
    def name(self) -> str:
        """The name of the array that it makes, or of its states."""
        return str(self.key[0]).removeprefix("stage-")

    @property
    def needs(self) -> tuple[Any, ...]:
        """The keys of its inputs: those of the chunks, and of a grid that is made by a task."""
        return (*self.blocks, self.grid.key) if isinstance(self.grid, TaskRef) else self.blocks


class Found(NamedTuple):
    """The stages of a graph.

    Attributes
    ----------
    graph : dict
        The graph, without tasks that are fused with those of a stage.
    stages : list of Stage
    others : dict of str to str
        Why reductions, scans and histograms have to stay as they are, by the name of their result.
    """

    graph: Graph
    stages: list[Stage]
    others: dict[str, str]


def find_stages(graph: Graph, wanted: Set[Any]) -> Found:
    """Find the stages of a graph of tasks that makes what is `wanted`.

    Without any, the graph that is returned is `graph` itself.
    """
    if not any(tasks.does_any(task, _PARTS) for task in graph.values()):
        return Found(graph, [], {})
    whole, homes = taken_apart(graph, _PARTS)
    others: dict[str, str] = {}
    scans = list(_scans(whole, others))
    made = {key for stage in scans for key in stage.outputs}
    trees: list[Stage] = []
    roots: Graph = {}
    for stage, ends in _trees(whole, others):
        if _are_held(stage, whole, wanted | made):
            trees.append(stage)
            roots |= ends
        else:
            others[stage.name] = "its chunks are made on the way, one after the other: persist them"
    stages = [*trees, *scans]
    if not stages:
        return Found(graph, [], others)
    used = {key for stage in stages for key in (*stage.plain, *stage.outputs, *stage.needs)}
    used |= roots.keys()
    mine, _ = taken_apart(graph, _PARTS, {homes[key] for key in used if key in homes})
    return Found(mine | roots, stages, others)


def _are_held(stage: Stage, graph: Graph, there: Set[Any]) -> bool:
    """Return whether the chunks of a reduction are all in memory at a time, with or without it.

    Those are that are computed, or that something needs besides states of their own.
    """
    lazy = {key for key in stage.blocks if key not in there and not _is_data(graph, key)}
    if lazy:
        for task in graph.values():
            if kind_of(task) not in (LiftTask, CountTask):
                lazy -= task.dependencies
    return not lazy


def _is_data(graph: Graph, key: Any) -> bool:
    while isinstance(node := graph.get(key), Alias):
        key = node.target
    return isinstance(node, DataNode)


def put_in(graph: Graph, stage: Stage, call: Callable[..., Any]) -> None:
    """Replace the tasks of a stage in `graph` by one that calls `call` with its inputs, in a list.

    What the tasks replaced need and nobody else does stays behind, for Dask to cull.
    """
    graph[stage.key] = Task(stage.key, call, refs(stage.needs))
    for i, key in enumerate(stage.outputs):
        graph[key] = Task(key, operator.getitem, TaskRef(stage.key), i)


_COMPUTED = "its states are computed already"


def _leaves(graph: Graph, keys: Iterable[Any], tree: Graph) -> Iterator[Any]:
    """Yield the keys of the lifts below `keys`, in order; add the tasks that combine to `tree`."""
    for key in keys:
        if combining := read(graph.get(key), CombineTask):
            tree[key] = graph[key]
            yield from _leaves(graph, combining.states, tree)
        else:
            yield key


def _trees(graph: Graph, others: dict[str, str]) -> Iterator[tuple[Stage, Graph]]:
    """Find reductions and histograms: what the same states end in is one stage.

    Along with each come the tasks that make results of its state, to take the place of theirs.
    """
    roots: dict[tuple[Any, ...], list[Any]] = {}
    for key, task in graph.items():
        if root := read(task, RootTask):
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
        elif lifts := _read_all(nodes, LiftTask):
            op, blocks = lifts[0].op, tuple(one.block for one in lifts)
            reason, grid, origins = _objection_to_lift(lifts[0]), None, None
            if op.monoid.positional:
                origins = tuple(one.origin for one in lifts if one.origin is not None)
        else:
            others[name] = "it is not a reduction"
            continue
        if reason:
            others[name] = str(reason)
            continue
        state, stage = (f"state-{name}", *index_of(keys[0])), (f"stage-{name}", *index_of(keys[0]))
        tree |= {node.key: node for node in nodes}
        tree[state] = Task(state, tasks.combine, op=op, states=refs(states))
        ends = {key: tasks.on_states(graph[key], [state]) for key in keys}
        yield Stage(stage, op, blocks, (state,), tree, origins, grid=grid), ends


def _read_all(nodes: Sequence[Any], kind: type[Kind]) -> list[Kind]:
    """Return what tasks do that are all of one kind; of others, nothing."""
    found = [one for node in nodes if (one := read(node, kind))]
    return found if len(found) == len(nodes) else []


def _objection_to_count(task: CountTask) -> Objection | None:
    if reason := objection_to_histogram(task.op):
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


def _scans(graph: Graph, others: dict[str, str]) -> Iterator[Stage]:
    """Find scans: the tasks of one name are one array, and one stage if it has one axis."""
    arrays: dict[str, dict[Any, DownsweepTask]] = {}
    for key, task in graph.items():
        if scanning := read(task, DownsweepTask):
            arrays.setdefault(name_of(key), {})[key] = scanning
    for name, scans in arrays.items():
        one = next(iter(scans.values()))
        sign = -1 if one.spec.reverse else 1
        keys = sorted(scans, key=lambda key: sign * key[1])
        first, last = scans[keys[0]], scans[keys[-1]]
        if last.bases is None:
            # A first chunk only: nothing crosses from one to another.
            continue
        if reason := _objection_to_scan(keys[0], first, last):
            others[name] = str(reason)
            continue
        plain: Graph = {key: graph[key] for key in keys}
        for key in keys:
            if (bases := scans[key].bases) is not None:
                _add_bases(graph, bases, plain)
        if not all(isinstance(task, Task) for task in plain.values()):
            others[name] = _COMPUTED
            continue
        outputs = {scans[key].block: key for key in keys}
        lifted = {lift.block for task in plain.values() if (lift := read(task, UpsweepTask))}
        blocks = sorted(lifted | outputs.keys(), key=lambda key: sign * key[1])
        if len({name_of(block) for block in blocks}) > 1:
            others[name] = "its two passes read chunks of their own"
            continue
        yield Stage(
            (f"stage-{name}", 0),
            one.op,
            tuple(blocks),
            tuple(outputs[block] for block in blocks if block in outputs),
            plain,
            spec=one.spec,
            wanted=tuple(block in outputs for block in blocks),
        )


def _add_bases(graph: Graph, key: Any, plain: Graph) -> None:
    """Add the task `key`, which makes base sums, and all from the lifts on that it needs."""
    if key not in plain:
        task = plain[key] = graph[key]
        if isinstance(task, Task) and kind_of(task) is not UpsweepTask:
            for needed in task.dependencies:
                _add_bases(graph, needed, plain)


def _objection_to_scan(key: Any, first: DownsweepTask, last: DownsweepTask) -> Objection | None:
    """Say why no stage makes the chunks from `first`, which makes `key`, to `last`."""
    if len(index_of(key)) > 1:
        return Objection("it has several axes")
    if last.marks is not None:
        return Objection("it restarts at marks")
    return objection_to_scan(first.op, first.spec) or objection_to_scan(last.op, last.spec)
