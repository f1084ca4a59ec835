"""Select the elements of masks, block by block, in C order.

Where blocks hold elements in C order one after the other, each block is selected from by itself,
and the results follow one another::

    x0, m0 --select--> y0      x0 --find--> 0 + where it is not zero
    x1, m1 --select--> y1      x1 --find--> size of x0 + ...
    x2, m2 --select--> y2      x2 --find--> size of x0 and x1 + ...

Other arrays are rechunked first. The lengths of the results are unknown unless masks are counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from operator import getitem
from typing import Any

import numpy as np
from dask.array.blockwise import blockwise
from dask.array.core import Array, new_da_object
from dask.blockwise import BlockwiseDep
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Alias, Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.monoids import COUNT_NONZERO
from dask_coop.algebra.operation import bind
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph.fusion import Blocks

Sizes = tuple[tuple[Any, ...], ...]

#: The number of elements of a block, and how many of them are not zero.
COUNTED = np.dtype([("size", "i8"), ("nonzero", "i8")])


def is_in_order(sizes: Sizes) -> bool:
    """Return whether blocks of these sizes hold elements in C order one after the other."""
    cut = [axis for axis, lengths in enumerate(sizes) if len(lengths) > 1]
    return not cut or all(n <= 1 for lengths in sizes[: cut[-1]] for n in lengths)


def in_order(sizes: Sizes) -> Sizes:
    """Return chunks in C order, about as many and as large as those of `sizes`."""
    cut = next(axis for axis, lengths in enumerate(sizes) if any(n > 1 for n in lengths))
    count = math.prod(len(lengths) for lengths in sizes[cut + 1 :])
    along = tuple(length for n in sizes[cut] for length in even(n, min(count, n)))
    return (*sizes[:cut], along, *((sum(lengths),) for lengths in sizes[cut + 1 :]))


def even(n: int, count: int) -> tuple[int, ...]:
    """Divide `n` into `count` lengths, at least one, that differ by at most one."""
    count = max(count, 1)
    return tuple(n // count + (i < n % count) for i in range(count))


def flatten(x: Array, sizes: Sequence[float]) -> Array:
    """Return `x`, whose blocks are in order and have the given sizes, along one axis."""
    name, layer = f"flatten-{tokenize(x)}", {}
    for number, index in enumerate(_blocks(x)):
        layer[name, number] = Task((name, number), _flatten, TaskRef((x.name, *index)))
    return _array(name, layer, x, (tuple(sizes),), chunks.zeros_like(x._meta, x.dtype, 1))


def count(mask: Array) -> Array:
    """Return the sizes and counts of nonzero elements of a mask's blocks, of dtype `COUNTED`."""
    name = f"count-{tokenize(mask)}"
    counted = _made(name, mask, Blocks(name, mask.ndim, _count, (mask,), {}))
    ones = tuple((1,) * n for n in mask.numblocks)
    return Array(counted.dask, name, ones, meta=np.empty((0,) * mask.ndim, COUNTED))


def select(x: Array, mask: Array, axis: int, lengths: Sequence[int] | None) -> Array:
    """Select elements of `x` by a mask of its axes from `axis` on; one axis replaces these.

    Parameters
    ----------
    x : dask.array.Array
    mask : dask.array.Array
        In the chunks of `x`, which are in order. It has one axis unless `axis` is 0.
    axis : int
    lengths : sequence of int, optional
        The number of elements that each of its blocks selects.
    """
    axes, stop = tuple(range(x.ndim)), axis + mask.ndim
    name = f"select-{tokenize(x, mask, axis, lengths)}"
    selected = blockwise(
        _select,
        axes,
        x,
        axes,
        mask,
        axes[axis:stop],
        **declared_by(x, mask),
        axis=axis,
        name=name if mask.ndim == 1 else f"select-block{name[6:]}",
        align_arrays=False,
        dtype=x.dtype,
        meta=x._meta,
    )
    along = _lengths(lengths, math.prod(mask.numblocks))
    sizes = (*x.chunks[:axis], along, *x.chunks[stop:])
    meta = chunks.zeros_like(x._meta, x.dtype, len(sizes))
    if mask.ndim == 1:
        return Array(selected.dask, name, sizes, meta=meta)
    layer: dict[Any, Any] = {}
    for number, index in enumerate(_blocks(mask)):
        for outer in itertools.product(*map(range, x.numblocks[stop:])):
            key = (name, number, *outer)
            layer[key] = Alias(key, (selected.name, *index, *outer))
    return _array(name, layer, selected, sizes, meta)


def find(x: Array, sizes: Sequence[int], lengths: Sequence[int] | None, form: str) -> list[Array]:
    """Return the indices of the nonzero elements of `x`, whose blocks are in order.

    Parameters
    ----------
    x : dask.array.Array
    sizes : sequence of int
        The number of elements of each block.
    lengths : sequence of int, optional
        The number of nonzero elements of each block.
    form : {"flatnonzero", "nonzero", "argwhere"}
        Indices in C order; an array of indices for each axis; or an array with a row for each
        element.
    """
    token = tokenize(x, sizes, lengths, form)
    starts = Starts(x.numblocks, (0, *itertools.accumulate(sizes[:-1])))
    # Dask would pass `starts` itself to a block without axes.
    named = {"start": starts} if x.ndim else {}
    arguments = {
        "rest": x.shape[1:],
        "form": form if x.ndim > 1 or form == "argwhere" else "flatnonzero",
    }
    indices = _made(
        f"find-{token}", x, Blocks(f"find-{token}", x.ndim, _find, (x,), named, **arguments)
    )
    along = _lengths(lengths, x.npartitions)
    like, width = chunks.unmasked(x._meta), (x.ndim,) if form == "argwhere" else ()
    meta = chunks.zeros_like(like, "i8", 1 + len(width))
    results = []
    for axis in range(x.ndim if form == "nonzero" else 1):
        name, layer = f"{form}-{axis}-{token}", {}
        for number, index in enumerate(_blocks(x)):
            key, source = (name, number, *(0 for _ in width)), (indices.name, *index)
            picked = form == "nonzero" and x.ndim > 1
            layer[key] = Task(key, getitem, TaskRef(source), axis) if picked else Alias(key, source)
        results.append(_array(name, layer, indices, (along, *((n,) for n in width)), meta))
    return results


class Starts(BlockwiseDep):  # type: ignore[misc]
    """The positions in C order where the blocks of an array begin."""

    produces_tasks = False

    def __init__(self, numblocks: tuple[int, ...], starts: tuple[int, ...]) -> None:
        self.numblocks: tuple[int, ...] = numblocks
        self._starts = starts

    def __getitem__(self, index: tuple[int, ...]) -> int:
        """Return the position where the block at an index begins."""
        return self._starts[np.ravel_multi_index(index, self.numblocks)]

    def __dask_tokenize__(self) -> Any:
        """Return the values that identify the positions in keys."""
        return type(self).__name__, self.numblocks, self._starts


def _blocks(x: Array) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, x.numblocks))


def _lengths(lengths: Sequence[int] | None, blocks: int) -> tuple[Any, ...]:
    return (math.nan,) * blocks if lengths is None else tuple(lengths)


def _made(name: str, x: Array, layer: Blocks) -> Array:
    """Return an array with the chunks of `x` from a layer."""
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[x])
    return Array(graph, name, x.chunks, meta=x._meta)


def _array(name: str, layer: dict[Any, Any], below: Array, sizes: Sizes, meta: Any) -> Array:
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[below])
    return new_da_object(graph, name, sizes, meta=meta)


# Inside the tasks.


def _flatten(x: Any) -> Any:
    return x.reshape(-1)


@casts
def _count(mask: Any) -> Any:
    """Return the size of a block and its number of nonzero elements, as an array of one element."""
    if mask.dtype.kind in COUNT_NONZERO.kinds:
        op = bind(COUNT_NONZERO, mask.dtype, COUNT_NONZERO.output(mask.dtype), "count_nonzero")
        (nonzero,) = chunks.backend_of(mask).lift(op, mask, tuple(range(mask.ndim)))
    else:
        nonzero = chunks.backend_of(mask).flatnonzero(mask).size
    return np.array([(mask.size, int(nonzero))], COUNTED).reshape((1,) * mask.ndim)


@casts
def _select(x: Any, mask: Any, *, axis: int) -> Any:
    """Return the elements of a block that a mask selects; masked entries of it select nothing."""
    if chunks.is_masked(mask):
        mask = np.ma.filled(mask, False)
    stop = axis + mask.ndim
    if mask.shape != x.shape[axis:stop]:
        raise IndexError(
            f"a block of shape {x.shape} does not fit its mask of shape {mask.shape}; chunks of "
            "unknown sizes must be equal"
        )
    backend, mask = chunks.backend_of(x), chunks.asarray(mask, chunks.kind(x))
    if mask.ndim == x.ndim:
        return backend.compress(x, mask)
    if mask.ndim != 1:
        x = x.reshape(mask.size, *x.shape[mask.ndim :])
    return x.take(backend.flatnonzero(mask), axis)


@casts
def _find(x: Any, *, rest: tuple[int, ...], form: str, start: int = 0) -> Any:
    """Return the indices of the nonzero elements of a block that begins at `start` of its array."""
    flat = chunks.backend_of(x).flatnonzero(x)
    flat += start
    if form == "flatnonzero":
        return flat
    indices = []
    for n in reversed(rest):
        above = flat // max(n, 1)
        indices.append(flat - above * n)
        flat = above
    indices = [*indices, flat][::-1] if x.ndim else []
    if form == "nonzero":
        return tuple(indices)
    return np.stack(indices, 1) if indices else np.zeros_like(flat, shape=(flat.size, 0))
