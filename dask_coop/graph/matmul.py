"""The cross-chunk step of a product of matrices over a semiring.

The product is made block by block. The products of the blocks of the contracted axis are added in
a tree, with the semiring's addition::

    a[i, 0], b[0, j] --multiply--> p0 -+
    a[i, 1], b[1, j] --multiply--> p1 -+-add--> p01 -+
    a[i, 2], b[2, j] --multiply--> p2 -+             +-add--> c[i, j]
    a[i, 3], b[3, j] --multiply--> p3 -+-add--> p23 -+

Products of deviations from means are made in the same way, of the rows of one matrix with one
another. What is added are states; blocks above the diagonal are those below it, transposed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.merges import cast
from dask_coop.algebra.monoids import floating
from dask_coop.algebra.paired import Products, merge_products
from dask_coop.algebra.semirings import SEMIRINGS
from dask_coop.algebra.strategies import AUTO, MATMUL
from dask_coop.chunks import paired
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import config
from dask_coop.graph.layers import Layer, array
from dask_coop.graph.tasks import refs

#: The number of products that one task adds and holds in memory.
FAN_IN = 4

#: The label of an axis: a number, "m", "k" or "n".
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
    """Multiply operands with matching chunks, adding at most `fan_in` products at a time.

    Parameters
    ----------
    semiring : str
        The name of the semiring.
    x, y : dask.array.Array
        Arrays with chunks of one kind.
    labels : tuple of tuple
        The labels of the axes of `x`, of `y` and of the product, which is summed over "k".
    sizes : dict
        The chunks along each label. An operand has these, or length one and is broadcast.
    dtype : numpy.dtype
        The dtype of the product.
    fan_in : int
    """
    of_x, of_y, of_result = labels
    strategy = config.get("coop.strategy.matmul", AUTO, *MATMUL)
    named = {} if strategy == AUTO else {"strategy": strategy}
    token = tokenize(semiring, x, y, fan_in, *named.values())
    name, state = f"matmul-{token}", f"matmul-product-{token}"
    options, products = declared_by(a=x, b=y) | named, Layer()
    layer: Layer = {}
    for index in itertools.product(*(range(len(sizes[label])) for label in of_result)):
        keys: list[Any] = []
        for block in range(len(sizes["k"])):
            places = {**dict(zip(of_result, index, strict=True)), "k": block}
            key = (state, *index, block)
            a, b = _block(x, of_x, places), _block(y, of_y, places)
            products[key] = Task(key, multiply, semiring=semiring, a=a, b=b, **options)
            keys.append(key)
        keys = _added(products, keys, (f"matmul-add-{token}", *index), fan_in, add, semiring)
        key = (name, *index)
        layer[key] = Task(key, add, semiring=semiring, products=refs(keys))
    graph = HighLevelGraph.from_collections(state, products, dependencies=[x, y])
    out_chunks = tuple(sizes[label] for label in of_result)
    return array(graph, {state}, name, layer, x._meta, out_chunks, dtype)


def deviations(
    name: str,
    x: Array,
    weights: Mapping[str, Array],
    finalize: Callable[[Products], Any],
    scale: Callable[[Any, Any, Any], Any] | None,
    dtype: np.dtype[Any],
) -> Array:
    """Multiply deviations of the rows of `x` from their means, each row with each.

    Parameters
    ----------
    name : str
        The public function, for keys.
    x : dask.array.Array
        A row for each variable, a column for each sample.
    weights : mapping of str to dask.array.Array
        Weights of the samples, in the chunks of these: "fweights" or "aweights", or both.
    finalize : callable
        Makes a block of the result from a state of all samples.
    scale : callable, optional
        Makes the blocks of the result from float64 or complex128 ones of `finalize`: one, and
        those on the diagonal in its rows and in its columns.
    dtype : numpy.dtype
        The dtype of the result.
    """
    token = tokenize(x, weights, finalize, scale, dtype)
    state, last = f"{name}-lift-{token}", f"{name}-{token}"
    block = last if scale is None else f"{name}-sums-{token}"
    states, blocks, result = Layer(), Layer(), Layer()
    rows = range(x.numblocks[0])
    wide = dtype if scale is None else floating(dtype)
    for i, j in itertools.product(rows, rows):
        if i < j:
            blocks[block, i, j] = Task((block, i, j), _transposed, TaskRef((block, j, i)))
            continue
        keys: list[Any] = []
        for k in range(x.numblocks[1]):
            some: dict[str, Any] = {of: TaskRef((w.name, k)) for of, w in weights.items()}
            sides = {"a": i} if i == j else {"a": i, "b": j}
            some |= {side: TaskRef((x.name, row, k)) for side, row in sides.items()}
            declared = declared_by(**dict.fromkeys(sides, x), **weights)
            key = (state, i, j, k)
            states[key] = Task(key, lift, **some, **declared)
            keys.append(key)
        keys = _added(states, keys, (f"{name}-combine-{token}", i, j), FAN_IN, merge)
        options: dict[str, Any] = {"finalize": finalize, "dtype": wide}
        blocks[block, i, j] = Task((block, i, j), finish, states=refs(keys), **options)
    graph = HighLevelGraph.from_collections(state, states, dependencies=[x, *weights.values()])
    sizes = (x.chunks[0], x.chunks[0])
    square = array(graph, {state}, block, blocks, x._meta, sizes, wide)
    if scale is None:
        return square
    for i, j in itertools.product(rows, rows):
        ends = ((block, i, j), (block, i, i), (block, j, j))
        result[last, i, j] = Task((last, i, j), scale, *map(TaskRef, ends))
    return array(square.dask, {block}, last, result, x._meta, sizes, dtype)


def _added(
    layer: Layer, keys: list[Any], prefix: Any, fan_in: int, function: Any, *semiring: str
) -> list[Any]:
    """Add tasks to a layer until at most `fan_in` products are left; return their keys."""
    named = dict(zip(("semiring",), semiring, strict=False))
    level = 0
    while len(keys) > fan_in:
        groups = [keys[i : i + fan_in] for i in range(0, len(keys), fan_in)]
        keys = [(*prefix, level, i) for i in range(len(groups))]
        for key, group in zip(keys, groups, strict=True):
            layer[key] = Task(key, function, **named, products=refs(group))
        level += 1
    return keys


def _block(operand: Array, labels: Labels, places: dict[Label, int]) -> TaskRef:
    """Return the block of an operand at an index; the only one along broadcast axes."""
    labelled = zip(labels, operand.numblocks, strict=True)
    index = (places[label] if n > 1 else 0 for label, n in labelled)
    return TaskRef((operand.name, *index))


# Inside the tasks.


@casts
def multiply(*, semiring: str, a: Any, b: Any, strategy: str = AUTO) -> Any:
    """Return the product of two blocks."""
    return chunks.backend_of(a).matmul(a, b, semiring, strategy)


def add(*, semiring: str, products: list[Any]) -> Any:
    """Return the sum of products of blocks."""
    with np.errstate(over="ignore", invalid="ignore"):
        return reduce(SEMIRINGS[semiring].plus, products)


@casts
def lift(*, a: Any, b: Any = None, fweights: Any = None, aweights: Any = None) -> Products:
    """Return products of deviations of the rows of two blocks, or of one."""
    return paired.products(a, b, fweights, aweights)


def merge(*, products: list[Products]) -> Products:
    """Return the state of the samples of several states."""
    return reduce(merge_products, products)


def finish(
    *, finalize: Callable[[Products], Any], dtype: np.dtype[Any], states: list[Products]
) -> Any:
    """Return a block of the result from states."""
    return cast(finalize(merge(products=states)), dtype)


def _transposed(block: Any) -> Any:
    return block.conj().T
