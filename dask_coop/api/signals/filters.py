"""Recursive filters across chunks: lfilter, sosfilt."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array, asanyarray, broadcast_to
from dask.array.numpy_compat import moveaxis
from dask.array.utils import validate_axis
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.algebra.filters import Filter
from dask_coop.api.arguments import as_dtype, has_unknown_size, rechunk, reshaped
from dask_coop.api.call.public import public
from dask_coop.api.paired.average import require_unmasked
from dask_coop.graph.signals.filters import filtered

#: The methods of filters, as of scans.
_METHODS = ("reduce-then-scan", "sequential")


@public("blockwise", dask=False)
def lfilter(
    b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None, *, method: str = "reduce-then-scan"
) -> da.Array | tuple[da.Array, da.Array]:
    """Filter lines by a recursive (IIR) or finite (FIR) filter, as ``scipy.signal.lfilter``.

    Parameters
    ----------
    b, a : array_like
        The coefficients of the numerator and of the denominator, in memory.
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks of any lengths.
    axis : int
        The axis of the lines.
    zi : dask.array.Array or array_like, optional
        The delays before each line: of the shape of `x`, with ``max(len(a), len(b)) - 1`` along
        `axis`, or of length 1 along others.
    method : {"reduce-then-scan", "sequential"}
        Whether to filter all chunks at the same time, each twice; or the chunks of a line one after
        the other, each once.

    Returns
    -------
    dask.array.Array, or a tuple of two of them
        Lazy, in the chunks of `x`, and with `zi` also the delays behind each line. The dtype is the
        common one of all arguments, float64 for integers.

    Raises
    ------
    TypeError
        If `b` or `a` is lazy, chunks are masked, or the common dtype is none of float32, float64,
        complex64 and complex128.
    AxisError, ValueError
        If `x` has no such axis, coefficients are not of one axis, ``a[0]`` is 0, `zi` has another
        shape, or `method` is none of those above.

    Notes
    -----
    NumPy chunks are filtered by SciPy, and its results are the same, bit for bit, with
    ``method="sequential"``; CuPy chunks by CuPy, whose errors grow faster for narrow filters of a
    high order. The delays before each chunk are found from those that each chunk leaves, by powers
    of a matrix in integers of any length, so that only the errors of the filter remain. A NaN stays
    in all later results of a recursive filter.

    G. E. Blelloch, "Prefix Sums and Their Applications", 1990, section 1.4.1.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([8.0, 0.0, 0.0, 8.0], chunks=2)
    >>> dc.lfilter([0.5], [1, -0.5], x).compute()
    array([4. , 2. , 1. , 4.5])
    """
    x, before = asanyarray(x), None if zi is None else asanyarray(zi)
    numerator, denominator = (_coefficients("lfilter", *c, 1) for c in (("b", b), ("a", a)))
    if not denominator[0]:
        raise ValueError("lfilter needs a[0] other than 0")
    along, dtype = _checked("lfilter", x, axis, method, before, numerator, denominator)
    sections = ((_as_tuple(numerator, dtype), _as_tuple(denominator, dtype)),)
    of = Filter(sections, dtype, along, is_cascade=False)
    if before is not None:
        shape = (*x.shape[:along], sum(of.orders), *x.shape[along + 1 :])
        before = _broadcast("lfilter", before, x, shape)
        before = _in_chunks(moveaxis(before, along, 0), x, of)
    y, after = filtered(of, x, before, "lfilter", method == "sequential")
    return y if after is None else (y, as_dtype(moveaxis(after, 0, along), dtype))


@public("blockwise", dask=False)
def sosfilt(
    sos: Any, x: Any, axis: int = -1, zi: Any = None, *, method: str = "reduce-then-scan"
) -> da.Array | tuple[da.Array, da.Array]:
    """Filter lines by a cascade of sections of second order, as ``scipy.signal.sosfilt``.

    Parameters
    ----------
    sos : array_like
        A row for each section: three coefficients of its numerator and three of its denominator,
        the first of them 1; in memory.
    x, axis, method
        As for :func:`lfilter`.
    zi : dask.array.Array or array_like, optional
        The delays before each line: of shape ``(len(sos), ..., 2, ...)``, where ``..., 2, ...`` is
        the shape of `x` with 2 along `axis`, or of length 1 along others.

    Returns
    -------
    dask.array.Array, or a tuple of two of them
        As for :func:`lfilter`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`lfilter`.

    Notes
    -----
    As for :func:`lfilter`. Sections lose far fewer digits than one filter of a high order.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([8.0, 0.0, 0.0, 8.0], chunks=2)
    >>> dc.sosfilt([[0.5, 0, 0, 1, -0.5, 0]], x).compute()
    array([4. , 2. , 1. , 4.5])
    """
    x, before = asanyarray(x), None if zi is None else asanyarray(zi)
    rows = _coefficients("sosfilt", "sos", sos, 2)
    if rows.shape[1] != 6 or (rows[:, 3] != 1).any():
        raise ValueError(
            f"sosfilt needs rows of 6 numbers with 1 for the fourth, got sos of shape {rows.shape}"
        )
    along, dtype = _checked("sosfilt", x, axis, method, before, rows)
    sections = tuple((_as_tuple(row[:3], dtype), _as_tuple(row[3:], dtype)) for row in rows)
    of = Filter(sections, dtype, along, is_cascade=True)
    others = (*x.shape[:along], *x.shape[along + 1 :])
    if before is not None:
        shape = (len(rows), *x.shape[:along], 2, *x.shape[along + 1 :])
        before = moveaxis(_broadcast("sosfilt", before, x, shape), along + 1, 1)
        whole = rechunk(before, ((len(rows),), (2,), *before.chunks[2:]))
        before = _in_chunks(reshaped(whole, (2 * len(rows), *others)), x, of)
    y, after = filtered(of, x, before, "sosfilt", method == "sequential")
    if after is None:
        return y
    after = reshaped(after, (len(rows), 2, *others))
    return y, as_dtype(moveaxis(after, 1, along + 1), dtype)


def _coefficients(name: str, argument: str, values: Any, ndim: int) -> np.ndarray[Any, Any]:
    if is_dask_collection(values):
        raise TypeError(f"{name} takes {argument} in memory, not lazy; compute it first")
    array = np.array(values, ndmin=ndim)
    if array.ndim != ndim or not array.size or array.dtype.kind not in "biufc":
        axes = "one axis" if ndim == 1 else "two axes"
        raise ValueError(f"{name} needs numbers along {axes} for {argument}, got {values!r}")
    return array


def _as_tuple(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> tuple[Any, ...]:
    return tuple(values.astype(dtype).tolist())


def _checked(
    name: str, x: Array, axis: int, method: str, *others: Any
) -> tuple[int, np.dtype[Any]]:
    """Return the axis of the lines, not negative, and the dtype in which they are filtered."""
    if method not in _METHODS:
        raise ValueError(f"method must be one of {_METHODS}, got {method!r}")
    require_unmasked(name, "x", x)
    chunks.kind(x._meta)
    dtype = np.result_type(x.dtype, *(other.dtype for other in others if other is not None))
    dtype = np.dtype("f8") if dtype.kind in "biu" else dtype.newbyteorder("=")
    if dtype.char not in "fdFD":
        raise TypeError(
            f"{name} filters in float32, float64, complex64 and complex128, not in {dtype}"
        )
    return validate_axis(axis, x.ndim), dtype


def _broadcast(name: str, zi: Array, x: Array, shape: tuple[int, ...]) -> Array:
    if has_unknown_size(x):
        raise ValueError(
            f"{name} needs known chunk sizes beside zi; x.compute_chunk_sizes() finds them"
        )
    sides = zip(zi.shape, shape, strict=False)
    if zi.ndim != len(shape) or any(n not in (1, to) for n, to in sides):
        raise ValueError(f"{name} needs zi of shape {shape}, got {zi.shape}")
    return broadcast_to(zi, shape)


def _in_chunks(delays: Array, x: Array, of: Filter) -> Array:
    """Return delays in the chunks of `x` along its other axes, and in one along their own."""
    others = x.chunks[: of.axis] + x.chunks[of.axis + 1 :]
    return as_dtype(rechunk(delays, ((sum(of.orders),), *others)), np.result_type(of.dtype, "f8"))
