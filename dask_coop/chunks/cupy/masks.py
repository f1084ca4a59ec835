"""Masks of CuPy chunks: what they leave out becomes a neutral element, or goes along marked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.monoids import BINNED_COMPLEX_MEAN, BINNED_MEAN, Operation, State

Array = Any
Lift = Callable[[Operation, Array, tuple[int, ...], Array], State]

#: Plain dtypes as large as a Masked<T> of kernels/monoids.cuh, by the size of T.
_PAIRS = {1: "u2", 2: "u4", 4: "u8", 8: "c16"}


def apply_mask(op: Operation, x: Array, where: Array) -> tuple[Operation, Array]:
    """Return an operation and an array that reduce what of `x` is where `where` holds."""
    where = cupy.asarray(where)
    if op.neutral is not None:
        kept = cupy.where(where, x, op.neutral)
        return op, kept.astype(op.element, copy=False)
    pairs = cupy.empty((*x.shape, 2), x.dtype)
    pairs[..., 0] = x
    pairs.view(f"u{x.dtype.itemsize}")[..., 1] = where
    return replace(op, masked=True), pairs.view(_PAIRS[x.dtype.itemsize])[..., 0]


def lift_parts(lift: Lift, op: Operation, x: Array, axes: tuple[int, ...], where: Array) -> State:
    """Reduce the real and the imaginary parts of `x` each, where `where` holds.

    A mask beside a complex128 would be more than one load.
    """
    if op.monoid is BINNED_COMPLEX_MEAN:
        half = replace(op, monoid=BINNED_MEAN, element=x.real.dtype)
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
