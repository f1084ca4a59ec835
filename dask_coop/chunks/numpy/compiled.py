"""Reductions of NumPy chunks by one compiled loop each, which reads a chunk once.

NumPy's steps, in reduce.py, need a pass and an array as large as the chunk for each action: leave
out NaN or masked elements, subtract the mean, square. These loops do all of it element by element.
NumPy handles chunks too small to pay for compiling, and dtypes without a loop: complex numbers
and float16.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dask_coop.algebra.central_moments import Powers
from dask_coop.algebra.monoids import (
    ALL,
    ANY,
    COMPENSATED_MEAN,
    COMPENSATED_SUM,
    COMPENSATED_VAR,
    COUNT_NONZERO,
    MAX,
    MEAN,
    MIN,
    MINMAX,
    MOMENTS,
    SQUARES,
    SUM,
    VAR,
    MonoidRow,
    State,
)
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.paired import COMOMENTS, WEIGHTED_MEAN
from dask_coop.chunks.numpy.lines import Layout, Lines, aligned, find_layout, read, read_only
from dask_coop.chunks.numpy.loop_table import loops, loops_for

Array = np.ndarray[Any, Any]

#: The fewest elements of a group of columns: with fewer, the start of loops costs more than work.
_LEAST = 512


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None) -> State | None:
    """Return the state of a chunk of `op.element`, or None if NumPy is to reduce it."""
    if loops_for("moments", x.size) is None or x.dtype.kind not in "biuf" or x.dtype == "f2":
        return None
    make = _LIFTS.get(op.monoid)
    if isinstance(op.monoid, Powers):
        make = _exact_variance if op.monoid.order == 2 else _powers
    if make is None:
        return None
    layout = find_layout(x, axes)
    if where is None and not (op.skipna and x.dtype.kind == "f") and _is_numpys(op, x, layout):
        return None
    x = aligned(x.view("u1") if x.dtype.kind == "b" else x)
    keep = None if where is None else np.broadcast_to(where, x.shape)
    if make is _powers and op.skipna and x.dtype.kind == "f":
        keep = ~np.isnan(x) if keep is None else keep & ~np.isnan(x)
    lines = read(layout, x, keep)
    if lines.inner > 1 and (make is _powers or lines.n * lines.inner < _LEAST):
        return None
    state = make(op, lines)
    return tuple(layout.join(field, x.shape) if np.ndim(field) else field for field in state)


def _is_numpys(op: Operation, x: Array, layout: Layout) -> bool:
    """Return whether other functions do as well where all elements count."""
    columns = layout.stop < x.ndim
    if op.monoid in (ALL, ANY):
        return columns or x.itemsize == 1
    if op.monoid is COUNT_NONZERO:
        return x.dtype.kind == "f" if columns else x.itemsize == 1 and not layout.start
    return op.monoid in (COMPENSATED_MEAN, COMPENSATED_SUM, SUM, MIN, MAX, MINMAX) or (
        op.monoid is MEAN and x.dtype.kind == "f"
    )


def _skip(op: Operation, lines: Lines) -> bool | None:
    """Return True if loops must check for NaN to leave out, else None, as loops expect."""
    return True if op.skipna and lines.memory.dtype.kind == "f" else None


def _count(op: Operation, lines: Lines, counts: Array) -> Any:
    """Return the number of elements that count, of each line or, if all count, of any line."""
    every = lines.keep is None and _skip(op, lines) is None
    return np.int64(lines.n) if every else counts.astype("i8")


def _variance(op: Operation, lines: Lines) -> State:
    return _about_means(op, lines, _about_centres(op, lines))[:3]


def _exact_variance(op: Operation, lines: Lines) -> State:
    """Return counts, means, squared deviations, and the rounding errors of the means."""
    state = _about_centres(op, lines)
    count, mean, squares, short = _about_means(op, lines, state)
    with np.errstate(all="ignore"):
        short -= mean - state[3]
    return count, mean, squares, short


def _about_centres(op: Operation, lines: Lines) -> Array:
    of_moments, state = loops("moments"), np.zeros((4, lines.count))
    space = (np.empty((4, of_moments.COLUMNS)),) if lines.inner > 1 else ()
    lines.call(of_moments.lift_rows, of_moments.lift_columns, _skip(op, lines), state, *space)
    return state


def _about_means(op: Operation, lines: Lines, state: Array) -> State:
    """Return counts, means, squared deviations, and how far means are from the centres."""
    count, total, squares, centre = state
    with np.errstate(all="ignore"):
        offset = total / np.maximum(count, 1)
        squares = squares - offset * total
        if (lost := np.isnan(squares)).any():
            # Where no element is infinite, squares have overflowed.
            squares[lost & np.isfinite(total)] = np.inf
        return _count(op, lines, count), centre + offset, squares, offset


def _powers(op: Operation, lines: Lines) -> State:
    powers, means = np.zeros((lines.count, len(op.monoid.fields) - 1)), np.empty((2, lines.count))
    source = lines.memory, lines.steps[0], lines.n, lines.keep
    loops("moments").powers_of_rows(*source, powers, means, np.empty((2, 1024)))
    # NaN are among the elements to leave out.
    count = np.int64(lines.n) if lines.keep is None else powers[:, 0].astype("i8")
    return count, means[0], *powers.T[2:], means[1]


def _add(op: Operation, lines: Lines, dtype: Any, square: Any = None, truth: Any = None) -> State:
    sums_of, skip = loops("sums"), _skip(op, lines)
    counts, sums = np.zeros(lines.count, "i8"), np.zeros(lines.count, dtype)
    lines.call(sums_of.add_rows, sums_of.add_columns, skip, square, truth, counts, sums)
    return sums, _count(op, lines, counts)


def _sum(op: Operation, lines: Lines) -> State:
    dtype, *excess = op.monoid.dtypes(op.element)
    return _add(op, lines, dtype)[: 1 + len(excess)]


def _squares(op: Operation, lines: Lines) -> State:
    return _add(op, lines, "f8", square=True)[:1]


def _truths(op: Operation, lines: Lines) -> State:
    truths, counts = _add(op, lines, "i8", truth=True)
    if op.monoid is COUNT_NONZERO:
        return (truths,)
    return (truths > 0 if op.monoid is ANY else truths == counts,)


def _compensated(op: Operation, lines: Lines) -> State:
    sums_of, skip = loops("compensated"), _skip(op, lines)
    counts, sums = np.zeros(lines.count, "i8"), np.zeros((2, lines.count))
    lines.call(sums_of.sum_rows, sums_of.sum_columns, skip, counts, *sums)
    return (*sums, _count(op, lines, counts))[: len(op.monoid.fields)]


def lift_pairs(op: Operation, x: Array, y: Array, axes: tuple[int, ...]) -> State | None:
    """Return the state of pairs over `axes`, whose arguments are as those of `paired.lift`."""
    of_pairs, is_pair, weights = loops_for("paired", x.size), op.monoid is COMOMENTS, None
    if of_pairs is None or (op.element.kind == "c" and not is_pair):
        return None
    y = np.broadcast_to(y, x.shape)
    if op.element.kind == "c":
        # Copies of one layout, so that both have the same steps.
        weights = np.array(y, "f8", order="C")
        x, y = x.real, np.array(x.imag, order="C")
    x, y = _as_float(x), _as_float(y)
    layout = find_layout(x, axes)
    lines = read(layout, aligned(x), None)
    memory, other = _second(layout, y, of_pairs.COLUMNS)
    fields = len(op.monoid.fields)
    state, skip = np.zeros((lines.count, fields)), _skip(op, lines)
    sums = True if op.monoid is WEIGHTED_MEAN else None
    second: tuple[Any, Any] = (memory, None) if is_pair else (None, memory)
    if weights is not None:
        second = memory, _second(layout, weights, of_pairs.COLUMNS)[0]
    steps = lines.steps[0], other[0], other[1], lines.steps[1], other[2]
    if lines.inner == 1:
        of_pairs.lift_rows(lines.memory, steps, lines.n, *second, skip, sums, state)
    else:
        source = lines.memory, steps, lines.n, lines.inner
        of_pairs.lift_columns(*source, *second, skip, sums, state, np.empty((8, of_pairs.COLUMNS)))
    return tuple(layout.join(np.ascontiguousarray(field), x.shape) for field in state.T)


def _as_float(x: Array) -> Array:
    """Return an array as one of two dtypes, for which loops are compiled."""
    return x if x.dtype in ("f4", "f8") and x.dtype.isnative else x.astype("f8")


def _second(layout: Layout, y: Array, columns: int) -> tuple[Array, tuple[int, int, int]]:
    """Return the memory of the second array, and its steps: to a group, along a line, to a line.

    Groups of lines that share their elements have them once, and neighbours as many times as loops
    take `columns` at once.
    """
    groups = layout.order[: layout.start], layout.order[layout.stop :]
    shared = [[*group] if not any(y.strides[d] for d in group) else [] for group in groups]
    inner = math.prod(y.shape[d] for d in groups[1])
    y = y[tuple(slice(1) if d in shared[0] + shared[1] else slice(None) for d in range(y.ndim))]
    split = layout.split(y)
    apart = int(split.shape[2] == inner)
    if not apart:
        split = np.broadcast_to(split, (*split.shape[:2], min(inner, columns)))
    split = np.ascontiguousarray(split)
    outer, n, width = split.shape
    return read_only(split), (n * width if outer > 1 else 0, width, apart)


class _Ends:
    """Extrema in the form that loops look for: of elements read as integers.

    Attributes
    ----------
    bits : numpy.ndarray
        The memory of the lines.
    bounds : tuple
        The bits of infinity, None for integers; and values below and above all elements.
    nans, found : numpy.ndarray
        The number of NaN in each line, and the extrema of the others: the loops write them.
    """

    def __init__(self, op: Operation, lines: Lines) -> None:
        self._element = op.element
        integer = np.dtype(f"{'u' if op.element.kind in 'bu' else 'i'}{op.element.itemsize}")
        self.bits, limit = lines.memory.view(integer), None
        low, high = (integer.type(end) for end in (np.iinfo(integer).min, np.iinfo(integer).max))
        if op.element.kind == "f":
            limit = op.element.type(np.inf).view(integer)
            low, high = ~limit, limit
        self.bounds = limit, low, high
        self.nans, self.found = np.zeros(lines.count, "i8"), np.empty((2, lines.count), integer)

    def read(self) -> tuple[Array, Array, Array]:
        """Return the counts of NaN, and the extrema as elements."""
        extrema = self.found
        if self.bounds[0] is not None:
            extrema = np.where(extrema < 0, extrema ^ np.iinfo(extrema.dtype).max, extrema)
        lowest, highest = extrema.view(self._element)
        return self.nans, lowest, highest


def _extrema(op: Operation, lines: Lines) -> tuple[Array, Array, Array]:
    """Return the number of NaN, and the extrema of the other elements."""
    ends, extrema = _Ends(op, lines), loops("extrema")
    results = *ends.bounds, ends.nans, *ends.found
    replace(lines, memory=ends.bits).call(
        extrema.extrema_of_rows, extrema.extrema_of_columns, *results
    )
    return ends.read()


def _extremum(op: Operation, lines: Lines) -> State:
    nans, *extrema = _extrema(op, lines)
    if op.element.kind == "f" and not op.skipna:
        extrema = [np.where(nans > 0, op.element.type(np.nan), values) for values in extrema]
    return tuple(extrema[which] for which in _ENDS[op.monoid])


def _moments(op: Operation, lines: Lines) -> State:
    op = replace(op, skipna=True)
    dtype = op.monoid.dtypes(op.element)[4]
    if lines.inner > 1:
        count, mean, squares = _variance(op, lines)
        total, _ = _add(op, lines, dtype)
        return np.full_like(mean, count, "i8"), *_extrema(op, lines), total, mean, squares
    ends, state, total = _Ends(op, lines), np.zeros((4, lines.count)), np.zeros(lines.count, dtype)
    written = state, ends.nans, *ends.found, total
    source = lines.memory, lines.steps[0], lines.n, lines.keep, _skip(op, lines), ends.bits
    loops("moments").describe_rows(*source, *ends.bounds, *written)
    count, mean, squares, _ = _about_means(op, lines, state)
    return np.full_like(mean, count, "i8"), *ends.read(), total, mean, squares


#: The indices of a state's fields among the lowest and the highest element.
_ENDS = {MIN: (0,), MAX: (1,), MINMAX: (0, 1)}

_LIFTS: dict[MonoidRow, Callable[[Operation, Lines], State]] = {
    ALL: _truths,
    ANY: _truths,
    COMPENSATED_MEAN: _compensated,
    COMPENSATED_SUM: _compensated,
    COMPENSATED_VAR: _exact_variance,
    COUNT_NONZERO: _truths,
    MAX: _extremum,
    MEAN: _sum,
    MIN: _extremum,
    MINMAX: _extremum,
    MOMENTS: _moments,
    SQUARES: _squares,
    SUM: _sum,
    VAR: _variance,
}
