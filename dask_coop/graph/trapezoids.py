r"""Areas between neighbouring samples, which a cumulative integral adds up.

The task of a chunk takes the last sample of the chunk before, and so has all of its areas::

    y0        y1        y2
     |  \      |  \      |
     | last    | last    |
     |      \  |      \  |
    areas    areas     areas        the first chunk has one less than samples
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph.fusion import add, owners
from dask_coop.graph.layers import Key, Layer, array


def areas(
    y: Array, places: Array | None, step: float, axis: int, dtype: np.dtype[Any], name: str
) -> Array:
    """Return the areas between neighbours along an axis: one less than there are samples.

    Parameters
    ----------
    y : dask.array.Array
        Has no empty chunks along the axis.
    places : dask.array.Array, optional
        The positions of the samples, in the chunks of `y` or of its axis.
    step : float
        The distance between samples if there are no `places`.
    axis : int
        Not negative.
    dtype : numpy.dtype
        The dtype of the result.
    name : str
        The prefix of keys.
    """
    token = tokenize(y, places, step, axis, dtype)
    sources = {"y": y} if places is None else {"y": y, "x": places}
    lasts: Layer = {}
    declared = declared_by(y=y, y_before=y, x=places, x_before=places)
    options: dict[str, Any] = {"step": step, "axis": axis, "dtype": dtype, **declared}
    layer: Layer = {}
    for index in itertools.product(*map(range, y.numblocks)):
        inputs: dict[str, TaskRef] = {}
        for of, source in sources.items():
            along = axis if source.ndim == y.ndim else 0
            block = index if source.ndim == y.ndim else (index[axis],)
            inputs[of] = TaskRef((source.name, *block))
            if not index[axis]:
                continue
            before = (*block[:along], block[along] - 1, *block[along + 1 :])
            last: Key = (f"{name}-last-{of}-{token}", *before)
            lasts[last] = Task(last, _last, TaskRef((source.name, *before)), axis=along)
            inputs[f"{of}_before"] = TaskRef(last)
        key = (f"{name}-areas-{token}", *index)
        layer[key] = Task(key, areas_of_block, **inputs, **options)
    graph = HighLevelGraph.merge(*(source.dask for source in sources.values()))
    if lasts:
        graph = add(graph, f"{name}-last-{token}", lasts)
    first, *others = y.chunks[axis]
    sizes = (*y.chunks[:axis], (first - 1, *others), *y.chunks[axis + 1 :])
    name = f"{name}-areas-{token}"
    return array(graph, owners(graph, layer), name, layer, y._meta, sizes, dtype)


# Inside the tasks.


def _last(block: Any, *, axis: int) -> Any:
    # A copy: a view would keep the chunk in memory.
    return block[(*(slice(None),) * axis, slice(-1, None))].copy()


@casts
def areas_of_block(
    *,
    y: Any,
    y_before: Any = None,
    x: Any = None,
    x_before: Any = None,
    step: float,
    axis: int,
    dtype: np.dtype[Any],
) -> Any:
    """Return the areas between the samples of a block and the last one before it."""
    areas = _with_neighbours(np.add, y, y_before, axis, dtype)
    if x is None:
        areas *= step / 2
        return areas
    kind = chunks.kind(y)
    x = chunks.asarray(x, kind)
    x_before = None if x_before is None else chunks.asarray(x_before, kind)
    widths = _with_neighbours(np.subtract, x, x_before, axis if x.ndim == y.ndim else 0, dtype)
    if x.ndim < y.ndim:
        widths = widths.reshape([-1 if d == axis else 1 for d in range(y.ndim)])
    areas *= widths
    areas /= 2
    return areas


def _with_neighbours(function: Any, x: Any, before: Any, axis: int, dtype: np.dtype[Any]) -> Any:
    """Return a function of each element and the one before it, if there is one."""
    before_axis = (slice(None),) * axis
    x = x.astype(dtype, copy=False)
    out = np.empty_like(x)
    if before is not None:
        first = (*before_axis, slice(1))
        function(x[first], before.astype(dtype, copy=False), out=out[first])
    later = (*before_axis, slice(1, None))
    function(x[later], x[(*before_axis, slice(-1))], out=out[later])
    return out[later] if before is None else out
