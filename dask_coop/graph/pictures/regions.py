"""The cross-chunk step of connected regions: which labels of neighbouring chunks touch.

Chunks are labelled by themselves, and only their faces travel. One task unites the labels that
touch and numbers them, in C order of the first elements of the regions::

    chunk 0 --label--> labels --faces-+                          +-renumber--> labels of chunk 0
                           '--firsts--|-+                        |
                                      | +--unite--> tables ------+
                           .--firsts--|-+                        |
    chunk 1 --label--> labels --faces-+--touching--> pairs       +-renumber--> labels of chunk 1

Chunks also touch along edges and at corners, as far as the structure has diagonal neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from operator import getitem
from typing import Any

import numpy as np
from dask.array.core import Array, new_da_object
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.merges import equals
from dask_coop.algebra.monoids import ARGMAX
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.chunks.dtypes import casts
from dask_coop.graph.fusion import Blocks, add
from dask_coop.graph.layers import Key, Layer, array, origin
from dask_coop.graph.tasks import refs

Labels = np.ndarray[Any, Any]
#: The first and the last plane of a block's labels along each axis, by axis and side, -1 or 1.
Faces = Mapping[tuple[int, int], Labels]

#: Finds the first element of each label: the first that is true.
_FIRST = Operation(ARGMAX, np.dtype("?"), np.dtype("i8"))


def label(x: Array, structure: Labels) -> tuple[Array, Array]:
    """Return the labels of the connected nonzero elements of `x`, and the number of labels.

    Parameters
    ----------
    x : dask.array.Array
        Its chunks have known lengths, none of them 0.
    structure : numpy.ndarray of bool
        The neighbours that connect, of length 3 along each axis of `x`, and symmetric.
    """
    token = tokenize(x, structure)
    # SciPy's dtype.
    dtype = np.dtype("i4" if x.size < 2**31 - 2 else "i8")
    name, blocks = f"label-{token}", [*itertools.product(*map(range, x.numblocks))]
    local, total = f"label-chunks-{token}", f"label-count-{token}"
    layer = Blocks(local, x.ndim, label_block, (x,), {}, structure=structure, dtype=dtype)
    graph = HighLevelGraph.from_collections(local, layer, dependencies=[x])
    if len(blocks) == 1:
        # SciPy and CuPy number the regions of a block as those of the array are.
        only = new_da_object(graph, local, x.chunks, meta=x._meta, dtype=dtype)
        last: Key = (total,)
        most = {last: Task(last, largest, TaskRef((local, *blocks[0])))}
        return only, array(graph, {local}, total, most, x._meta, (), np.dtype("i8"))
    neighbours = [*_neighbours(structure)]
    sides, firsts, pairs = Layer(), Layer(), Layer()
    owners: list[int] = []
    later: list[tuple[int, ...]] = []
    numbers: dict[Key, int] = {block: number for number, block in enumerate(blocks)}
    for block in blocks:
        labels = TaskRef((local, *block))
        place = origin(x.chunks, tuple(range(x.ndim)), block)
        first: Key = (f"label-firsts-{token}", *block)
        firsts[first] = Task(first, firsts_of, labels, place)
        near = {
            toward: (f"label-faces-{token}", *other)
            for toward in neighbours
            if (other := tuple(map(sum, zip(block, toward, strict=True)))) in numbers
        }
        side: Key = (f"label-faces-{token}", *block)
        sides[side] = Task(side, faces_of, labels)
        if near:
            owners.append(numbers[block])
            later.append(tuple(numbers[key[1:]] for key in near.values()))
            touching: Key = (f"label-touching-{token}", *block)
            pairs[touching] = Task(
                touching, touching_labels, TaskRef(side), refs(near.values()), [*near], structure
            )
    united: Key = (f"label-unite-{token}",)
    tables: Layer = {
        united: Task(united, unite, refs(firsts), refs(pairs), owners, later, dtype),
    }
    ranks, results = Layer(), Layer()
    for block in blocks:
        rank: Key = (f"label-tables-{token}", *block)
        ranks[rank] = Task(rank, getitem, TaskRef(united), 1 + numbers[block])
        key = (name, *block)
        results[key] = Task(key, renumber, TaskRef((local, *block)), TaskRef(rank))
    for tasks in (firsts, sides, pairs, tables, ranks):
        if tasks:
            graph = add(graph, next(iter(tasks))[0], tasks)
    count: Layer = {(total,): Task((total,), number_of, TaskRef(united), chunks.kind(x._meta))}
    return (
        array(graph, {local, f"label-tables-{token}"}, name, results, x._meta, x.chunks, dtype),
        array(graph, {united[0]}, total, count, x._meta, (), np.dtype("i8")),
    )


def _neighbours(structure: Labels) -> Iterator[tuple[int, ...]]:
    """Yield the directions of later blocks whose elements may be neighbours of a block's."""
    ahead = itertools.product((-1, 0, 1), repeat=structure.ndim)
    for toward in ahead:
        if toward > (0,) * structure.ndim and structure[_reach(toward)].any():
            yield toward


def _reach(toward: Sequence[int]) -> tuple[Any, ...]:
    """Return the index of a structure's elements that lie in a block in some direction."""
    return tuple(1 + step if step else slice(None) for step in toward)


# Inside the tasks.


@casts
def label_block(block: Any, *, structure: Labels, dtype: np.dtype[Any]) -> Any:
    """Return the labels of a block's own regions, from 1 on."""
    chunks.refuse_masked("label", block)
    labels = chunks.backend_of(block).label(~equals(block, np.zeros_like(block)), structure)
    return labels.astype(dtype, copy=False)


def largest(labels: Any) -> Any:
    """Return the largest of a block's labels."""
    return labels.max().astype("i8")


def firsts_of(labels: Any, place: Origin) -> Labels:
    """Return the index of the first element of each label among all elements of the array."""
    flat = labels.reshape(-1)
    n = int(flat.max())
    if not n:
        return np.zeros(0, "i8")
    if chunks.kind(flat) == "numpy":
        # The last assignment stays.
        index = np.zeros(n + 1, "i8")
        index[flat[::-1]] = np.arange(flat.size)[::-1]
        index = index[1:]
    else:
        ((_, index),) = chunks.backend_of(flat).lift_groups([_FIRST], flat > 0, flat - 1, n)
        index = chunks.asarray(index, "numpy")
    result = np.zeros(n, "i8")
    # NumPy has no places along no axes.
    at_axes = np.unravel_index(index, labels.shape) if place else ()
    for (start, length), at in zip(place, at_axes, strict=True):
        result = result * length + start + at
    return result


def faces_of(labels: Any) -> Faces:
    """Return the outermost planes of a block's labels."""
    return {
        # Copies, which keep no chunk in memory.
        (axis, side): chunks.asarray(
            labels[(*(slice(None),) * axis, 0 if side < 0 else -1)].copy(), "numpy"
        )
        for axis in range(labels.ndim)
        for side in (-1, 1)
    }


def touching_labels(
    faces: Faces, others: Sequence[Faces], directions: Sequence[Sequence[int]], structure: Labels
) -> list[Labels]:
    """Return the pairs of labels of a block and of each of its later neighbours that touch."""
    results = []
    for other, toward in zip(others, directions, strict=True):
        here, there = _plane(faces, toward), _plane(other, [-step for step in toward])
        near = structure[_reach(toward)]
        pairs = [np.zeros((0, 2), "i8")]
        for shift in np.argwhere(near) - 1:
            a, b = here[_shifted(-shift)], there[_shifted(shift)]
            both = (a > 0) & (b > 0)
            pairs.append(_distinct(a[both], b[both]))
        results.append(_distinct(*np.concatenate(pairs).T))
    return results


def _plane(faces: Faces, toward: Sequence[int]) -> Labels:
    """Return the outermost labels in a direction, without the axes along which it leads."""
    axis = next(d for d, step in enumerate(toward) if step)
    plane = faces[axis, toward[axis]]
    ends: dict[int, Any] = {-1: 0, 0: slice(None), 1: -1}
    index = [ends[step] for step in toward]
    outermost: Labels = plane[(*index[:axis], *index[axis + 1 :])]
    return outermost


def _shifted(shift: Labels) -> tuple[slice, ...]:
    """Return the index of the elements that have others ahead of them by a shift."""
    return tuple(slice(max(step, 0), min(step, 0) or None) for step in shift.tolist())


def _distinct(a: Labels, b: Labels) -> Labels:
    """Return the distinct pairs of elements, a row each."""
    width = int(b.max(initial=0)) + 1
    keys = np.unique(a.astype("i8") * width + b)
    return np.stack([keys // width, keys % width], 1)


def unite(
    firsts: Sequence[Labels],
    pairs: Sequence[Sequence[Labels]],
    owners: Sequence[int],
    later: Sequence[Sequence[int]],
    dtype: np.dtype[Any],
) -> list[Any]:
    """Return the number of regions, and for each block a table from its labels to the array's.

    Parameters
    ----------
    firsts : list of numpy.ndarray
        The first element of each label of each block.
    pairs : list of list of numpy.ndarray
        Pairs of labels that touch: of some blocks and each of their later neighbours.
    owners, later : lists of int
        The numbers of these blocks, and of their neighbours.
    """
    starts = np.cumsum([0, *map(len, firsts)])
    first = np.concatenate(firsts)
    edges = [np.zeros((0, 2), "i8")]
    for block, others, neighbours in zip(owners, later, pairs, strict=True):
        for other, touching in zip(others, neighbours, strict=True):
            edges.append(touching + np.array([starts[block] - 1, starts[other] - 1]))
    # Most regions touch no other block.
    ends, edge = np.unique(np.concatenate(edges), return_inverse=True)
    root = np.arange(len(first))
    root[ends] = ends[_united(len(ends), edge.reshape(-1, 2))]
    moved = np.flatnonzero(root != np.arange(len(root)))
    np.minimum.at(first, root[moved], first[moved])
    roots = np.flatnonzero(root == np.arange(len(root)))
    ranks = np.zeros(len(root), dtype)
    # The regions of a block are in order: few runs to merge.
    ranks[roots[np.argsort(first[roots], kind="stable")]] = np.arange(1, len(roots) + 1)
    numbers, nothing = ranks[root], np.zeros(1, dtype)
    tables = (numbers[a:b] for a, b in itertools.pairwise(starts.tolist()))
    return [len(roots), *(np.concatenate([nothing, table]) for table in tables)]


def _united(n: int, edges: Labels) -> Labels:
    """Return the least member of each element's set, where edges unite sets.

    In each round the larger of two roots that an edge connects points to the smaller, and then all
    elements to their roots.
    """
    root = np.arange(n)
    a, b = edges.T
    while len(a):
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while ((above := root[root]) != root).any():
            root = above
        a, b = root[a], root[b]
        apart = a != b
        a, b = a[apart], b[apart]
    return root


@casts
def renumber(labels: Any, table: Labels) -> Any:
    """Return a block's labels among those of the array."""
    return chunks.asarray(table, chunks.kind(labels))[labels]


def number_of(united: Sequence[Any], to: str) -> Any:
    """Return the number of regions as an array without axes."""
    return chunks.asarray(np.asarray(united[0]), to)
