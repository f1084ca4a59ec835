"""Extrema and their indices, also ignoring NaN: min, max, ptp, argmin, argmax."""

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
    """Minimum of array elements over the given axes; NaN if an element is NaN.

    A complex number is NaN if either part is; the first such element is then the minimum.

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
        As for :func:`sum`, and if there is no element.
    """
    arguments = ReductionArguments(axis, keepdims, split_every, out, where, initial)
    return _extremum(name, name, asanyarray(a), arguments)


@like(min)
def max() -> None:
    """Maximum of array elements over the given axes; NaN if an element is NaN.

    A complex number is NaN if either part is; the first such element is then the maximum.

    Raises
    ------
    TypeError
        If elements of that dtype have no order.
    AxisError, ValueError
        As for :func:`sum`, and if there is no element.
    """


@like(min)
def nanmin() -> None:
    """Minimum of array elements over the given axes, ignoring NaN.

    Returns
    -------
    dask.array.Array
        As for :func:`min`; NaN where every element is NaN, and computing it then issues a
        RuntimeWarning.

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
    """Maximum of array elements over the given axes, ignoring NaN.

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
    """Range of array elements over the given axes: maximum minus minimum.

    The array is read once, or twice if its numbers are complex.

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
        Lazy, of `a`'s dtype; NaN if an element is NaN. Integers may wrap, as in NumPy.

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
    arguments = ReductionArguments(axis, keepdims, split_every)
    if x.dtype.kind == "c":
        return _extremum("max", "ptp", x, arguments) - _extremum("min", "ptp", x, arguments)
    return reduce_array(MINMAX, "ptp", _range, x, arguments)


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
    """Return the index of the first minimum along an axis, or of the first NaN if there is one.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or complex numbers in lexicographic order, in NumPy or CuPy chunks.
    axis : int or None
        The axis to search along; None searches the flattened array, in C order.
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
        As for :func:`sum`, if there is no element, and if indices depend on unknown chunk sizes.

    Notes
    -----
    Masked elements count as the highest value of the dtype, as in :func:`numpy.ma.argmin`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> int(dc.argmin(da.from_array([3, 1, 2, 1], chunks=2)))
    1
    """
    arguments = ReductionArguments(axis, keepdims, split_every, out)
    return _extremal_index(name, asanyarray(a), arguments)


@like(argmin)
def argmax() -> None:
    """Return the index of the first maximum along an axis, or of the first NaN if there is one."""


@like(argmin)
def nanargmin() -> None:
    """Return the index of the first minimum along an axis, ignoring NaN.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`argmin`. Computing raises ValueError where every element is NaN.

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
    """Return the index of the first maximum along an axis, ignoring NaN.

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


def _extremum(statistic: str, name: str, x: da.Array, arguments: ReductionArguments) -> da.Array:
    """Return the minimum or maximum, by the row `statistic`, for the public function `name`."""
    row = STATISTICS[statistic]
    bind(ARGMIN, x.dtype, x.dtype, name)
    refuse_mask(name, arguments.where, arguments.initial, x)
    if arguments.initial is None:
        require_elements(name, x, arguments.axis)
    monoid, skipna = row.monoid_of(x.dtype), row.leaves_out(x.dtype)
    finalize: Finalize = _warn_of_nan if skipna else row.finish
    if x.dtype.kind == "c":
        finalize = partial(_value, name, skipna, finalize)
        return reduce_array(monoid, name, finalize, x, arguments, skipna=skipna)
    if not skipna and arguments.initial is None and has_unknown_size(x):
        # Take both extrema: they are in the wrong order where there was no element.
        (field,) = monoid.fields
        finalize = partial(_either, MINMAX.fields.index(field), name)
        monoid = MINMAX
    return reduce_array(monoid, name, finalize, x, arguments)


def _extremal_index(name: str, x: da.Array, arguments: ReductionArguments) -> da.Array:
    """Return the index of an extremum for the public function `name`."""
    row, axis = STATISTICS[name], arguments.axis
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
    finalize = partial(_known_index, "All-NaN slice encountered" if all_nan else _nothing(name))
    return reduce_array(row.monoid, name, finalize, x, arguments, skipna=row.skipna)


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


def _known_index(nothing: str, state: State) -> Any:
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
