"""Quantiles of groups whose elements are gathered.

Elements of known labels are sorted by their groups along the last axis. A block holds whole groups
and is no larger than the array's chunks or one group::

    x       a b c | d e f           a d | b c e f
    groups  0 1 1 | 0 1 1   -->     0 0 | 1 1 1 1   -->  quantiles of 0 | quantiles of 1

Blocks of lazy labels hold whole lines instead, with all groups; the elements of each group are
taken in the task, where the labels are known.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from dask import config
from dask.array.core import Array, normalize_chunks
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import DataNode, Task, TaskRef
from dask.tokenize import tokenize
from dask.utils import cached_cumsum, parse_bytes

from dask_coop import chunks
from dask_coop.algebra.bins import Integers
from dask_coop.algebra.monoids import COUNTS
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.quantiles import Quantiles
from dask_coop.algebra.statistics import Fill
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.labels import Coder, Values
from dask_coop.chunks.repeats import Repeats
from dask_coop.graph.layers import Key, Layer, array, rechunked
from dask_coop.graph.line_quantiles import quantiles_of_lines

Codes = np.ndarray[Any, Any]

#: Counts integers.
COUNT = Operation(COUNTS, np.dtype("i8"), np.dtype("i8"))


class Form(NamedTuple):
    """The quantiles to find in each group, and the form of the results.

    Attributes
    ----------
    name : str
        The name of the statistic.
    quantiles : Quantiles or Repeats
    result : dtype
        The dtype of quantiles.
    dtype : dtype
        The dtype that also holds fill values.
    fill : Fill
    """

    name: str
    quantiles: Quantiles | Repeats
    result: np.dtype[Any]
    dtype: np.dtype[Any]
    fill: Fill

    @property
    def nothing(self) -> Any:
        """The result of a group without elements."""
        value = self.fill.nothing if self.fill.value is None else self.fill.value
        return np.asarray(value, self.dtype)[()]

    def filled(self, values: Any, valid: Any) -> Any:
        """Return quantiles with the fill value where too few elements are valid."""
        if self.fill.least > 0 and (few := valid < self.fill.least).any():
            return np.where(few, self.fill.required(self.name), values)
        return values


class Coded(NamedTuple):
    """Lazy labels in the chunks of an array's last axes, and their coder.

    Attributes
    ----------
    arrays : tuple of dask.array.Array
    coder : Coder or dask.array.Array
        An array has the groups themselves, sorted, in one chunk.
    rows : int
        The number of leading label axes that the result keeps.
    """

    arrays: tuple[Array, ...]
    coder: Coder | Array
    rows: int = 0

    def blocks(self, index: Key) -> list[TaskRef]:
        """Return the blocks of labels that belong to the array's block at an index."""
        return [TaskRef((a.name, *index[len(index) - a.ndim :])) for a in self.arrays]

    def coder_or_block(self) -> Any:
        """Return the argument of a task that `as_coder` makes a coder of."""
        return TaskRef((self.coder.name, 0)) if isinstance(self.coder, Array) else self.coder

    def collections(self) -> list[Array]:
        """Return all arrays that tasks with these labels need."""
        return [*self.arrays, *([self.coder] if isinstance(self.coder, Array) else [])]


def gathered(x: Array, lengths: Codes) -> tuple[Array, list[tuple[int, int]]]:
    """Return `x` in blocks of whole groups, and the range of groups of each block."""
    limit = parse_bytes(config.get("array.chunk-size"))
    largest = min(limit, math.prod(max(sizes, default=1) for sizes in x.chunks) * x.dtype.itemsize)
    longest = int(lengths.max(initial=1)) or 1
    beside = math.prod(max(sizes, default=1) for sizes in x.chunks[:-1])
    room = max(longest, largest // (x.dtype.itemsize * max(1, beside)))
    cuts, start, total = [], 0, 0
    for group, length in enumerate(lengths.tolist()):
        if total and total + length > room:
            cuts.append((start, group))
            start, total = group, 0
        total += length
    cuts.append((start, len(lengths)))
    sizes = tuple(int(lengths[a:b].sum()) for a, b in cuts)
    along: dict[int, Any] = {x.ndim - 1: sizes}
    if longest * beside * x.dtype.itemsize > largest:
        along |= dict.fromkeys(range(x.ndim - 1), "auto")
    most = max(largest, max(sizes) * x.dtype.itemsize)
    wanted = tuple(along.get(d, before) for d, before in enumerate(x.chunks))
    whole = normalize_chunks(wanted, x.shape, most, x.dtype, x.chunks)
    return rechunked(x, whole), cuts


def quantiles(
    x: Array, order: Codes | None, lengths: Codes, cuts: list[tuple[int, int]], form: Form
) -> Array:
    """Return the quantiles of groups, block by block; each block holds whole groups.

    Parameters
    ----------
    x : dask.array.Array
    order : numpy.ndarray or None
        The positions of elements by their groups, in blocks that hold all groups; None if elements
        are sorted by their groups.
    lengths : numpy.ndarray
        The number of elements of each group.
    cuts : list of (int, int)
        The range of groups of each block.
    form : Form
    """
    name = f"groupby-{form.name}-{tokenize(x, order, lengths, cuts, form)}"
    lead, layer = (0,) * len(form.quantiles.shape), Layer()
    taken: Any = None
    if order is not None:
        # Once for all tasks, because it is long.
        source = (name, "order")
        layer[source], taken = DataNode(source, order), TaskRef(source)
    for index in itertools.product(*map(range, x.numblocks)):
        key, (start, stop) = (name, *lead, *index), cuts[index[-1]]
        layer[key] = Task(
            key,
            quantiles_of_block,
            TaskRef((x.name, *index)),
            **declared_by(x),
            order=taken,
            lengths=lengths[start:stop],
            form=form,
        )
    of_q = tuple((n,) for n in form.quantiles.shape)
    out_chunks = (*of_q, *x.chunks[:-1], tuple(stop - start for start, stop in cuts))
    return array(x.dask, {x.name}, name, layer, x._meta, out_chunks, form.dtype)


def quantiles_of_lazy(x: Array, labels: Coded, shape: tuple[float, ...], form: Form) -> Array:
    """Return the quantiles of groups of lazy labels; each block holds whole lines.

    Parameters
    ----------
    x : dask.array.Array
        In one chunk along the reduced axes, the last ones.
    labels : Coded
    shape : tuple of int or nan
        The number of groups along each of the result's axes.
    form : Form
    """
    name = f"groupby-{form.name}-{tokenize(x, labels, shape, form)}"
    kept = x.ndim - labels.arrays[0].ndim + labels.rows
    lead, layer = (0,) * len(form.quantiles.shape), Layer()
    for index in itertools.product(*map(range, x.numblocks)):
        key = (name, *lead, *index[:kept], *(0,) * len(shape))
        layer[key] = Task(
            key,
            quantiles_by_labels,
            *labels.blocks(index),
            block=TaskRef((x.name, *index)),
            **declared_by(*labels.arrays, block=x),
            coder=labels.coder_or_block(),
            rows=labels.rows,
            form=form,
        )
    sizes = (*((n,) for n in form.quantiles.shape), *x.chunks[:kept], *((n,) for n in shape))
    sources = [x, *labels.collections()]
    graph = HighLevelGraph.merge(*(source.dask for source in sources))
    below = {layer for source in sources for layer in source.__dask_layers__()}
    return array(graph, below, name, layer, x._meta, sizes, form.dtype)


# Inside the task.


def as_coder(coder: Any) -> Coder:
    """Return a coder, given one or the groups of a label."""
    if isinstance(coder, Coder):
        return coder
    values = chunks.asarray(coder, "numpy")
    return Coder((Values(values),), (len(values),))


@casts
def quantiles_by_labels(*labels: Any, block: Any, coder: Any, rows: int, form: Form) -> Any:
    """Return the quantiles of all groups of a block that holds whole lines."""
    coder = as_coder(coder)
    n, to = math.prod(coder.shape), chunks.kind(block)
    codes = chunks.asarray(coder.codes(labels), to)
    kept, outer = block.shape[: block.ndim - codes.ndim], codes.shape[:rows]
    total = n * math.prod(outer)
    if rows:
        # Each row has its own groups.
        first = np.arange(math.prod(outer)).reshape(*outer, *(1,) * (codes.ndim - rows)) * n
        codes = np.where(codes < 0, -1, codes + chunks.asarray(first, to))
    lines = block if codes.ndim == 1 else block.reshape(*kept, codes.size)
    codes = codes.reshape(-1)
    backend = chunks.backend_of(codes)
    (counts,) = backend.histogram(COUNT, [codes + 1], Integers(total + 1), None)
    left_out, *lengths = chunks.asarray(counts, "numpy").tolist()
    order = backend.argsort(codes, 0, True)[left_out:]
    lengths_of = np.array(lengths, "i8")
    values = quantiles_of_block(lines, order=order, lengths=lengths_of, form=form)
    return values.reshape(*form.quantiles.shape, *kept, *outer, *coder.shape)


@casts
def quantiles_of_block(x: Any, *, order: Any, lengths: Codes, form: Form) -> Any:
    """Return the quantiles of consecutive groups with the given `lengths` along the last axis.

    `order` has the positions of the groups' elements; by default these are side by side.
    """
    kept, quantiles = x.shape[:-1], form.quantiles
    shape = (*quantiles.shape, *kept, len(lengths))
    if form.fill.least > 0 and (lengths < form.fill.least).any():
        form.fill.required(form.name)
    result_block = np.full_like(x, form.nothing, dtype=form.dtype, shape=shape)
    starts = cached_cumsum(tuple(lengths.tolist()), initial_zero=True)[:-1]
    starts = np.asarray(starts)
    # Groups of equal length form the lines of one array.
    for length in np.unique(lengths[lengths > 0]):
        groups = np.flatnonzero(lengths == length)
        indices = starts[groups][:, np.newaxis] + np.arange(length)
        if order is not None:
            indices = order[chunks.asarray(indices, chunks.kind(order))]
        axes = (x.ndim,)
        values, counts = quantiles_of_lines(x, axes, quantiles, form.result, indices)
        values = chunks.asarray(form.filled(values, counts), chunks.kind(x))
        result_block[..., groups] = values.reshape(*quantiles.shape, *kept, len(groups))
    return result_block
