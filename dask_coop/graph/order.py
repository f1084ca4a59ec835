"""The cross-chunk step of quantiles of a whole array: count the digits of keys, one digit a round.

::

    x0 --count--> t0 -+                      x0 --count--> t0 -+
    x1 --count--> t1 -+-evaluate--> digits --x1 --count--> t1 -+-tabulate--> quantiles
    x2 --count--> t2 -+                      x2 --count--> t2 -+

A table is a histogram's, and goes up the same tree (`dask_coop.graph.histogram`). There are two or
more rounds. Before the second and third, the samples that share the quantiles' leading digits are
collected if they are few, so that most chunks are read twice and then freed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dask.array.core import Array, new_da_object
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.digits import Digits, count_digits, descend, finish, first_digit
from dask_coop.algebra.monoids import COUNTS, State
from dask_coop.algebra.operation import bind
from dask_coop.graph import executor, tasks
from dask_coop.graph.fusion import Blocks, add, copy
from dask_coop.graph.histogram import tables
from dask_coop.graph.layers import array, find_fan_in
from dask_coop.graph.reduce import derive
from dask_coop.graph.tasks import refs


def quantiles(
    x: Array,
    asked: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    name: str,
    *,
    weights: Array | None = None,
    split_every: int | None = None,
    recompute: bool = False,
) -> Any:
    """Return quantiles of all elements of an array.

    Parameters
    ----------
    x : dask.array.Array
    asked : Asked or Delayed
        The quantiles to find.
    shape : tuple of int
        The shape of the quantiles.
    dtype : dtype
        The dtype of the result.
    name : str
        The prefix of keys.
    weights : dask.array.Array, optional
        float64, in the chunks of `x`.
    split_every : int, optional
        The number of tables that one task adds.
    recompute : bool
        Whether to compute chunks again for each round, rather than keep them in memory.
    """
    element = np.dtype("i8" if weights is None else "f8")
    op, axes = bind(COUNTS, element, element, name), tuple(range(x.ndim))
    start = first_digit(x.dtype, asked)
    rounds = count_digits(x.dtype, 2 * math.prod(shape))
    end: dict[str, Any] = {"op": op, "finalize": _finish, "dtype": dtype}
    if (run := executor.runner()) is not None:
        # Chunks stay in memory, so there is no need to collect samples.
        grid = start
        (states,) = run.tables(op, [x], False, grid, axes).values()
        for _ in range(rounds - 1):
            grid = tasks.evaluate(op=op, finalize=_descend, states=states, grid=grid)
            (states,) = run.tables(op, [x], False, grid, axes).values()
        return tasks.tabulate(**end, to="numpy", grid=grid, states=states)
    digits: Any = start
    if isinstance(asked, Delayed):
        digits = derive(f"{name}-digits", first_digit, x.dtype, asked)
    fan_in = find_fan_in(split_every, (), 0)
    token = tokenize(x, weights, asked, dtype, fan_in, recompute)
    source = x
    for number in range(rounds):
        names = name, f"{token}-{number}"
        graph, below, groups = tables(op, [source], weights, digits, axes, fan_in, names)
        (keys,) = groups.values()
        grid = TaskRef(digits.key) if isinstance(digits, Delayed) else digits
        if number == rounds - 1:
            break
        key = f"{name}-digits-{token}-{number}"
        arguments = {"op": op, "finalize": _descend, "states": refs(keys), "grid": grid}
        layer = {key: Task(key, tasks.evaluate, **arguments)}
        digits = Delayed(key, add(graph, key, layer, below))
        source = copy(source) if recompute else source
        if number < min(2, rounds - 2) and weights is None and not recompute:
            source = _collected(source, digits, f"{name}-collect-{token}-{number}")
    last = (f"{name}-{token}", *(0,) * len(shape))
    to = chunks.kind(x._meta)
    top = {last: Task(last, tasks.tabulate, **end, to=to, grid=grid, states=refs(keys))}
    like = chunks.unmasked(x._meta)
    return array(graph, below, f"{name}-{token}", top, like, tuple((n,) for n in shape), dtype)


def _collected(x: Array, digits: Delayed, name: str) -> Array:
    """Return the samples that the next round counts, in the blocks of `x`.

    The array declares the chunk sizes of `x`; the actual sizes are known when they are computed.
    """
    layer = Blocks(name, x.ndim, tasks.collect, [x], {"grid": digits})
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[x, digits])
    return new_da_object(graph, name, x.chunks, meta=x._meta)


# Inside the task.


def _descend(state: State, digits: Digits) -> Digits:
    return descend(digits, chunks.asarray(state[0], "numpy"))


def _finish(state: State, digits: Digits) -> Any:
    wanted, low, high = finish(digits, chunks.asarray(state[0], "numpy"))
    return wanted.quantiles.end(low, high, wanted.gamma, wanted.size)
