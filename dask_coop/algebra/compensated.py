"""Sums in float64 that keep what additions round off: which they are, and their results.

The state of such a sum is a total and its *excess* over the exact sum, both float64, so that it is
good to some 100 bits; total minus excess is rounded once, at the end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import COMPENSATED_MEAN, COMPENSATED_SUM, MEAN, SUM, Operation, State

_TWINS = {SUM: COMPENSATED_SUM, MEAN: COMPENSATED_MEAN}


def compensated(op: Operation) -> Operation:
    """Return the operation that sums or averages as `op` does, and keeps what is rounded off.

    What float64 alone holds well enough stays as it is: float32 that becomes float32, and integers.
    """
    wide = op.output in (np.float64, np.complex128) and op.element.kind in "fc"
    return replace(op, monoid=_TWINS[op.monoid]) if wide and op.monoid in _TWINS else op


def settle(state: State) -> State:
    """Return a state with its total, rounded once, in the place of total and excess."""
    total, excess, *counts = state
    with np.errstate(all="ignore"):
        exact = total - excess
        if exact.dtype.kind != "c":
            # Infinite or NaN is the total where it is either, and its excess says nothing.
            return (choose(np.isfinite(exact), exact, total), *counts)
        settled = np.empty_like(exact)
        settled.real = choose(np.isfinite(exact.real), exact.real, total.real)
        settled.imag = choose(np.isfinite(exact.imag), exact.imag, total.imag)
        return (settled[()], *counts)
