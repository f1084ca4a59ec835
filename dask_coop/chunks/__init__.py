"""What is done to one chunk, dispatched on the chunk's type.

An engine is a module with ``lift``, ``scan``, ``histogram`` and ``asarray``.  It is chosen inside
the task, from the chunk at hand, so that a client needs no GPU, and so that some chunks of an array
may be masked and others not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, ParamSpec

import numpy as np

from dask_coop.errors import Refused

P = ParamSpec("P")

ENGINES = {
    "numpy": "dask_coop.chunks.numpy.backend",
    "cupy": "dask_coop.chunks.cupy.backend",
    "masked": "dask_coop.chunks.masked",
}


def kind(x: Any, name: str = "an array") -> str:
    """Return "numpy" or "cupy" for an array of that type, which messages call `name`.

    Raises
    ------
    Refused
        If `x` is of another type; subclasses count as other types, for they carry meaning (a unit)
        that plain arrays would lose. Only that of a mask is known here.
    """
    if type(x) in (np.ndarray, np.memmap) or isinstance(x, np.generic) or is_masked(x):
        return "numpy"
    # Naming the class instead of importing CuPy keeps CPU processes free of it.
    if f"{type(x).__module__}.{type(x).__name__}" in ("cupy.ndarray", "cupy._core.core.ndarray"):
        return "cupy"
    raise Refused(
        f"{name} has chunks of type {type(x).__module__}.{type(x).__name__}; dask_coop takes NumPy "
        "and CuPy arrays; convert them, such as with .map_blocks(numpy.asarray)"
    )


def is_masked(x: Any) -> bool:
    """Tell whether `x`, a chunk or a meta, is one of NumPy's masked arrays."""
    return type(x) in (np.ma.MaskedArray, type(np.ma.masked))


def zeros_like(meta: Any, dtype: Any, ndim: int | None = None) -> Any:
    """Return a meta of the kind of `meta` and another dtype, to which no fill value is cast."""
    shape = (0,) * (meta.ndim if ndim is None else ndim)
    if not is_masked(meta):
        return np.zeros_like(meta, dtype, shape=shape)
    # Dask takes what is not masked, and has no axis, for a plain array.
    return np.ma.array(np.zeros(shape, dtype), mask=True)


def unmasked(meta: Any) -> Any:
    """Return a meta without its mask."""
    return np.ma.getdata(meta) if is_masked(meta) else meta


def keeps_mask(function: Callable[P, Any]) -> Callable[P, Any]:
    """Let a function of a chunk, element by element, leave masked what is."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        x: Any = args[0]
        if not is_masked(x):
            return function(*args, **kwargs)
        with np.errstate(all="ignore"):
            data: Any = function(np.ma.getdata(x), *args[1:], **kwargs)  # type: ignore[arg-type]
        return np.ma.array(data, mask=np.ma.getmaskarray(x).copy())

    return wrapper


def refuse_masked(name: str, x: Any) -> None:
    """Refuse masked chunks, of which the function `name` does not know what to make."""
    if is_masked(x):
        raise Refused(f"{name} does not take chunks of type {type(x).__module__}.MaskedArray")


def engine(*blocks: Any) -> ModuleType:
    """Return the module that works on blocks of those types, which belong together."""
    return import_module(ENGINES["masked" if any(map(is_masked, blocks)) else kind(blocks[0])])


def asarray(x: Any, to: str) -> Any:
    """Return `x` as an array of the kind `to`, on the current device."""
    if kind(x) == to:
        return x
    return import_module(ENGINES["cupy"]).transfer(x, to)
