"""Chunks that are masked NumPy arrays, or go with one: what is masked is left out.

A reduction skips it. A scan takes an element that changes nothing in its place, and its result is
masked there. A histogram counts the samples of which no coordinate and no weight is masked. Other
functions refuse, as public ones do where the array is known to be masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dask_coop.algebra.bins import BinSpec
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.monoids import ARGMAX, ARGMIN, State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.topk import TopK
from dask_coop.chunks import ChunkBackend
from dask_coop.chunks.distinct import Distinct
from dask_coop.chunks.masks import refusal
from dask_coop.chunks.numpy import backend as numpy
from dask_coop.chunks.numpy import custom as custom_monoid
from dask_coop.chunks.numpy.backend import from_numpy as from_numpy
from dask_coop.chunks.numpy.backend import to_numpy as to_numpy
from dask_coop.chunks.one_by_one import downsweep as downsweep
from dask_coop.chunks.one_by_one import histogram_all as histogram_all
from dask_coop.chunks.one_by_one import lift_all as lift_all
from dask_coop.chunks.one_by_one import synchronize as synchronize
from dask_coop.chunks.one_by_one import upsweep as upsweep

Array = np.ndarray[Any, Any]

#: What NumPy puts in the place of what is masked, to find the index of an extremum.
_FILLED = {ARGMIN: np.ma.minimum_fill_value, ARGMAX: np.ma.maximum_fill_value}


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None = None) -> State:
    """Reduce the chunk `x` over `axes` to a partial state, where `where` holds if it is given."""
    if isinstance(op.monoid, Distinct):
        raise refusal("unique")
    if op.monoid.fills_masked:
        return numpy.lift(op, np.ma.filled(x, _FILLED[op.monoid](x)), axes)
    if isinstance(op.monoid, TopK):
        raise refusal("topk")
    valid = _valid(x)
    if valid is not None and where is not None:
        valid = valid & np.ma.filled(where, False)
    # What is masked may be anything, and does not matter.
    with np.errstate(all="ignore"):
        return numpy.lift(op, np.ma.getdata(x), axes, where if valid is None else valid)


def scan(
    op: Operation, x: Array, spec: ScanSpec, base: State | None = None, heads: Array | None = None
) -> Array:
    """Return the scan of the chunk `x` from `base` on, masked where `x` is."""
    return scan_on(op, x, spec, base, heads)[0]


def scan_on(
    op: Operation, x: Array, spec: ScanSpec, base: State | None = None, heads: Array | None = None
) -> tuple[Array, State]:
    """Return the scan of the chunk `x`, masked where `x` is, and the state behind it."""
    mask, data, valid = np.ma.getmaskarray(x), np.ma.getdata(x), _valid(x)
    heads = None if heads is None else np.ma.filled(heads, False)
    with np.errstate(all="ignore"):
        if op.monoid.lift is not None:
            data = data.astype(op.element, copy=False)
            result, state = custom_monoid.scan(op, data, spec, base, heads, valid)
        else:
            if valid is not None:
                data = np.where(mask, op.neutral, data.astype(op.element, copy=False))
            result, state = numpy.scan_on(op, data, spec, base, heads)
    if spec.initial:
        one = np.zeros((*x.shape[: spec.axis], 1, *x.shape[spec.axis + 1 :]), "?")
        mask = np.concatenate([mask, one] if spec.reverse else [one, mask], spec.axis)
    return np.ma.array(result, mask=mask if spec.initial else mask.copy()), state


def lift_segments(op: Operation, x: Array, spec: ScanSpec, heads: Array) -> State:
    """Reduce what is behind the last head flag of every line of the chunk `x` to a state."""
    heads = np.ma.filled(heads, False)
    with np.errstate(all="ignore"):
        return numpy.lift_segments(op, np.ma.getdata(x), spec, heads, _valid(x))


def histogram(
    op: Operation, samples: Sequence[Array], grid: BinSpec, weights: Array | None
) -> State:
    """Count the samples of a chunk, or sum their `weights`, by bin."""
    masks: list[Array] = [np.ma.getmaskarray(x) for x in samples]
    if grid.ndim > len(samples):
        masks = [np.logical_or.reduce(masks[0], -1)]
    if weights is not None:
        masks.append(np.ma.getmaskarray(weights))
        weights = np.ma.getdata(weights)
    samples, mask = [np.ma.getdata(x) for x in samples], np.logical_or.reduce(masks)
    if mask.any() and not grid.has_lines:
        samples = [x[~mask] for x in samples]
        weights = None if weights is None else weights[~mask]
    elif mask.any():
        # Lines keep their lengths, so what is masked adds nothing to a bin.
        weights = ~mask if weights is None else np.where(mask, weights.dtype.type(0), weights)
    return numpy.histogram(op, samples, grid, weights)


def collect(x: Array, digits: Digits) -> Array:
    """Return the samples of the chunk `x` that `digits` counts, on one axis."""
    return numpy.collect(np.ma.compressed(x), digits)


def compress(x: Array, mask: Array) -> Array:
    """Return the elements that `mask` holds for, masked where those of the chunk `x` are."""
    data = numpy.compress(np.ma.getdata(x), mask)
    return np.ma.array(data, mask=numpy.compress(np.ma.getmaskarray(x), mask))


def flatnonzero(x: Array) -> Array:
    """Return where in C order `x` has elements that are neither zero nor masked."""
    found = numpy.flatnonzero(np.ma.getdata(x))
    return found[~np.ma.getmaskarray(x).reshape(-1)[found]]


def _refusing(name: str) -> Any:
    """Return a function that refuses its chunks, as the public function of that name does."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise refusal(name.format(*args))

    return refuse


merge_distinct = positions = _refusing("unique")
move = _refusing("move_{0.statistic}")
order_statistics = _refusing("quantile")
lift_groups = _refusing("groupby_reduce")
digitize, isin, searchsorted = map(_refusing, ("digitize", "isin", "searchsorted"))
transpose, sort, argsort, matmul = map(_refusing, ("transpose", "sort", "argsort", "matmul"))


def _valid(x: Array) -> Array | None:
    """Return which elements are not masked, or None where all are."""
    mask = np.ma.getmaskarray(x)
    return ~mask if mask.any() else None


if TYPE_CHECKING:
    from dask_coop.chunks import masked

    _: ChunkBackend = masked
