"""Graphs that copy chunks from the host to GPUs: they go through in a stream.

A copy to a GPU must not wait for what only the next step needs. So it is cut out of the task that
Dask has fused it into, if that waits for other tasks too::

    base --> [read, copy, scan from base] --> y         [read, copy] --> x -+-> scan --> y
                                                                    base --'

A multi-chunk launch of a scan takes all chunks at a time. If its chunks are copied on the way, and
what it makes goes on to other tasks, a chain takes its place, which needs a chunk at a time and
reads each once (`dask_coop.graph.scan.chain`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from dask.task_spec import Task, TaskRef

from dask_coop.graph import tasks
from dask_coop.graph.tasks import DownsweepTask, Graph, StepTask, index_of, is_fused, name_of, read
from dask_coop.node.placement import copies_to_gpu


def cut_copies(graph: Graph) -> Graph:
    """Return a graph whose copies to GPUs wait for nothing but what they copy."""
    changed: Graph = {}
    for task in graph.values():
        if is_fused(task) and copies_to_gpu(task):
            changed |= _cut(task, graph)
    return graph | changed if changed else graph


def _cut(task: Task, graph: Graph) -> Graph:
    inner, last = task.args[:2]
    for copy in inner:
        if copy == last or copy in graph or not copies_to_gpu(inner[copy]):
            continue
        above = _above(copy, inner)
        rest = {key: one for key, one in inner.items() if key not in above}
        waits = {needed for key in above for needed in inner[key].dependencies} - above
        shared = {needed for one in rest.values() for needed in one.dependencies} & above
        if shared == {copy} and waits != task.dependencies:
            first = Task.fuse(*(inner[key] for key in above), key=copy)
            return {copy: first, task.key: Task.fuse(*rest.values(), key=task.key)}
    return {}


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


def is_stream(
    blocks: Sequence[Any], outputs: Sequence[Any], plain: Graph, graph: Graph, wanted: Set[Any]
) -> bool:
    """Return whether the chunks of a scan come from the host, and none has to stay.

    Parameters
    ----------
    blocks, outputs : sequences of keys
        The chunks, and those that the scan makes.
    plain : dict
        The tasks of the scan.
    graph : dict
    wanted : set of keys
        What is computed.
    """
    if len(blocks) > len(outputs) or not wanted.isdisjoint([*blocks, *outputs]):
        return False
    # The last one may have nothing in common with the first but its name.
    if not from_host(blocks[:1], graph) or not from_host(blocks[-1:], graph):
        return False
    scanned = set(blocks)
    others = (task for key, task in graph.items() if key not in plain)
    return all(scanned.isdisjoint(task.dependencies) for task in others)


def chain(name: str, blocks: Sequence[Any], outputs: Sequence[Any], plain: Graph) -> Graph:
    """Return the tasks that scan chunk after chunk, in the place of the `plain` ones."""
    made: Graph = {}
    rest: dict[str, TaskRef] = {}
    for block, output in zip(blocks, outputs, strict=True):
        scan = read(plain[output], DownsweepTask)
        assert scan is not None
        given = {"op": scan.op, "spec": scan.spec, "block": TaskRef(block), **rest}
        if output == outputs[-1]:
            made[output] = Task(output, tasks.scan_from, **given)
            break
        turn, step, state = (
            (f"{name}-{part}", *index_of(output)) for part in ("turn", "step", "state")
        )
        made[turn] = Task(turn, tasks.take_turn)
        made[step] = Task(step, tasks.step, turn=TaskRef(turn), **given)
        made[output] = Task(output, tasks.results_of, step=TaskRef(step))
        made[state] = Task(state, tasks.state_of, step=TaskRef(step))
        rest = {"base": TaskRef(state)}
    return made


def dealt_in_turn(graph: Graph) -> set[str]:
    """Return the names of arrays of which a chain takes chunk after chunk.

    Were neighbours on one GPU, the others would have nothing to do until their turn.
    """
    steps = (step for task in graph.values() if (step := read(task, StepTask)))
    return from_host((step.block for step in steps), graph)
