"""Histograms of CuPy chunks: picks a strategy of kernel_histogram.cuh."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from dask_coop.bins import Bins
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import histogram as programs

Array = Any


def _comparison_dtype(samples: np.dtype[Any], edges: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which the kernels compare as NumPy does for these two."""
    common = np.result_type(samples, edges)
    if common.kind == "f":
        # float16 compares the same as float32.
        return np.dtype("f4" if common.itemsize <= 4 else "f8")
    return np.dtype("u8" if common.kind == "u" else "i8")


def count(x: Array, weights: Array | None, bins: Bins, table: Array) -> None:
    """Add the samples `x`, or their `weights`, to the `table` of `bins`; `x` has samples."""
    gpu = device(cupy.cuda.runtime.getDevice())
    edge = _comparison_dtype(x.dtype, bins.edges.dtype)
    edges = cupy.asarray(bins.edges.astype(edge))
    scale, slack = _guess(bins, edge)
    threads = programs.THREADS
    # Counters have 32 bits, so no block may see more samples than they count.
    blocks = max(min(gpu.processors, -(-x.size // (threads * 16))), -(-x.size // (1 << 31)))
    shared = 0
    addresses = [x.data.ptr]
    if weights is not None:
        source = programs.weigh(x.dtype, edge, weights.dtype, table.dtype)
        addresses.append(weights.data.ptr)
    else:
        bytes_needed = bins.n * 4
        fits = bytes_needed <= gpu.shared_bytes
        source = programs.count(x.dtype, edge, fits)
        shared = bytes_needed if fits else 0
    limits = edge.type(bins.edges[0]), edge.type(bins.edges[-1])
    launch(
        source,
        blocks,
        threads,
        *addresses,
        np.int64(x.size),
        edges.data.ptr,
        np.int32(bins.n),
        *limits,
        edge.type(scale),
        edge.type(slack),
        table.data.ptr,
        shared=shared,
    )


def _guess(bins: Bins, edge: np.dtype[Any]) -> tuple[float, float]:
    """Return the bins per unit, 0 where edges are not equidistant, and the slack of the guess.

    The slack bounds, in bins, the distance between ``(x - low) * scale`` in `edge` and the place of
    ``x`` among the rounded edges: a few roundings of numbers up to ``bins.n``, and the rounding of
    the edges themselves.
    """
    low, high = float(bins.edges[0]), float(bins.edges[-1])
    if bins.limits is None or edge.kind != "f":
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        scale = float(np.divide(bins.n, np.subtract(high, low)))
        usable = 0 < float(edge.type(scale)) < np.inf
    if not usable:
        return 0.0, 0.0
    rounding = float(np.finfo(bins.edges.dtype).eps) * max(abs(low), abs(high)) * scale
    return scale, min(1.0, 4 * (rounding + bins.n * float(np.finfo(edge).eps)))
