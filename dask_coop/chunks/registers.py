"""Fill the registers of HyperLogLog from a NumPy chunk, by compiled loops or block by block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.registers import Registers, places
from dask_coop.chunks.numpy.loop_table import loops_for
from dask_coop.chunks.states import as_lines

#: The elements whose hashes are in memory at a time: some hundred bytes each.
_BLOCK = 1 << 16


def lift(monoid: Registers, x: np.ndarray[Any, Any], axes: tuple[int, ...]) -> State:
    """Return the registers of a NumPy chunk over `axes`."""
    lines = np.ascontiguousarray(as_lines(x, axes))
    if (loops := loops_for("selection", x.size)) is None:
        return _lift_by_blocks(monoid, lines)
    *kept, n = lines.shape
    table = np.zeros((math.prod(kept), monoid.entries), "u1")
    loops.fill_registers(lines.reshape(len(table), n), monoid.bits, table)
    return (table.reshape(*kept, monoid.entries),)


def _lift_by_blocks(monoid: Registers, lines: np.ndarray[Any, Any]) -> State:
    *kept, n = lines.shape
    flat = lines.reshape(-1)
    table = np.zeros(math.prod(kept) * monoid.entries, "u1")
    for begin in range(0, flat.size, _BLOCK):
        some = flat[begin : begin + _BLOCK]
        at, rank = places(some, monoid.bits)
        if kept:
            at = at + np.arange(begin, begin + some.size) // n * monoid.entries
        np.maximum.at(table, at, rank.astype("u1"))
    return (table.reshape(*kept, monoid.entries),)
