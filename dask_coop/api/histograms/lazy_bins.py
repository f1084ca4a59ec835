"""The bins of a histogram, known when its graph is built or found by a task.

If their range or number depends on the data or is lazy, a task finds the bins before the first
chunk is counted, and the edges are lazy arrays.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from dask.array.core import Array, asarray, from_delayed, map_blocks
from dask.array.creation import arange
from dask.base import is_dask_collection
from dask.delayed import Delayed

from dask_coop import chunks
from dask_coop.algebra.bins import Grid, find_bins
from dask_coop.algebra.edges import MANY, Bins
from dask_coop.algebra.monoids import MINMAX, MOMENTS, State
from dask_coop.algebra.operation import Operation, bind
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import reduce as graph_reduce

#: NumPy's rules for the number of bins that work without sorting the samples.
RULES = ("rice", "scott", "sqrt", "sturges")

#: The message for NaN in a range that is found in the data, as NumPy begins it.
_HOLD_NAN = (
    "autodetected range of [nan, nan] is not finite, for the data hold NaN; give "
    "range=(low, high), or nan='omit' to leave NaN out"
)

#: NumPy's rules that need sorted samples; these are not supported.
_OTHER_RULES = ("auto", "doane", "fd", "stone")

#: How to treat NaN where the range is found in the data.
Nan = Literal["raise", "omit"]


class Binning(NamedTuple):
    """The grid of a histogram, its number of bins (nan if unknown), and their edges."""

    #: A `Grid`, or a task that returns one.
    grid: Any
    n: float
    edges: Any


def leaves_nan_out(nan: str) -> bool:
    """Tell whether `nan`, an argument of public functions, is "omit"; check its value."""
    if nan not in ("raise", "omit"):
        raise ValueError(f"nan must be 'raise' or 'omit', got {nan!r}")
    return nan == "omit"


def refuse_axes(bins: Any) -> None:
    """Raise TypeError for axes and histograms of boost-histogram, which `to_hist` fills."""
    for part in bins if isinstance(bins, list | tuple) else [bins]:
        if hasattr(type(part), "traits") or hasattr(type(part), "storage_type"):
            raise TypeError(
                f"bins are edges or their number, got {part!r}; dask_coop.to_hist counts into axes "
                "and histograms of boost-histogram and hist"
            )


def find_binning(bins: Any, limits: Any, x: Array, make: partial[Grid], omit: bool) -> Binning:
    """Find the bins of a histogram of `x`.

    Parameters
    ----------
    bins, limits
        As for :func:`histogram`.
    x : dask.array.Array
    make : partial of Grid
        Makes the grid from a tuple of `Bins`.
    omit : bool
        Whether to ignore NaN when the range is found in the data.
    """
    refuse_axes(bins)
    samples = sample_dtype(x)
    if isinstance(bins, str):
        return _find_by_rule(bins, limits, x, make, omit)
    if _is_lazy(bins) or _is_lazy(limits):
        return _find_later(bins, limits, x, make, omit)
    if np.ndim(bins) == 0 and limits is None and 0 not in x.shape:
        # Bins of float64 check the number of bins right away.
        n = find_bins(bins, (0, 1), np.dtype("f8")).n
        find = partial(_find_in_state, bins, samples, make)
        grid = graph_reduce.value(_extrema(samples, omit), x, "histogram-bins", find)
        dtype = samples if samples.kind == "f" else np.dtype("f8")
        return Binning(grid, n, lazy_edges(grid, n, dtype))
    if limits is not None:
        _check_pair(limits)
    known = find_bins(bins, limits, samples)
    return Binning(make((known,)), known.n, known_edges(known))


def sample_dtype(x: Array) -> np.dtype[Any]:
    """Return the dtype in which samples are compared with edges."""
    return np.dtype("u1") if x.dtype.kind == "b" else x.dtype.newbyteorder("=")


def lazy_edges(grid: Delayed, n: float, dtype: Any, coordinate: int = 0) -> Array:
    """Return the lazy edges of a grid that a task finds."""
    edges = graph_reduce.derive("histogram-edges", _edges, grid, coordinate, np.dtype(dtype))
    return from_delayed(edges, (n + 1,), dtype) if isinstance(edges, Delayed) else edges


def known_edges(bins: Bins) -> Any:
    """Return the edges of bins, as a lazy array, made chunk by chunk, of more than `MANY` bins."""
    if bins.n <= MANY:
        return bins.edges
    index = arange(bins.n + 1, dtype="i8")
    meta = np.empty(0, bins.dtype)
    return map_blocks(_edges_at, index, bins, dtype=bins.dtype, meta=meta, name=None)


def _extrema(samples: np.dtype[Any], omit: bool) -> Operation:
    return bind(MINMAX, samples, samples, "histogram", skipna=omit)


def _is_lazy(value: Any) -> bool:
    parts = value if isinstance(value, tuple | list) else (value,)
    return any(map(is_dask_collection, parts))


def _check_pair(limits: Any) -> None:
    try:
        n = len(limits)
    except TypeError:
        raise TypeError(f"Expected a sequence or array for range, not {limits}") from None
    if n != 2:
        raise ValueError(f"range must be a sequence or array of length 2, but got {n} items")


def _find_later(bins: Any, limits: Any, x: Array, make: partial[Grid], omit: bool) -> Binning:
    for name, value in (("bins", bins), ("range", limits)):
        if is_dask_collection(value) and not isinstance(value, Array | Delayed):
            raise TypeError(
                "Dask types besides Array and Delayed are not supported for `histogram`. "
                f"For argument `{name}`, got: {value!r}"
            )
    samples = sample_dtype(x)
    edges, n = _lazy_edges_given(bins)
    result = samples if samples.kind == "f" else np.dtype("f8")
    if limits is not None:
        _check_pair(limits)
        limits = [limits[0], limits[1]]
        # Delayed values have no dtype yet, so they are taken as float64.
        of_limits = [part.dtype if isinstance(part, Array) else "f8" for part in limits]
        result = np.result_type(result, *of_limits)
    elif edges is None:
        limits = graph_reduce.value(_extrema(samples, omit), x, "histogram-limits", found_limits)
    find = partial(_find_given, samples, result, make)
    grid = graph_reduce.derive("histogram-bins", find, bins if edges is None else edges, limits)
    if edges is None:
        edges = lazy_edges(grid, n, result)
    return Binning(grid, n, edges)


def _lazy_edges_given(bins: Any) -> tuple[Any, float]:
    """Return the edges, None if `bins` is their number, and the number of bins, nan if unknown."""
    if isinstance(bins, Delayed):
        n = bins._length
        if n is None or n == 1:
            return None, math.nan
        edges = graph_reduce.derive("histogram-edges", np.asarray, bins, np.dtype("f8"))
        return from_delayed(edges, (n,), "f8"), n - 1
    if isinstance(bins, list | tuple) and any(isinstance(part, Delayed) for part in bins):
        raise TypeError("bins must be a lazy array, not a sequence with delayed edges")
    if not isinstance(bins, Array | list | tuple):
        return None, (math.nan if np.ndim(bins) else find_bins(bins, (0, 1), np.dtype("f8")).n)
    edges = asarray(bins)
    if edges.ndim == 0:
        return None, math.nan
    if edges.ndim > 1:
        raise ValueError(f"bins must be a 1-dimensional array or sequence, got shape {edges.shape}")
    return edges, edges.size - 1


def _find_by_rule(rule: str, limits: Any, x: Array, make: partial[Grid], omit: bool) -> Binning:
    if rule not in RULES and rule not in _OTHER_RULES:
        raise ValueError(f"{rule!r} is not a valid estimator for `bins`")
    samples = sample_dtype(x)
    able = RULES if samples.kind != "f" or samples.itemsize == 8 else ("rice", "sqrt", "sturges")
    if rule not in able:
        raise ValueError(
            f"bins={rule!r} is not supported for {samples}, only {', '.join(able)}; for others "
            "give bins=numpy.histogram_bin_edges(a sample of the data, ...)"
        )
    if _is_lazy(limits):
        raise TypeError(f"range must be known for bins={rule!r}")
    if limits is not None:
        _check_pair(limits)
        # Raises NumPy's errors for the range.
        find_bins(1, limits, samples)
        x = x if x.ndim else x.reshape((1,))
        sizes = tuple((math.nan,) * n for n in x.numblocks)
        low, high = limits
        if low == high:
            # NumPy widens equal limits.
            low, high = low - 0.5, high + 0.5
        options = {**declared_by(x), "dtype": x.dtype, "meta": x._meta}
        x = map_blocks(_keep, x, low, high, chunks=sizes, **options)
    moments = bind(MOMENTS, samples, samples, "histogram")
    find = partial(_find_in_moments, rule, limits, samples, make, omit)
    grid = graph_reduce.value(moments, x, "histogram-bins", find)
    dtype = find_bins(1, (0.0, 1.0) if limits is None else limits, samples).edges.dtype
    return Binning(grid, math.nan, lazy_edges(grid, math.nan, dtype))


# Inside the task.


@casts
def _keep(x: Any, low: Any, high: Any) -> Any:
    """Return the samples of a chunk within limits, along its first axis."""
    return x[(x >= low) & (x <= high)].reshape((-1,) + (1,) * (x.ndim - 1))


def _host(value: Any) -> Any:
    """Return a number or array on the host."""
    if isinstance(value, int | float):
        return value
    array = np.asarray(value) if isinstance(value, list | tuple) else chunks.asarray(value, "numpy")
    return array[()] if np.ndim(array) == 0 else array


def found_limits(state: State) -> tuple[Any, Any] | None:
    """Return the extrema if they are finite, or None if there are no samples."""
    low, high = map(_host, state)
    if low > high:
        return None
    if np.isnan(low) or np.isnan(high):
        raise ValueError(_HOLD_NAN)
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError(
            f"autodetected range of [{low}, {high}] is not finite, for the data hold an infinity; "
            "give range=(low, high)"
        )
    return low, high


def _find_in_state(bins: Any, samples: np.dtype[Any], make: partial[Grid], state: State) -> Grid:
    return make((find_bins(bins, found_limits(state), samples),))


def _find_given(
    samples: np.dtype[Any], dtype: np.dtype[Any], make: partial[Grid], bins: Any, limits: Any
) -> Grid:
    if limits is not None:
        limits = tuple(dtype.type(_host(limit)) for limit in limits)
    return make((find_bins(_host(bins), limits, samples),))


def _find_in_moments(
    rule: str,
    limits: Any,
    samples: np.dtype[Any],
    make: partial[Grid],
    omit: bool,
    state: State,
) -> Grid:
    count, nans, low, high, _, _, m2 = (_host(field) for field in state)
    if nans and limits is None and not omit:
        raise ValueError(_HOLD_NAN)
    if count == 0:
        return make((find_bins(1, limits, samples),))
    outer: Any = found_limits((low, high)) if limits is None else limits
    width = _width(rule, int(count), _distance(low, high), m2)
    if width and samples.kind in "iu" and width < 1:
        width = 1
    # NumPy widens equal limits by 0.5 on either side.
    apart = _distance(*outer) if outer[0] != outer[1] else 1.0
    n = int(np.ceil(apart / width)) if width else 1
    return make((find_bins(n, outer, samples),))


def _distance(low: Any, high: Any) -> Any:
    # The distance between integers may overflow their dtype.
    whole = all(isinstance(value, int | np.integer) for value in (low, high))
    return int(high) - int(low) if whole else high - low


def _width(rule: str, count: int, distance: Any, m2: Any) -> Any:
    """Return the width of a bin by NumPy's rule."""
    match rule:
        case "sqrt":
            return distance / np.sqrt(count)
        case "sturges":
            return distance / (np.log2(count) + 1.0)
        case "rice":
            return distance / (2.0 * count ** (1.0 / 3))
    return (24.0 * np.pi**0.5 / count) ** (1.0 / 3.0) * np.sqrt(m2 / count)


def _edges_at(index: Any, bins: Bins) -> Any:
    return bins.edges_at(index)


def _edges(grid: Grid, coordinate: int, dtype: np.dtype[Any]) -> Any:
    return grid.bins[coordinate].edges.astype(dtype, copy=False)
