"""Join small chunks in the memory of a GPU, so that a call has few tasks instead of many.

A task costs the host as much time as a GPU needs for hundreds of megabytes. Chunks that are in
memory already, or that tasks copy to the GPU and keep there, can be joined in the order of their
array; the results are cut where the chunks of the array end::

    x0 x1 x2 ... x63  --join-->  x0...x63  --cumsum-->  y0...y63  --split-->  y0 y1 y2 ... y63

A function of such a result takes what was cut instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.array import routines
from dask.array.core import Array, new_da_object
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import DataNode, Task, TaskRef
from dask.tokenize import tokenize
from dask.utils import key_split

from dask_coop import chunks
from dask_coop.algebra.strategies import AUTO, HISTOGRAM, MULTICHUNK, SCAN
from dask_coop.chunks.dtypes import as_declared, device_of
from dask_coop.graph import config
from dask_coop.graph.fusion import add
from dask_coop.graph.tasks import refs
from dask_coop.graph.transfer import copies_chunks, transposed

#: Larger chunks keep a GPU busy for as long as their tasks keep the host.
LARGE_BYTES = 1 << 27

Sizes = tuple[tuple[int, ...], ...]
Span = tuple[int, int]


class Joined(NamedTuple):
    """Arrays with joined chunks.

    Attributes
    ----------
    arrays : dict of int to Array
        By the id of the array that each takes the place of.
    before, after : tuple of tuples of int
        The chunks of the arrays as they were, and with joined chunks.
    spans : list of lists of (int, int)
        Along each axis, the first chunk of each joined one, and the one behind its last.
    """

    arrays: dict[int, Array]
    before: Sizes
    after: Sizes
    spans: list[list[Span]]


class Cuts(MaterializedLayer):  # type: ignore[misc]
    """A layer that cuts the chunks of an array with joined ones.

    Parameters
    ----------
    mapping : dict
        Its tasks.
    whole : Array
        What it cuts.
    of : Joined
        How its chunks were joined.
    """

    def __init__(self, mapping: dict[Any, Any], whole: Array, of: Joined) -> None:
        super().__init__(mapping)
        self.whole: Array = whole
        self.of: Joined = of


def joined(arrays: Sequence[Array], ordered: bool = False) -> Joined | None:
    """Return arrays of one shape with their chunks joined; None if they stay as they are.

    They are joined if all chunks are in the memory of one GPU, or copied there by tasks of their
    own, and smaller than `LARGE_BYTES`. Chunks of one axis to be put in order may be larger if all
    of them become one: several sorted chunks would be sorted a second time. Arrays of one chunk of
    another shape may be among them. Workers of a cluster get chunks apart, and so does a strategy
    of several chunks that the user has named. A `Node` gets those apart that are not in memory yet.
    """
    if config.on_cluster():
        return None
    named = (
        config.get("coop.strategy.histogram", AUTO, *HISTOGRAM),
        config.get("coop.strategy.scan", AUTO, *SCAN),
    )
    if MULTICHUNK in named:
        return None
    several = [x for x in arrays if x.npartitions > 1]
    if not several or any(x.chunks != several[0].chunks for x in several):
        return None
    # Results have the chunks of the first array, by which they are cut below.
    if arrays[0].npartitions == 1:
        return None
    before = several[0].chunks
    itemsize = max(x.dtype.itemsize for x in several)
    largest, whole = (math.prod(map(f, before)) * itemsize for f in (max, sum))
    ordered = ordered and len(before) == 1
    # A length may be unknown, and then is NaN.
    if not 0 < largest < (math.inf if ordered else LARGE_BYTES):
        return None
    first = _in_memory(several[0], [(0,) * several[0].ndim])
    if first is None:
        return None if ordered else _joined_on_the_way(arrays, several[0])
    backend = chunks.backend_of(first[0])
    most = backend.most_joined(first[0], ordered)
    if ordered and most < whole:
        most = backend.most_joined(first[0], ordered=False) if largest < LARGE_BYTES else 0
    if not most:
        return None
    spans = _spans(before, most // itemsize)
    after = _united_sizes(before, spans)
    if after == before or _is_ambiguous(before, after):
        return None
    joins: dict[int, Array] = {}
    places = [*np.ndindex(*several[0].numblocks)]
    for x in arrays:
        if x.chunks == before:
            blocks = _in_memory(x, places)
            if blocks is None or any(block.device != first[0].device for block in blocks):
                return None
            joins[id(x)] = _join(x, blocks, spans, after)
    return Joined(joins, before, after, spans)


def _joined_on_the_way(arrays: Sequence[Array], like: Array) -> Joined | None:
    """Return arrays with their chunks joined, if tasks copy them, or cut them of joined ones."""
    # A Node works on several chunks in one launch.
    if callable(dask.config.get("scheduler", None)):
        return None
    alike = [x for x in arrays if x.chunks == like.chunks]
    wholes = {id(x): whole for x in alike if (whole := _cut_of(x)) is not None}
    if len(wholes) == len({*map(id, alike)}):
        _, of = wholes[id(like)]
        if all(other.spans == of.spans for _, other in wholes.values()):
            return of._replace(arrays={i: whole for i, (whole, _) in wholes.items()})
    below = [transposed(x) or (x, tuple(range(x.ndim))) for x in alike]
    if not all(map(copies_chunks, (x for x, _ in below))):
        return None
    first, order = below[0]
    itemsize = max(x.dtype.itemsize for x in alike)
    most = min(LARGE_BYTES, chunks.backend_of(first._meta).most_joined(first._meta, False))
    in_memory = _spans(first.chunks, most // itemsize)
    spans = [in_memory[d] for d in order]
    after = _united_sizes(like.chunks, spans)
    if after == like.chunks or _is_ambiguous(like.chunks, after):
        return None
    joins = {}
    for x, (base, axes) in zip(alike, below, strict=True):
        inverse = [axes.index(d) for d in range(x.ndim)]
        whole = _join_made(base, [spans[d] for d in inverse], tuple(after[d] for d in inverse))
        joins[id(x)] = routines.transpose(whole, axes) if base is not x else whole
    return Joined(joins, like.chunks, after, spans)


def _cut_of(x: Array) -> tuple[Array, Joined] | None:
    """Return the array that `split` cut, and how it was joined."""
    layer = x.dask.layers.get(x.name)
    # A function may have added or removed axes.
    if not isinstance(layer, Cuts):
        return None
    whole, of = layer.whole, layer.of
    return (whole, of) if (whole.chunks, x.chunks) == (of.after, of.before) else None


def _united_sizes(before: Sizes, spans: list[list[Span]]) -> Sizes:
    return tuple(
        tuple(sum(sizes[slice(*span)]) for span in along)
        for sizes, along in zip(before, spans, strict=True)
    )


def _in_memory(x: Array, places: list[tuple[int, ...]]) -> list[Any] | None:
    """Return the blocks at some places of an array if all are computed and as it declares them."""
    layer = x.dask.layers.get(x.name)
    if type(layer) is not MaterializedLayer:
        return None
    tasks, name, kind, dtype = layer.mapping, x.name, type(x._meta), x.dtype
    blocks = []
    for place in places:
        node: Any = tasks.get((name, *place))
        block = node.value if type(node) is DataNode else node
        if type(block) is not kind or block.dtype != dtype:
            return None
        blocks.append(block)
    shapes = itertools.product(*x.chunks) if len(places) > 1 else (tuple(n[0] for n in x.chunks),)
    return blocks if [block.shape for block in blocks] == [*shapes] else None


def _spans(before: Sizes, most: int) -> list[list[Span]]:
    """Return which neighbours to unite, the first axes first, into up to `most` elements each."""
    box = [max(sizes) for sizes in before]
    spans = [[(i, i + 1) for i in range(len(sizes))] for sizes in before]
    for axis, sizes in enumerate(before):
        spans[axis] = _united(sizes, most // max(1, math.prod(box) // box[axis]))
        box[axis] = max(sum(sizes[slice(*span)]) for span in spans[axis])
        if len(spans[axis]) > 1:
            break
    return spans


def _united(sizes: tuple[int, ...], most: int) -> list[Span]:
    spans: list[Span] = []
    begin = length = 0
    for i, size in enumerate(sizes):
        if i > begin and length + size > most:
            spans.append((begin, i))
            begin, length = i, 0
        length += size
    return [*spans, (begin, len(sizes))]


def _is_ambiguous(before: Sizes, after: Sizes) -> bool:
    """Return whether the chunks of a result would not tell those of the array."""
    ends: dict[tuple[int, ...], tuple[int, ...]] = {}
    return any(ends.setdefault(a, b) != b for a, b in zip(after, before, strict=True))


def _join(x: Array, blocks: list[Any], spans: list[list[Span]], after: Sizes) -> Array:
    name = f"{key_split(x.name)}-joined-{tokenize(x.name, after)}"
    numbers = np.arange(len(blocks)).reshape(x.numblocks)
    tasks: dict[Any, Task] = {}
    for index in itertools.product(*(range(len(along)) for along in spans)):
        of = numbers[tuple(slice(*along[i]) for along, i in zip(spans, index, strict=True))]
        key = (name, *index)
        tasks[key] = Task(key, join, [blocks[i] for i in of.flat], of.shape)
    graph = HighLevelGraph({name: MaterializedLayer(tasks)}, {name: set()})
    return new_da_object(graph, name, after, meta=x._meta)


def _join_made(x: Array, spans: list[list[Span]], after: Sizes) -> Array:
    """Return `x` with chunks joined that other tasks make."""
    name = f"{key_split(x.name)}-joined-{tokenize(x.name, after)}"
    tasks: dict[Any, Task] = {}
    for index in itertools.product(*(range(len(along)) for along in spans)):
        span = [along[i] for along, i in zip(spans, index, strict=True)]
        sizes = tuple(x.chunks[d][slice(*of)] for d, of in enumerate(span))
        below = refs((x.name, *i) for i in itertools.product(*(range(*of) for of in span)))
        tasks[name, *index] = Task((name, *index), join_made, below, sizes=sizes, dtype=x.dtype)
    graph = add(x.dask, name, tasks, {x.name})
    return new_da_object(graph, name, after, meta=x._meta)


class JoinTask(NamedTuple):
    """The arguments of a call of `join`."""

    blocks: list[Any]
    grid: tuple[int, ...]

    def begins(self) -> Iterator[tuple[int, ...]]:
        """Yield the place in the joined array of the first element of each block, in C order."""
        ndim = len(self.grid)
        strides = [math.prod(self.grid[d + 1 :]) for d in range(ndim)]
        lengths = [
            [self.blocks[i * strides[d]].shape[d] for i in range(self.grid[d])] for d in range(ndim)
        ]
        return itertools.product(*([0, *itertools.accumulate(n)][:-1] for n in lengths))


def read_join(task: Any) -> JoinTask | None:
    """Return the arguments of a task that joins blocks; None for other tasks."""
    return JoinTask(*task.args) if type(task) is Task and task.func is join else None


def join(blocks: list[Any], grid: tuple[int, ...]) -> Any:
    """Return the array of blocks, given in C order, of which there are `grid` along each axis."""
    if len(blocks) == 1:
        return blocks[0]
    return chunks.backend_of(blocks[0]).join(blocks, grid)


def join_made(blocks: list[Any], sizes: Sizes, dtype: np.dtype[Any]) -> Any:
    """Return the array of blocks of some sizes along each axis, given in C order.

    Raises
    ------
    ValueError
        If a block has another shape.
    """
    for block, shape in zip(blocks, itertools.product(*sizes), strict=True):
        if block.shape != shape:
            raise ValueError(f"a chunk has shape {block.shape}, its array declares {shape}")
    grid = tuple(map(len, sizes))
    with device_of(blocks[0]):
        here = [x if x.device == blocks[0].device else x.copy() for x in blocks]
        return join(as_declared(here, dtype), grid)


def cut(block: Any, place: tuple[slice, ...]) -> Any:
    """Return a place of a joined block."""
    return block[place]


def split(y: Any, of: Joined) -> Any:
    """Return a result of joined arrays with the chunks that it would have without joining."""
    if not isinstance(y, Array):
        return y
    ends = {a: b for a, b, _ in _along(of)}
    sizes = tuple(ends.get(along, along) for along in y.chunks)
    if sizes == y.chunks:
        return y
    prefix, _, token = y.name.rpartition("-")
    name = f"{prefix}-split-{token}"
    tasks = dict(_split(y, name, sizes, of))
    graph = add(y.dask, name, Cuts(tasks, y, of), {y.name})
    return new_da_object(graph, name, sizes, meta=y._meta)


def _along(of: Joined) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], list[Span]]]:
    """Yield the chunks of an axis, joined and as they were, and which were joined.

    The first is that of a flattened array, if chunks have whole rows.
    """
    if all(len(along) == 1 for along in of.before[1:]):
        row = math.prod(map(sum, of.before[1:]))
        after, before = (tuple(n * row for n in of[0]) for of in (of.after, of.before))
        yield after, before, of.spans[0]
    yield from zip(of.after, of.before, of.spans, strict=True)


def _split(y: Array, name: str, sizes: Sizes, of: Joined) -> Iterator[tuple[Any, Any]]:
    known = {a: spans for a, _, spans in _along(of)}
    places = [
        [(i, slice(None)) for i in range(len(after))]
        if after == before
        else [*_places(before, known[after])]
        for after, before in zip(y.chunks, sizes, strict=True)
    ]
    for index in itertools.product(*(range(len(along)) for along in sizes)):
        along = [place[i] for place, i in zip(places, index, strict=True)]
        key, source = (name, *index), (y.name, *(block for block, _ in along))
        yield key, Task(key, cut, TaskRef(source), tuple(cut for _, cut in along))


def _places(before: tuple[int, ...], spans: list[Span]) -> Iterator[tuple[int, slice]]:
    """Yield the united chunk that has each chunk, and where."""
    for block, span in enumerate(spans):
        at = 0
        for size in before[slice(*span)]:
            yield block, slice(at, at + size)
            at += size
