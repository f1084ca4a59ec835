"""Graphs that copy chunks from the host to GPUs: they go through in a stream.

A copy must not wait for what only the next step needs. So it is cut out of the task that Dask has
fused it into, if that waits for other tasks too::

    base --> [read, copy, scan from base] --> y         [read, copy] --> x -+-> scan --> y
                                                                    base --'

A scan in two passes holds all chunks between them. If these are copied on the way, and what it
makes goes on to other tasks, a chain takes its place, which needs a chunk at a time and reads each
once (`dask_coop.graph.scan.chain`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from dask.array.core import load_store_chunk
from dask.array.dispatch import to_numpy_dispatch
from dask.order import order
from dask.task_spec import DataNode, Task, TaskRef

from dask_coop.graph import tasks
from dask_coop.graph.tasks import (
    CountTask,
    DownsweepTask,
    Graph,
    LiftTask,
    OurTask,
    ScanFromTask,
    StepTask,
    UpsweepTask,
    does_any,
    index_of,
    is_fused,
    name_of,
    read,
)
from dask_coop.graph.transfer import copy_to_host, store_chunk
from dask_coop.node.placement import copies_to_gpu, copies_to_host

#: What makes an array of the host of one on a GPU.
_TO_HOST = (copy_to_host, to_numpy_dispatch)


def stream(graph: Graph) -> Graph:
    """Return a graph whose copies wait for nothing else, and go to where they are stored."""
    stored = {
        key: changed
        for key, task in graph.items()
        if is_fused(task) and (changed := _stored(task)) is not task
    }
    return cut_copies(graph | stored if stored else graph)


def _stored(task: Task) -> Task:
    """Return a fused task that stores chunks as they come from a GPU, with no array in between."""
    inner, *rest = task.args
    made: Graph = {}
    left_out: set[Any] = set()
    for key, one in inner.items():
        if is_fused(one):
            made[key] = _stored(one)
        elif isinstance(one, Task) and one.func is load_store_chunk and one.args:
            source = getattr(one.args[0], "key", None)
            copy = inner.get(source)
            users = [user for user in inner.values() if source in user.dependencies]
            if copies_to_host(copy) and copy.func in _TO_HOST and len(users) == 1:
                x, *given = copy.args
                left_out.add(source)
                options = one.kwargs | {"nbytes": given[0] if given else None}
                made[key] = Task(key, store_chunk, x, *one.args[1:], **options)
    if all(made[key] is inner[key] for key in made):
        return task
    kept = {key: made.get(key, one) for key, one in inner.items() if key not in left_out}
    return Task(task.key, task.func, kept, *rest)


def cut_copies(graph: Graph) -> Graph:
    """Return a graph whose copies to GPUs and to the host wait for nothing but what they copy."""
    changed: Graph = {}
    for task in graph.values():
        if is_fused(task) and _copies(task):
            changed |= _cut(task)
    return graph | changed if changed else graph


def _copies(task: Any) -> bool:
    return copies_to_gpu(task) or copies_to_host(task)


def _cut(task: Task) -> Graph:
    """Return the two tasks that a fused one is cut into; none if all of it waits for the same."""
    inner, last, names, *given = task.args
    # Names of what it is given are keys of the graph only where Dask fused tasks of the graph.
    outside = dict(zip(names, given, strict=True))
    for copy in (key for key in inner if key != last and _copies(inner[key])):
        above = _above(copy, inner)
        rest = inner.keys() - above
        needs, needed = _needs(above, inner), _needs(rest, inner)
        if needed & above != {copy} or not (needed - needs) & outside.keys():
            continue
        key = (f"{name_of(task.key)}-copy", *index_of(task.key))
        return {
            key: _fused(task, key, inner, above, copy, outside),
            task.key: _fused(task, task.key, inner, rest, last, outside | {copy: TaskRef(key)}),
        }
    return {}


def _fused(
    task: Task, key: Any, inner: Graph, keys: Set[Any], last: Any, outside: Mapping[Any, Any]
) -> Task:
    needs = tuple(_needs(keys, inner) & outside.keys())
    within = {one: inner[one] for one in inner if one in keys}
    return Task(key, task.func, within, last, needs, *(outside[name] for name in needs))


def _needs(keys: Iterable[Any], graph: Graph) -> set[Any]:
    return {needed for key in keys for needed in graph[key].dependencies}


def _above(key: Any, graph: Mapping[Any, Any]) -> set[Any]:
    """Return `key` and all that it needs of a graph."""
    found, todo = set(), [key]
    while todo:
        if (key := todo.pop()) in graph and key not in found:
            found.add(key)
            todo += graph[key].dependencies
    return found


def from_host(keys: Iterable[Any], graph: Graph) -> set[str]:
    """Return the names of arrays that `keys` are made of, up to copies to GPUs; none if no copy."""
    names: set[str] = set()
    seen: set[Any] = set()
    todo, copied = list(keys), False
    while todo:
        if (key := todo.pop()) not in graph or key in seen:
            continue
        seen.add(key)
        names.add(name_of(key))
        if copies_to_gpu(graph[key]):
            copied = True
        else:
            todo += graph[key].dependencies
    return names if copied else set()


def chains(graph: Graph, kinds: Mapping[Any, Any], wanted: Set[Any]) -> Graph:
    """Return tasks that scan chunk after chunk, for those that scan what comes from the host.

    They take the place of those of the same keys. Scans stay as they are of which chunks are used
    by anything but tasks that make states of them, or of which `wanted` has results.

    Parameters
    ----------
    graph : dict
    kinds : dict
        What the tasks of the library do in it.
    wanted : set of keys
        What is computed.
    """
    made: Graph = {}
    if all(key in kinds or type(task) is DataNode for key, task in graph.items()):
        # No task is left that copies.
        return made
    for line in _lines(graph, kinds):
        blocks = {scan.block for scan in line.values()}
        # The last one may have nothing in common with the first but its name.
        ends = [next(iter(line.values())).block], [next(reversed(line.values())).block]
        if wanted.isdisjoint([*line, *blocks]) and all(from_host(end, graph) for end in ends):
            made |= _chain(line)
    if not made:
        return made
    scanned = {scan.block: key for key in made if (scan := read(graph.get(key), DownsweepTask))}
    for key, task in graph.items():
        if key not in made and kinds.get(key) not in LETS_GO:
            for block in task.dependencies & scanned.keys():
                name = name_of(scanned[block])
                made = {key: one for key, one in made.items() if not _is_of(key, name)}
    return made


#: What needs a chunk for no longer than it takes to read it once.
LETS_GO: Set[type[OurTask] | None] = {LiftTask, CountTask, UpsweepTask, StepTask, ScanFromTask}


def _lines(graph: Graph, kinds: Mapping[Any, Any]) -> Iterator[dict[Any, DownsweepTask]]:
    """Yield the scans of lines of chunks, in their order, if there are some of all chunks."""
    lines: dict[Any, dict[Any, DownsweepTask]] = {}
    for key in (key for key, kind in kinds.items() if kind is DownsweepTask):
        scan = read(graph[key], DownsweepTask)
        assert scan is not None
        index, axis = index_of(key), scan.spec.axis
        others = name_of(key), *index[:axis], *index[axis + 1 :]
        lines.setdefault(others, {})[key] = scan
    for line in lines.values():
        (one, *_) = line.values()
        axis, step = one.spec.axis + 1, -1 if one.spec.reverse else 1
        keys = sorted(line, key=lambda key: step * key[axis])
        steps = {b[axis] - a[axis] for a, b in itertools.pairwise(keys)}
        # The first has no base; without it, or one in between, some results are not wanted.
        if line[keys[0]].bases is None and steps == {step}:
            yield {key: line[key] for key in keys}


def _chain(line: Mapping[Any, DownsweepTask]) -> Graph:
    scans = [*line.values()]

    def make(j: int, key: Any, function: Any, **rest: Any) -> Task:
        scan = scans[j]
        if scan.heads is not None:
            rest["heads"] = TaskRef(scan.heads)
        rest |= {"block": TaskRef(scan.block), "declared": scan.declared}
        return Task(key, function, op=scan.op, spec=scan.spec, **rest)

    steps, made = tasks.chain([*line], _part, make)
    return steps | made


def _part(of: str, key: Any) -> Any:
    return (f"{name_of(key)}-{of}", *index_of(key))


def _is_of(key: Any, name: str) -> bool:
    return name_of(key) in (name, *(f"{name}-{part}" for part in ("turn", "step", "state")))


def dealt_in_turn(graph: Graph) -> set[str]:
    """Return the names of arrays of which a chain takes chunk after chunk.

    Were neighbours on one GPU, the others would have nothing to do until their turn.
    """
    blocks: set[Any] = set()
    for task in graph.values():
        if step := read(task, StepTask):
            blocks.add(step.block)
        elif is_fused(task) and does_any(task, {StepTask}):
            blocks |= task.dependencies
    return from_host(blocks, graph)


def turns(graph: Graph) -> dict[Any, int]:
    """Return Dask's order of the keys of a graph that copies to GPUs; nothing of others.

    What is read has to come in this order, for what needs it takes no other.
    """
    return order(graph) if any(map(copies_to_gpu, graph.values())) else {}
