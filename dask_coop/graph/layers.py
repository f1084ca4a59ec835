"""Layers of graphs: trees of states, where blocks begin, and arrays on top of layers."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import numpy as np
from dask import config
from dask.array.core import Array, new_da_object
from dask.blockwise import BlockwiseDep
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task
from dask.utils import cached_cumsum

from dask_coop import chunks
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.graph import tasks
from dask_coop.graph.fusion import add
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.tasks import refs

#: States that one task of a tree takes, if they are not large.
FAN_IN = 16


Key = tuple[Any, ...]


Layer = dict[Any, Task]


class Origins(BlockwiseDep):  # type: ignore[misc]
    """Where the blocks of an array begin along `axes`."""

    produces_tasks = False

    def __init__(self, x: Array, axes: tuple[int, ...]) -> None:
        self._chunks, self._axes = x.chunks, axes
        self.numblocks: tuple[int, ...] = x.numblocks

    def __getitem__(self, index: Key) -> Origin:
        """Return the origin of the block at an index."""
        return origin(self._chunks, self._axes, index)

    def __dask_tokenize__(self) -> Any:
        """Return what tells it from others."""
        return type(self).__name__, self._chunks, self._axes


def origin(sizes: tuple[tuple[int, ...], ...], axes: tuple[int, ...], index: Key) -> Origin:
    """Return where a block begins and how long its array is, along each of `axes`.

    `sizes` are the lengths of the array's chunks.
    """
    found = {axis: cached_cumsum(sizes[axis], initial_zero=True) for axis in axes}
    unknown = [axis for axis in axes if found[axis][-1] != found[axis][-1]]
    if unknown:
        # Chunks longer than any are in the same order, which is all that such indices are for.
        others = math.prod(len(sizes[d]) if d in unknown else found[d][-1] for d in axes)
        width = 1 << (62 - others.bit_length()) // len(unknown)
    return tuple(
        (index[axis] * width, len(sizes[axis]) * width)
        if axis in unknown
        else (found[axis][index[axis]], found[axis][-1])
        for axis in axes
    )


def trees(
    graph: HighLevelGraph,
    below: str,
    op: Operation,
    groups: dict[Key, list[Key]],
    names: tuple[str, str],
    fan_in: int,
    limit: int,
) -> tuple[HighLevelGraph, str, dict[Key, list[Key]]]:
    """Add a tree for each of some groups of states, those of the layer `below`.

    Return what `_states` does.
    """
    layer: Layer = {}
    name, token = names
    left = {
        index: tree(layer, op, keys, (f"{name}-combine-{token}", *index), fan_in, limit)
        for index, keys in groups.items()
    }
    if not layer:
        return graph, below, left
    state = f"{name}-combine-{token}"
    return add(graph, state, layer, {below}), state, left


def tree(
    layer: Layer, op: Operation, keys: list[Key], prefix: Key, fan_in: int, limit: int
) -> list[Key]:
    """Add combining tasks until at most `limit` states are left; return their keys."""
    level = 0
    while len(keys) > limit:
        parents: list[Key] = []
        for i in range(0, len(keys), fan_in):
            key = (*prefix, level, i // fan_in)
            layer[key] = Task(key, tasks.combine, op=op, states=refs(keys[i : i + fan_in]))
            parents.append(key)
        keys, level = parents, level + 1
    return keys


def block_bytes(op: Operation, x: Array, axes: tuple[int, ...], entries: float = 1) -> float:
    """Return the bytes of the largest state of a block over `axes`; NaN if they are not known.

    It has so many `entries` for each line, if its monoid does not say how many.
    """
    lines = math.prod(max(sizes) for axis, sizes in enumerate(x.chunks) if axis not in axes)
    return float(lines * op.state_bytes * (op.monoid.entries or entries))


def find_fan_in(
    split_every: int | dict[int, int] | None, axes: tuple[int, ...], nbytes: float
) -> int:
    """Return how many states one task combines, for the argument of a public function.

    Where it has none, ``split_every`` of Dask's configuration tells, as for Dask's reductions, and
    else how many bytes a state has.
    """
    if split_every is None:
        split_every = config.get("split_every", None) or at_a_time(FAN_IN, nbytes)
    given = split_every
    ways = [given.get(axis, FAN_IN) for axis in axes] if isinstance(given, dict) else [given]
    if not all(isinstance(each, Integral) for each in ways):
        raise TypeError(f"split_every must be whole numbers, got {given!r}")
    # Of a tree along no axis a dict says nothing.
    fan_in = math.prod(map(int, ways)) if ways else at_a_time(FAN_IN, nbytes)
    if fan_in < 2:
        raise ValueError(f"split_every must be at least 2, got {given!r}")
    return int(fan_in)


def array(
    graph: HighLevelGraph,
    below: set[str],
    name: str,
    layer: Layer,
    like: Any,
    out_chunks: Any,
    dtype: Any,
) -> Array:
    """Put `layer` on the layers `below` of `graph` and make an array like `like` of it."""
    graph = add(graph, name, layer, below)
    # One of no axes goes into the keys of what is made of it, so its value is the same every time.
    meta = chunks.zeros_like(like, dtype, len(out_chunks))
    return new_da_object(graph, name, out_chunks, meta=meta)


def joined(blocks: dict[Key, Any]) -> Any:
    """Join the blocks of an array, which stand at the indices that are their keys."""
    if len(blocks) == 1:
        return next(iter(blocks.values()))
    if any(map(chunks.is_masked, blocks.values())):
        data = joined({index: np.ma.getdata(block) for index, block in blocks.items()})
        mask = joined({index: np.ma.getmaskarray(block) for index, block in blocks.items()})
        return np.ma.array(data, mask=mask)
    nested = np.empty([n + 1 for n in np.max(list(blocks), axis=0)], object)
    for index, block in blocks.items():
        nested[index] = block
    return np.block(nested.tolist())
