"""Products of NumPy chunks over semirings."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.algebra.semirings import OR_AND, PLUS_TIMES, SEMIRINGS, Semiring
from dask_coop.algebra.strategies import AUTO

Array = np.ndarray[Any, Any]

#: Elements of a product that are summed at a time.
_PRODUCT_SIZE = 1 << 15


def matmul(a: Array, b: Array, semiring: str = "plus_times", strategy: str = AUTO) -> Array:
    """Return the product of two chunks over a semiring, shaped as np.matmul's."""
    ring = SEMIRINGS[semiring]
    dtype = ring.dtype(a.dtype, b.dtype)
    if ring is PLUS_TIMES:
        return np.asarray(np.matmul(a, b))
    rows, columns = a.ndim == 1, b.ndim == 1
    a, b = (x.astype(dtype, copy=False) for x in (a, b))
    a, b = a[np.newaxis, :] if rows else a, b[:, np.newaxis] if columns else b
    if ring is OR_AND:
        # The library counts in float32, which may round a count but not to zero.
        result = np.matmul(a, b, dtype="f4") > 0
    else:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        result = np.full((*batch, a.shape[-2], b.shape[-1]), ring.zero(dtype), dtype)
        a, b = (np.broadcast_to(x, batch + x.shape[-2:]) for x in (a, b))
        with np.errstate(over="ignore", invalid="ignore"):
            _add_products(ring, a, b, result)
    result = result[..., 0, :] if rows else result
    return np.asarray(result[..., 0] if columns else result)


def _add_products(ring: Semiring, a: Array, b: Array, total: Array) -> None:
    """Add products to `total`, in blocks that fit a cache."""
    if total.size > _PRODUCT_SIZE:
        axis = next(d for d, n in enumerate(total.shape) if n > 1)
        for half in (slice(total.shape[axis] // 2), slice(total.shape[axis] // 2, None)):
            at = (slice(None),) * axis + (half,)
            of_a = a if axis == total.ndim - 1 else a[at]
            of_b = b if axis == total.ndim - 2 else b[at]
            _add_products(ring, of_a, of_b, total[at])
        return
    product = np.empty_like(total)
    for i in range(a.shape[-1]):
        ring.times(a[..., :, i, np.newaxis], b[..., i, np.newaxis, :], out=product)
        ring.plus(total, product, out=total)
