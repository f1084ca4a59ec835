"""Fill the registers of HyperLogLog from a chunk, by compiled loops or block by block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.registers import Registers, places
from dask_coop.chunks.numpy.loop_table import loops_for
from dask_coop.chunks.states import as_lines

Array = Any


def lift(monoid: Registers, x: np.ndarray[Any, Any], axes: tuple[int, ...]) -> State:
    """Return the registers of a NumPy chunk over `axes`."""
    if (loops := loops_for("selection", x.size)) is None:
        return lift_by_blocks(monoid, x, axes, np.zeros, np.maximum.at, 1 << 16)
    lines = np.ascontiguousarray(as_lines(x, axes))
    *kept, n = lines.shape
    table = np.zeros((math.prod(kept), monoid.entries), "u1")
    loops.fill_registers(lines.reshape(len(table), n), monoid.bits, table)
    return (table.reshape(*kept, monoid.entries),)


def lift_by_blocks(
    monoid: Registers,
    x: Array,
    axes: tuple[int, ...],
    zeros: Callable[..., Array],
    put: Callable[[Array, Array, Array], Any],
    block: int,
) -> State:
    """Return the registers of a chunk over `axes`, as an array that `zeros` makes.

    Parameters
    ----------
    monoid : Registers
    x : array
    axes : tuple of int
    zeros : callable
        As `numpy.zeros`.
    put : callable
        As ``numpy.maximum.at``, for uint32.
    block : int
        The number of elements whose hashes are in memory at a time.
    """
    lines = as_lines(x, axes)
    *kept, n = lines.shape
    flat = lines.reshape(-1)
    table = zeros(math.prod(kept) * monoid.entries, "u4")
    for begin in range(0, flat.size, block):
        some = flat[begin : begin + block]
        at, rank = places(some, monoid.bits)
        if kept:
            line = np.arange(begin, begin + some.size, like=flat) // n
            at = at + line * monoid.entries
        put(table, at, rank.astype("u4"))
    return (table.astype("u1").reshape(*kept, monoid.entries),)
