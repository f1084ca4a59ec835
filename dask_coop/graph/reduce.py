"""The cross-chunk step of a reduction: a tree.

A reduction lifts every chunk and combines the states up a tree; the last task also finalizes::

    x0 --lift--> s0 -+
    x1 --lift--> s1 -+-combine--> s01 -+
    x2 --lift--> s2 -+                 +-aggregate--> result          k + tree
    x3 --lift--> s3 -+-combine--> s23 -+

Messages are states: NumPy scalars or small arrays. A task combines 16 states, or fewer if they are
large, so that no task holds the large states of many chunks.

This module only builds graphs; the functions of its tasks are in `dask_coop.graph.tasks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.counted import Counted, counted, masked
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.errors import Declined
from dask_coop.graph import executor, tasks
from dask_coop.graph.files.lifting import lifted_trees
from dask_coop.graph.fusion import Blocks, add
from dask_coop.graph.histogram import tables
from dask_coop.graph.layers import (
    FAN_IN,
    Key,
    Layer,
    Origins,
    array,
    block_bytes,
    find_fan_in,
    joined,
)
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.tasks import refs
from dask_coop.graph.threads import shared, threads_for

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
    """Reduce `x` over `axes` in one pass, and return an array for each of `outputs`.

    Parameters
    ----------
    op : Operation
    x : dask.array.Array
    axes : tuple of int
        Sorted and not negative.
    keepdims : bool
        Whether the result keeps reduced axes, with length one or the number of a state's entries.
    split_every : int, dict of int to int, or None
        The number of states that one task combines, in all or by axis.
    outputs : mapping of str to (callable, dtype)
        Name, function from the last state to the result, and dtype of each array.
    where : dask.array.Array, optional
        The mask of elements to reduce: bool, in the chunks of `x`.
    shape : tuple of int or nan
        The shape of the result for each line, if it has more than one element.
    """
    to = chunks.kind(x._meta)
    kept = [d for d in range(x.ndim) if keepdims or d not in axes]
    # States with several entries have an axis for them already.
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
    # Several outputs share one last state.
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
    """Reduce `x` over `axes`, all by default, to any Python object, and return it lazily.

    `x` has one chunk along its other axes. Where a runner works at once, return the object itself.
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


def state(
    op: Operation,
    arrays: Sequence[Array],
    axes: tuple[int, ...],
    name: str,
    make: Callable[[State], Any],
    grid: Any,
    split_every: int | dict[int, int] | None,
) -> Any:
    """Reduce an array over `axes`, or count its samples, and make any object of the whole state.

    Parameters
    ----------
    op : Operation
    arrays : sequence of dask.array.Array
        The array and its mask; or, with a grid, the samples.
    axes : tuple of int
    name : str
        The prefix of keys.
    make : callable
        Takes a NumPy array for each field. Their first axes are those of the array that are kept.
    grid : Grid, Digits or None
        The bins of a histogram.
    split_every : int, dict of int to int, or None
        As for `reduction`.

    Returns
    -------
    Delayed, or the object itself where a runner works at once
    """
    x = arrays[0]

    def places(groups: Iterable[Key]) -> list[Key]:
        # The groups of tables are numbered along kept axes only.
        skip = axes if grid is None else ()
        return [tuple(i for d, i in enumerate(index) if d not in skip) for index in groups]

    if (run := executor.runner()) is not None:
        at_once = (
            run.states(op, arrays, axes)
            if grid is None
            else run.tables(op, arrays, False, grid, axes)
        )
        wholes = [tasks.evaluate(op=op, finalize=_on_host, states=of) for of in at_once.values()]
        return _whole(make, places(at_once), wholes)
    entries = 1 if grid is None else math.prod(grid.shape)
    fan_in = find_fan_in(split_every, axes, block_bytes(op, x, axes, entries))
    names = name, tokenize(op, arrays, axes, make, grid, fan_in, threads_for(x) > 1)
    if grid is None:
        graph, last, groups = _states(op, arrays, axes, names, threads_for(x), fan_in, fan_in)
        below = {last}
    else:
        graph, below, groups = tables(op, arrays, None, grid, axes, fan_in, names)
    ended, key = f"{name}-state-{names[1]}", f"{name}-{names[1]}"
    layer: Layer = {
        (ended, *index): Task(
            (ended, *index), tasks.evaluate, op=op, finalize=_on_host, states=refs(keys)
        )
        for index, keys in groups.items()
    }
    graph = add(graph, ended, layer, below)
    top = Task(key, _whole, make, places(groups), refs(layer))
    return Delayed(key, add(graph, key, {key: top}, {ended}))


def derive(name: str, function: Callable[..., Any], *args: Any) -> Delayed:
    """Call `function` in a task of its own.

    Arguments may be lazy, or lists of lazy values: Delayed objects, and arrays, which are passed as
    one block.
    """
    key = f"{name}-{tokenize(function, *args)}"
    lazy: list[Any] = []

    def refer(value: Any) -> Any:
        if isinstance(value, list):
            return List(*map(refer, value))
        if isinstance(value, Array):
            lazy.append(value.rechunk(-1) if value.npartitions > 1 else value)
            return TaskRef((lazy[-1].name, *(0,) * value.ndim))
        if isinstance(value, Delayed):
            lazy.append(value)
            return TaskRef(value.key)
        return value

    referring = [*map(refer, args)]
    if executor.runner() is not None:
        if lazy:
            raise Declined(f"{name} are lazy")
        return function(*args)
    task = Task(key, function, *referring)
    return Delayed(key, HighLevelGraph.from_collections(key, {key: task}, dependencies=lazy))


def folded(
    name: str,
    arrays: Sequence[Array],
    named: Mapping[str, Array],
    lift: Callable[..., Any],
    combine: Callable[[list[Any]], Any],
    finalize: Callable[[Any], Any],
) -> Delayed:
    """Lift blocks to any Python objects, combine neighbours up a tree, and finalize the last.

    Parameters
    ----------
    name : str
    arrays, named : sequence and mapping of dask.array.Array
        In equal chunks: what `lift` gets by position, and by keyword. It `casts`, or is a
        `functools.partial` of a function that does.
    lift, combine, finalize : callable
        Of blocks; of a list of objects in the order of the blocks; and of the last object.
    """
    if executor.runner() is not None:
        raise Declined(f"{name} has objects for states")
    x, inputs = arrays[0], [*arrays, *named.values()]
    token = tokenize(name, arrays, named, lift, combine, finalize)
    lifted = f"{name}-lift-{token}"
    layer = Blocks(lifted, x.ndim, lift, arrays, named)
    graph = HighLevelGraph.from_collections(lifted, layer, dependencies=inputs)
    keys: list[Key] = [(lifted, *index) for index in product(*map(range, x.numblocks))]
    tree: Layer = {}
    level = 0
    while len(keys) > FAN_IN:
        parents: list[Key] = []
        for i in range(0, len(keys), FAN_IN):
            key = (f"{name}-combine-{token}", level, i // FAN_IN)
            tree[key] = Task(key, combine, refs(keys[i : i + FAN_IN]))
            parents.append(key)
        keys, level = parents, level + 1
    last = f"{name}-{token}"
    tree[last] = Task(last, _finalized, combine, finalize, refs(keys))
    return Delayed(last, add(graph, last, tree, {lifted}))


def _states(
    op: Operation,
    arrays: Sequence[Array],
    axes: tuple[int, ...],
    names: tuple[str, str],
    threads: int,
    fan_in: int,
    limit: int,
) -> tuple[HighLevelGraph, str, dict[Key, list[Key]]]:
    """Return a graph with the trees of the states of all blocks, which a second array may mask.

    Also return the name of its last layer, and the keys of at most `limit` remaining states, by the
    index of the result's block (0 along `axes`).
    """
    x, inputs = arrays[0], dict(zip(("block", "where"), arrays, strict=False))
    if op.monoid.positional:
        inputs["origin"] = Origins(x, axes)
    lifted = f"{names[0]}-lift-{names[1]}"
    arguments = {"op": op, "axes": axes, **shared(threads)}
    layer = Blocks(lifted, x.ndim, tasks.lift, (), inputs, **arguments)
    groups: dict[Key, list[Key]] = {}
    for index in product(*map(range, x.numblocks)):
        group = tuple(0 if d in axes else i for d, i in enumerate(index))
        groups.setdefault(group, []).append((lifted, *index))
    nbytes = block_bytes(op, x, axes)
    return lifted_trees(layer, arrays, op, groups, names, fan_in, limit, nbytes)


def _length(op: Operation, x: Array, axis: int) -> tuple[float]:
    """Return the chunks of a result along a reduced axis of `x` that the result keeps."""
    n, entries = x.shape[axis], op.monoid.entries
    if entries is None:
        return (1,)
    # An unknown length may be less than the entries.
    return (min(n, entries) if n == n else n,)


def _reduced(
    op: Operation,
    kept: Sequence[int],
    expand: tuple[int, ...],
    output: tuple[Finalize, Any],
    groups: executor.Groups,
) -> Any:
    """Return the result of all states of a reduction, in NumPy."""
    finalize, dtype = output
    return joined(
        {
            tuple(index[d] for d in kept): tasks.aggregate(
                op=op, finalize=finalize, dtype=dtype, expand=expand, to="numpy", states=states
            )
            for index, states in groups.items()
        }
    )


# Inside the task.


def _on_host(state: State) -> State:
    fields = np.broadcast_arrays(*(chunks.asarray(field, "numpy") for field in state))
    return tuple(map(np.asarray, fields))


def _whole(make: Callable[[State], Any], places: Sequence[Key], states: Sequence[State]) -> Any:
    fields = []
    for blocks in zip(*states, strict=True):
        entries = (0,) * (blocks[0].ndim - len(places[0]))
        whole = {(*at, *entries): block for at, block in zip(places, blocks, strict=True)}
        fields.append(np.array(joined(whole)))
    return make(tuple(fields))


def _finalized(combine: Callable[[Any], Any], finalize: Callable[[Any], Any], states: Any) -> Any:
    return finalize(combine(states))
