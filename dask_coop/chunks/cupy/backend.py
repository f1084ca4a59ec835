"""The backend of CuPy chunks: all functions that graphs call.

A chunk is viewed as an array of shape (outer, n, inner), whose lines of n elements are reduced or
scanned. Contiguous lines (inner == 1) go to the kernels named *rows*, others to those named
*columns*. If there are fewer lines than the GPU can work on at a time, lines are cut into *tiles*.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from dask_coop.algebra.filters import Filter
from dask_coop.algebra.merges import settle
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec, segmented
from dask_coop.chunks import ChunkBackend, files
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.arrays import (
    HOST_STATE_BYTES,
    aligned,
    deliver,
    dense,
    field_of,
    pack,
    views,
)
from dask_coop.chunks.cupy.bin_lookup import codes as codes
from dask_coop.chunks.cupy.digits import collect as collect
from dask_coop.chunks.cupy.exact import cast
from dask_coop.chunks.cupy.grouped import lift_groups as lift_groups
from dask_coop.chunks.cupy.histogram import digitize as digitize
from dask_coop.chunks.cupy.histogram import histogram as histogram
from dask_coop.chunks.cupy.lift import lift as lift
from dask_coop.chunks.cupy.matmul import matmul as matmul
from dask_coop.chunks.cupy.matmul import multiply_deviations as multiply_deviations
from dask_coop.chunks.cupy.multichunk import downsweep as downsweep
from dask_coop.chunks.cupy.multichunk import histogram_all as histogram_all
from dask_coop.chunks.cupy.multichunk import lift_all as lift_all
from dask_coop.chunks.cupy.multichunk import synchronize as synchronize
from dask_coop.chunks.cupy.multichunk import upsweep as upsweep
from dask_coop.chunks.cupy.order_statistics import order_statistics as order_statistics
from dask_coop.chunks.cupy.scan import reduce_segments, scan_lines
from dask_coop.chunks.cupy.select import compress as compress
from dask_coop.chunks.cupy.select import flatnonzero as flatnonzero
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.chunks.cupy.transpose import join as join
from dask_coop.chunks.cupy.transpose import most_joined as most_joined
from dask_coop.chunks.cupy.transpose import transpose as transpose
from dask_coop.chunks.cupy.unique import isin as isin
from dask_coop.chunks.cupy.unique import merge_distinct as merge_distinct
from dask_coop.chunks.cupy.unique import positions as positions
from dask_coop.chunks.cupy.unique import searchsorted as searchsorted
from dask_coop.chunks.cupy.windows import move as move
from dask_coop.chunks.kept import KEPT_CHUNKS
from dask_coop.cuda import pressure, transfer
from dask_coop.cuda.launch import RANGES as RANGES
from dask_coop.cuda.ring import FileRange
from dask_coop.cuda.transfer import SMALL_BYTES, to_device, to_host
from dask_coop.meters import TO_GPU, TO_HOST, timed

Array = Any

#: The elements that one launch of CuPy's filters takes, whose positions have 32 bits.
_MOST_FILTERED = (1 << 31) - 1

#: The places in a line, and the lines, that 16 bits tell apart; the most elements of lines that are
#: sorted at a time, and the fewest for which a kernel is compiled.
_PLACES, _PACKED, _FEW = 1 << 16, 1 << 27, 1 << 16

#: cudaErrorInsufficientDriver and cudaErrorNoDevice.
_WITHOUT_GPU = (35, 100)


def scan(
    op: Operation,
    x: Array,
    spec: ScanSpec,
    base: State | None = None,
    heads: Array | None = None,
) -> Array:
    """Return the scan of the chunk `x` from `base`.

    A result with the initial state is longer than `x`; unless `axis` is the first in memory, a copy
    assembles it, with 2N of memory traffic.
    """
    with x.device:
        axis = spec.axis
        x, order = dense(cast(x, op.element))
        at = order.index(axis)
        shape = (math.prod(x.shape[:at]), x.shape[at], math.prod(x.shape[at + 1 :]))
        others = [d - (d > axis) for d in order if d != axis]
        # The base has the axes of the chunk without the scan's, in the original order.
        bases = None if base is None else pack(op, base, others)
        if heads is not None:
            heads = _heads(heads, x.ndim, axis, order, x.shape)
        written = programs_list.written(op)
        # States of several fields are handled as bytes until they become results.
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
                nothing = pack(op, fields, list(range(len(kept))))
            if op.monoid.has_excess:
                states = views(programs_list.layout(op), nothing, (shape[0], 1, inner))
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
                segments=heads,
            )
            if spec.initial and result is not rest:
                rest[...] = result
        longer = (*x.shape[:at], whole.shape[1], *x.shape[at + 1 :])
        if op.monoid.finalize is not None:
            states = views(written, whole, longer) if written.names else (whole,)
            whole = cast(op.monoid.finalize(states), op.output)
            whole = cupy.ascontiguousarray(whole)
        whole = whole.reshape(longer)
        return whole.transpose(np.argsort(order)) if order != sorted(order) else whole


def scan_on(
    op: Operation,
    x: Array,
    spec: ScanSpec,
    base: State | None = None,
    heads: Array | None = None,
) -> tuple[Array, State]:
    """Return the scan of the chunk `x` from `base`, and the state after it: 3N of traffic."""
    result = scan(op, x, spec, base, heads)
    if heads is not None:
        state = lift_segments(op, x, spec, heads)
        if base is not None:
            state = segmented(op.monoid).combine((*base, np.zeros_like(state[-1])), state)
        return result, state[:-1]
    if spec.reverse and not op.monoid.commutative:
        x = cupy.flip(x, spec.axis)
    state = lift(op, x, (spec.axis,))
    return result, state if base is None else op.monoid.combine(base, state)


def lift_segments(op: Operation, x: Array, spec: ScanSpec, heads: Array) -> State:
    """Reduce the elements after the last head flag of each line of the chunk `x` to a state.

    The last field tells whether a line has a flag; `heads` are the flags of all elements or of one
    line.
    """
    with x.device:
        axis = spec.axis
        order = [*(d for d in range(x.ndim) if d != axis), axis]
        x = aligned(contiguous(cast(x, op.element).transpose(order)))
        heads = _heads(heads, x.ndim, axis, order, x.shape)
        kept, n = x.shape[:-1], x.shape[-1]
        if x.size == 0:
            # In the same memory as the states of other chunks, with which it is combined.
            nbytes = math.prod(kept) * programs_list.segmented_layout(op).itemsize
            xp = np if nbytes <= HOST_STATE_BYTES else cupy
            state = (xp.full(kept, field) for field in op.monoid.identity(op.element))
            return (*(field[()] for field in state), xp.zeros(kept, "?")[()])
        states = reduce_segments(op, x, heads, (math.prod(kept), n, 1), spec.reverse)
        layout = programs_list.segmented_layout(op)
        host = deliver(states)
        if host is not states:
            records = host.view(layout).reshape(kept)
            values = (records["value"][field.name][()] for field in op.monoid.fields)
            return (*values, (records["restarts"] != 0)[()])
        strides = np.empty(kept, layout).strides
        fields = [
            field_of(kept, dtype, states.data + offset, strides)
            for dtype, offset in programs_list.offsets(programs_list.layout(op))
        ]
        (_, (truth, at)) = programs_list.offsets(layout)
        restarts = cupy.ndarray(kept, truth, memptr=states.data + at, strides=strides)
        return (*fields, restarts != 0)


def label(x: Array, structure: np.ndarray[Any, Any]) -> Array:
    """Return the labels of connected true elements of the chunk `x`, by CuPy."""
    # Slow to import.
    from cupyx.scipy import ndimage

    with x.device:
        return ndimage.label(contiguous(x), structure)[0]


def filter_lines(
    of: Filter, x: Array, delays: np.ndarray[Any, Any] | None = None
) -> tuple[Array, np.ndarray[Any, Any]]:
    """Return the filtered lines of the chunk `x`, by CuPy, and the delays behind them."""
    delays = of.begin(x.shape, delays)
    if x.size > _MOST_FILTERED and x.shape[of.axis] > 1:
        halves = []
        for half in cupy.array_split(x, 2, of.axis):
            y, delays = filter_lines(of, half, delays)
            halves.append(y)
        return cupy.concatenate(halves, of.axis), delays
    with x.device:
        y = cupy.moveaxis(x.astype(of.dtype, copy=False), of.axis, -1)
        before = cupy.moveaxis(cupy.asarray(delays.astype(of.dtype)), 0, -1)
        behind, at = [], 0
        for (b, a), order in zip(of.padded(), of.orders, strict=True) if x.size else ():
            y, after = _filter(b, None if of.is_finite else a, y, before[..., at : at + order])
            behind.append(after)
            at += order
        if behind:
            delays = cupy.moveaxis(cupy.concatenate(behind, -1), -1, 0).get().astype(delays.dtype)
        return contiguous(cupy.moveaxis(y, -1, of.axis)), delays


@cache
def _lfilter() -> Any:
    with warnings.catch_warnings():
        # CuPy warns of how it compiles other filters of this package.
        warnings.filterwarnings("ignore", "cupyx.jit.rawkernel", FutureWarning)
        from cupyx.scipy.signal import lfilter
    return lfilter


def _filter(b: Any, a: Any, x: Array, delays: Array) -> tuple[Array, Array]:
    """Return lines filtered by a section along the last axis, and the delays behind them.

    Delays are what the results get after these samples: of the samples, and of earlier results.
    CuPy's own initial state has no room for delays of neither.
    """
    lfilter, n, order = _lfilter(), x.shape[-1], len(b) - 1
    nothing, alone = cupy.zeros((*x.shape[:-1], order), x.dtype), cupy.ones(1, x.dtype)
    y = lfilter(cupy.asarray(b), alone, cupy.concatenate([x, nothing], -1))
    y[..., :order] += delays
    y, after = y[..., :n], y[..., n:].copy()
    if a is not None:
        y = lfilter(alone, cupy.asarray(a), y)
        last = cupy.concatenate([y[..., -min(n, order) :] if order else nothing, nothing], -1)
        fed = cupy.asarray(np.concatenate([np.zeros(1, a.dtype), -a[1:]]))
        after += lfilter(fed, alone, last)[..., last.shape[-1] - order :]
    return y, after


def sort(x: Array, axis: int, stable: bool) -> Array:
    """Return a sorted copy of the chunk `x`, by a stable sort."""
    with x.device:
        if not x.size:
            return x.copy()
        if _has_complex_nan(x):
            return cupy.take_along_axis(x, _argsort_complex(x, axis), axis)
        return cupy.sort(x, axis)


def merge_sorted(xs: Sequence[Array], stable: bool) -> Array:
    """Return the sorted elements of sorted arrays, by a stable sort."""
    with xs[0].device:
        x = cupy.concatenate([*xs])
        if _has_complex_nan(x):
            return x[_argsort_complex(x, 0)]
        x.sort()
        return x


def argsort(x: Array, axis: int, stable: bool) -> Array:
    """Return the indices that sort the chunk `x`, by a stable sort."""
    with x.device:
        # CuPy's argsort divides by the length of lines.
        if not x.size:
            return cupy.zeros(x.shape, np.int64)
        if _has_complex_nan(x):
            return _argsort_complex(x, axis)
        short = x.ndim > 1 and x.size >= _FEW and x.shape[axis] <= _PLACES
        if short and x.itemsize <= 4 and x.dtype.kind in "biuf":
            return cupy.moveaxis(_argsort_lines(cupy.moveaxis(x, axis, -1)), -1, axis)
        return cupy.argsort(x, axis).astype(np.int64, copy=False)


#: How kernels make unsigned keys of elements, in the order of NumPy: NaN are last, and alike.
_KEYS = {
    # By bits alone, as arithmetic of CuPy's kernels takes subnormal numbers for zeros.
    "f": """unsigned bits = __float_as_uint((float)x);
    bits = bits == 0x80000000u ? 0u : bits;
    unsigned key = bits ^ ((int)bits < 0 ? 0xffffffffu : 0x80000000u);
    key = (bits & 0x7fffffffu) > 0x7f800000u ? 0xffffffffu : key;""",
    "i": "unsigned key = (unsigned)(int)x ^ 0x80000000u;",
    "u": "unsigned key = (unsigned)x;",
}


@cache
def _packing(kind: str) -> Any:
    """Return a kernel that packs lines, keys and places in lines of n elements in 64 bits."""
    packed = "y = (unsigned long long)(i / n) << 48 | (unsigned long long)key << 16 | i % n"
    name = f"dask_coop_pack_{kind}"
    return cupy.ElementwiseKernel("T x, int64 n", "uint64 y", f"{_KEYS[kind]} {packed}", name)


def _argsort_lines(x: Array) -> Array:
    """Return the indices that sort short lines along the last axis, by sorts of many lines."""
    n = x.shape[-1]
    pack, lines = _packing("u" if x.dtype.kind == "b" else x.dtype.kind), x.reshape(-1, n)
    order = cupy.empty(lines.shape, np.int64)
    step = min(_PLACES, _PACKED // n)
    for begin in range(0, len(lines), step):
        some = slice(begin, begin + step)
        packed = pack(lines[some], n)
        packed.reshape(-1).sort()
        order[some] = packed & (_PLACES - 1)
    return order.reshape(x.shape)


def to_numpy(
    x: Array, nbytes: int | None = None, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Return a copy of `x` on the host, through up to `nbytes` of pinned memory."""
    with timed(TO_HOST, x.nbytes):
        return to_host(x, nbytes, out)


def from_numpy(
    x: np.ndarray[Any, Any], nbytes: int | None = None, direct: files.Direct = "auto"
) -> Array:
    """Return a copy of `x` on the current device, through up to `nbytes` of pinned memory.

    For a memory-mapped array, read the file instead of the map, past the page cache if `direct`
    says so.

    Raises
    ------
    RuntimeError
        If this process has no GPU.
    """
    if x.flags.f_contiguous and not x.flags.c_contiguous:
        return from_numpy(x.T, nbytes, direct).T
    place = files.find(x, direct) if x.nbytes >= SMALL_BYTES else None
    try:
        with timed(TO_GPU, x.nbytes):
            return to_device(x, nbytes, place and FileRange(*place))
    except OSError as error:
        if place is None:
            raise
        raise OSError(error.errno, f"{files.name_of(place.descriptor)}: {error}") from error
    except runtime.CUDARuntimeError as error:
        if error.status not in _WITHOUT_GPU:
            raise
        message = f"cannot copy a chunk to a GPU, because this process has none: {error}"
        raise RuntimeError(message) from error


def keeper() -> tuple[int | None, int]:
    """Return the current device and its bytes of memory; None if chunks cannot be kept there."""
    return pressure.keeper(KEPT_CHUNKS.free)


def reader() -> Any:
    """Return the module that reads stored arrays onto the GPU; None without GPU or Numba."""
    try:
        from dask_coop.files.gpu import reading

        runtime.getDevice()
    except (ImportError, runtime.CUDARuntimeError):
        return None

    return reading


def empty_on_host(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a new array on the host for chunks that leave a GPU."""
    return transfer.empty_on_host(shape, dtype)


def _has_complex_nan(x: Array) -> bool:
    return x.dtype.kind == "c" and bool(cupy.isnan(x).any())


def _argsort_complex(x: Array, axis: int) -> Array:
    """Return the indices that sort complex numbers with NaN as NumPy does.

    The keys are which components are NaN, then real parts, then imaginary parts; CuPy treats all
    NaN alike.
    """
    order = cupy.argsort(x.imag, axis)
    for key in (x.real, 2 * cupy.isnan(x.real) + cupy.isnan(x.imag)):
        by_key = cupy.argsort(cupy.take_along_axis(key, order, axis), axis)
        order = cupy.take_along_axis(order, by_key, axis)
    return order.astype(np.int64, copy=False)


def _heads(heads: Array, ndim: int, axis: int, order: list[int], shape: tuple[int, ...]) -> Array:
    """Return the head flags of a chunk with its axes in `order`, broadcast to `shape`."""
    if heads.ndim < ndim:
        heads = heads.reshape([-1 if d == axis else 1 for d in range(ndim)])
    return cupy.ascontiguousarray(cupy.broadcast_to(heads.transpose(order), shape))


if TYPE_CHECKING:
    from dask_coop.chunks.cupy import backend

    _: ChunkBackend = backend
