"""The cross-chunk step of distinct values, and of looking elements up in sorted values.

Distinct values are a reduction to one state of unknown length (reduce.py), and elements are looked
up in it chunk by chunk. A sorted array may be too long for one chunk. Then the number of its
elements before another one is a sum over its chunks, up a tree::

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

#: The number of states that one task merges: few, because they are in memory together, and several
#: threads merge large states sooner than one.
MERGED = 8

#: The function that makes a result of distinct values, and its dtype, by the name of its array.
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
    """Return arrays made of the distinct values of `x`, each of one axis in one chunk."""
    op = Operation(distinct(index, counts, equal_nan), x.dtype, x.dtype)
    # Strings keep the length that they have in the chunks.
    kept = {
        name: (make, np.dtype(dtype.kind) if dtype.kind in "SU" else dtype)
        for name, (make, dtype) in outputs.items()
    }
    axes = tuple(range(x.ndim))
    fan_in = MERGED if fan_in is None else fan_in
    results = reduction(op, x, axes, False, fan_in, kept, shape=(np.nan,))
    dtypes = (dtype for _, dtype in outputs.values())
    return [*map(_with_length, results, dtypes)]


def _with_length(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array whose meta declares the length of strings, which would be one otherwise."""
    if not isinstance(x, Array) or dtype.kind not in "SU":
        return x
    return Array(x.dask, x.name, x.chunks, meta=chunks.zeros_like(x._meta, dtype))


def inverse(x: Array, values: Array, index: Array | None) -> Array:
    """Return the index of each element of `x` in its distinct `values`.

    With `index`, the first position of each value, every NaN is a value of its own.
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
    """Return whether each element of `x` is, or is not, among sorted distinct values."""
    name = f"isin-{tokenize(x, values, invert)}"
    named = {"block": x, "values": _block(values)}
    return _by_block(name, x, among, named, [x, values], np.dtype("?"), invert=invert)


def searchsorted(a: Array, v: Array, side: Side) -> Array:
    """Return how many elements of the sorted `a` precede each element of `v`."""
    op = Operation(SUM, np.dtype("i8"), np.dtype("i8"))
    token, to = tokenize(a, v, side), chunks.kind(a._meta)
    lifted, layer = f"searchsorted-lift-{token}", {}
    arguments: dict[str, Any] = {"side": side, **declared_by(a=a, v=v)}
    groups: dict[Key, list[Key]] = {}
    for index in itertools.product(*map(range, v.numblocks)):
        of_v = TaskRef((v.name, *index))
        groups[index] = [(lifted, *index, j) for j in range(a.numblocks[0])]
        for j, key in enumerate(groups[index]):
            layer[key] = Task(key, search, a=TaskRef((a.name, j)), v=of_v, **arguments)
    graph = HighLevelGraph.from_collections(lifted, layer, dependencies=[a, v])
    names = ("searchsorted", token)
    fan_in = at_a_time(FAN_IN, block_bytes(op, v, ()))
    graph, below, groups = trees(graph, lifted, op, groups, names, fan_in, fan_in)
    name, top = f"searchsorted-{token}", Layer()
    for index, keys in groups.items():
        arguments = {"op": op, "finalize": _only, "dtype": op.output, "expand": (), "to": to}
        key = (name, *index)
        top[key] = Task(key, tasks.aggregate, **arguments, states=refs(keys))
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
    **constants: Any,
) -> Array:
    """Return an array in the chunks of `x`, by a function of its blocks."""
    layer = Blocks(name, x.ndim, function, (), named, **constants)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=sources)
    meta = chunks.zeros_like(x._meta, dtype)
    return Array(graph, name, x.chunks, meta=meta)


# Inside the tasks.


def _only(state: State) -> Any:
    return state[0]


@casts
def find(*, block: Any, values: Any, index: Any = None, origin: Origin | None = None) -> Any:
    """Return the index of each element of a block among distinct values."""
    backend = chunks.backend_of(block)
    if index is None or origin is None:
        return backend.positions(values, block)
    # NaN are identified by their positions in the array.
    nans, flat = values != values, block.reshape(-1)
    missing = flat != flat
    valid, lost = np.flatnonzero(~missing), np.flatnonzero(missing)
    indices = np.zeros_like(flat, "i8")
    indices[valid] = backend.positions(values[~nans], flat[valid])
    spec = Operation(distinct(index=True), block.dtype, block.dtype)
    _, places = spec.shift((None, lost), block.shape, origin)
    indices[lost] = backend.searchsorted(index[nans], places, "left") + (~nans).sum()
    return indices.reshape(block.shape)


@casts
def among(*, block: Any, values: Any, invert: bool) -> Any:
    """Return whether each element of a block is, or is not, among distinct values."""
    # Before they are copied to a GPU, which the choice among them would wait for.
    elements, values = _alike(block, values)
    members = chunks.backend_of(block).isin(elements, chunks.asarray(values, chunks.kind(block)))
    return ~members if invert else members


@casts
def search(*, a: Any, v: Any, side: Side) -> State:
    """Return how many elements of a sorted block precede each element of `v`."""
    v = chunks.asarray(v, chunks.kind(a))
    return (chunks.backend_of(a, v).searchsorted(a, v, side),)


def _alike(x: Any, values: Any) -> tuple[Any, Any]:
    """Return elements and sorted values in one dtype, without values that no element can equal."""
    if x.dtype == values.dtype:
        return x, values
    if x.dtype.kind in "biu" and values.dtype.kind in "biu":
        # There may be no common integer dtype.
        (a, b), (c, d) = map(_range, (x.dtype, values.dtype))
        return x, values[(values >= max(a, c)) & (values <= min(b, d))].astype(x.dtype)
    common = np.result_type(x.dtype, values.dtype)
    return x.astype(common, copy=False), values.astype(common, copy=False)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo("u1" if dtype.kind == "b" else dtype)
    return (0, 1) if dtype.kind == "b" else (int(info.min), int(info.max))
