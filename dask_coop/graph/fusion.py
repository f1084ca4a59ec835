"""Tasks that make chunks, taken into the tasks that use them.

A scheduler may make many chunks before the tasks that use them are due. Where a scan is not to hold
them, what makes a chunk and nothing else becomes part of the task that takes the chunk::

    read --> decode --> scan        becomes        (read, decode, scan)

What several chunks are made of stays as it is.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from dask._task_spec import convert_legacy_graph
from dask.array.core import Array, new_da_object
from dask.base import clone_key
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Alias, GraphNode, Task
from dask.utils import ensure_dict


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
    nodes = _nodes(x)
    keys = {key: _copy_key(key) for key, node in nodes.items() if isinstance(node, Task)}
    tasks = {copied: nodes[key].substitute(keys, key=copied) for key, copied in keys.items()}
    name = _copy_key(x.name)
    for index in itertools.product(*map(range, x.numblocks)):
        key = (x.name, *index)
        if key not in keys:
            tasks[(name, *index)] = Alias((name, *index), key)
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
