"""States of CuPy chunks over any of their axes, with masks, of pairs, and of powers of deviations.

A masked element is replaced by a neutral one, or the mask accompanies the elements. Sums of powers
of deviations take two of our kernels around CuPy's own arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.central_moments import Powers
from dask_coop.algebra.monoids import (
    MEAN,
    REPRODUCIBLE_COMPLEX_MEAN,
    REPRODUCIBLE_MEAN,
    SUM,
    State,
)
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.paired import COMOMENTS, Paired, of_complex
from dask_coop.algebra.registers import FIRST, SECOND, STEP, Registers, keys
from dask_coop.algebra.topk import TopK
from dask_coop.chunks import paired
from dask_coop.chunks.cupy import topk, unique
from dask_coop.chunks.cupy.arrays import deliver, dense, fields_of, is_plain
from dask_coop.chunks.cupy.exact import cast
from dask_coop.chunks.cupy.reduce import reduce_in_order, reduce_lines, reduce_pairs
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.chunks.distinct import Distinct
from dask_coop.chunks.paired import powers
from dask_coop.chunks.states import as_lines, reduce_along

Array = Any

#: The elements whose keys are in memory at a time.
_HASHED = 1 << 26

#: Plain dtypes as large as a Masked<T> of kernels/monoids.cuh, by the size of T.
_PAIRS = {1: "u2", 2: "u4", 4: "u8", 8: "c16"}


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None = None) -> State:
    """Reduce the chunk `x` over `axes` to a state; a mask `where` selects elements."""
    with x.device:
        x = cast(x, op.element)
        if isinstance(op.monoid, Paired):
            return _lift_pairs(op, x, cupy.asarray(where), axes)
        if isinstance(op.monoid, TopK):
            return topk.lift(op.monoid, x, axes)
        if isinstance(op.monoid, Registers):
            return _lift_registers(op.monoid, x, axes)
        if isinstance(op.monoid, Distinct):
            return unique.distinct(op, op.monoid, x)
        if isinstance(op.monoid, Powers):
            return _lift_powers(op, x, axes)
        if where is not None:
            if op.neutral is None and op.element.kind == "c":
                return _lift_parts(op, x, axes, where)
            op, x = _apply_mask(op, x, where)
        if op.monoid.positional and len(axes) > 1:
            # Indices count in C order along neighbouring axes, in any order in memory.
            kept = [d for d in range(x.ndim) if d not in axes]
            if axes[-1] - axes[0] >= len(axes):
                x, axes = x.transpose([*kept, *axes]), tuple(range(len(kept), x.ndim))
            x = contiguous(x)
        x, order = dense(x)
        reduced = [d for d in range(x.ndim) if order[d] in axes]
        start, stop = _longest_run(x.shape, reduced)
        shape = (
            math.prod(x.shape[:start]),
            math.prod(x.shape[start:stop]),
            math.prod(x.shape[stop:]),
        )
        lines = (reduce_lines if op.monoid.commutative else reduce_in_order)(op, x, shape)
        fields = fields_of(op, lines, x.shape[:start] + x.shape[stop:])
        rest = [d if d < start else d - (stop - start) for d in reduced if not start <= d < stop]
        for axis in reversed(rest):
            fields = _reduce_rest(op, fields, axis)
        kept = [order[d] for d in range(x.ndim) if d not in reduced]
        if kept != sorted(kept):
            fields = tuple(field.transpose(np.argsort(kept)) for field in fields)
        return fields


def _longest_run(shape: tuple[int, ...], axes: list[int]) -> tuple[int, int]:
    """Return the bounds of the neighbouring `axes` that hold the most elements."""
    runs, start = [(0, 0)], 0
    for i, axis in enumerate(axes):
        if i == 0 or axis != axes[i - 1] + 1:
            start = axis
        runs.append((start, axis + 1))
    return max(runs, key=lambda run: (run[1] > run[0], math.prod(shape[run[0] : run[1]]), run))


def _reduce_rest(op: Operation, fields: State, axis: int) -> State:
    """Combine states along `axis`, neighbours first."""
    n = fields[0].shape[axis]
    if n == 0:
        shape = fields[0].shape[:axis] + fields[0].shape[axis + 1 :]
        return tuple(
            np.full_like(field, value, shape=shape)
            for field, value in zip(fields, op.monoid.identity(op.element), strict=True)
        )
    return reduce_along(op.monoid.combine, fields, axis)


def _apply_mask(op: Operation, x: Array, where: Array) -> tuple[Operation, Array]:
    """Return an operation and an array that reduce the elements that `where` selects."""
    where = cupy.asarray(where)
    if op.neutral is not None:
        kept = cupy.where(where, x, op.neutral)
        return op, kept.astype(op.element, copy=False)
    pairs = cupy.empty((*x.shape, 2), x.dtype)
    pairs[..., 0] = x
    pairs.view(f"u{x.dtype.itemsize}")[..., 1] = where
    return replace(op, masked=True), pairs.view(_PAIRS[x.dtype.itemsize])[..., 0]


#: The hashes are those of `registers.places`. Few elements change a register that has seen some.
_FILL = cupy.ElementwiseKernel(
    "K key, int64 begin, int64 n, int32 bits, uint64 step, uint64 first, uint64 second",
    "raw uint32 table",
    """unsigned long long h = (unsigned long long)key + step;
    h = (h ^ h >> 30) * first;
    h = (h ^ h >> 27) * second;
    h ^= h >> 31;
    unsigned rank = 1 + __clzll((long long)(h << bits | 1ull << (bits - 1)));
    unsigned* kept = &table[((begin + i) / n << bits) + (long long)(h >> (64 - bits))];
    if (*(volatile unsigned*)kept < rank) atomicMax(kept, rank)""",
    "dask_coop_registers",
)


def _lift_registers(monoid: Registers, x: Array, axes: tuple[int, ...]) -> State:
    """Return the registers of a chunk over `axes`."""
    lines = as_lines(x, axes)
    *kept, n = lines.shape
    flat = lines.reshape(-1)
    table = cupy.zeros(math.prod(kept) << monoid.bits, "u4")
    for begin in range(0, flat.size, _HASHED):
        some = keys(flat[begin : begin + _HASHED])
        _FILL(some, begin, n, monoid.bits, STEP, FIRST, SECOND, table)
    return (deliver(table.astype("u1").reshape(*kept, monoid.entries)),)


#: A CuPy kernel for any two dtypes, which broadcasts.
_IN_COMPLEX = cupy.ElementwiseKernel(
    "T x, U y, bool skips",
    "C pair",
    """bool gone = skips && x != x;
    pair = C(gone ? typename C::value_type(0) : (typename C::value_type)x,
             gone ? typename C::value_type(0) : (typename C::value_type)y)""",
    "dask_coop_in_complex",
)


def _lift_pairs(op: Operation, x: Array, y: Array, axes: tuple[int, ...]) -> State:
    """Reduce pairs of elements over `axes` to a state of a monoid of `algebra.paired`."""
    shape = cupy.broadcast(x, y).shape
    if op.element.kind == "c" or not math.prod(shape):
        return _on_one_side(paired.lift(lift, op, x, y, axes))
    y = cast(y, op.element)
    narrow = op.element.kind == "f" and op.element.itemsize <= 4
    pair, of_two = np.dtype("c8" if narrow else "c16"), op.monoid is COMOMENTS
    of_pairs = Operation(of_complex(op.monoid), pair, np.dtype("f8"), op.skipna and of_two)
    # An element that is left out has no weight, but a weight may be NaN.
    skips = op.skipna and not of_two
    kept = x.ndim - len(axes)
    if (
        x.shape == y.shape
        and 2 * op.element.itemsize == pair.itemsize
        and op.element.kind == "f"
        and axes == tuple(range(kept, x.ndim))
        and is_plain(x)
        and is_plain(y)
    ):
        states = reduce_pairs(of_pairs, x, y, math.prod(shape[:kept]), skips)
        if states is not None:
            return _on_one_side(fields_of(of_pairs, states, shape[:kept]))
    pairs = cupy.empty(shape, pair)
    _IN_COMPLEX(x, y, skips, pairs)
    return _on_one_side(lift(of_pairs, pairs, axes))


def _lift_parts(op: Operation, x: Array, axes: tuple[int, ...], where: Array) -> State:
    """Reduce the real and the imaginary parts of `x` separately, with a mask `where`.

    A complex128 with its mask would take more than one load.
    """
    if op.monoid is REPRODUCIBLE_COMPLEX_MEAN:
        half = replace(op, monoid=REPRODUCIBLE_MEAN, element=x.real.dtype)
        real, imag = (lift(half, part, axes, where) for part in (x.real, x.imag))
        return (_join("float", real[0], imag[0]), *real[1:-1], *imag[1:-1], real[-1])
    part = replace(op, element=x.real.dtype)
    fields = zip(
        op.monoid.fields,
        lift(part, x.real, axes, where),
        lift(part, x.imag, axes, where),
        strict=True,
    )
    return tuple(_join(field.role, real, imag) for field, real, imag in fields)


def _join(role: Any, real: Any, imag: Any) -> Any:
    if role == "count":
        return real
    if role == "real":
        return real + imag
    return np.stack([real, imag], -1).view("c16")[..., 0][()]


def _lift_powers(op: Operation, x: Array, axes: tuple[int, ...]) -> State:
    """Reduce the chunk `x` over `axes` to a state of `dask_coop.algebra.central_moments`."""
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    real = np.dtype("f8")

    def total(values: Array) -> Any:
        return lift(Operation(SUM, real, real), values, axes)[0]

    means = lift(Operation(MEAN, op.element, real, op.skipna), x, axes)
    fields = powers(op, cast(x, real), means, total, lambda mean: mean.reshape(kept))
    return _on_one_side(fields)


def _on_one_side(fields: State) -> State:
    """Return a state whose fields are on the GPU if one is, as sizes differ."""
    if any(isinstance(field, cupy.ndarray) for field in fields):
        return tuple(map(cupy.asarray, fields))
    return fields
