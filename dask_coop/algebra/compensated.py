"""Sums in float64 that keep rounding errors, and their results.

The state of such a sum is a total and its *excess* over the exact sum, both float64, which
together hold about 100 bits. Total minus excess is rounded once, at the end.
"""

from __future__ import annotations

import numpy as np

from dask_coop.algebra.merges import State, choose


def settle(state: State) -> State:
    """Return a state with one total, rounded once, in place of total and excess."""
    total, excess, *counts = state
    with np.errstate(all="ignore"):
        exact = total - excess
        if exact.dtype.kind != "c":
            # The excess of an infinite or NaN total is meaningless.
            return (choose(np.isfinite(exact), exact, total), *counts)
        settled = np.empty_like(exact)
        settled.real = choose(np.isfinite(exact.real), exact.real, total.real)
        settled.imag = choose(np.isfinite(exact.imag), exact.imag, total.imag)
        return (settled[()], *counts)
