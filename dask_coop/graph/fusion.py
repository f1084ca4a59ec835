"""Fuse tasks that make chunks into the tasks that use them.

A scheduler may make many chunks before the tasks that use them are due. Where a scan must not hold
them, all tasks that only serve one chunk become part of the task that takes the chunk::

    read --> decode --> scan        becomes        (read, decode, scan)

Tasks that serve several chunks stay.

Where a chunk is used once, Dask itself fuses blockwise layers; `Blocks` is such a layer.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from dask._task_spec import convert_legacy_graph, cull
from dask.array.core import Array, new_da_object
from dask.base import clone_key
from dask.blockwise import Blockwise, BlockwiseDep, blockwise_token
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Alias, DataNode, GraphNode, Task, TaskRef
from dask.utils import ensure_dict

from dask_coop.chunks.dtypes import declared_by

#: An input of a block's task: an array, a value for each block, or a lazy value for all blocks.
Input: TypeAlias = Any


class Blocks(Blockwise):  # type: ignore[misc]
    """A layer that calls a function for each block of an array.

    Unless Dask fuses another layer with it, it makes its tasks faster than Dask's general case.

    Parameters
    ----------
    name : str
        The name in its keys.
    ndim : int
        The number of axes of the array.
    function : callable
        A function with the decorator `dask_coop.chunks.dtypes.casts`.
    args : sequence
        Positional inputs. Arrays have the same chunks along the leading axes.
    kwargs : mapping of str
        Inputs by keyword.
    **constants
        Keywords with the same values for all blocks.
    """

    #: Whether arrays of fewer axes have the last axes rather than the first.
    _trailing = False

    def __init__(
        self,
        name: str,
        ndim: int,
        function: Callable[..., Any],
        args: Sequence[Input],
        kwargs: Mapping[str, Input],
        **constants: Any,
    ) -> None:
        self._axes = tuple(f".{axis}" for axis in range(ndim))
        inputs = (*args, *kwargs.values())
        indices = [*map(self._index, inputs)]
        # Unique, because Dask does not fuse a layer into one that takes it twice.
        once = [*dict.fromkeys(indices)]
        slots = [TaskRef(blockwise_token(once.index(index))) for index in indices]
        named = dict(zip(kwargs, slots[len(args) :], strict=True))
        constants |= declared_by(*args, **kwargs)
        task = Task(name, function, *slots[: len(args)], **constants, **named)
        numblocks = {x.name: x.numblocks for x in inputs if isinstance(x, Array)}
        super().__init__(name, self._axes, task, once, numblocks)

    def _index(self, source: Input) -> tuple[Any, tuple[str, ...] | None]:
        """Return an input in Dask's form, and the axes of its blocks."""
        if isinstance(source, Array):
            return source.name, self._axes[self._first(source.ndim) :][: source.ndim]
        return (
            (source, self._axes)
            if isinstance(source, BlockwiseDep)
            else (TaskRef(source.key), None)
        )

    def _first(self, ndim: int) -> int:
        """Return the first axis of an array of `ndim` axes."""
        return len(self._axes) - ndim if self._trailing else 0

    @property
    def _dict(self) -> dict[Any, Task]:
        if not self.is_materialized():
            self._cached_dict = {"dsk": dict(self._tasks())}
        tasks: dict[Any, Task] = self._cached_dict["dsk"]
        return tasks

    def _tasks(self) -> Iterator[tuple[Any, Task]]:
        function, name = self.task.func, self.output
        named = {key: ref.key for key, ref in self.task.kwargs.items() if type(ref) is TaskRef}
        args = [ref.key for ref in self.task.args]
        inputs = {key: value for key, value in self.task.kwargs.items() if key not in named}
        slots = [(blockwise_token(i), *index) for i, index in enumerate(self.indices)]
        for index in itertools.product(*(range(self.dims[axis]) for axis in self._axes)):
            values = {
                slot: source
                if axes is None
                else DataNode(slot, self.io_deps[source][index])
                if source in self.io_deps
                else TaskRef((source, *index[self._first(len(axes)) :][: len(axes)]))
                for slot, source, axes in slots
            }
            for key, slot in named.items():
                inputs[key] = values[slot]
            key = (name, *index)
            yield key, Task(key, function, *[values[slot] for slot in args], **inputs)


class TrailingBlocks(Blocks):
    """A layer whose arrays have the last axes of the array."""

    _trailing = True


class Sources:
    """The tasks that make some arrays."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._nodes = _nodes(*arrays)
        self._users: dict[Any, set[Any]] = defaultdict(set)
        for key, node in self._nodes.items():
            for needed in node.dependencies:
                self._users[needed].add(key)

    def join(self, task: Task, blocks: Iterable[Any]) -> Task:
        """Fuse `task` with the tasks that serve only `blocks`, which no other task may take."""
        inside = {key for key in blocks if self._movable(key)}
        added = inside
        while added:
            needed = set().union(*(self._nodes[key].dependencies for key in added)) - inside
            added = {key for key in needed if self._movable(key) and self._users[key] <= inside}
            inside |= added
        nodes = [self._nodes[key] for key in inside]
        return GraphNode.fuse(*nodes, task, key=task.key) if nodes else task

    def alone(self, block: Any) -> GraphNode | None:
        """Return one task that makes a block of data; None if it needs tasks that others need."""
        inside, todo = {block}, [block]
        while todo:
            node = self._nodes.get(todo.pop())
            if not isinstance(node, Task | Alias):
                return None
            for key in node.dependencies:
                if isinstance(self._nodes.get(key), DataNode):
                    continue
                if key in inside or len(self._users[key]) > 1:
                    return None
                inside.add(key)
                todo.append(key)
        return GraphNode.fuse(*(self._nodes[key] for key in inside), key=block)

    def _movable(self, key: Any) -> bool:
        return isinstance(self._nodes.get(key), Task)


def copy(x: Array) -> Array:
    """Return an array like `x` whose chunks are made by copies of its tasks, from the same data.

    Dask's own clone does not rename the dependencies of some tasks.
    """
    blocks = [(x.name, *index) for index in itertools.product(*map(range, x.numblocks))]
    # Culled, so that copying a copy does not copy the original tasks, too.
    nodes = cull(_nodes(x), blocks)
    keys = {key: _copy_key(key) for key, node in nodes.items() if isinstance(node, Task)}
    tasks = {copied: nodes[key].substitute(keys, key=copied) for key, copied in keys.items()}
    name = _copy_key(x.name)
    for key in blocks:
        if key not in keys:
            alias = (name, *key[1:])
            tasks[alias] = Alias(alias, key)
    graph = add(x.dask, name, tasks)
    return new_da_object(graph, name, x.chunks, meta=x._meta)


def add(
    graph: HighLevelGraph, name: str, layer: dict[Any, Any], below: set[str] | None = None
) -> HighLevelGraph:
    """Put a layer on those `below`; by default on all whose tasks it needs."""
    below = owners(graph, layer) if below is None else below
    return HighLevelGraph({**graph.layers, name: layer}, {**graph.dependencies, name: below})


def owners(graph: HighLevelGraph, layer: dict[Any, Any]) -> set[str]:
    """Return the layers of `graph` whose tasks `layer` needs; none for fused chunks."""
    needed = set().union(*(task.dependencies for task in layer.values())) - layer.keys()
    return {name for name, tasks in graph.layers.items() if not needed.isdisjoint(tasks)}


def _nodes(*arrays: Array) -> dict[Any, Any]:
    graphs = (ensure_dict(array.dask) for array in arrays)
    nodes: dict[Any, Any] = convert_legacy_graph(
        {k: v for graph in graphs for k, v in graph.items()}
    )
    return nodes


def _copy_key(key: Any) -> Any:
    return clone_key(key, "copy") if isinstance(key, str | tuple) else ("copy", key)
