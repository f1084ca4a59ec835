"""The cross-chunk step of distinct values, and of looking elements up in sorted ones.

Distinct values are a reduction like any other, to one state of unknown length (reduce.py), and
elements are looked up in it chunk by chunk. A sorted array may be too long for that: how many of
its elements are before another one is a sum over its chunks, up a tree::

    a0, v0 --search--> n00 -+
    a1, v0 --search--> n10 -+-combine--> n -+
    a2, v0 --search--> n20 -+               +-aggregate--> result of v0
    a3, v0 --search--> n30 -+-combine--> n -+
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.monoids import SUM, State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.chunks.backend import Side
from dask_coop.chunks.distinct import distinct
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import tasks
from dask_coop.graph.fusion import Blocks
from dask_coop.graph.layers import FAN_IN, Key, Layer, Origins, array, block_bytes, trees
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.reduce import reduction
from dask_coop.graph.tasks import refs

#: States that one task merges: few, for they are in memory together, and large ones are merged by
#: several threads sooner than by one.
MERGED = 8

#: Result of each state of distinct values, by the name of its array: what makes it, and its dtype.
Outputs = Mapping[str, tuple[tasks.Finalize, Any]]


def distinct_values(
    x: Array,
    outputs: Outputs,
    fan_in: int | None = None,
    *,
    index: bool = False,
    counts: bool = False,
    equal_nan: bool = True,
) -> list[Array]:
    """Return arrays that are made of the distinct values of `x`, each of one axis in one chunk."""
    op = Operation(distinct(index, counts, equal_nan), x.dtype, x.dtype)
    # Strings are as long as those of the chunks are.
    kept = {
        name: (make, np.dtype(dtype.kind) if dtype.kind in "SU" else dtype)
        for name, (make, dtype) in outputs.items()
    }
    axes = tuple(range(x.ndim))
    made = reduction(
        op, x, axes, False, MERGED if fan_in is None else fan_in, kept, shape=(np.nan,)
    )
    return [_of(result, dtype) for result, (_, dtype) in zip(made, outputs.values(), strict=True)]


def _of(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array of strings that declares their length, without which that is one."""
    if not isinstance(x, Array) or dtype.kind not in "SU":
        return x
    return Array(x.dask, x.name, x.chunks, meta=chunks.zeros_like(x._meta, dtype))


def inverse(x: Array, values: Array, index: Array | None) -> Array:
    """Return where in its distinct `values` each element of `x` is.

    With `index`, where each value is first, NaN are values of their own.
    """
    token = tokenize(x, values, index)
    more: dict[str, Any] = {}
    if index is not None:
        more = {"index": _block(index), "origin": Origins(x, tuple(range(x.ndim)))}
    named = {"block": x, "values": _block(values), **more}
    name = f"unique-inverse-{token}"
    sources = [x, values] if index is None else [x, values, index]
    return _by_block(name, x, find, named, sources, np.dtype("i8"))


def isin(x: Array, values: Array, invert: bool) -> Array:
    """Return which elements of `x` are, or are not, among some sorted distinct values."""
    name = f"isin-{tokenize(x, values, invert)}"
    named = {"block": x, "values": _block(values)}
    return _by_block(name, x, among, named, [x, values], np.dtype("?"), invert=invert)


def searchsorted(a: Array, v: Array, side: Side) -> Array:
    """Return how many elements of `a`, which is sorted, are before those of `v`."""
    op = Operation(SUM, np.dtype("i8"), np.dtype("i8"))
    token, to = tokenize(a, v, side), chunks.kind(a._meta)
    lifted, layer = f"searchsorted-lift-{token}", {}
    given: dict[str, Any] = {"side": side, **declared_by(a=a, v=v)}
    groups: dict[Key, list[Key]] = {}
    for index in itertools.product(*map(range, v.numblocks)):
        of_v = TaskRef((v.name, *index))
        groups[index] = [(lifted, *index, j) for j in range(a.numblocks[0])]
        for j, key in enumerate(groups[index]):
            layer[key] = Task(key, search, a=TaskRef((a.name, j)), v=of_v, **given)
    graph = HighLevelGraph.from_collections(lifted, layer, dependencies=[a, v])
    names = ("searchsorted", token)
    fan_in = at_a_time(FAN_IN, block_bytes(op, v, ()))
    graph, below, groups = trees(graph, lifted, op, groups, names, fan_in, fan_in)
    name, top = f"searchsorted-{token}", Layer()
    for index, keys in groups.items():
        given = {"op": op, "finalize": _only, "dtype": op.output, "expand": (), "to": to}
        key = (name, *index)
        top[key] = Task(key, tasks.aggregate, **given, states=refs(keys))
    return array(graph, {below}, name, top, a._meta, v.chunks, op.output)


def _block(x: Array) -> Delayed:
    """Return the only chunk of an array."""
    return Delayed((x.name, *(0,) * x.ndim), x.dask, layer=x.name)


def _by_block(
    name: str,
    x: Array,
    function: Any,
    named: dict[str, Any],
    sources: list[Array],
    dtype: np.dtype[Any],
    **given: Any,
) -> Array:
    """Return an array in the chunks of `x`, by a function of its blocks."""
    layer = Blocks(name, x.ndim, function, (), named, **given)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=sources)
    meta = chunks.zeros_like(x._meta, dtype)
    return Array(graph, name, x.chunks, meta=meta)


# What runs inside the tasks.


def _only(state: State) -> Any:
    return state[0]


@casts
def find(*, block: Any, values: Any, index: Any = None, origin: Origin | None = None) -> Any:
    """Return where among distinct values the elements of a block are."""
    backend = chunks.backend_of(block)
    if index is None or origin is None:
        return backend.positions(values, block)
    # Elements that are NaN are told by where they are in the array.
    nans, flat = values != values, block.reshape(-1)
    missing = flat != flat
    rest, at = np.flatnonzero(~missing), np.flatnonzero(missing)
    found = np.zeros_like(flat, "i8")
    found[rest] = backend.positions(values[~nans], flat[rest])
    spec = Operation(distinct(index=True), block.dtype, block.dtype)
    _, places = spec.shift((None, at), block.shape, origin)
    found[at] = backend.searchsorted(index[nans], places, "left") + (~nans).sum()
    return found.reshape(block.shape)


@casts
def among(*, block: Any, values: Any, invert: bool) -> Any:
    """Return which elements of a block are, or are not, among distinct values."""
    values = chunks.asarray(values, chunks.kind(block))
    found = chunks.backend_of(block).isin(*_alike(block, values))
    return ~found if invert else found


@casts
def search(*, a: Any, v: Any, side: Side) -> State:
    """Return how many elements of a sorted block are before those of `v`."""
    v = chunks.asarray(v, chunks.kind(a))
    return (chunks.backend_of(a, v).searchsorted(a, v, side),)


def _alike(x: Any, values: Any) -> tuple[Any, Any]:
    """Return elements and sorted values, some of them left out, in one dtype."""
    if x.dtype == values.dtype:
        return x, values
    if x.dtype.kind in "biu" and values.dtype.kind in "biu":
        # No dtype but the elements' own may hold all of them.
        (a, b), (c, d) = map(_range, (x.dtype, values.dtype))
        return x, values[(values >= max(a, c)) & (values <= min(b, d))].astype(x.dtype)
    common = np.result_type(x.dtype, values.dtype)
    return x.astype(common, copy=False), values.astype(common, copy=False)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo("u1" if dtype.kind == "b" else dtype)
    return (0, 1) if dtype.kind == "b" else (int(info.min), int(info.max))
