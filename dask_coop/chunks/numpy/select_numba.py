"""The loop of elements that a mask holds for, compiled by Numba."""

from __future__ import annotations

from typing import Any, Final

from dask_coop.compiled.jit import jit

Array = Any

#: Elements between two looks at whether all are found.
_STEP = 8


def _compress(x: Array, mask: Array, out: Array) -> None:
    n, total, i, k = len(x), len(out), 0, 0
    # Every element is written, and the next one over it unless it is kept: a branch that cannot be
    # foreseen takes longer.
    while k < total - _STEP and i <= n - _STEP:
        for j in range(i, i + _STEP):
            out[k] = x[j]
            k += mask[j] != 0
        i += _STEP
    while k < total and i < n:
        out[k] = x[i]
        k += mask[i] != 0
        i += 1


#: Write the elements that a mask, of bytes, is not 0 for: as many as there is room for.
compress: Final = jit(_compress)
