"""On which GPU of a `Node` a task belongs, and what a task's graph node says about it.

New chunks are dealt out in their order among the chunks of that name, in contiguous runs, so that
neighbours share a GPU; whatever has arrays for input goes where most of their bytes are. Arrays are
seen in lists, tuples, sets, dicts and the arguments of tasks, and in no other objects.
"""

from __future__ import annotations

import copy
import operator
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from typing import Any

from dask._task_spec import Alias, DataNode, NestedContainer, Task, TaskRef
from dask.array.dispatch import to_cupy_dispatch, to_numpy_dispatch

from dask_coop.graph.tasks import (
    DownsweepTask,
    PrefixesTask,
    is_fused,
    read,
    results_of,
    state_of,
    take_turn,
)
from dask_coop.graph.transfer import copy_to_gpu, copy_to_host, store_chunk

CONTAINERS = (list, tuple, set, frozenset)


class OnAllGpus:
    """A function of a task that works on all GPUs at a time.

    A `Node` calls it on a thread that is no GPU's, with its inputs where they lie.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Work on the task's inputs."""
        raise NotImplementedError


def is_on_all_gpus(task: Any) -> bool:
    """Return whether the task of a graph works on all GPUs at a time."""
    return isinstance(task, Task) and isinstance(task.func, OnAllGpus)


def deal(keys: Iterable[Hashable], n: int, in_turn: Set[str] = frozenset()) -> dict[Hashable, int]:
    """Deal the keys of each name, in the order of their indices, out to `n` GPUs.

    Parameters
    ----------
    keys : iterable of keys
        Tuples of a name and indices; other keys are dealt out in the order given.
    n : int
        The number of GPUs.
    in_turn : set of str
        Names whose neighbours go to different GPUs.

    Returns
    -------
    dict
        A number in ``range(n)`` for each key; that of the k-th of m keys is ``k * n // m``, or
        ``k % n``.
    """
    named: defaultdict[Any, list[Any]] = defaultdict(list)
    for key in keys:
        named[key[:1] if isinstance(key, tuple) else None].append(key)
    for name, group in named.items():
        if name is not None:
            # Indices of several types have no order but the graph's.
            with suppress(TypeError):
                named[name] = sorted(group)
    return {
        key: i % n if name and name[0] in in_turn else i * n // len(group)
        for name, group in named.items()
        for i, key in enumerate(group)
    }


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


#: Functions of a chain of scans that make nothing.
_HANDS_ON = (results_of, state_of, take_turn)


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


def copies_to_host(task: Any) -> bool:
    """Return whether a task, or one that is fused into it, copies an array of a GPU to the host."""
    return _calls(task, (copy_to_host, store_chunk, to_numpy_dispatch), "asnumpy")


def copies_to_gpu(task: Any) -> bool:
    """Return whether a task, or one that is fused into it, copies an array of the host to a GPU."""
    return _calls(task, (copy_to_gpu, to_cupy_dispatch), "asarray")


def _calls(task: Any, functions: tuple[Any, ...], of_cupy: str) -> bool:
    """Return whether a task calls one of some functions, or that of CuPy."""
    if not isinstance(task, Task):
        return False
    if is_fused(task):
        return any(_calls(inner, functions, of_cupy) for inner in task.args[0].values())
    func = task.func
    if getattr(func, "__name__", None) == of_cupy:
        return str(getattr(func, "__module__", None)).partition(".")[0] == "cupy"
    return any(func is one for one in functions)
