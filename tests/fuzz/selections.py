"""Cases of what masks select, and of where elements are not zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz import draw
from fuzz.case import Case
from fuzz.exact import Expected

FINDERS = ("nonzero", "flatnonzero", "argwhere")


def draw_selection(rng: draw.Generator) -> Case:
    """Draw a selection by a mask, or the indices of what is not zero."""
    shape = draw.large_shape(rng) if draw.chance(rng, 0.02) else draw.shape(rng)
    array = draw.values(rng, draw.pick(rng, draw.NUMBERS), shape)
    function = draw.pick(rng, ["select", "select", "compress", "extract", *FINDERS])
    rate = draw.pick(rng, [0, 0.01, 0.1, 0.5, 0.9, 1])
    if function in FINDERS:
        array = np.where(rng.random(array.shape) < rate, array, array.dtype.type(0))
        array = array.reshape(array.shape or 1) if function == "nonzero" else array
    x, options = draw.operand(rng, array), _sizes(rng)
    compiled = draw.chance(rng, 0.5)
    if function in FINDERS:
        return Case("selection", function, (x,), {}, options, compiled=compiled)
    shape = array.shape
    if function == "select" and draw.chance(rng, 0.3):
        shape = shape[: int(rng.integers(0, array.ndim + 1))]
    letters = x.axes[: len(shape)]
    if function == "compress":
        axis = draw.one_axis(rng, array.ndim)
        shape, letters = ((array.size,), "z") if axis is None else ((shape[axis],), x.axes[axis])
        options |= {} if axis is None else {"axis": axis}
    mask = draw.operand(rng, rng.random(shape) < rate, letters)
    inputs = (x, mask) if function == "select" else (mask, x)
    return Case("selection", function, inputs, {}, options, compiled=compiled)


def draw_choice(rng: draw.Generator) -> Case:
    """Draw what lists of conditions choose, and of arrays that broadcast to one another."""
    sides, count = draw.shape(rng, 1), int(rng.integers(1, 4))

    def some(array: Any) -> draw.Operand:
        # Some arrays have the last axes only, and are broadcast.
        lead = int(rng.integers(0, array.ndim)) if draw.chance(rng, 0.2) and array.size else 0
        return draw.operand(rng, array[(0,) * lead], "abcdefgh"[lead : array.ndim])

    conditions = [some(rng.random(sides) < draw.pick(rng, [0, 0.3, 0.9])) for _ in range(count)]
    choices = [some(draw.values(rng, draw.pick(rng, draw.NUMBERS), sides)) for _ in range(count)]
    options: dict[str, Any] = {}
    if draw.chance(rng, 0.6):
        options["default"] = draw.pick(rng, [1, 1.5, np.nan, np.float32(0.1), True])
    return Case("choice", "select", (*conditions, *choices), {}, options, together=2)


def expect_choice(case: Case) -> list[Expected]:
    """Return NumPy's."""
    arrays: list[Any] = [operand.array for operand in case.inputs]
    count = len(arrays) // 2
    return [Expected(np.select(arrays[:count], arrays[count:], case.option("default", 0)))]


def _sizes(rng: draw.Generator) -> dict[str, Any]:
    options: dict[str, Any] = {"sizes": "compute"} if draw.chance(rng, 0.5) else {}
    return options | ({"balanced": True} if options and draw.chance(rng, 0.5) else {})


def expect_selection(case: Case) -> list[Expected]:
    """Return NumPy's."""
    arrays: list[Any] = [operand.array for operand in case.inputs]
    match case.function:
        case "select":
            found = arrays[0][arrays[1]]
        case "compress":
            found = np.compress(*arrays, axis=case.option("axis"))
        case "nonzero":
            return [Expected(indices) for indices in np.nonzero(*arrays)]
        case name:
            found = getattr(np, name)(*arrays)
    return [Expected(found)]
