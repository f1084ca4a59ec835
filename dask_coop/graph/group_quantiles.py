"""Quantiles of groups whose elements are gathered.

Elements are sorted by their groups along the last axis. A block holds whole groups and is no larger
than the array's chunks or one group::

    x       a b c | d e f           a d | b c e f
    groups  0 1 1 | 0 1 1   -->     0 0 | 1 1 1 1   -->  quantiles of 0 | quantiles of 1
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from dask import config
from dask.array.core import Array
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize
from dask.utils import cached_cumsum, parse_bytes

from dask_coop.algebra.quantiles import Quantiles
from dask_coop.algebra.statistics import Fill
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph.layers import array
from dask_coop.graph.line_quantiles import quantiles_of_lines


def gathered(x: Array, lengths: np.ndarray[Any, Any]) -> tuple[Array, list[tuple[int, int]]]:
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
    return x.rechunk(along, block_size_limit=most), cuts


def quantiles(
    func: str,
    x: Array,
    lengths: np.ndarray[Any, Any],
    cuts: list[tuple[int, int]],
    quantiles: Quantiles,
    result: np.dtype[Any],
    dtype: np.dtype[Any],
    fill: Fill,
) -> Array:
    """Return the quantiles of groups, block by block; each block holds whole groups."""
    name = f"groupby-{func}-{tokenize(x, lengths, cuts, quantiles, result, dtype, fill)}"
    lead, layer = (0,) * len(quantiles.shape), {}
    for index in itertools.product(*map(range, x.numblocks)):
        key, (start, stop) = (name, *lead, *index), cuts[index[-1]]
        layer[key] = Task(
            key,
            quantiles_of_block,
            TaskRef((x.name, *index)),
            **declared_by(x),
            func=func,
            lengths=lengths[start:stop],
            quantiles=quantiles,
            result=result,
            dtype=dtype,
            fill=fill,
        )
    of_q = tuple((n,) for n in quantiles.shape)
    out_chunks = (*of_q, *x.chunks[:-1], tuple(stop - start for start, stop in cuts))
    return array(x.dask, {x.name}, name, layer, x._meta, out_chunks, dtype)


# Inside the task.


@casts
def quantiles_of_block(
    x: Any,
    *,
    func: str,
    lengths: np.ndarray[Any, Any],
    quantiles: Quantiles,
    result: np.dtype[Any],
    dtype: np.dtype[Any],
    fill: Fill,
) -> Any:
    """Return the quantiles of consecutive groups with the given `lengths` along the last axis."""
    kept = x.shape[:-1]
    shape = (*quantiles.shape, *kept, len(lengths))
    if fill.least > 0 and (lengths < fill.least).any():
        fill.required(func)
    empty = fill.nothing if fill.value is None else fill.value
    result_block = np.full_like(x, np.asarray(empty, dtype)[()], dtype=dtype, shape=shape)
    starts = cached_cumsum(tuple(lengths.tolist()), initial_zero=True)[:-1]
    starts = np.asarray(starts)
    # Groups of equal length form the lines of one array.
    for length in np.unique(lengths[lengths > 0]):
        groups = np.flatnonzero(lengths == length)
        indices = starts[groups][:, np.newaxis] + np.arange(length)
        lines = x[..., indices]
        values, counts = quantiles_of_lines(lines, (lines.ndim - 1,), quantiles, result)
        if fill.least > 0 and (few := counts < fill.least).any():
            values = np.where(few, fill.required(func), values)
        result_block[..., groups] = values.reshape(*quantiles.shape, *kept, len(groups))
    return result_block
