"""Central moments of any order: moment."""

from __future__ import annotations

from functools import partial
from numbers import Integral
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray

from dask_coop.algebra.central_moments import moments_up_to
from dask_coop.algebra.monoids import COUNT_NONZERO, State
from dask_coop.api.arguments import Axis, SplitEvery, mean_dtype, passes_to_dask, reduce_array
from dask_coop.api.planning import takes_expressions
from dask_coop.api.public import Engine, takes_engine
from dask_coop.errors import Refused


@takes_engine
@passes_to_dask
@takes_expressions
def moment(
    a: Any,
    order: int,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Central moment of array elements over the given axes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    order : int
        The power of the deviations from the mean. The moment of order 0 is 1 and that of order 1
        is 0, both in float64.
    axis, keepdims, split_every, out
        As for :func:`sum`.
    dtype : dtype, optional
        The dtype of the result, a float. By default that of `a`, and float64 for bool and integers.
    ddof : float
        What to take off the number of elements in the divisor, ``n - ddof``.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `a`'s; NaN where ``n - ddof`` is negative.

    Raises
    ------
    TypeError
        As for :func:`var`.
    AxisError, ValueError
        As for :func:`sum`, and for an `order` that is negative or no integer.

    Notes
    -----
    One read: sums of powers about the mean of every chunk are combined in float64 by Pebay's
    formulas (2008).

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.moment(da.arange(5, chunks=2), 4))
    6.8
    """
    if not isinstance(order, Integral) or order < 0:
        raise ValueError("Order must be an integer >= 0")
    x = asanyarray(a)
    result = np.dtype(mean_dtype(x.dtype) if dtype is None else dtype).newbyteorder("=")
    if result.kind != "f" or result.itemsize > 8:
        raise Refused(f"moment does not give dtype={result}; it gives float16 to float64")
    if order < 2:
        monoid, finalize, result = COUNT_NONZERO, partial(_constant, 1 - order), np.dtype("f8")
    else:
        monoid, finalize = moments_up_to(int(order)), partial(_last, float(ddof))
    return reduce_array(
        monoid, "moment", finalize, x, axis, keepdims, split_every, out, result=result
    )


# From the last state to the result, inside the task.


def _constant(value: float, state: State) -> Any:
    return np.full_like(state[0], value, dtype="f8")


def _last(ddof: float, state: State) -> Any:
    count, power = state[0], state[-1]
    degrees = np.where(count < ddof, np.nan, count - ddof)
    with np.errstate(invalid="ignore", divide="ignore"):
        return power / degrees
