"""Histograms: histogram."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask import delayed
from dask.array.core import asanyarray, from_delayed
from dask.array.creation import empty_like
from dask.base import is_dask_collection

from dask_coop import chunks, monoids, spine
from dask_coop.bins import Bins, find_bins
from dask_coop.monoids import COUNTS, MINMAX, State
from dask_coop.planning import takes_expressions


@takes_expressions
def histogram(
    a: Any,
    bins: Any = 10,
    range: tuple[Any, Any] | None = None,
    normed: bool = False,
    weights: Any = None,
    density: bool | None = None,
) -> tuple[da.Array, Any]:
    """Histogram of all elements of an array, whatever its number of dimensions.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    bins : int or 1-D array_like
        The number of bins of equal width, or all edges, ascending; the last bin is closed on the
        right, the others are half open.
    range : (float, float), optional
        The outer edges; samples outside are left out. Without it and with a number of bins, the
        least and the greatest sample, found in the same graph.
    normed : bool
        As in Dask, only False is taken; use `density`.
    weights : dask.array.Array or array_like, optional
        Of `a`'s shape: what each sample adds to its bin. Bool, integers or floats.
    density : bool, optional
        Whether the result is the probability density, which integrates to one.

    Returns
    -------
    hist : dask.array.Array
        Lazy, of shape ``(number of bins,)``, with chunks of the kind of `a`'s: int64 counts, or
        sums with the dtype of `weights`, or float64 densities.
    edges : numpy.ndarray or dask.array.Array
        Of shape ``(number of bins + 1,)``; lazy if `range` had to be found.

    Raises
    ------
    TypeError
        If `a` or `weights` have another dtype.
    ValueError
        In NumPy's words: edges that do not increase, a range that is not finite, more bins than
        the dtype can tell apart, weights of another shape. If `range` is found in the data and
        that holds NaN or an infinity, computing raises.

    Notes
    -----
    The counts are those of `numpy.histogram` to the last sample, for every dtype; NaN is left out.
    Weights are summed in float64 or 64-bit integers and rounded once.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> hist, edges = dc.histogram(da.arange(10, chunks=4), bins=3, range=(0, 9))
    >>> hist.compute()
    array([3, 3, 4])
    """
    x = asanyarray(a)
    if normed:
        raise ValueError("normed is not supported; use density=True")
    if x.dtype.kind not in COUNTS.kinds or x.dtype.itemsize > 8:
        raise TypeError(
            f"histogram does not take samples of dtype {x.dtype}; it takes bool, integers and "
            "float16 to float64"
        )
    for name, value in (("bins", bins), ("range", range)):
        if any(is_dask_collection(part) for part in _parts(value)):
            raise TypeError(f"{name} must be known when the graph is built; compute it first")
    if isinstance(bins, str):
        raise TypeError(f"bins={bins!r}: rules for the number of bins are not supported; give one")
    samples = np.dtype("u1") if x.dtype.kind == "b" else x.dtype.newbyteorder("=")
    arrays = [x]
    op = monoids.bind(COUNTS, np.dtype("i8"), np.dtype("i8"), "histogram")
    if weights is not None:
        w = asanyarray(weights)
        if w.shape != x.shape:
            raise ValueError(f"weights should have the same shape as a: {w.shape} and {x.shape}")
        op = monoids.bind(COUNTS, w.dtype, w.dtype, "histogram with weights")
        if chunks.kind(w._meta) != chunks.kind(x._meta):
            raise TypeError(
                f"a has {chunks.kind(x._meta)} chunks and weights {chunks.kind(w._meta)} chunks; "
                "move one of them with .to_backend()"
            )
        # Dask rechunks no empty array.
        arrays.append(w.rechunk(x.chunks) if w.size else empty_like(w, chunks=x.chunks))
    finalize, dtype = (_density, np.dtype("f8")) if density else (_counts, op.output)

    if np.ndim(bins) == 0 and range is None and 0 not in x.shape:
        # Bins of float64 tell at once what NumPy thinks of their number.
        n = find_bins(bins, (0, 1), np.dtype("f8")).n
        dtype_of_edges = samples if samples.kind == "f" else np.dtype("f8")
        extrema = monoids.bind(MINMAX, samples, samples, "histogram")
        found = spine.value(extrema, x, "histogram-bins", partial(_bins, bins, samples))
        edges = from_delayed(delayed(_edges, pure=True)(found), (n + 1,), dtype_of_edges)
        return spine.table(op, arrays, found, n, finalize, dtype), edges
    bins = find_bins(bins, range, samples)
    return spine.table(op, arrays, bins, bins.n, finalize, dtype), bins.edges


def _parts(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


# Inside the task.


def _bins(n: int, samples: np.dtype[Any], state: State) -> Bins:
    low, high = (samples.type(chunks.asarray(field, "numpy")) for field in state)
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError(
            f"autodetected range of [{low}, {high}] is not finite; give range=(low, high)"
        )
    return find_bins(n, (low, high), samples)


def _edges(bins: Bins) -> Any:
    return bins.edges


def _counts(state: State, bins: Bins) -> Any:
    return state[0]


def _density(state: State, bins: Bins) -> Any:
    (counts,) = state
    widths = chunks.asarray(np.diff(bins.edges).astype("f8"), chunks.kind(counts))
    return counts / widths / counts.sum()
