"""Windows that extend over a line of chunks.

A chunk's results need elements from three places before it. Only those near the ends of windows are
needed element by element::

            the window of s                        [             ]
            the window of e               [             ]
                                    old |   halo   |  between  | s    own    e |
    results of s to e:                    a state     one state    a state
                                          for each                 for each

A task holds the elements of its own results and as many of the halo, however long the window is.
The elements between are reduced chunk by chunk, and several chunks by a tree that all results
share::

    c0   c1   c2   c3   c4   c5        chunks 1 to 4 are c1, (c2 c3), c4
    `-- --'   `-- --'   `-- --'

Order statistics need all elements of a window, so their halo is as long as a window.

Centred windows are windows that end some elements later.

The areas between neighbouring samples, which a cumulative integral adds up, need one sample of the
chunk before: the first chunk has one area less than samples.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Alias, List, Task, TaskRef
from dask.tokenize import tokenize
from dask.utils import cached_cumsum

from dask_coop import chunks
from dask_coop.algebra.merges import choose, merge_deviations
from dask_coop.algebra.monoids import VAR, State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.windows import Window
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import tasks
from dask_coop.graph.fusion import add, owners
from dask_coop.graph.layers import Key, Layer, array
from dask_coop.graph.tasks import refs
from dask_coop.graph.threads import lift_by_threads, move_by_threads, shared, threads_for


def move(x: Array, window: Window, ahead: int, name: str) -> Array:
    """Return the statistic of the window of each element of an array.

    Parameters
    ----------
    x : dask.array.Array
        Its chunks along the window's axis have known lengths.
    window : Window
    ahead : int
        How many elements after its own element a window ends.
    name : str
        The prefix of keys.
    """
    chunks.kind(x._meta)
    threads = threads_for(x)
    token = tokenize(x, window, ahead, threads > 1)
    graph, layer = _Lines(x, window, (name, token), threads), Layer()
    others = (range(n) for d, n in enumerate(x.numblocks) if d != window.axis)
    for line in itertools.product(*others):
        for j in range(x.numblocks[window.axis]):
            key = (f"{name}-{token}", *graph.index(line, j))
            layer[key] = graph.result(key, line, j, ahead)
    whole, below = x.dask, {x.name}
    if graph.layer:
        inputs = f"{name}-parts-{token}"
        whole = add(whole, inputs, graph.layer, {*below})
        below = {*below, inputs}
    dtype = window.result(x.dtype)
    return array(whole, below, f"{name}-{token}", layer, x._meta, x.chunks, dtype)


def joined(arrays: Sequence[Array], axis: int, name: str) -> Array:
    """Return arrays one behind the other along an axis.

    Dask's concatenate would import CuPy, which a client may lack.
    """
    token, layer, lead = f"{name}-{tokenize(*arrays, axis)}", Layer(), 0
    for x in arrays:
        for index in itertools.product(*map(range, x.numblocks)):
            key = (token, *index[:axis], index[axis] + lead, *index[axis + 1 :])
            layer[key] = Alias(key, (x.name, *index))
        lead += x.numblocks[axis]
    graph = HighLevelGraph.merge(*(x.dask for x in arrays))
    sizes = list(arrays[0].chunks)
    sizes[axis] = tuple(n for x in arrays for n in x.chunks[axis])
    below = {x.name for x in arrays}
    return array(graph, below, token, layer, arrays[0]._meta, tuple(sizes), arrays[0].dtype)


class _Lines:
    """The inputs of the tasks of results: slices of chunks, and states of the elements between."""

    def __init__(self, x: Array, window: Window, names: tuple[str, str], threads: int) -> None:
        self.x, self.window, self.names, self.threads = x, window, names, threads
        self.starts = cached_cumsum(x.chunks[window.axis], initial_zero=True)
        self.layer = Layer()

    @functools.cached_property
    def op(self) -> Operation:
        """The operation that makes states of the elements between."""
        return self.window.operation(self.x.dtype)

    def index(self, line: Key, j: int) -> Key:
        """Return the index of a block of a line."""
        return (*line[: self.window.axis], j, *line[self.window.axis :])

    def result(self, key: Key, line: Key, j: int, ahead: int) -> Task:
        """Return the task of a block of results."""
        n, size = self.starts[-1], self.x.chunks[self.window.axis][j]
        begin = self.starts[j] + ahead
        # Results behind the array are made, and dropped.
        late, length = 0, max(1, min(self.window.length, size))
        if self.window.is_ordered:
            late, length = max(0, begin - n), self.window.length
            begin -= late
        oldest, newest = begin - self.window.length + 1, begin - self.window.length + length
        own = self.pieces(line, min(begin, n), min(begin + size, n))
        halo = self.pieces(line, max(0, oldest), max(0, newest))
        arguments: dict[str, Any] = {"late": late} if self.window.is_ordered else {"op": self.op}
        arguments |= shared(self.threads) | declared_by(own=self.x, halo=self.x)
        between = self.states(line, max(0, newest), min(begin, n))
        if between:
            arguments |= {"between": refs(between)}
        if not own:
            own = [TaskRef(self.slice(line, j, 0, 0))]
        return Task(
            key,
            reduce_windows,
            window=replace(self.window, length=length),
            size=size,
            own=List(*own),
            halo=List(*halo),
            **arguments,
        )

    def pieces(self, line: Key, begin: int, end: int) -> list[TaskRef]:
        """Return references to the slices that hold a line's elements from `begin` to `end`."""
        return [TaskRef(self.slice(line, *cut)) for cut in self.cuts(begin, end)]

    def cuts(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the blocks that have elements from `begin` to `end`, and the range within each."""
        if begin >= end:
            return
        first = int(np.searchsorted(self.starts, begin, "right")) - 1
        for j in range(first, len(self.starts) - 1):
            start, stop = int(self.starts[j]), int(self.starts[j + 1])
            if start >= end:
                return
            if start < stop:
                yield j, max(begin, start) - start, min(end, stop) - start

    def slice(self, line: Key, j: int, begin: int, end: int) -> Key:
        """Return the key of a slice of a block."""
        index = self.index(line, j)
        block = (self.x.name, *index)
        if begin == 0 and end == self.x.chunks[self.window.axis][j]:
            return block
        key = (f"{self.names[0]}-slice-{self.names[1]}", *index, begin, end)
        along = (*(slice(None),) * self.window.axis, slice(begin, end))
        self.layer[key] = Task(key, part_of, TaskRef(block), along)
        return key

    def states(self, line: Key, begin: int, end: int) -> list[Key]:
        """Return the keys of the states of neighbouring slices of a stretch, in order."""
        keys: list[Key] = []
        for whole, cuts in itertools.groupby(self.cuts(begin, end), self.is_whole):
            if not whole:
                keys += [self.lifted(line, self.slice(line, *cut), *cut) for cut in cuts]
                continue
            blocks = [j for j, *_ in cuts]
            # Empty blocks may lie between these.
            keys += [self.state(line, *node) for node in _cover(blocks[0], blocks[-1] + 1)]
        return keys

    def is_whole(self, cut: tuple[int, int, int]) -> bool:
        """Return whether a slice of a block is the whole block."""
        j, begin, end = cut
        return begin == 0 and end == self.x.chunks[self.window.axis][j]

    def state(self, line: Key, level: int, i: int) -> Key:
        """Return the key of the state of 2**level blocks, the first of them i * 2**level."""
        if level == 0:
            block = (self.x.name, *self.index(line, i))
            return self.lifted(line, block, i)
        key = (f"{self.names[0]}-combine-{self.names[1]}", *line, level, i)
        if key not in self.layer:
            halves = [self.state(line, level - 1, 2 * i), self.state(line, level - 1, 2 * i + 1)]
            combined = tasks.combine if self.op.monoid is not VAR else combine_deviations
            self.layer[key] = Task(key, combined, op=self.op, states=refs(halves))
        return key

    def lifted(self, line: Key, elements: Key, *cut: int) -> Key:
        """Return the key of the state of a block, or of a slice of one."""
        key = (f"{self.names[0]}-lift-{self.names[1]}", *line, *cut)
        arguments = {"op": self.op, "axes": (self.window.axis,), **shared(self.threads)}
        arguments |= declared_by(block=self.x)
        lift = lift_deviations if self.op.monoid is VAR else tasks.lift
        lift = lift_pairs if self.window.is_paired else lift
        self.layer[key] = Task(key, lift, **arguments, block=TaskRef(elements))
        return key


def _cover(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the fewest nodes (level, number) of a binary tree that cover some leaves, in order."""
    while begin < end:
        level = (end - begin).bit_length() - 1
        if begin:
            level = min(level, (begin & -begin).bit_length() - 1)
        yield level, begin >> level
        begin += 1 << level


# Inside the tasks.


def part_of(block: Any, along: tuple[slice, ...]) -> Any:
    """Return a slice of a block."""
    return block[along]


@casts
def lift_deviations(*, op: Operation, axes: tuple[int, ...], block: Any, threads: int = 1) -> State:
    """Return count, mean and squared deviations of a block, and the rounding error of the mean.

    Deviations are from the exact mean, because kernels combine means that are rounded.
    """
    count, mean, m2 = lift_by_threads(op, block, axes, None, threads)
    with np.errstate(all="ignore"):
        # Small states of CuPy chunks are on the host.
        beside = chunks.asarray(np.expand_dims(mean, axes), chunks.kind(block))
        away = block - beside
        # NaN where an element is infinite: it has no deviation from the mean.
        away = np.where(block == block, away, 0.0)
        total, squares = (
            chunks.asarray(field, chunks.kind(mean)) if np.ndim(mean) else float(field)
            for field in (away.sum(axes, dtype="f8"), (away * away).sum(axes, dtype="f8"))
        )
        short = total / np.maximum(count, 1)
        exact = squares - total * short
    return count, mean, choose(np.isfinite(exact), exact, m2), short


@casts
def lift_pairs(*, op: Operation, axes: tuple[int, ...], block: Any, threads: int = 1) -> State:
    """Return the state of a block of pairs."""
    pairs = {"block": block.real, "where": block.imag}
    state: State = tasks.lift(op=op, axes=axes, **pairs, threads=threads)
    return state


def combine_deviations(*, op: Operation, states: Sequence[State]) -> State:
    """Combine states of `lift_deviations`."""
    with np.errstate(all="ignore"):
        return functools.reduce(merge_deviations, states)


@casts
def reduce_windows(
    *,
    window: Window,
    size: int,
    own: Sequence[Any],
    halo: Sequence[Any],
    late: int = 0,
    op: Operation | None = None,
    between: Sequence[State] = (),
    threads: int = 1,
) -> Any:
    """Return `size` results of windows that end in `own`, or behind the array.

    The first `late` are dropped of more results.
    """
    for piece in (*own, *halo):
        chunks.refuse_masked(f"move_{window.statistic}", piece)
    axis = window.axis
    x = _joined(own, axis)
    before = _joined(halo, axis) if halo else _along(x, axis, slice(0))
    base: State | None = None
    if between and op is not None and op.monoid is VAR:
        base = combine_deviations(op=op, states=between)
    elif between and op is not None:
        base = window.keep(op, op.combine([*between]))
    size += late
    if x.shape[axis] != size:
        # NaN stands for the elements behind the array, and counts as missing.
        x = x if window.is_paired else x.astype(window.result(x.dtype), copy=False)
        shape = (*x.shape[:axis], size - x.shape[axis], *x.shape[axis + 1 :])
        x = np.concatenate([x, np.full_like(x, np.nan, shape=shape)], axis)
        before = before.astype(x.dtype, copy=False)
    results = move_by_threads(window, x, before, base, threads)
    return _along(results, axis, slice(late, None)) if late else results


def _joined(pieces: Sequence[Any], axis: int) -> Any:
    return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces], axis)


def _along(x: Any, axis: int, stretch: slice) -> Any:
    return x[(*(slice(None),) * axis, stretch)]


def areas(
    y: Array, places: Array | None, step: float, axis: int, dtype: np.dtype[Any], name: str
) -> Array:
    """Return the areas between neighbours along an axis: one less than there are samples.

    Parameters
    ----------
    y : dask.array.Array
        Has no empty chunks along the axis.
    places : dask.array.Array, optional
        The positions of the samples, in the chunks of `y` or of its axis.
    step : float
        The distance between samples if there are no `places`.
    axis : int
        Not negative.
    dtype : numpy.dtype
        The dtype of the result.
    name : str
        The prefix of keys.
    """
    token = tokenize(y, places, step, axis, dtype)
    sources = {"y": y} if places is None else {"y": y, "x": places}
    lasts: Layer = {}
    declared = declared_by(y=y, y_before=y, x=places, x_before=places)
    options: dict[str, Any] = {"step": step, "axis": axis, "dtype": dtype, **declared}
    layer: Layer = {}
    for index in itertools.product(*map(range, y.numblocks)):
        inputs: dict[str, TaskRef] = {}
        for of, source in sources.items():
            along = axis if source.ndim == y.ndim else 0
            block = index if source.ndim == y.ndim else (index[axis],)
            inputs[of] = TaskRef((source.name, *block))
            if not index[axis]:
                continue
            before = (*block[:along], block[along] - 1, *block[along + 1 :])
            last: Key = (f"{name}-last-{of}-{token}", *before)
            lasts[last] = Task(last, _last, TaskRef((source.name, *before)), axis=along)
            inputs[f"{of}_before"] = TaskRef(last)
        key = (f"{name}-areas-{token}", *index)
        layer[key] = Task(key, areas_of_block, **inputs, **options)
    graph = HighLevelGraph.merge(*(source.dask for source in sources.values()))
    if lasts:
        graph = add(graph, f"{name}-last-{token}", lasts)
    first, *others = y.chunks[axis]
    sizes = (*y.chunks[:axis], (first - 1, *others), *y.chunks[axis + 1 :])
    name = f"{name}-areas-{token}"
    return array(graph, owners(graph, layer), name, layer, y._meta, sizes, dtype)


# Inside the tasks.


def _last(block: Any, *, axis: int) -> Any:
    # A copy: a view would keep the chunk in memory.
    return block[(*(slice(None),) * axis, slice(-1, None))].copy()


@casts
def areas_of_block(
    *,
    y: Any,
    y_before: Any = None,
    x: Any = None,
    x_before: Any = None,
    step: float,
    axis: int,
    dtype: np.dtype[Any],
) -> Any:
    """Return the areas between the samples of a block and the last one before it."""
    areas = _with_neighbours(np.add, y, y_before, axis, dtype)
    if x is None:
        areas *= step / 2
        return areas
    kind = chunks.kind(y)
    x = chunks.asarray(x, kind)
    x_before = None if x_before is None else chunks.asarray(x_before, kind)
    widths = _with_neighbours(np.subtract, x, x_before, axis if x.ndim == y.ndim else 0, dtype)
    if x.ndim < y.ndim:
        widths = widths.reshape([-1 if d == axis else 1 for d in range(y.ndim)])
    areas *= widths
    areas /= 2
    return areas


def _with_neighbours(function: Any, x: Any, before: Any, axis: int, dtype: np.dtype[Any]) -> Any:
    """Return a function of each element and the one before it, if there is one."""
    before_axis = (slice(None),) * axis
    x = x.astype(dtype, copy=False)
    out = np.empty_like(x)
    if before is not None:
        first = (*before_axis, slice(1))
        function(x[first], before.astype(dtype, copy=False), out=out[first])
    later = (*before_axis, slice(1, None))
    function(x[later], x[(*before_axis, slice(-1))], out=out[later])
    return out[later] if before is None else out
