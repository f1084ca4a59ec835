"""Chunks that are NumPy arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_coop.bins import Bins
from dask_coop.monoids import MOMENTS, Operation, State

Array = np.ndarray[Any, Any]


def lift(op: Operation, x: Array, axes: tuple[int, ...]) -> State:
    """Reduce the chunk `x` over `axes` to a partial state."""
    x = np.asarray(x).astype(op.element, copy=False)
    if op.monoid is MOMENTS:
        return _moments(op, x, axes)
    count = np.int64(math.prod(x.shape[axis] for axis in axes))
    return tuple(
        count
        if field.role == "count"
        else field.ufunc.reduce(x, axes, dtype=dtype, initial=field.identity(dtype))
        for field, dtype in zip(op.monoid.fields, op.monoid.dtypes(op.element), strict=True)
    )


def _moments(op: Operation, x: Array, axes: tuple[int, ...]) -> State:
    nans = np.isnan(x) if x.dtype.kind == "f" else np.broadcast_to(np.False_, x.shape)
    valid = True if not nans.any() else ~nans
    count = np.broadcast_to(valid, x.shape).sum(axes, dtype="i8")
    some = np.maximum(count, 1)
    low, high, total = (
        field.ufunc.reduce(x, axes, dtype=dtype, initial=field.identity(dtype), where=valid)
        for field, dtype in zip(
            op.monoid.fields[2:5], op.monoid.dtypes(op.element)[2:5], strict=True
        )
    )
    with np.errstate(all="ignore"):
        mean = np.add.reduce(x, axes, dtype="f8", where=valid) / some
        deviation = np.subtract(x, np.expand_dims(mean, axes), dtype="f8")
        m2 = np.add.reduce(np.square(deviation), axes, where=valid)
    return count, nans.sum(axes, dtype="i8"), low, high, total, mean, m2


def scan(op: Operation, x: Array, axis: int, base: State | None) -> Array:
    """Return the inclusive scan of the chunk `x` along `axis`, from `base` on."""
    x = np.asarray(x).astype(op.element, copy=False)
    (field,) = op.monoid.fields
    (dtype,) = op.monoid.dtypes(op.element)
    result = field.ufunc.accumulate(x, axis, dtype=dtype)
    if base is not None:
        field.ufunc(np.expand_dims(base[0], axis), result, out=result)
    return result.astype(op.output, copy=False)


def histogram(op: Operation, x: Array, bins: Bins, weights: Array | None) -> State:
    """Count the samples of the chunk `x`, or sum their `weights`, by bin."""
    if x.dtype.kind == "b":
        x = x.view("u1")
    (dtype,) = op.monoid.dtypes(op.element)
    if weights is None:
        counts, _ = np.histogram(x, **bins.numpy_arguments())
        return (counts.astype(dtype, copy=False),)
    # numpy.histogram would take the weights through float64 and differences of running sums.
    x = x.astype(np.result_type(x, bins.edges), copy=False)
    inside = (x >= bins.edges[0]) & (x <= bins.edges[-1])
    index = np.searchsorted(bins.edges, x[inside], "right") - 1
    table = np.zeros(bins.n, dtype)
    np.add.at(table, np.minimum(index, bins.n - 1), weights[inside].astype(dtype, copy=False))
    return (table,)
