"""Statistics of windows over NumPy chunks: compiled loops, or a few steps without Numba."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.windows import Window
from dask_coop.chunks import window_steps
from dask_coop.chunks.numpy.scan_lines import flatten

Array = np.ndarray[Any, Any]

#: Elements that a step works on at a time, and those that a compiled loop has in the caches.
_ROOM, _CACHED = 1 << 14, 1 << 10

#: Neighbouring columns that a compiled loop takes together, at least.
_LANES = 16


def move(window: Window, x: Array, halo: Array, base: State | None = None) -> Array:
    """Reduce the window that ends at each element of the chunk `x` to a statistic."""
    element, result = window.element(x.dtype), window.result(x.dtype)
    loops = _loops()
    if loops is None or not x.size:
        x, halo = (a.astype(element, copy=False) for a in (x, halo))
        found: Array = window_steps.move(window, x, halo, base, _ROOM)
        return found.astype(result, copy=False)
    if x.dtype not in (np.float32, np.float64):
        x, halo = (a.astype(element) for a in (x, halo))
    return _compiled(loops, window, x, halo, base).astype(result, copy=False)


def _compiled(
    loops: ModuleType, window: Window, x: Array, halo: Array, base: State | None
) -> Array:
    """Return statistics of windows by compiled loops."""
    axis, w = window.axis, window.length
    outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    before = halo.shape[axis]
    out = np.empty(x.shape, x.dtype.newbyteorder("="))
    memory, place = flatten(_lines(x, axis))
    earlier, halo_place = flatten(_lines(halo, axis))
    given = memory, place, earlier, halo_place, out.reshape(-1), (outer, n, inner), before, w
    rest = float(window.min_count), _bases(base, outer * inner), _block(n, inner, w)
    match window.statistic:
        case "sum" | "mean":
            loops.move_sums(*given, window.statistic == "mean", *rest)
        case "min" | "max":
            loops.move_extremes(*given, window.statistic == "min", *rest)
        case _:
            least, *others = rest
            ddof = float(window.ddof)
            loops.move_deviations(*given, window.statistic == "std", least, ddof, *others)
    return out


def _block(n: int, inner: int, w: int) -> tuple[int, int]:
    """Return how many rows of how many columns a block has: so many that little is read twice."""
    rows = min(n, max(_CACHED // min(inner, _LANES), 3 * w))
    return rows, min(inner, max(_LANES, _CACHED // (rows + w)))


def _lines(x: Array, axis: int) -> Array:
    """Return `x` as (outer, n, inner)."""
    x = np.ascontiguousarray(x, x.dtype.newbyteorder("="))
    return x.reshape(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))


def _bases(base: State | None, lines: int) -> Array:
    """Return what each window of a line has besides: a state, its fields along the first axis."""
    if base is None:
        return np.empty((3, 0))
    fields = [np.broadcast_to(np.asarray(field, "f8").reshape(-1), lines) for field in base]
    return np.stack(fields)


def _loops() -> ModuleType | None:
    try:
        from dask_coop.chunks.numpy import windows_numba
    except ImportError:
        return None
    return windows_numba
