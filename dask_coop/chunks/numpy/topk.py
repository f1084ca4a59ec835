"""The best elements of the lines of NumPy chunks, by few passes of NumPy's.

A line that is long for what is wanted of it is dealt to groups, and the k-th best of the groups'
best elements is a bound: at least k elements are as good, and in random data few more are, which
take no time to select from::

    line --the best of each group, one pass--> bound --who is as good? one pass--> few --> k best

In other lines NumPy's partition finds the bound that exactly k are as good as, but for ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.topk import TopK, best_values, find_best, find_beyond, place
from dask_coop.chunks.numpy.lines import find_layout

Array = np.ndarray[Any, Any]

#: Elements of several lines that are worked on at a time.
_BLOCK = 1 << 17
#: The least length of a line, for each element that is wanted, that is dealt to groups; and where
#: NumPy's partition of short lines does as well.
_LONG, _SHORT = 64, 1 << 13
#: The least groups: NumPy compares as many neighbours at a time.
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
        # What NumPy does to lines that are contiguous is best done to all of them.
        fields = largest(np.ascontiguousarray(split).reshape(-1, n), k, indices)
    else:
        kinds = monoid.dtypes(x.dtype)
        fields = tuple(np.empty((outer, inner, count), dtype) for dtype in kinds)
        for part in _blocks(outer, n, inner):
            block = split[part[0], :, part[1]].swapaxes(1, 2)
            found = largest(np.ascontiguousarray(block).reshape(-1, n), k, indices)
            for field, of_block in zip(fields, found, strict=True):
                field[part] = of_block.reshape(*block.shape[:2], count)
    kept = layout.order[: layout.start] + layout.order[layout.stop :]
    shape, back = [*(x.shape[d] for d in kept), count], [*np.argsort(kept), len(kept)]
    return tuple(field.reshape(shape).transpose(back) for field in fields)


def _blocks(outer: int, n: int, inner: int) -> Iterator[tuple[slice, slice]]:
    """Yield which groups of columns, and which columns of them, are worked on at a time."""
    groups = max(1, _BLOCK // (n * max(1, inner)))
    # Of rows in memory as much is read as a copy to lines takes with ease.
    columns = max(16, _BLOCK // n)
    for first in range(0, outer, groups):
        for begin in range(0, inner, columns):
            yield slice(first, first + groups), slice(begin, begin + columns)


def largest(x: Array, k: int, indices: bool) -> State:
    """Return the `k` largest elements of lines in C order, or the smallest ones, and their indices.

    Lines have more. Equal ones are in their order.

    Parameters
    ----------
    x : numpy.ndarray
        Of shape ``(lines, n)``.
    k : int
        Negative for the smallest.
    indices : bool
        Whether indices are returned besides, int64.
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
    """Return an element of each line than which at least `k` are no worse."""
    n = x.shape[-1]
    groups = max(4 * abs(k), _GROUPS, min(1024, n // 16))
    rows = x[:, : n // groups * groups].reshape(len(x), n // groups, groups)
    # Where the smallest are wanted NaN are the worst.
    best = (np.maximum if k > 0 else np.fmin).reduce(rows, 1)
    at = place(groups, k)
    bounds: Array = np.partition(best, at, -1)[:, at : at + 1]
    return bounds
