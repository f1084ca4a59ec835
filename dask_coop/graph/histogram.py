"""The cross-chunk step of a histogram: every chunk is counted, and the tables go up a tree.

::

    x0 --count--> t0 -+
    x1 --count--> t1 -+-combine--> t01 -+
    x2 --count--> t2 -+                 +-tabulate--> histogram       k + tree
    x3 --count--> t3 -+-combine--> t23 -+

The grid of bins is known when the graph is built, or a task of the same graph makes it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from dask.array.core import Array
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.bins import Grid, require_room
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.strategies import AUTO, HISTOGRAM
from dask_coop.errors import Declined
from dask_coop.graph import config, executor, tasks
from dask_coop.graph.files.lifting import lifted_trees
from dask_coop.graph.fusion import Blocks
from dask_coop.graph.layers import Key, Layer, array, block_bytes, find_fan_in, joined
from dask_coop.graph.tasks import refs
from dask_coop.graph.threads import shared, threads_for


def table(
    op: Operation,
    samples: Sequence[Array],
    weights: Array | None,
    grid: Any,
    shape: tuple[float, ...],
    finalize: Callable[[State, Any], Any],
    dtype: Any,
    *,
    axes: tuple[int, ...] | None = None,
    split_every: int | None = None,
    name: str = "histogram",
) -> Array:
    """Count samples and weights, block by block, and return the combined table.

    Parameters
    ----------
    op : Operation
    samples : sequence of dask.array.Array
        In equal chunks.
    weights : dask.array.Array, optional
        In the samples' chunks along the axes that the weights have.
    grid : Grid, Integers or Delayed
        The bins.
    shape : tuple of int or nan
        The shape of a table.
    finalize : callable
        Returns the result, given the last state and the grid.
    dtype : dtype
        The dtype of the result.
    axes : tuple of int, optional
        The axes to count over, all by default; each element along the others has its own table.
    split_every : int, optional
        The number of states that one task combines.
    name : str
        The prefix of keys.
    """
    x = samples[0]
    op = op.by(config.get("coop.strategy.histogram", AUTO, *HISTOGRAM))
    axes = tuple(range(x.ndim)) if axes is None else axes
    fan_in = find_fan_in(split_every, (), block_bytes(op, x, axes, math.prod(shape)))
    require_room((*(max(sizes) for d, sizes in enumerate(x.chunks) if d not in axes), *shape))
    if (run := executor.runner()) is not None:
        if isinstance(grid, Delayed):
            raise Declined(f"the bins of {name} are lazy")
        arrays = [*samples] if weights is None else [*samples, weights]
        groups_now = run.tables(op, arrays, weights is not None, grid, axes)
        return _tabulated(op, finalize, dtype, grid, len(shape), groups_now)
    token = tokenize(op, samples, weights, grid, finalize, dtype, axes, fan_in, threads_for(x) > 1)
    graph, below, groups = tables(op, samples, weights, grid, axes, fan_in, (name, token))
    to, last = chunks.kind(x._meta), (0,) * len(shape)
    top: Layer = {}
    for index, keys in groups.items():
        key = (f"{name}-{token}", *index, *last)
        top[key] = Task(
            key,
            tasks.tabulate,
            op=op,
            finalize=finalize,
            dtype=dtype,
            to=to,
            grid=TaskRef(grid.key) if isinstance(grid, Delayed) else grid,
            states=refs(keys),
        )
    kept = (sizes for d, sizes in enumerate(x.chunks) if d not in axes)
    sizes = (*kept, *((n,) for n in shape))
    like = chunks.unmasked(x._meta)
    return array(graph, below, f"{name}-{token}", top, like, sizes, dtype)


def tables(
    op: Operation,
    samples: Sequence[Array],
    weights: Array | None,
    grid: Any,
    axes: tuple[int, ...],
    fan_in: int,
    names: tuple[str, str],
) -> tuple[HighLevelGraph, set[str], dict[Key, list[Key]]]:
    """Return a graph with the tables of all blocks and their trees.

    Also return the layers that a layer on top depends on, the grid's included, and the keys of the
    remaining tables by the index of the result's block.
    """
    x, (name, token) = samples[0], names
    arrays = [*samples] if weights is None else [*samples, weights]
    lazy, known = ({"grid": grid}, {}) if isinstance(grid, Delayed) else ({}, {"grid": grid})
    weighing = {} if weights is None else {"weights": weights}
    arguments = {"op": op, **known, **shared(threads_for(x))}
    lifted = f"{name}-lift-{token}"
    layer = Blocks(lifted, x.ndim, tasks.count, samples, lazy | weighing, **arguments)
    groups: dict[Key, list[Key]] = {}
    for index in itertools.product(*map(range, x.numblocks)):
        kept = tuple(i for d, i in enumerate(index) if d not in axes)
        groups.setdefault(kept, []).append((lifted, *index))
    # Tables of integers are as long as the largest says.
    entries = math.prod(grid.shape) if isinstance(grid, Grid | Digits) else math.nan
    inputs, nbytes = [*arrays, *lazy.values()], block_bytes(op, x, axes, entries)
    graph, state, groups = lifted_trees(layer, inputs, op, groups, names, fan_in, fan_in, nbytes)
    below = {state}.union(*(delayed.__dask_layers__() for delayed in lazy.values()))
    return graph, below, groups


def _tabulated(
    op: Operation, finalize: Any, dtype: Any, grid: Any, ndim: int, groups: executor.Groups
) -> Any:
    """Return the result of all tables, of `ndim` axes each, in NumPy."""
    return joined(
        {
            (*index, *(0,) * ndim): tasks.tabulate(
                op=op, finalize=finalize, dtype=dtype, to="numpy", grid=grid, states=states
            )
            for index, states in groups.items()
        }
    )
