"""Logarithms of sums of exponentials of NumPy chunks."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.numpy import adding
from dask_coop.chunks.numpy.lines import aligned, find_layout
from dask_coop.chunks.numpy.scan_lines import FEW, flatten

Array = np.ndarray[Any, Any]


@cache
def _loops() -> ModuleType | None:
    try:
        from dask_coop.chunks.numpy import logaddexp_numba
    except ImportError:
        return None
    return logaddexp_numba


def lift(op: Operation, x: Array, axes: tuple[int, ...], valid: Any) -> State:
    """Reduce the chunk `x` over sorted `axes`, where `valid` holds."""
    loops = _loops() if x.size >= adding.WORTH_COMPILING and x.dtype.char in "fd" else None
    if loops is None:
        return _lift(x, axes, valid)
    if valid is not True:
        x = np.where(valid, x, x.dtype.type(-np.inf))
    x = aligned(x)
    layout = find_layout(x, axes)
    lines = layout.split(x)
    logs = np.full(lines.shape[0] * lines.shape[2], -np.inf)
    kernel = loops.sum_lines if lines.shape[2] <= FEW else loops.sum_columns
    kernel(*flatten(lines), *lines.shape[1:], logs)
    return (layout.join(logs, x.shape),)


def _lift(x: Array, axes: tuple[int, ...], valid: Any) -> State:
    """Take out the maximum, which costs one logarithm for each state and not for each element."""
    high = np.maximum.reduce(x, axes, dtype="f8", initial=-np.inf, where=valid, keepdims=True)
    with np.errstate(all="ignore"):
        shift = np.where(np.isfinite(high), high, 0)
        total = np.add.reduce(np.exp(np.subtract(x, shift, dtype="f8")), axes, where=valid)
        log = np.log(total) + np.squeeze(shift, axes)
    high = np.squeeze(high, axes)
    return (np.where(np.isfinite(high), log, high)[()],)
