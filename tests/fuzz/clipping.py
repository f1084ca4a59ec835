"""Cases of sigma clipping and of deviations from the median, judged line by line."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from support.clipping import clipped, lines_of, mad

from fuzz import draw
from fuzz.case import Case
from fuzz.exact import Expected


def _draw(rng: draw.Generator) -> tuple[Any, Any]:
    """Return an array of a few outliers, and axes."""
    sides = tuple(max(1, n) for n in draw.shape(rng, 1, 3))
    array = rng.standard_t(2, sides) * 9
    if draw.chance(rng, 0.3):
        array[rng.random(sides) < 0.1] = draw.pick(rng, [np.nan, np.inf])
    else:
        array = array.astype(draw.pick(rng, ["i4", "f8"]))
    axis = draw.pick(rng, [None, 0, -1, (0, array.ndim - 1) if array.ndim > 1 else 0])
    return array, axis


def draw_clip(rng: draw.Generator) -> Case:
    """Draw a call of sigma_clip that returns NaN and bounds."""
    array, axis = _draw(rng)
    options = {"axis": axis, "masked": False, "return_bounds": True}
    options |= {"sigma": draw.pick(rng, [1.3, 2.0, 3.1]), "maxiters": int(rng.integers(1, 6))}
    options |= {"cenfunc": draw.pick(rng, ["median", "mean"])}
    options |= {"stdfunc": draw.pick(rng, ["std", "mad_std"])}
    if draw.chance(rng, 0.3):
        options["sigma_upper"] = 1.1
    return Case("clip", "sigma_clip", (draw.operand(rng, array),), {}, options)


def expect_clip(case: Case) -> list[Expected]:
    """Return what a loop over the lines clips."""
    sigma = case.option("sigma")
    args = sigma, case.option("sigma_upper", sigma), case.option("maxiters")
    outside, low, high = clipped(
        case.x, case.option("axis"), *args, case.option("cenfunc"), case.option("stdfunc")
    )
    dtype = case.x.dtype if case.x.dtype.kind == "f" else np.dtype("f4")
    kept = np.where(outside, np.nan, case.x).astype(dtype)
    size = float(np.abs(np.where(np.isfinite(case.x), case.x, 0)).max(initial=0))
    bounds = (Expected(bound, "f8", 4.0, 1e-12 * size) for bound in (low, high))
    # Elements at a bound may be on either side of what is rounded.
    wide = case.x.astype("f8")
    axis = case.option("axis")
    axes = tuple(range(wide.ndim)) if axis is None else tuple(np.atleast_1d(axis) % wide.ndim)
    near = np.zeros(wide.shape, "?")
    with np.errstate(all="ignore"):
        for bound in (low, high):
            near |= np.abs(wide - np.expand_dims(bound, axes)) < 1e-9 * size
    return [Expected(kept, dtype, defined=~near), *bounds]


def draw_deviation(rng: draw.Generator) -> Case:
    """Draw a median of absolute deviations."""
    array, axis = _draw(rng)
    array = np.where(np.isinf(array), 7, array).astype(array.dtype)
    if draw.chance(rng, 0.5):
        options = {"axis": axis, "ignore_nan": draw.chance(rng, 0.5)}
        return Case("deviation", "mad_std", (draw.operand(rng, array),), {}, options)
    policy = draw.pick(rng, ["omit", "propagate"])
    options = {"axis": axis, "nan_policy": policy, "scale": 2.0}
    return Case("deviation", "median_abs_deviation", (draw.operand(rng, array),), {}, options)


def expect_deviation(case: Case) -> list[Expected]:
    """Return the median of the deviations of each line."""
    x = case.x.astype("f8")
    lines, shape = lines_of(x, case.option("axis"))
    omit = case.option("ignore_nan") or case.option("nan_policy") == "omit"
    factor = 1.482602218505602 if case.function == "mad_std" else 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = [mad(line[line == line] if omit else line) * factor for line in lines]
    slack = 1e-14 * float(np.nan_to_num(np.abs(x)).max(initial=0))
    return [Expected(np.reshape(values, shape), "f8", 4.0, slack)]
