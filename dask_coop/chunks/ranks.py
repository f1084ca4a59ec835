"""Ranks of the elements of sorted lines, with ties by one of SciPy's methods."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dask_coop import chunks
from dask_coop.chunks.repeats import begins

Ties = Literal["average", "min", "max", "dense", "ordinal"]
METHODS: tuple[str, ...] = get_args(Ties)


class Ends(NamedTuple):
    """The ends of a sorted chunk, on the host.

    Attributes
    ----------
    first, last : numpy.ndarray
        The first element and the last one, of no axes.
    equal : (int, int)
        How many elements equal the first one, and the last one.
    distinct, missing, size : int
        The number of distinct elements, of NaN, and of all elements.
    """

    first: Any
    last: Any
    equal: tuple[int, int]
    distinct: int
    missing: int
    size: int


class Others(NamedTuple):
    """Numbers of elements of other chunks, for the ranks of a sorted chunk.

    Attributes
    ----------
    before, distinct : int
        All elements, and distinct ones, that are less than the chunk's first or equal it and stand
        in chunks before.
    equal : (int, int)
        Those before the chunk that equal its first element, and after it that equal its last one.
    missing : int
        All NaN.
    """

    before: int = 0
    distinct: int = 0
    equal: tuple[int, int] = (0, 0)
    missing: int = 0


def ends_of(ordered: Any) -> Ends:
    """Return the ends of a sorted chunk of one axis."""
    starts = np.flatnonzero(begins(ordered))
    sides = chunks.asarray(starts[[0, -1]] if len(starts) == 1 else starts[[1, -1]], "numpy")
    first, last = chunks.asarray(ordered[[0, -1]], "numpy")
    size, missing = len(ordered), int((ordered != ordered).sum())
    head = int(sides[0]) if len(starts) > 1 else size
    return Ends(first, last, (head, size - int(sides[1])), len(starts), missing, size)


def others_of(ends: list[Ends]) -> list[Others]:
    """Return the numbers for each of several chunks, from their ends in order."""
    joined = [False, *(_are_equal(a.last, b.first) for a, b in pairwise(ends))]
    missing = sum(end.missing for end in ends)
    before, distinct, equal = 0, 0, 0
    results = []
    for i, end in enumerate(ends):
        equal = equal if joined[i] else 0
        distinct -= joined[i]
        results.append(Others(before, distinct, (equal, 0), missing))
        before, distinct = before + end.size, distinct + end.distinct
        equal = end.equal[1] + (equal if end.distinct == 1 else 0)
    after = 0
    for i in reversed(range(len(ends))):
        results[i] = results[i]._replace(equal=(results[i].equal[0], after))
        after = ends[i].equal[0] + (after if ends[i].distinct == 1 else 0)
        after = after if joined[i] else 0
    return results


def ranks_of_sorted(
    ordered: Any, method: Ties, omit: bool, dtype: np.dtype[Any], near: Others
) -> Any:
    """Return the ranks of sorted elements along the last axis, in their order.

    NaN have the rank NaN if `omit`; otherwise all ranks of lines with NaN are NaN.
    """
    n = ordered.shape[-1]
    first = begins(ordered)
    if method == "ordinal":
        ranks = np.ones_like(first, "i8").cumsum(-1) + near.before
    elif method == "dense":
        ranks = first.cumsum(-1, dtype="i8") + near.distinct
    else:
        starts = np.flatnonzero(first)
        ends = np.zeros_like(starts)
        ends[:-1] = starts[1:]
        ends[-1:] = first.size
        low = near.before + starts % max(n, 1) + 1
        high = low + (ends - starts) - 1
        # Chunks that have neighbours are lines of their own.
        low[:1] -= near.equal[0]
        high[-1:] += near.equal[1]
        of_runs = {"min": low, "max": high}.get(method)
        of_runs = (low + high) / 2 if of_runs is None else of_runs
        ranks = of_runs[first.reshape(-1).cumsum() - 1].reshape(ordered.shape)
    ranks = ranks.astype(dtype, copy=False)
    if ordered.dtype.kind not in "fmM":
        return ranks
    missing = ordered != ordered
    if not omit:
        missing = missing.any(-1, keepdims=True) | (near.missing > 0)
    return np.where(missing, np.nan, ranks)


def ranks_of_lines(x: Any, method: Ties, omit: bool, dtype: np.dtype[Any]) -> Any:
    """Return the ranks of elements along the last axis."""
    order = chunks.backend_of(x).argsort(x, -1, True)
    ranks = ranks_of_sorted(np.take_along_axis(x, order, -1), method, omit, dtype, Others())
    result = np.empty_like(ranks).reshape(-1)
    lines = np.arange(math.prod(x.shape[:-1])) * x.shape[-1]
    lines = chunks.asarray(lines, chunks.kind(x)).reshape(*x.shape[:-1], 1)
    result[(order + lines).reshape(-1)] = ranks.reshape(-1)
    return result.reshape(x.shape)


def _are_equal(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))
