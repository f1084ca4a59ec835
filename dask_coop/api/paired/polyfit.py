"""Polynomials fitted along an axis in several chunks: polyfit."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import Any, Literal

import numpy as np
from dask.array.core import Array, asanyarray, from_array, map_blocks
from dask.array.numpy_compat import moveaxis
from dask.array.utils import validate_axis
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.api import least_squares
from dask_coop.api.arguments import as_dtype, as_integer, broadcastable, placed_along, rechunk
from dask_coop.api.call.public import public
from dask_coop.api.paired.average import require_unmasked
from dask_coop.chunks.dtypes import casts, declared_by


@public("blockwise", dask=False)
def polyfit(
    x: Any,
    y: Any,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Any = None,
    cov: bool | Literal["unscaled"] = False,
    *,
    axis: int = 0,
    nan_policy: Literal["propagate", "omit"] = "propagate",
) -> Any:
    """Fit polynomials by least squares along an axis, as `numpy.polyfit`.

    Parameters
    ----------
    x : array_like
        The positions of the samples, in memory.
    y : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks of any lengths: as many along `axis` as
        `x` has. Each line along it is fitted by itself.
    deg : int
        The degree.
    rcond : float, optional
        Singular values below this share of the largest are taken for 0; by default ``len(x)`` times
        the precision of `x`.
    full : bool
        Whether to return diagnostics, too.
    w : array_like, optional
        The weight of each residual, before it is squared; in memory.
    cov : bool or "unscaled"
        Whether to return the covariance matrix of the coefficients, too: scaled by the residuals,
        or for `w` that are one over the standard deviations of samples.
    axis : int
        The axis to fit along.
    nan_policy : {"propagate", "omit"}
        Whether a line with a NaN has NaN for coefficients, or NaN is left out.

    Returns
    -------
    dask.array.Array, or a tuple
        Coefficients, that of the highest power first along the first axis, and then the other axes
        of `y`; lazy, in float64. With `full` also the lazy sums of squared residuals, and NumPy's
        rank, singular values and `rcond` for all samples. With `cov` also the lazy matrix, with the
        other axes of `y` behind its own two, of length 1 if it is not scaled.

    Raises
    ------
    TypeError
        If `x` or `w` is lazy, or `y` is masked or of other elements.
    AxisError, ValueError
        If `y` has no such axis, lengths do not match, `deg` is negative, `nan_policy` is none of
        those above or is "omit" together with `cov`, or there are too few samples to scale `cov`.

    Notes
    -----
    Positions are moved to between -1 and 1 before they are fitted, and coefficients back, by exact
    fractions; so positions far from zero lose fewer digits than by NumPy's powers of `x`. Each
    chunk becomes the triangle of its QR decomposition, and triangles are combined by others: J.
    Demmel, L. Grigori, M. Hoemmen and J. Langou, "Communication-optimal parallel and sequential QR
    and LU factorizations", 2012.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> y = da.from_array([1.0, 3.0, 5.0, 7.0], chunks=2)
    >>> dc.polyfit([0, 1, 2, 3], y, 1).compute().round(12)
    array([2., 1.])
    """
    order = as_integer("polyfit", "deg", deg) + 1
    at, weights = (_in_memory(name, values) for name, values in (("x", x), ("w", w)))
    lines = asanyarray(y)
    require_unmasked("polyfit", "y", lines)
    lines = broadcastable(lines)
    lines = as_dtype(lines, "u1") if lines.dtype.kind == "b" else lines
    along = validate_axis(axis, lines.ndim)
    if order < 1:
        raise ValueError(f"polyfit takes a deg from 0 on, got {deg}")
    if nan_policy not in ("propagate", "omit"):
        raise ValueError(f"nan_policy must be 'propagate' or 'omit', got {nan_policy!r}")
    if cov and nan_policy == "omit":
        raise ValueError("polyfit gives cov of lines without NaN, not with nan_policy='omit'")
    n = len(at)
    if not n or lines.shape[along] != n or (weights is not None and len(weights) != n):
        raise ValueError(
            f"polyfit needs samples, and as many in x, in w and along axis {axis} of y, got {n} in "
            f"x and y of shape {lines.shape}"
        )
    if cov and cov != "unscaled" and n <= order:
        raise ValueError(f"polyfit needs more than {order} samples to scale cov, got {n}")
    limit = n * np.finfo(at.dtype).eps if rcond is None else rcond
    matrix, back = _conditioned(at, order)
    if weights is not None:
        matrix = matrix * weights[:, np.newaxis]
        beside = from_array(weights, chunks=(lines.chunks[along],))
        lines = map_blocks(
            _weighed,
            lines,
            placed_along(beside, (along,), lines.ndim),
            **declared_by(lines),
            dtype="f8",
            meta=chunks.zeros_like(lines._meta, np.dtype("f8")),
        )
    lines = moveaxis(lines, along, 0)
    lines = rechunk(lines, (tuple(m for m in lines.chunks[0] if m), *lines.chunks[1:]))
    least = n if nan_policy == "propagate" else 0
    scaled, residuals = least_squares.fit(matrix, lines, limit, least)
    coefficients = map_blocks(_product, back, scaled, dtype="f8", meta=scaled._meta)
    if full:
        powers = np.vander(at, order) * (1 if weights is None else weights[:, np.newaxis])
        values = np.linalg.svd(powers / np.sqrt((powers**2).sum(0)), compute_uv=False)
        return coefficients, residuals, int((values > limit * values[0]).sum()), values, limit
    if cov:
        inverse = back @ np.linalg.inv(np.linalg.qr(matrix, mode="r"))
        base = inverse @ inverse.T
        if cov == "unscaled":
            return coefficients, from_array(base[(..., *(np.newaxis,) * (lines.ndim - 1))])
        return coefficients, _outer(base, residuals / (n - order))
    return coefficients


def _in_memory(name: str, values: Any) -> Any:
    """Return positions or weights as floats, or None."""
    if values is None:
        return None
    if is_dask_collection(values):
        raise TypeError(f"polyfit takes {name} in memory, not lazy; compute it first")
    array = np.asarray(values) + 0.0
    if array.ndim != 1 or array.dtype.kind != "f":
        raise TypeError(f"polyfit takes real numbers along one axis for {name}, got {array.dtype}")
    return array if array.dtype.itemsize == 4 else array.astype("f8")


def _conditioned(x: Any, order: int) -> tuple[Any, Any]:
    """Return a matrix with a column for each power, and the one that turns back its coefficients.

    The powers are of positions between -1 and 1, with the lowest first.
    """
    low, high = float(x.min()), float(x.max())
    middle, half = (low / 2 + high / 2, high / 2 - low / 2)
    if not (half > 0 and np.isfinite(half)) or len(np.unique(x)) < order:
        # NumPy's powers, for its choice among many polynomials.
        middle, half = 0.0, 1.0
    matrix = np.vander((x.astype("f8") - middle) / half, order, increasing=True)
    scale = np.sqrt((matrix**2).sum(0))
    scale[scale == 0] = 1
    back = np.zeros((order, order))
    if np.isfinite(half) and np.isfinite(middle):
        by, width = -Fraction(middle), Fraction(half)
        for k in range(order):
            for j in range(k + 1):
                back[order - 1 - j, k] = comb(k, j) * by ** (k - j) / width**k
    return matrix / scale, back / scale


def _outer(base: Any, factor: Array) -> Array:
    """Return a matrix times each of some factors, whose axes are behind its own."""
    placed = factor[np.newaxis, np.newaxis]
    sizes = ((len(base),), (len(base),), *factor.chunks)
    return map_blocks(_times, base, placed, dtype="f8", meta=placed._meta, chunks=sizes)


# Inside tasks.


@casts
def _weighed(y: Any, weights: Any) -> Any:
    return y.astype("f8") * chunks.asarray(weights, chunks.kind(y))


def _product(matrix: Any, scaled: Any) -> Any:
    return np.tensordot(chunks.asarray(matrix, chunks.kind(scaled)), scaled, 1)


def _times(base: Any, factor: Any) -> Any:
    beside = base.reshape(*base.shape, *(1,) * (factor.ndim - 2))
    return chunks.asarray(beside, chunks.kind(factor)) * factor
