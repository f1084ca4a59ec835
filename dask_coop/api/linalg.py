"""Transposition, and products of matrices over semirings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array import routines
from dask.array.blockwise import blockwise
from dask.array.core import asanyarray, unify_chunks
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.semirings import SEMIRINGS
from dask_coop.algebra.strategies import AUTO, TRANSPOSE
from dask_coop.api.arguments import rechunk, require_one_kind
from dask_coop.api.call.public import public
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import config
from dask_coop.graph import matmul as graph_matmul
from dask_coop.graph.matmul import Labels


@public("blockwise")
def transpose(a: Any, axes: Sequence[int] | None = None, *, contiguous: bool = False) -> da.Array:
    """Permute the axes of an array.

    Parameters
    ----------
    a : dask.array.Array or array_like
        An array of any dtype, in NumPy or CuPy chunks.
    axes : sequence of int, optional
        A permutation of the axes; ``result.shape[i] == a.shape[axes[i]]``. By default they are
        reversed.
    contiguous : bool
        Whether to copy chunks to C order; GPUs do so by a kernel at the speed of the memory. By
        default chunks are views, which cost nothing but leave strided reads to the next operation.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s.

    Raises
    ------
    TypeError
        If `axes` holds anything but integers, or `contiguous` is true and chunks are neither
        NumPy's nor CuPy's.
    ValueError
        If `axes` is not a permutation of the axes of `a`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.transpose(da.ones((2, 3, 4), chunks=2), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = asanyarray(a)
    order = _find_order(axes, x.ndim)
    options = {}
    if contiguous:
        strategy = config.get("coop.strategy.transpose", AUTO, *TRANSPOSE)
        options = {} if strategy == AUTO else {"strategy": strategy}
        chunks.kind(x._meta)
        chunks.refuse_masked("transpose", x._meta)
    elif not declared_by(x):
        return routines.transpose(x, order)
    return blockwise(
        partial(_copied if contiguous else _viewed, order=order, **options),
        order,
        x,
        tuple(range(x.ndim)),
        **declared_by(x),
        dtype=x.dtype,
        meta=x._meta.transpose(order),
        name=f"transpose-{tokenize(x, order, contiguous, *options.values())}",
    )


def _find_order(axes: Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(ndim))[::-1]
    order = tuple(axes)
    if not all(isinstance(axis, int | np.integer) for axis in order):
        raise TypeError(f"axes must be integers, got {axes!r}")
    order = tuple(int(axis) + ndim if axis < 0 else int(axis) for axis in order)
    if sorted(order) != list(range(ndim)):
        raise ValueError(f"axes must be a permutation of the array's {ndim} axes, got {axes!r}")
    return order


@public("blockwise")
def matmul(
    a: Any, b: Any, *, semiring: str = "plus_times", split_every: int | None = None
) -> da.Array:
    """Matrix product of two arrays, or of stacks of matrices, over a semiring.

    Element ``(i, j)`` is the sum over ``l`` of ``a[i, l]`` times ``b[l, j]``, where the semiring
    says what sum and times are:

    ============== ======= ======= ==========================================================
    semiring       sum     times   elements: result
    ============== ======= ======= ==========================================================
    ``plus_times`` add     times   coefficients: the ordinary product
    ``min_plus``   minimum add     lengths of edges: shortest paths of two edges
    ``max_plus``   maximum add     durations: longest paths
    ``max_min``    maximum minimum capacities: widest paths
    ``or_and``     or      and     whether there are edges: whether there are paths
    ============== ======= ======= ==========================================================

    Parameters
    ----------
    a, b : dask.array.Array or array_like
        Arrays of shapes ``(..., m, k)`` and ``(..., k, n)``, in NumPy or CuPy chunks; vectors and
        leading axes are treated as in `numpy.matmul`. Bool, integers and floats; complex numbers
        only with ``plus_times``.
    semiring : {"plus_times", "min_plus", "max_plus", "max_min", "or_and"}
    split_every : int, optional
        How many products of blocks one task adds; 4 by default.

    Returns
    -------
    dask.array.Array
        Lazy, of shape ``(..., m, n)`` and the common dtype of `a` and `b`, or bool for ``or_and``.
        Integers wrap and NaN propagates as in NumPy's ufuncs. If ``k == 0`` the result is the sum
        of no element: 0, False, or the greatest or least value of the dtype.

    Raises
    ------
    TypeError
        If the semiring is not defined for the dtypes, or chunks are neither NumPy's nor CuPy's, or
        differ in kind.
    ValueError
        If an operand has no axis, shapes do not match or are unknown, the semiring is none of those
        above, or `split_every` is less than 2.

    Notes
    -----
    A product takes ``m * n * k`` steps. On a GPU, the GPU's library computes ``plus_times`` of
    floats, and a kernel of 128 x 128 tiles all others.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> import dask_coop as dc
    >>> hops = da.from_array(np.array([[0, 3, np.inf], [3, 0, 1], [np.inf, 1, 0]]))
    >>> dc.matmul(hops, hops, semiring="min_plus").compute()
    array([[0., 3., 4.],
           [3., 0., 1.],
           [4., 1., 0.]])
    """
    x, y = asanyarray(a), asanyarray(b)
    if semiring not in SEMIRINGS:
        raise ValueError(f"semiring must be one of {tuple(SEMIRINGS)}, got {semiring!r}")
    ring = SEMIRINGS[semiring]
    fan_in = graph_matmul.FAN_IN if split_every is None else split_every
    if fan_in < 2:
        raise ValueError(f"split_every must be at least 2, got {split_every}")
    require_one_kind("a", x, "b", y)
    for operand in (x, y):
        chunks.refuse_masked("matmul", operand._meta)
    labels = _find_labels(x, y)
    whole = _whole(x), _whole(y)
    sizes, cut = unify_chunks(whole[0], labels[0], whole[1], labels[1], warn=False)
    x, y = (rechunk(before, after.chunks) for before, after in zip(whole, cut, strict=True))
    dtype = ring.dtype(x.dtype, y.dtype)
    return graph_matmul.matmul(semiring, x, y, labels, sizes, dtype, fan_in)


def _find_labels(x: da.Array, y: da.Array) -> tuple[Labels, Labels, Labels]:
    """Check that shapes match, and return labels of the axes of both operands and their product."""
    for name, operand in (("a", x), ("b", y)):
        if operand.ndim == 0:
            raise ValueError(f"{name} must have at least one axis, got a scalar")
        if any(math.isnan(n) for n in operand.shape):
            raise ValueError(
                f"{name} has chunks of unknown sizes: {operand.shape}; call compute_chunk_sizes()"
            )
    k = y.shape[-2] if y.ndim > 1 else y.shape[0]
    if x.shape[-1] != k:
        raise ValueError(
            f"a and b do not fit: shapes {x.shape} and {y.shape} have inner lengths "
            f"{x.shape[-1]} and {k}"
        )
    try:
        np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        raise ValueError(
            f"the leading axes of a and b do not broadcast: {x.shape} and {y.shape}"
        ) from None
    # Leading axes are numbered from the right.
    leading = [tuple(range(max(0, operand.ndim - 2)))[::-1] for operand in (x, y)]
    rows, columns = ("m",) if x.ndim > 1 else (), ("n",) if y.ndim > 1 else ()
    batch = max(leading, key=len)
    return (*leading[0], *rows, "k"), (*leading[1], "k", *columns), (*batch, *rows, *columns)


def _whole(x: da.Array) -> da.Array:
    """Return `x` without chunks of length zero, which Dask cannot broadcast or rechunk."""
    sizes = tuple(tuple(n for n in of_axis if n) or (0,) for of_axis in x.chunks)
    return x if sizes == x.chunks else rechunk(x, sizes)


@casts
def _viewed(x: Any, order: tuple[int, ...]) -> Any:
    return x.transpose(order)


@casts
def _copied(x: Any, order: tuple[int, ...], strategy: str = AUTO) -> Any:
    return chunks.backend_of(x).transpose(x, order, strategy)
