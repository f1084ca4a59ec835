"""The cross-chunk step of a reduction: a tree.

A reduction lifts every chunk and combines the states up a tree; the last task also finalizes::

    x0 --lift--> s0 -+
    x1 --lift--> s1 -+-combine--> s01 -+
    x2 --lift--> s2 -+                 +-aggregate--> result          k + tree
    x3 --lift--> s3 -+-combine--> s23 -+

Messages are states: NumPy scalars or small arrays. A task combines 16 of them, and fewer where they
are known to be large, so that those of many chunks never meet in one.

Everything here builds graphs and nothing computes; what tasks do is in `dask_coop.graph.tasks`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from dask import config
from dask.array.core import Array, new_da_object
from dask.blockwise import BlockwiseDep
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.tokenize import tokenize
from dask.utils import cached_cumsum

from dask_coop import chunks
from dask_coop.algebra.counted import Counted, counted, masked
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.errors import Declined
from dask_coop.graph import executor, tasks
from dask_coop.graph.fusion import Blocks, add
from dask_coop.graph.parts import shared, threads_for
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.tasks import refs

#: States that one task of a tree takes, if they are not large.
FAN_IN = 16

Key = tuple[Any, ...]
Layer = dict[Any, Task]
Finalize = tasks.Finalize


def reduction(
    op: Operation,
    x: Array,
    axes: tuple[int, ...],
    keepdims: bool,
    split_every: int | dict[int, int] | None,
    outputs: Mapping[str, tuple[Finalize, Any]],
    where: Array | None = None,
    shape: tuple[float, ...] = (),
) -> list[Array]:
    """Reduce `x` over `axes`, once, to one array for each of `outputs`.

    Parameters
    ----------
    op : Operation
    x : dask.array.Array
    axes : tuple of int
        Sorted and not negative.
    keepdims : bool
        Whether reduced axes stay, with length one, or with that of what states have of a line.
    split_every : int, dict of int to int, or None
        States combined by one task, in all or by axis.
    outputs : mapping of str to (callable, dtype)
        Name, function from the last state to the result, and dtype of each array.
    where : dask.array.Array, optional
        Which elements are reduced: bool, in the chunks of `x`.
    shape : tuple of int or nan
        That of what a state makes, where it is more than one element for each line.
    """
    to = chunks.kind(x._meta)
    kept = [d for d in range(x.ndim) if keepdims or d not in axes]
    # Results of several entries have an axis for them.
    expand = axes if keepdims and op.monoid.entries is None else ()
    fan_in = find_fan_in(split_every, axes, block_bytes(op, x, axes))
    name = next(iter(outputs)) if len(outputs) == 1 else op.monoid.name
    if chunks.is_masked(x._meta) and not op.monoid.fills_masked:
        op = replace(op, monoid=counted(op.monoid))
        outputs = {key: (partial(masked, end), dtype) for key, (end, dtype) in outputs.items()}
    arrays = [x] if where is None else [x, where]
    if (run := executor.runner()) is not None:
        groups_now = run.states(op, arrays, axes)
        return [_reduced(op, kept, expand, of, groups_now) for of in outputs.values()]
    threads = threads_for(x)
    token = tokenize(op, arrays, axes, keepdims, fan_in, threads > 1)
    # Several outputs share the last state, so the tree goes down to one.
    limit = fan_in if len(outputs) == 1 else 1
    graph, below, groups = _states(op, arrays, axes, (name, token), threads, fan_in, limit)

    out_chunks = tuple(_length(op, x, d) if d in axes else x.chunks[d] for d in kept)
    out_chunks += tuple((n,) for n in shape)
    like = x._meta if isinstance(op.monoid, Counted) else chunks.unmasked(x._meta)
    results = []
    for output, (finalize, dtype) in outputs.items():
        out_name = f"{output}-{tokenize(token, finalize, dtype)}"
        out_layer: Layer = {}
        for index, keys in groups.items():
            key = (out_name, *(index[d] for d in kept), *(0,) * len(shape))
            out_layer[key] = Task(
                key,
                tasks.aggregate,
                op=op,
                finalize=finalize,
                dtype=dtype,
                expand=expand,
                to=to,
                states=refs(keys),
            )
        results.append(array(graph, {below}, out_name, out_layer, like, out_chunks, dtype))
    return results


def value(
    op: Operation,
    x: Array,
    name: str,
    finalize: Callable[[State], Any],
    axes: tuple[int, ...] | None = None,
) -> Delayed:
    """Reduce `x` over `axes`, all by default, to any one Python object.

    Along other axes, `x` is one chunk. What comes back is lazy, or at once the object itself.
    """
    axes = tuple(range(x.ndim)) if axes is None else axes
    if (run := executor.runner()) is not None:
        (states,) = run.states(op, [x], axes).values()
        return tasks.evaluate(op=op, finalize=finalize, states=states)
    threads = threads_for(x)
    token = tokenize(op, x, finalize, axes, threads > 1)
    fan_in = at_a_time(FAN_IN, block_bytes(op, x, axes))
    graph, below, groups = _states(op, [x], axes, (name, token), threads, fan_in, fan_in)
    (keys,) = groups.values()
    key = f"{name}-{token}"
    task = Task(key, tasks.evaluate, op=op, finalize=finalize, states=refs(keys))
    return Delayed(key, add(graph, key, {key: task}, {below}))


def derive(name: str, function: Callable[..., Any], *args: Any) -> Delayed:
    """Call `function` in a task of its own.

    Arguments may be lazy, or lists that hold what is: Delayed objects, and arrays, which arrive in
    one block.
    """
    key = f"{name}-{tokenize(function, *args)}"
    lazy: list[Any] = []

    def refer(part: Any) -> Any:
        if isinstance(part, list):
            return List(*map(refer, part))
        if isinstance(part, Array):
            lazy.append(part.rechunk(-1) if part.npartitions > 1 else part)
            return TaskRef((lazy[-1].name, *(0,) * part.ndim))
        if isinstance(part, Delayed):
            lazy.append(part)
            return TaskRef(part.key)
        return part

    referring = [*map(refer, args)]
    if executor.runner() is not None:
        if lazy:
            raise Declined(f"{name} are lazy")
        return function(*args)
    task = Task(key, function, *referring)
    return Delayed(key, HighLevelGraph.from_collections(key, {key: task}, dependencies=lazy))


def _states(
    op: Operation,
    arrays: Sequence[Array],
    axes: tuple[int, ...],
    names: tuple[str, str],
    threads: int,
    fan_in: int,
    limit: int,
) -> tuple[HighLevelGraph, str, dict[Key, list[Key]]]:
    """Return a graph with the lifts of all blocks, and of what masks them, and their trees.

    Also the name of its last layer, and the keys of the states that are left, at most `limit`, by
    the index of the block that is made of them (0 along `axes`).
    """
    x, named = arrays[0], dict(zip(("block", "where"), arrays, strict=False))
    if op.monoid.positional:
        named["origin"] = Origins(x, axes)
    lifted = f"{names[0]}-lift-{names[1]}"
    given = {"op": op, "axes": axes, **shared(threads)}
    layer = Blocks(lifted, x.ndim, tasks.lift, (), named, **given)
    graph = HighLevelGraph.from_collections(lifted, layer, dependencies=arrays)
    groups: dict[Key, list[Key]] = {}
    for index in itertools.product(*map(range, x.numblocks)):
        group = tuple(0 if d in axes else i for d, i in enumerate(index))
        groups.setdefault(group, []).append((lifted, *index))
    return trees(graph, lifted, op, groups, names, fan_in, limit)


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


def _length(op: Operation, x: Array, axis: int) -> tuple[float]:
    """Return the chunks of a result along an axis of `x` that is reduced and stays."""
    n, entries = x.shape[axis], op.monoid.entries
    if entries is None:
        return (1,)
    # What is not known may be less.
    return (min(n, entries) if n == n else n,)


def _reduced(
    op: Operation,
    kept: Sequence[int],
    expand: tuple[int, ...],
    output: tuple[Finalize, Any],
    groups: executor.Groups,
) -> Any:
    """Make the result of all states of a reduction, in NumPy."""
    finalize, dtype = output
    return joined(
        {
            tuple(index[d] for d in kept): tasks.aggregate(
                op=op, finalize=finalize, dtype=dtype, expand=expand, to="numpy", states=states
            )
            for index, states in groups.items()
        }
    )


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
