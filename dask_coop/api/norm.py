"""Norms of vectors and matrices: norm."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, map_blocks
from dask.array.utils import validate_axis

from dask_coop import chunks
from dask_coop.algebra import reproducible as digits
from dask_coop.algebra.monoids import COUNT_NONZERO, MAX, MIN, SQUARES, SUM, State, size_dtype
from dask_coop.algebra.operation import bind
from dask_coop.algebra.statistics import only_field
from dask_coop.api.arguments import ReductionArguments, reduce_array
from dask_coop.api.arguments import require_elements as require
from dask_coop.api.call.public import Engine, public
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.errors import Refused
from dask_coop.graph.reduce import Finalize

Axes = tuple[int, ...]

#: The monoid that keeps the greatest or the least absolute value, and its `initial`: the greatest
#: of none is 0.
_MOST, _LEAST = (MAX, 0), (MIN, None)

#: By the order of a matrix norm: the extremum of the sums, and along which of the two axes to sum.
_EXTREMA = {1: (_MOST, 0), -1: (_LEAST, 0), np.inf: (_MOST, 1), -np.inf: (_LEAST, 1)}


@public("reduction")
def norm(
    x: Any,
    ord: Any = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    *,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> da.Array:
    """Matrix or vector norm.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    ord : {None, number, inf, -inf, "fro", "nuc"}
        The order of the norm. None is the root of the sum of squares. For vectors, a number p is
        the p-th root of the sum of p-th powers, inf and -inf are the greatest and the least
        absolute value, and 0 is the number of nonzero elements. For matrices, "fro" is the root of
        the sum of squares, 1 and -1 are the greatest and the least sum of absolute values in a
        column, and inf and -inf those in a row.
    axis : int, tuple of one or two int, or None
        The axis of the vectors or the two axes of the matrices; None stands for all axes.
    keepdims : bool
        Whether the reduced axes stay, with length one.
    reproducible : bool
        Whether the norm has the same bits for every chunking, scheduler, and number of workers or
        GPUs, in NumPy and in CuPy chunks.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `x`'s. The dtype is that of `x` or of its real part, and
        float64 for bool and integers.

    Raises
    ------
    TypeError
        If elements of that dtype have no absolute value.
    AxisError, ValueError
        As for :func:`sum`; if the order does not exist or is not reproducible, if there are more
        than two axes, or if there is no element to take the least absolute value of.

    Notes
    -----
    Absolute values are raised to powers and summed in float64, and the root is rounded once.
    ``dask.array.linalg.norm`` takes the orders 2, -2 and "nuc" of matrices, which need singular
    values.

    A reproducible norm takes the reproducible :func:`sum` of absolute values, or of squares that
    are each rounded to float64. NumPy and CUDA round other powers, and the absolute values of
    complex numbers, differently, so these orders are refused.

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
        return _root(x, 2, axes, keepdims, reproducible)
    if len(axes) == 1:
        return _vector_norm(x, ord, axes, keepdims, reproducible)
    if len(axes) != 2:
        raise ValueError("Improper number of dimensions to norm.")
    if ord in (None, "fro", "f"):
        return _root(x, 2, axes, keepdims, reproducible)
    if ord in (2, -2, "nuc"):
        raise Refused(f"norm with ord={ord!r} needs singular values; ord='fro' or 1 does not")
    if ord not in _EXTREMA:
        raise ValueError(f"Invalid norm order {ord!r} for matrices.")
    if reproducible:
        _refuse_complex(x, ord)
    result = _real(x.dtype)
    (monoid, initial), along = _EXTREMA[ord]
    summed, other = axes[along], axes[1 - along]
    between = result if reproducible else np.dtype("f8")
    sums = _sum(_sizes(x), summed, True, only_field, between, reproducible)
    if initial is None:
        require("norm", sums, other)
    arguments = ReductionArguments(other, keepdims=True, initial=initial)
    reduced = reduce_array(monoid, "norm", only_field, sums, arguments, result=result)
    return reduced if keepdims else reduced.squeeze(axes)


def _pair(axis: Any, ndim: int) -> Axes:
    """Return the axes in the order in which they are named: rows before columns."""
    axes: Axes = validate_axis(tuple(axis) if isinstance(axis, tuple | list) else (axis,), ndim)
    if len(set(axes)) != len(axes):
        raise ValueError(f"Duplicate axes given: {axis}")
    return axes


def _vector_norm(x: da.Array, ord: Any, axes: Axes, keepdims: bool, reproducible: bool) -> da.Array:
    result = _real(x.dtype)
    if ord is None:
        return _root(x, 2, axes, keepdims, reproducible)
    if isinstance(ord, str):
        raise ValueError(f"Invalid norm order {ord!r} for vectors.")
    if ord == 0:
        arguments = ReductionArguments(axes, keepdims)
        return reduce_array(COUNT_NONZERO, "norm", only_field, x, arguments, result=result)
    if reproducible and ord != 2:
        if ord not in (1, np.inf, -np.inf):
            raise ValueError(
                f"norm of order {ord} is not reproducible: NumPy and CUDA round powers differently"
            )
        _refuse_complex(x, ord)
    if abs(ord) == np.inf:
        monoid, initial = _MOST if ord > 0 else _LEAST
        if initial is None:
            require("norm", x, axes)
        arguments = ReductionArguments(axes, keepdims, initial=initial)
        return reduce_array(monoid, "norm", only_field, _sizes(x), arguments, result=result)
    return _root(x, ord, axes, keepdims, reproducible)


def _refuse_complex(x: da.Array, ord: Any) -> None:
    if x.dtype.kind == "c":
        raise ValueError(
            f"norm of order {ord} of complex numbers is not reproducible: NumPy and CUDA round "
            "their sizes differently"
        )


def _root(x: da.Array, p: Any, axes: Axes, keepdims: bool, reproducible: bool) -> da.Array:
    """Return the p-th root of the sum of p-th powers of absolute values."""
    p = float(p)
    arguments, result = ReductionArguments(axes, keepdims), _real(x.dtype)
    finalize: Finalize = partial(_take_root, p)
    if p == 2 and reproducible:
        dtype = np.dtype("c16" if x.dtype.kind == "c" else "f8")
        meta = chunks.zeros_like(x._meta, dtype)
        squares = map_blocks(_squares, x, dtype, **declared_by(x), dtype=dtype, meta=meta)
        finalize = partial(_take_square_root, result)
        arguments = arguments._replace(reproducible=True)
        return reduce_array(SUM, "norm", finalize, squares, arguments, result=result)
    if p == 2:
        return reduce_array(SQUARES, "norm", finalize, x, arguments, result=result)
    meta = chunks.zeros_like(x._meta, "f8")
    powers = map_blocks(_power, x, p, **declared_by(x), dtype="f8", meta=meta)
    return _sum(powers, axes, keepdims, finalize, result, reproducible)


def _sum(
    x: da.Array,
    axis: Any,
    keepdims: bool,
    finalize: Finalize,
    result: np.dtype[Any],
    reproducible: bool,
) -> da.Array:
    """Return the sum in float64. If reproducible, round it to `result`, not by `finalize`."""
    if reproducible:
        finalize = partial(digits.total, output=result)
    arguments = ReductionArguments(axis, keepdims, reproducible=reproducible)
    return reduce_array(SUM, "norm", finalize, x, arguments, dtype="f8", result=result)


def _sizes(x: da.Array) -> da.Array:
    dtype = _real(x.dtype)
    meta = chunks.zeros_like(x._meta, dtype)
    return map_blocks(_size, x, dtype, **declared_by(x), dtype=dtype, meta=meta)


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of absolute values of elements of `dtype`."""
    return size_dtype(dtype).newbyteorder("=")


# Inside tasks.


@casts
@chunks.keeps_mask
def _size(x: Any, dtype: Any) -> Any:
    return np.abs(x.astype(dtype, copy=False) if x.dtype.kind in "biu" else x)


@casts
@chunks.keeps_mask
def _power(x: Any, p: float) -> Any:
    sizes = np.abs(x.astype("c16" if x.dtype.kind == "c" else "f8", copy=False))
    with np.errstate(divide="ignore", over="ignore"):
        return sizes if p == 1 else sizes**p


def _take_root(p: float, state: State) -> Any:
    (total,) = state
    with np.errstate(divide="ignore"):
        return total if p == 1 else np.sqrt(total) if p == 2 else total ** (1 / p)


@casts
@chunks.keeps_mask
def _squares(x: Any, dtype: Any) -> Any:
    """Return the squares, or those of the real and imaginary parts, each rounded to float64."""
    if dtype.kind != "c":
        return np.square(x.astype("f8"))
    result = np.empty_like(x, dtype)
    result.real, result.imag = np.square(x.real.astype("f8")), np.square(x.imag.astype("f8"))
    return result


def _take_square_root(output: np.dtype[Any], state: State) -> Any:
    special, *parts = state
    if len(parts) > 1 + digits.DIGITS:
        real, imag = parts[: 1 + digits.DIGITS], parts[1 + digits.DIGITS :]
        # One sum, rounded once.
        state = digits.merge(1, (special.real, *real), (special.imag, *imag))
    return digits.narrow(np.sqrt(digits.total(state, np.dtype("f8"))), output)
