"""Cases of moving windows and of means of boxes: every window is reduced by itself, and wider.

Order statistics of windows are those of sorted ones.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from dask.array.chunk import coarsen
from support.windows import FUNCTIONS, ORDER, STATISTICS, laid_out

from fuzz import draw
from fuzz.case import Array, Case, Named
from fuzz.exact import EPS, Expected


def draw_window(rng: draw.Generator) -> Case:
    """Draw a statistic of windows along an axis that has elements."""
    sides = tuple(max(1, n) for n in draw.shape(rng, 1))
    array = draw.values(rng, draw.pick(rng, draw.REAL), sides)
    name = draw.pick(rng, STATISTICS)
    if name in ("var", "std") and draw.chance(rng, 0.4):
        # Differences between numbers far from zero.
        array = draw.pick(rng, [1e9, -1e9]) + rng.normal(size=sides)
        array[rng.random(sides) < draw.pick(rng, [0, 0, 0.2])] = np.nan
    axis = int(rng.integers(-array.ndim, array.ndim))
    n = array.shape[axis]
    options: dict[str, Any] = {"window": int(rng.integers(1, n + 1)), "axis": axis}
    if draw.chance(rng, 0.6):
        options["min_count"] = int(rng.integers(1, options["window"] + 1))
    if draw.chance(rng, 0.4):
        options["center"] = True
    if name in ("var", "std") and draw.chance(rng, 0.4):
        options["ddof"] = 1
    return Case("window", f"move_{name}", (draw.operand(rng, array),), {}, options)


def expect_window(case: Case) -> list[Expected]:
    """Return the statistic of each window laid out, in long double."""
    statistic = case.function.removeprefix("move_")
    window, axis = case.option("window"), case.option("axis", -1)
    center, ddof = bool(case.option("center", False)), case.option("ddof", 0)
    least = case.option("min_count") or window
    windows = laid_out(case.x.astype("f8").astype("g"), window, axis, center)
    value, slack, defined = _reduce(statistic, windows, least, ddof)
    dtype = case.x.dtype if case.x.dtype.kind == "f" else np.dtype("f8")
    exact = statistic in ("min", "max")
    moved = (np.moveaxis(a, -1, axis) for a in (value, slack, defined))
    value, slack, defined = moved
    ulps = None if exact else 4.0
    chunks = case.inputs[0].chunks
    return [Expected(value, dtype, ulps, 0.0 if exact else slack, chunks, defined=defined)]


def draw_pairs(rng: draw.Generator) -> Case:
    """Draw a covariance or a correlation of windows, now and then of numbers far from zero."""
    sides = tuple(max(1, n) for n in draw.shape(rng, 1))
    dtype, far = draw.pick(rng, ["f8", "f8", "f4", "i4"]), draw.pick(rng, [0, 0, 1e6])
    x, y = ((far + rng.normal(size=sides) * 10).astype(dtype) for _ in range(2))
    if dtype != "i4" and draw.chance(rng, 0.4):
        x[rng.random(sides) < 0.2] = np.nan
    axis = int(rng.integers(-x.ndim, x.ndim))
    options: dict[str, Any] = {"window": int(rng.integers(1, x.shape[axis] + 1)), "axis": axis}
    if draw.chance(rng, 0.6):
        options["min_count"] = int(rng.integers(1, options["window"] + 1))
    options["ddof"] = int(rng.integers(0, 3))
    options["center"] = draw.chance(rng, 0.4)
    operands = draw.operand(rng, x), draw.operand(rng, y)
    name = draw.pick(rng, ["move_cov", "move_corr"])
    return Case("pairs of windows", name, operands, {}, options)


def expect_pairs(case: Case) -> list[Expected]:
    """Return the covariance or the correlation of each window laid out, in long double."""
    window, axis, ddof = (case.option(name) for name in ("window", "axis", "ddof"))
    x, y = (
        laid_out(of.array.astype("f8").astype("g"), window, axis, case.option("center"))
        for of in case.inputs
    )
    gone = np.isnan(x) | np.isnan(y)
    n = (~gone).sum(-1)
    with np.errstate(all="ignore"):
        d, e = (
            np.where(gone, 0, of - (np.where(gone, 0, of).sum(-1) / n)[..., None]) for of in (x, y)
        )
        xx, yy, xy = (a.sum(-1) for a in (d * d, e * e, d * e))
        scale = np.sqrt(xx * yy)
        value, slack = np.where(n > ddof, xy / (n - ddof), np.nan), scale / np.maximum(n - ddof, 1)
        # A single pair, or equal ones, have deviations of rounding errors.
        defined = np.ones(n.shape, "?")
        if case.function == "move_corr":
            value, slack = xy / scale, np.ones(n.shape)
            defined = (n != 1) & (np.minimum(xx, yy) > 1e-9)
    value = np.where(n >= (case.option("min_count") or window), value, np.nan)
    moved = (np.moveaxis(a, -1, axis) for a in (value, 1e-9 * slack + 1e-12, defined))
    value, slack, defined = moved
    dtype = case.x.dtype if case.x.dtype.kind == "f" else np.dtype("f8")
    return [Expected(value, dtype, 4.0, slack, case.inputs[0].chunks, defined=defined)]


def draw_order(rng: draw.Generator) -> Case:
    """Draw an order statistic of windows, now and then of ones that are sorted in tiles."""
    name = draw.pick(rng, [*ORDER, "median", "quantile", "quantile"])
    if long := draw.chance(rng, 0.1):
        sides: tuple[int, ...] = (int(rng.integers(1, 4)), int(rng.integers(5_000, 20_000)))
    else:
        sides = tuple(max(1, n) for n in draw.shape(rng, 1))
    array = draw.values(rng, draw.pick(rng, draw.REAL), sides)
    axis = array.ndim - 1 if long else int(rng.integers(-array.ndim, array.ndim))
    widest = 300 if long else array.shape[axis]
    options: dict[str, Any] = {"window": int(rng.integers(1, widest + 1)), "axis": axis}
    if draw.chance(rng, 0.7):
        options["min_count"] = int(rng.integers(1, options["window"] + 1))
    if name != "rank" and draw.chance(rng, 0.4):
        options["center"] = True
    if name == "quantile":
        options["q"] = draw.pick(rng, [0, 0.25, 1, float(rng.random()), float(rng.random())])
    return Case("order of windows", f"move_{name}", (draw.operand(rng, array),), {}, options)


def expect_order(case: Case) -> list[Expected]:
    """Return the order statistic of each window laid out."""
    statistic, axis = case.function.removeprefix("move_"), case.option("axis", -1)
    window, q = case.option("window"), case.option("q")
    windows = laid_out(case.x, window, axis, bool(case.option("center", False)))
    counts = (windows == windows).sum(-1)
    dtype = case.x.dtype if case.x.dtype.kind == "f" else np.dtype("f8")
    ulps, slack, defined = None, np.zeros(counts.shape), np.ones(counts.shape, "?")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if statistic in ("median", "quantile"):
            place = (np.maximum(counts, 1) - 1) * (0.5 if q is None else q)
            ends = np.floor(place), np.ceil(place)
            low, high = (
                np.take_along_axis(np.sort(windows, -1), end.astype("i8")[..., None], -1)[..., 0]
                for end in ends
            )
            value = low + (high.astype("g") - low) * (place - ends[0])
            value = np.where(low == high, low, value)
            most = max(float(np.finfo(dtype).max), float(np.finfo("f4").max))
            size = np.maximum(np.abs(low), np.abs(high))
            defined = (size < most / 2) | (counts < 1)
            ulps, slack = 4.0, 4 * float(np.finfo(dtype).eps) * np.where(defined, size, 0)
        else:
            value = ORDER[statistic](windows, axis=-1)
            dtype = np.dtype("f4") if dtype == np.float16 else dtype
    least = case.option("min_count") or window
    value = np.where(counts >= least, value, np.nan)
    value, slack, defined = (
        np.moveaxis(a, -1, axis) for a in (value, np.nan_to_num(slack), defined | (counts < least))
    )
    chunks = case.inputs[0].chunks
    return [Expected(value, dtype.newbyteorder("="), ulps, slack, chunks, defined=defined)]


def draw_box(rng: draw.Generator) -> Case:
    """Draw means of boxes over one or two axes."""
    ndim = int(rng.integers(1, 4))
    sides = tuple(int(n) for n in rng.integers(1, 14, ndim))
    array = draw.values(rng, draw.pick(rng, ["f4", "f8", "i2", "?"]), sides, special=False)
    axes = tuple(int(a) for a in rng.permutation(ndim)[: int(rng.integers(1, min(ndim, 2) + 1))])
    size = tuple(int(rng.integers(1, sides[a] + 1)) for a in axes)
    mode = draw.pick(rng, ["reflect", "nearest", "wrap"])
    options = {"size": size, "axes": axes, "mode": mode}
    return Case("box", "box_filter", (draw.operand(rng, array),), {}, options)


def expect_box(case: Case) -> list[Expected]:
    """Return means of boxes of what was made larger at its borders."""
    dtype = case.x.dtype if case.x.dtype.kind == "f" else np.dtype("f8")
    modes = {"reflect": "symmetric", "nearest": "edge", "wrap": "wrap"}
    value, scale, count = case.x.astype("g"), np.abs(case.x.astype("g")), 1
    for axis, size in zip(case.option("axes"), case.option("size"), strict=True):
        widths = [(0, 0)] * value.ndim
        widths[axis] = (size // 2, size - 1 - size // 2)
        count *= size
        value, scale = (
            np.lib.stride_tricks.sliding_window_view(
                np.pad(a, widths, modes[case.option("mode", "reflect")]), size, axis
            ).mean(-1)
            for a in (value, scale)
        )
    # Means along one axis are rounded before those along the next are made.
    slack = count * EPS * scale + 4 * float(np.finfo(dtype).eps) * scale
    return [Expected(value, dtype, 4.0, slack, case.inputs[0].chunks)]


def draw_pyramid(rng: draw.Generator) -> Case:
    """Draw arrays that are coarsened once or twice."""
    sides = tuple(int(n) for n in rng.integers(4, 30, int(rng.integers(1, 4))))
    array = draw.values(rng, draw.pick(rng, ["f2", "f4", "f8", "i2", "?"]), sides, special=False)
    levels = int(rng.integers(1, 3))
    factor = {d: int(rng.integers(1, int(n ** (1 / levels)) + 1)) for d, n in enumerate(sides)}
    reduction = draw.pick(rng, ["np.mean", "dc.sum", "np.max", "np.min"])
    options = {"levels": levels, "reduction": Named(reduction), "factor": factor}
    return Case("pyramid", "pyramid", (draw.operand(rng, array),), {}, options)


def expect_pyramid(case: Case) -> list[Expected]:
    """Return what windows of the whole array are reduced to."""
    reduction, factor = case.option("reduction"), case.option("factor")
    name = reduction.__name__
    wide = name == "mean" or (name == "sum" and case.x.dtype.kind == "f")
    value, results = case.x.astype("g") if wide else case.x, []
    scale, dtype = np.abs(case.x.astype("g")), case.x.dtype
    for _ in range(case.option("levels")):
        value = coarsen(getattr(np, name), value, factor, trim_excess=True)
        scale = coarsen(np.sum if name == "sum" else np.max, scale, factor, trim_excess=True)
        dtype = getattr(np, name)(np.ones(1, dtype)).dtype
        rounding = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0
        slack = (4 * rounding + math.prod(factor.values()) * EPS) * scale * (dtype.kind == "f")
        results.append(Expected(value, dtype.newbyteorder("="), 4.0, slack))
    return results


def _is_far(windows: Array) -> bool:
    """Tell whether all elements are beyond 1 and within a factor of two."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        low, high = np.nanmin(np.abs(windows)), np.nanmax(np.abs(windows))
        signs = np.nanmin(np.sign(windows)) == np.nanmax(np.sign(windows))
    return bool(low > 1 and high <= 2 * low and high < 1e15 and signs)


def _reduce(statistic: str, windows: Array, least: int, ddof: int) -> tuple[Array, Any, Any]:
    """Return results, how far off they may be, and where they are anything in particular."""
    counts = (windows == windows).sum(-1)
    options = {"ddof": ddof} if statistic in ("var", "std") else {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        value = FUNCTIONS[statistic](windows, axis=-1, **options)
        sizes = np.nansum(np.abs(windows), -1)
        slack = windows.shape[-1] * EPS * sizes
        defined = np.ones(value.shape, "?")
        if statistic == "mean":
            slack = slack / counts
        if statistic in ("var", "std"):
            slack = 4 * windows.shape[-1] * EPS * np.nansum(windows * windows, -1)
            # Squares of small deviations underflow in float64.
            slack = slack + windows.shape[-1] * float(np.finfo("f8").smallest_subnormal)
            slack = slack / np.maximum(counts - ddof, 1)
            if _is_far(windows):
                slack = 1e-10 * value
            # There are no deviations of one element with one taken off; infinity's are NaN.
            infinite = np.isinf(windows).any(-1)
            value = np.where(infinite, np.nan, value)
            defined = infinite | np.isfinite(sizes) & (counts > ddof) | (counts < least)
        if statistic == "std":
            slack = slack / np.maximum(value, np.sqrt(slack))
    value = np.where(counts >= least, value, np.nan)
    return value, np.nan_to_num(slack, nan=0, posinf=0), defined
