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
from dask_coop.algebra.monoids import (
    ARGMAX,
    ARGMIN,
    FIRST_MAX,
    FIRST_MIN,
    MAX,
    MIN,
    MINMAX,
    NANMAX,
    NANMIN,
    NO_INDEX,
    MonoidRow,
    State,
)
from dask_coop.algebra.operation import bind
from dask_coop.api.arguments import (
    Axis,
    ReductionArguments,
    SplitEvery,
    find_axes,
    has_unknown_size,
    no_identity,
    only_field,
    reduce_array,
    refuse_mask,
    require_elements,
)
from dask_coop.api.call.public import Engine, public
from dask_coop.graph.reduce import Finalize

#: The rows of complex numbers, of which an index tells which NaN came first.
_OF_COMPLEX = {MIN: FIRST_MIN, NANMIN: FIRST_MIN, MAX: FIRST_MAX, NANMAX: FIRST_MAX}


@public("reduction")
def min(
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
    return _extremum(MIN, "min", a, given)


@public("reduction")
def max(
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
    """Maximum of array elements over the given axes; NaN where there is one.

    A complex number with a part that is NaN is NaN; of several, the first is the maximum.

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
        As for :func:`sum`, and where there is no element to take the maximum of.
    """
    given = ReductionArguments(axis, keepdims, split_every, out, where, initial)
    return _extremum(MAX, "max", a, given)


@public("reduction")
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
    given = ReductionArguments(axis, keepdims, split_every, out, where, initial)
    return _nan_extremum(NANMIN, MIN, "nanmin", a, given)


@public("reduction")
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
    given = ReductionArguments(axis, keepdims, split_every, out, where, initial)
    return _nan_extremum(NANMAX, MAX, "nanmax", a, given)


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
        return _extremum(MAX, "ptp", x, given) - _extremum(MIN, "ptp", x, given)
    return reduce_array(MINMAX, "ptp", _range, x, given)


@public("reduction")
def argmin(
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
    return _extremal_index(ARGMIN, "argmin", a, given)


@public("reduction")
def argmax(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Find the index of the maximum along an axis: the first NaN, else the first maximum.

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
        As for :func:`argmin`.
    """
    given = ReductionArguments(axis, keepdims, split_every, out)
    return _extremal_index(ARGMAX, "argmax", a, given)


@public("reduction")
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
    given = ReductionArguments(axis, keepdims, split_every, out)
    return _extremal_index(ARGMIN, "nanargmin", a, given, skipna=True)


@public("reduction")
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
    given = ReductionArguments(axis, keepdims, split_every, out)
    return _extremal_index(ARGMAX, "nanargmax", a, given, skipna=True)


def _extremum(
    monoid: MonoidRow,
    name: str,
    a: Any,
    given: ReductionArguments,
    finalize: Finalize = only_field,
    skipna: bool = False,
) -> da.Array:
    """Find the extremum that `monoid` keeps for the public function `name`."""
    x = asanyarray(a)
    bind(ARGMIN, x.dtype, x.dtype, name)
    refuse_mask(name, given.where, given.initial, x)
    if given.initial is None:
        require_elements(name, x, given.axis)
    if x.dtype.kind == "c":
        finalize = partial(_value, name, skipna, finalize)
        return reduce_array(_OF_COMPLEX[monoid], name, finalize, x, given, skipna=skipna)
    if not skipna and given.initial is None and has_unknown_size(x):
        # Whether there is an element shows when both extrema are known.
        (kept,) = monoid.fields
        finalize = partial(_either, MINMAX.fields.index(kept), name)
        monoid = MINMAX
    return reduce_array(monoid, name, finalize, x, given)


def _nan_extremum(
    monoid: MonoidRow,
    plain: MonoidRow,
    name: str,
    a: Any,
    given: ReductionArguments,
) -> da.Array:
    """Find extrema by `monoid`, and by the `plain` one of what has no NaN."""
    x = asanyarray(a)
    if x.dtype.kind not in "fc":
        return _extremum(plain, name, x, given)
    return _extremum(monoid, name, x, given, finalize=_warn_of_nan, skipna=True)


def _extremal_index(
    monoid: MonoidRow,
    name: str,
    a: Any,
    given: ReductionArguments,
    skipna: bool = False,
) -> da.Array:
    """Find the index of the extremum that `monoid` keeps for the public function `name`."""
    x, axis = asanyarray(a), given.axis
    if axis is not None and not isinstance(axis, Integral):
        raise TypeError(f"{name} looks along one axis or, with None, along all; got axis {axis!r}")
    bind(monoid, x.dtype, x.dtype, name)
    axes = find_axes(axis, x.ndim)
    if any(x.shape[d] == 0 for d in axes):
        raise ValueError(f"{_nothing(name)}: shape {x.shape}, axes {axes}")
    unknown = [d for d in axes if x.shape[d] != x.shape[d]]
    if unknown and (len(axes) > 1 or x.numblocks[unknown[0]] > 1):
        raise ValueError(
            f"{name} does not count along axis {unknown[0]}, which has unknown chunksizes; "
            "x.compute_chunk_sizes() finds them"
        )
    may_skip = skipna and x.dtype.kind in "fc"
    nothing = "All-NaN slice encountered" if may_skip else _nothing(name)
    found = partial(_found, nothing)
    return reduce_array(monoid, name, found, x, given, skipna=skipna)


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
