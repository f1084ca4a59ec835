"""Reproducible sums of weights by bin: each digit of algebra/reproducible.py is counted in turn.

The exponent is that of the largest weight of a line, in any bin, so that it does not depend on the
chunks. A digit of a weight is then an integer, and the backends count integers exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dask_coop import chunks
from dask_coop.algebra.bins import BinSpec
from dask_coop.algebra.monoids import COUNTS, MAX, State
from dask_coop.algebra.operation import Operation, bind
from dask_coop.algebra.reproducible import WIDTH, exponents
from dask_coop.chunks.numpy.reproducible import SHIFTS

Array = Any


def histogram(
    lift: Callable[..., State],
    count: Callable[..., State],
    op: Operation,
    samples: Sequence[Array],
    grid: BinSpec,
    weights: Array,
) -> State:
    """Sum the `weights` of a chunk by bin: tables of non-finite sums and of digits.

    The exponent, the second field, has an axis of length one for each coordinate. `lift` and
    `count` are the backend's.
    """
    digit = bind(COUNTS, np.dtype("i4"), np.dtype("i8"), "histogram").by(op.strategy)
    remainder = weights.astype(op.element, copy=False).astype("f8")
    finite = np.isfinite(remainder)
    special = None
    if not finite.all():
        special = [
            count(digit, samples, grid, which)[0]
            for which in (remainder == np.inf, remainder == -np.inf, remainder != remainder)
        ]
        remainder = np.where(finite, remainder, 0.0)
    _, of_lines = grid.lines(weights.shape)
    largest = bind(MAX, remainder.dtype, remainder.dtype, "histogram")
    (top,) = lift(largest, np.abs(remainder), of_lines)
    top = chunks.asarray(np.maximum(top, 0.0), chunks.kind(weights))
    exponent = exponents(top.view("i8"))
    scale = np.ldexp(np.ones_like(top), (-WIDTH * (exponent - 1)).astype("i4"))
    remainder = remainder * np.expand_dims(scale, of_lines)
    digits: list[Array] = []
    # Separate ufunc calls, because contracted operations would round differently.
    for unit in SHIFTS:
        shifted = remainder + unit
        digits += count(digit, samples, grid, (shifted.view("i8") - unit.view("i8")).astype("i4"))
        shifted = shifted - unit
        remainder = remainder - shifted
    sums = np.zeros_like(digits[0], "f8") if special is None else _sum_special(*special)
    exponent = exponent.reshape(exponent.shape + (1,) * grid.ndim)
    return (sums, chunks.asarray(exponent, chunks.kind(digits[0])), *digits)


def _sum_special(above: Array, below: Array, nans: Array) -> Array:
    """Return the sums of given numbers of infinities, negative infinities and NaN."""
    signed = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, 0.0))
    return np.where((nans > 0) | ((above > 0) & (below > 0)), np.nan, signed)
