"""The cross-chunk step of a product of matrices over a semiring.

A product is made block by block; what different blocks of the contracted axis contribute meets in
a tree of the semiring's additions::

    a[i, 0], b[0, j] --multiply--> p0 -+
    a[i, 1], b[1, j] --multiply--> p1 -+-add--> p01 -+
    a[i, 2], b[2, j] --multiply--> p2 -+             +-add--> c[i, j]
    a[i, 3], b[3, j] --multiply--> p3 -+-add--> p23 -+
"""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.semirings import SEMIRINGS
from dask_coop.algebra.strategies import AUTO, MATMUL
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import config
from dask_coop.graph.layers import Layer, array
from dask_coop.graph.tasks import refs

#: Products that one task adds, which are in memory together.
FAN_IN = 4

#: What an axis is called: a number, "m", "k" or "n".
Label = Any
Labels = tuple[Label, ...]


def matmul(
    semiring: str,
    x: Array,
    y: Array,
    labels: tuple[Labels, Labels, Labels],
    sizes: dict[Label, tuple[int, ...]],
    dtype: np.dtype[Any],
    fan_in: int,
) -> Array:
    """Multiply operands whose chunks fit, adding at most `fan_in` products at a time.

    Parameters
    ----------
    semiring : str
        Its name.
    x, y : dask.array.Array
        Of one kind.
    labels : tuple of tuple
        Those of the axes of `x`, of `y` and of the product; "k" is summed over.
    sizes : dict
        The chunks along each of them. Operands have these, or are of length one and broadcast.
    dtype : numpy.dtype
        That of the product.
    fan_in : int
    """
    of_x, of_y, of_result = labels
    strategy = config.get("coop.strategy.matmul", AUTO, *MATMUL)
    named = {} if strategy == AUTO else {"strategy": strategy}
    token = tokenize(semiring, x, y, fan_in, *named.values())
    name, state = f"matmul-{token}", f"matmul-product-{token}"
    given, products = declared_by(a=x, b=y) | named, Layer()
    layer: Layer = {}
    for index in itertools.product(*(range(len(sizes[label])) for label in of_result)):
        keys: list[Any] = []
        for block in range(len(sizes["k"])):
            at = {**dict(zip(of_result, index, strict=True)), "k": block}
            key = (state, *index, block)
            a, b = _block(x, of_x, at), _block(y, of_y, at)
            products[key] = Task(key, multiply, semiring=semiring, a=a, b=b, **given)
            keys.append(key)
        level = 0
        while len(keys) > fan_in:
            groups = [keys[i : i + fan_in] for i in range(0, len(keys), fan_in)]
            keys = [(f"matmul-add-{token}", *index, level, i) for i in range(len(groups))]
            for key, group in zip(keys, groups, strict=True):
                products[key] = Task(key, add, semiring=semiring, products=refs(group))
            level += 1
        key = (name, *index)
        layer[key] = Task(key, add, semiring=semiring, products=refs(keys))
    graph = HighLevelGraph.from_collections(state, products, dependencies=[x, y])
    out_chunks = tuple(sizes[label] for label in of_result)
    return array(graph, {state}, name, layer, x._meta, out_chunks, dtype)


def _block(operand: Array, labels: Labels, at: dict[Label, int]) -> TaskRef:
    """Return the block of an operand at an index, the only one where it is broadcast."""
    index = (at[label] if n > 1 else 0 for label, n in zip(labels, operand.numblocks, strict=True))
    return TaskRef((operand.name, *index))


# What follows runs inside tasks.


@casts
def multiply(*, semiring: str, a: Any, b: Any, strategy: str = AUTO) -> Any:
    """Return the product of two blocks."""
    return chunks.backend_of(a).matmul(a, b, semiring, strategy)


def add(*, semiring: str, products: list[Any]) -> Any:
    """Return the sum of products of blocks."""
    with np.errstate(over="ignore", invalid="ignore"):
        return reduce(SEMIRINGS[semiring].plus, products)
