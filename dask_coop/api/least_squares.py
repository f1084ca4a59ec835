"""Fit lines in several chunks to the columns of a matrix, leaving NaN out.

A state is the triangle of a QR decomposition, of the matrix with the line's elements as a last
column, so that no digits are lost as by normal equations::

    rows of a chunk      triangle           triangles below one another      coefficients
    a b c | y            r r r z            r r r z
    a b c | y    -->       r r z    -->       r r z    --> ... -->           R x = z
    a b c | y                r z            r r r z
    a b c | .                  e              r r z                          and e**2, the residual
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from dask.array.core import Array, blockwise, from_array, map_blocks
from dask.array.creation import empty_like

from dask_coop import chunks
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.masks import is_masked
from dask_coop.errors import Refused

#: The states that a task combines.
_TOGETHER = 8
#: The least rows of a chunk that are worth a state, which has up to some ten numbers for a column.
_ROWS = 32


def fit(matrix: Any, y: Array, rcond: float, least: int = 0) -> tuple[Array, Array]:
    """Return the coefficients of lines along the first axis, and the sums of squared residuals.

    Parameters
    ----------
    matrix : numpy.ndarray
        A row for each element of a line, a column for each coefficient.
    y : dask.array.Array
        Integers or floats; NaN is left out with its row.
    rcond : float
        Singular values below this share of the largest are taken for 0, as in NumPy's ``lstsq``.

    least : int
        The fewest elements other than NaN for coefficients other than NaN.

    Raises
    ------
    Refused
        If elements are no real numbers, or masked.
    """
    if y.dtype.kind not in "iuf" or y.dtype.itemsize > 8 or is_masked(y._meta):
        raise Refused(f"lines of {y.dtype} are not fitted")
    order = matrix.shape[1]
    if not y.size:
        # Dask's rechunk makes empty CuPy chunks NumPy's.
        sizes = ((order,), *y.chunks[1:])
        shape = tuple(map(sum, sizes))
        result = empty_like(y, dtype="f8", shape=shape, chunks=sizes)
        return result, empty_like(y, dtype="f8", shape=shape[1:], chunks=sizes[1:])
    if max(y.chunks[0]) < _ROWS:
        y = y.rechunk({0: _ROWS})
    size = math.comb(order + 2, 2) + 1
    index = tuple(range(y.ndim))
    options: Any = {"dtype": "f8", "meta": chunks.zeros_like(y._meta, np.dtype("f8"))}
    states = blockwise(
        _lift,
        index,
        *(y, index, from_array(matrix, chunks=(y.chunks[0], order)), (0, y.ndim)),
        adjust_chunks={0: (size,) * y.numblocks[0]},
        concatenate=True,
        **declared_by(y),
        **options,
        token="fit-lift",
    )
    while states.numblocks[0] > 1:
        states = states.rechunk({0: size * _TOGETHER})
        sizes = ((size,) * states.numblocks[0], *states.chunks[1:])
        states = map_blocks(_combine, states, order, chunks=sizes, **options, token="fit-combine")
    sizes = ((order + 1,), *states.chunks[1:])
    result = map_blocks(_solve, states, order, rcond, least, chunks=sizes, **options, token="fit")
    return result[:-1], result[-1]


# Inside tasks. A triangle is a list of its rows' elements, from the diagonal on.


@casts
def _lift(y: Any, matrix: Any) -> Any:
    """Return the state of each column of a block: its triangle, and its number of elements."""
    n, order = matrix.shape
    lines = y.reshape(n, math.prod(y.shape[1:])).astype("f8")
    invalid = np.isnan(lines)
    gaps = invalid.any(0)
    kind = chunks.kind(y)
    state = _zeros(lines, math.comb(order + 2, 2) + 1, lines.shape[1])
    state[-1] = (~invalid).sum(0)
    if not gaps.all():
        state[:-1, ~gaps] = _of_whole(lines[:, ~gaps], matrix, kind)
    if gaps.any():
        left = ~invalid[:, gaps]
        columns = [chunks.asarray(column[:, np.newaxis], kind) * left for column in matrix.T]
        of_gaps = _triangle([*columns, np.where(left, lines[:, gaps], 0)])
        for at, entry in enumerate(of_gaps):
            state[at, gaps] = entry
    return state.reshape(len(state), *y.shape[1:])


def _of_whole(lines: Any, matrix: Any, kind: str) -> Any:
    """Return the triangles of lines without gaps, which share all but the last column."""
    n, order = matrix.shape
    q, r = np.linalg.qr(np.concatenate([matrix, np.zeros((max(order - n, 0), order))]))
    q = chunks.asarray(np.ascontiguousarray(q[:n]), kind)
    last = q.T @ lines
    beyond = lines - q @ last
    state = _zeros(lines, math.comb(order + 2, 2), lines.shape[1])
    for at, (row, column) in enumerate(_places(order + 1)):
        if column < order:
            state[at] = r[row, column]
        elif row < order:
            state[at] = last[row]
        else:
            state[at] = np.sqrt((beyond * beyond).sum(0))
    return state


@casts
def _combine(states: Any, order: int) -> Any:
    """Return the states of the chunks together."""
    size = math.comb(order + 2, 2) + 1
    parted = states.reshape(len(states) // size, size, *states.shape[1:])
    rows = len(parted) * (order + 1)
    columns = [_zeros(states, rows, *states.shape[1:]) for _ in range(order + 1)]
    for at, (row, column) in enumerate(_places(order + 1)):
        columns[column][row :: order + 1] = parted[:, at]
    result = states[:size].copy()
    for at, entry in enumerate(_triangle(columns)):
        result[at] = entry
    result[-1] = parted[:, -1].sum(0)
    return result


@casts
def _solve(state: Any, order: int, rcond: float, least: int) -> Any:
    """Return the coefficients of each column, and its residual."""
    lines = state.reshape(len(state), math.prod(state.shape[1:]))
    entries = dict(zip(_places(order + 1), lines, strict=False))
    count = lines[-1]
    with np.errstate(all="ignore"):
        inverse: dict[tuple[int, int], Any] = {}
        for column in range(order):
            inverse[column, column] = 1 / entries[column, column]
            for row in range(column - 1, -1, -1):
                terms = (entries[row, k] * inverse[k, column] for k in range(row + 1, column + 1))
                inverse[row, column] = -sum(terms) / entries[row, row]
        squares = (sum(entries[at] ** 2 for at in inverse), sum(i**2 for i in inverse.values()))
        # At most the square of the condition number: those below need no singular values.
        regular = squares[0] * squares[1] < rcond**-2
        result = _zeros(lines, order + 1, lines.shape[1])
        for row in range(order - 1, -1, -1):
            known = sum(entries[row, k] * result[k] for k in range(row + 1, order))
            result[row] = (entries[row, order] - known) / entries[row, row]
        result[order] = np.where(count > order, entries[order, order] ** 2, np.nan)
    if not regular.all():
        _solve_deficient(result, entries, ~regular, rcond)
    result[:, (count == 0) | (count < least) | (squares[0] == 0)] = np.nan
    if (~regular & (count > 0)).any():
        warnings.warn("Polyfit may be poorly conditioned", np.exceptions.RankWarning, stacklevel=1)
    return result.reshape(len(result), *state.shape[1:])


def _solve_deficient(result: Any, entries: dict[Any, Any], which: Any, rcond: float) -> None:
    """Write the least of all solutions into the columns whose matrix is nearly singular."""
    order = len(result) - 1
    some = entries[0, 0][which]
    matrices = _zeros(some, len(some), order, order)
    last = _zeros(some, len(some), order, 1)
    for (row, column), entry in entries.items():
        if column < order:
            matrices[:, row, column] = entry[which]
        elif row < order:
            last[:, row, 0] = entry[which]
    u, s, vt = np.linalg.svd(matrices)
    kept = s > rcond * s[:, :1]
    scaled = np.swapaxes(u, 1, 2) @ last
    scaled = scaled * np.where(kept, 1 / np.where(kept, s, 1), 0)[:, :, np.newaxis]
    result[:order, which] = (np.swapaxes(vt, 1, 2) @ scaled)[:, :, 0].T
    result[order, which] = np.where(kept.all(1), result[order, which], np.nan)


def _triangle(columns: Sequence[Any]) -> list[Any]:
    """Return the triangles of matrices with these columns, each by Gram-Schmidt."""
    entries = []
    remaining = [*columns]
    while remaining:
        first, *others = remaining
        length = np.sqrt((first * first).sum(0))
        entries.append(length)
        direction = first / np.where(length > 0, length, 1) if others else first
        remaining = []
        for column in others:
            along = (direction * column).sum(0)
            entries.append(along)
            remaining.append(column - direction * along)
    return entries


def _zeros(like: Any, *shape: int) -> Any:
    """Return zeros in an array of the same kind and dtype."""
    return np.zeros_like(like, shape=shape)


def _places(n: int) -> list[tuple[int, int]]:
    """Return the rows and columns of a triangle's elements."""
    return [*combinations_with_replacement(range(n), 2)]
