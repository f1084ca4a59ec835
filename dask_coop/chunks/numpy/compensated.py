"""Sums and running sums of NumPy chunks in float64, with the rounding errors of additions.

A sum is a total and its excess over the exact sum: two float64, or two complex128. The loops of
loops/compensated.py sum large chunks, and compute both at every fourth element. For small chunks,
and without Numba, NumPy computes both at every addition, by D. E. Knuth, "The Art of Computer
Programming", volume 2, theorem 4.2.2 B::

    after  = before + x
    added  = after - before
    excess = (added - x) + ((after - added) - before)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_coop.chunks.numpy.lines import aligned, find_layout, flatten, read_only
from dask_coop.chunks.numpy.loop_table import loops_for

Array = np.ndarray[Any, Any]

#: Elements that are added at a time, few enough to stay in the caches.
_BLOCK = 1 << 13

#: Sums of a line that Python adds sooner than NumPy halves their number.
_FEW = 256

#: Elements that NumPy scans without correction.
_RUN = 64


def compiled(x: Array) -> Any:
    """Return the loops for a chunk, or None without Numba or where they are not worth compiling."""
    # Numba has no float16, in either byte order.
    is_half = x.dtype.newbyteorder("=") == np.float16
    return None if is_half else loops_for("compensated", x.size)


def reduce(x: Array, axes: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """Return the sum of `x` over sorted axes, in `dtype`: totals and their excesses."""
    x = x if compiled(x) is None else aligned(x)
    if len(axes) == x.ndim and x.flags.c_contiguous and dtype == np.float64:
        if (loops := compiled(x)) is not None:
            both = np.zeros((2, 1))
            loops.sum_rows(read_only(x), x.size, x.size, None, None, np.empty(1, "i8"), *both)
            return both[0, 0], both[1, 0]
        if x.size <= 2 * _FEW:
            total, above = _add_few(x.reshape(-1), x.reshape(-1)[:0])
            return np.float64(total), np.float64(above)
    layout, shape, parts = find_layout(x, axes), x.shape, 1
    x = layout.split(x)
    if x.dtype.kind == "c":
        narrow = x.shape[2] < 2 or x.strides[2] == x.itemsize
        x, parts = (x if narrow else np.ascontiguousarray(x)).view(f"f{x.itemsize // 2}"), 2
    sums = np.zeros((2, x.shape[0] * x.shape[2]))
    every = None, None, np.empty(sums.shape[1], "i8")
    if (loops := compiled(x)) is None:
        _reduce(x, *sums.reshape(2, x.shape[0], x.shape[2]))
    elif x.shape[2] == parts and x.strides[1] == parts * x.itemsize:
        flat, step, _ = flatten(x)
        loops.sum_rows(flat, step, x.shape[1] * parts, *every, *sums, parts=parts)
    else:
        loops.sum_columns(*flatten(x), *x.shape[1:], *every, *sums)
    total, above = (layout.join(field, shape) for field in sums.view(dtype))
    return total, above


def _reduce(x: Array, totals: Array, excesses: Array) -> None:
    """Reduce (outer, n, inner) over n: in independent lanes, which are then halved."""
    outer, n, inner = x.shape
    if not x.size:
        return
    lanes = max(1, min(n, _BLOCK // (outer * inner)))
    with np.errstate(all="ignore"):
        # A sum of only negative zeros is positive zero, as is the sum of no elements.
        total = np.add(x[:, :lanes], 0, dtype="f8")
        above = np.zeros_like(total)
        for begin in range(lanes, n, lanes):
            block = x[:, begin : begin + lanes]
            _add(total[:, : block.shape[1]], above[:, : block.shape[1]], block)
        is_line = outer * inner <= 2
        while lanes > (_FEW if is_line else 1):
            half = (lanes + 1) // 2
            above[:, : lanes - half] += above[:, half:lanes]
            _add(total[:, : lanes - half], above[:, : lanes - half], total[:, half:lanes])
            lanes = half
        if is_line:
            for i, j in np.ndindex(outer, inner):
                totals[i, j], excesses[i, j] = _add_few(total[i, :lanes, j], above[i, :lanes, j])
            return
    totals[...], excesses[...] = total[:, 0], above[:, 0]


def _add_few(total: Array, above: Array) -> tuple[float, float]:
    """Return the sum of some totals without their excesses, and the excess of that sum."""
    addends = [*total.tolist(), *(-above).tolist()]
    try:
        value = math.fsum(addends) + 0.0
        if math.isfinite(value):
            return value, 0.0 - math.fsum((-value, *addends))
    except (OverflowError, ValueError):
        pass
    return float(np.add.reduce(total)), math.nan


def _add(total: Array, above: Array, x: Array) -> None:
    """Add numbers to totals, and the rounding errors to their excesses."""
    after = total + x
    above += excess(total, x, after)
    total[...] = after


def accumulate(x: Array, before: Sequence[Array] | None, out: Array) -> list[Array]:
    """Scan (outer, n, inner) along n into `out`, and return the state behind it.

    Runs of elements are scanned plainly, then added to a total that has twice as many bits; so
    no result contains the errors of more than one run's additions.
    """
    if before is None:
        before = [np.broadcast_to(value, x[:, :1].shape) for value in nothing(x.dtype)]
    total, above = state = before
    whole, by_row = 0, x.strides[1] != x.itemsize
    into = out if by_row or x.shape[2] == 1 else np.empty_like(x)
    with np.errstate(all="ignore"):
        if not by_row:
            whole = x.shape[1] // _RUN * _RUN
            runs, sums = (
                a[:, :whole].transpose(0, 2, 1).reshape(x.shape[0], x.shape[2], -1, _RUN)
                for a in (x, into)
            )
            np.add.accumulate(runs, -1, out=sums)
            ends = [a.transpose(0, 2, 1) for a in (total, above)]
            totals = np.add.accumulate(np.concatenate([ends[0], sums[..., -1]], -1), -1)
            errors = excess(totals[..., :-1], sums[..., -1], totals[..., 1:])
            aboves = np.add.accumulate(np.concatenate([ends[1], errors], -1), -1)
            sums += (totals - aboves)[..., :-1, np.newaxis]
            state = [a[..., -1:].transpose(0, 2, 1) for a in (totals, aboves)]
        for begin in range(whole, x.shape[1], _RUN):
            here = slice(begin, begin + _RUN)
            state = _accumulate_run(x[:, here], state, into[:, here], by_row)
        if into is not out:
            out[...] = into
        # Once a result is not finite, no later one is.
        if not np.isfinite(state[0] - state[1]).all():
            # A run may overflow though the whole sum does not; results behind it may be finite.
            plain = np.add.accumulate(np.concatenate([total, x], 1), 1)[:, 1:]
            np.copyto(out, plain, where=~np.isfinite(out))
            end, finite = plain[:, -1:], np.isfinite(state[0])
            state = [np.where(finite, state[0], end), np.where(finite, state[1], end * 0)]
    return list(state)


def _accumulate_run(x: Array, state: Sequence[Array], out: Array, by_row: bool) -> list[Array]:
    total, above = state
    if by_row:
        out[:, 0] = x[:, 0]
        for row in range(1, x.shape[1]):
            np.add(out[:, row - 1], x[:, row], out=out[:, row])
    else:
        np.add.accumulate(x, 1, out=out)
    end = out[:, -1:].copy()
    out += total - above
    after = total + end
    return [after, above + excess(total, end, after)]


def nothing(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the state that changes no element, a negative zero included."""
    return dtype.type(complex(-0.0, -0.0) if dtype.kind == "c" else -0.0), dtype.type(0)


def excess(before: Array, x: Array, after: Array) -> Array:
    """Return how far `after`, the rounded `before` + `x`, exceeds the exact sum."""
    added = after - before
    errors = added - x
    np.subtract(after, added, out=added)
    added -= before
    errors += added
    return errors
