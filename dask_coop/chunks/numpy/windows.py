"""Statistics of windows over NumPy chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.windows import Window
from dask_coop.chunks import window_steps

Array = np.ndarray[Any, Any]

#: Elements that a step works on at a time.
_ROOM = 1 << 14


def move(window: Window, x: Array, halo: Array, base: State | None = None) -> Array:
    """Reduce the window that ends at each element of the chunk `x` to a statistic."""
    element, result = window.element(x.dtype), window.result(x.dtype)
    x, halo = (a.astype(element, copy=False) for a in (x, halo))
    return window_steps.move(window, x, halo, base, _ROOM).astype(result, copy=False)
