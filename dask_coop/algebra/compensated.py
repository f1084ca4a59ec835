"""Sums in float64 that keep what additions round off, and their results.

The state of such a sum is a total and its *excess* over the exact sum, both float64, so that it is
good to some 100 bits; total minus excess is rounded once, at the end.
"""

from __future__ import annotations

import numpy as np

from dask_coop.algebra.merges import State, choose


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
