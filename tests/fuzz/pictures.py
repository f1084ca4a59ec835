"""Cases of pictures: connected regions, to be numbered as SciPy numbers them."""

from __future__ import annotations

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
