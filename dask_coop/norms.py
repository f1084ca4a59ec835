"""Norms of vectors and matrices: norm."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, map_blocks
from dask.array.utils import validate_axis

from dask_coop.arguments import mean_dtype, only_field, passes_to_dask, reduce_array
from dask_coop.arguments import require_elements as require
from dask_coop.monoids import COUNT_NONZERO, MAX, MIN, SQUARES, SUM, Refused, State, bind
from dask_coop.planning import takes_expressions

Axes = tuple[int, ...]

#: What a matrix norm takes the greatest or the least of: sums of columns or of rows.
_EXTREMA = {1: (MAX, 0), -1: (MIN, 0), np.inf: (MAX, 1), -np.inf: (MIN, 1)}


@passes_to_dask
@takes_expressions
def norm(
    x: Any, ord: Any = None, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> da.Array:
    """Norm of vectors or matrices.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    ord : {None, number, inf, -inf, "fro", "nuc"}
        The order. None stands for the root of the sum of squares. Of vectors it is any p of the
        p-th root of the sum of p-th powers, inf and -inf for the greatest and the least size, or 0
        for the number of elements that are not zero. Of matrices it is "fro" for the root of the
        sum of squares, 1 and -1 for the greatest and the least sum of a column, and inf and -inf
        for those of a row.
    axis : int, tuple of one or two int, or None
        The axis of vectors or the two of matrices; None stands for all.
    keepdims : bool
        Whether the reduced axes stay, with length one.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `x`'s: of the dtype of `x` or of its real part, and float64
        for bool and integers.

    Raises
    ------
    TypeError
        If elements of that dtype have no size.
    AxisError, ValueError
        For an order that there is not, for more than two axes, as for :func:`sum`, and where there
        is no element to take the least size of.

    Notes
    -----
    Sizes are raised to powers and added up in float64, and the root is rounded once. The orders 2,
    -2 and "nuc" of matrices, which need singular values, are left to ``dask.array.linalg.norm``.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.norm(da.from_array([3.0, 4.0], chunks=1)))
    5.0
    """
    x = asanyarray(x)
    bind(SUM, x.dtype, x.dtype, "norm")
    axes = tuple(range(x.ndim)) if axis is None else _pair(axis, x.ndim)
    if axis is None and ord is None:
        return _root(x, 2, axes, keepdims)
    if len(axes) == 1:
        return _vector_norm(x, ord, axes, keepdims)
    if len(axes) != 2:
        raise ValueError("Improper number of dimensions to norm.")
    if ord in (None, "fro", "f"):
        return _root(x, 2, axes, keepdims)
    if ord in (2, -2, "nuc"):
        raise Refused(f"norm of order {ord} needs singular values")
    if ord not in _EXTREMA:
        raise ValueError(f"Invalid norm order {ord!r} for matrices.")
    monoid, along = _EXTREMA[ord]
    summed, other = axes[along], axes[1 - along]
    sums = reduce_array(SUM, "norm", only_field, _sizes(x), summed, True, None, None, dtype="f8")
    initial = 0 if monoid is MAX else None
    if initial is None:
        require("norm", sums, other)
    result = _real(x.dtype)
    found = reduce_array(
        monoid, "norm", only_field, sums, other, True, None, None, result=result, initial=initial
    )
    return found if keepdims else found.squeeze(axes)


def _pair(axis: Any, ndim: int) -> Axes:
    """Return axes in the order in which they are named: that of rows before that of columns."""
    axes: Axes = validate_axis(tuple(axis) if isinstance(axis, tuple | list) else (axis,), ndim)
    if len(set(axes)) != len(axes):
        raise ValueError(f"Duplicate axes given: {axis}")
    return axes


def _vector_norm(x: da.Array, ord: Any, axes: Axes, keepdims: bool) -> da.Array:
    result = _real(x.dtype)
    if ord is None:
        return _root(x, 2, axes, keepdims)
    if isinstance(ord, str):
        raise ValueError(f"Invalid norm order {ord!r} for vectors.")
    if ord == 0:
        return reduce_array(
            COUNT_NONZERO, "norm", only_field, x, axes, keepdims, None, None, result=result
        )
    if abs(ord) == np.inf:
        monoid, initial = (MAX, 0) if ord > 0 else (MIN, None)
        if initial is None:
            require("norm", x, axes)
        return reduce_array(
            monoid,
            "norm",
            only_field,
            _sizes(x),
            axes,
            keepdims,
            None,
            None,
            result=result,
            initial=initial,
        )
    return _root(x, ord, axes, keepdims)


def _root(x: da.Array, p: Any, axes: Axes, keepdims: bool) -> da.Array:
    """Return the p-th root of the sum of p-th powers of sizes."""
    p = float(p)
    finalize, result = partial(_take_root, p), _real(x.dtype)
    if p == 2:
        return reduce_array(SQUARES, "norm", finalize, x, axes, keepdims, None, None, result=result)
    powers = map_blocks(_power, x, p, dtype="f8", meta=np.empty_like(x._meta, dtype="f8"))
    return reduce_array(SUM, "norm", finalize, powers, axes, keepdims, None, None, result=result)


def _sizes(x: da.Array) -> da.Array:
    dtype = _real(x.dtype)
    return map_blocks(_size, x, dtype, dtype=dtype, meta=np.empty_like(x._meta, dtype=dtype))


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of sizes of elements of `dtype`."""
    return mean_dtype(dtype.type(0).real.dtype).newbyteorder("=")


# What follows runs inside tasks.


def _size(x: Any, dtype: Any) -> Any:
    return np.abs(x.astype(dtype, copy=False) if x.dtype.kind in "biu" else x)


def _power(x: Any, p: float) -> Any:
    sizes = np.abs(x.astype("c16" if x.dtype.kind == "c" else "f8", copy=False))
    with np.errstate(divide="ignore", over="ignore"):
        return sizes if p == 1 else sizes**p


def _take_root(p: float, state: State) -> Any:
    (total,) = state
    with np.errstate(divide="ignore"):
        return total if p == 1 else np.sqrt(total) if p == 2 else total ** (1 / p)
