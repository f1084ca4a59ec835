"""Extrema, and where they are, also of what is not NaN: min, max, ptp, argmin, argmax."""

from __future__ import annotations

import warnings
from functools import partial
from numbers import Integral
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray

from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import ARGMIN, MINMAX, NO_INDEX, State
from dask_coop.algebra.operation import bind
from dask_coop.algebra.statistics import STATISTICS
from dask_coop.api.arguments import (
    Axis,
    ReductionArguments,
    SplitEvery,
    find_axes,
    has_unknown_size,
    no_identity,
    reduce_array,
    refuse_mask,
    require_elements,
)
from dask_coop.api.call.public import Engine, like, named, public
from dask_coop.graph.reduce import Finalize


@public("reduction")
@named
def min(
    name: str,
    /,
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
    """Minimum of array elements over the given axes; NaN where there is one.

    A complex number with a part that is NaN is NaN; of several, the first is the minimum.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers in lexicographic order, in NumPy or CuPy chunks.
    axis, keepdims, split_every, out, initial, where
        As for :func:`sum`; `where` needs `initial`, unless `a` is a masked array.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, of `a`'s dtype, with chunks of the kind of `a`'s.

    Raises
    ------
    TypeError
        If elements of that dtype have no order.
    AxisError, ValueError
        As for :func:`sum`, and where there is no element to take the minimum of.
    """
    given = ReductionArguments(axis, keepdims, split_every, out, where, initial)
    return _extremum(name, name, asanyarray(a), given)


@like(min)
def max() -> None:
    """Maximum of array elements over the given axes; NaN where there is one.

    A complex number with a part that is NaN is NaN; of several, the first is the maximum.

    Raises
    ------
    TypeError
        If elements of that dtype have no order.
    AxisError, ValueError
        As for :func:`sum`, and where there is no element to take the maximum of.
    """


@like(min)
def nanmin() -> None:
    """Minimum of the elements over the given axes that are not NaN.

    Returns
    -------
    dask.array.Array
        As for :func:`min`. Where every element is NaN it is NaN, with a RuntimeWarning when it is
        computed.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nanmin(x))
    1.0
    """


@like(max)
def nanmax() -> None:
    """Maximum of the elements over the given axes that are not NaN.

    Returns
    -------
    dask.array.Array
        As for :func:`nanmin`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nanmax(x))
    3.0
    """


@public("reduction")
def ptp(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Range of array elements over the given axes, maximum minus minimum.

    It takes one read, and two of complex numbers.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Integers, floats or complex numbers in lexicographic order, in NumPy or CuPy chunks.
    axis, keepdims, split_every
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, of `a`'s dtype, in which it may wrap as NumPy's; NaN where there is one.

    Raises
    ------
    TypeError
        If elements of that dtype have no order or no difference.
    AxisError, ValueError
        As for :func:`min`.
    """
    x = asanyarray(a)
    if x.dtype.kind == "b":
        raise TypeError("ptp does not take dtype bool; it takes other numbers")
    bind(ARGMIN, x.dtype, x.dtype, "ptp")
    require_elements("ptp", x, axis)
    given = ReductionArguments(axis, keepdims, split_every)
    if x.dtype.kind == "c":
        return _extremum("max", "ptp", x, given) - _extremum("min", "ptp", x, given)
    return reduce_array(MINMAX, "ptp", _range, x, given)


@public("reduction")
@named
def argmin(
    name: str,
    /,
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Find the index of the minimum along an axis: the first NaN, else the first minimum.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers in lexicographic order, in NumPy or CuPy chunks.
    axis : int or None
        The axis to look along; None stands for the whole array, whose indices count in C order.
    keepdims, split_every, out
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, int64, with chunks of the kind of `a`'s.

    Raises
    ------
    TypeError
        If elements of that dtype have no order, or `axis` is neither an integer nor None.
    AxisError, ValueError
        As for :func:`sum`, where there is no element to find, and where the sizes of chunks that
        indices depend on are not known.

    Notes
    -----
    What is masked counts as the highest value of its dtype, as it does to :func:`numpy.ma.argmin`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> int(dc.argmin(da.from_array([3, 1, 2, 1], chunks=2)))
    1
    """
    given = ReductionArguments(axis, keepdims, split_every, out)
    return _extremal_index(name, asanyarray(a), given)


@like(argmin)
def argmax() -> None:
    """Find the index of the maximum along an axis: the first NaN, else the first maximum."""


@like(argmin)
def nanargmin() -> None:
    """Find the index of the first minimum along an axis, NaN left out.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`argmin`; and a ValueError, when it is computed, where every element is NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> int(dc.nanargmin(x))
    0
    """


@like(argmax)
def nanargmax() -> None:
    """Find the index of the first maximum along an axis, NaN left out.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`nanargmin`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> int(dc.nanargmax(x))
    2
    """


def _extremum(statistic: str, name: str, x: da.Array, given: ReductionArguments) -> da.Array:
    """Find the extremum that a statistic is for the public function `name`."""
    row = STATISTICS[statistic]
    bind(ARGMIN, x.dtype, x.dtype, name)
    refuse_mask(name, given.where, given.initial, x)
    if given.initial is None:
        require_elements(name, x, given.axis)
    monoid, skipna = row.monoid_of(x.dtype), row.leaves_out(x.dtype)
    finalize: Finalize = _warn_of_nan if skipna else row.finish
    if x.dtype.kind == "c":
        finalize = partial(_value, name, skipna, finalize)
        return reduce_array(monoid, name, finalize, x, given, skipna=skipna)
    if not skipna and given.initial is None and has_unknown_size(x):
        # Whether there is an element shows when both extrema are known.
        (kept,) = monoid.fields
        finalize = partial(_either, MINMAX.fields.index(kept), name)
        monoid = MINMAX
    return reduce_array(monoid, name, finalize, x, given)


def _extremal_index(name: str, x: da.Array, given: ReductionArguments) -> da.Array:
    """Find the index of an extremum for the public function `name`."""
    row, axis = STATISTICS[name], given.axis
    if axis is not None and not isinstance(axis, Integral):
        raise TypeError(f"{name} looks along one axis or, with None, along all; got axis {axis!r}")
    bind(row.monoid, x.dtype, x.dtype, name)
    axes = find_axes(axis, x.ndim)
    if any(x.shape[d] == 0 for d in axes):
        raise ValueError(f"{_nothing(name)}: shape {x.shape}, axes {axes}")
    unknown = [d for d in axes if x.shape[d] != x.shape[d]]
    if unknown and (len(axes) > 1 or x.numblocks[unknown[0]] > 1):
        raise ValueError(
            f"{name} does not count along axis {unknown[0]}, which has unknown chunksizes; "
            "x.compute_chunk_sizes() finds them"
        )
    all_nan = row.leaves_out(x.dtype)
    found = partial(_found, "All-NaN slice encountered" if all_nan else _nothing(name))
    return reduce_array(row.monoid, name, found, x, given, skipna=row.skipna)


def _nothing(name: str) -> str:
    return f"attempt to get {name} of an empty sequence"


# From the last state to the result, inside the task.


def _range(state: State) -> Any:
    low, high = _extrema("ptp", state)
    with np.errstate(over="ignore", invalid="ignore"):
        return high - low


def _either(i: int, name: str, state: State) -> Any:
    return _extrema(name, state)[i]


def _extrema(name: str, state: State) -> State:
    low, high = state
    if np.any(low > high):
        raise ValueError(no_identity(name))
    return state


def _value(name: str, skipna: bool, finalize: Finalize, state: State) -> Any:
    value, index = state
    nothing = index == NO_INDEX
    if skipna:
        value = choose(nothing, value.dtype.type(np.nan), value)
    elif np.any(nothing):
        raise ValueError(no_identity(name))
    return finalize((value,))


def _found(nothing: str, state: State) -> Any:
    _, index = state
    if np.any(index == NO_INDEX):
        raise ValueError(nothing)
    return index


def _warn_of_nan(state: State) -> Any:
    (value,) = state
    # A warning is not worth waiting for a GPU.
    if isinstance(value, np.ndarray | np.generic) and np.isnan(value).any():
        warnings.warn("All-NaN slice encountered", RuntimeWarning, stacklevel=1)
    return value
