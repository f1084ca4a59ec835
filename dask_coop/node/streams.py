"""Rewrite graphs that copy chunks from the host to GPUs so that they stream through.

A copy must not wait for inputs that only the next step needs. If Dask has fused it into a task that
waits for other tasks too, the copy is cut out::

    base --> [read, copy, scan from base] --> y         [read, copy] --> x -+-> scan --> y
                                                                    base --'

A scan in two passes holds all chunks between them. If the chunks are copied from the host, and
other tasks use the results, a chain replaces the scan: it needs one chunk at a time and reads each
once (`dask_coop.graph.scan.chain`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from dask.array.core import finalize, load_store_chunk
from dask.array.dispatch import to_numpy_dispatch
from dask.order import order
from dask.task_spec import Alias, DataNode, Task, TaskRef

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
from dask_coop.graph.transfer import Slot, Whole, copy_to_host, store_chunk
from dask_coop.node.placement import copies_to_gpu, copies_to_host

#: Functions that copy an array of a GPU to the host.
_TO_HOST = (copy_to_host, to_numpy_dispatch)


def stream(graph: Graph) -> Graph:
    """Return a graph whose copies are tasks of their own, and stores copy directly."""
    changed = {
        key: new
        for key, task in graph.items()
        if is_fused(task) and (new := _stored(task)) is not task
    }
    changed |= _into_wholes(graph)
    return cut_copies(graph | changed if changed else graph)


def _into_wholes(graph: Graph) -> Graph:
    """Return tasks that copy the blocks of results into one host array each, and that join them."""
    changed: Graph = {}
    for key, end in graph.items():
        if not isinstance(end, Task) or end.func is not finalize:
            continue
        whole = Whole()
        copies = {block: _copy_into(whole, _resolved(graph, block)) for block in end.dependencies}
        # Slices of the array, or several arrays, have blocks of other names.
        if copies and all(
            slot is not None and (slot.name, *slot.index) == block
            for block, (_, slot) in copies.items()
        ):
            changed |= {copy.key: copy for copy, _ in copies.values()}
            changed[key] = Task(key, whole.join, *end.args)
    return changed


def _resolved(graph: Graph, key: Any) -> Any:
    """Return the task of a key; Dask gives fused tasks other keys."""
    while isinstance(task := graph.get(key), Alias) and task.target != key:
        key = task.target
    return task


def _copy_into(whole: Whole, task: Any) -> tuple[Any, Slot | None]:
    """Return a task with its copy to the host, the last step, going to `whole`; and the slot."""
    slot: Any = None
    if is_fused(task):
        inner, last, names, *inputs = task.args
        copy, slot = _copy_into(whole, inner[last])
        if isinstance(slot, TaskRef):
            slot = dict(zip(names, inputs, strict=True)).get(slot.key)
        task = Task(task.key, task.func, {**inner, last: copy}, last, names, *inputs)
    elif isinstance(task, Task) and task.func is copy_to_host:
        slot = task.kwargs.get("slot")
        task = Task(task.key, whole, *task.args, **task.kwargs)
    return task, slot.value if isinstance(slot, DataNode) else slot


def _stored(task: Task) -> Task:
    """Return a fused task that stores chunks directly from a GPU, without an array in between."""
    inner, *arguments = task.args
    changed: Graph = {}
    left_out: set[Any] = set()
    for key, step in inner.items():
        if is_fused(step):
            changed[key] = _stored(step)
        elif isinstance(step, Task) and step.func is load_store_chunk and step.args:
            source = getattr(step.args[0], "key", None)
            copy = inner.get(source)
            users = [user for user in inner.values() if source in user.dependencies]
            if copies_to_host(copy) and copy.func in _TO_HOST and len(users) == 1:
                x, *nbytes = copy.args
                left_out.add(source)
                most = nbytes[0] if nbytes else copy.kwargs.get("nbytes")
                options = step.kwargs | {"nbytes": most}
                changed[key] = Task(key, store_chunk, x, *step.args[1:], **options)
    if all(changed[key] is inner[key] for key in changed):
        return task
    steps = {key: changed.get(key, step) for key, step in inner.items() if key not in left_out}
    return Task(task.key, task.func, steps, *arguments)


def cut_copies(graph: Graph) -> Graph:
    """Return a graph whose copies to GPUs and to the host wait only for the arrays they copy."""
    changed: Graph = {}
    for task in graph.values():
        if is_fused(task) and _copies(task):
            changed |= _split_at_copy(task)
    return graph | changed if changed else graph


def _copies(task: Any) -> bool:
    return copies_to_gpu(task) or copies_to_host(task)


def _split_at_copy(task: Task) -> Graph:
    """Return the two tasks of a fused one, up to a copy and behind it.

    Return an empty graph if no step behind a copy waits for further inputs.
    """
    inner, last, names, *inputs = task.args
    # In a task that Dask's Blockwise fused, these names are no keys of the graph.
    outside = dict(zip(names, inputs, strict=True))
    for copy in (key for key in inner if key != last and _copies(inner[key])):
        before = _with_inputs(copy, inner)
        behind = inner.keys() - before
        needs, needed = _needs(before, inner), _needs(behind, inner)
        if needed & before != {copy} or not (needed - needs) & outside.keys():
            continue
        key = (f"{name_of(task.key)}-copy", *index_of(task.key))
        return {
            key: _fused(task, key, inner, before, copy, outside),
            task.key: _fused(task, task.key, inner, behind, last, outside | {copy: TaskRef(key)}),
        }
    return {}


def _fused(
    task: Task, key: Any, inner: Graph, keys: Set[Any], last: Any, outside: Mapping[Any, Any]
) -> Task:
    needs = tuple(_needs(keys, inner) & outside.keys())
    steps = {name: step for name, step in inner.items() if name in keys}
    return Task(key, task.func, steps, last, needs, *(outside[name] for name in needs))


def _needs(keys: Iterable[Any], graph: Graph) -> set[Any]:
    return {needed for key in keys for needed in graph[key].dependencies}


def _with_inputs(key: Any, graph: Mapping[Any, Any]) -> set[Any]:
    """Return `key` and the keys of the graph that it needs, directly or not."""
    keys, todo = set(), [key]
    while todo:
        if (key := todo.pop()) in graph and key not in keys:
            keys.add(key)
            todo += graph[key].dependencies
    return keys


def from_host(keys: Iterable[Any], graph: Graph) -> set[str]:
    """Return the names of the arrays between `keys` and the copies to GPUs that they come from.

    Return an empty set if nothing is copied to a GPU.
    """
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
    """Return tasks that scan chunk after chunk, to replace two-pass scans of chunks from the host.

    They have the keys of the tasks that they replace. A scan stays as it is if `wanted` has its
    results or chunks, or if tasks that keep its chunks use them.

    Parameters
    ----------
    graph : dict
    kinds : dict
        The kinds of the library's own tasks in it.
    wanted : set of keys
        The keys to compute.
    """
    chained: Graph = {}
    if all(key in kinds or type(task) is DataNode for key, task in graph.items()):
        # No task can copy.
        return chained
    for line in _lines(graph, kinds):
        blocks = {scan.block for scan in line.values()}
        # Check both ends: the last chunk may be made differently from the first.
        ends = [next(iter(line.values())).block], [next(reversed(line.values())).block]
        if wanted.isdisjoint([*line, *blocks]) and all(from_host(end, graph) for end in ends):
            chained |= _chain(line)
    if not chained:
        return chained
    scanned = {scan.block: key for key in chained if (scan := read(graph.get(key), DownsweepTask))}
    for key, task in graph.items():
        if key not in chained and kinds.get(key) not in READ_ONCE:
            for block in task.dependencies & scanned.keys():
                name = name_of(scanned[block])
                chained = {k: step for k, step in chained.items() if not _is_of(k, name)}
    return chained


#: Tasks that need a chunk only while they read it once.
READ_ONCE: Set[type[OurTask] | None] = {LiftTask, CountTask, UpsweepTask, StepTask, ScanFromTask}


def _lines(graph: Graph, kinds: Mapping[Any, Any]) -> Iterator[dict[Any, DownsweepTask]]:
    """Yield the scans of each line of chunks, in scan order, if all chunks of it are scanned."""
    lines: dict[Any, dict[Any, DownsweepTask]] = {}
    for key in (key for key, kind in kinds.items() if kind is DownsweepTask):
        scan = read(graph[key], DownsweepTask)
        assert scan is not None
        index, axis = index_of(key), scan.spec.axis
        others = name_of(key), *index[:axis], *index[axis + 1 :]
        lines.setdefault(others, {})[key] = scan
    for line in lines.values():
        first, *_ = line.values()
        axis, step = first.spec.axis + 1, -1 if first.spec.reverse else 1
        keys = sorted(line, key=lambda key: step * key[axis])
        steps = {b[axis] - a[axis] for a, b in itertools.pairwise(keys)}
        # Only the first chunk has no base. If it or one in between is missing, it was not wanted.
        if line[keys[0]].bases is None and steps == {step}:
            yield {key: line[key] for key in keys}


def _chain(line: Mapping[Any, DownsweepTask]) -> Graph:
    scans = [*line.values()]

    def make(j: int, key: Any, function: Any, **options: Any) -> Task:
        scan = scans[j]
        if scan.heads is not None:
            options["heads"] = TaskRef(scan.heads)
        options |= {"block": TaskRef(scan.block), "declared": scan.declared}
        return Task(key, function, op=scan.op, spec=scan.spec, **options)

    steps, results = tasks.chain([*line], _step_key, make)
    return steps | results


def _step_key(step: str, key: Any) -> Any:
    return (f"{name_of(key)}-{step}", *index_of(key))


def _is_of(key: Any, name: str) -> bool:
    return name_of(key) in (name, *(f"{name}-{step}" for step in ("turn", "step", "state")))


def dealt_in_turn(graph: Graph) -> set[str]:
    """Return the names of arrays whose neighbouring chunks go to different GPUs.

    A chain reads these chunk after chunk: with neighbours on one GPU, the others would idle.
    """
    blocks: set[Any] = set()
    for task in graph.values():
        if step := read(task, StepTask):
            blocks.add(step.block)
        elif is_fused(task) and does_any(task, {StepTask}):
            blocks |= task.dependencies
    return from_host(blocks, graph)


def turns(graph: Graph) -> dict[Any, int]:
    """Return Dask's order of the keys of a graph that copies to GPUs, else an empty dict.

    Chunks must be read in this order, as the tasks that need them run in it.
    """
    return order(graph) if any(map(copies_to_gpu, graph.values())) else {}
