"""Sums of powers of deviations in CuPy chunks: two kernels of ours around CuPy's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.monoids import MEAN, SUM, Operation, State

Array = Any
Lift = Callable[[Operation, Array, tuple[int, ...]], State]


def lift_powers(lift: Lift, op: Operation, x: Array, axes: tuple[int, ...]) -> State:
    """Reduce the chunk `x` over `axes` to a state of `dask_coop.algebra.central_moments`."""
    real = np.dtype("f8")
    total, count = lift(Operation(MEAN, op.element, real), x, axes)
    mean = total / np.maximum(count, 1)
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    deviation = x.astype(real) - cupy.asarray(mean).reshape(kept)
    power = deviation
    sums: list[Any] = []
    for _ in op.monoid.fields[2:]:
        power = power * deviation
        sums += lift(Operation(SUM, real, real), power, axes)
    fields = (count, mean, *sums)
    # States differ in size, so some may have stayed on the GPU; all go where one is.
    if any(isinstance(field, cupy.ndarray) for field in fields):
        return tuple(map(cupy.asarray, fields))
    return fields
