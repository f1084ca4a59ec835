"""Scans: cumsum."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, handle_out
from dask.array.creation import empty_like
from dask.array.utils import validate_axis

from dask_coop import monoids, spine
from dask_coop.planning import takes_expressions

METHODS = ("reduce-then-scan", "blelloch")


@takes_expressions
def cumsum(
    x: Any,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
) -> da.Array:
    """Cumulative sum of array elements along an axis.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis : int or None
        The axis to sum along; None stands for the flattened array, in C order.
    dtype : dtype, optional
        The dtype of the result. By default that of `x`, except that bool and integers narrower
        than 64 bits give 64 bits, as in NumPy.
    out : dask.array.Array, optional
        An array to overwrite with the result.
    method : {"reduce-then-scan", "blelloch"}
        "reduce-then-scan" sums every chunk, scans the sums to what comes before each chunk, and
        scans every chunk from there; "blelloch" is Dask's name for its own such method.

    Returns
    -------
    dask.array.Array
        Lazy, with `x`'s chunks along its axes. With ``axis=None`` one-dimensional, in chunks
        about as large as `x`'s.

    Raises
    ------
    TypeError
        If elements of that dtype cannot be summed.
    AxisError, ValueError
        If `axis` is out of bounds, or `method` is none of those above.

    Notes
    -----
    float16 and float32 accumulate in float64 and every element is rounded once; integers wrap. The
    cross-chunk step is a two-level reduce-then-scan: G. E. Blelloch, "Prefix Sums and Their
    Applications", 1990; D. Merrill and A. Grimshaw, "Parallel Scan for Stream Architectures", 2009.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.cumsum(da.ones(5, chunks=2, dtype="i4")).compute()
    array([1, 2, 3, 4, 5])
    """
    array = asanyarray(x)
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if axis is None:
        array, axis = _flatten(array), 0
    axis = validate_axis(axis, array.ndim)
    sums = monoids.accumulator(array.dtype) if array.dtype.kind in "biu" else array.dtype
    output = sums if dtype is None else np.dtype(dtype)
    op = monoids.bind(monoids.SUM, array.dtype, output, "cumsum")
    return handle_out(out, spine.scan(op, array, axis, "cumsum"))


def _flatten(x: da.Array) -> da.Array:
    """Return `x` in one dimension, C order, in chunks about as large as they were."""
    if 0 in x.shape:
        return empty_like(x, shape=(0,))
    # Dask's reshape trips over chunks of length zero.
    if any(0 in sizes for sizes in x.chunks):
        x = x.rechunk(tuple(tuple(n for n in sizes if n) for sizes in x.chunks))
    return x.reshape(-1)
