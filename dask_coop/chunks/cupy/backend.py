"""Chunks that are CuPy arrays: picks a strategy and launches the kernels.

A chunk is seen as an array of shape (outer, n, inner), of which lines of n are reduced or scanned.
Lines that are contiguous (inner == 1) go to the kernels called *rows*, the others to *columns*.
Where there are fewer lines than the GPU can work on at a time, lines are cut into *parts*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from dask_coop.algebra.bins import BinSpec, Grid, Integers, Steps
from dask_coop.algebra.central_moments import Powers
from dask_coop.algebra.compensated import settle
from dask_coop.algebra.edges import Bins
from dask_coop.algebra.monoids import (
    MINMAX,
    State,
)
from dask_coop.algebra.operation import Operation, bind
from dask_coop.algebra.scan_spec import ScanSpec, segmented
from dask_coop.chunks import ChunkBackend, reproducible_histogram
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.arrays import HOST_STATE_BYTES, aligned, contiguous, deliver, dense
from dask_coop.chunks.cupy.bin_index import MOST, find_indices, find_numbers
from dask_coop.chunks.cupy.histogram_strategies import count
from dask_coop.chunks.cupy.matmul import matmul as matmul
from dask_coop.chunks.cupy.multichunk import downsweep as downsweep
from dask_coop.chunks.cupy.multichunk import histogram_all as histogram_all
from dask_coop.chunks.cupy.multichunk import lift_all as lift_all
from dask_coop.chunks.cupy.multichunk import synchronize as synchronize
from dask_coop.chunks.cupy.multichunk import upsweep as upsweep
from dask_coop.chunks.cupy.reduce import apply_mask, lift_parts, lift_powers, reduce_lines
from dask_coop.chunks.cupy.reduce_ordered import reduce_in_order
from dask_coop.chunks.cupy.scan import reduce_segments, scan_lines
from dask_coop.chunks.cupy.transpose import transpose as transpose
from dask_coop.chunks.states import reduce_along

Array = Any


def lift(op: Operation, x: Array, axes: tuple[int, ...], where: Array | None = None) -> State:
    """Reduce the chunk `x` over `axes` to a partial state, where `where` holds if it is given."""
    with x.device:
        x = x.astype(op.element, copy=False)
        if isinstance(op.monoid, Powers):
            return lift_powers(lift, op, x, axes)
        if where is not None:
            if op.neutral is None and op.element.kind == "c":
                return lift_parts(lift, op, x, axes, where)
            op, x = apply_mask(op, x, where)
        if op.monoid.positional and len(axes) > 1:
            # Indices count in C order along axes side by side, whatever the order in memory.
            kept = [d for d in range(x.ndim) if d not in axes]
            if axes[-1] - axes[0] >= len(axes):
                x, axes = x.transpose([*kept, *axes]), tuple(range(len(kept), x.ndim))
            x = contiguous(x)
        x, order = dense(x)
        reduced = [d for d in range(x.ndim) if order[d] in axes]
        start, stop = _longest_run(x.shape, reduced)
        shape = (
            math.prod(x.shape[:start]),
            math.prod(x.shape[start:stop]),
            math.prod(x.shape[stop:]),
        )
        lines = (reduce_lines if op.monoid.commutative else reduce_in_order)(op, x, shape)
        fields = _fields(op, lines, x.shape[:start] + x.shape[stop:])
        rest = [d if d < start else d - (stop - start) for d in reduced if not start <= d < stop]
        for axis in reversed(rest):
            fields = _reduce_rest(op, fields, axis)
        kept = [order[d] for d in range(x.ndim) if d not in reduced]
        if kept != sorted(kept):
            fields = tuple(field.transpose(np.argsort(kept)) for field in fields)
        return fields


def scan(
    op: Operation,
    x: Array,
    spec: ScanSpec,
    base: State | None = None,
    marks: Array | None = None,
) -> Array:
    """Return the scan of the chunk `x` from `base` on.

    A result with the state of nothing is longer than `x`; unless `axis` is the first in memory, a
    copy puts it together, for 2N of traffic.
    """
    with x.device:
        axis = spec.axis
        x, order = dense(x.astype(op.element, copy=False))
        at = order.index(axis)
        shape = (math.prod(x.shape[:at]), x.shape[at], math.prod(x.shape[at + 1 :]))
        others = [d - (d > axis) for d in order if d != axis]
        # The base has the axes of the chunk but one, in the chunk's own order.
        bases = None if base is None else _pack(op, base, others)
        if marks is not None:
            marks = _marks(marks, x.ndim, axis, order, x.shape)
        written = programs_list.written(op)
        # States of several fields are bytes until they are results.
        unit, width = ("u1", written.itemsize) if written.names else (written, 1)
        inner = shape[2] * width
        whole = cupy.empty((shape[0], shape[1] + spec.initial, inner), unit)
        result = whole
        if spec.initial:
            nothing = bases
            if nothing is None:
                kept = x.shape[:at] + x.shape[at + 1 :]
                neutral = op.monoid.identity(op.element)
                fields = tuple(np.full(kept, value) for value in neutral)
                nothing = _pack(op, fields, list(range(len(kept))))
            if op.monoid.has_excess:
                states = _views(programs_list.layout(op), nothing, (shape[0], 1, inner))
                (nothing,) = settle(states)
            first = slice(-1, None) if spec.reverse else slice(1)
            whole[:, first] = nothing.reshape(shape[0], 1, inner)
            rest = whole[:, : shape[1]] if spec.reverse else whole[:, 1:]
            result = rest if shape[0] == 1 else cupy.empty((*shape[:2], inner), unit)
        if x.size:
            scan_lines(
                op,
                x,
                result,
                bases,
                shape,
                exclusive=spec.exclusive,
                reverse=spec.reverse,
                segments=marks,
            )
            if spec.initial and result is not rest:
                rest[...] = result
        longer = (*x.shape[:at], whole.shape[1], *x.shape[at + 1 :])
        if op.monoid.finalize is not None:
            states = _views(written, whole, longer) if written.names else (whole,)
            whole = op.monoid.finalize(states).astype(op.output, copy=False)
            whole = cupy.ascontiguousarray(whole)
        whole = whole.reshape(longer)
        return whole.transpose(np.argsort(order)) if order != sorted(order) else whole


def scan_on(
    op: Operation,
    x: Array,
    spec: ScanSpec,
    base: State | None = None,
    marks: Array | None = None,
) -> tuple[Array, State]:
    """Return the scan of the chunk `x` from `base` on, and the state behind it: 3N of traffic."""
    result = scan(op, x, spec, base, marks)
    if marks is not None:
        state = lift_segments(op, x, spec, marks)
        if base is not None:
            state = segmented(op.monoid).combine((*base, np.zeros_like(state[-1])), state)
        return result, state[:-1]
    if spec.reverse and not op.monoid.commutative:
        x = cupy.flip(x, spec.axis)
    state = lift(op, x, (spec.axis,))
    return result, state if base is None else op.monoid.combine(base, state)


def lift_segments(op: Operation, x: Array, spec: ScanSpec, marks: Array) -> State:
    """Reduce what is behind the last mark of every line of the chunk `x` to a state.

    Its last field tells where there is a mark; `marks` are those of the elements or of one line.
    """
    with x.device:
        axis = spec.axis
        order = [*(d for d in range(x.ndim) if d != axis), axis]
        x = aligned(contiguous(x.astype(op.element, copy=False).transpose(order)))
        marks = _marks(marks, x.ndim, axis, order, x.shape)
        kept, n = x.shape[:-1], x.shape[-1]
        if x.size == 0:
            # Where those of chunks with elements are, with which it is combined.
            nbytes = math.prod(kept) * programs_list.segmented_layout(op).itemsize
            xp = np if nbytes <= HOST_STATE_BYTES else cupy
            state = (xp.full(kept, field) for field in op.monoid.identity(op.element))
            return (*(field[()] for field in state), xp.zeros(kept, "?")[()])
        states = reduce_segments(op, x, marks, (math.prod(kept), n, 1), spec.reverse)
        layout = programs_list.segmented_layout(op)
        host = deliver(states)
        if host is not states:
            records = host.view(layout).reshape(kept)
            values = (records["value"][field.name][()] for field in op.monoid.fields)
            return (*values, (records["restarts"] != 0)[()])
        strides = np.empty(kept, layout).strides
        fields = [
            _field(kept, dtype, states.data + offset, strides)
            for dtype, offset in programs_list.offsets(programs_list.layout(op))
        ]
        (_, (truth, at)) = programs_list.offsets(layout)
        restarts = cupy.ndarray(kept, truth, memptr=states.data + at, strides=strides)
        return (*fields, restarts != 0)


def histogram(
    op: Operation, samples: Sequence[Array], grid: BinSpec, weights: Array | None
) -> State:
    """Count the samples of a chunk, or sum their `weights`, by bin.

    Samples of one coordinate are counted as they are; others get their bin indices first, and
    these are counted as integers.

    Parameters
    ----------
    op : Operation
    samples : sequence of cupy.ndarray
        The coordinates, of equal shapes; or one array, with the coordinates along its last axis.
    grid : Grid or Integers
    weights : cupy.ndarray or None
    """
    x = samples[0]
    with x.device:
        if op.monoid.has_digits:
            return reproducible_histogram.histogram(lift, histogram, op, samples, grid, weights)
        (total,) = op.monoid.dtypes(op.element)
        if weights is not None:
            weights = aligned(contiguous(weights.astype(op.element, copy=False)))
        match grid:
            case Integers():
                # Of several lengths, so these do not travel as NumPy arrays, large or small.
                return (_tally(x, weights, grid.minlength, total),)
            case Grid():
                return (_tabulate(samples, weights, grid, total),)


def _tabulate(samples: Sequence[Array], weights: Array | None, grid: Grid, total: Any) -> Array:
    """Return the table of a chunk."""
    x = samples[0]
    kept, axes = grid.lines(x.shape if len(samples) == grid.ndim else x.shape[:-1])
    shape = (*(x.shape[axis] for axis in kept), *grid.shape)
    if math.prod(shape) > MOST:
        raise ValueError(f"a table of shape {shape} has more than {MOST} entries")
    if not x.size or not math.prod(shape):
        return deliver(cupy.zeros(shape, total))
    samples = [x.view("u1") if x.dtype.kind == "b" else x for x in samples]
    if grid.ndim == 1 and not kept and not grid.flow:
        x = dense(samples[0])[0] if weights is None else aligned(contiguous(samples[0]))
        return deliver(_count(x, weights, grid.bins[0], total))
    lines = None
    if len(samples) < grid.ndim:
        samples = _columns(samples[0])
    elif kept:
        # The axes that are counted, and how far apart elements are along them.
        lines = math.prod(x.shape[axis] for axis in axes), 1
        if axes and axes[-1] - axes[0] == len(axes) - 1:
            lines = lines[0], math.prod(x.shape[axes[-1] + 1 :])
        else:
            order = kept + axes
            samples = [transpose(samples[0], order)]
            weights = weights if weights is None else transpose(weights, order)
    index = find_indices([aligned(contiguous(x)) for x in samples], grid, lines)
    table = _count(index, weights, Integers(math.prod(shape)), total)
    return deliver(table.reshape(shape))


def digitize(x: Array, steps: Steps) -> Array:
    """Return the numbers of the bins of samples, int64 of the shape of `x`."""
    with x.device:
        x = x.view("u1") if x.dtype.kind == "b" else x
        return find_numbers(aligned(contiguous(x)), steps)


def _count(x: Array, weights: Array | None, bins: Bins | Integers, total: Any) -> Array:
    """Return the table of contiguous samples."""
    table = cupy.zeros(bins.n, total)
    if weights is None or weights.dtype.kind != "c":
        count(x, weights, bins, table)
        return table
    # The kernels add up real numbers.
    part = np.dtype(f"f{weights.itemsize // 2}")
    parts = weights.reshape(-1).view(part).reshape(-1, 2)
    for i in range(2):
        sums = cupy.zeros(bins.n, "f8")
        count(x, cupy.ascontiguousarray(parts[:, i]), bins, sums)
        table.view("f8").reshape(-1, 2)[:, i] = sums
    return table


def _tally(x: Array, weights: Array | None, minlength: int, total: Any) -> Array:
    """Return how often each integer occurs, or the sum of its weights."""
    x = x.view("u1") if x.dtype.kind == "b" else x
    n = minlength
    if x.size:
        extrema = bind(MINMAX, x.dtype, x.dtype, "bincount")
        low, high = (int(field) for field in lift(extrema, x, tuple(range(x.ndim))))
        if low < 0:
            raise ValueError("'list' argument must have no negative elements")
        n = max(minlength, high + 1)
    if n > MOST:
        raise ValueError(f"a table of {n} entries is more than {MOST}")
    if not x.size:
        return cupy.zeros(n, total)
    x = dense(x)[0] if weights is None else aligned(contiguous(x))
    return _count(x, weights, Integers(n), total)


def _columns(x: Array) -> list[Array]:
    """Return what lies along the last axis of `x`, each contiguous."""
    columns = [x[..., i] for i in range(x.shape[-1])]
    if all(column.flags.c_contiguous for column in columns):
        return columns
    return list(transpose(x, (x.ndim - 1, *range(x.ndim - 1))))


def to_numpy(x: Array) -> np.ndarray[Any, Any]:
    """Return a copy of `x` on the host."""
    on_host: np.ndarray[Any, Any] = cupy.asnumpy(x)
    return on_host


def from_numpy(x: np.ndarray[Any, Any]) -> Array:
    """Return a copy of `x` on the current device."""
    return cupy.asarray(x)


def _marks(marks: Array, ndim: int, axis: int, order: list[int], shape: tuple[int, ...]) -> Array:
    """Return the marks of the elements of a chunk whose axes are in `order`, then of `shape`."""
    if marks.ndim < ndim:
        marks = marks.reshape([-1 if d == axis else 1 for d in range(ndim)])
    return cupy.ascontiguousarray(cupy.broadcast_to(marks.transpose(order), shape))


def _longest_run(shape: tuple[int, ...], axes: list[int]) -> tuple[int, int]:
    """Return the bounds of the neighbouring `axes` that hold the most elements."""
    runs, start = [(0, 0)], 0
    for i, axis in enumerate(axes):
        if i == 0 or axis != axes[i - 1] + 1:
            start = axis
        runs.append((start, axis + 1))
    return max(runs, key=lambda run: (run[1] > run[0], math.prod(shape[run[0] : run[1]]), run))


def _reduce_rest(op: Operation, fields: State, axis: int) -> State:
    """Combine states along `axis`, neighbours first."""
    n = fields[0].shape[axis]
    if n == 0:
        shape = fields[0].shape[:axis] + fields[0].shape[axis + 1 :]
        return tuple(
            np.full_like(field, value, shape=shape)
            for field, value in zip(fields, op.monoid.identity(op.element), strict=True)
        )
    return reduce_along(op.monoid.combine, fields, axis)


def _fields(op: Operation, states: Array, kept: tuple[int, ...]) -> State:
    """Return the fields of the bytes `states`, each in the shape `kept`."""
    layout = programs_list.layout(op)
    host = deliver(states)
    if host is not states:
        records = host.view(layout).reshape(kept)
        return tuple(records[field.name][()] for field in op.monoid.fields)
    return _views(layout, states, kept)


def _pack(op: Operation, state: State, order: list[int]) -> Array:
    """Return states on the GPU, with their axes in that order; those of several fields as bytes."""
    layout = programs_list.layout(op)
    fields = [
        cupy.ascontiguousarray(cupy.asarray(field, dtype).transpose(order))
        for field, (dtype, _) in zip(state, programs_list.offsets(layout), strict=True)
    ]
    if len(fields) == 1:
        return fields[0]
    packed = cupy.empty((fields[0].size, layout.itemsize), "u1")
    for field, (dtype, offset) in zip(fields, programs_list.offsets(layout), strict=True):
        values = field.view("u1").reshape(field.size, dtype.itemsize)
        packed[:, offset : offset + dtype.itemsize] = values
    return packed


def _views(layout: np.dtype[Any], states: Array, shape: tuple[int, ...]) -> State:
    """Return the fields of states on the GPU, each in that shape."""
    if 0 in shape:
        # CuPy moves no pointer that points nowhere.
        return tuple(cupy.empty(shape, dtype) for dtype, _ in programs_list.offsets(layout))
    strides = tuple(layout.itemsize * math.prod(shape[d + 1 :]) for d in range(len(shape)))
    return tuple(
        _field(shape, dtype, states.data + offset, strides)
        for dtype, offset in programs_list.offsets(layout)
    )


def _field(shape: tuple[int, ...], dtype: np.dtype[Any], at: Any, strides: Any) -> Array:
    if dtype.kind != "c" or (at.ptr | strides[-1]) % dtype.itemsize == 0:
        return cupy.ndarray(shape, dtype, memptr=at, strides=strides)
    # CuPy reads complex numbers only where they are aligned as a whole.
    half = dtype.itemsize // 2
    parts = cupy.ndarray((*shape, 2), f"f{half}", memptr=at, strides=(*strides, half))
    return cupy.ascontiguousarray(parts).view(dtype)[..., 0]


if TYPE_CHECKING:
    from dask_coop.chunks.cupy import backend

    _: ChunkBackend = backend
