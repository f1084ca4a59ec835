"""Reproducible sums of NumPy chunks: the digits that algebra/reproducible.py describes.

Elements are arranged as lines, in blocks that stay in the cache::

    rows      (lines, n)    the elements of a line are neighbours in memory
    columns   (n, lines)    neighbours in memory belong to different lines

A block is read twice: for the largest magnitude of every line, then for the digits. Where Numba is
installed, the loops of loops/reproducible.py do this; otherwise NumPy's functions find the same
digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.reproducible import DIGITS, LOWEST, WIDTH, exponents, shift
from dask_coop.chunks.numpy.loop_table import loops_for

Array = np.ndarray[Any, Any]

#: Elements of a block.
_BLOCK = 1 << 15

#: For each digit, a number to add to elements whose first unit is scaled to 1. It rounds them to
#: whole units, half to even, and leaves the number of units in the low bits.
SHIFTS = 1.5 * 2.0 ** (52 - WIDTH * np.arange(DIGITS))


def lift(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    """Sum the chunk `x` over `axes`, where `valid` holds, as a state of `op`'s monoid."""
    if valid is not True:
        x = np.where(valid, x, x.dtype.type(0))
    parts = (x.real, x.imag) if x.dtype.kind == "c" else (x,)
    sums = [_sum(part, axes) for part in parts]
    special = sums[0][0]
    if len(parts) == 2:
        special = np.empty_like(special, "c16")
        special.real, special.imag = sums[0][0], sums[1][0]
    state: list[Any] = [special[()]]
    for _, exponent, digits in sums:
        state += [exponent[()], *(digit[()] for digit in digits)]
    if op.monoid.fields[-1].role == "count":
        whole = np.int64(math.prod(x.shape[axis] for axis in axes))
        state.append(whole if valid is True else np.add.reduce(valid, axes, dtype="i8"))
    return tuple(state)


def _sum(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return the sums of non-finite elements, and exponents and digits of the finite ones."""
    # From far to near in memory; strides of axes of length one mean nothing.
    order = sorted(range(x.ndim), key=lambda d: (x.shape[d] > 1, -abs(x.strides[d]), d))
    kept, reduced = [d for d in order if d not in axes], [d for d in order if d in axes]
    special = np.zeros([x.shape[d] for d in range(x.ndim) if d not in axes])
    exponent = np.full([x.shape[d] for d in kept], LOWEST)
    digits = np.zeros((DIGITS, *exponent.shape), "i8")
    if x.size:
        columns = order != [] and order[-1] in kept
        ordered = x.transpose(reduced + kept if columns else kept + reduced)
        if not _add(ordered, columns, exponent, digits):
            finite = np.isfinite(ordered)
            exponent[...], digits[...] = LOWEST, 0
            _add(np.where(finite, ordered, x.dtype.type(0)), columns, exponent, digits)
            with np.errstate(invalid="ignore"):
                special += np.add.reduce(x, axes, dtype="f8", where=~np.isfinite(x))
    back = np.argsort(kept)
    return special, exponent.transpose(back), digits.transpose(0, *(1 + back))


def _add(x: Array, columns: bool, exponent: Array, digits: Array) -> bool:
    """Add the lines of `x` to their digits; return whether all elements are finite."""
    compiled = loops_for("reproducible", x.size)
    add: Callable[..., bool] = _add_columns if columns else _add_rows
    if compiled is not None:
        add = compiled.add_columns if columns else compiled.add_rows
        if x.flags.c_contiguous and x.flags.aligned and x.dtype in (np.float32, np.float64):
            return add(*_flat(x, columns, exponent, digits))
    for at in _blocks(x.shape):
        lines = at[x.ndim - exponent.ndim :] if columns else at[: exponent.ndim]
        tops, sums = np.array(exponent[lines]), np.array(digits[(slice(None), *lines)])
        if not add(*_flat(x[at].astype("f8", order="C"), columns, tops, sums)):
            return False
        exponent[lines], digits[(slice(None), *lines)] = tops, sums
    return True


def _flat(x: Array, columns: bool, exponent: Array, digits: Array) -> tuple[Array, Array, Array]:
    """Return an array in C order and the state of its lines, with one axis for all lines."""
    shape = (-1, exponent.size) if columns else (exponent.size, -1)
    return x.reshape(shape), exponent.reshape(-1), digits.reshape(DIGITS, -1)


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield the indices of the blocks of an array, in C order."""
    axis, below = len(shape), 1
    while axis and below * shape[axis - 1] <= _BLOCK:
        axis -= 1
        below *= shape[axis]
    if axis == 0:
        yield (slice(None),) * len(shape)
        return
    step = max(1, _BLOCK // below)
    whole_axes = (slice(None),) * (len(shape) - axis)
    for index in np.ndindex(*shape[: axis - 1]):
        for start in range(0, shape[axis - 1], step):
            yield (*(slice(i, i + 1) for i in index), slice(start, start + step), *whole_axes)


def _add_rows(x: Array, exponent: Array, digits: Array) -> bool:
    return _add_columns(x.T, exponent, digits)


def _add_columns(x: Array, exponent: Array, digits: Array) -> bool:
    """Add lines of float64 along axis 0 of `x`; return whether all elements are finite."""
    top = np.abs(x).max(0)
    if not np.isfinite(top).all():
        return False
    to = np.maximum(exponents(top.view("i8")), exponent)
    digits[:] = shift(list(digits), to - exponent)
    exponent[:] = to
    remainder = x * np.ldexp(1.0, -WIDTH * (to - 1))
    for digit, unit in zip(digits, SHIFTS, strict=True):
        shifted = remainder + unit
        digit += np.add.reduce(shifted.view("i8") - unit.view("i8"), 0)
        shifted -= unit
        remainder -= shifted
    return True
