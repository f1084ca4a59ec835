"""Convert chunks to the dtype that their array declares.

The dtype of a Dask array is a promise. Users make it with `map_blocks`, `apply_ufunc`, delayed
functions and readers, and a chunk may have another dtype. Compiled code relies on the promise for
the size of its tables, so a task converts its chunks before anything else uses them::

    x: float32, its chunks float64      Task(key, lift, block=x0, declared={"block": "f4"}, ...)
                                                    |
                                        lift gets x0.astype("f4")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import numpy as np

from dask_coop.algebra.merges import cast
from dask_coop.algebra.operation import named

#: The declared dtypes of a task's arguments, by position or keyword; as strings, which take fewer
#: bytes in a task than dtypes.
Declared = Mapping[Any, str]

#: The kinds of dtypes that chunks are converted to. Strings keep the chunk's length.
_CONVERTED = "biufcmM"


def as_declared(block: Any, dtype: np.dtype[Any]) -> Any:
    """Return a block as `dtype` in native byte order; unchanged if it has `dtype` in either order.

    Parameters
    ----------
    block : array, or list of arrays
    dtype : dtype
        The dtype that the block's array declares.

    Raises
    ------
    TypeError
        If elements cannot be converted.
    """
    if isinstance(block, list):
        return [as_declared(item, dtype) for item in block]
    actual = getattr(block, "dtype", dtype)
    if actual is dtype or dtype.kind not in _CONVERTED or block is np.ma.masked:
        return block
    native = dtype.newbyteorder("=")
    if actual in (dtype, native):
        return block
    try:
        with device_of(block):
            return cast(block, native)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"a chunk has dtype {actual}, its array declares {dtype}, and {actual} cannot be "
            f"converted: {error}; declare the dtype that chunks have"
        ) from error


def casts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a task's function to convert its arguments to the dtypes of a keyword `declared`.

    Positions count from the function's own first argument.
    """

    @wraps(function)
    def run(*args: Any, declared: Declared | None = None, **kwargs: Any) -> Any:
        positional = list(args)
        for name, dtype in (declared or {}).items():
            arguments: Any = positional if isinstance(name, int) else kwargs
            if name in kwargs or arguments is positional:
                arguments[name] = as_declared(arguments[name], np.dtype(dtype))
        return function(*positional, **kwargs)

    return run


@casts
def convert(block: Any, *, to: np.dtype[Any]) -> Any:
    """Return a block as `to`, after its conversion to the declared dtype."""
    return cast(block, to)


def declared_by(*args: Any, **kwargs: Any) -> dict[str, Declared]:
    """Return the keyword that tells a task the declared dtypes of its arrays.

    Parameters
    ----------
    *args, **kwargs : object
        The task's arguments, with Dask arrays in place of their blocks.
    """
    arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    # The type check is for delayed objects, which have any attribute.
    dtypes = {
        name: x.dtype
        for name, x in arguments.items()
        if isinstance(getattr(x, "dtype", None), np.dtype) and hasattr(x, "__dask_graph__")
    }
    declared = {name: named(dtype) for name, dtype in dtypes.items() if dtype.kind in _CONVERTED}
    return {"declared": declared} if declared else {}


def device_of(block: Any) -> AbstractContextManager[Any]:
    """Return the context of a block's device, which does nothing for a block on the host."""
    device = getattr(block, "device", None)
    # NumPy's device is a string.
    return device if isinstance(device, AbstractContextManager) else nullcontext()
