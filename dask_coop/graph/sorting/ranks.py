"""Ranks across chunks: sort with indices, rank sorted chunks, and exchange ranks by indices.

::

    x0 -+                +-> run 0 --ends-+          +-rank--> (index, rank) -+            +-> y0
    x1 -+-sort, exchange-+-> run 1 --ends-+-others --+-rank--> (index, rank) -+-exchange --+-> y1
    x2 -+                +-> run 2 --ends-+          +-rank--> (index, rank) -+            +-> y2

Equal elements may lie in several sorted chunks, so that each must know how many are beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.chunks.ranks import Others, Ties, ends_of, others_of, ranks_of_sorted
from dask_coop.graph.fusion import Blocks
from dask_coop.graph.layers import Key, Layer, Origins, array
from dask_coop.graph.selection import even
from dask_coop.graph.sorting.exchange import Merge, Run, argsort_chunk, divide_runs
from dask_coop.graph.tasks import refs


def ranks(x: Array, method: Ties, omit: bool, dtype: np.dtype[Any]) -> Array:
    """Return the ranks of the elements of `x`, of one axis, without empty chunks, in its chunks."""
    lengths, k = x.chunks[0], x.npartitions
    token = tokenize(x, method, omit, dtype)
    runs = Blocks(
        f"rank-run-{token}", 1, argsort_chunk, [x], {"origin": Origins(x, (0,))}, stable=True
    )
    graph = HighLevelGraph.from_collections(runs.output, runs, dependencies=[x])
    layer, name = Layer(), f"rank-{{}}-{token}"
    keys: list[Key] = [(runs.output, i) for i in range(k)]
    splits = np.cumsum(even(sum(lengths), k))[:-1].tolist()
    divided = divide_runs(layer, name, keys, lengths, splits)
    ordered = [(name.format("ordered"), j) for j in range(k)]
    options = {"stable": True}
    Merge(layer, name, divided, options).all(keys, ordered, last=False)
    ends, ranked, places = ([(name.format(what), j) for j in range(k)] for what in _STEPS)
    near = name.format("others")
    layer[near] = Task(near, others_of, refs(ends))
    bounds = np.cumsum((0, *lengths))
    for j, key in enumerate(ordered):
        layer[ends[j]] = Task(ends[j], _ends, TaskRef(key))
        form = (method, omit, dtype)
        layer[ranked[j]] = Task(ranked[j], rank_run, TaskRef(key), TaskRef(near), j, *form)
        layer[places[j]] = Task(places[j], _places, TaskRef(ranked[j]), bounds)
    back = name.format("back")
    layer[back] = Task(back, _stacked, refs(places))
    out = f"rank-{token}"
    merge = Merge(layer, f"rank-back-{{}}-{token}", TaskRef(back), options)
    merge.all(ranked, [(out, i) for i in range(k)])
    return array(graph, {runs.output}, out, layer, x._meta, (lengths,), dtype)


_STEPS = ("ends", "ranked", "places")


# Inside the tasks.


def _ends(run: Run) -> Any:
    return ends_of(run[0])


def rank_run(
    run: Run, near: list[Others], number: int, method: Ties, omit: bool, dtype: np.dtype[Any]
) -> Run:
    """Return the indices of a run's elements, sorted, with their ranks."""
    keys, indices = run
    ranks_of_run = ranks_of_sorted(keys, method, omit, dtype, near[number])
    order = chunks.backend_of(indices).argsort(indices, -1, False)
    return indices[order], ranks_of_run[order]


def _places(run: Run, bounds: Any) -> Any:
    at = chunks.asarray(bounds, chunks.kind(run[0]))
    return chunks.asarray(np.searchsorted(run[0], at), "numpy")


def _stacked(places: list[Any]) -> Any:
    return np.stack(places, axis=1)
