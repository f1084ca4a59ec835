"""The cross-chunk step of groups that are known only once lazy labels are computed.

A table holds its groups beside their states. Up the tree its groups are the union of the groups
below, which the merging task determines::

    labels b a b   -->   a b | states  -+
                                        +-merge-->  a b c | states  --finish-->  result
    labels c b c   -->   b c | states  -+

The length of a result along its groups is known once it is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.chunks.distinct import distinct
from dask_coop.chunks.dtypes import casts
from dask_coop.chunks.labels import Coder, Values
from dask_coop.chunks.tables import Codes, Finalize, Ops, merge_tables
from dask_coop.graph import grouped
from dask_coop.graph.fusion import TrailingBlocks, add
from dask_coop.graph.layers import FAN_IN, Key, Layer, Origins, array
from dask_coop.graph.tasks import refs
from dask_coop.graph.threads import lift_by_threads, shared, threads_for
from dask_coop.graph.unique import distinct_values

#: The groups of some elements, sorted, and their states by each operation.
Table = tuple[Codes, list[State]]


class Found(NamedTuple):
    """A lazy label whose groups are unknown until it is computed.

    Attributes
    ----------
    label : dask.array.Array
        In the chunks of the array's last axes, all of which are reduced.
    """

    label: Array

    @property
    def ndim(self) -> int:
        """The number of label axes."""
        return int(self.label.ndim)

    @property
    def rows(self) -> int:
        """The number of label axes that the result keeps."""
        return 0


def groups(label: Array) -> Array:
    """Return the groups of a lazy label, sorted, without NaN; their number is unknown."""
    (values,) = distinct_values(label, {"groupby-groups": (_only, label.dtype)})
    return values


def reduction(
    ops: Ops, x: Array, found: Found, outputs: Mapping[str, tuple[Finalize, Any]]
) -> list[Array]:
    """Reduce the groups of `x` as `grouped.reduction` does; results have unknown lengths."""
    label = found.label
    kept, threads = x.ndim - label.ndim, threads_for(x)
    axes = tuple(range(kept, x.ndim))
    token = tokenize(ops, x, label, threads > 1)
    name = next(iter(outputs)) if len(outputs) == 1 else "groupby"
    inputs: dict[str, Any] = {"block": x}
    if any(op.monoid.positional for op in ops):
        inputs["origin"] = Origins(x, axes)
    lifted = f"{name}-lift-{token}"
    lifts = TrailingBlocks(lifted, x.ndim, lift, (label,), inputs, ops=ops, **shared(threads))
    graph = HighLevelGraph.from_collections(lifted, lifts, dependencies=[x, label])

    merged, below = f"{name}-merge-{token}", Layer()
    order = [*itertools.product(*(range(x.numblocks[axis]) for axis in axes))]
    # Several outputs share one last table.
    limit = FAN_IN if len(outputs) == 1 else 1
    last = {
        index: _tree(
            below, ops, [(lifted, *index, *block) for block in order], (merged, *index), limit
        )
        for index in itertools.product(*(range(x.numblocks[axis]) for axis in range(kept)))
    }
    if below:
        graph = add(graph, merged, below, {lifted})
    results, to = [], chunks.kind(x._meta)
    for output, (finalize, dtype) in outputs.items():
        out_name, layer = f"{output}-{tokenize(token, finalize, dtype)}", Layer()
        arguments = {"ops": ops, "finalize": finalize, "dtype": dtype, "to": to}
        for index, keys in last.items():
            key = (out_name, *index, 0)
            layer[key] = Task(key, finish, tables=refs(keys), **arguments)
        top = {merged if below else lifted}
        out_chunks = (*x.chunks[:kept], (np.nan,))
        results.append(array(graph, top, out_name, layer, x._meta, out_chunks, dtype))
    return results


def _tree(layer: Layer, ops: Ops, keys: list[Key], prefix: Key, limit: int) -> list[Key]:
    """Add merging tasks until at most `limit` tables remain; return their keys."""
    level = 0
    while len(keys) > limit:
        above: list[Key] = []
        for i in range(0, len(keys), FAN_IN):
            key = (*prefix, level, i // FAN_IN)
            layer[key] = Task(key, merge, ops=ops, tables=refs(keys[i : i + FAN_IN]))
            above.append(key)
        keys, level = above, level + 1
    return keys


# Inside the tasks.


@casts
def lift(
    label: Any, *, ops: Ops, block: Any, origin: Origin | None = None, threads: int = 1
) -> Table:
    """Return the table of a block, given the block of its label."""
    values = values_of(label, threads)
    coder = Coder((Values(values),), (len(values),))
    options: dict[str, Any] = {"rows": 0, "origin": origin, "threads": threads}
    return values, grouped.lift_lazy(label, ops=ops, block=block, coder=coder, **options)


def values_of(label: Any, threads: int) -> Codes:
    """Return the distinct values of a block of labels, sorted, without NaN, on the host."""
    op = Operation(distinct(), label.dtype, label.dtype)
    (values,) = lift_by_threads(op, label, tuple(range(label.ndim)), None, threads)
    valid: Codes = _valid(chunks.asarray(values, "numpy"))
    return valid


def merge(*, ops: Ops, tables: list[Table]) -> Table:
    """Merge tables in their order."""
    groups_of, states = zip(*tables, strict=True)
    (union,) = distinct().combine_all([(groups,) for groups in groups_of])
    merged = grouped.placed([*groups_of], union)
    return union, merge_tables(ops=ops, states=[*states], **merged._asdict())


def finish(*, ops: Ops, tables: list[Table], finalize: Finalize, dtype: Any, to: str) -> Any:
    """Return a block of a result from its tables."""
    _, states = merge(ops=ops, tables=tables)
    return chunks.asarray(finalize(states, None).astype(dtype, copy=False), to)


def _only(state: State) -> Any:
    return _valid(state[0])


def _valid(values: Any) -> Any:
    return values[values == values] if values.dtype.kind in "fcmM" else values
