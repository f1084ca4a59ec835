"""Sums and running sums of NumPy chunks in float64 that keep what additions round off.

A sum is a total and its excess over the exact sum: two float64, or two complex128. Large chunks are
summed by the loops of loops/compensated.py, which make both at every fourth element. NumPy has no
such loop; without Numba, and for small chunks, elements are added up as they are until some 32 to
128 sums are left, and only what these add up to is exact: errors within them are fractions of an
ulp of one, and vanish beside all where they are random. Those of numbers of few values need not be;
equal numbers have none. Errors are as large beside the sum of sizes where signs differ.
Where there are many lines, sums are made first and all of their errors afterwards,
by D. E. Knuth, "The Art of Computer Programming", volume 2, theorem 4.2.2 B::

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

#: Fewer elements of a line than twice this many are corrected at every addition. Of more, so many
#: sums are: errors within them are random, and vanish among so many; equal numbers have none.
_SUMS = 32

#: Elements of a line that NumPy adds up by itself, and how many such sums are tried.
_ROW, _TRIED = 128, 32

#: Elements that are added, and corrected, at a time, so that they stay in the caches.
_BLOCK, _CORRECTED = 1 << 15, 1 << 13

#: Elements that NumPy scans without correction.
_RUN = 64


def compiled(x: Array) -> Any:
    """Return the loops for a chunk, or None where there is no Numba or they are not worth it."""
    # Numba has no float16, in either byte order.
    is_half = x.dtype.newbyteorder("=") == np.float16
    return None if is_half else loops_for("compensated", x.size)


def reduce(x: Array, axes: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """Return the sum of `x` over sorted axes, in `dtype`: totals and their excesses."""
    x = x if compiled(x) is None else aligned(x)
    if len(axes) == x.ndim and x.flags.c_contiguous and dtype == np.float64:
        if (loops := compiled(x)) is None:
            total, above = _add_line(x.reshape(-1))
            return np.float64(total), np.float64(above)
        both = np.zeros((2, 1))
        loops.sum_rows(read_only(x), x.size, x.size, None, None, np.empty(1, "i8"), *both, 1)
        return both[0, 0], both[1, 0]
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
        loops.sum_rows(flat, step, x.shape[1] * parts, *every, *sums, parts)
    else:
        loops.sum_columns(*flatten(x), *x.shape[1:], *every, *sums)
    total, above = (layout.join(field, shape) for field in sums.view(dtype))
    return total, above


def _reduce(x: Array, totals: Array, excesses: Array) -> None:
    """Reduce (outer, n, inner) over n."""
    outer, n, inner = x.shape
    if not x.size:
        return
    if outer * inner <= 2:
        for i, j in np.ndindex(outer, inner):
            totals[i, j], excesses[i, j] = _add_line(x[i, :, j])
        return
    with np.errstate(all="ignore"):
        x = _thinned(x, 2 * _SUMS)
        n = x.shape[1]
        lines, columns = max(1, _CORRECTED // (n * inner)), max(1, _CORRECTED // n)
        for line in range(0, outer, lines):
            for column in range(0, inner, columns):
                at = slice(line, line + lines), slice(column, column + columns)
                totals[at], excesses[at] = _add_up(x[at[0], :, at[1]])


def _add_line(x: Array) -> tuple[float, float]:
    """Add up numbers, and what the sum is above theirs."""
    if not len(x):
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        sums, rest = _add_rows(x) if len(x) >= 64 * _ROW else (x, x[:0])
        if len(sums) >= 4 * _SUMS:
            sums = _thinned(sums[np.newaxis, :, np.newaxis], 4 * _SUMS)[0, :, 0]
        parts = [*sums.tolist(), *rest.tolist()]
        try:
            total = math.fsum(parts)
            # A sum of nothing but negative zeros is positive, as that of nothing.
            return total + 0.0, -math.fsum((-total, *parts))
        except (OverflowError, ValueError):
            return np.add.reduce(x, dtype="f8"), math.nan


def _add_rows(x: Array) -> tuple[Array, Array]:
    """Add up rows of numbers, if errors vanish among so many; return what is left over, too.

    Not where they are of one sign, as those of numbers are that are equal or of few values; then
    rows have the same sums.
    """
    row = _ROW if len(x) < _BLOCK else 2 * _ROW
    whole = len(x) // row * row
    rows = x[:whole].reshape(-1, row)
    sums = np.add.reduce(rows, -1, dtype="f8")
    if len(set(sums[:_TRIED].tolist())) < _TRIED:
        some = slice(None, None, len(rows) // _TRIED)
        totals, excesses = _add_up(rows[some, :, np.newaxis])
        errors = (sums[some] - totals[:, 0]) + excesses[:, 0]
        if abs(errors.sum()) > 3 * math.sqrt(np.square(errors).sum()):
            return x, x[:0]
    return sums, x[whole:]


def _thinned(x: Array, most: int) -> Array:
    """Add up elements along axis 1 until there are fewer than `most`, and what is left over."""
    rests = []
    while (n := x.shape[1]) >= most:
        count = 1 << min((n // _SUMS).bit_length() - 1, 9)
        rests.append(x[:, n // count * count :])
        x = _thin(x, count)
    return np.concatenate([x, *rests], 1) if rests else x


def _thin(x: Array, count: int) -> Array:
    """Add up `count` elements at a time along axis 1, a power of two, in pairs of pairs."""
    outer, n, inner = x.shape
    whole = n // count
    result = np.empty((outer, whole, inner))
    columns = min(inner, 2 * _BLOCK // count)
    length = min(whole, max(1, _BLOCK // (count * columns)))
    lines = min(outer, max(1, _BLOCK // (length * count * columns)))
    space = np.empty((lines, count // 2 * length, columns))
    for line in range(0, outer, lines):
        for begin in range(0, whole, length):
            for column in range(0, inner, columns):
                at = slice(line, line + lines), slice(column, column + columns)
                end = min(begin + length, whole)
                sums = x[at[0], count * begin : count * end, at[1]]
                while (half := sums.shape[1] // 2) > end - begin:
                    into = space[: sums.shape[0], :half, : sums.shape[2]]
                    sums = np.add(sums[:, :half], sums[:, half:], out=into, dtype="f8")
                out = result[at[0], begin:end, at[1]]
                np.add(sums[:, :half], sums[:, half:], out=out, dtype="f8")
    return result


def _add_up(x: Array) -> tuple[Array, Array]:
    """Add up along axis 1, in pairs, and pairs of pairs, and what the additions are in error by."""
    outer, n, inner = x.shape
    size = 1 << (n - 1).bit_length()
    # Sums stand behind the elements, so that the errors of all are found at once.
    tree = np.empty((outer, 2 * size - 1, inner))
    tree[:, :n], tree[:, n:size] = x, 0
    begin, end = 0, size
    while end - begin > 1:
        sums = tree[:, end : end + (end - begin) // 2]
        np.add(tree[:, begin:end:2], tree[:, begin + 1 : end : 2], out=sums)
        begin, end = end, end + (end - begin) // 2
    errors = excess(tree[:, :-1:2], tree[:, 1:-1:2], tree[:, size:])
    # A sum of nothing but negative zeros is positive, as that of nothing.
    total = tree[:, -1] + 0.0
    return total, np.add.reduce(errors, 1) + (total - total)


def accumulate(x: Array, before: Sequence[Array] | None, out: Array) -> list[Array]:
    """Scan (outer, n, inner) along n into `out`, and return the state behind it.

    Runs of elements are scanned as they are, and put on top of a total that is good to twice as
    many bits; so no result has seen more than a run's additions.
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
        # Where a result is not finite, neither is what comes after it.
        if not np.isfinite(state[0] - state[1]).all():
            # What was infinite in a run need not be in the sum, nor what is after that NaN.
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
    """Return by how much `after`, which is `before` + `x` rounded, is above that."""
    added = after - before
    errors = added - x
    np.subtract(after, added, out=added)
    added -= before
    errors += added
    return errors
