"""Moments that leave NaN out: nanmean, nanvar, nanstd."""

from __future__ import annotations

from typing import Any

import dask.array as da

from dask_coop.api.arguments import Axis, SplitEvery, passes_to_dask
from dask_coop.api.moments import average, spread
from dask_coop.api.planning import takes_expressions
from dask_coop.api.public import Engine, takes_engine


@takes_engine
@passes_to_dask
@takes_expressions
def nanmean(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> da.Array:
    """Arithmetic mean of the elements over the given axes that are not NaN.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, dtype, keepdims, split_every, out, where, reproducible
        As for :func:`mean`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        As for :func:`mean`; NaN where every element is.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`mean`.
    """
    return average("nanmean", a, axis, dtype, keepdims, split_every, out, where, reproducible)


@takes_engine
@passes_to_dask
@takes_expressions
def nanvar(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array:
    """Variance of the elements over the given axes that are not NaN.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, dtype, keepdims, ddof, split_every, out, where
        As for :func:`var`; elements that are NaN do not count in the divisor.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        As for :func:`var`; NaN where the divisor is not positive.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`var`.
    """
    return spread("nanvar", a, axis, dtype, keepdims, ddof, split_every, out, where)


@takes_engine
@passes_to_dask
@takes_expressions
def nanstd(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array:
    """Take the standard deviation of what is not NaN: the root of :func:`nanvar`.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, dtype, keepdims, ddof, split_every, out, where
        As for :func:`nanvar`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        As for :func:`nanvar`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`var`.
    """
    return spread("nanstd", a, axis, dtype, keepdims, ddof, split_every, out, where)
