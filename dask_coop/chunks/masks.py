"""NumPy's masked arrays, as chunks and as metas."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from dask_coop.errors import Refused

P = ParamSpec("P")


def is_masked(x: Any) -> bool:
    """Return whether `x`, a chunk or a meta, is one of NumPy's masked arrays."""
    return type(x) in (np.ma.MaskedArray, type(np.ma.masked))


def zeros_like(meta: Any, dtype: Any, ndim: int | None = None) -> Any:
    """Return a meta of the kind of `meta` and another dtype, without a cast fill value."""
    shape = (0,) * (meta.ndim if ndim is None else ndim)
    if not is_masked(meta):
        return np.zeros_like(meta, dtype, shape=shape)
    # Masked, because Dask treats an unmasked meta without axes as a plain array.
    return np.ma.array(np.zeros(shape, dtype), mask=True)


def unmasked(meta: Any) -> Any:
    """Return a meta without its mask."""
    return np.ma.getdata(meta) if is_masked(meta) else meta


def keeps_mask(function: Callable[P, Any]) -> Callable[P, Any]:
    """Decorate an elementwise function of a chunk to keep the chunk's mask."""

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
    """Raise `Refused` if `x` is masked, for the function `name`."""
    if is_masked(x):
        raise refusal(name)


def refusal(name: str) -> Refused:
    """Return the error of the function `name` for masked chunks."""
    return Refused(
        f"{name} does not take chunks of type {np.ma.MaskedArray.__module__}.MaskedArray"
    )
