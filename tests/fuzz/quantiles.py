"""Cases of quantiles, percentiles and medians, by NumPy's own functions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from dask.array import reductions as dask_reductions

from dask_coop.algebra.quantiles import METHODS
from fuzz import draw, reductions
from fuzz.case import Array, Case
from fuzz.exact import Expected

NAMES = ["quantile", "percentile", "median", "nanquantile", "nanpercentile", "nanmedian"]


def draw_quantile(rng: draw.Generator) -> Case:
    """Draw quantiles by any method, of all elements or along axes, now and then with weights."""
    name = draw.pick(rng, NAMES)
    dtype = draw.pick(rng, draw.INTS + draw.FLOATS)
    sides = draw.shape(rng) if draw.chance(rng, 0.9) else draw.large_shape(rng)
    array = draw.values(rng, dtype, tuple(max(1, n) for n in sides))
    options: dict[str, Any] = {"axis": draw.axis(rng, array.ndim) or None}
    weights = None
    if "median" not in name:
        count = int(rng.integers(0, 5))
        q = float(rng.random()) if not count else np.round(rng.random(count), 3)
        q = draw.pick(rng, [0, 1]) if draw.chance(rng, 0.1) else q
        options["q"] = q * 100 if "percentile" in name else q
        options["method"] = draw.pick(rng, METHODS)
        if array.ndim and draw.chance(rng, 0.2):
            options["method"] = "inverted_cdf"
            options["q"] = np.empty(0) if draw.chance(rng, 0.1) else options["q"]
            weights = rng.integers(draw.pick(rng, [0, 1]), 4, array.shape)
            weights = weights * 0 if draw.chance(rng, 0.05) else weights
            if array.dtype.kind == "f" and draw.chance(rng, 0.2):
                array[...] = np.nan
    case = reductions.case_of(rng, "quantile", name, array, options)
    if options.get("axis", 0):
        options.pop("split_every", None)
    if weights is not None:
        axis, x = case.option("axis"), case.inputs[0]
        chunks, letters = x.chunks, x.axes
        if isinstance(axis, int) and draw.chance(rng, 0.5):
            weights = rng.integers(0, 4, array.shape[axis])
            chunks, letters = draw.chunks(rng, weights.shape), letters[axis]
        case.operands["weights"] = draw.Operand(weights, chunks, letters)
    return case


def expect_quantile(case: Case) -> list[Expected]:
    """Return what NumPy's function returns."""
    options = {key: case.option(key) for key in ("axis", "keepdims", "q", "method")}
    given = {key: value for key, value in options.items() if value is not None}
    if case.operands:
        weights = case.operand("weights")
        if weights.shape != case.x.shape:
            # NumPy's nan forms do not broadcast them.
            axis = case.option("axis")
            sides = [-1 if d == axis % case.x.ndim else 1 for d in range(case.x.ndim)]
            weights = np.broadcast_to(weights.reshape(sides), case.x.shape)
        given["weights"] = weights
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        function = getattr(np, case.function)
        value = np.asarray(function(case.x, **given))
        if value.dtype.kind == "f" and np.isnan(value).all() and not case.operands:
            # NumPy's nan forms do not interpolate where there is nothing: their dtype is that of x.
            some = np.zeros([max(n, 1) for n in case.x.shape], case.x.dtype)
            value = value.astype(np.asarray(function(some, **given)).dtype)
        if case.installed and _is_numbaggs(case):
            value = np.asarray(function(case.x.astype("f8"), **given))
        elif "median" in case.function and case.x.dtype.kind == "f":
            value = _without_overflow(case, value, given)
    return [Expected(value)]


def _is_numbaggs(case: Case) -> bool:
    """Tell whether Dask has numbagg find medians, which are float64."""
    narrow = case.function == "nanmedian" and case.x.dtype in (np.float16, np.float32)
    along = case.option("axis") is not None and not case.option("keepdims")
    return bool(getattr(dask_reductions, "HAS_NUMBAGG", False) and narrow and along)


def _without_overflow(case: Case, value: Array, given: dict[str, Any]) -> Array:
    """Return medians, of two equal elements one, and of float16 as of float32.

    NumPy adds up the two, and in `nanmedian` of short lines as float16.
    """
    name = case.function.replace("median", "quantile")
    low, high = (
        getattr(np, name)(case.x, 0.5, method=method, **given) for method in ("lower", "higher")
    )
    if case.x.dtype == "f2":
        value = getattr(np, case.function)(case.x.astype("f4"), **given).astype("f2")
    return np.where(low == high, low, value)
