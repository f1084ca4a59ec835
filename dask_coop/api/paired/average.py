"""Weighted statistics: average, and the weights of mean, var and std."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, handle_out
from dask.array.creation import full_like

from dask_coop import chunks
from dask_coop.algebra.monoids import MEAN, State
from dask_coop.algebra.operation import bind
from dask_coop.algebra.paired import WEIGHTED_MEAN, WEIGHTED_VAR
from dask_coop.algebra.statistics import quotient
from dask_coop.api.arguments import (
    Axis,
    ReductionArguments,
    SplitEvery,
    find_axes,
    has_unknown_size,
    in_shape_of,
    placed_along,
    reduce_statistic,
)
from dask_coop.api.call.public import Engine, public
from dask_coop.errors import Refused
from dask_coop.graph import reduce as graph_reduce


@public("reduction")
def average(
    a: Any,
    axis: Axis = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> Any:
    """Compute the weighted average over the given axes, as `numpy.average` does.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, keepdims, split_every
        As for :func:`sum`.
    weights : dask.array.Array or array_like, optional
        Of the shape of `a`, or of the lengths of `a` along `axis`, in its order. Without them, each
        element has weight 1.
    returned : bool
        Whether to return the sums of the weights, too.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array, or a tuple of two of them
        Lazy, with chunks of the kind of `a`'s, and the common dtype of `a` and `weights`, at least
        float64 for bool and integers. NaN where the weights add up to zero, which NumPy refuses.

    Raises
    ------
    TypeError
        As for :func:`sum`; if `weights` have another shape than `a` and there is no `axis`; if an
        array is masked and there are `weights`, or `returned` is true.
    AxisError, ValueError
        As for :func:`sum`, and if `weights` do not fit.

    Notes
    -----
    Both arrays are read once. Sums are in float64 (complex128) and rounded once.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, 2.0, 4.0], chunks=2)
    >>> float(dc.average(x, weights=[1, 1, 2]))
    2.75
    """
    x = asanyarray(a)
    arguments = ReductionArguments(axis, keepdims, split_every)
    if weights is not None or returned:
        require_unmasked("average", "a", x)
    if weights is not None:
        require_unmasked("average", "weights", asanyarray(weights))
        results = weighted("average", x, weights, arguments, None)
        return results if returned else results[0]
    if returned and has_unknown_size(x):
        ones = x.map_blocks(np.ones_like, dtype=x.dtype, meta=x._meta)
        return weighted("average", x, ones, arguments, None)
    means = reduce_statistic("mean", x, arguments, MEAN.output(x.dtype))
    if not returned:
        return means
    count = np.prod([x.shape[d] for d in find_axes(axis, x.ndim)], dtype="f8")
    return means, full_like(means, count)


def require_unmasked(name: str, argument: str, x: da.Array) -> None:
    """Raise TypeError if an argument of the public function `name` is masked.

    Not `Refused`: Dask's function would be called, and be wrong.
    """
    if chunks.is_masked(x._meta):
        raise TypeError(
            f"{name} does not take chunks of type numpy.ma.MaskedArray, as {argument} has them; "
            f"fill them, such as with da.ma.filled({argument}, value)"
        )


def weighted(
    name: str, x: da.Array, weights: Any, arguments: ReductionArguments, dtype: Any
) -> tuple[da.Array, ...]:
    """Return a statistic of weighted elements, and for "average" the sums of weights.

    Parameters
    ----------
    name : str
        The public function: "average", or "mean", "var" or "std", or one of these that leaves NaN
        out.
    x : dask.array.Array
    weights : dask.array.Array or array_like
    arguments : ReductionArguments
    dtype : dtype or None
        The dtype of results; by default the common one of `x` and `weights`.
    """
    if arguments.where is not True or arguments.reproducible:
        raise Refused(f"{name} takes no where= and no reproducible=True beside weights")
    w, axes = _weights(name, x, weights, arguments.axis), find_axes(arguments.axis, x.ndim)
    chunks.refuse_masked(name, x._meta)
    chunks.refuse_masked(name, w._meta)
    statistic, skipna = name.removeprefix("nan"), name.startswith("nan")
    row = WEIGHTED_MEAN if statistic in ("mean", "average") else WEIGHTED_VAR
    for element in (x.dtype, w.dtype):
        bind(row, element, element, name)
    common = np.result_type(x.dtype, w.dtype, *(["f8"] if x.dtype.kind in "biu" else []))
    common = np.dtype("f8") if common.kind in "biu" else common
    result = common if dtype is None else np.dtype(dtype)
    op = bind(row, common, result, name, skipna)
    finish = _mean if row is WEIGHTED_MEAN else partial(_spread, statistic == "std")
    outputs = {name: (finish, result)}
    if name == "average":
        outputs["average-weights"] = (_sum_of_weights, common)
    w = in_shape_of("weights", w, x)
    first, *others = graph_reduce.reduction(
        op, x, axes, arguments.keepdims, arguments.split_every, outputs, w
    )
    return handle_out(arguments.out, first), *others


def _weights(name: str, x: da.Array, weights: Any, axis: Axis) -> da.Array:
    """Return weights as an array that broadcasts to `x`, by the rules of `numpy.average`."""
    w = asanyarray(weights)
    if w.shape == x.shape or (w.ndim == x.ndim and any(n != n for n in w.shape + x.shape)):
        return w
    if axis is None:
        raise TypeError(
            f"{name} needs an axis if weights, of shape {w.shape}, have another shape than the "
            f"array, {x.shape}"
        )
    # Not sorted: weights have the axes in the caller's order.
    order = [d % x.ndim for d in (axis if isinstance(axis, tuple | list) else (axis,))]
    if w.shape != tuple(x.shape[d] for d in order):
        raise ValueError(
            f"weights of shape {w.shape} fit neither an array of shape {x.shape} nor its lengths "
            f"along axis {axis}"
        )
    w = w.transpose(tuple(np.argsort(order).tolist())) if len(order) > 1 else w
    return placed_along(w, order, x.ndim)


# From the last state to the result, inside the task.


def _mean(state: State) -> Any:
    return np.where(state[1] == 0, np.nan, quotient(state))


def _spread(root: bool, state: State) -> Any:
    # Rounding may leave less than zero where all elements are equal.
    variance = quotient((np.maximum(state[3], 0), state[0]))
    return np.sqrt(variance) if root else variance


def _sum_of_weights(state: State) -> Any:
    return state[1]
