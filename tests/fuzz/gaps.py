"""Cases of series with gaps: filled, and averaged by exponential weights."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from support.spreads import spread_out

from fuzz import draw, scans
from fuzz.case import Array, Case, Operand
from fuzz.exact import EPS, Expected

SPREADS = ("ewm_sum", "ewm_var", "ewm_std")

HAS_PANDAS = find_spec("pandas") is not None

DECAYS = [
    *({"alpha": alpha} for alpha in (0.01, 0.3, 0.5, 0.9, 1.0)),
    *({"com": 1.0}, {"com": 0.4}, {"span": 7.5}, {"halflife": 2.0}),
]


def draw_gaps(rng: draw.Generator) -> Case:
    """Draw what is filled or averaged, with segments now and then."""
    sides = draw.large_shape(rng) if draw.chance(rng, 0.02) else draw.shape(rng)
    name = draw.pick(rng, ["ffill", "bfill", "ffill", "ewm_mean", *SPREADS])
    # Their judge takes the square of a line's length.
    sides = (draw.shape(rng) if name in SPREADS else sides) or (1,)
    dtypes = draw.FLOATS if name.startswith("ewm") else draw.FLOATS + draw.COMPLEX
    array = rng.normal(0, draw.pick(rng, [1, 100]), sides).astype(draw.pick(rng, dtypes))
    array[rng.random(sides) < draw.pick(rng, [0, 0.1, 0.6, 0.98, 1])] = np.nan
    times = None
    options: dict[str, Any] = {"axis": int(rng.integers(0, len(sides)))}
    if draw.chance(rng, 0.4):
        options["method"] = draw.pick(rng, scans.METHODS)
    if name.startswith("ewm"):
        flags = {"ewm_sum": (), "ewm_mean": ("adjust",)}.get(name, ("adjust", "bias"))
        options |= draw.pick(rng, DECAYS if name == "ewm_mean" else DECAYS[:1] + DECAYS[6:7])
        options |= {key: draw.chance(rng, 0.5) for key in (*flags, "ignore_na")}
        if name == "ewm_mean" and draw.chance(rng, 0.3):
            options["min_periods"] = int(rng.integers(0, 6))
        if name == "ewm_mean" and draw.chance(rng, 0.3):
            times = np.cumsum(rng.integers(0, 5, sides[options["axis"]]))
            options = {key: v for key, v in options.items() if key not in ("alpha", "com", "span")}
            options["halflife"] = 3.0
    elif draw.chance(rng, 0.6):
        options["limit"] = int(rng.integers(1, draw.pick(rng, [4, 60])))
    x = draw.operand(rng, array)
    operands = scans.segments(rng, x, options["axis"])
    if times is not None:
        operands["times"] = Operand(times, draw.chunks(rng, times.shape), x.axes[options["axis"]])
    return Case("gaps", name, (x,), operands, options, compiled=draw.chance(rng, 0.4))


def expect_gaps(case: Case) -> list[Expected]:
    """Return what loops over lines make of the elements, or pandas of those that it averages."""
    x, chunks = case.x, case.inputs[0].chunks
    heads = case.operand("segments")
    heads = np.zeros(x.shape, "?") if heads is None else heads
    lines = np.moveaxis(x, case.option("axis"), -1)
    if heads.ndim == x.ndim:
        heads = np.moveaxis(heads, case.option("axis"), -1)
    heads = np.broadcast_to(heads, lines.shape)
    averages = case.function.startswith("ewm")
    result = np.empty(lines.shape, "f8" if averages else x.dtype)
    is_pandas = HAS_PANDAS and not heads.any() and (not _is_half(case) or "times" in case.operands)
    find = (_pandas if is_pandas else _average) if averages else _fill
    find = _spread if case.function in SPREADS else find
    for at in np.ndindex(lines.shape[:-1]):
        result[at] = find(case, lines[at], heads[at])
    result = np.moveaxis(result, -1, case.option("axis"))
    if not averages:
        return [Expected(result, chunks=chunks)]
    size = np.nanmax(np.abs(x), initial=0, where=~np.isnan(x))
    if case.function in SPREADS:
        slack = 64 * EPS * max(1, float(size)) ** 2 * 1e5
        return [Expected(result, x.dtype, 1.0, slack, chunks, ~np.isinf(result))]
    return [Expected(result, x.dtype, 1.0, 64 * EPS * float(size), chunks)]


def _fill(case: Case, line: Array, heads: Array) -> Array:
    step = -1 if case.function == "bfill" else 1
    result, limit = line.copy(), case.option("limit")
    last, gap = line.dtype.type(np.nan), 0
    for i in range(len(line))[::step]:
        last = line.dtype.type(np.nan) if heads[i] else last
        missing = np.isnan(line[i])
        last, gap = (last, gap + 1) if missing else (line[i], 0)
        result[i] = last if limit is None or gap <= limit else line[i]
    return result


def _alpha(case: Case) -> float:
    match {name: case.option(name) for name in ("com", "span", "halflife") if name in case.options}:
        case {"com": com}:
            return float(1 / (1 + com))
        case {"span": span}:
            return float(2 / (1 + span))
        case {"halflife": halflife}:
            return float(-np.expm1(-np.log(2) / halflife))
    return float(case.option("alpha", 0.5))


def _is_half(case: Case) -> bool:
    """Tell whether pandas departs from its own formula."""
    plain = not case.option("adjust", True) and not case.option("ignore_na", False)
    return plain and _alpha(case) == 0.5


def _pandas(case: Case, line: Array, heads: Array) -> Array:
    import pandas as pd

    names = {*case.options} & {"alpha", "com", "span", "halflife", "adjust", "ignore_na"}
    options = {name: case.option(name) for name in names}
    if (times := case.operand("times")) is not None:
        options |= {"times": times.astype("M8[s]"), "halflife": pd.Timedelta(seconds=3)}
    weighted = pd.Series(line.astype("f8")).ewm(
        **options, min_periods=case.option("min_periods") or 0
    )
    return np.asarray(weighted.mean())


def _spread(case: Case, line: Array, heads: Array) -> Array:
    flags = [case.option("adjust", True), case.option("ignore_na", False), case.option("bias")]
    cuts = pairwise([0, *np.flatnonzero(heads), len(line)])
    parts = (line[begin:end] for begin, end in cuts)
    alpha, name = _alpha(case), case.function
    return np.concatenate([spread_out(name, of, of, alpha, *map(bool, flags)) for of in parts])


def _average(case: Case, line: Array, heads: Array) -> list[float]:
    kept, least = 1 - _alpha(case), max(1, case.option("min_periods") or 0)
    new = 1.0 if case.option("adjust", True) else _alpha(case)
    mean = weight = 0.0
    count, found = 0, []
    left = np.full(len(line), kept)
    if (times := case.operand("times")) is not None:
        left = 0.5 ** (np.diff(times, prepend=times[:1]) / 3)
    for element, begins, kept in zip(line.astype("f8").tolist(), heads.tolist(), left, strict=True):
        if times is not None and not case.option("adjust", True):
            new = 1 - weight * kept
        count = 0 if begins else count
        valid = element == element
        weight *= kept if valid or not case.option("ignore_na", False) else 1
        if valid:
            mean = (weight * mean + new * element) / (weight + new) if count else element
            after = weight + new if count else 1.0
            weight = after if case.option("adjust", True) else 1.0
            count += 1
        found.append(mean if count >= least else np.nan)
    return found
