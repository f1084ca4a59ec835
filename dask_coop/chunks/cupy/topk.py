"""The best elements of the lines of CuPy chunks, by sorting; long lines are reduced first.

The samples of a long line are counted by the digits of their keys (`dask_coop.algebra.digits`),
until few lie beyond the digit of the k-th best. These are collected in order and sorted.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.digits import Wanted, descend, elements_of, first_digit, key_bits, keys_of
from dask_coop.algebra.monoids import State
from dask_coop.algebra.quantiles import Quantiles
from dask_coop.algebra.topk import TopK, place, rank
from dask_coop.chunks.cupy import select
from dask_coop.chunks.cupy.arrays import HOST_STATE_BYTES, aligned
from dask_coop.chunks.cupy.bin_lookup import Lookup
from dask_coop.chunks.cupy.histogram_strategies import count as count_samples
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.cuda.programs import histogram as programs

Array = Any

#: The length of lines for which counting digits is faster than sorting, and the most lines that are
#: worked on one after the other.
_LONG, _FEW_LINES = 1 << 18, 16

_NO_SLOTS, _NOTHING = np.zeros(1, "i8"), np.zeros(0, "i8")


def lift(monoid: TopK, x: Array, axes: tuple[int, ...]) -> State:
    """Return the best elements of a chunk along one axis, with their indices if needed."""
    (axis,), k, indices = axes, monoid.k, monoid.positional
    lines = contiguous(cupy.moveaxis(x, axis, -1))
    *kept, n = lines.shape
    state = largest(lines.reshape(math.prod(kept), n), k, indices)
    shape = (*kept, min(abs(k), n))
    # States that combine must be in one memory, so decide by the full size for short chunks, too.
    nbytes = math.prod(kept) * abs(k) * sum(field.itemsize for field in state)
    to_host = nbytes <= HOST_STATE_BYTES
    fields = (cupy.asnumpy(field) if to_host else field for field in state)
    return tuple(field.reshape(shape) for field in fields)


def largest(x: Array, k: int, indices: bool) -> State:
    """Return the `k` largest elements of lines, or the smallest ones, and their indices.

    A line with fewer elements returns all. Equal elements stay in their order.

    Parameters
    ----------
    x : cupy.ndarray
        Of shape ``(lines, n)``, in C order.
    k : int
        Negative for the smallest.
    indices : bool
        Whether to return indices, too, as int64.
    """
    count = min(abs(k), x.shape[-1])
    if len(x) <= _FEW_LINES and count and _is_long(x.shape[-1], count):
        states = [_of_long_line(line, k) for line in x]
        values, at = (cupy.stack(fields) for fields in zip(*states, strict=True))
        return (values, at) if indices else (values,)
    if x.size == 0 or count == 0:
        at = cupy.zeros((len(x), count), np.int64)
        values = cupy.empty(at.shape, x.dtype)
        return (values, at) if indices else (values,)
    at = contiguous(rank(x, k)[:, :count])
    values = cupy.take_along_axis(x, at, -1)
    return (values, at) if indices else (values,)


def _of_long_line(x: Array, k: int) -> tuple[Array, Array]:
    """Return the best elements of a contiguous line, and their indices."""
    keyed = aligned(contiguous(x.view("u1") if x.dtype.kind == "b" else x))
    n, count, above = x.size, abs(k), k > 0
    wanted = Wanted(Quantiles(None), np.array([place(n, k)]), _NO_SLOTS, None, n)
    digits, better = first_digit(keyed.dtype, wanted), 0
    while True:
        table = cupy.zeros(digits.n, "i8")
        count_samples(keyed, None, digits, table)
        counts = cupy.asnumpy(table)
        follows = descend(digits, counts)
        prefix = follows.prefixes[0]
        digit = prefix & ((1 << digits.width) - 1)
        better += int(counts[digit + 1 :].sum() if above else counts[:digit].sum())
        are_few = better + int(counts[digit]) <= n // 8
        if are_few or not digits.shift:
            break
        digits = follows
    last = elements_of(np.array([prefix << digits.shift], "u8"), keyed.dtype)[0]
    if are_few:
        # Zeros of either sign are equal, and their keys are neighbours.
        zero = 1 << (key_bits(keyed.dtype) - 1 - digits.shift)
        if keyed.dtype.kind == "f" and prefix == (zero if above else zero - 1):
            prefix += -1 if above else 1
        at = _find(keyed, above, digits.shift, prefix)
    else:
        # The k-th best has many equals, of which the first are taken.
        equal = cupy.isnan(x) if last != last else keyed == last
        bound = prefix
        if keyed.dtype.kind == "f" and not last:
            bound = int(keys_of(np.array([0.0 if above else -0.0], keyed.dtype))[0])
        found = _find(keyed, above, 0, bound + (1 if above else -1)) if better else _NOTHING
        at = cupy.asarray(found)
        at = cupy.sort(cupy.concatenate([at, select.flatnonzero(equal)[: count - at.size]]))
    values = x[at]
    # Zeros of the other sign may have added many.
    if _is_long(values.size, count) and values.size <= n // 2:
        best, order = _of_long_line(values, k)
        return best, at[order]
    order = rank(values.reshape(1, -1), k)[0, :count]
    return values[order], at[order]


def _is_long(n: int, count: int) -> bool:
    return n >= max(_LONG, 8 * count)


def _find(x: Array, above: bool, bits: int, prefix: int) -> Array:
    """Return the indices of keys whose leading bits are `prefix`, or above it, or below it."""
    finder = programs.finder("above" if above else "below", x.dtype, x.dtype)
    found = Lookup(finder, (np.int32(1), np.int32(bits), np.uint64(prefix)))
    return select.collect(x, found, values=False, indices=True)[1]
