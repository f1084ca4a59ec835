"""Tasks that make chunks, taken into the tasks that use them.

A scheduler may make many chunks before the tasks that use them are due. Where a scan is not to hold
them, what makes a chunk and nothing else becomes part of the task that takes the chunk::

    read --> decode --> scan        becomes        (read, decode, scan)

What several chunks are made of stays as it is.

Where a chunk is used once, Dask does the same by itself, with tasks that it makes block by block as
it makes those of the chunks: a layer of `Blocks`.
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

#: What a task of a block takes: its block of an array, what belongs to it, or what all of them get.
Input: TypeAlias = Any


class Blocks(Blockwise):  # type: ignore[misc]
    """A layer that calls a function for each block of an array.

    Where nothing was fused with it, it makes its tasks in less time than Dask's general case.

    Parameters
    ----------
    name : str
        What the keys begin with.
    ndim : int
        The axes of the array.
    function : callable
        One that `dask_coop.chunks.dtypes.casts`.
    args : sequence
        Arrays in the same chunks along the leading axes, and other inputs, one for each argument.
    kwargs : mapping of str
        More of them, by keyword.
    **given
        Keywords that are the same for all blocks.
    """

    #: Whether arrays of fewer axes have the last ones, and not the first.
    _trailing = False

    def __init__(
        self,
        name: str,
        ndim: int,
        function: Callable[..., Any],
        args: Sequence[Input],
        kwargs: Mapping[str, Input],
        **given: Any,
    ) -> None:
        self._axes = tuple(f".{axis}" for axis in range(ndim))
        inputs = (*args, *kwargs.values())
        indices = [*map(self._index, inputs)]
        # Dask does not fuse a layer with one that it takes twice.
        once = [*dict.fromkeys(indices)]
        slots = [TaskRef(blockwise_token(once.index(one))) for one in indices]
        named = dict(zip(kwargs, slots[len(args) :], strict=True))
        given |= declared_by(*args, **kwargs)
        task = Task(name, function, *slots[: len(args)], **given, **named)
        numblocks = {one.name: one.numblocks for one in inputs if isinstance(one, Array)}
        super().__init__(name, self._axes, task, once, numblocks)

    def _index(self, one: Input) -> tuple[Any, tuple[str, ...] | None]:
        """Return what Dask takes for an input, and along which axes its blocks are."""
        if isinstance(one, Array):
            return one.name, self._axes[self._first(one.ndim) :][: one.ndim]
        return (one, self._axes) if isinstance(one, BlockwiseDep) else (TaskRef(one.key), None)

    def _first(self, ndim: int) -> int:
        """Return which axis is the first of an array of so many."""
        return len(self._axes) - ndim if self._trailing else 0

    @property
    def _dict(self) -> dict[Any, Task]:
        if not self.is_materialized():
            self._cached_dict = {"dsk": dict(self._tasks())}
        made: dict[Any, Task] = self._cached_dict["dsk"]
        return made

    def _tasks(self) -> Iterator[tuple[Any, Task]]:
        function, name = self.task.func, self.output
        named = {key: ref.key for key, ref in self.task.kwargs.items() if type(ref) is TaskRef}
        args = [ref.key for ref in self.task.args]
        inputs = {key: one for key, one in self.task.kwargs.items() if key not in named}
        slots = [(blockwise_token(i), *index) for i, index in enumerate(self.indices)]
        for at in itertools.product(*(range(self.dims[axis]) for axis in self._axes)):
            given = {
                slot: one
                if axes is None
                else DataNode(slot, self.io_deps[one][at])
                if one in self.io_deps
                else TaskRef((one, *at[self._first(len(axes)) :][: len(axes)]))
                for slot, one, axes in slots
            }
            for key, slot in named.items():
                inputs[key] = given[slot]
            key = (name, *at)
            yield key, Task(key, function, *[given[slot] for slot in args], **inputs)


class TrailingBlocks(Blocks):
    """A layer whose arrays have the last axes of the array."""

    _trailing = True


class Sources:
    """The tasks behind some arrays."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._nodes = _nodes(*arrays)
        self._users: dict[Any, set[Any]] = defaultdict(set)
        for key, node in self._nodes.items():
            for needed in node.dependencies:
                self._users[needed].add(key)

    def join(self, task: Task, blocks: Iterable[Any]) -> Task:
        """Return `task` with all that only the chunks `blocks`, which only it takes, need."""
        inside = {key for key in blocks if self._movable(key)}
        found = inside
        while found:
            needed = set().union(*(self._nodes[key].dependencies for key in found)) - inside
            found = {key for key in needed if self._movable(key) and self._users[key] <= inside}
            inside |= found
        parts = [self._nodes[key] for key in inside]
        return GraphNode.fuse(*parts, task, key=task.key) if parts else task

    def _movable(self, key: Any) -> bool:
        return isinstance(self._nodes.get(key), Task)


def copy(x: Array) -> Array:
    """Return an array whose chunks are those of `x`, made by tasks of their own from the same data.

    Dask's own clone leaves the dependencies of some tasks as they were.
    """
    blocks = [(x.name, *index) for index in itertools.product(*map(range, x.numblocks))]
    # What a copy was made of is not copied again with it.
    nodes = cull(_nodes(x), blocks)
    keys = {key: _copy_key(key) for key, node in nodes.items() if isinstance(node, Task)}
    tasks = {copied: nodes[key].substitute(keys, key=copied) for key, copied in keys.items()}
    name = _copy_key(x.name)
    for key in blocks:
        if key not in keys:
            own = (name, *key[1:])
            tasks[own] = Alias(own, key)
    graph = add(x.dask, name, tasks)
    return new_da_object(graph, name, x.chunks, meta=x._meta)


def add(
    graph: HighLevelGraph, name: str, layer: dict[Any, Any], below: set[str] | None = None
) -> HighLevelGraph:
    """Put a layer on those `below`, by default all whose tasks it needs."""
    below = owners(graph, layer) if below is None else below
    return HighLevelGraph({**graph.layers, name: layer}, {**graph.dependencies, name: below})


def owners(graph: HighLevelGraph, layer: dict[Any, Any]) -> set[str]:
    """Return the layers of `graph` whose tasks `layer` needs: of chunks that are joined, none."""
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
