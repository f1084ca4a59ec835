"""The cross-chunk step of scans of groups: a chain of tables of the groups' states.

Each chunk is lifted to a table of its groups, tables are merged one after the other, and each chunk
is scanned from the table of all chunks before it::

    x0 --lift--> table -+-----------+
                        |           +-merge--> table -+
    x1 --lift----------------table -+                 |
                        |                             |
    x0 --scan--> y0     |                             |
    x1 -----------------+--scan--> y1                 |
    x2 -----------------------------------------------+--scan--> y2

Within a chunk, elements are sorted by group, scanned with restarts, combined with their group's
state before the chunk, and put back in place. No element leaves its chunk.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize
from dask.utils import cached_cumsum

from dask_coop import chunks
from dask_coop.algebra.merges import cast, settle
from dask_coop.algebra.operation import Operation, compensated
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.labels import Values
from dask_coop.chunks.tables import merge_tables
from dask_coop.graph import grouped
from dask_coop.graph.found_groups import Table, merge, values_of
from dask_coop.graph.fusion import TrailingBlocks, add
from dask_coop.graph.layers import Key, Layer, array
from dask_coop.graph.tasks import refs
from dask_coop.graph.threads import scan_by_threads, shared, threads_for


def scan(op: Operation, x: Array, label: Array, are_codes: bool, outside: Any, name: str) -> Array:
    """Scan the elements of each group along the last axis.

    Parameters
    ----------
    op : Operation
        Its monoid has one field, the scanned value.
    x : dask.array.Array
    label : dask.array.Array
        In the chunks of the last axes of `x`.
    are_codes : bool
        Whether -1 means no label, as NaN does.
    outside : object
        The result for elements without a label.
    name : str
        The prefix of keys.
    """
    threads = threads_for(x)
    token = tokenize(op, x, label, are_codes, outside, threads > 1)
    arguments: dict[str, Any] = {"op": op, "are_codes": are_codes, **shared(threads)}
    # Kernels need no compensation, as in reductions.
    exact = compensated(op) if chunks.kind(x._meta) == "numpy" else op
    lifted, merged, scanned = (f"{name}-{what}-{token}" for what in ("lift", "merge", "scan"))
    lifts = TrailingBlocks(
        lifted, x.ndim, lift, (label,), {"block": x}, **{**arguments, "op": exact}
    )
    graph = HighLevelGraph.from_collections(lifted, lifts, dependencies=[x, label])
    tables, layer = Layer(), Layer()
    for line in itertools.product(*map(range, x.numblocks[:-1])):
        before: Key | None = None
        for j in range(x.numblocks[-1]):
            index = (*line, j)
            preceding = {} if before is None else {"before": TaskRef(before)}
            layer[(scanned, *index)] = Task(
                (scanned, *index),
                scan_from,
                TaskRef((label.name, *index[x.ndim - label.ndim :])),
                block=TaskRef((x.name, *index)),
                outside=outside,
                **declared_by(label, block=x),
                **arguments,
                **preceding,
            )
            table: Key = (lifted, *index)
            if before is not None:
                key = (merged, *index)
                tables[key] = Task(key, merge, ops=(exact,), tables=refs([before, table]))
                table = key
            before = table
    below = {lifted, *x.__dask_layers__(), *label.__dask_layers__()}
    graph = add(graph, merged, tables, {lifted}) if tables else graph
    below |= {merged} if tables else set()
    return array(graph, below, scanned, layer, x._meta, x.chunks, op.output)


# Inside the tasks.


@casts
def lift(label: Any, *, op: Operation, block: Any, are_codes: bool, threads: int = 1) -> Table:
    """Return the table of a block, given the block of its label."""
    values = _groups(label, are_codes, threads)
    codes = chunks.asarray(Values(values).codes(label), chunks.kind(block))
    rows = label.ndim - 1
    return values, grouped.lift_codes((op,), block, codes, len(values), rows, None, threads)


@casts
def scan_from(
    label: Any,
    *,
    op: Operation,
    block: Any,
    are_codes: bool,
    outside: Any,
    before: Table | None = None,
    threads: int = 1,
) -> Any:
    """Scan the groups of a block from the table of all blocks `before` it."""
    values = _groups(label, are_codes, threads)
    codes = chunks.asarray(Values(values).codes(label), chunks.kind(block))
    outer, n = codes.shape[:-1], len(values)
    rows = np.arange(math.prod(outer)).reshape(*outer, 1) * n
    # Elements without a label form a last group.
    last = math.prod(outer) * n
    codes = np.where(codes < 0, last, codes + chunks.asarray(rows, chunks.kind(block))).reshape(-1)
    # NumPy sorts small integers by counting.
    codes = codes.astype(np.min_scalar_type(last))
    kept = block.shape[: block.ndim - label.ndim]
    order = np.argsort(codes, kind="stable")
    codes, elements = codes[order], block.reshape(*kept, codes.size)[..., order]

    heads = np.ones_like(codes, "?")
    heads[1:] = codes[1:] != codes[:-1]
    wide = replace(op, output=op.monoid.dtypes(op.element)[0])
    spec = ScanSpec(elements.ndim - 1)
    scanned = scan_by_threads(compensated(wide), elements, spec, None, heads, threads)
    if before is not None and last:
        # Small tables of CuPy chunks are on the host.
        base = chunks.asarray(_entries(op, before, values), chunks.kind(block))
        base = base.reshape(*kept, last)[..., np.minimum(codes, last - 1)]
        with np.errstate(all="ignore"):
            (scanned,) = op.monoid.combine((base,), (scanned,))
    scanned = cast(scanned, op.output)
    scanned[..., codes == last] = outside
    result = np.empty_like(scanned)
    result[..., order] = scanned
    return result.reshape(block.shape)


def _groups(label: Any, are_codes: bool, threads: int) -> Any:
    values = values_of(label, threads)
    return values[values >= 0] if are_codes else values


def _entries(op: Operation, table: Table, values: Any) -> Any:
    """Return the states of some groups in a table; groups that it lacks have the identity."""
    groups, states = table
    merged = grouped.placed([groups], values)
    # Tables of sums may carry compensation.
    if len(states[0]) > len(op.monoid.fields):
        op = compensated(op)
    (state,) = merge_tables(ops=(op,), states=[states], **merged._asdict())
    return settle(state)[0] if op.monoid.has_excess else state[0]


def mask(flags: np.ndarray[Any, Any], x: Array, prefix: str) -> Array:
    """Return host flags as an array in the chunks of the last axis of `x`, and of its kind."""
    ends = cached_cumsum(x.chunks[-1], initial_zero=True)
    name, to = f"{prefix}-{tokenize(flags, x.chunks[-1])}", chunks.kind(x._meta)
    layer = {
        (name, i): Task((name, i), chunks.asarray, flags[start:stop], to)
        for i, (start, stop) in enumerate(itertools.pairwise(ends))
    }
    graph = HighLevelGraph.from_collections(name, layer)
    meta = chunks.zeros_like(x._meta, "?", 1)
    return Array(graph, name, (x.chunks[-1],), meta=meta)
