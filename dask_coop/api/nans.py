"""Sums, products and extrema that leave NaN out: nansum, nanprod, nanmin, nanmax, nanargmin..."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray

from dask_coop.algebra.monoids import (
    ARGMAX,
    ARGMIN,
    MAX,
    MIN,
    NANMAX,
    NANMIN,
    PROD,
    SUM,
    Monoid,
    State,
)
from dask_coop.api.arguments import Axis, SplitEvery, fold_array, passes_to_dask
from dask_coop.api.extrema import extremal_index, extremum
from dask_coop.api.planning import takes_expressions
from dask_coop.api.public import Engine, takes_engine


@takes_engine
@passes_to_dask
@takes_expressions
def nansum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> da.Array:
    """Sum of the elements over the given axes that are not NaN; 0 where there is none.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, dtype, keepdims, split_every, out, initial, where, reproducible
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        As for :func:`sum`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`sum`.

    Examples
    --------
    >>> import numpy as np
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.nansum(da.from_array(np.array([1.0, np.nan, 3.0]), chunks=2)))
    4.0
    """
    return fold_array(
        SUM,
        "nansum",
        a,
        axis,
        dtype,
        keepdims,
        split_every,
        out,
        initial,
        where,
        skipna=True,
        reproducible=reproducible,
    )


@takes_engine
@passes_to_dask
@takes_expressions
def nanprod(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array:
    """Product of the elements over the given axes that are not NaN; 1 where there is none.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    axis, dtype, keepdims, split_every, out, initial, where
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        As for :func:`prod`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`sum`.
    """
    return fold_array(
        PROD, "nanprod", a, axis, dtype, keepdims, split_every, out, initial, where, skipna=True
    )


@takes_engine
@passes_to_dask
@takes_expressions
def nanmin(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array:
    """Minimum of the elements over the given axes that are not NaN.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers in lexicographic order, in NumPy or CuPy chunks.
    axis, keepdims, split_every, out, initial, where
        As for :func:`min`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        As for :func:`min`. Where every element is NaN it is NaN, with a RuntimeWarning when it is
        computed.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`min`.
    """
    return _extremum(NANMIN, MIN, "nanmin", a, axis, keepdims, split_every, out, initial, where)


@takes_engine
@passes_to_dask
@takes_expressions
def nanmax(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array:
    """Maximum of the elements over the given axes that are not NaN.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers in lexicographic order, in NumPy or CuPy chunks.
    axis, keepdims, split_every, out, initial, where
        As for :func:`min`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        As for :func:`nanmin`.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`min`.
    """
    return _extremum(NANMAX, MAX, "nanmax", a, axis, keepdims, split_every, out, initial, where)


@takes_engine
@passes_to_dask
@takes_expressions
def nanargmin(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Find the index of the first minimum along an axis, NaN left out.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers in lexicographic order, in NumPy or CuPy chunks.
    axis, keepdims, split_every, out
        As for :func:`argmin`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, int64, with chunks of the kind of `a`'s.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`argmin`; and a ValueError, when it is computed, where every element is NaN.
    """
    return extremal_index(ARGMIN, "nanargmin", a, axis, keepdims, split_every, out, skipna=True)


@takes_engine
@passes_to_dask
@takes_expressions
def nanargmax(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Find the index of the first maximum along an axis, NaN left out.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers in lexicographic order, in NumPy or CuPy chunks.
    axis, keepdims, split_every, out
        As for :func:`argmin`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, int64, with chunks of the kind of `a`'s.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`nanargmin`.
    """
    return extremal_index(ARGMAX, "nanargmax", a, axis, keepdims, split_every, out, skipna=True)


def _extremum(
    monoid: Monoid,
    plain: Monoid,
    name: str,
    a: Any,
    axis: Axis,
    keepdims: bool,
    split_every: SplitEvery,
    out: da.Array | None,
    initial: Any,
    where: Any,
) -> da.Array:
    """Find extrema by `monoid`, and by the `plain` one of what has no NaN."""
    x = asanyarray(a)
    given = axis, keepdims, split_every, out, initial, where
    if x.dtype.kind not in "fc":
        return extremum(plain, name, x, *given)
    return extremum(monoid, name, x, *given, finalize=_warn_of_nan)


def _warn_of_nan(state: State) -> Any:
    (value,) = state
    # Nobody waits for a GPU to be warned.
    if isinstance(value, np.ndarray | np.generic) and np.isnan(value).any():
        warnings.warn("All-NaN slice encountered", RuntimeWarning, stacklevel=1)
    return value
