"""Tasks that write the blocks of an array somewhere, and one that waits for all of them.

    block -> write --+
    block -> write --+--> wait --> finish --> open the stored array --> read its blocks
    block -> write --+

Blocks that an earlier computation has written are left out, with all that would make them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Protocol

import numpy as np
from dask.array.core import Array, slices_from_chunks
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef

from dask_coop.algebra.operation import Origin
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.files import Direct
from dask_coop.graph.fusion import add
from dask_coop.graph.layers import Origins, origin
from dask_coop.graph.transfer import Configured, copy_to_host

#: The most tasks that one task waits for.
_FAN_IN = 128

Start = tuple[int, ...]


class Target(Protocol):
    """Where blocks are written."""

    def write(self, block: Any, start: Start) -> None:
        """Write a block on the host that begins there."""

    def finish(self) -> None:
        """Clear up after all blocks have been written."""


@casts
def write(block: Any, where: Origin, *, target: Target, nbytes: int | None, direct: Direct) -> None:
    """Write a block to `target`; `where` says where it begins."""
    target.write(copy_to_host(block, nbytes, direct), tuple(start for start, _ in where))


def wait(_: list[None]) -> None:
    """Return None once other tasks have."""


def finish(_: list[None], *, target: Target) -> None:
    """Finish `target`, once other tasks have returned None."""
    target.finish()


def writes(x: Array, target: Target, name: str, written: set[Start], options: Configured) -> Array:
    """Return an array without axes, which is None once all blocks are written.

    Parameters
    ----------
    x : Array
    target : Target
    name : str
        Of the result.
    written : set of tuple of int
        Where blocks begin that are written already.
    options : Configured
        Of copies to the host.
    """
    axes = tuple(range(x.ndim))
    of_blocks = f"write-{name}"
    nbytes, direct = options
    layer = blockwise(
        write,
        of_blocks,
        axes,
        x.name,
        axes,
        Origins(x, axes),
        axes,
        numblocks={x.name: x.numblocks},
        target=target,
        nbytes=nbytes,
        direct=direct,
        **declared_by(x),
    )
    graph = HighLevelGraph.from_collections(of_blocks, layer, dependencies=[x])
    keys: list[Any] = [
        (of_blocks, *index)
        for index in product(*map(range, x.numblocks))
        if tuple(start for start, _ in origin(x.chunks, axes, index)) not in written
    ]
    waits: dict[Any, Task] = {}
    level = 0
    while len(keys) > _FAN_IN:
        groups = [keys[i : i + _FAN_IN] for i in range(0, len(keys), _FAN_IN)]
        keys = [(f"wait-{name}", level, i) for i in range(len(groups))]
        waits |= {key: Task(key, wait, _all(g)) for key, g in zip(keys, groups, strict=True)}
        level += 1
    below = of_blocks
    if waits:
        below = f"wait-{name}"
        graph = add(graph, below, waits, {of_blocks})
    if not keys:
        # Dask culls nothing below tasks without inputs.
        graph, below = HighLevelGraph({of_blocks: {}}, {of_blocks: set()}), of_blocks
    last = {(name,): Task((name,), finish, _all(keys), target=target)}
    return Array(add(graph, name, last, {below}), name, (), dtype=object)


def _all(keys: list[Any]) -> List:
    return List(*map(TaskRef, keys))


def stored(done: Array, source: Any, sizes: Any, begin: Start, name: str) -> Array:
    """Return the array that is stored somewhere, read once the task of `done` has run.

    Parameters
    ----------
    done : Array
        The result of `writes`.
    source : array_like
        Reads what its index takes.
    sizes : tuple of tuple of int
        The lengths of chunks along each axis.
    begin : tuple of int
        Where the first one begins in `source`.
    name : str
        Of the result.
    """
    first = f"open-{name}"
    opens = {first: Task(first, after, source, TaskRef((done.name,)))}
    reads = dict(_reads(name, first, sizes, begin))
    graph = add(add(done.dask, first, opens, {done.name}), name, reads, {first})
    meta = np.empty((0,) * len(sizes), source.dtype)
    return Array(graph, name, sizes, meta=meta)


def _reads(name: str, source: str, sizes: Any, begin: Start) -> Iterator[tuple[Any, Task]]:
    indices = product(*(range(len(lengths)) for lengths in sizes))
    for index, slices in zip(indices, slices_from_chunks(sizes), strict=True):
        key = (name, *index)
        at = tuple(slice(s.start + n, s.stop + n) for s, n in zip(slices, begin, strict=True))
        yield key, Task(key, read, TaskRef(source), at)


def after(source: Any, _: None) -> Any:
    """Return `source`, once another task has returned None."""
    return source


def read(source: Any, slices: tuple[slice, ...]) -> Any:
    """Return a block of `source`."""
    # NumPy's numbers are of the machine's byte order.
    return np.asarray(source[slices]).astype(source.dtype, copy=False)
