"""Cases of masked arrays, in NumPy chunks: those of the other families with a mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fuzz import draw, histograms, reductions, scans
from fuzz.case import Array, Case, Operand
from fuzz.exact import Expected

#: Beyond as many elements, a line of which is judged by itself.
MANY = 5000

DRAWS = [
    *[reductions.draw_fold, reductions.draw_extremum, reductions.draw_spread] * 2,
    *[reductions.draw_truth, reductions.draw_description, reductions.draw_norm],
    *[scans.draw_scan, histograms.draw_histogram] * 3,
    *[histograms.draw_joint, histograms.draw_bincount],
]


def draw_masked(rng: draw.Generator) -> Case:
    """Draw a case of another family and mask some of its elements."""
    while True:
        case = draw.pick(rng, DRAWS)(rng)
        # Dask takes a masked array without axes for a plain one, and norms of matrices have no
        # lines to leave anything out of.
        lines = case.function != "norm" or isinstance(case.option("axis"), int)
        if case.x.ndim and lines and (case.x.ndim == 1 or case.x.size < MANY):
            break
    rate = draw.pick(rng, [0, 0.05, 0.3, 0.9, 1])
    inputs = tuple(_masked(rng, x, rate, case.function) for x in case.inputs)
    operands = dict(case.operands)
    # Of the ranges of joint histograms where weights are masked nothing is promised.
    if "weights" in operands and case.family != "joint" and draw.chance(rng, 0.5):
        operands["weights"] = _masked(rng, operands["weights"], rate / 2, "weights")
    return replace(case, family="masked", inputs=inputs, operands=operands)


def _masked(rng: draw.Generator, x: Operand, rate: float, function: str) -> Operand:
    """Return an operand of which some elements are masked; what is there may be anything."""
    mask = rng.random(x.array.shape) < rate
    kind = x.array.dtype.kind
    odd: list[Any] = [np.nan, np.inf, -7] if kind in "fc" else [0, 1, 100]
    odd += [-5, 1 << 40] if function == "bincount" and x.array.dtype == "i8" else []
    rubbish = np.array(odd).astype(x.array.dtype)[rng.integers(len(odd), size=mask.shape)]
    layout = "bare" if draw.chance(rng, 0.2) else x.layout
    return replace(x, array=np.where(mask, rubbish, x.array), mask=mask, layout=layout)


# What is expected.


def expect_masked(case: Case) -> list[Expected]:
    """Return what is left of each line gives; scans and histograms go over what is masked."""
    match case.function:
        case "histogram":
            return histograms.expect_histogram(case)
        case "histogram2d" | "histogramdd":
            return histograms.expect_joint(case)
        case "bincount":
            return histograms.expect_bincount(case)
        case name if name in reductions.INDICES:
            return _expect_places(case)
        case name if name in (*scans.SUMS, *scans.PRODUCTS, *scans.EXTREMA, "logcumsumexp", "scan"):
            return _expect_scan(case)
    return _expect_reduction(case)


#: What scans take in the place of what is masked.
NEUTRAL = {"add": 0, "multiply": 1, "log": -np.inf}


def _expect_scan(case: Case) -> list[Expected]:
    """Return the scan of other elements, masked where the array is."""
    x, mask, axis = case.x, case.inputs[0].mask, case.option("axis")
    row = scans.row_of(case)
    kind = scans.kind_of(row)
    if kind == "log" and x.dtype.kind in "biu":
        x = x.astype("f8")
    neutral: Any = NEUTRAL.get(kind, row == "ALL")
    if kind == "extremum":
        neutral = scans.extreme(x.dtype, row in ("cummin", "MIN"))
    filled = replace(case.inputs[0], array=np.where(mask, np.array(neutral, x.dtype), x))
    (found,) = scans.expect_scan(replace(case, inputs=(filled,)))
    mask, axis = (mask.ravel(), 0) if axis is None else (mask, axis)
    if case.option("include_initial"):
        end = mask.shape[axis] if case.option("reverse") else 0
        mask = np.insert(mask, end, False, axis)
    return [replace(found, mask=mask)]


REDUCTIONS = {
    **dict.fromkeys(reductions.FOLDS, reductions.expect_fold),
    **dict.fromkeys(reductions.EXTREMA, reductions.expect_extremum),
    **dict.fromkeys(reductions.TRUTHS, reductions.expect_truth),
    **dict.fromkeys([*reductions.SPREADS, "moment"], reductions.expect_spread),
    "describe": reductions.expect_description,
    "norm": reductions.expect_norm,
}


def _expect_reduction(case: Case) -> list[Expected]:
    """Return what the elements that are left of every line give, masked where there are none."""
    name, expect = case.function, REDUCTIONS[case.function]
    lines, valid = reductions.lines_of(case)
    options = {
        key: value
        for key, value in case.options.items()
        if key not in ("axis", "keepdims", "split_every")
    }

    def of(line: Array) -> list[Expected]:
        return expect(Case("masked", name, (Operand(line, ((line.size,),), "a"),), {}, options))

    some = of(np.ones(4, lines.dtype))
    extrema = name in reductions.EXTREMA and "initial" not in options
    if extrema or (name == "describe" and case.x.dtype.kind != "f"):
        # Lines are refused of which nothing is there, rather than masked.
        np.max(case.x, case.option("axis"))
    shape, chunks = lines.shape[:-1], reductions.kept_chunks(case)
    values = [np.zeros(shape, wanted.value.dtype) for wanted in some]
    slacks = [np.zeros(shape, "g") for _ in some]
    defined, masks = ([np.zeros(shape, "?") for _ in some] for _ in range(2))
    for index in np.ndindex(shape):
        left = lines[index][valid[index]]
        if not left.size:
            for mask in masks:
                mask[index] = True
            if name == "describe":
                masks[0][index] = masks[1][index] = False
                defined[0][index] = defined[1][index] = True
            continue
        for i, wanted in enumerate(of(left)):
            values[i][index], slacks[i][index] = wanted.value, wanted.slack
            defined[i][index] = np.all(wanted.defined)
            # Without a degree of freedom it is masked, too.
            masks[i][index] = name in reductions.SPREADS and not defined[i][index]
    plain = 2 if name == "describe" else 0
    return [
        Expected(
            values[i],
            some[i].dtype,
            some[i].ulps,
            slacks[i],
            chunks if some[i].chunks is not None else None,
            defined[i],
            mask=None if i < plain else masks[i],
        )
        for i in range(len(some))
    ]


def _expect_places(case: Case) -> list[Expected]:
    """Return NumPy's places of extrema, to which what is masked is the worst value."""
    lines, valid = reductions.lines_of(case)
    least = case.function.endswith("min")
    worst = (np.ma.minimum_fill_value if least else np.ma.maximum_fill_value)(lines)
    if not lines.shape[-1]:
        raise ValueError("attempt to get the place of an extremum of an empty sequence")
    value = np.zeros(lines.shape[:-1], "i8")
    for index in np.ndindex(value.shape):
        line = np.where(valid[index], lines[index], np.array(worst, lines.dtype))
        some = np.arange(line.size)
        if case.function.startswith("nan"):
            # NumPy may find NaN where all others are the worst value.
            some = np.flatnonzero(line == line)
        value[index] = some[(np.argmin if least else np.argmax)(line[some])]
    return [Expected(value, chunks=reductions.kept_chunks(case))]
