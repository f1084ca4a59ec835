"""Covariances and correlations of many variables: cov, corrcoef."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array, asanyarray, concatenate
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.algebra.merges import choose
from dask_coop.algebra.paired import Products
from dask_coop.api.arguments import (
    as_dtype,
    as_integer,
    has_unknown_size,
    in_shape_of,
    rechunk,
    require_known_sizes,
    require_one_kind,
)
from dask_coop.api.call.public import public
from dask_coop.api.paired.average import require_unmasked
from dask_coop.errors import Refused
from dask_coop.graph import matmul


@public("blockwise")
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> da.Array:
    """Estimate a covariance matrix, as `numpy.cov` does.

    Parameters
    ----------
    m : dask.array.Array or array_like
        Bool, integers, floats or complex numbers of one or two axes, in NumPy or CuPy chunks, any
        along either axis: a row for each variable, a column for each sample.
    y : dask.array.Array or array_like, optional
        Further variables, as `m` has them.
    rowvar : bool
        With False, variables are in columns and samples in rows.
    bias : bool
        Whether the divisor is the number of samples n; by default it is ``n - 1``.
    ddof : int, optional
        Makes the divisor ``n - ddof``, whatever `bias` is.
    fweights : dask.array.Array or array_like, optional
        How often each sample was seen: integers from 0 on.
    aweights : dask.array.Array or array_like, optional
        How reliable each sample is: numbers from 0 on.
    dtype : dtype, optional
        A floating or complex dtype for the result, of up to 64 bits a number; by default that of
        `m` and `y`, and at least float64.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `m`'s, of shape ``(n, n)`` for n variables, and without
        axes for one. NaN or infinite where the divisor is not positive.

    Raises
    ------
    TypeError
        If elements are neither numbers nor bool, chunks are masked or neither NumPy's nor CuPy's,
        `dtype` is another, or `ddof` or `fweights` are no integers.
    ValueError
        If an array has more axes, shapes do not match, or weights in memory are negative; lazy
        negative ones make NaN.

    Notes
    -----
    The array is read once. Deviations from the means of each chunk, on a GPU from numbers near the
    means, are multiplied in float64 (complex128) by one product of matrices, and combined as in
    T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for Computing the Sample Variance", The
    American Statistician 37 (1983), with means that carry their rounding errors. With w the product
    of the weights, the divisor is ``sum(w) - ddof * sum(w * aweights) / sum(w)``, NumPy's.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]], chunks=2)
    >>> dc.cov(x).compute()
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    degrees = int(not bias) if ddof is None else as_integer("cov", "ddof", ddof)
    x, result = _variables("cov", ("m", m), y, rowvar, dtype)
    weights = _weights(x, fweights, aweights)
    finalize = partial(_covariance, degrees, "aweights" in weights)
    return _squeezed(matmul.deviations("cov", x, weights, finalize, None, result))


@public("blockwise")
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> da.Array:
    """Return Pearson correlation coefficients, as `numpy.corrcoef` does.

    Parameters
    ----------
    x, y, rowvar, dtype
        As `m`, `y`, `rowvar` and `dtype` of :func:`cov`.

    Returns
    -------
    dask.array.Array
        As for :func:`cov`: the covariances, divided by the standard deviations of both variables;
        NaN for variables that do not vary. Both components are kept between -1 and 1.

    Raises
    ------
    TypeError, ValueError
        As for :func:`cov`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]], chunks=2)
    >>> dc.corrcoef(x).compute()
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    variables, result = _variables("corrcoef", ("x", x), y, rowvar, dtype)
    finalize = partial(_scaled, result)
    return _squeezed(matmul.deviations("corrcoef", variables, {}, _sums, finalize, result))


def _variables(
    name: str, m: tuple[str, Any], y: Any, rowvar: bool, dtype: Any
) -> tuple[Array, np.dtype[Any]]:
    """Return a matrix with a row for each variable, and the dtype of the result.

    `m` is the name of the first argument, and its value.
    """
    arguments = dict([m] if y is None else [m, ("y", y)])
    arrays = [asanyarray(x) for x in arguments.values()]
    for argument, x in zip(arguments, arrays, strict=True):
        require_unmasked(name, argument, x)
        chunks.kind(x._meta)
        if x.dtype.kind not in "biufc" or x.dtype.itemsize > 8 * (1 + (x.dtype.kind == "c")):
            raise Refused(f"{name} takes bool, integers, floats and complex numbers, not {x.dtype}")
        if x.ndim > 2:
            raise ValueError(f"{name} takes arrays of one or two axes, got shape {x.shape}")
    result = np.dtype(np.result_type("f8", *(x.dtype for x in arrays)) if dtype is None else dtype)
    if result.kind not in "fc" or result.itemsize > 16 or result == np.dtype("g"):
        # Not `Refused`: Dask's function would give another dtype.
        raise TypeError(
            f"{name} does not give dtype={result}; it gives float16 to float64, complex64 and "
            "complex128"
        )
    first, *others = (
        x.reshape(1, 1) if x.ndim == 0 else x[np.newaxis] if x.ndim == 1 else x if rowvar else x.T
        for x in arrays
    )
    for other in others:
        require_one_kind(m[0], first, "y", other)
        if first.shape[1] != other.shape[1] and not np.isnan(first.shape[1] + other.shape[1]):
            raise ValueError(
                f"{m[0]} and y need as many samples, got {first.shape[1]} and {other.shape[1]}"
            )
        require_known_sizes(f"{name} with y", first, other)
        if first.chunks[1] != other.chunks[1]:
            other = rechunk(other, (other.chunks[0], first.chunks[1]))
        common = np.result_type(first.dtype, other.dtype)
        first = concatenate([as_dtype(first, common), as_dtype(other, common)])
    return first, result.newbyteorder("=")


def _weights(x: Array, fweights: Any, aweights: Any) -> dict[str, Array]:
    """Return weights as arrays in the chunks of samples."""
    weights = {}
    for name, values in (("fweights", fweights), ("aweights", aweights)):
        if values is None:
            continue
        known = not is_dask_collection(values)
        w = asanyarray(values)
        require_unmasked("cov", name, w)
        if w.ndim != 1 or (w.shape[0] != x.shape[1] and not np.isnan(w.shape[0] + x.shape[1])):
            raise ValueError(
                f"{name} needs a number for each of {x.shape[1]} samples, got shape {w.shape}"
            )
        if known and name == "fweights" and not np.all(values == np.around(values)):
            raise TypeError("fweights must be integer")
        if w.dtype.kind not in ("biu" if name == "fweights" and not known else "biuf"):
            raise TypeError(f"{name} of cov must be {_KINDS[name]}, got dtype {w.dtype}")
        if known and np.any(np.less(values, 0)):
            raise ValueError(f"{name} cannot be negative")
        if has_unknown_size(x) or has_unknown_size(w):
            w = in_shape_of(name, w, x[0])
        weights[name] = w if w.chunks[0] == x.chunks[1] else rechunk(w, (x.chunks[1],))
    return weights


#: What weights may be, in messages.
_KINDS = {"fweights": "integers", "aweights": "real numbers"}


def _squeezed(square: Array) -> Array:
    return square[0, 0] if square.shape == (1, 1) else square


# Inside tasks.


def _covariance(ddof: int, reliable: bool, state: Products) -> Any:
    with np.errstate(all="ignore"):
        lost = state.squares / state.weight if reliable and ddof else 1.0
        degrees = state.weight - ddof * lost
        return state.product / choose(degrees > 0, degrees, 0.0)


def _sums(state: Products) -> Any:
    return state.product


def _scaled(dtype: np.dtype[Any], block: Any, rows: Any, columns: Any) -> Any:
    """Return correlations from sums of products, and the blocks on the diagonal beside them."""
    with np.errstate(all="ignore"):
        scale = [np.sqrt(np.diagonal(square).real) for square in (rows, columns)]
        block = block / scale[0][:, np.newaxis] / scale[1]
        if block.dtype.kind == "c":
            parts = np.clip(block.real, -1, 1), np.clip(block.imag, -1, 1)
            block = parts[0] + 1j * parts[1]
        else:
            block = np.clip(block, -1, 1)
    return block.astype(dtype)
