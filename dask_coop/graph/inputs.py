"""Find the arrays among the inputs of a task, and put them on one GPU.

The search covers lists, tuples, sets, dicts and the arguments of tasks, but no other objects.
`gpus` is `dask_coop.cuda.peers` or its stand-in; it tells the GPU of an array.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from dask._task_spec import Alias, DataNode, NestedContainer, Task, TaskRef

from dask_coop.graph.tasks import (
    DownsweepTask,
    PrefixesTask,
    is_fused,
    read,
    results_of,
    state_of,
    take_turn,
)

CONTAINERS = (list, tuple, set, frozenset)

#: Functions of a chain of scans that only pass values on.
_HANDS_ON = (results_of, state_of, take_turn)


def held(gpus: Any, task: Any, data: Any) -> Counter[int]:
    """Return the number of bytes of a task's inputs on each GPU."""
    nbytes: Counter[int] = Counter()
    for leaf in leaves((task, taken(task, data))):
        if (gpu := gpus.device_of(leaf)) is not None:
            nbytes[gpu] += leaf.nbytes
    return nbytes


def bring(gpus: Any, gpu: int, task: Any, data: Any) -> tuple[Any, Any]:
    """Return a task and its inputs with all arrays on `gpu`."""
    devices = ((leaf, gpus.device_of(leaf)) for leaf in leaves((task, taken(task, data))))
    away = {id(leaf): leaf for leaf, device in devices if device not in (None, gpu)}
    if not away:
        return task, data
    by_id = dict(zip(away, gpus.move([*away.values()], gpu), strict=True))
    return replace(task, by_id), replace(data, by_id)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested containers and tasks: arguments and the data of fused tasks."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, CONTAINERS):
            stack.extend(value)
        elif isinstance(value, Task):
            stack += [value.args, value.kwargs]
        elif isinstance(value, DataNode):
            stack.append(value.value)
        elif isinstance(value, dict):
            stack.extend(value.values())
        else:
            yield value


def replace(value: Any, by_id: Mapping[int, Any]) -> Any:
    """Return `value` with leaves replaced by the ``id`` of the old ones; itself if none is."""
    if id(value) in by_id:
        return by_id[id(value)]
    if isinstance(value, CONTAINERS):
        held = [replace(item, by_id) for item in value]
        if all(map(operator.is_, held, value)):
            return value
        return type(value)(*held) if hasattr(value, "_fields") else type(value)(held)
    if isinstance(value, Task):
        args, kwargs = replace(value.args, by_id), replace(value.kwargs, by_id)
        if args is value.args and kwargs is value.kwargs:
            return value
        task = copy.copy(value)
        task.args, task.kwargs = args, kwargs
        return task
    if isinstance(value, DataNode):
        inner = replace(value.value, by_id)
        return value if inner is value.value else DataNode(value.key, inner)
    if isinstance(value, dict):
        changed = {
            key: new for key, old in value.items() if (new := replace(old, by_id)) is not old
        }
        if not changed:
            return value
        result = copy.copy(value)
        result.update(changed)
        return result
    return value


def taken(task: Any, data: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return the inputs that a task uses: of the base sums of a group of chunks, only its own.

    All base sums of a group together may be larger than the chunk.
    """
    if not isinstance(task, Task):
        return data
    positions: defaultdict[Any, set[int]] = defaultdict(set)
    for inner in task.args[0].values() if is_fused(task) else (task,):
        if scan := read(inner, DownsweepTask):
            positions[scan.bases].add(scan.position)
        elif bases := read(inner, PrefixesTask):
            positions[bases.above].add(bases.position)
    used = {key: [data[key][i] for i in of] for key, of in positions.items() if key in data}
    return {**data, **used} if used else data


def hands_on(task: Any, data: Mapping[Any, Any]) -> bool:
    """Return whether a task only passes inputs on, alone, into a container or out of one."""
    if isinstance(task, NestedContainer):
        return all(hands_on(inner, data) for inner in task.args)
    if isinstance(task, Task):
        if any(task.func is function for function in _HANDS_ON):
            return True
        if task.func is not operator.getitem or len(task.args) != 2:
            return False
        of, index = task.args
        held = isinstance(of, TaskRef | Alias) and data.get(getattr(of, "target", of.key))
        return isinstance(held, list | tuple | dict) and not isinstance(index, Task | TaskRef)
    return True
