"""Counts of integers, and the bins of each sample: bincount, digitize."""

from __future__ import annotations

import math
import operator
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, map_blocks
from dask.array.utils import meta_from_array
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.algebra.bins import Integers, Steps, find_steps, require_room
from dask_coop.api.call.public import Engine, public
from dask_coop.api.histograms.histogram import (
    find_weights,
    finishing,
    reproducibly,
    require_samples,
    weighing,
)
from dask_coop.api.histograms.lazy_bins import sample_dtype
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import histogram as graph_histogram


@public("histogram")
def bincount(
    x: Any,
    weights: Any = None,
    minlength: int = 0,
    split_every: int | None = None,
    *,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> da.Array:
    """Count the occurrences of each non-negative integer.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Non-negative integers or bool, in NumPy or CuPy chunks, of any shape. Masked elements are
        not counted.
    weights : dask.array.Array or array_like, optional
        The weight of each element, in `x`'s shape.
    minlength : int
        The minimum length of the result.
    split_every : int, optional
        How many tables one task adds; 16 by default.
    reproducible : bool
        As for :func:`histogram`; integer weights are taken as float64.
    engine : {"auto", "collective"}
        As for :func:`histogram`.

    Returns
    -------
    dask.array.Array
        Lazy, of shape ``(max(minlength, x.max() + 1),)``, in one chunk of the kind of `x`'s: int64
        counts, or sums of weights in float64 (complex128 for complex weights). Before it is
        computed, the length is nan, unless `minlength` exceeds every integer of `x`'s dtype.

    Raises
    ------
    TypeError
        If `x` does not hold integers, or `weights` have an unsupported dtype or are complex while
        `reproducible` is true.
    ValueError
        If `minlength` is negative or needs a table of more than 2**40 bytes, or weights have
        another shape; or, when computed, if an integer is negative.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.bincount(da.from_array([1, 1, 3], chunks=2), minlength=3).compute()
    array([0, 2, 0, 1])
    """
    array = asanyarray(x)
    if array.dtype.kind not in "biu":
        # NumPy's bincount, and so Dask's, takes even fewer dtypes.
        raise TypeError(f"bincount takes bool and integers, got dtype {array.dtype}")
    minlength = operator.index(minlength)
    if minlength < 0:
        raise ValueError("'minlength' must not be negative")
    require_room((minlength,))
    chunks.kind(array._meta)
    w = None if weights is None else find_weights(weights, array, "x")
    dtype = None if w is None else np.dtype("c16" if w.dtype.kind == "c" else "f8")
    op = weighing(w, "bincount", dtype)
    if reproducible and w is not None:
        op = reproducibly(op, "bincount", w, tuple(range(w.ndim)))
    top = 1 if array.dtype.kind == "b" else np.iinfo(array.dtype).max
    shape = (minlength if minlength > top else math.nan,)
    options: dict[str, Any] = {"split_every": split_every, "name": "bincount"}
    integers = Integers(minlength)
    return graph_histogram.table(op, [array], w, integers, shape, *finishing(op), **options)


@public("blockwise")
def digitize(a: Any, bins: Any, right: bool = False) -> da.Array:
    """Return the bin index of each element.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    bins : 1-D array_like
        Edges, increasing or decreasing.
    right : bool
        Whether bins include their right edges instead of their left ones.

    Returns
    -------
    dask.array.Array
        Lazy, int64, with the shape and chunks of `a`. For increasing edges, the number of edges
        less than or equal to the element, or less than it with `right`; for NaN, the number of all
        edges. For decreasing edges, the number of all edges minus that count.

    Raises
    ------
    TypeError
        If `a` has another dtype, or `bins` are lazy.
    ValueError
        If edges are not monotonic or not one-dimensional, with NumPy's message.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.digitize(da.from_array([0.2, 6.4, 3.0], chunks=2), [0.0, 1.0, 3.0, 4.0]).compute()
    array([1, 4, 3])
    """
    x = asanyarray(a)
    require_samples("digitize", x)
    chunks.kind(x._meta)
    chunks.refuse_masked("digitize", x._meta)
    if is_dask_collection(bins):
        raise TypeError("bins must be known when the graph is built; compute them first")
    steps = find_steps(bins, right, sample_dtype(x))
    meta = meta_from_array(np.zeros_like(x._meta, "i8"), ndim=x.ndim, dtype="i8")
    return map_blocks(_digitize, x, steps, **declared_by(x), name=None, dtype="i8", meta=meta)


# Inside the task.


@casts
def _digitize(x: Any, steps: Steps) -> Any:
    return chunks.backend_of(x).digitize(x, steps)
