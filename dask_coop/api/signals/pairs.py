"""Pairs of elements of two arrays, as complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.array.core import Array, map_blocks

from dask_coop.api.arguments import rechunk
from dask_coop.chunks.dtypes import casts, declared_by


def as_pairs(name: str, first: Array, second: Array) -> tuple[Array, np.dtype[Any]]:
    """Return complex elements, of two arrays of real ones, and the dtype of results of both.

    Parameters
    ----------
    name : str
        The public function.
    first, second : dask.array.Array
        Bool, integers or floats.

    Raises
    ------
    ValueError
        If they differ in shape.
    """
    if first.shape != second.shape:
        raise ValueError(f"{name} takes arrays of one shape, got {first.shape} and {second.shape}")
    output = np.result_type(first.dtype, second.dtype)
    output = np.dtype("f8") if output.kind in "biu" else output
    dtype = np.dtype("c8" if output.itemsize <= 4 else "c16")
    kept = {"dtype": dtype, "meta": first._meta.astype(dtype), "token": f"{name}-pairs"}
    second = rechunk(second, first.chunks)
    return map_blocks(_pair, first, second, to=dtype, **declared_by(first, second), **kept), output


@casts
def _pair(x: Any, y: Any, to: np.dtype[Any]) -> Any:
    pairs = np.empty_like(x, to)
    pairs.real, pairs.imag = x, y
    return pairs
