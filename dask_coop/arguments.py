"""What every reduction does with its arguments, and the call of the spine."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import handle_out
from dask.array.utils import validate_axis

from dask_coop import binned, monoids, spine
from dask_coop.monoids import Monoid, State

Axis = int | tuple[int, ...] | None
SplitEvery = int | dict[int, int] | None


def reduce_array(
    monoid: Monoid,
    name: str,
    finalize: spine.Finalize,
    x: da.Array,
    axis: Axis,
    keepdims: bool,
    split_every: SplitEvery,
    out: da.Array | None,
    *,
    dtype: Any = None,
    result: Any = None,
    reproducible: bool = False,
) -> da.Array:
    """Reduce `x` over `axis` for the public function `name`.

    Parameters
    ----------
    monoid : Monoid
    name : str
        What messages and keys call the reduction.
    finalize : callable
        Makes the result of the last state.
    x : dask.array.Array
    axis, keepdims, split_every, out
        As the public function got them.
    dtype : dtype, optional
        The kind of number that elements are reduced as; by default that of the elements.
    result : dtype, optional
        The dtype of the result; by default `dtype`.
    reproducible : bool
        Whether sums have the same bits for every order of the elements.
    """
    op = monoids.bind(monoid, x.dtype, np.dtype(x.dtype if dtype is None else dtype), name)
    axes = find_axes(axis, x.ndim)
    if reproducible:
        op = monoids.reproducible(op)
        count = math.prod(x.shape[d] for d in axes)
        if op.monoid is not monoid and count > binned.LIMIT:
            raise ValueError(
                f"{name} with reproducible=True takes at most 2**39 elements at a time, got {count}"
            )
    outputs = {name: (finalize, op.output if result is None else np.dtype(result))}
    (lazy,) = spine.reduction(op, x, axes, keepdims, split_every, outputs)
    return handle_out(out, lazy)


def find_axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return the axes that `axis` names, sorted and counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    axes = validate_axis(axis if isinstance(axis, tuple) else (axis,), ndim)
    if len(set(axes)) != len(axes):
        raise ValueError(f"duplicate value in 'axis': {axis}")
    return tuple(sorted(axes))


def require_elements(name: str, x: da.Array, axis: Axis) -> None:
    """Refuse arrays that are known to have no element along `axis`."""
    axes = find_axes(axis, x.ndim)
    if any(x.shape[d] == 0 for d in axes):
        raise ValueError(f"{no_identity(name)}: shape {x.shape}, axes {axes}")


def no_identity(name: str) -> str:
    """Return NumPy's words for the reduction of no element to an element."""
    return f"zero-size array to reduction operation {name} which has no identity"


def has_unknown_size(x: da.Array) -> bool:
    """Tell whether the sizes of some chunks are not known before they are computed."""
    return any(n != n for n in x.shape)


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a sum or product of elements of `dtype`."""
    return monoids.accumulator(dtype) if dtype.kind in "biu" else dtype


def mean_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the mean of elements of `dtype`."""
    return np.dtype("f8") if dtype.kind in "biu" else dtype


def only_field(state: State) -> Any:
    """Return the field of a state that has one: what most reductions end with."""
    return state[0]
