"""Reproducible sums of weights by bin: the digits of algebra/reproducible.py, counted one by one.

The exponent is that of the largest weight of a line, whichever bins it meets, so that it does not
depend on the chunks. In that window a digit of every weight is an integer, and the backends count
integers exactly.
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
    """Sum the `weights` of a chunk by bin: to tables of what is not finite and of digits.

    The exponent, between them, has an axis of length one for each coordinate. `lift` and `count`
    are the backend's.
    """
    digit = bind(COUNTS, np.dtype("i4"), np.dtype("i8"), "histogram").by(op.strategy)
    rest = weights.astype(op.element, copy=False).astype("f8")
    finite = np.isfinite(rest)
    special = None
    if not finite.all():
        special = [
            count(digit, samples, grid, which)[0]
            for which in (rest == np.inf, rest == -np.inf, rest != rest)
        ]
        rest = np.where(finite, rest, 0.0)
    _, of_lines = grid.lines(weights.shape)
    largest = bind(MAX, rest.dtype, rest.dtype, "histogram")
    (top,) = lift(largest, np.abs(rest), of_lines)
    top = chunks.asarray(np.maximum(top, 0.0), chunks.kind(weights))
    exponent = exponents(top.view("i8"))
    scale = np.ldexp(np.ones_like(top), (-WIDTH * (exponent - 1)).astype("i4"))
    rest = rest * np.expand_dims(scale, of_lines)
    digits: list[Array] = []
    # Each a function of its own, for none may be contracted to another.
    for unit in SHIFTS:
        shifted = rest + unit
        digits += count(digit, samples, grid, (shifted.view("i8") - unit.view("i8")).astype("i4"))
        shifted = shifted - unit
        rest = rest - shifted
    sums = np.zeros_like(digits[0], "f8") if special is None else _sum_special(*special)
    exponent = exponent.reshape(exponent.shape + (1,) * grid.ndim)
    return (sums, chunks.asarray(exponent, chunks.kind(digits[0])), *digits)


def _sum_special(above: Array, below: Array, nans: Array) -> Array:
    """Return the sums of so many infinities, negative ones and NaN."""
    signed = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, 0.0))
    return np.where((nans > 0) | ((above > 0) & (below > 0)), np.nan, signed)
