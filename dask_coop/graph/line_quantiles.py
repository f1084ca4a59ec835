"""Quantiles of lines, in blocks that hold whole lines.

::

    x0 | x1 --rechunk--> lines 0 --order statistics--> quantiles 0
    x2 | x3 --rechunk--> lines 1 --order statistics--> quantiles 1
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from dask import config
from dask.array.blockwise import blockwise
from dask.array.core import Array
from dask.array.creation import empty_like
from dask.utils import parse_bytes

from dask_coop import chunks
from dask_coop.algebra.quantiles import Method, Quantiles
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.repeats import Repeats
from dask_coop.graph.layers import rechunked

#: The bytes that are sorted in less time than a task takes to start.
SMALL = 2**18
#: Arrays of many chunks are gathered in about as many blocks.
BLOCKS = 128


def gathered(x: Array, axes: tuple[int, ...]) -> Array:
    """Return `x` in blocks of whole lines along `axes`, about as large as its chunks.

    Blocks of large arrays are larger, so that not each takes a little of very many chunks. A block
    has at most `array.chunk-size` bytes, unless a line has more. It lies in one chunk along the
    other axes, so that no chunk is cut across, or in several small ones.
    """
    itemsize, limit = x.dtype.itemsize, parse_bytes(config.get("array.chunk-size"))
    line = math.prod(x.shape[d] for d in axes) * itemsize
    usual = max(SMALL, math.prod(map(max, x.chunks)) * itemsize, x.nbytes // BLOCKS)
    most = max(line, min(limit, usual))
    sizes = [(n,) if d in axes else x.chunks[d] for d, n in enumerate(x.shape)]
    for d in range(x.ndim):
        beside = math.prod(map(max, (*sizes[:d], *sizes[d + 1 :]))) * itemsize
        if d in axes or not beside:
            continue
        room = max(1, most // beside)
        lengths = (cut for n in sizes[d] for cut in _divided(n, room))
        sizes[d] = tuple(_joined(lengths, SMALL // beside))
    return rechunked(x, tuple(sizes))


def _divided(length: int, most: int) -> Iterator[int]:
    """Yield equal lengths that add up to `length`, of at most `most`."""
    number = max(1, -(-length // most))
    for i in range(number):
        yield length * (i + 1) // number - length * i // number


def _joined(lengths: Iterable[int], most: int) -> Iterator[int]:
    """Yield the sums of neighbouring lengths, of at most `most` unless one is more."""
    total = None
    for length in lengths:
        if total is not None and total + length > most:
            yield total
            total = None
        total = length + (total or 0)
    if total is not None:
        yield total


def quantiles(
    name: str,
    x: Array,
    axes: tuple[int, ...],
    spec: Any,
    weights: Array | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    keepdims: bool,
) -> Array:
    """Return quantiles of lines along `axes`, gathered where they lie in several chunks.

    Parameters
    ----------
    name : str
        The prefix of keys.
    x : dask.array.Array
        Of known chunk sizes, if lines lie in several of them.
    axes : tuple of int
        Sorted and not negative.
    spec : Quantiles, Repeats, or Delayed of quantiles
    weights : dask.array.Array, optional
        Has the shape of `x`.
    shape : tuple of int
        The shape of the quantiles, which precedes the other axes of the result.
    dtype : dtype
        The dtype of the result.
    keepdims : bool
        Whether the result keeps `axes`, with length one.
    """
    before = x.chunks
    if any(x.numblocks[d] > 1 for d in axes):
        # Dask's rechunk of an empty array leaves empty chunks, or makes them NumPy's.
        x = gathered(x, axes) if x.size else empty_like(x, chunks=x.shape)
    arrays = [x] if weights is None else [x, weights.rechunk(x.chunks)]
    inside = [d for d in range(x.ndim) if keepdims or d not in axes]
    ndim, index = len(shape), tuple(range(x.ndim))
    result = blockwise(
        _of_lines if weights is None else _of_weighted_lines,
        (*range(-ndim, 0), *inside),
        *itertools.chain.from_iterable((array, index) for array in arrays),
        **declared_by(*arrays),
        axes=axes,
        keepdims=keepdims,
        spec=spec,
        result=dtype,
        dtype=dtype,
        meta=chunks.zeros_like(x._meta, dtype, ndim + len(inside)),
        new_axes={-ndim + i: n for i, n in enumerate(shape)},
        adjust_chunks={d: 1 for d in inside if d in axes},
        concatenate=True,
        token=name,
    )
    # Else arrays combined with the result would be cut like it, and cut again at their next lines.
    joined = {
        ndim + i: before[d]
        for i, d in enumerate(inside)
        if d not in axes and len(before[d]) < x.numblocks[d]
    }
    whole = tuple(joined.get(d, sizes) for d, sizes in enumerate(result.chunks))
    return rechunked(result, whole) if joined and x.size else result


# Inside the task.

#: So few bytes of elements are interpolated on the host, where no kernels of CuPy are compiled.
_HOST_BYTES = 1 << 20

#: More ranks of lines of all lengths take more memory than is worth to keep.
_MOST_KEPT = 1 << 18


@casts
def _of_lines(
    x: Any, axes: tuple[int, ...], keepdims: bool, spec: Quantiles | Repeats, result: np.dtype[Any]
) -> Any:
    """Return the quantiles of the lines of a block."""
    if isinstance(spec, Quantiles) and not all(x.shape[d] for d in axes):
        spec.warn_without_elements(x.dtype)
        kept = [n for d, n in enumerate(x.shape) if d not in axes]
        nothing = np.full((*spec.shape, *kept), _missing(result), result)
        nothing = chunks.asarray(spec.end(nothing, nothing, None, 0), chunks.kind(x))
        return _shaped(nothing, x, axes, keepdims, spec)
    values, counts = quantiles_of_lines(x, axes, spec, result)
    if spec.skipna and x.dtype.kind in "fMm" and (counts < 1).any():
        warnings.warn("All-NaN slice encountered", RuntimeWarning, stacklevel=1)
    return _shaped(chunks.asarray(values, chunks.kind(x)), x, axes, keepdims, spec)


def quantiles_of_lines(
    x: Any,
    axes: tuple[int, ...],
    spec: Quantiles | Repeats,
    result: np.dtype[Any],
    index: Any = None,
) -> tuple[Any, Any]:
    """Return the quantiles of the lines of a block, and how many elements of each are not NaN.

    Both are on the host if they are few. With `index`, lines are those of ``x[..., index]`` along
    the last axis.
    """
    if isinstance(spec, Repeats):
        if index is not None:
            return spec.of_lines(x[..., index])
        kept = [d for d in range(x.ndim) if d not in axes]
        shape = (*(x.shape[d] for d in kept), math.prod(x.shape[d] for d in axes))
        return spec.of_lines(x.transpose(*kept, *axes).reshape(shape))
    length = math.prod(x.shape[d] for d in axes) if index is None else index.shape[-1]
    ranks, gamma = _ranks_of_lines(spec, length)
    backend = chunks.backend_of(x)
    values, counts = backend.order_statistics(x, axes, ranks, index)
    at = chunks.kind(x)
    if values.nbytes <= _HOST_BYTES:
        at = "numpy"
        values, counts = chunks.asarray(values, at), chunks.asarray(counts, at)
    low, high = values.reshape(2, *spec.shape, *counts.shape)
    if gamma is not None:
        gamma = chunks.asarray(np.moveaxis(gamma, 0, -1), at)
        gamma = gamma[..., counts if spec.skipna else counts * 0]
    nothing = counts < (1 if spec.skipna else length)
    return interpolated(low, high, gamma, nothing, spec, result), counts


def _ranks_of_lines(spec: Quantiles, length: int) -> tuple[Any, Any]:
    """Return ranks by the number of elements that are not NaN, and the fractions between them."""
    q = None if spec.q is None else (spec.q.tobytes(), spec.q.dtype, spec.q.shape)
    number = length * math.prod(spec.shape)
    ranks = _kept_ranks if number < _MOST_KEPT else _kept_ranks.__wrapped__
    return ranks(q, spec.method, spec.skipna, length)


# Tasks of a graph, and of those after it, have few lengths.
@lru_cache(16)
def _kept_ranks(q: Any, method: Method, skipna: bool, length: int) -> tuple[Any, Any]:
    values = None if q is None else np.frombuffer(q[0], q[1]).reshape(q[2])
    spec = Quantiles(values, method, skipna)
    # Without skipna, only lines without NaN have quantiles, and these have one length.
    sizes = np.arange(length + 1) if skipna else np.array([length])
    previous, following, gamma = spec.ranks(sizes)
    ranks = np.stack([r.reshape(len(sizes), -1) for r in (previous, following)], axis=1)
    ranks = ranks.reshape(len(sizes), -1)
    return np.broadcast_to(ranks, (length + 1, 2 * math.prod(spec.shape))), gamma


def interpolated(
    low: Any, high: Any, gamma: Any, nothing: Any, spec: Quantiles, result: np.dtype[Any]
) -> Any:
    """Return quantiles between elements before and after them; NaN where there is `nothing`."""
    with np.errstate(all="ignore"):
        computed = spec.interpolate(low, high, gamma).astype(result, copy=False)
    if low.dtype.kind in "fMm" and nothing.any():
        return np.where(nothing, _missing(result), computed)
    return computed


@casts
def _of_weighted_lines(
    x: Any,
    weights: Any,
    axes: tuple[int, ...],
    keepdims: bool,
    spec: Quantiles,
    result: np.dtype[Any],
) -> Any:
    """Return the weighted quantiles of the lines of a block, by sorting each line."""
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = (*(x.shape[d] for d in kept), math.prod(x.shape[d] for d in axes))
    lines, heavy = (array.transpose(*kept, *axes).reshape(shape) for array in (x, weights))
    lost = lines != lines
    heavy = np.where(lost, 0.0, heavy) if spec.skipna else heavy
    order = np.argsort(lines, axis=-1)
    lines, heavy = (np.take_along_axis(array, order, -1) for array in (lines, heavy))
    fractions = np.cumsum(heavy, axis=-1)
    total = fractions[..., -1:]
    nothing = lost.all(-1) if spec.skipna else lost.any(-1)
    weighed = ((total > 0) & (total < np.inf))[..., 0]
    if not bool((weighed | nothing if spec.skipna else weighed).all()):
        raise ValueError("weights of a line add up to zero or are not finite")
    with np.errstate(all="ignore"):
        fractions = fractions / total
    q = spec.q
    fractions = np.where(
        fractions == 0, -1, fractions.astype(q.dtype if q.dtype.kind == "f" else "f8")
    )
    values = np.empty_like(lines, shape=(q.size, *shape[:-1]))
    for i, level in enumerate(q.reshape(-1).tolist()):
        rank = (fractions < q.dtype.type(level)).sum(-1, keepdims=True)
        rank = np.minimum(rank, lines.shape[-1] - 1)
        values[i] = np.take_along_axis(lines, rank, -1)[..., 0]
    if spec.skipna and nothing.any():
        warnings.warn("All-NaN slice encountered", RuntimeWarning, stacklevel=1)
    if x.dtype.kind in "fMm":
        values = np.where(nothing, _missing(result), values)
    return _shaped(values.astype(result, copy=False), x, axes, keepdims, spec)


def _missing(dtype: np.dtype[Any]) -> Any:
    return dtype.type("nan") if dtype.kind == "f" else np.array("NaT", dtype)


def _shaped(
    result: Any, x: Any, axes: tuple[int, ...], keepdims: bool, spec: Quantiles | Repeats
) -> Any:
    kept = (1 if d in axes else n for d, n in enumerate(x.shape) if keepdims or d not in axes)
    return result.reshape((*spec.shape, *kept))
