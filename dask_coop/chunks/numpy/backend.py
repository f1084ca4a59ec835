"""Chunks that are NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_coop.algebra import ticks
from dask_coop.algebra.bins import Grid, Integers, Steps
from dask_coop.algebra.central_moments import Powers
from dask_coop.algebra.counted import Counted
from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import (
    ALL,
    ANY,
    ARGMAX,
    ARGMIN,
    BINNED_COMPLEX_MEAN,
    BINNED_COMPLEX_SUM,
    BINNED_COUNTS,
    BINNED_MEAN,
    BINNED_SUM,
    COMPENSATED_MEAN,
    COMPENSATED_SUM,
    COUNT_NONZERO,
    FIRST_MAX,
    FIRST_MIN,
    LOGADDEXP,
    MOMENTS,
    NOWHERE,
    SQUARES,
    TICKS,
    VAR,
    Field,
    Monoid,
    Operation,
    State,
)
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.semirings import OR_AND, PLUS_TIMES, SEMIRINGS, Semiring
from dask_coop.chunks import ChunkBackend, reproducible_histogram
from dask_coop.chunks.numpy import adding, compensated
from dask_coop.chunks.numpy import custom as custom_monoid
from dask_coop.chunks.numpy import histogram as histograms
from dask_coop.chunks.numpy import reproducible as digits
from dask_coop.chunks.numpy import scan as numpy_scan
from dask_coop.chunks.one_by_one import downsweep as downsweep
from dask_coop.chunks.one_by_one import histogram_all as histogram_all
from dask_coop.chunks.one_by_one import lift_all as lift_all
from dask_coop.chunks.one_by_one import synchronize as synchronize
from dask_coop.chunks.one_by_one import upsweep as upsweep
from dask_coop.chunks.states import as_lines

Array = np.ndarray[Any, Any]

#: Elements of a matrix product that are summed at a time.
_PRODUCT_SIZE = 1 << 15


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None = None) -> State:
    """Reduce the chunk `x` over `axes` to a partial state, where `where` holds if it is given."""
    # What is masked does not hold.
    where = None if where is None else np.ma.filled(where, False)
    if isinstance(op.monoid, Counted):
        rest = lift(replace(op, monoid=op.monoid.inner), x, axes, where)
        return (*rest, _count(x, axes, True if where is None else np.broadcast_to(where, x.shape)))
    x = np.asarray(x).astype(op.element, copy=False)
    if op.monoid.lift is not None:
        return custom_monoid.lift(op, x, axes, where)
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


def _reduce(field: Field, x: Array, axes: tuple[int, ...], dtype: Any, valid: Any) -> Any:
    if valid is not True:
        # Far faster than ``where=`` of the ufunc.
        x = np.where(valid, x, field.identity(x.dtype))
    if field.ufunc in (np.add, np.multiply) and dtype.kind != "m":
        return adding.reduce(field.ufunc, x, axes, dtype)
    # A ufunc takes no unit of time.
    kind = None if dtype.kind in "mM" else dtype
    return field.ufunc.reduce(x, axes, dtype=kind, initial=field.identity(dtype))


def _count(x: Array, axes: tuple[int, ...], valid: Any) -> Any:
    if valid is True:
        return np.int64(math.prod(x.shape[axis] for axis in axes))
    return np.asarray(np.count_nonzero(valid, axes), "i8")[()]


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
        power, sums = deviation, []
        for _ in range(2, order + 1):
            power = power * deviation
            sums.append(np.add.reduce(power, axes))
    return count, mean, *sums


def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for axis, n in enumerate(shape) if axis not in axes)


def _sum(x: Array, axes: tuple[int, ...], dtype: Any, valid: Any) -> Any:
    x = x if valid is True else np.where(valid, x, 0)
    return adding.reduce(np.add, x, axes, dtype)


def _compensated(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    kept = x if valid is True else np.where(valid, x, 0)
    sums = compensated.reduce(kept, axes, op.monoid.dtypes(op.element)[0])
    return sums if op.monoid is COMPENSATED_SUM else (*sums, _count(x, axes, valid))


def _squares(x: Array, axes: tuple[int, ...], dtype: Any, mean: Any, valid: Any) -> Any:
    """Return the sum of the squared deviations from `mean`, taken in `dtype`."""
    deviation = np.asarray(np.subtract(x, np.expand_dims(mean, axes), dtype=dtype))
    if valid is not True:
        deviation[~valid] = 0
    if dtype.kind != "c":
        return np.add.reduce(np.square(deviation, out=deviation), axes)
    return np.add.reduce(np.square(deviation.real) + np.square(deviation.imag), axes)


def _place(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    if op.skipna and valid is not True:
        x, valid = np.where(valid, x, op.neutral), True
    lines = as_lines(x, axes)
    *kept, length = lines.shape
    if length == 0:
        value, place = op.monoid.identity(op.element)
        return np.full(kept, value)[()], np.full(kept, place)[()]
    find, plain, fill = _SEARCHES[op.monoid]
    if valid is not True:
        valid, field = as_lines(valid, axes), op.monoid.fields[0]
        value = plain.reduce(lines, -1, initial=field.identity(lines.dtype), where=valid)
        # A NaN that is among the valid is what was looked for.
        here = valid & ((lines == value[..., np.newaxis]) | (lines != lines))
        return value[()], np.where(here.any(-1), here.argmax(-1), NOWHERE)[()]
    if op.skipna and np.isnan(lines).any():
        value = _ignoring(fill.reduce, lines, -1)
        return _but_nan(op, value, (lines == value[..., np.newaxis]).argmax(-1))
    place = np.asarray(find(lines, -1), "i8")
    value = np.take_along_axis(lines, place[..., np.newaxis], -1)[..., 0]
    return value[()], place[()]


def _first(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    """Find extrema, and places that tell in which order those of several chunks are.

    NumPy finds values faster than places where lines are strided. Along one axis it is enough to
    know the chunk; along several only NaN is looked for, whose parts tell one from another.
    """
    last = tuple(range(x.ndim - len(axes), x.ndim))
    if not x.size or (valid is True and not op.skipna and x.flags.c_contiguous and axes == last):
        return _place(op, x, axes, True)
    if valid is not True:
        x = np.where(valid, x, op.neutral)
    _, plain, fill = _SEARCHES[op.monoid]
    value = _ignoring((fill if op.skipna else plain).reduce, x, axes)
    place = np.zeros(value.shape, "i8")
    if op.skipna:
        return _but_nan(op, value, place)
    nan = np.isnan(value)
    if len(axes) > 1 and nan.any():
        place = np.where(nan, np.isnan(as_lines(x, axes)).argmax(-1), place)
    if valid is not True:
        place = np.where(valid.any(axes), place, NOWHERE)
    return value, place[()]


def _ignoring(reduce: Callable[..., Any], x: Array, axes: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return reduce(x, axes)


def _but_nan(op: Operation, value: Any, place: Any) -> State:
    """Return values and places with those of nothing where there is nothing but NaN."""
    worst, nowhere = op.monoid.identity(op.element)
    nan = np.isnan(value)
    return choose(nan, worst, value), choose(nan, nowhere, place)


#: What finds the place of an extremum, what its value, and what that among others than NaN.
_SEARCHES: dict[Monoid, tuple[Callable[..., Any], np.ufunc, np.ufunc]] = {
    ARGMIN: (np.argmin, np.minimum, np.fmin),
    FIRST_MIN: (np.argmin, np.minimum, np.fmin),
    ARGMAX: (np.argmax, np.maximum, np.fmax),
    FIRST_MAX: (np.argmax, np.maximum, np.fmax),
}


def _sum_of_squares(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    x = x if valid is True else np.where(valid, x, 0)
    parts = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    every = list(range(x.ndim))
    kept = [axis for axis in every if axis not in axes]
    # The one way to cast, square and add that makes no array as large as the chunk.
    sums = [np.einsum(part, every, part, every, kept, dtype="f8") for part in parts]
    return (np.float64(0) + sum(sums),)


def _truths(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    (field,), (dtype,) = op.monoid.fields, op.monoid.dtypes(op.element)
    if op.monoid is COUNT_NONZERO:
        return (_count(x, axes, x if valid is True else (x != 0) & valid),)
    return (_reduce(field, x.astype("?", copy=False), axes, dtype, valid),)


def _log_sum(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    """Take out the maximum, which costs one logarithm for each state and not for each element."""
    high = np.maximum.reduce(x, axes, dtype="f8", initial=-np.inf, where=valid, keepdims=True)
    with np.errstate(all="ignore"):
        shift = np.where(np.isfinite(high), high, 0)
        total = np.add.reduce(np.exp(np.subtract(x, shift, dtype="f8")), axes, where=valid)
        log = np.log(total) + np.squeeze(shift, axes)
    high = np.squeeze(high, axes)
    return (np.where(np.isfinite(high), log, high)[()],)


_LIFTS: dict[Monoid, Callable[[Operation, Array, tuple[int, ...], Any], State]] = {
    ALL: _truths,
    ANY: _truths,
    ARGMAX: _place,
    ARGMIN: _place,
    BINNED_COMPLEX_MEAN: digits.lift,
    BINNED_COMPLEX_SUM: digits.lift,
    BINNED_MEAN: digits.lift,
    BINNED_SUM: digits.lift,
    COMPENSATED_MEAN: _compensated,
    COMPENSATED_SUM: _compensated,
    COUNT_NONZERO: _truths,
    FIRST_MAX: _first,
    FIRST_MIN: _first,
    LOGADDEXP: _log_sum,
    MOMENTS: _moments,
    SQUARES: _sum_of_squares,
    TICKS: _ticks,
    VAR: _variance,
}


def scan(
    op: Operation,
    x: Array,
    spec: ScanSpec,
    base: State | None = None,
    marks: Array | None = None,
) -> Array:
    """Return the scan of the chunk `x` from `base` on."""
    return scan_on(op, x, spec, base, marks)[0]


def scan_on(
    op: Operation,
    x: Array,
    spec: ScanSpec,
    base: State | None = None,
    marks: Array | None = None,
) -> tuple[Array, State]:
    """Return the scan of the chunk `x` from `base` on, and the state behind it."""
    x = np.asarray(x)
    if op.monoid.lift is not None:
        return custom_monoid.scan(op, x.astype(op.element, copy=False), spec, base, marks)
    return numpy_scan.scan(op, x, spec, base, marks)


def lift_segments(
    op: Operation, x: Array, spec: ScanSpec, marks: Array, valid: Array | None = None
) -> State:
    """Reduce what is behind the last mark of every line of the chunk `x` to a state.

    Its last field tells where there is a mark; `marks` are those of the elements or of one line.
    `valid`, of the shape of `x`, tells which elements count.
    """
    axis = spec.axis
    if spec.reverse:
        x, marks = np.flip(x, axis), np.flip(marks, axis if marks.ndim == x.ndim else 0)
        valid = None if valid is None else np.flip(valid, axis)
    if marks.ndim < x.ndim or marks.ndim == 1:
        places = np.flatnonzero(marks)
        start = places[-1] if places.size else 0
        last = (*(slice(None),) * axis, slice(start, None))
        state = lift(op, x[last], (axis,), None if valid is None else valid[last])
        return (*state, np.broadcast_to(places.size > 0, state[0].shape)[()])
    n = x.shape[axis]
    if n == 0:
        return (*lift(op, x, (axis,)), marks.any(axis))
    start = n - 1 - np.argmax(np.flip(marks, axis), axis, keepdims=True)
    restarts = marks.any(axis)
    along = np.arange(n).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    where = (along >= start) | ~np.expand_dims(restarts, axis)
    where = where if valid is None else where & valid
    return (*lift(op, x, (axis,), where), restarts)


def histogram(
    op: Operation, samples: Sequence[Array], grid: Grid | Integers, weights: Array | None
) -> State:
    """Count the samples of a chunk, or sum their `weights`, by bin.

    Parameters
    ----------
    op : Operation
    samples : sequence of numpy.ndarray
        The coordinates, of equal shapes; or one array, with the coordinates along its last axis.
    grid : Grid or Integers
    weights : numpy.ndarray or None
    """
    if op.monoid is BINNED_COUNTS:
        return reproducible_histogram.histogram(lift, histogram, op, samples, grid, weights)
    (dtype,) = op.monoid.dtypes(op.element)
    if weights is not None:
        weights = weights.astype(op.element, copy=False).astype(dtype, copy=False)
    if isinstance(grid, Integers):
        return (histograms.tally(samples[0], grid, weights, dtype),)
    if len(grid.bins) > len(samples):
        samples = [samples[0][..., i] for i in range(len(grid.bins))]
    samples = [x.view("u1") if x.dtype.kind == "b" else x for x in samples]
    return (histograms.count(samples, grid, weights, dtype),)


def digitize(x: Array, steps: Steps) -> Array:
    """Return the numbers of the bins of samples, int64 of the shape of `x`."""
    return histograms.locate(x.view("u1") if x.dtype.kind == "b" else x, steps)


def transpose(x: Array, axes: Sequence[int] | None = None) -> Array:
    """Return a copy of the chunk `x` in C order, with its axes in another order."""
    return np.array(np.transpose(x, axes), order="C")


def matmul(a: Array, b: Array, semiring: str = "plus_times") -> Array:
    """Return the product of two chunks over a semiring, shaped as np.matmul's."""
    ring = SEMIRINGS[semiring]
    dtype = ring.dtype(a.dtype, b.dtype)
    if ring is PLUS_TIMES:
        return np.asarray(np.matmul(a, b))
    rows, columns = a.ndim == 1, b.ndim == 1
    a, b = (x.astype(dtype, copy=False) for x in (a, b))
    a, b = a[np.newaxis, :] if rows else a, b[:, np.newaxis] if columns else b
    if ring is OR_AND:
        # The library counts in float32, in which a count may be rounded but not to zero.
        result = np.matmul(a, b, dtype="f4") > 0
    else:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        result = np.full((*batch, a.shape[-2], b.shape[-1]), ring.zero(dtype), dtype)
        a, b = (np.broadcast_to(x, batch + x.shape[-2:]) for x in (a, b))
        with np.errstate(over="ignore", invalid="ignore"):
            _add_products(ring, a, b, result)
    result = result[..., 0, :] if rows else result
    return np.asarray(result[..., 0] if columns else result)


def _add_products(ring: Semiring, a: Array, b: Array, total: Array) -> None:
    """Add products to `total`, whose parts are as small as a cache."""
    if total.size > _PRODUCT_SIZE:
        axis = next(d for d, n in enumerate(total.shape) if n > 1)
        for half in (slice(total.shape[axis] // 2), slice(total.shape[axis] // 2, None)):
            at = (slice(None),) * axis + (half,)
            of_a = a if axis == total.ndim - 1 else a[at]
            of_b = b if axis == total.ndim - 2 else b[at]
            _add_products(ring, of_a, of_b, total[at])
        return
    product = np.empty_like(total)
    for i in range(a.shape[-1]):
        ring.times(a[..., :, i, np.newaxis], b[..., i, np.newaxis, :], out=product)
        ring.plus(total, product, out=total)


def to_numpy(x: Array) -> Array:
    """Return `x`, which is one."""
    return x


def from_numpy(x: Array) -> Array:
    """Return `x`, which is one."""
    return x


if TYPE_CHECKING:
    from dask_coop.chunks.numpy import backend

    _: ChunkBackend = backend
