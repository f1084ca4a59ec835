"""Cases of matrix products over semirings, and of transposition."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.algebra.semirings import SEMIRINGS
from fuzz import draw
from fuzz.case import Case, Operand
from fuzz.exact import Expected

DTYPES = ["?", "i1", "i4", "i8", "u1", "f4", "f8"]


def draw_product(rng: draw.Generator) -> Case:
    """Draw a product of matrices or stacks of them."""
    ring = draw.pick(rng, ["plus_times", *SEMIRINGS])
    dtype = draw.pick(rng, DTYPES if ring != "plus_times" else [*DTYPES, "c8"])
    m, k, n = (int(v) for v in rng.integers(0 if draw.chance(rng, 0.1) else 1, 12, 3))
    left, right = [m, k], [k, n]
    of_left, of_right = "mk", "kn"
    if draw.chance(rng, 0.2):
        left, of_left = [3, m, k], "smk"
    if draw.chance(rng, 0.1):
        right, of_right = [3, k, n], "skn"
    if draw.chance(rng, 0.1):
        left, of_left = [*left[:-2], k], of_left[:-2] + "k"
    inputs = tuple(
        Operand(_elements(rng, sides, dtype), draw.chunks(rng, tuple(sides)), letters)
        for sides, letters in ((left, of_left), (right, of_right))
    )
    options: dict[str, Any] = {} if ring == "plus_times" else {"semiring": ring}
    options |= draw.split_every(rng)
    return Case("product", "matmul", inputs, {}, options)


def draw_transpose(rng: draw.Generator) -> Case:
    """Draw a transposition."""
    array = draw.values(rng, draw.pick(rng, draw.NUMBERS), draw.shape(rng))
    options: dict[str, Any] = {"contiguous": True} if draw.chance(rng, 0.7) else {}
    if draw.chance(rng, 0.7):
        options["axes"] = tuple(int(a) for a in rng.permutation(array.ndim))
    return Case("transpose", "transpose", (draw.operand(rng, array),), {}, options)


def _elements(rng: draw.Generator, sides: list[int], dtype: str) -> Any:
    """Return small whole numbers, whose sums no dtype has to round."""
    low = 0 if dtype[0] in "?u" else -5
    return rng.integers(low, 6 if dtype != "?" else 2, sides).astype(dtype)


def expect_product(case: Case) -> list[Expected]:
    """Return the product by NumPy: its own, or all of m * k * n steps at a time."""
    a, b = (operand.array for operand in case.inputs)
    ring = SEMIRINGS[case.option("semiring", "plus_times")]
    if ring.name == "plus_times":
        return [Expected(np.matmul(a, b))]
    dtype = ring.dtype(a.dtype, b.dtype)
    np.matmul(a, b)
    left = (a[np.newaxis] if a.ndim == 1 else a)[..., :, :, np.newaxis]
    right = (b[:, np.newaxis] if b.ndim == 1 else b)[..., np.newaxis, :, :]
    steps = ring.times(left.astype(dtype), right.astype(dtype))
    result = ring.plus.reduce(steps, -2, initial=ring.zero(dtype)).astype(dtype)
    result = result[..., 0, :] if a.ndim == 1 else result
    return [Expected(result[..., 0] if b.ndim == 1 else result)]


def expect_transpose(case: Case) -> list[Expected]:
    """Return NumPy's."""
    axes = case.option("axes", tuple(range(case.x.ndim))[::-1])
    chunks = tuple(case.inputs[0].chunks[a] for a in axes)
    return [Expected(case.x.transpose(axes), chunks=chunks)]
