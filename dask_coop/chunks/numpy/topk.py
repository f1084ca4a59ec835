"""The k best elements of each line of NumPy chunks, by a few passes of NumPy.

A line much longer than k is divided into groups. The k-th best of the groups' best elements is a
bound: at least k elements are as good, and in random data few more are, so that selecting from
them takes little time::

    line --the best of each group, one pass--> bound --who is as good? one pass--> few --> k best

In other lines NumPy's partition finds the bound: without ties exactly k elements are as good.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.topk import TopK, best_values, find_best, find_beyond, place
from dask_coop.chunks.numpy.lines import find_layout

Array = np.ndarray[Any, Any]

#: Elements of several lines in a block.
_BLOCK = 1 << 17
#: The least length of a line, in multiples of k, that is divided into groups; and the length up to
#: which NumPy's partition does as well.
_LONG, _SHORT = 64, 1 << 13
#: The fewest groups: NumPy compares as many neighbours at a time.
_GROUPS = 128


def lift(monoid: TopK, x: Array, axes: tuple[int, ...]) -> State:
    """Return the best elements of a chunk along one axis, and their indices."""
    (axis,), k, indices = axes, monoid.k, monoid.positional
    n, count = x.shape[axis], min(abs(k), x.shape[axis])
    if count == n:
        lines = np.moveaxis(x, axis, -1)
        at = np.broadcast_to(np.arange(n), lines.shape)
        return (lines, at) if indices else (lines,)
    layout = find_layout(x, axes)
    split = layout.split(x)
    outer, _, inner = split.shape
    if inner == 1 and not indices:
        # Handle contiguous lines all at once.
        fields = largest(np.ascontiguousarray(split).reshape(-1, n), k, indices)
    else:
        kinds = monoid.dtypes(x.dtype)
        fields = tuple(np.empty((outer, inner, count), dtype) for dtype in kinds)
        for part in _blocks(outer, n, inner):
            block = split[part[0], :, part[1]].swapaxes(1, 2)
            block_fields = largest(np.ascontiguousarray(block).reshape(-1, n), k, indices)
            for field, of_block in zip(fields, block_fields, strict=True):
                field[part] = of_block.reshape(*block.shape[:2], count)
    kept = layout.order[: layout.start] + layout.order[layout.stop :]
    shape, back = [*(x.shape[d] for d in kept), count], [*np.argsort(kept), len(kept)]
    return tuple(field.reshape(shape).transpose(back) for field in fields)


def _blocks(outer: int, n: int, inner: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of groups of columns, and of columns of them, to work on at a time."""
    groups = max(1, _BLOCK // (n * max(1, inner)))
    # Rows in memory: as many bytes as a copy to lines handles easily.
    columns = max(16, _BLOCK // n)
    for first in range(0, outer, groups):
        for begin in range(0, inner, columns):
            yield slice(first, first + groups), slice(begin, begin + columns)


def largest(x: Array, k: int, indices: bool) -> State:
    """Return the `k` largest elements of each line, or the smallest ones, and their indices.

    Lines, in C order, are longer than that. Equal elements keep their order.

    Parameters
    ----------
    x : numpy.ndarray
        With shape ``(lines, n)``.
    k : int
        Negative for the smallest.
    indices : bool
        Whether to return indices, int64, too.
    """
    n, count = x.shape[-1], abs(k)
    if count and n >= max(_LONG * count, 4 * _GROUPS) and (indices or n >= _SHORT):
        at = find_beyond(x, k, _find_bounds(x, k))
    elif indices:
        at = find_best(x, k)
    else:
        return (best_values(x, k),)
    values = np.take_along_axis(x, at, -1)
    return (values, at) if indices else (values,)


def _find_bounds(x: Array, k: int) -> Array:
    """Return for each line an element than which at least `k` are no worse."""
    n = x.shape[-1]
    groups = max(4 * abs(k), _GROUPS, min(1024, n // 16))
    rows = x[:, : n // groups * groups].reshape(len(x), n // groups, groups)
    # NaN are the worst when the smallest are wanted.
    best = (np.maximum if k > 0 else np.fmin).reduce(rows, 1)
    at = place(groups, k)
    bounds: Array = np.partition(best, at, -1)[:, at : at + 1]
    return bounds
