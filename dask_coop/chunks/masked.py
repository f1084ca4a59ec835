"""The backend of masked NumPy arrays, and of chunks that come with them: it skips masked elements.

A reduction skips masked elements. A scan replaces them by a neutral element and masks their
results. A histogram counts the samples without masked coordinates and weights. Other functions
refuse, as public ones do for arrays known to be masked.
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
from dask_coop.chunks.one_by_one import join as join
from dask_coop.chunks.one_by_one import lift_all as lift_all
from dask_coop.chunks.one_by_one import most_joined as most_joined
from dask_coop.chunks.one_by_one import synchronize as synchronize
from dask_coop.chunks.one_by_one import upsweep as upsweep

Array = np.ndarray[Any, Any]

#: NumPy's fill values of masked elements for the index of an extremum.
_FILLED = {ARGMIN: np.ma.minimum_fill_value, ARGMAX: np.ma.maximum_fill_value}


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None = None) -> State:
    """Reduce the chunk `x` over `axes` to a state; a mask `where` selects elements."""
    if isinstance(op.monoid, Distinct):
        raise refusal("unique")
    if op.monoid.fills_masked:
        return numpy.lift(op, np.ma.filled(x, _FILLED[op.monoid](x)), axes)
    if isinstance(op.monoid, TopK):
        raise refusal("topk")
    valid = _valid(x)
    if valid is not None and where is not None:
        valid = valid & np.ma.filled(where, False)
    # Masked elements may have any values.
    with np.errstate(all="ignore"):
        return numpy.lift(op, np.ma.getdata(x), axes, where if valid is None else valid)


def scan(
    op: Operation, x: Array, spec: ScanSpec, base: State | None = None, heads: Array | None = None
) -> Array:
    """Return the scan of the chunk `x` from `base`, masked where `x` is."""
    return scan_on(op, x, spec, base, heads)[0]


def scan_on(
    op: Operation, x: Array, spec: ScanSpec, base: State | None = None, heads: Array | None = None
) -> tuple[Array, State]:
    """Return the scan of the chunk `x`, masked where `x` is, and the state after it."""
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
        initial = np.zeros((*x.shape[: spec.axis], 1, *x.shape[spec.axis + 1 :]), "?")
        mask = np.concatenate([mask, initial] if spec.reverse else [initial, mask], spec.axis)
    return np.ma.array(result, mask=mask if spec.initial else mask.copy()), state


def lift_segments(op: Operation, x: Array, spec: ScanSpec, heads: Array) -> State:
    """Reduce the elements after the last head flag of each line of `x` to a state."""
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
        # Lines must keep their lengths, so masked samples get weight 0.
        weights = ~mask if weights is None else np.where(mask, weights.dtype.type(0), weights)
    return numpy.histogram(op, samples, grid, weights)


def collect(x: Array, digits: Digits) -> Array:
    """Return the samples of the chunk `x` that `digits` counts, on one axis."""
    return numpy.collect(np.ma.compressed(x), digits)


def compress(x: Array, mask: Array) -> Array:
    """Return the elements that `mask` selects, masked where the chunk `x` is."""
    data = numpy.compress(np.ma.getdata(x), mask)
    return np.ma.array(data, mask=numpy.compress(np.ma.getmaskarray(x), mask))


def flatnonzero(x: Array) -> Array:
    """Return the indices in C order of elements that are neither zero nor masked."""
    indices = numpy.flatnonzero(np.ma.getdata(x))
    return indices[~np.ma.getmaskarray(x).reshape(-1)[indices]]


def _refusing(name: str) -> Any:
    """Return a function that refuses its chunks, as the public function of that name does."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise refusal(name.format(*args))

    return refuse


merge_distinct: Any = _refusing("unique")
positions = merge_distinct
move: Any = _refusing("move_{0.statistic}")
order_statistics: Any = _refusing("quantile")
codes: Any = _refusing("groupby_reduce")
lift_groups = codes
label: Any = _refusing("label")
multiply_deviations: Any = _refusing("cov")
filter_lines: Any = _refusing("lfilter")
digitize: Any = _refusing("digitize")
isin: Any = _refusing("isin")
searchsorted: Any = _refusing("searchsorted")
transpose: Any = _refusing("transpose")
sort: Any = _refusing("sort")
argsort: Any = _refusing("argsort")
matmul: Any = _refusing("matmul")
merge_sorted = sort


def _valid(x: Array) -> Array | None:
    """Return a mask of the elements that are not masked, or None if all are not."""
    mask = np.ma.getmaskarray(x)
    return ~mask if mask.any() else None


if TYPE_CHECKING:
    from dask_coop.chunks import masked

    _: ChunkBackend = masked
