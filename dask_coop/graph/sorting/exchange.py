"""Sort the elements of several chunks without gathering them: sort chunks, exchange slices, merge.

::

    x0 --sort--> run 0 -+-sample-+          +-cut--> 0..2 -+
    x1 --sort--> run 1 -+-sample-+-divide --+-cut--> 0..1 -+-merge--> y0      least elements
    x2 --sort--> run 2 -+-sample-+          +-cut--> 0..4 -+
                                            +-cut--> 2..5 -...-merge--> y1    those that follow

Samples tell where exactly to divide runs (`dask_coop.algebra.splitters`), mostly in three rounds,
so that the sizes of the results are known when the graph is built. A chunk is sorted by one task,
and a result merged by another one. Neither holds more than one chunk of elements and its copy.

The slices of all runs for all results would be too many tasks for many chunks. Then the runs of
each of about sqrt(k) groups are merged first, for groups of results, and these are cut for results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.operation import Origin
from dask_coop.algebra.splitters import Brackets, first_brackets, narrow, rounds
from dask_coop.chunks.dtypes import casts
from dask_coop.graph.fusion import Blocks
from dask_coop.graph.layers import Key, Layer, Origins, array
from dask_coop.graph.tasks import refs

#: Sorted elements, and what belongs to each of them, if anything.
Run = tuple[Any, ...]

#: The most runs whose slices are merged by one task, unless there are more than the square of it.
MERGED = 32


def sort(x: Array, sizes: Sequence[int], *, indices: bool, stable: bool) -> Array:
    """Return the sorted elements of `x`, or the indices that sort them, in chunks of these sizes.

    Parameters
    ----------
    x : dask.array.Array
        Of one axis, without empty chunks, in native byte order.
    sizes : sequence of int
    indices : bool
    stable : bool
        Whether equal elements, or their indices, stay in their order.
    """
    name, lengths = "argsort" if indices else "sort", x.chunks[0]
    token = tokenize(x, sizes, indices, stable)
    named = {"origin": Origins(x, (0,))} if indices else {}
    make = argsort_chunk if indices else sort_chunk
    runs = Blocks(f"{name}-run-{token}", 1, make, [x], named, stable=stable)
    graph = HighLevelGraph.from_collections(runs.output, runs, dependencies=[x])
    keys = [(runs.output, i) for i in range(len(lengths))]
    layer: Layer = {}
    ranks = np.cumsum(sizes)[:-1].tolist()
    divided = divide_runs(layer, f"{name}-{{}}-{token}", keys, lengths, ranks)
    out = f"{name}-{token}"
    merge = Merge(layer, f"{name}-{{}}-{token}", divided, {"stable": stable})
    merge.all(keys, [(out, j) for j in range(len(sizes))])
    dtype = np.dtype("i8") if indices else x.dtype
    return array(graph, {runs.output}, out, layer, x._meta, (tuple(sizes),), dtype)


def divide_runs(
    layer: Layer, name: str, runs: Sequence[Key], lengths: Sequence[int], ranks: Sequence[int]
) -> TaskRef:
    """Add tasks that divide runs at `ranks`; return a reference to where, as `cut` takes it."""
    brackets: Any = first_brackets(lengths)
    last = rounds(lengths, len(ranks)) - 1
    for number in range(last + 1):
        keys = [(name.format("sample"), number, i) for i in range(len(runs))]
        for i, (key, run) in enumerate(zip(keys, runs, strict=True)):
            layer[key] = Task(key, sample, TaskRef(run), brackets, i)
        place = (name.format("divide"), number)
        ends = {"lengths": lengths} if number == last else {}
        layer[place] = Task(place, divide, brackets, ranks, refs(keys), **ends)
        brackets = TaskRef(place)
    return brackets


class Merge:
    """Adds tasks that merge slices of runs to a layer."""

    def __init__(self, layer: Layer, name: str, divided: TaskRef, options: dict[str, Any]) -> None:
        self._layer, self._name, self._divided, self._options = layer, name, divided, options

    def all(self, runs: Sequence[Key], results: Sequence[Key], last: bool = True) -> None:
        """Add the tasks that make all results of all runs; runs again unless these are `last`."""
        sources = [(run, (i, i + 1)) for i, run in enumerate(runs)]
        if len(runs) <= MERGED:
            for j, key in enumerate(results):
                self._slices(sources, key, (0, j, j + 1), last)
            return
        many = math.isqrt(len(runs) - 1) + 1
        wide = -(-len(results) // many)
        for first in range(0, len(results), wide):
            end = min(first + wide, len(results))
            merged = []
            for i in range(0, len(runs), many):
                key = (self._name.format("merge"), i, first)
                self._slices(sources[i : i + many], key, (0, first, end))
                merged.append((key, (i, min(i + many, len(runs)))))
            for j in range(first, end):
                self._slices(merged, results[j], (first, j, j + 1), last)

    def _slices(
        self,
        sources: Sequence[tuple[Key, tuple[int, int]]],
        key: Key,
        columns: tuple[int, int, int],
        last: bool = False,
    ) -> None:
        """Add the task `key`, which merges slices of runs, and those that cut them."""
        cuts = []
        for run, rows in sources:
            cuts.append((self._name.format("cut"), rows, *columns))
            task = Task(cuts[-1], cut, TaskRef(run), self._divided, rows, columns)
            self._layer[cuts[-1]] = task
        self._layer[key] = Task(key, merge, refs(cuts), last=last, **self._options)


# Inside the tasks.


@casts
def sort_chunk(x: Any, *, stable: bool) -> Run:
    """Return the sorted elements of a chunk."""
    return (chunks.backend_of(x).sort(x, -1, stable),)


@casts
def argsort_chunk(x: Any, *, stable: bool, origin: Origin) -> Run:
    """Return the sorted elements of a chunk, and their indices in the array."""
    order = chunks.backend_of(x).argsort(x, -1, stable)
    ((begin, _),) = origin
    return x[order], order + begin


def sample(run: Run, brackets: Brackets, number: int) -> Any:
    """Return samples of a run, on the host."""
    return chunks.asarray(run[0][brackets.positions(number)], "numpy")


def divide(
    brackets: Brackets,
    ranks: Sequence[int],
    samples: Sequence[Any],
    lengths: Sequence[int] | None = None,
) -> Any:
    """Return narrower brackets, or with `lengths` where runs begin, are divided, and end."""
    brackets = narrow(brackets, ranks, samples)
    if lengths is None:
        return brackets
    return np.concatenate([np.zeros((1, len(lengths)), "i8"), brackets.low, [lengths]])


def cut(run: Run, divided: Any, rows: tuple[int, int], columns: tuple[int, int, int]) -> Run:
    """Return a slice of a run, which was merged of several ones from some division on."""
    first, begin, end = (divided[j, slice(*rows)].sum() for j in columns)
    return tuple(field[begin - first : end - first] for field in run)


def merge(slices: Sequence[Run], *, stable: bool, last: bool) -> Any:
    """Return the run that several slices make, or at `last` its result."""
    keys, *others = zip(*slices, strict=True)
    backend = chunks.backend_of(keys[0])
    if not others:
        merged = backend.merge_sorted(keys, stable)
        return merged if last else (merged,)
    joined: list[Any] = [*map(np.concatenate, (keys, *others))]
    order = backend.argsort(joined[0], -1, True)
    return joined[-1][order] if last else tuple(field[order] for field in joined)
