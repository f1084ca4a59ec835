"""Exact quantiles, of whole arrays and along axes: quantile, percentile, median and nan forms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask import config
from dask.array.core import asanyarray, broadcast_to, handle_out, map_blocks, stack
from dask.array.routines import where
from dask.array.utils import validate_axis
from dask.base import is_dask_collection
from dask.delayed import Delayed
from dask.utils import parse_bytes

from dask_coop import chunks
from dask_coop.algebra.digits import Asked, Digits, estimate, leading_digit
from dask_coop.algebra.monoids import COUNTS, State
from dask_coop.algebra.operation import bind
from dask_coop.algebra.quantiles import METHODS, Method, Quantiles
from dask_coop.api.arguments import (
    Axis,
    as_dtype,
    broadcastable,
    find_axes,
    placed_along,
    require_one_kind,
    without_empty,
)
from dask_coop.api.call.public import Engine, like, named, public
from dask_coop.api.call.results import QuantileEstimate
from dask_coop.api.sums import count_nonzero
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.errors import Declined, Refused
from dask_coop.graph import executor, line_quantiles
from dask_coop.graph import histogram as graph_histogram
from dask_coop.graph import order as graph_order
from dask_coop.graph.fusion import copy
from dask_coop.graph.layers import FAN_IN
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.reduce import derive


@public("reduction")
@named
def quantile(
    name: str,
    /,
    a: Any,
    q: Any,
    axis: Axis = None,
    out: da.Array | None = None,
    overwrite_input: bool = False,
    method: Method = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    split_every: int | None = None,
    recompute: bool = False,
    error: float | None = None,
    engine: Engine = "auto",
) -> Any:
    """Exact quantiles of all elements or along some axes, equal to those of NumPy 2.3.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Integers, floats, dates or durations, in NumPy or CuPy chunks. Bool only for the methods
        that return an element.
    q : float, array_like of float, dask.array.Array or Delayed of a float
        Values between 0 and 1, in at most two axes; may be lazy.
    axis : int, tuple of int or None
        The axes to take quantiles along; None for all of them.
    out : dask.array.Array, optional
        An array to overwrite with the result.
    overwrite_input : bool
        Only for NumPy's signature; chunks are never overwritten.
    method : str
        How to interpolate between elements: one of the 13 methods of :func:`numpy.quantile`.
    keepdims : bool
        Whether reduced axes stay, with length one.
    weights : dask.array.Array or array_like, optional
        The weight of each element, in the shape of `a` or the shape along `axis`; only for the
        method "inverted_cdf".
    split_every : int, optional
        How many tables of counts one task adds, if all axes are reduced; 16 by default.
    recompute : bool
        Whether to compute chunks anew for each read and drop them in between, if all axes are
        reduced, rather than keep them. It saves memory.
    error : float, optional
        From 1/256 to 1/2: quantiles of all elements are estimated in one read, each to within so
        much of an element's value.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array or QuantileEstimate
        Lazy: the axes of `q` come first, then the axes that remain. NaN if an element is NaN. With
        `error`, a named tuple of the estimates and of the largest possible errors of their ranks.

    Raises
    ------
    TypeError
        If elements of that dtype have no order or, for that method, no difference.
    ValueError
        If `q` is not between 0 and 1, the method does not exist, there is no element, or weights
        have another shape or come with another method. Computing raises it if weights are negative
        or all zero. Or if `error` is out of range, or comes with an argument that it does not take.
        Forms that leave NaN out return NaN of no element, unless there are weights or an `error`.
    AxisError
        As for :func:`sum`.

    Notes
    -----
    With `error`: elements are counted by sign, exponent and leading bits of the mantissa, so that
    the elements of a count differ by at most `error` of their value, as in C. Masson et al.,
    "DDSketch", PVLDB 12 (2019). Elements of 8 and 16 bits are counted one by one, and integers of
    more bits as float64. The counts say how many elements may lie between an estimate and the exact
    quantile. These are many if all elements are near one another, and far from zero.

    All elements: radix selection (`dask_coop.algebra.digits`). Each read counts the elements by 16
    bits of their keys, for all quantiles together, so elements of 32 bits are read twice. Nothing
    is sorted and no chunk is changed. Along some axes: tasks gather whole lines into blocks no
    larger than the chunks, unless a line is, and select elements in each block.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.quantile(da.arange(11, chunks=4), [0.25, 0.5]).compute()
    array([2.5, 5. ])
    """
    arguments = Arguments(axis, out, method, keepdims, weights, split_every, recompute, error)
    if name.endswith("percentile"):
        fractions = Fractions(q, 100, "Percentiles must be in the range [0, 100], got {}")
    else:
        instead = "take percentile, or divide percentages by 100"
        fractions = Fractions(q, 1, f"Quantiles must be in the range [0, 1], got {{}}; {instead}")
    return _quantiles(name, a, fractions, arguments)


@like(quantile, dask=False)
def percentile() -> None:
    """Exact percentiles of all elements or along some axes, equal to NumPy's.

    Parameters
    ----------
    a : dask.array.Array or array_like
        As for :func:`quantile`.
    q : float, array_like of float, dask.array.Array or Delayed of a float
        Values between 0 and 100, in at most two axes; may be lazy.
    axis, out, overwrite_input, method, keepdims, weights, split_every, recompute, error, engine
        As for :func:`quantile`.

    Returns
    -------
    dask.array.Array
        As for :func:`quantile`. By contrast, :func:`dask.array.percentile` combines percentiles of
        chunks, which is not exact.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.percentile(da.arange(11, chunks=4), 25))
    2.5
    """


@like(quantile)
def nanquantile() -> None:
    """Exact quantiles ignoring NaN, equal to NumPy's.

    Returns
    -------
    dask.array.Array
        As for :func:`quantile`. It is NaN where there is no element, or all are NaN; computing it
        then issues a RuntimeWarning.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nanquantile(x, 0.75))
    2.5
    """


@like(percentile)
def nanpercentile() -> None:
    """Exact percentiles ignoring NaN, equal to NumPy's.

    Returns
    -------
    dask.array.Array
        As for :func:`nanquantile`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nanpercentile(x, 75))
    2.5
    """


@public("reduction")
@named
def median(
    name: str,
    /,
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    out: da.Array | None = None,
    *,
    split_every: int | None = None,
    recompute: bool = False,
    engine: Engine = "auto",
) -> da.Array:
    """Exact median of all elements or along some axes, equal to NumPy's.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats or durations, in NumPy or CuPy chunks.
    axis, keepdims, out, split_every, recompute, engine
        As for :func:`quantile`.

    Returns
    -------
    dask.array.Array
        Lazy: the middle element, or the mean of the middle two. If those two are equal it is their
        value, where NumPy's sum of both may overflow. NaN if an element is NaN, or, with a
        RuntimeWarning when it is computed, if there is no element.

    Raises
    ------
    TypeError, ValueError, AxisError
        As for :func:`quantile`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> float(dc.median(da.from_array([3.0, 1.0, 2.0, 10.0], chunks=2)))
    2.5
    """
    arguments = Arguments(axis, out, "linear", keepdims, None, split_every, recompute)
    return _quantiles(name, a, None, arguments)


@like(median)
def nanmedian() -> None:
    """Exact median ignoring NaN, equal to NumPy's.

    Returns
    -------
    dask.array.Array
        As for :func:`nanquantile`.

    Notes
    -----
    The middle two of float16 elements are added as float32, as in :func:`numpy.median`. For short
    lines :func:`numpy.nanmedian` adds them as float16, so that two of 32768 give infinity.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([1.0, float("nan"), 3.0], chunks=2)
    >>> float(dc.nanmedian(x))
    2.0
    """


class Arguments(NamedTuple):
    """The arguments of a public function, except elements and quantiles."""

    axis: Axis
    #: A Dask array, or None.
    out: Any
    method: Method
    keepdims: bool
    weights: Any
    split_every: int | None
    recompute: bool
    error: float | None = None


class Fractions:
    """The argument `q` of a public function.

    Attributes
    ----------
    q : numpy.ndarray or lazy
    divisor : int
        100 for percentiles, else 1.
    refusal : str
        The message for values of `q` out of range.
    weak : bool
        Whether `q` is a Python number.
    """

    def __init__(self, q: Any, divisor: int, refusal: str) -> None:
        self.divisor: int = divisor
        self.refusal: str = refusal
        self.weak: bool = type(q) in (int, float)
        self.is_lazy: bool = is_dask_collection(q)
        self.q: Any = q if self.is_lazy else self.checked(q)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `q`; a Delayed is a scalar."""
        return () if isinstance(self.q, Delayed) else tuple(self.q.shape)

    @property
    def like(self) -> Any:
        """Fractions with the dtype and the number of axes of `q`."""
        if not self.is_lazy:
            return self.q
        dtype = np.dtype("f8") if isinstance(self.q, Delayed) else self.q.dtype
        return np.asarray(np.true_divide(np.ones((1,) * len(self.shape), dtype), self.divisor))

    def checked(self, q: Any) -> Any:
        """Return the fractions of computed values, or raise if they are invalid."""
        q = np.asarray(chunks.asarray(q, "numpy") if hasattr(q, "__cuda_array_interface__") else q)
        if q.dtype.kind not in "biuf":
            raise TypeError(f"q takes numbers, got dtype {q.dtype}")
        if q.ndim > 2:
            raise ValueError(f"q must have at most 2 axes, got {q.ndim}")
        if not np.all(inside := (q >= 0) & (q <= self.divisor)):
            raise ValueError(self.refusal.format(q[~inside].flat[0]))
        return np.asarray(np.true_divide(q, self.divisor)) if self.divisor > 1 else q


def _quantiles(name: str, a: Any, fractions: Fractions | None, arguments: Arguments) -> Any:
    """Return the quantiles for the public function `name`; the median if `fractions` is None."""
    x = asanyarray(a)
    _check(name, x, arguments)
    x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    axes = find_axes(arguments.axis, x.ndim)
    if is_empty := any(x.shape[d] == 0 for d in axes):
        alone = arguments.weights is None and arguments.error is None
        if name in ("quantile", "percentile") or chunks.is_masked(x._meta) or not alone:
            raise ValueError(f"{name} of no element: shape {x.shape}, axes {axes}")
        # NaN, as NumPy's, whose results of integers are then float64 by any method.
        x = without_empty(x if x.dtype.kind in "fmM" else as_dtype(x, "f8"))
    x = x if arguments.weights is None else broadcastable(x)
    weights = None if arguments.weights is None else _weights(name, x, axes, arguments)
    q, weak = (None, False) if fractions is None else (fractions.like, fractions.weak)
    asked: Any = Quantiles(q, arguments.method, name.startswith("nan"), weak)
    dtype, shape = asked.result(x.dtype), () if fractions is None else fractions.shape
    if arguments.error is not None:
        return _estimated(name, x, fractions, asked, arguments)
    if fractions is not None and fractions.is_lazy:
        if executor.runner() is not None:
            raise Declined(f"the quantiles of {name} are lazy")
        asked = derive(f"{name}-q", _ask, fractions.q, fractions, asked)
    if len(axes) == x.ndim and not is_empty and not _is_sorted_sooner(x):
        result = _of_all(name, x, asked, weights, shape, dtype, arguments)
        if arguments.keepdims:
            result = result.reshape(shape + (1,) * x.ndim)
    else:
        result = _along(name, x, axes, asked, weights, shape, dtype, arguments)
    return handle_out(arguments.out, result)


def _is_sorted_sooner(x: da.Array) -> bool:
    """Return whether one task that sorts all elements takes less time than rounds of counting."""
    alone = x.npartitions == 1 and x.nbytes <= line_quantiles.SMALL
    plain = chunks.kind(x._meta) == "numpy" and not chunks.is_masked(x._meta)
    return alone and plain and executor.runner() is None


def _estimated(
    name: str, x: da.Array, fractions: Any, asked: Quantiles, arguments: Arguments
) -> QuantileEstimate:
    """Return estimates of the quantiles of all elements, by the counts of one digit."""
    error: Any = arguments.error
    others = arguments.out, arguments.weights, arguments.keepdims or None
    plain = all(value is None for value in others) and arguments.method == "linear"
    if fractions.is_lazy or not plain:
        raise ValueError(
            f"{name} with an error takes the method 'linear' and a known q, without out, keepdims "
            "and weights"
        )
    if not 1 / 256 <= error <= 1 / 2:
        raise ValueError(
            f"{name} takes an error from 1/256 to 1/2, got {error}; without one it is exact"
        )
    if len(find_axes(arguments.axis, x.ndim)) < x.ndim:
        raise ValueError(f"{name} with an error takes all axes, got axis={arguments.axis}")
    chunks.refuse_masked(f"{name} with an error", x._meta)
    if x.dtype.kind in "Mm":
        raise Refused(f"{name} with an error does not take dtype {x.dtype}: no date is 0")
    result = asked.result(x.dtype)
    x = as_dtype(x, "f8") if x.dtype.kind in "iu" and x.dtype.itemsize > 2 else x
    grid = leading_digit(x.dtype, error, Asked(asked))
    op, shape = bind(COUNTS, np.dtype("i8"), np.dtype("i8"), name), (2, *fractions.shape)
    both = graph_histogram.table(
        op,
        [x],
        None,
        grid,
        shape,
        _estimates,
        np.dtype("f8"),
        split_every=arguments.split_every or at_a_time(FAN_IN, 8 * grid.entries),
        name=name,
    )
    return QuantileEstimate(both[0].astype(result), both[1])


def _check(name: str, x: da.Array, arguments: Arguments) -> None:
    """Refuse elements that have no order, and unknown methods."""
    chunks.kind(x._meta)
    if x.dtype.kind == "c":
        raise TypeError(f"{name} takes real numbers, got dtype {x.dtype}")
    if x.dtype.kind not in "Mm" and not (x.dtype.kind in "biuf" and chunks.is_common(x.dtype)):
        raise Refused(f"{name} does not take dtype {x.dtype}")
    if arguments.method not in METHODS:
        raise ValueError(
            f"{arguments.method!r} is not a valid method; there are {', '.join(METHODS)}"
        )


def _weights(name: str, x: da.Array, axes: tuple[int, ...], arguments: Arguments) -> da.Array:
    """Return weights in the shape and the chunks of `x`, in float64."""
    if arguments.method != "inverted_cdf":
        raise ValueError(f"only method 'inverted_cdf' takes weights, not {arguments.method!r}")
    weights = asanyarray(arguments.weights)
    if weights.dtype.kind not in "biuf":
        raise TypeError(f"weights are real numbers, got dtype {weights.dtype}")
    require_one_kind(name, x, "weights", weights)
    if weights.shape != x.shape:
        # The axes of weights are in the order of `axis`.
        named_axes = arguments.axis if isinstance(arguments.axis, tuple | list) else axes
        order = validate_axis(tuple(named_axes), x.ndim)
        along = tuple(x.shape[d] for d in order)
        if arguments.axis is None or weights.shape != along:
            raise ValueError(
                f"weights of shape {weights.shape} do not fit an array of shape {x.shape}; {name} "
                f"takes its shape, or {along}, that along axes {order}"
            )
        weights = weights.transpose(tuple(map(int, np.argsort(order))))
        weights = placed_along(weights, axes, x.ndim)
        weights = broadcast_to(broadcastable(weights), x.shape)
    weights = weights.rechunk(x.chunks)
    return map_blocks(_valid_weights, weights, **declared_by(weights), dtype="f8")


def _of_all(
    name: str,
    x: da.Array,
    asked: Any,
    weights: da.Array | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    arguments: Arguments,
) -> da.Array:
    """Return quantiles of all elements."""
    if executor.runner() is not None and weights is not None:
        raise Declined(f"the weights of {name} are made float64 on the way")
    # The first digit's counts show NaN among floats, but not NaT among dates, and sums of
    # weights show neither.
    missing = defined = None
    if weights is None and x.dtype.kind in "Mm":
        missing = count_nonzero(x != x)
    elif weights is not None and name.startswith("nan"):
        weights, defined = where(x != x, 0.0, weights), count_nonzero(x == x) > 0
    elif weights is not None:
        defined = count_nonzero(x != x) == 0
    if executor.runner() is not None:
        asked = Asked(asked, None if missing is None else int(missing))
    elif missing is not None or defined is not None or is_dask_collection(asked):
        asked = derive(f"{name}-asked", _ask_all, asked, missing, defined)
    else:
        asked = Asked(asked)
    if arguments.recompute and not (missing is None and defined is None):
        # Counting NaN is a read, too; without the copy, chunks would be kept until it ends.
        x = copy(x)
    return graph_order.quantiles(
        x,
        asked,
        shape,
        dtype,
        name,
        weights=weights,
        split_every=arguments.split_every,
        recompute=arguments.recompute,
    )


def _along(
    name: str,
    x: da.Array,
    axes: tuple[int, ...],
    asked: Any,
    weights: da.Array | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    arguments: Arguments,
) -> da.Array:
    """Return quantiles of lines, from blocks of whole lines."""
    if chunks.is_masked(x._meta):
        raise TypeError(
            f"{name} along axes does not take masked arrays; fill them with NaN and take nan{name}"
        )
    if executor.runner() is not None:
        raise Declined(f"the lines of {name} are gathered")
    if any(x.numblocks[d] > 1 for d in axes):
        if math.isnan(x.size):
            raise ValueError(
                f"{name} gathers lines along axes {axes}, which needs known chunk sizes; "
                "x.compute_chunk_sizes() finds them"
            )
        limit = parse_bytes(config.get("array.chunk-size"))
        if math.prod(x.shape[d] for d in axes) * x.dtype.itemsize > limit:
            return _line_by_line(name, x, axes, asked, weights, shape, dtype, arguments)
    return line_quantiles.quantiles(name, x, axes, asked, weights, shape, dtype, arguments.keepdims)


def _line_by_line(
    name: str,
    x: da.Array,
    axes: tuple[int, ...],
    asked: Any,
    weights: da.Array | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    arguments: Arguments,
) -> da.Array:
    """Return quantiles of lines too long to gather, each computed as of a whole array."""
    remaining = [d for d in range(x.ndim) if d not in axes]
    results = []
    for index in np.ndindex(*(x.shape[d] for d in remaining)):
        position = dict(zip(remaining, index, strict=True))
        line = tuple(position.get(d, slice(None)) for d in range(x.ndim))
        line_weights = None if weights is None else weights[line]
        results.append(_of_all(name, x[line], asked, line_weights, shape, dtype, arguments))
    whole = [d for d in range(x.ndim) if arguments.keepdims or d not in axes]
    outer = tuple(1 if d in axes else x.shape[d] for d in whole)
    return stack(results, axis=-1).reshape(shape + outer)


# Inside the task.


def _ask(q: Any, fractions: Fractions, shaped: Quantiles) -> Quantiles:
    return replace(shaped, q=fractions.checked(q))


def _estimates(state: State, digits: Digits) -> Any:
    return estimate(digits, chunks.asarray(state[0], "numpy"))


def _ask_all(quantiles: Quantiles, missing: Any, defined: Any) -> Asked:
    missing = None if missing is None else int(missing)
    return Asked(quantiles, missing, None if defined is None else bool(defined))


@casts
def _valid_weights(weights: Any) -> Any:
    if (weights < 0).any():
        raise ValueError("weights must not be negative")
    return weights.astype("f8", copy=False)
