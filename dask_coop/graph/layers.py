"""Layers of graphs: trees of states, where blocks begin, and arrays on top of layers."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
from dask import config
from dask.array.core import Array, concatenate_shaped, new_da_object
from dask.blockwise import BlockwiseDep
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task
from dask.tokenize import tokenize
from dask.utils import cached_cumsum

from dask_coop import chunks
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.chunks.dtypes import as_declared, device_of
from dask_coop.graph import tasks
from dask_coop.graph.config import on_cluster
from dask_coop.graph.fusion import add
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.tasks import refs

#: The number of states that one task of a tree takes, unless they are large.
FAN_IN = 16

#: Most parts of chunks that tasks of `rechunked` take.
MOST_PARTS = 1 << 20

Key = tuple[Any, ...]
Layer = dict[Any, Task]


class Origins(BlockwiseDep):  # type: ignore[misc]
    """The origins of the blocks of an array along `axes`."""

    produces_tasks = False

    def __init__(self, x: Array, axes: tuple[int, ...]) -> None:
        self._chunks, self._axes = x.chunks, axes
        self.numblocks: tuple[int, ...] = x.numblocks

    def __getitem__(self, index: Key) -> Origin:
        """Return the origin of the block at an index."""
        return origin(self._chunks, self._axes, index)

    def __dask_tokenize__(self) -> Any:
        """Return the values that identify the origins in keys."""
        return type(self).__name__, self._chunks, self._axes


def origin(sizes: tuple[tuple[int, ...], ...], axes: tuple[int, ...], index: Key) -> Origin:
    """Return the start of a block and the length of its array, along each of `axes`.

    `sizes` are the lengths of the array's chunks.
    """
    ends = {axis: cached_cumsum(sizes[axis], initial_zero=True) for axis in axes}
    unknown = [axis for axis in axes if ends[axis][-1] != ends[axis][-1]]
    if unknown:
        # Such indices only need the order of elements, so assume chunks longer than any.
        others = math.prod(len(sizes[d]) if d in unknown else ends[d][-1] for d in axes)
        width = 1 << (62 - others.bit_length()) // len(unknown)
    return tuple(
        (index[axis] * width, len(sizes[axis]) * width)
        if axis in unknown
        else (ends[axis][index[axis]], ends[axis][-1])
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
    """Add a tree on each group of states, whose keys are of the layer `below`.

    Return the graph, the name of its last layer, and for each group the keys of at most `limit`
    remaining states.
    """
    layer: Layer = {}
    name, token = names
    remaining = {
        index: tree(layer, op, keys, (f"{name}-combine-{token}", *index), fan_in, limit)
        for index, keys in groups.items()
    }
    if not layer:
        return graph, below, remaining
    state = f"{name}-combine-{token}"
    return add(graph, state, layer, {below}), state, remaining


def tree(
    layer: Layer, op: Operation, keys: list[Key], prefix: Key, fan_in: int, limit: int
) -> list[Key]:
    """Add combining tasks until at most `limit` states remain; return their keys."""
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
    """Return the bytes of the largest state of a block over `axes`; NaN if they are unknown.

    A line has `entries` entries, unless the monoid has a fixed number.
    """
    lines = math.prod(max(sizes) for axis, sizes in enumerate(x.chunks) if axis not in axes)
    return float(lines * op.state_bytes * (op.monoid.entries or entries))


def find_fan_in(
    split_every: int | dict[int, int] | None, axes: tuple[int, ...], nbytes: float
) -> int:
    """Return how many states one task combines, from the argument of a public function.

    If it is None, ``split_every`` of Dask's configuration counts, as for Dask's reductions, and
    otherwise the bytes of a state.
    """
    if split_every is None:
        split_every = config.get("split_every", None) or at_a_time(FAN_IN, nbytes)
    every: Any = split_every
    ways = [every.get(axis, FAN_IN) for axis in axes] if isinstance(every, dict) else [every]
    if not all(isinstance(n, Integral) for n in ways):
        raise TypeError(f"split_every must be whole numbers, got {every!r}")
    # A dict has no number for a tree along no axis.
    fan_in = math.prod(map(int, ways)) if ways else at_a_time(FAN_IN, nbytes)
    if fan_in < 2:
        raise ValueError(f"split_every must be at least 2, got {every!r}")
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
    """Put `layer` on the layers `below` of `graph`; return its array, which is like `like`."""
    graph = add(graph, name, layer, below)
    # Zeros, because the value of a meta without axes goes into the keys of dependent arrays.
    meta = chunks.zeros_like(like, dtype, len(out_chunks))
    return new_da_object(graph, name, out_chunks, meta=meta)


def rechunked(x: Array, sizes: tuple[tuple[int, ...], ...]) -> Array:
    """Return `x` in chunks of `sizes`, made by one task each.

    Dask's rechunk has a task for each slice of a chunk, or copies elements several times so that
    these tasks are fewer. It makes the chunks on a cluster, where it sends workers no whole chunks,
    and where there are so many slices that naming them takes longer than copying.

    Parameters
    ----------
    x : Array
    sizes : tuple of tuples of int
    """
    # A size that is not known is NaN.
    has_elements = x.size > 0
    is_plain = x.dtype.kind in "biufcmM" and not chunks.is_masked(x._meta)
    if not has_elements or not is_plain or on_cluster() or x.chunks == sizes:
        return x.rechunk(sizes)
    along = [[*_parts(*of)] for of in zip(x.chunks, sizes, strict=True)]
    if math.prod(sum(map(len, of)) for of in along) > MOST_PARTS:
        return x.rechunk(sizes)
    name, layer = f"rechunk-{tokenize(x, sizes)}", Layer()
    for index in itertools.product(*map(range, map(len, sizes))):
        taken = [of[i] for of, i in zip(along, index, strict=True)]
        below = itertools.product(*([i for i, _ in of] for of in taken))
        layer[name, *index] = Task(
            (name, *index),
            assemble,
            refs((x.name, *i) for i in below),
            places=[[place for _, place in of] for of in taken],
            dtype=x.dtype,
        )
    return array(x.dask, {x.name}, name, layer, x._meta, sizes, x.dtype)


def _parts(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[list[tuple[int, slice]]]:
    """Yield the chunks that have elements of each new chunk of an axis, and their places there."""
    ends = [*itertools.accumulate(before, initial=0)]
    begin = 0
    for length in after:
        first = min(bisect.bisect_right(ends, begin), len(before)) - 1
        end = begin + length
        parts: list[tuple[int, slice]] = []
        for i in range(first, len(before)):
            if ends[i] >= end and parts:
                break
            if before[i] or not length:
                place = slice(max(begin - ends[i], 0), min(end, ends[i + 1]) - ends[i])
                parts.append((i, place))
        yield parts
        begin = end


def assemble(blocks: list[Any], places: list[list[slice]], dtype: np.dtype[Any]) -> Any:
    """Return a chunk that is made of slices of others, in the order in memory of the first.

    Parameters
    ----------
    blocks : list of arrays
        In C order.
    places : list of lists of slice
        Along each axis, what to take of the blocks at each place.
    dtype : dtype
        What the blocks' array declares.
    """
    cut = [block[place] for block, place in zip(blocks, itertools.product(*places), strict=True)]
    parts = as_declared(cut, dtype)
    if len(parts) == 1:
        return parts[0]
    if any(map(chunks.is_masked, parts)):
        return concatenate_shaped(parts, [*map(len, places)])
    ends = [[*itertools.accumulate((p.stop - p.start for p in of), initial=0)] for of in places]
    spans = ([slice(*pair) for pair in itertools.pairwise(of)] for of in ends)
    with device_of(parts[0]):
        out = np.empty_like(parts[0], shape=[of[-1] for of in ends])
        for span, part in zip(itertools.product(*spans), parts, strict=True):
            out[span] = part
    return out


def joined(blocks: dict[Key, Any]) -> Any:
    """Join the blocks of an array, given by their indices."""
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
