"""Chunks of the dtype that their array declares.

The dtype of a Dask array is a promise: `map_blocks`, `apply_ufunc`, delayed functions and readers
take it from the user, and a chunk may turn out to have another. Compiled code sizes its tables by
the promise, so a task that takes chunks converts them before anything else sees them::

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

#: The declared dtypes of a task's arguments, by position or keyword. Words take fewer bytes in a
#: task than dtypes.
Declared = Mapping[Any, str]

#: Kinds of dtypes that a chunk is converted to. Strings are as long as those of the chunk.
_CONVERTED = "biufcmM"


def as_declared(block: Any, dtype: np.dtype[Any]) -> Any:
    """Return a block of `dtype`, in either byte order; itself if it is one.

    Parameters
    ----------
    block : array, or list of arrays
    dtype : dtype
        What the block's array declares.

    Raises
    ------
    TypeError
        If elements cannot be converted.
    """
    if isinstance(block, list):
        return [as_declared(each, dtype) for each in block]
    found = getattr(block, "dtype", dtype)
    if found is dtype or dtype.kind not in _CONVERTED or block is np.ma.masked:
        return block
    native = dtype.newbyteorder("=")
    if found in (dtype, native):
        return block
    try:
        with _device_of(block):
            return cast(block, native)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"a chunk has dtype {found}, its array declares {dtype}, and {found} cannot be "
            f"converted: {error}; declare the dtype that chunks have"
        ) from error


def casts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes `declared` besides, and converts its arguments first.

    Positions count from the function's own first argument.
    """

    @wraps(function)
    def run(*args: Any, declared: Declared | None = None, **kwargs: Any) -> Any:
        own = list(args)
        for at, dtype in (declared or {}).items():
            given: Any = own if isinstance(at, int) else kwargs
            if at in kwargs or given is own:
                given[at] = as_declared(given[at], np.dtype(dtype))
        return function(*own, **kwargs)

    return run


@casts
def convert(block: Any, *, to: np.dtype[Any]) -> Any:
    """Return a block as one of another dtype, by way of what its array declares."""
    return cast(block, to)


def declared_by(*args: Any, **kwargs: Any) -> dict[str, Declared]:
    """Return what tells a task the dtypes that the arrays of its blocks declare.

    Parameters
    ----------
    *args, **kwargs : object
        The task's arguments, with the arrays of Dask in the place of their blocks.
    """
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    # Any attribute of a delayed object is another one.
    dtypes = {
        at: one.dtype
        for at, one in given.items()
        if isinstance(getattr(one, "dtype", None), np.dtype) and hasattr(one, "__dask_graph__")
    }
    found = {at: named(dtype) for at, dtype in dtypes.items() if dtype.kind in _CONVERTED}
    return {"declared": found} if found else {}


def _device_of(block: Any) -> AbstractContextManager[Any]:
    device = getattr(block, "device", None)
    # NumPy's is a word.
    return device if isinstance(device, AbstractContextManager) else nullcontext()
