"""Statistics of windows over NumPy chunks: compiled loops, or a few NumPy steps without Numba."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.windows import Window
from dask_coop.chunks import window_steps
from dask_coop.chunks.numpy.lines import memory_and_place, read_only
from dask_coop.chunks.numpy.loop_table import loops, loops_for
from dask_coop.chunks.states import boxes

Array = np.ndarray[Any, Any]

#: Layout of lines, parts of each line, length of a part, and groups of eight done at a time.
_Plan = tuple[int, int, int, int]

#: Elements that a step works on at a time, and those that a compiled loop keeps in the caches.
_ROOM, _CACHED = 1 << 14, 1 << 10

#: The fewest results of a tile that is sorted for order statistics, the length of one in windows,
#: and the longest window whose elements are counted for ranks.
_TILE, _WINDOWS, _COUNTED = 1 << 12, 4, 200

#: Lines that the loops of sums work on together (loops/lanes.py).
LANES = 8

#: Elements of windows that the loops of sums keep in the caches.
_RINGS = 1 << 15

#: The fewest neighbouring columns that a compiled loop works on together.
_COLUMNS = 16


def move(window: Window, x: Array, halo: Array, base: State | None = None) -> Array:
    """Return the statistic of the window that ends at each element of the chunk `x`."""
    element, result = window.element(x.dtype), window.result(x.dtype)
    if window.is_ordered:
        return _move_ordered(window, x, halo)
    if window.is_paired or loops_for("window_extrema", x.size) is None:
        x, halo = (a.astype(element, copy=False) for a in (x, halo))
        statistics: Array = window_steps.move(window, x, halo, base, _ROOM)
        return statistics.astype(result, copy=False)
    if x.dtype not in (np.float32, np.float64):
        x, halo = (a.astype(element) for a in (x, halo))
    return _compiled(window, x, halo, base).astype(result, copy=False)


def _move_ordered(window: Window, x: Array, halo: Array) -> Array:
    """Return order statistics of windows, by tiles of lines."""
    axis, w, element = window.axis, window.length, window.element(x.dtype)
    if loops_for("window_order", x.size * w) is None:
        laid_out: Array = window_steps.move_ordered(window, x, halo, _ROOM)
        return laid_out
    rows, earlier = np.moveaxis(x, axis, -1), np.moveaxis(halo, axis, -1)
    result = np.empty(x.shape, window.result(x.dtype))
    out, n, before = np.moveaxis(result, axis, -1), x.shape[axis], halo.shape[axis]
    step = min(n, max(_TILE, _WINDOWS * w))
    tables = _tables(window, element)
    of_tile = np.promote_types(element, result.dtype)
    # Neighbouring columns are read together.
    for box in boxes(out.shape[:-1], max(LANES, _ROOM // (step + w))) if x.size else ():
        for begin in range(0, n, step):
            stop, of_halo = min(n, begin + step), max(0, before - max(0, w - 1 - begin))
            parts = [earlier[box][..., of_halo:], rows[box][..., max(0, begin - w + 1) : stop]]
            tile = np.concatenate(parts, -1, dtype=element, casting="unsafe")
            results = np.empty((math.prod(tile.shape[:-1]), stop - begin), of_tile)
            _fill_tile(window, tile.reshape(len(results), -1), tables, results)
            out[box][..., begin:stop] = results.reshape(*tile.shape[:-1], -1)
    return result


def _fill_tile(window: Window, x: Array, tables: tuple[Array, Array], out: Array) -> None:
    """Write order statistics of the windows of rows that end at their last elements."""
    compiled, w, least = loops("window_order"), window.length, window.min_count
    match window.statistic:
        case "argmin" | "argmax":
            compiled.move_places(x, w, least, window.statistic == "argmin", window.first, out)
        case "rank" if w <= _COUNTED:
            compiled.rank_short(x, w, least, out)
        case "rank":
            compiled.rank_long(x, np.argsort(x, -1), w, least, out)
        case _:
            compiled.move_quantiles(x, np.argsort(x, -1), w, least, *tables, out)


def _tables(window: Window, element: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the ranks beside quantiles by the number of elements, and how far these are away."""
    ranks = window.quantiles.ranks(np.arange(window.length + 1))
    gammas = np.empty((0, 2))
    if ranks.gamma is not None:
        gammas = np.stack([ranks.gamma, 1 - ranks.gamma], -1)
    return np.stack([ranks.previous, ranks.next], -1), gammas.astype(element)


def _compiled(window: Window, x: Array, halo: Array, base: State | None) -> Array:
    """Return the statistics of windows by compiled loops."""
    axis, w = window.axis, window.length
    outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    if base is not None:
        x, halo, base = window_steps.recentred(window, x, halo, base)
    if window.statistic not in ("min", "max"):
        plan = _plan(outer, n, inner, w)
        if plan is not None:
            return _sums(window, x, halo, base, plan)
    return _by_doubling(window, x, halo, base)


def _by_doubling(window: Window, x: Array, halo: Array, base: State | None) -> Array:
    """Return the statistics of windows of any length by the loops of loops/window_extrema.py."""
    x, halo, base = window_steps.recentred(window, x, halo, base)
    axis, w = window.axis, window.length
    outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    before = halo.shape[axis]
    out = np.empty(x.shape, x.dtype.newbyteorder("="))
    memory, place = memory_and_place(_lines(x, axis))
    earlier, halo_place = memory_and_place(_lines(halo, axis))
    arrays = memory, place, earlier, halo_place, out.reshape(-1), (outer, n, inner), before, w
    limits = float(window.min_count), _bases(base, outer * inner), _block(n, inner, w)
    match window.statistic:
        case "sum" | "mean":
            loops("window_extrema").move_sums(*arrays, window.statistic == "mean", *limits)
        case "min" | "max":
            loops("window_extrema").move_extremes(*arrays, window.statistic == "min", *limits)
        case _:
            least, *others = limits
            ddof = float(window.ddof)
            loops("window_extrema").move_deviations(
                *arrays, window.statistic == "std", least, ddof, *others
            )
    return out


def _sums(window: Window, x: Array, halo: Array, base: State | None, plan: _Plan) -> Array:
    """Return sums, means, variances or deviations of windows by the loop of eight lines."""
    axis, w, least = window.axis, window.length, float(window.min_count)
    rows, earlier = _lines(x, axis), _lines(halo, axis)
    if plan[1] > 1:
        earlier = _earlier(rows, earlier, w, plan)
    out, before, inner = np.empty(rows.shape, rows.dtype), earlier.shape[-2], rows.shape[2]
    places, halo_places, lines = _places(rows, before, plan)
    squared, mean = window.statistic in ("var", "std"), window.statistic in ("mean", "std")
    # Divisors, values, squared deviations, counts.
    besides = np.zeros((1, 4, LANES))
    if base is not None:
        besides = np.zeros((len(lines) // LANES, 4, LANES))
        for field, i in zip(_bases(base, math.prod(rows.shape[::2])), (3, 1, 2), strict=False):
            besides[:, i] = field[lines].reshape(-1, LANES)
    counts = w + besides[:, 3]
    besides[:, 0] = np.where(counts >= least, counts if mean else 1.0, np.nan)
    skips = squared or bool((counts > least).any())
    last = mean if skips else not (besides[:, 0] == 1).all() or base is not None
    how = w, least, float(window.ddof), last
    arrays = read_only(rows), read_only(earlier), out.reshape(-1), before, inner, how, plan
    which = (None, None, True) if squared else (True, skips or None, None)
    lost = loops("window_sums").move(*arrays, places, halo_places, besides.reshape(-1), which)
    out = out.reshape(x.shape)
    if lost:
        np.copyto(out, _by_doubling(window, x, halo, base), where=out < 0)
    return out


def _plan(outer: int, n: int, inner: int, w: int) -> _Plan | None:
    """Return how to take lines in eights (loops/window_sums.py), or None if that does not apply.

    Few lines are cut into parts, unless windows are so long that parts would mostly repeat.
    """
    size = (w + 1) * LANES
    if inner >= LANES:
        return 0, 1, n, max(1, min(_RINGS // size, -(-inner // LANES) * outer))
    lines = outer * inner

    def rows(parts: int) -> int:
        return -(-lines * parts // LANES) * (-(-n // parts) + w)

    parts = min(range(1, 1 + min(LANES, max(1, n // w))), key=rows)
    if size > max(lines * n, _CACHED):
        return None
    return 1 if inner == 1 else 2, parts, -(-n // parts), 1


def _places(x: Array, before: int, plan: _Plan) -> tuple[Array, Array, Array]:
    """Return the begins of each of eight lines, or parts, and of their halos; and their lines.

    Each is one array of indices for all lines.
    """
    outer, n, inner = x.shape
    layout, parts, length, _ = plan
    if layout == 0:
        columns = np.minimum(np.arange(0, inner, LANES), inner - LANES)[:, None] + np.arange(LANES)
        lines = (np.arange(0, outer * inner, inner)[:, None] + columns.reshape(-1)).reshape(-1)
        part = np.zeros_like(lines)
    else:
        lanes = np.arange(-(-outer * inner * parts // LANES) * LANES)
        lines, part = np.divmod(np.minimum(lanes, outer * inner * parts - 1), parts)
    group, column = np.divmod(lines, inner)
    begin = np.minimum(part * length, n - length)
    return (
        (group * n + begin) * inner + column,
        (group * parts + part) * before * inner + column,
        lines,
    )


def _earlier(x: Array, halo: Array, w: int, plan: _Plan) -> Array:
    """Return the elements before each part of lines, as (outer, parts, w - 1, inner)."""
    outer, n, inner = x.shape
    _, parts, length, _ = plan
    before = np.full((outer, parts, w - 1, inner), np.nan, x.dtype)
    for part in range(parts):
        begin = min(part * length, n - length)
        source, stop = (x, begin) if part else (halo, halo.shape[1])
        known = min(stop, w - 1)
        before[:, part, w - 1 - known :] = source[:, stop - known : stop]
    return before


def _block(n: int, inner: int, w: int) -> tuple[int, int]:
    """Return the rows and columns of a block, large enough that little is read twice."""
    rows = min(n, max(_CACHED // min(inner, _COLUMNS), 3 * w))
    return rows, min(inner, max(_COLUMNS, _CACHED // (rows + w)))


def _lines(x: Array, axis: int) -> Array:
    """Return `x` as (outer, n, inner)."""
    x = np.ascontiguousarray(x, x.dtype.newbyteorder("="))
    return x.reshape(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))


def _bases(base: State | None, lines: int) -> Array:
    """Return the base state that all windows of a line include, its fields along the first axis."""
    if base is None:
        return np.empty((3, 0))
    fields = [np.broadcast_to(np.asarray(field, "f8").reshape(-1), lines) for field in base[:3]]
    return np.stack(fields)
