"""Cases of distinct values and their counts, and of elements looked up in others."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz import draw
from fuzz.case import Array, Case
from fuzz.exact import Expected


def draw_unique(rng: draw.Generator) -> Case:
    """Draw unique or value_counts."""
    dtype = draw.pick(rng, draw.NUMBERS)
    names = ["return_index", "return_inverse", "return_counts"]
    if frequent := draw.chance(rng, 0.3):
        names = ["ascending", "normalize"]
    options: dict[str, Any] = {name: True for name in names if draw.chance(rng, 0.5)}
    if frequent:
        options |= {name: False for name in ("sort", "dropna") if draw.chance(rng, 0.3)}
        options |= {"n": int(rng.integers(0, 9))} if draw.chance(rng, 0.4) else {}
    elif dtype not in draw.COMPLEX and draw.chance(rng, 0.3):
        options["equal_nan"] = False
    options |= draw.split_every(rng)
    # Of complex numbers that have a NaN, NumPy does not take the first one.
    special = dtype not in draw.COMPLEX or "return_index" not in options
    array, compiled = _elements(rng, dtype, special)
    name = "value_counts" if frequent else "unique"
    return Case("unique", name, (draw.operand(rng, array),), {}, options, compiled=compiled)


def draw_pairs(rng: draw.Generator) -> Case:
    """Draw two arrays whose pairs of values are counted."""
    sides = draw.shape(rng)
    inputs = []
    for _ in range(2):
        few = draw.values(rng, draw.pick(rng, draw.REAL), (5,))
        inputs.append(draw.operand(rng, few[rng.integers(5, size=sides)]))
    return Case("crosstab", "crosstab", tuple(inputs))


def expect_pairs(case: Case) -> list[Expected]:
    """Return the counts by the places among NumPy's distinct values."""
    arrays = [operand.array for operand in case.inputs]
    found = [np.unique(x.astype("f4") if x.dtype == "f2" else x, False, True) for x in arrays]
    counts = np.zeros([len(values) for values, _ in found], "i8")
    np.add.at(counts, tuple(places for _, places in found), 1)
    values = [Expected(v[0].astype(x.dtype)) for v, x in zip(found, arrays, strict=True)]
    return [*values, Expected(counts)]


def draw_lookup(rng: draw.Generator) -> Case:
    """Draw isin or searchsorted."""
    name = draw.pick(rng, ["isin", "searchsorted"])
    dtype = draw.pick(rng, draw.NUMBERS if name == "isin" else draw.REAL)
    x, compiled = _elements(rng, dtype, True)
    # Some are there, and some are not.
    pool = np.concatenate([x.reshape(-1), draw.values(rng, dtype, (9,))])
    others = pool[rng.integers(0, len(pool), draw.shape(rng, 0, 2) if name == "isin" else 99)]
    if name == "isin":
        inputs = draw.operand(rng, x), draw.operand(rng, others, "yz")
        options: dict[str, Any] = {"invert": True} if draw.chance(rng, 0.3) else {}
        options |= draw.split_every(rng)
        return Case("lookup", name, inputs, {}, options, compiled=compiled)
    a = np.sort(others[: int(rng.integers(0, 99))], kind="stable")
    inputs = draw.operand(rng, a, "z"), draw.operand(rng, x)
    options = {"side": "right"} if draw.chance(rng, 0.5) else {}
    return Case("lookup", name, inputs, {}, options, compiled=compiled)


def _elements(rng: draw.Generator, dtype: str, special: bool) -> tuple[Array, bool]:
    """Return elements, now and then many and distinct, and whether loops are to be compiled."""
    large = draw.chance(rng, 0.1)
    sides = draw.large_shape(rng) if large else draw.shape(rng)
    if large and draw.chance(rng, 0.5):
        array = draw.neighbours(rng, dtype, sides, special)
    else:
        array = draw.values(rng, dtype, sides, special)
    if not large and draw.chance(rng, 0.5):
        # Few values, many times.
        flat = array.reshape(-1)
        array = flat[rng.integers(0, max(min(len(flat), 5), 1), sides)] if len(flat) else array
    return array, large or draw.chance(rng, 0.3)


def expect_unique(case: Case) -> list[Expected]:
    """Return NumPy's, by its sorting, and what counts make of it."""
    if case.function == "value_counts":
        return _expect_counts(case)
    wanted = [case.option(name, False) for name in ("return_index", "return_inverse")]
    counted = case.option("return_counts", False)
    results = np.unique(case.x, True, True, True, equal_nan=case.option("equal_nan", True))
    asked = (True, *wanted, counted)
    found = [Expected(result) for result, ask in zip(results, asked, strict=True) if ask]
    if wanted[1]:
        found[1 + wanted[0]].chunks = case.inputs[0].chunks
    return found


def _expect_counts(case: Case) -> list[Expected]:
    # By indices: NumPy's sort of float16 itself is not to be trusted (chunks/numpy/sorting.py).
    values, _, counts = np.unique(case.x, return_index=True, return_counts=True)
    if case.option("dropna", True):
        kept = values == values
        values, counts = values[kept], counts[kept]
    shares = counts / max(counts.sum(), 1)
    order = np.arange(len(values))
    if case.option("sort", True):
        order = np.lexsort((order, counts if case.option("ascending") else -counts))
    order = order[: case.option("n")]
    second = Expected(shares[order], "f8") if case.option("normalize") else Expected(counts[order])
    return [Expected(values[order]), second]


def expect_lookup(case: Case) -> list[Expected]:
    """Return NumPy's."""
    first, second = (operand.array for operand in case.inputs)
    if case.function == "isin":
        found = np.isin(first, second, invert=case.option("invert", False))
        return [Expected(found, chunks=case.inputs[0].chunks)]
    if not np.array_equal(first, np.sort(first, kind="stable"), equal_nan=first.dtype.kind in "fc"):
        raise ValueError("not sorted")
    found = np.searchsorted(first, second, case.option("side", "left"))
    return [Expected(found, "i8", chunks=case.inputs[1].chunks)]
