"""Products of CuPy chunks over the semirings of `dask_coop.algebra.semirings`.

Tiles hold words of 4 or 8 bytes. Narrower integers are widened, except that bytes are multiplied 4
at a time. Truth values are processed 32 at a time, packed into words along k.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.semirings import OR_AND, PLUS_TIMES, SEMIRINGS, Semiring
from dask_coop.algebra.strategies import AUTO, refusal
from dask_coop.chunks.cupy.transpose import contiguous, transpose
from dask_coop.cuda.devices import device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import matmul as programs

Array = Any

#: The least length of all three axes for which a product is split into bytes.
_LONG = 256

#: The least depth of a part, in words, when k is split because there are few tiles.
_PART = 256

#: The most variables and the fewest samples whose deviations our kernel multiplies, the fewest
#: samples of a block, and the samples of which one counts for a mean to subtract.
_VARIABLES, _SAMPLES, _SPAN, _EVERY = 256, 1 << 12, 1 << 9, 64

#: The parts in which samples for a mean are added; at least one of those of `_SAMPLES` each.
_BATCHES = 64


def matmul(a: Array, b: Array, semiring: str = "plus_times", strategy: str = AUTO) -> Array:
    """Return the product of two chunks over a semiring, shaped as np.matmul's.

    Parameters
    ----------
    a, b : cupy.ndarray
        With any real dtype and strides; complex numbers have only ``plus_times``.
    semiring : {"plus_times", "min_plus", "max_plus", "max_min", "or_and"}
    strategy : str
        "auto", or a name of `algebra.strategies.MATMUL`.

    Raises
    ------
    ValueError
        If the strategy does not apply.
    """
    ring, dtype = SEMIRINGS[semiring], np.result_type(a.dtype, b.dtype)
    ring.dtype(dtype)
    plain = ring is PLUS_TIMES
    on_tensor_cores = plain and dtype in programs.INT8_DTYPES and _has_tensor_cores()
    if strategy == AUTO:
        if plain and dtype.kind in "fc":
            strategy = "library"
        else:
            strategy = "bytes" if on_tensor_cores and _is_large(a, b, dtype.itemsize) else "tiles"
    elif strategy == "library" and not plain:
        raise refusal("matmul", strategy, f"has no {semiring}")
    elif strategy != "library" and dtype.kind == "c":
        raise refusal("matmul", strategy, f"does not take {dtype}")
    elif strategy == "bytes" and not on_tensor_cores:
        reason = (
            "takes plus_times of integers of up to 4 bytes, on compute capability 8.0 and newer"
        )
        raise refusal("matmul", strategy, f"{reason}, not {semiring} of {dtype} here")
    if strategy == "library":
        return cupy.matmul(a, b)
    with a.device:
        columns, rows = b.ndim == 1, a.ndim == 1
        a, b = a[np.newaxis, :] if rows else a, b[:, np.newaxis] if columns else b
        if strategy == "bytes":
            result = _multiply_bytes(a, b, dtype)
        else:
            result = _multiply(a, b, ring, dtype)
        if rows:
            result = result[..., 0, :]
        return result[..., 0] if columns else result


def multiply_deviations(a: Array, b: Array) -> tuple[Array, ...] | None:
    """Return sums of products of deviations of the rows of two matrices, as `ChunkBackend` says.

    Matrices of complex numbers, of few samples or of many rows are left to cuBLAS.
    """
    n = a.shape[1]
    few = min(len(a), len(b)) > 0 and max(len(a), len(b)) <= _VARIABLES
    if not few or n < _SAMPLES or {a.dtype.kind, b.dtype.kind} - {*"biuf"}:
        return None
    with a.device:
        if not _has_tensor_cores() or a.dtype != b.dtype:
            return None
        same = a is b
        shifts = [_means(x) for x in ((a,) if same else (a, b))]
        side = programs.DEVIATIONS_SIDE
        tiles = math.prod(-(-len(x) // side) for x in (a, b))
        busy = 2 * device(cupy.cuda.runtime.getDevice()).processors
        spans = max(1, min(busy // tiles, n // _SPAN))
        products = cupy.empty((spans, len(a), len(b)))
        sums = [cupy.empty((spans, len(x))) for x in (a, b)]
        sides = ((a, shifts[0]), (b, shifts[-1]))
        launch(
            programs.deviations(a.dtype),
            spans * tiles,
            programs.DEVIATIONS_THREADS,
            *(argument for x, shift in sides for argument in _variables(x, shift)),
            np.int32(same),
            np.int64(n),
            np.int64(spans),
            *(x.data.ptr for x in (products, *sums)),
            shared=programs.DEVIATIONS_BYTES,
        )
        of_a, of_b = (x.sum(0) for x in sums)
        return shifts[0], of_a, shifts[-1], of_b, products.sum(0)


def _means(x: Array) -> Array:
    """Return means of some samples, about which squares are at most _EVERY times as large."""
    some = x[:, ::_EVERY]
    # In batches, as few rows would keep few multiprocessors busy.
    length = some.shape[1] // _BATCHES
    batches = some[:, : _BATCHES * length].reshape(len(x), _BATCHES, length)
    return batches.sum(2, dtype="f8").sum(1) / (_BATCHES * length)


def _variables(x: Array, shifts: Array) -> tuple[Any, ...]:
    """Return the arguments of a `Variables` of kernel_deviations.cuh."""
    row, column = (np.int64(stride // x.itemsize) for stride in x.strides)
    return x.data.ptr, shifts.data.ptr, np.int64(len(x)), row, column


def _has_tensor_cores() -> bool:
    """Return whether the current GPU multiplies matrices of bytes by the instructions of sm_80."""
    gpu = device(cupy.cuda.runtime.getDevice())
    return int(gpu.arch.removeprefix("sm_")) >= 80


def _is_large(a: Array, b: Array, itemsize: int) -> bool:
    """Return whether a product is large enough to be split into bytes."""
    # Vectors have one axis.
    if min(a.ndim, b.ndim) < 2 or min(*a.shape[-2:], *b.shape[-2:]) < _LONG:
        return False
    # Ten products of bytes must make up for tiles that leave multiprocessors idle.
    high, wide, _ = programs.INT8_TILE
    tiles = a.size // (a.shape[-1] * high) * (b.shape[-1] // wide)
    return itemsize < 4 or tiles >= device(cupy.cuda.runtime.getDevice()).processors // 2


def _multiply_bytes(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """Return the product of matrices, or stacks of them, of integers of up to 4 bytes."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if k == 0 or 0 in shape or m * n == 0:
        return cupy.zeros((*shape, m, n), dtype)
    a, b = (contiguous(x.astype(dtype, copy=False)) for x in (a, b))
    a, b, batch, (a_outer, a_inner, b_outer, b_inner) = _batches(a, b, shape)
    steps = a_outer // (m * k), a_inner // (m * k), b_outer // (k * n), b_inner // (k * n)
    sides = zip((m, n, k), programs.INT8_TILE, strict=True)
    high, wide, deep = (-(-length // side) * side for length, side in sides)
    planes, threads = dtype.itemsize, programs.INT8_THREADS
    rows = cupy.empty((a.size // (m * k), planes, high, deep), "u1")
    columns = cupy.empty((b.size // (k * n), planes, wide, deep), "u1")
    result = cupy.empty((*shape, m, n), dtype)
    launch(
        programs.split_rows(dtype),
        -(-(rows.size // planes // 4) // threads),
        threads,
        a.data.ptr,
        rows.data.ptr,
        *map(np.int64, (rows.shape[0], m, k, high, deep)),
    )
    split_n, split_k = programs.INT8_SPLIT
    launch(
        programs.split_columns(dtype),
        columns.shape[0] * -(-deep // split_k) * (wide // split_n),
        threads,
        b.data.ptr,
        columns.data.ptr,
        *map(np.int64, (k, n, wide, deep)),
    )
    room = device(cupy.cuda.runtime.getDevice()).shared_bytes
    stages = min(programs.INT8_STAGES, room // programs.int8_shared_bytes(1))
    launch(
        programs.multiply_planes(dtype, stages),
        math.prod(batch) * (high // programs.INT8_TILE[0]) * (wide // programs.INT8_TILE[1]),
        threads,
        rows.data.ptr,
        columns.data.ptr,
        result.data.ptr,
        *map(np.int64, (m, n, deep, batch[1], *steps)),
        shared=programs.int8_shared_bytes(stages),
    )
    return result


def _multiply(a: Array, b: Array, ring: Semiring, dtype: np.dtype[Any]) -> Array:
    """Return the product of matrices or stacks of them."""
    if ring is OR_AND or dtype.kind == "b":
        return _multiply_truths(a.astype("?", copy=False), b.astype("?", copy=False), ring)
    if dtype.name == "float16":
        # Rounding keeps order: the least sum in float32, rounded, is the least rounded sum.
        single = np.dtype("f4")
        return _multiply(a.astype(single), b.astype(single), ring, single).astype(dtype)
    if ring is PLUS_TIMES and dtype.itemsize == 1:
        a, b = (_padded(x.astype(dtype, copy=False), axis, 4) for x, axis in ((a, -1), (b, -2)))
        return _launch(*_packed(a, b), programs.packed(dtype), ring, dtype)
    word = programs.word(dtype)
    a, b = (contiguous(x.astype(word, copy=False)) for x in (a, b))
    return _launch(a, b, programs.semiring(ring.name, dtype), ring, dtype)


def _multiply_truths(a: Array, b: Array, ring: Semiring) -> Array:
    """Multiply bools as ufuncs do: add and maximum are "or", multiply and minimum are "and"."""
    if ring.plus is np.minimum:
        return ~_multiply_truths(~a, ~b, OR_AND)
    if ring.times is np.add:
        return a.any(-1)[..., :, np.newaxis] | b.any(-2)[..., np.newaxis, :]
    dtype = np.dtype("?")
    a, b = _padded(a, -1, 32), _padded(b, -2, 32)
    return _launch(*_packed(a, b), programs.packed(dtype), OR_AND, dtype)


def _padded(x: Array, axis: int, multiple: int) -> Array:
    """Return `x` padded with zeros, so that its length along `axis` is a multiple of `multiple`."""
    missing = -x.shape[axis] % multiple
    if not missing:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    return cupy.pad(x, widths)


def _packed(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the operands packed along k: as 4-byte words, or words of 32 truth values."""
    swap = (*range(b.ndim - 2), b.ndim - 1, b.ndim - 2)
    a, b = contiguous(a), transpose(b, swap)
    if a.dtype.kind == "b":
        a, b = (cupy.packbits(x.ravel()).reshape(*x.shape[:-1], x.shape[-1] // 8) for x in (a, b))
    # Bytes may begin anywhere in memory; words must be aligned.
    a, b = (x if x.data.ptr % 4 == 0 else x.copy() for x in (a, b))
    words = [x.view("u4") if x.size else cupy.empty((*x.shape[:-1], 0), "u4") for x in (a, b)]
    return words[0], transpose(words[1], swap)


def _launch(a: Array, b: Array, source: str, ring: Semiring, dtype: np.dtype[Any]) -> Array:
    """Return the product of contiguous words, with elements of `dtype`, by the program `source`."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if k == 0 or 0 in shape or m * n == 0:
        return cupy.full((*shape, m, n), ring.zero(dtype), dtype)
    word = b.dtype.itemsize
    b = _padded(b, -1, 16 // word)
    if b.data.ptr % 16:
        b = b.copy()
    a, b, (outer, inner), steps = _batches(a, b, shape)
    tiles = -(-m // programs.SIDE) * -(-n // programs.SIDE) * outer * inner
    busy = device(cupy.cuda.runtime.getDevice()).processors * programs.BLOCKS[word]
    parts = max(1, min(busy // tiles, k // _PART))
    part = -(-k // parts)
    parts = -(-k // part)
    result = cupy.empty((*shape, parts, m, n), dtype)
    launch(
        source,
        tiles * parts,
        programs.THREADS,
        a.data.ptr,
        b.data.ptr,
        result.data.ptr,
        *map(np.int64, (m, n, k, b.shape[-1], part, parts, inner, *steps)),
        shared=programs.shared_bytes(word),
    )
    if parts == 1:
        return result[..., 0, :, :]
    # Only CuPy's ufunc add can reduce.
    reducers = {"add": cupy.sum, "minimum": cupy.min, "maximum": cupy.max}
    reduce = reducers.get(ring.plus.__name__, cupy.any)
    return reduce(result, -3).astype(dtype, copy=False)


def _batches(
    a: Array, b: Array, shape: tuple[int, ...]
) -> tuple[Array, Array, tuple[int, int], list[int]]:
    """Return operands with at most two stack axes, these axes, and the strides of both operands.

    Strides are in words: those of a along the outer and the inner axis, then those of b.
    """
    for _ in range(2):
        sizes: list[int] = []
        strides: list[tuple[int, int]] = []
        whole = [cupy.broadcast_to(x, shape + x.shape[-2:]) for x in (a, b)]
        for d in reversed(range(len(shape))):
            here = (whole[0].strides[d], whole[1].strides[d])
            if shape[d] == 1:
                continue
            if sizes and all(s == t * sizes[-1] for s, t in zip(here, strides[-1], strict=True)):
                sizes[-1] *= shape[d]
            else:
                sizes.append(shape[d])
                strides.append(here)
        if len(sizes) <= 2:
            break
        # More axes along which one operand is repeated are rare: repeat them in memory.
        a, b = map(cupy.ascontiguousarray, whole)
    while len(sizes) < 2:
        sizes.append(1)
        strides.append((0, 0))
    words = b.dtype.itemsize
    steps = [strides[axis][side] // words for side in (0, 1) for axis in (1, 0)]
    return a, b, (sizes[1], sizes[0]), steps
