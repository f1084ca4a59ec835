"""The cross-chunk step of a reduction: a tree. That of a scan is in spine_scan.py.

A reduction lifts every chunk and combines the states up a tree; the last task also finalizes::

    x0 --lift--> s0 -+
    x1 --lift--> s1 -+-combine--> s01 -+
    x2 --lift--> s2 -+                 +-aggregate--> result          k + tree
    x3 --lift--> s3 -+-combine--> s23 -+

Messages are states: NumPy scalars or small arrays.

Everything here builds graphs and nothing computes; what tasks do to chunks is in
`dask_coop.chunks`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from dask.array.core import Array, new_da_object
from dask.array.utils import meta_from_array
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.tokenize import tokenize
from dask.utils import cached_cumsum

from dask_coop import chunks
from dask_coop.bins import Bins
from dask_coop.monoids import Operation, Origin, State

#: States that one task of a spine or tree takes.
FAN_IN = 16

Key = tuple[Any, ...]
Layer = dict[Any, Task]
Finalize = Callable[[State], Any]


def reduction(
    op: Operation,
    x: Array,
    axes: tuple[int, ...],
    keepdims: bool,
    split_every: int | dict[int, int] | None,
    outputs: Mapping[str, tuple[Finalize, Any]],
) -> list[Array]:
    """Reduce `x` over `axes`, once, to one array for each of `outputs`.

    Parameters
    ----------
    op : Operation
    x : dask.array.Array
    axes : tuple of int
        Sorted and not negative.
    keepdims : bool
        Whether reduced axes stay, with length one.
    split_every : int, dict of int to int, or None
        States combined by one task, in all or by axis.
    outputs : mapping of str to (callable, dtype)
        Name, function from the last state to the result, and dtype of each array.
    """
    to = chunks.kind(x._meta)
    fan_in = _fan_in(split_every, axes)
    name = next(iter(outputs)) if len(outputs) == 1 else op.monoid.name
    token = tokenize(op, x, axes, keepdims, fan_in)
    # Several outputs share the last state, so the tree goes down to one.
    limit = fan_in if len(outputs) == 1 else 1
    layer: Layer = {}
    groups = _states(layer, op, x, axes, (name, token), fan_in, limit)
    state = f"{name}-state-{token}"
    graph = HighLevelGraph.from_collections(state, layer, dependencies=[x])

    expand = axes if keepdims else ()
    kept = [d for d in range(x.ndim) if keepdims or d not in axes]
    out_chunks = tuple((1,) if d in axes else x.chunks[d] for d in kept)
    results = []
    for output, (finalize, dtype) in outputs.items():
        out_name = f"{output}-{token}"
        out_layer: Layer = {}
        for index, keys in groups.items():
            key = (out_name, *(index[d] for d in kept))
            out_layer[key] = Task(key, _aggregate, op, finalize, dtype, expand, to, _refs(keys))
        results.append(_array(graph, {state}, out_name, out_layer, x, out_chunks, dtype))
    return results


def value(op: Operation, x: Array, name: str, finalize: Callable[[State], Any]) -> Delayed:
    """Reduce the whole of `x` to any one Python object."""
    token = tokenize(op, x, finalize)
    layer: Layer = {}
    groups = _states(layer, op, x, tuple(range(x.ndim)), (name, token), FAN_IN, FAN_IN)
    (keys,) = groups.values()
    key = f"{name}-{token}"
    layer[key] = Task(key, _value, op, finalize, _refs(keys))
    return Delayed(key, HighLevelGraph.from_collections(key, layer, dependencies=[x]))


def table(
    op: Operation,
    arrays: Sequence[Array],
    bins: Bins | Delayed,
    n: int,
    finalize: Callable[[State, Bins], Any],
    dtype: Any,
) -> Array:
    """Reduce blocks of `arrays`, taken together, to one table of `n` entries.

    Parameters
    ----------
    op : Operation
    arrays : sequence of dask.array.Array
        The samples and, optionally, their weights, in equal chunks.
    bins : Bins or Delayed
        What the chunks count into.
    n : int
        The length of the table.
    finalize : callable
        Makes the result of the last state and the bins.
    dtype : dtype
        The dtype of the result.
    """
    x = arrays[0]
    name, token = "histogram", tokenize(op, arrays, bins, finalize, dtype)
    lazy: list[Delayed] = [bins] if isinstance(bins, Delayed) else []
    ref = TaskRef(lazy[0].key) if lazy else bins
    layer: Layer = {}
    lifted: list[Key] = []
    for index in itertools.product(*map(range, x.numblocks)):
        key = (f"{name}-lift-{token}", *index)
        blocks = (TaskRef((a.name, *index)) for a in arrays)
        layer[key] = Task(key, _histogram, op, ref, *blocks)
        lifted.append(key)
    keys = _tree(layer, op, lifted, (f"{name}-combine-{token}",), FAN_IN, FAN_IN)
    state = f"{name}-state-{token}"
    graph = HighLevelGraph.from_collections(state, layer, dependencies=[*arrays, *lazy])
    key = (f"{name}-{token}", 0)
    to = chunks.kind(x._meta)
    task = Task(key, _tabulate, op, finalize, dtype, to, ref, _refs(keys))
    below = {state, *(name for d in lazy for name in d.__dask_layers__())}
    return _array(graph, below, key[0], {key: task}, x, ((n,),), dtype)


def _states(
    layer: Layer,
    op: Operation,
    x: Array,
    axes: tuple[int, ...],
    names: tuple[str, str],
    fan_in: int,
    limit: int,
) -> dict[Key, list[Key]]:
    """Add the lifts of all blocks and their trees over `axes`.

    Return the keys of the states that are left, at most `limit`, by the index of the block that is
    made of them (0 along `axes`).
    """
    name, token = names
    groups: dict[Key, list[Key]] = {}
    for index in itertools.product(*map(range, x.numblocks)):
        key = (f"{name}-lift-{token}", *index)
        origin = (_origin(x, axes, index),) if op.monoid.positional else ()
        layer[key] = Task(key, _lift, op, axes, TaskRef((x.name, *index)), *origin)
        groups.setdefault(tuple(0 if d in axes else i for d, i in enumerate(index)), []).append(key)
    return {
        index: _tree(layer, op, keys, (f"{name}-combine-{token}", *index), fan_in, limit)
        for index, keys in groups.items()
    }


def _origin(x: Array, axes: tuple[int, ...], index: Key) -> Origin:
    """Return where a block begins and how long the array is, along each of `axes`."""
    starts = (cached_cumsum(x.chunks[axis], initial_zero=True)[index[axis]] for axis in axes)
    return tuple((start, x.shape[axis]) for start, axis in zip(starts, axes, strict=True))


def _tree(
    layer: Layer, op: Operation, keys: list[Key], prefix: Key, fan_in: int, limit: int
) -> list[Key]:
    """Add combining tasks until at most `limit` states are left; return their keys."""
    level = 0
    while len(keys) > limit:
        parents: list[Key] = []
        for i in range(0, len(keys), fan_in):
            key = (*prefix, level, i // fan_in)
            layer[key] = Task(key, _combine, op, _refs(keys[i : i + fan_in]))
            parents.append(key)
        keys, level = parents, level + 1
    return keys


def _fan_in(split_every: int | dict[int, int] | None, axes: tuple[int, ...]) -> int:
    if split_every is None:
        return FAN_IN
    if isinstance(split_every, dict):
        split_every = math.prod(split_every.get(axis, FAN_IN) for axis in axes)
    if split_every < 2:
        raise ValueError(f"split_every must be at least 2, got {split_every}")
    return int(split_every)


def _refs(keys: Iterable[Key]) -> List:
    return List(*map(TaskRef, keys))


def _array(
    graph: HighLevelGraph,
    below: set[str],
    name: str,
    layer: Layer,
    x: Array,
    out_chunks: Any,
    dtype: Any,
) -> Array:
    """Put `layer` on the layers `below` of `graph` and wrap it in an array of `x`'s kind."""
    graph = HighLevelGraph({**graph.layers, name: layer}, {**graph.dependencies, name: below})
    # Nothing is cast: a meta may hold a value that the dtype has not.
    meta = meta_from_array(np.empty_like(x._meta, dtype), ndim=len(out_chunks), dtype=dtype)
    return new_da_object(graph, name, out_chunks, meta=meta)


# What follows runs inside tasks.


def _lift(op: Operation, axes: tuple[int, ...], x: Any, origin: Origin | None = None) -> State:
    state: State = chunks.engine(x).lift(op, x, axes)
    if origin is not None:
        state = op.shift(state, tuple(x.shape[axis] for axis in axes), origin)
    return state


def _histogram(op: Operation, bins: Any, x: Any, weights: Any = None) -> State:
    state: State = chunks.engine(x).histogram(op, x, bins, weights)
    return state


def _combine(op: Operation, states: list[State]) -> State:
    return op.combine(states)


def _value(op: Operation, finalize: Callable[[State], Any], states: list[State]) -> Any:
    return finalize(op.combine(states))


def _aggregate(
    op: Operation,
    finalize: Finalize,
    dtype: Any,
    expand: tuple[int, ...],
    to: str,
    states: list[State],
) -> Any:
    with np.errstate(invalid="ignore"):
        result = finalize(op.combine(states)).astype(dtype, copy=False)[()]
    return chunks.asarray(np.expand_dims(result, expand) if expand else result, to)


def _tabulate(
    op: Operation, finalize: Callable[..., Any], dtype: Any, to: str, bins: Any, states: list[State]
) -> Any:
    result = finalize(op.combine(states), bins).astype(dtype, copy=False)
    return chunks.asarray(result, to)
