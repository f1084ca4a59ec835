"""The arrays among the inputs of a task: found wherever they stand, and put on one GPU.

Arrays are seen in lists, tuples, sets, dicts and the arguments of tasks, and in no other objects.
On which GPU one lies says `dask_coop.cuda.peers`, or what stands in for it: `gpus`.
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

#: Functions of a chain of scans that make nothing.
_HANDS_ON = (results_of, state_of, take_turn)


def held(gpus: Any, task: Any, data: Any) -> Counter[int]:
    """Return how many bytes of what a task takes lie on each GPU."""
    found: Counter[int] = Counter()
    for leaf in leaves((task, taken(task, data))):
        if (gpu := gpus.device_of(leaf)) is not None:
            found[gpu] += leaf.nbytes
    return found


def bring(gpus: Any, gpu: int, task: Any, data: Any) -> tuple[Any, Any]:
    """Return a task and its inputs with all arrays that it takes on `gpu`."""
    found = ((leaf, gpus.device_of(leaf)) for leaf in leaves((task, taken(task, data))))
    away = {id(leaf): leaf for leaf, device in found if device not in (None, gpu)}
    if not away:
        return task, data
    by_id = dict(zip(away, gpus.move([*away.values()], gpu), strict=True))
    return replace(task, by_id), replace(data, by_id)


def leaves(value: Any) -> Iterator[Any]:
    """Yield what containers hold, and tasks: their arguments, fused tasks' data, and so on down."""
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
    """Return `value` with other leaves, by the ``id`` of the old ones; itself if it has none."""
    if id(value) in by_id:
        return by_id[id(value)]
    if isinstance(value, CONTAINERS):
        held = [replace(one, by_id) for one in value]
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
    """Return what a task takes of its inputs: of the base sums of several chunks, only its own.

    All of them together may be larger than the chunk.
    """
    if not isinstance(task, Task):
        return data
    positions: defaultdict[Any, set[int]] = defaultdict(set)
    for inner in task.args[0].values() if is_fused(task) else (task,):
        if scan := read(inner, DownsweepTask):
            positions[scan.bases].add(scan.position)
        elif bases := read(inner, PrefixesTask):
            positions[bases.above].add(bases.position)
    own = {key: [data[key][i] for i in at] for key, at in positions.items() if key in data}
    return {**data, **own} if own else data


def hands_on(task: Any, data: Mapping[Any, Any]) -> bool:
    """Return whether a task only passes its inputs on, alone, in a container or out of one."""
    if isinstance(task, NestedContainer):
        return all(hands_on(inner, data) for inner in task.args)
    if isinstance(task, Task):
        if any(task.func is one for one in _HANDS_ON):
            return True
        if task.func is not operator.getitem or len(task.args) != 2:
            return False
        of, index = task.args
        held = isinstance(of, TaskRef | Alias) and data.get(getattr(of, "target", of.key))
        return isinstance(held, list | tuple | dict) and not isinstance(index, Task | TaskRef)
    return True
