"""Stages: the reductions, scans and histograms found again in a graph that is about to run.

What a plain graph does in 2k tasks and a tree can be one task, where one call works on all chunks::

    x0 --lift--> s0 -+                          x0 -+
    x1 --lift--> s1 -+-combine--> s -> result   x1 -+-stage--> s -> result
    x2 --lift--> s2 -+                          x2 -+

    x0 --lift--> s0 -+                          x0 -+       +--> y0
    x1 --lift--> s1 -+-prefixes--> bases        x1 -+-stage-+--> y1
    x2 --------------scan from a base--> y2     x2 -+       +--> y2

The graph is not built differently for that: the tasks of `dask_coop.graph.reduce` and
`dask_coop.graph.scan` carry their frozen `Operation`, and these, the shape of the graph and the
order of its states tell all that a stage needs. So the same array computes under every scheduler,
and what a stage replaces is kept beside it, for chunks that turn out not to suit. Dask's optimiser
may have fused such tasks with their neighbours; those of a stage are taken apart again.

A stage takes all chunks at a time. So a reduction of chunks that are made on the way, and let go of
one after the other, is none: there may be more of them than memory. A scan holds them in any case.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from dask.task_spec import Alias, DataNode, List, Task, TaskRef

from dask_coop.algebra.bins import Grid
from dask_coop.algebra.central_moments import Powers
from dask_coop.algebra.monoids import COUNTS, Operation, Origin
from dask_coop.algebra.scan_spec import Sweep
from dask_coop.graph import reduce as graph_reduce
from dask_coop.graph import scan as graph_scan

Graph = dict[Any, Any]


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
        Where the chunks are in the array, for operations that tell places.
    sweep : Sweep, optional
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
    sweep: Sweep | None = None
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
    if not any(map(_is_ours, graph.values())):
        return Found(graph, [], {})
    whole, homes = _taken_apart(graph)
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
    mine, _ = _taken_apart(graph, {homes[key] for key in used if key in homes})
    return Found(mine | roots, stages, others)


def _are_held(stage: Stage, graph: Graph, there: Set[Any]) -> bool:
    """Return whether the chunks of a reduction are all in memory at a time, with or without it.

    Those are that are computed, or that something needs besides states of their own.
    """
    lazy = {key for key in stage.blocks if key not in there and not _is_data(graph, key)}
    if lazy:
        lifts = (graph_reduce._lift, graph_reduce._histogram)
        for task in graph.values():
            if not (isinstance(task, Task) and task.func in lifts):
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
    graph[stage.key] = Task(stage.key, call, List(*map(TaskRef, stage.needs)))
    for i, key in enumerate(stage.outputs):
        graph[key] = Task(key, operator.getitem, TaskRef(stage.key), i)


def _taken_apart(
    graph: Mapping[Any, Any], only: Set[Any] | None = None
) -> tuple[Graph, dict[Any, Any]]:
    """Return a graph with the tasks inside of fused ones, where these hold tasks of ours.

    Also where each of these tasks was, by their keys; with `only`, that is all that is taken apart.
    """
    whole: Graph = {}
    parts: Graph = {}
    homes: dict[Any, Any] = {}
    for key, task in graph.items():
        if not _is_fused(task) or not (_is_ours(task) if only is None else key in only):
            whole[key] = task
            continue
        inner, last = task.args[:2]
        found, _ = _taken_apart(inner)
        parts |= found
        homes |= dict.fromkeys(found, key)
        if key != last:
            whole[key] = Alias(key, last)
    # A fused task has an alias by the key of its last part; what is data stays data.
    for key, part in parts.items():
        if isinstance(whole.get(key), Alias | None):
            whole[key] = part
    return whole, homes


def _is_fused(task: Any) -> bool:
    return isinstance(task, Task) and bool(task.has_subgraph())


def _is_ours(task: Any) -> bool:
    if _is_fused(task):
        return any(map(_is_ours, task.args[0].values()))
    return isinstance(task, Task) and task.func in _OURS


_ROOTS = (graph_reduce._aggregate, graph_reduce._value, graph_reduce._tabulate)
_OURS: tuple[Callable[..., Any], ...] = (
    *_ROOTS,
    *(graph_reduce._lift, graph_reduce._histogram, graph_reduce._combine),
    *(graph_scan._lift, graph_scan._scan, graph_scan._prefixes),
)


_COMPUTED = "its states are computed already"


def _keys(refs: Any) -> tuple[Any, ...]:
    """Return the keys in a list of references."""
    return tuple(ref.key for ref in refs.args)


def _leaves(graph: Graph, keys: Iterable[Any], tree: Graph) -> Iterator[Any]:
    """Yield the keys of the lifts below `keys`, in order; add the tasks that combine to `tree`."""
    for key in keys:
        task = graph.get(key)
        if isinstance(task, Task) and task.func is graph_reduce._combine:
            tree[key] = task
            yield from _leaves(graph, _keys(task.args[1]), tree)
        else:
            yield key


def _trees(graph: Graph, others: dict[str, str]) -> Iterator[tuple[Stage, Graph]]:
    """Find reductions and histograms: what the same states end in is one stage.

    Along with each come the tasks that make results of its state, to take the place of theirs.
    """
    roots: dict[tuple[Any, ...], list[Any]] = {}
    for key, task in graph.items():
        if isinstance(task, Task) and task.func in _ROOTS:
            roots.setdefault(_keys(task.args[-1]), []).append(key)
    for states, keys in roots.items():
        tree: Graph = {}
        lifts: list[Any] = [graph.get(key) for key in _leaves(graph, states, tree)]
        if len(lifts) < 2:
            continue
        name = _name(keys[0])
        if reason := _objection_to_tree(lifts):
            others[name] = reason
            continue
        first = lifts[0]
        op = first.args[0]
        state, stage = (f"state-{name}", *_index(keys[0])), (f"stage-{name}", *_index(keys[0]))
        tree |= {lift.key: lift for lift in lifts}
        tree[state] = Task(state, graph_reduce._combine, op, List(*map(TaskRef, states)))
        ends = {
            key: Task(key, graph[key].func, *graph[key].args[:-1], List(TaskRef(state)))
            for key in keys
        }
        if first.func is graph_reduce._histogram:
            blocks = tuple(lift.args[3].key for lift in lifts)
            yield Stage(stage, op, blocks, (state,), tree, grid=first.args[1]), ends
            continue
        blocks = tuple(lift.args[2].key for lift in lifts)
        origins = tuple(lift.kwargs.get("origin") for lift in lifts)
        places = origins if op.monoid.positional else None
        yield Stage(stage, op, blocks, (state,), tree, places), ends


def _objection_to_tree(lifts: list[Any]) -> str:
    if not all(isinstance(lift, Task) for lift in lifts):
        return _COMPUTED
    first = lifts[0]
    op = first.args[0]
    if first.func is graph_reduce._histogram:
        _, grid, weighted, *blocks = first.args
        if op.monoid is not COUNTS:
            return "reproducible sums of weights take several steps a chunk"
        if weighted:
            return "weights take several steps a chunk"
        if len(blocks) > 1:
            return "it has several coordinates"
        if not isinstance(grid, TaskRef) and (reason := objection_to_grid(grid)):
            return reason
        return ""
    if first.func is not graph_reduce._lift:
        return "it is not a reduction"
    if len(first.args) > 3:
        return "it takes a mask"
    if len(first.args[1]) < len(_index(first.args[2].key)):
        return "it leaves axes that are not reduced"
    return _objection_to_monoid(op)


def objection_to_grid(grid: Any) -> str:
    """Say why no stage counts into `grid`; "" if one does."""
    if not isinstance(grid, Grid):
        return "the largest integer is not known before"
    if len(grid.bins) > 1 or grid.axes is not None or grid.flow:
        return "it has more than one table of bins"
    return ""


def _objection_to_monoid(op: Operation) -> str:
    if isinstance(op.monoid, Powers):
        return "moments of a high order take several steps a chunk"
    if not op.monoid.commutative:
        return f"{op.monoid.name} does not commute"
    return ""


def _scans(graph: Graph, others: dict[str, str]) -> Iterator[Stage]:
    """Find scans: the tasks of one name are one array, and one stage if it has one axis."""
    arrays: dict[str, list[Any]] = {}
    for key, task in graph.items():
        if isinstance(task, Task) and task.func is graph_scan._scan:
            arrays.setdefault(_name(key), []).append(key)
    for name, keys in arrays.items():
        first = graph[keys[0]]
        op, sweep = first.args[:2]
        sign = -1 if sweep.reverse else 1
        keys.sort(key=lambda key: sign * key[1])
        last = graph[keys[-1]]
        if len(last.args) == 4:
            # A first chunk only: nothing crosses from one to another.
            continue
        if reason := _objection_to_scan(graph, keys):
            others[name] = reason
            continue
        plain: Graph = {key: graph[key] for key in keys}
        for key in keys:
            if len(graph[key].args) > 4:
                _add_bases(graph, graph[key].args[4].key, plain)
        if not all(isinstance(task, Task) for task in plain.values()):
            others[name] = _COMPUTED
            continue
        outputs = {graph[key].args[2].key: key for key in keys}
        lifted = {task.args[2].key for task in plain.values() if task.func is graph_scan._lift}
        blocks = sorted(lifted | outputs.keys(), key=lambda key: sign * key[1])
        if len({_name(block) for block in blocks}) > 1:
            others[name] = "its two passes read chunks of their own"
            continue
        yield Stage(
            (f"stage-{name}", 0),
            op,
            tuple(blocks),
            tuple(outputs[block] for block in blocks if block in outputs),
            plain,
            sweep=sweep,
            wanted=tuple(block in outputs for block in blocks),
        )


def _add_bases(graph: Graph, key: Any, plain: Graph) -> None:
    """Add the task `key`, which makes base sums, and all from the lifts on that it needs."""
    if key not in plain:
        task = plain[key] = graph[key]
        if isinstance(task, Task) and task.func is not graph_scan._lift:
            for needed in task.dependencies:
                _add_bases(graph, needed, plain)


def _objection_to_scan(graph: Graph, keys: list[Any]) -> str:
    op, sweep, _, marks, *_ = graph[keys[-1]].args
    if len(_index(keys[0])) > 1:
        return "it has several axes"
    if marks is not None:
        return "it restarts at marks"
    if sweep.initial or graph[keys[0]].args[1].initial:
        return "its first chunk is longer by one"
    if op.monoid.lift is not None:
        return f"{op.monoid.name} is not of the library"
    return _objection_to_monoid(op)


def _name(key: Any) -> str:
    return str(key[0] if isinstance(key, tuple) else key)


def _index(key: Any) -> tuple[int, ...]:
    return tuple(key[1:]) if isinstance(key, tuple) else ()
