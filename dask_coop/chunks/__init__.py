"""What is done to one chunk, dispatched on the chunk's type.

An engine is a module with ``lift``, ``scan``, ``histogram`` and ``asarray``.  It is chosen inside
the task, from the chunk at hand, so that a client needs no GPU.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from dask_coop.errors import Refused

ENGINES = {"numpy": "dask_coop.chunks.numpy", "cupy": "dask_coop.chunks.cuda"}


def kind(x: Any, name: str = "an array") -> str:
    """Return "numpy" or "cupy" for an array of that type, which messages call `name`.

    Raises
    ------
    Refused
        If `x` is of another type; subclasses count as other types, for they carry meaning (a mask,
        a unit) that plain arrays would lose.
    """
    if type(x) in (np.ndarray, np.memmap) or isinstance(x, np.generic):
        return "numpy"
    # Naming the class instead of importing CuPy keeps CPU processes free of it.
    if f"{type(x).__module__}.{type(x).__name__}" in ("cupy.ndarray", "cupy._core.core.ndarray"):
        return "cupy"
    raise Refused(
        f"{name} has chunks of type {type(x).__module__}.{type(x).__name__}; dask_coop takes NumPy "
        "and CuPy arrays; convert them, such as with .map_blocks(numpy.asarray)"
    )


def engine(x: Any) -> ModuleType:
    """Return the module that works on chunks of `x`'s type."""
    return import_module(ENGINES[kind(x)])


def asarray(x: Any, to: str) -> Any:
    """Return `x` as an array of the kind `to`, on the current device."""
    if kind(x) == to:
        return x
    return import_module(ENGINES["cupy"]).transfer(x, to)
