"""Cases of pictures: connected regions, to be numbered as SciPy numbers them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import ndimage

from fuzz import draw
from fuzz.case import Case
from fuzz.exact import Expected


def draw_label(rng: draw.Generator) -> Case:
    """Draw regions of random elements, or of smooth ones, with any symmetric structure."""
    sides = draw.shape(rng)
    if draw.chance(rng, 0.5):
        array = draw.values(rng, draw.pick(rng, draw.REAL), sides)
        array = np.where(rng.random(sides) < draw.pick(rng, [0.2, 0.5, 0.7]), 0, array)
    else:
        array = ndimage.gaussian_filter(rng.normal(size=sides), 1) > 0
    array = np.asarray(array)
    options: dict[str, Any] = {}
    if draw.chance(rng, 0.6):
        near = np.asarray(rng.random((3,) * array.ndim) < draw.pick(rng, [0.2, 0.5, 1]))
        options["structure"] = (near | np.flip(near)).tolist()
    return Case("label", "label", (draw.operand(rng, array),), {}, options)


def expect_label(case: Case) -> list[Expected]:
    """Return SciPy's labels and their number."""
    labels, count = ndimage.label(case.x != 0, case.option("structure"))
    return [Expected(labels, "i4", chunks=case.inputs[0].chunks), Expected(count, "i8")]


#: Measurements of regions, and what a loop makes of the elements of one, in long double.
_MEASURES = {
    "sum_labels": lambda x: x.sum(),
    "mean": np.mean,
    "variance": np.var,
    "standard_deviation": np.std,
    "median": np.median,
    "minimum": lambda x: x.min(initial=None) if x.size else 0,
    "maximum": lambda x: x.max(initial=None) if x.size else 0,
}


def draw_measure(rng: draw.Generator) -> Case:
    """Draw a measurement of regions, by any labels and an index in any shape."""
    sides = draw.shape(rng, 1)
    name = draw.pick(rng, [*_MEASURES, "area", "minimum_position", "center_of_mass", "extrema"])
    dtypes = ["?", "i2", "u1", "f4", "f8"]
    array = draw.values(rng, draw.pick(rng, dtypes), sides, special=False)
    if array.dtype.kind == "f":
        array = np.clip(array, -1e9, 1e9)
    labels = rng.integers(0, 6, sides).astype(draw.pick(rng, ["u1", "i4", "i8"]))
    index: Any = draw.pick(rng, [None, 2, [3, 1], [[0, 9, 1], [2, 2, 4]]])
    operands = draw.operand(rng, array), draw.operand(rng, labels)
    return Case("measure", f"ndmeasure.{name}", operands, {}, {"index": index})


def expect_measure(case: Case) -> list[Expected]:
    """Return what a loop over the regions finds."""
    x, labels = (operand.array for operand in case.inputs)
    index, name = case.option("index"), case.function.partition(".")[2]
    wanted = np.asarray(1 if index is None else index)
    labels = labels > 0 if index is None else labels
    places = [np.argwhere(labels == number) for number in wanted.reshape(-1)]
    parts = [x[labels == number] for number in wanted.reshape(-1)]

    def result(values: Any, dtype: Any, slack: Any = 0.0, axes: int = 0) -> Expected:
        shape = (*wanted.shape, *(x.ndim,) * axes)
        slack = np.broadcast_to(
            np.asarray(slack).reshape((-1, *(1,) * axes)), (len(parts), *shape[wanted.ndim :])
        )
        ulps = 4.0 if np.dtype(dtype).kind == "f" and name not in ("minimum", "extrema") else None
        values = np.asarray([*values]).reshape(shape)
        return Expected(values, dtype, ulps, slack.reshape(shape))

    def place(part: Any, where: Any, arg: Any) -> Any:
        return where[arg(part)] if len(part) else np.zeros(x.ndim, "i8")

    if name == "area":
        return [result(map(len, parts), "i8")]
    first = result(
        [place(p, w, np.argmin) for p, w in zip(parts, places, strict=True)], "i8", axes=1
    )
    if name == "minimum_position":
        return [first]
    if name == "extrema":
        lows, highs = (
            result([getattr(p, end)() if p.size else 0 for p in parts], x.dtype)
            for end in ("min", "max")
        )
        last = [place(p, w, np.argmax) for p, w in zip(parts, places, strict=True)]
        return [lows, highs, first, result(last, "i8", axes=1)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "center_of_mass":
            sums = [p.astype("g").sum() for p in parts]
            values = [
                (p.astype("g")[:, np.newaxis] * w).sum(0) / s
                for p, w, s in zip(parts, places, sums, strict=True)
            ]
            # Sums that cancel leave few digits, and none where they add up to nothing.
            kept = [
                abs(s) > 1e-3 * np.abs(p.astype("g")).sum()
                for p, s in zip(parts, sums, strict=True)
            ]
            expected = result(values, "f8", 1e-9 * max(x.shape), 1)
            expected.defined = np.reshape(kept, (*wanted.shape, 1))
            return [expected]
        same = name in ("minimum", "maximum")
        wide = [p if same else p.astype("g") for p in parts]
        values = [_MEASURES[name](p) for p in wide]
        scale = np.array([float(np.abs(p.astype("g")).max(initial=0)) for p in parts])
    if same:
        return [result(values, x.dtype)]
    if name == "variance":
        scale = scale * scale
    if name == "sum_labels":
        scale = scale * x.size
    return [result(values, "f8", 1e-12 * scale if name != "standard_deviation" else 1e-7 * scale)]
