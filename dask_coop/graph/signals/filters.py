"""Recursive filters along lines of chunks.

Each chunk is filtered twice: from zeros, for the delays that it leaves (`algebra.filters`), and
from the delays before it::

    x0..xk --lift--> states --spine--> the delays before each chunk
    x0..xk ----------------------------filter--> y0..yk

Or in turn, each from the delays that the one before it leaves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.filters import Filter
from dask_coop.algebra.monoids import State
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import fusion, tasks
from dask_coop.graph.layers import Key, Layer, array
from dask_coop.graph.prefixes import GROUP, at_a_time, sequential
from dask_coop.graph.scan import spine


def filtered(
    of: Filter, x: Array, before: Array | None, name: str, in_turn: bool
) -> tuple[Array, Array | None]:
    """Return an array with its lines filtered, and the delays behind them if there are some before.

    Parameters
    ----------
    of : Filter
    x : dask.array.Array
    before : dask.array.Array, optional
        The delays before each line along the first axis, then the other axes of `x`, in its chunks.
    name : str
        The prefix of keys.
    in_turn : bool
        Whether to filter the chunks of a line one after the other, each once.
    """
    to, token = chunks.kind(x._meta), tokenize(of, x, before, in_turn)
    options: dict[str, Any] = {"of": of, **declared_by(block=x)}
    steps, layer, ends = Layer(), Layer(), Layer()
    axis, last = of.axis, x.numblocks[of.axis] - 1
    others = x.chunks[:axis] + x.chunks[axis + 1 :]
    size = at_a_time(GROUP, 16 * sum(of.orders) * math.prod(map(max, others)))

    def add(kind: str, index: Key, function: Any, **arguments: Any) -> TaskRef:
        key = (f"{name}-{kind}-{token}", *index)
        steps[key] = Task(key, function, **arguments)
        return TaskRef(key)

    for line in itertools.product(*(range(len(sizes)) for sizes in others)):
        blocks = [(*line[:axis], j, *line[axis:]) for j in range(last + 1)]
        first = None if before is None else TaskRef((before.name, 0, *line))
        inputs: dict[str, Any] = {} if first is None else {"delays": first}
        lifted, groups = [], []
        if not in_turn:
            lifted = [] if first is None else [add("begin", (0, *line), begin, delays=first)]
            for index in blocks[:-1]:
                block = TaskRef((x.name, *index))
                lifted.append(add("lift", index, lift, block=block, **options))
            keys = [ref.key for ref in lifted]
            groups = spine(steps, of, keys, size, name, token, line, (combine, prefixes))
        for j, index in enumerate(blocks):
            at = j - (before is None)
            if groups and at >= 0:
                inputs = {"bases": TaskRef(groups[at // size]), "position": at % size}
            key = (f"{name}-{token}", *index)
            inputs |= {"block": TaskRef((x.name, *index)), **options}
            if not (in_turn and j < last) and (j < last or before is None):
                layer[key] = Task(key, filter_block, **inputs)
                continue
            turn = add("turn", index, tasks.take_turn)
            step = add("step", index, filter_on, turn=turn, **inputs)
            layer[key] = Task(key, tasks.results_of, step=step)
            inputs = {"delays": add("state", index, tasks.state_of, step=step)}
        if before is not None:
            end = (f"{name}-end-{token}", 0, *line)
            ends[end] = Task(end, chunks.asarray, inputs["delays"], to)
    graph = HighLevelGraph.merge(*(a.dask for a in (x, before) if a is not None))
    if steps:
        graph = fusion.add(graph, f"{name}-steps-{token}", steps)
    below = fusion.owners(graph, layer)
    result = array(graph, below, f"{name}-{token}", layer, x._meta, x.chunks, of.dtype)
    if before is None:
        return result, None
    below = {f"{name}-steps-{token}"}
    sizes = (before.chunks[0], *others)
    return result, array(graph, below, f"{name}-end-{token}", ends, x._meta, sizes, before.dtype)


# Inside the tasks. A state is the delays behind samples that start from zeros, and their number.


def begin(*, delays: Any) -> State:
    """Return the state before the first sample."""
    return chunks.asarray(delays, "numpy"), 0


@casts
def lift(*, of: Filter, block: Any) -> State:
    """Return the state of a block."""
    return chunks.backend_of(block).filter_lines(of, block)[1], block.shape[of.axis]


def combine(*, op: Filter, states: Sequence[State]) -> State:
    """Combine states in their order."""
    return reduce(op.combine, states)


def prefixes(
    *, op: Filter, states: list[State], above: Sequence[State] = (), position: int = 0
) -> list[State]:
    """Return the inclusive prefixes of states, starting from `above[position]` if any."""
    return sequential(op.combine, states, above[position] if above else None)


@casts
def filter_on(
    *,
    of: Filter,
    block: Any,
    delays: Any = None,
    bases: Sequence[State] = (),
    position: int = 0,
    turn: None = None,
) -> tuple[Any, Any]:
    """Return a filtered block and the delays behind it, from those before it, if any."""
    before = bases[position][0] if bases else delays
    before = None if before is None else chunks.asarray(before, "numpy")
    return chunks.backend_of(block).filter_lines(of, block, before)


def filter_block(**arguments: Any) -> Any:
    """Return a filtered block, from the arguments of `filter_on`."""
    return filter_on(**arguments)[0]
