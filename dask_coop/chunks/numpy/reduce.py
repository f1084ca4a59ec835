"""Reductions of NumPy chunks: the lift of each row of the table of monoids."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dask_coop.algebra import ticks
from dask_coop.algebra.central_moments import Powers, centred
from dask_coop.algebra.counted import Counted
from dask_coop.algebra.merges import choose, corrected, dot
from dask_coop.algebra.monoids import (
    ALL,
    ANY,
    ARGMAX,
    ARGMIN,
    COMPENSATED_MEAN,
    COMPENSATED_SUM,
    COMPENSATED_VAR,
    COUNT_NONZERO,
    FIRST,
    FIRST_MAX,
    FIRST_MIN,
    LAST,
    LOGADDEXP,
    MOMENTS,
    NO_INDEX,
    REPRODUCIBLE_COMPLEX_MEAN,
    REPRODUCIBLE_COMPLEX_SUM,
    REPRODUCIBLE_MEAN,
    REPRODUCIBLE_SUM,
    SQUARES,
    TICKS,
    VAR,
    Field,
    MonoidRow,
    State,
)
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.paired import Paired
from dask_coop.algebra.registers import Registers, places
from dask_coop.algebra.topk import TopK
from dask_coop.chunks import paired
from dask_coop.chunks.distinct import Distinct
from dask_coop.chunks.numpy import adding, compensated, compiled, gaps, topk, unique
from dask_coop.chunks.numpy import custom as custom_monoid
from dask_coop.chunks.numpy import reproducible as digits
from dask_coop.chunks.numpy.lines import FEW, NO_HEADS, aligned, find_layout, memory_and_place
from dask_coop.chunks.numpy.loop_table import loops_for
from dask_coop.chunks.states import as_lines

Array = np.ndarray[Any, Any]


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None = None) -> State:
    """Reduce the chunk `x` over `axes` to a partial state; with `where`, only where it holds."""
    # Masked elements of `where` do not hold.
    where = None if where is None else np.ma.filled(where, False)
    if isinstance(op.monoid, Counted):
        fields = lift(replace(op, monoid=op.monoid.inner), x, axes, where)
        counted = True if where is None else np.broadcast_to(where, x.shape)
        return (*fields, _count(x, axes, counted))
    if isinstance(op.monoid, Distinct):
        return unique.distinct(op, op.monoid, x)
    x = np.asarray(x).astype(op.element, copy=False)
    if isinstance(op.monoid, Paired):
        state = compiled.lift_pairs(op, x, np.asarray(where), axes)
        return paired.lift(lift, op, x, where, axes) if state is None else state
    if isinstance(op.monoid, TopK):
        return topk.lift(op.monoid, x, axes)
    if isinstance(op.monoid, Registers):
        return _lift_registers(op.monoid, x, axes)
    if gaps.serves(op.monoid):
        return gaps.lift(op, x, axes, where)
    if op.monoid.lift is not None:
        return custom_monoid.lift(op, x, axes, where)
    if (state := compiled.lift(op, x, axes, where)) is not None:
        return state
    valid: Any = True if where is None else np.broadcast_to(where, x.shape)
    if op.skipna and not op.monoid.positional and (nans := np.isnan(x)).any():
        valid = ~nans if valid is True else valid & ~nans
    if isinstance(op.monoid, Powers):
        return _powers(op.monoid.order, x, axes, valid)
    if op.monoid in _LIFTS:
        return _LIFTS[op.monoid](op, x, axes, valid)
    return tuple(
        _count(x, axes, valid) if field.role == "count" else _reduce(field, x, axes, dtype, valid)
        for field, dtype in zip(op.monoid.fields, op.monoid.dtypes(op.element), strict=True)
    )


#: The elements whose hashes are in memory at a time: some hundred bytes each.
_HASHED = 1 << 16


def _lift_registers(monoid: Registers, x: Array, axes: tuple[int, ...]) -> State:
    """Return the registers of HyperLogLog of a chunk over `axes`."""
    lines = np.ascontiguousarray(as_lines(x, axes))
    *kept, n = lines.shape
    table = np.zeros((math.prod(kept), monoid.entries), "u1")
    if (loops := loops_for("selection", x.size)) is not None:
        loops.fill_registers(lines.reshape(len(table), n), monoid.bits, table)
        return (table.reshape(*kept, monoid.entries),)
    flat, registers = lines.reshape(-1), table.reshape(-1)
    for begin in range(0, flat.size, _HASHED):
        some = flat[begin : begin + _HASHED]
        at, rank = places(some, monoid.bits)
        if kept:
            at = at + np.arange(begin, begin + some.size) // n * monoid.entries
        np.maximum.at(registers, at, rank.astype("u1"))
    return (table.reshape(*kept, monoid.entries),)


def _reduce(field: Field, x: Array, axes: tuple[int, ...], dtype: Any, valid: Any) -> Any:
    if valid is not True:
        # Far faster than ``where=`` of the ufunc.
        x = np.where(valid, x, field.identity(x.dtype))
    if field.ufunc in (np.add, np.multiply) and dtype.kind != "m":
        return adding.reduce(field.ufunc, x, axes, dtype)
    # Ufuncs reject units of time.
    kind = None if dtype.kind in "mM" else dtype
    return field.ufunc.reduce(x, axes, dtype=kind, initial=field.identity(dtype))


def _count(x: Array, axes: tuple[int, ...], valid: Any) -> Any:
    if valid is True:
        return np.int64(math.prod(x.shape[axis] for axis in axes))
    # With axes, NumPy sums bools.
    counts = np.count_nonzero(valid, None if len(axes) == valid.ndim else axes)
    return np.asarray(counts, "i8")[()]


def _moments(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    nans = np.isnan(x) if x.dtype.kind == "f" else np.broadcast_to(np.False_, x.shape)
    nans = nans & valid
    valid = valid if not nans.any() else valid & ~nans
    count = np.broadcast_to(_count(x, axes, valid), _kept(x.shape, axes))[()]
    some = np.maximum(count, 1)
    low, high, total = (
        _reduce(field, x, axes, dtype, valid)
        for field, dtype in zip(
            op.monoid.fields[2:5], op.monoid.dtypes(op.element)[2:5], strict=True
        )
    )
    with np.errstate(all="ignore"):
        mean = _sum(x, axes, np.dtype("f8"), valid) / some
        m2 = _squares(x, axes, np.dtype("f8"), mean, valid)
    return count, nans.sum(axes, dtype="i8"), low, high, total, mean, m2


def _variance(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    count = _count(x, axes, valid)
    dtype = op.monoid.dtypes(op.element)[1]
    with np.errstate(all="ignore"):
        mean = _sum(x, axes, dtype, valid) / np.maximum(count, 1)
        return count, mean, _squares(x, axes, dtype, mean, valid)


def _exact_variance(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    count, mean, squares = _variance(op, x, axes, valid)
    with np.errstate(all="ignore"):
        dtype = op.monoid.dtypes(op.element)[1]
        total = _sum(np.subtract(x, np.expand_dims(mean, axes), dtype=dtype), axes, dtype, valid)
        short = total / np.maximum(count, 1)
        return count, mean, corrected(squares, dot(short, total)), short


def _ticks(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    with np.errstate(over="ignore"):
        return ticks.summarize(x.view("i8"), axes, valid)


def _powers(order: int, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    count = _count(x, axes, valid)
    with np.errstate(all="ignore"):
        mean = _sum(x, axes, np.dtype("f8"), valid) / np.maximum(count, 1)
        deviation = np.asarray(np.subtract(x, np.expand_dims(mean, axes), dtype="f8"))
        if valid is not True:
            deviation[~valid] = 0
        power, sums = deviation, [np.add.reduce(deviation, axes)]
        for _ in range(2, order + 1):
            power = power * deviation
            sums.append(np.add.reduce(power, axes))
        return centred(count, mean, sums)


def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for axis, n in enumerate(shape) if axis not in axes)


def _sum(x: Array, axes: tuple[int, ...], dtype: Any, valid: Any) -> Any:
    x = x if valid is True else np.where(valid, x, 0)
    return adding.reduce(np.add, x, axes, dtype)


def _compensated(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    kept = x if valid is True else np.where(valid, x, 0)
    sums = compensated.reduce(kept, axes, op.monoid.dtypes(op.element)[0])
    return (*sums, *(_count(x, axes, valid) for _ in op.monoid.fields[len(sums) :]))


def _squares(x: Array, axes: tuple[int, ...], dtype: Any, mean: Any, valid: Any) -> Any:
    """Return the sum of the squared deviations from `mean`, taken in `dtype`."""
    deviation = np.asarray(np.subtract(x, np.expand_dims(mean, axes), dtype=dtype))
    if valid is not True:
        deviation[~valid] = 0
    if dtype.kind != "c":
        return np.add.reduce(np.square(deviation, out=deviation), axes)
    return np.add.reduce(np.square(deviation.real) + np.square(deviation.imag), axes)


def _index(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    if op.skipna and valid is not True:
        x, valid = np.where(valid, x, op.neutral), True
    lines = as_lines(x, axes)
    *kept, length = lines.shape
    if length == 0:
        value, index = op.monoid.identity(op.element)
        return np.full(kept, value)[()], np.full(kept, index)[()]
    find, plain, fill = _SEARCHES[op.monoid]
    if valid is not True:
        valid, field = as_lines(valid, axes), op.monoid.fields[0]
        value = plain.reduce(lines, -1, initial=field.identity(lines.dtype), where=valid)
        # A NaN among the valid elements is the extremum.
        here = valid & ((lines == value[..., np.newaxis]) | (lines != lines))
        return value[()], np.where(here.any(-1), here.argmax(-1), NO_INDEX)[()]
    if op.skipna and np.isnan(lines).any():
        value = _ignoring(fill.reduce, lines, -1)
        return _but_nan(op, value, (lines == value[..., np.newaxis]).argmax(-1))
    index = np.asarray(find(lines, -1), "i8")
    if lines.ndim == 1:
        return lines[index], index[()]
    return np.take_along_axis(lines, index[..., np.newaxis], -1)[..., 0], index


def _first(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    """Find extrema, and indices that give the order of extrema of several chunks.

    NumPy finds values faster than indices where lines are strided. Along one axis the chunk's index
    is enough. Along several, only the first NaN gets an index: complex NaN differ in their parts.
    """
    last = tuple(range(x.ndim - len(axes), x.ndim))
    if not x.size or (valid is True and not op.skipna and x.flags.c_contiguous and axes == last):
        return _index(op, x, axes, True)
    if valid is not True:
        x = np.where(valid, x, op.neutral)
    _, plain, fill = _SEARCHES[op.monoid]
    value = _ignoring((fill if op.skipna else plain).reduce, x, axes)
    index = np.zeros(value.shape, "i8")
    if op.skipna:
        return _but_nan(op, value, index)
    nan = np.isnan(value)
    if len(axes) > 1 and nan.any():
        index = np.where(nan, np.isnan(as_lines(x, axes)).argmax(-1), index)
    if valid is not True:
        index = np.where(valid.any(axes), index, NO_INDEX)
    return value, index[()]


def _ignoring(reduce: Callable[..., Any], x: Array, axes: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return reduce(x, axes)


def _but_nan(op: Operation, value: Any, index: Any) -> State:
    """Return values and indices, with identities where all elements are NaN."""
    worst, no_index = op.monoid.identity(op.element)
    nan = np.isnan(value)
    return choose(nan, worst, value), choose(nan, no_index, index)


#: The functions that find the index of an extremum, its value, and its value with NaN left out.
_SEARCHES: dict[MonoidRow, tuple[Callable[..., Any], np.ufunc, np.ufunc]] = {
    ARGMIN: (np.argmin, np.minimum, np.fmin),
    FIRST_MIN: (np.argmin, np.minimum, np.fmin),
    ARGMAX: (np.argmax, np.maximum, np.fmax),
    FIRST_MAX: (np.argmax, np.maximum, np.fmax),
}


def _end(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    """Find the first or the last element that counts."""
    lines = as_lines(x, axes)
    *kept, length = lines.shape
    if length == 0:
        value, index = op.monoid.identity(op.element)
        return np.full(kept, value)[()], np.full(kept, index)[()]
    counts = np.ones(lines.shape, "?") if valid is True else as_lines(valid, axes)
    if op.skipna:
        counts = counts & ~np.isnan(lines)
    first = op.monoid is FIRST
    index = counts.argmax(-1) if first else length - 1 - np.flip(counts, -1).argmax(-1)
    at = index[..., np.newaxis]
    some = np.take_along_axis(counts, at, -1)[..., 0]
    value = np.take_along_axis(lines, at, -1)[..., 0]
    return choose(some, value, value.dtype.type(0)), choose(some, index, NO_INDEX)


def _sum_of_squares(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    x = x if valid is True else np.where(valid, x, 0)
    parts = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    every = list(range(x.ndim))
    kept = [axis for axis in every if axis not in axes]
    # Only this cast, square and sum makes no array as large as the chunk.
    sums = [np.einsum(part, every, part, every, kept, dtype="f8") for part in parts]
    return (np.float64(0) + sum(sums),)


def _truths(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    (field,) = op.monoid.fields
    if valid is not True:
        x = np.where(valid, x.astype("?", copy=False), field.identity(np.dtype("?")))
    return (field.ufunc.reduce(x, axes),)


def _count_truths(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    return (_count(x, axes, x if valid is True else (x != 0) & valid),)


def _logaddexp(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    """Reduce the chunk `x` over sorted `axes`, where `valid` holds."""
    loops = loops_for("logaddexp", x.size) if x.dtype.char in "fd" else None
    if loops is None:
        return _logaddexp_by_numpy(x, axes, valid)
    if valid is not True:
        x = np.where(valid, x, x.dtype.type(-np.inf))
    x = aligned(x)
    layout = find_layout(x, axes)
    lines = layout.split(x)
    logs = np.full(lines.shape[0] * lines.shape[2], -np.inf)
    kernel = loops.sum_lines if lines.shape[2] <= FEW else loops.sum_columns
    nowhere, options = (np.empty(0), (0, 0, 0)), (False, *np.empty(loops.SPACE))
    kernel(memory_and_place(lines), nowhere, NO_HEADS, lines.shape[1:], options, (logs,))
    return (layout.join(logs, x.shape),)


def _logaddexp_by_numpy(x: Array, axes: tuple[int, ...], valid: Any) -> State:
    """Subtract the maximum first, for one logarithm a state instead of one an element."""
    high = np.maximum.reduce(x, axes, dtype="f8", initial=-np.inf, where=valid, keepdims=True)
    with np.errstate(all="ignore"):
        shift = np.where(np.isfinite(high), high, 0)
        total = np.add.reduce(np.exp(np.subtract(x, shift, dtype="f8")), axes, where=valid)
        log = np.log(total) + np.squeeze(shift, axes)
    high = np.squeeze(high, axes)
    return (np.where(np.isfinite(high), log, high)[()],)


_LIFTS: dict[MonoidRow, Callable[[Operation, Array, tuple[int, ...], Any], State]] = {
    ALL: _truths,
    ANY: _truths,
    ARGMAX: _index,
    ARGMIN: _index,
    COMPENSATED_MEAN: _compensated,
    COMPENSATED_SUM: _compensated,
    COMPENSATED_VAR: _exact_variance,
    COUNT_NONZERO: _count_truths,
    FIRST: _end,
    FIRST_MAX: _first,
    FIRST_MIN: _first,
    LAST: _end,
    LOGADDEXP: _logaddexp,
    MOMENTS: _moments,
    REPRODUCIBLE_COMPLEX_MEAN: digits.lift,
    REPRODUCIBLE_COMPLEX_SUM: digits.lift,
    REPRODUCIBLE_MEAN: digits.lift,
    REPRODUCIBLE_SUM: digits.lift,
    SQUARES: _sum_of_squares,
    TICKS: _ticks,
    VAR: _variance,
}
