"""Check the arguments of reductions, and build their graphs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.blockwise import blockwise
from dask.array.core import asanyarray, broadcast_to, handle_out, map_blocks
from dask.array.creation import empty_like
from dask.array.utils import validate_axis
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.algebra import reproducible as digits
from dask_coop.algebra.merges import settle
from dask_coop.algebra.monoids import MonoidRow, State, accumulator
from dask_coop.algebra.operation import Operation, bind, compensated, reproducible
from dask_coop.algebra.statistics import STATISTICS
from dask_coop.chunks.dtypes import casts, convert, declared_by, device_of
from dask_coop.graph import reduce as graph_reduce
from dask_coop.graph.layers import rechunked

Axis = int | tuple[int, ...] | None
SplitEvery = int | dict[int, int] | None


class ReductionArguments(NamedTuple):
    """The arguments of a public function that reduces, except elements and dtypes."""

    axis: Axis = None
    keepdims: bool = False
    split_every: SplitEvery = None
    #: A Dask array, or None.
    out: Any = None
    where: Any = True
    #: For sums, extrema and monoids of one field only.
    initial: Any = None
    #: Whether sums have the same bits for every order of the elements; for sums and means only.
    reproducible: bool = False


def reduce_array(
    monoid: MonoidRow,
    name: str,
    finalize: graph_reduce.Finalize,
    x: da.Array,
    given: ReductionArguments,
    *,
    dtype: Any = None,
    result: Any = None,
    skipna: bool = False,
) -> da.Array:
    """Reduce `x` by the arguments of the public function `name`.

    Parameters
    ----------
    monoid : MonoidRow
    name : str
        The name of the reduction in messages and keys.
    finalize : callable
        Makes the result from the last state.
    x : dask.array.Array
    given : ReductionArguments
    dtype : dtype, optional
        The dtype in which elements are reduced; by default the monoid's.
    result : dtype, optional
        The dtype of the result; by default `dtype`.
    skipna : bool
        Whether to ignore NaN.
    """
    output = monoid.output(x.dtype) if dtype is None else np.dtype(dtype)
    op = bind(monoid, x.dtype, output, name, skipna)
    axes, mask = find_axes(given.axis, x.ndim), find_mask(given.where, x)
    if given.reproducible:
        op = reproducible(op)
        if op.monoid is not monoid:
            refuse_many(name, x, axes)
    elif (exact := compensated(op)) is not op:
        op = exact
        if op.monoid.has_excess:
            finalize = partial(_settle, finalize)
    if given.initial is not None:
        finalize = partial(_begin, op, _as_state(op, given.initial), finalize)
    outputs = {name: (finalize, op.output if result is None else np.dtype(result))}
    (lazy,) = graph_reduce.reduction(op, x, axes, given.keepdims, given.split_every, outputs, mask)
    return handle_out(given.out, lazy)


def reduce_statistic(
    name: str, x: da.Array, given: ReductionArguments, dtype: Any = None, **keywords: Any
) -> da.Array:
    """Reduce `x` by the statistic `name`, for the public function of the same name.

    Parameters
    ----------
    name : str
        One of `STATISTICS`.
    x : dask.array.Array
    given : ReductionArguments
    dtype : dtype, optional
        The dtype of the result; by default the monoid's.
    **keywords
        Further arguments of the function that makes the result from the last state.
    """
    row = STATISTICS[name]
    output = np.dtype(row.monoid.output(x.dtype) if dtype is None else dtype).newbyteorder("=")
    finish = row.finish_with(**keywords)
    if row.exact is not None and given.reproducible and output.kind in "fc":
        finish = partial(row.exact, output=output)
    if row.converts and row.leaves_out(x.dtype) and output.kind in "biu":
        x = replace_nan(row.monoid, name, x)
    target = {"dtype" if row.converts else "result": output}
    return reduce_array(row.monoid, name, finish, x, given, skipna=row.skipna, **target)


def replace_nan(monoid: MonoidRow, name: str, x: da.Array) -> da.Array:
    """Return `x` with NaN replaced by the neutral element.

    Call this before elements are converted to a dtype without NaN.
    """
    neutral = bind(monoid, x.dtype, x.dtype, name).neutral
    return map_blocks(_replace_nan, x, neutral, **declared_by(x), dtype=x.dtype, meta=x._meta)


@casts
@chunks.keeps_mask
def _replace_nan(x: Any, value: Any) -> Any:
    return np.where(np.isnan(x), value, x)


def _settle(finalize: Callable[[State], Any], state: State) -> Any:
    return finalize(settle(state))


def _as_state(op: Operation, initial: Any) -> State:
    """Return the state of `initial` alone, which comes before the first element."""
    if is_dask_collection(initial) or np.ndim(initial):
        raise TypeError(f"initial is one number that is known, got {initial!r}")
    value, *others = op.monoid.identity(op.element)
    if not others or op.monoid.has_excess:
        return (value.dtype.type(initial), *others)
    wide = op
    if not op.monoid.positional:
        # As in other sums, `initial` is float64 and may be NaN.
        wide = replace(op, element=accumulator(op.element), skipna=False)
    array = np.full(1, initial, wide.element)
    state: State = chunks.backend_of(array).lift(wide, array, (0,))
    return state


def _begin(op: Operation, initial: State, finalize: Callable[[State], Any], state: State) -> Any:
    return finalize(op.combine([initial, state]))


def find_mask(where: Any, x: da.Array) -> Any:
    """Return `where` in the shape and chunks of `x`, or None if all elements take part."""
    if where is True or where is np.True_:
        return None
    mask = asanyarray(where)
    if mask.dtype.kind != "b":
        raise TypeError(f"where takes truth values, got dtype {mask.dtype}")
    fitting = in_shape_of("where", mask, x)
    return None if 0 in x.shape and fitting is not mask else fitting


def placed_along(y: da.Array, axes: Container[int], ndim: int) -> da.Array:
    """Return `y`, which has these axes of an array of `ndim`, with the others of length one."""
    return y[tuple(slice(None) if d in axes else np.newaxis for d in range(ndim))]


def in_shape_of(name: str, y: da.Array, x: da.Array) -> da.Array:
    """Return the array `y` of the argument `name` in the shape and chunks of `x`."""
    if y.numblocks == x.numblocks and (has_unknown_size(x) or y.chunks == x.chunks):
        for n, length in zip(y.shape, x.shape, strict=True):
            if (n != n) != (length != length) and n != 1:
                raise ValueError(
                    f"{name} has shape {y.shape}, and the array {x.shape}: where one of the "
                    "lengths is unknown, they may differ; compute_chunk_sizes() finds them"
                )
        return fitting(name, y, x, [d for d, n in enumerate(y.shape) if n != n])
    if has_unknown_size(x) or has_unknown_size(y):
        raise ValueError(
            f"{name} needs as many chunks as the array, {x.numblocks}, if the sizes of either's "
            f"are unknown, got {y.numblocks}; compute_chunk_sizes() finds them"
        )
    lead = x.ndim - y.ndim
    if lead < 0 or any(n not in (1, to) for n, to in zip(y.shape, x.shape[lead:], strict=True)):
        raise ValueError(f"{name} of shape {y.shape} does not fit an array of shape {x.shape}")
    if 0 in x.shape:
        return empty_like(x, dtype=y.dtype)
    sides = zip(y.shape, x.shape[lead:], x.chunks[lead:], strict=True)
    like_x = tuple(sizes if n == to else (n,) for n, to, sizes in sides)
    return broadcast_to(y.rechunk(like_x), x.shape, x.chunks)


def fitting(name: str, y: da.Array, x: da.Array, axes: Sequence[int]) -> da.Array:
    """Return the array `y` of the argument `name`, whose tasks hold its blocks to those of `x`.

    Lengths along `axes` are unknown before, and NumPy would broadcast a block of length one.
    """
    if y is x or not axes:
        return y
    of_blocks = {"argument": name, "axes": axes, **declared_by(y, x)}
    return y.map_blocks(_require_fit, x, **of_blocks, dtype=y.dtype, meta=y._meta)


@casts
def _require_fit(y: Any, x: Any, *, argument: str, axes: Sequence[int]) -> Any:
    if any(y.shape[d] != x.shape[d] for d in axes):
        raise ValueError(
            f"{argument} has a block of shape {y.shape} where the array has one of {x.shape}; "
            "chunks of unknown sizes must be equal, and compute_chunk_sizes() finds them"
        )
    return y


def rechunk(x: da.Array, sizes: tuple[tuple[int, ...], ...]) -> da.Array:
    """Return `x` in chunks of these sizes, even if it is empty, unlike Dask's rechunk."""
    if not x.size and x.chunks != sizes:
        return empty_like(x, chunks=sizes)
    return rechunked(x, sizes)


def as_dtype(x: da.Array, dtype: Any) -> da.Array:
    """Return `x` as `dtype`, by way of the declared dtype, which Dask's ``astype`` skips."""
    dtype = np.dtype(dtype)
    return x if x.dtype == dtype else _converted(x, dtype)


def as_declared(x: da.Array) -> da.Array:
    """Return `x` with its chunks converted to the dtype that it declares."""
    return _converted(x, x.dtype)


def _converted(x: da.Array, dtype: np.dtype[Any]) -> da.Array:
    meta = chunks.zeros_like(x._meta, dtype)
    return x.map_blocks(convert, **declared_by(x), to=dtype, dtype=dtype, meta=meta)


def without_empty(x: da.Array) -> da.Array:
    """Return `x` without empty chunks, on which Dask's functions fail."""
    if not any(0 in sizes for sizes in x.chunks):
        return x
    return rechunk(x, tuple(tuple(size for size in sizes if size) or (0,) for sizes in x.chunks))


def reshaped(x: da.Array, shape: tuple[int, ...]) -> da.Array:
    """Return `x` in another shape."""
    # Dask's reshape fails on some empty arrays.
    return x.reshape(shape) if x.size else empty_like(x, shape=shape, chunks=shape)


def require_one_kind(name: str, x: da.Array, other: str, y: da.Array) -> None:
    """Raise TypeError if one array has NumPy chunks and the other CuPy chunks."""
    kinds = chunks.kind(x._meta, name), chunks.kind(y._meta, other)
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"{name} has {kinds[0]} chunks and {other} {kinds[1]} chunks; "
            "move one of them with .to_backend()"
        )


def in_chunks_of(name: str, x: da.Array, other: str, y: Any) -> da.Array:
    """Return `y` as an array in chunks of the kind of `x`'s, where it goes if it is in memory.

    Raises
    ------
    TypeError
        If it is lazy, with chunks of another kind.
    """
    array = asanyarray(y)
    if not is_dask_collection(y):
        array = array.to_backend(chunks.kind(x._meta, name))
    require_one_kind(name, x, other, array)
    return array


def broadcastable(x: da.Array) -> da.Array:
    """Return `x` with one chunk along each axis of length 0 or 1.

    Dask broadcasts every chunk along such an axis, even an empty one.
    """
    split = [d for d, n in enumerate(x.shape) if n <= 1 and x.numblocks[d] > 1]
    return x.rechunk(dict.fromkeys(split, -1)) if split else x


def find_axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return the axes in `axis`, sorted and counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    axes = validate_axis(tuple(axis) if isinstance(axis, tuple | list) else (axis,), ndim)
    if len(set(axes)) != len(axes):
        raise ValueError(f"duplicate value in 'axis': {axis}")
    return tuple(sorted(axes))


def refuse_mask(name: str, where: Any, initial: Any, x: da.Array) -> None:
    """Refuse a mask without `initial`: it may exclude all elements, and there is no identity.

    Masked arrays need no `initial`: where no element is left, their result is masked.
    """
    if chunks.is_masked(x._meta):
        return
    if initial is None and where is not True and where is not np.True_:
        raise ValueError(
            f"reduction operation {name} does not have an identity, so to use a where mask one "
            "has to specify 'initial'"
        )


def refuse_many(name: str, x: da.Array, axes: tuple[int, ...]) -> None:
    """Refuse arrays with more elements along `axes` than digits can count, if sizes are known."""
    count = math.prod(x.shape[d] for d in axes)
    if count > digits.LIMIT:
        raise ValueError(
            f"{name} with reproducible=True takes at most 2**39 elements at a time, got {count}"
        )


def require_elements(name: str, x: da.Array, axis: Axis) -> None:
    """Raise ValueError if an axis in `axis` has length 0; unknown lengths pass."""
    axes = find_axes(axis, x.ndim)
    if any(x.shape[d] == 0 for d in axes):
        raise ValueError(f"{no_identity(name)}: shape {x.shape}, axes {axes}")


def no_identity(name: str) -> str:
    """Return NumPy's message for a reduction of an empty array to one of its elements."""
    return f"zero-size array to reduction operation {name} which has no identity"


def has_unknown_size(x: da.Array) -> bool:
    """Return whether the sizes of some chunks are unknown until they are computed."""
    return any(n != n for n in x.shape)


def require_known_sizes(name: str, *arrays: da.Array) -> None:
    """Raise ValueError if sizes of chunks are unknown."""
    if any(map(has_unknown_size, arrays)):
        raise ValueError(f"{name} needs known chunk sizes; x.compute_chunk_sizes() finds them")


def as_integer(name: str, argument: str, value: Any) -> int:
    """Return an argument of the public function `name` as an int; raise TypeError for others."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} takes an integer for {argument}, got {value!r}") from None


def as_pairs(name: str, first: da.Array, second: da.Array) -> tuple[da.Array, np.dtype[Any]]:
    """Return complex elements, of two arrays of real ones, and the dtype of results of both.

    Parameters
    ----------
    name : str
        The public function.
    first, second : dask.array.Array
        Bool, integers or floats.

    Raises
    ------
    ValueError
        If they differ in shape, or sizes of chunks are unknown.
    """
    require_known_sizes(name, first, second)
    if first.shape != second.shape:
        raise ValueError(f"{name} takes arrays of one shape, got {first.shape} and {second.shape}")
    output = np.result_type(first.dtype, second.dtype)
    output = np.dtype("f8") if output.kind in "biu" else output
    dtype = np.dtype("c8" if output.itemsize <= 4 else "c16")
    return pairs_of(name, first, rechunk(second, first.chunks), dtype), output


def pairs_of(name: str, x: da.Array, y: da.Array, dtype: np.dtype[Any]) -> da.Array:
    """Return pairs of elements, of arrays of the same chunks, as complex numbers of `dtype`."""
    axes = tuple(range(x.ndim))
    return blockwise(
        _pair,
        axes,
        *(x, axes, y, axes),
        to=dtype,
        token=f"{name}-pairs",
        dtype=dtype,
        meta=chunks.zeros_like(x._meta, dtype),
        align_arrays=False,
        **declared_by(x, y),
    )


@casts
def _pair(x: Any, y: Any, *, to: np.dtype[Any]) -> Any:
    with device_of(x):
        pairs = np.empty_like(x, to)
        # Multiplied by 1j, infinity would become NaN.
        pairs.real[...], pairs.imag[...] = x, y
        return pairs
