"""Cases of statistics in bins: SciPy's, of long doubles."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import stats

from fuzz import draw
from fuzz.case import Case, Operand
from fuzz.exact import EPS, Expected

STATISTICS = ("mean", "std", "median", "count", "sum", "min", "max")


def draw_binned(rng: draw.Generator) -> Case:
    """Draw statistics of values along some axes, in bins of one or two coordinates."""
    sides = tuple(max(1, n) for n in draw.shape(rng, 1, 2))
    dtype = draw.pick(rng, ["i2", "u1", "i4", "f8"])
    many = int(rng.integers(1, 3))
    coordinates = [draw.values(rng, dtype, sides, special=False) for _ in range(many)]
    if dtype in ("f8", "i4"):
        # SciPy rounds larger ones out of their range.
        coordinates = [np.clip(x, -1_000_000, 1_000_000) for x in coordinates]
    # Cut alike, or points would lose their values where a case is cut down.
    points = [draw.operand(rng, x) for x in coordinates]
    values = draw.values(rng, draw.pick(rng, ["i4", "u1", "f4", "f8"]), sides, special=False)
    if values.dtype.kind == "f":
        values = np.clip(values, -1e9, 1e9)
    inputs: list[Operand] = [*points, draw.operand(rng, values)]
    count = int(rng.integers(1, 4))
    options: dict[str, Any] = {
        "statistic": [draw.pick(rng, STATISTICS) for _ in range(count)],
    }
    if many == 2:
        options["bins"] = draw.pick(rng, [4, [2, 5], [[-9, 0, 9], [0, 3, 4]]])
    else:
        options["bins"] = draw.pick(rng, [4, [-5, 0, 1, 7, 30]])
    if draw.chance(rng, 0.5):
        options["range"] = [(-10, 21)] * many if many == 2 else (-10, 21)
    name = "binned_statistic_2d" if many == 2 else "binned_statistic"
    return Case("binned", name, tuple(inputs), {}, options)


def expect_binned(case: Case) -> list[Expected]:
    """Return SciPy's results by the bins of the points, and these."""
    *points, values = (operand.array for operand in case.inputs)
    bins, ranges = case.option("bins"), case.option("range")
    if len({x.shape for x in (*points, values)}) > 1:
        raise ValueError("there is a value for each point")
    if len(points) == 1:
        bins = bins if np.ndim(bins) == 0 else [bins]
        ranges = None if ranges is None else [ranges]
    flat, wide = [x.reshape(-1) for x in points], values.reshape(-1).astype("f8")
    results, size = [], float(np.abs(wide).max(initial=0))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name in case.option("statistic"):
            judged = stats.binned_statistic_dd(flat, wide, name, bins, ranges)
            slack = 8 * wide.size * EPS * size * (wide.size if name == "sum" else 1)
            slack = 1e-6 * size if name == "std" else slack
            exact = name in ("count", "min", "max")
            results.append(
                Expected(judged.statistic, "f8", None if exact else 4.0, 0.0 if exact else slack)
            )
    edges = [Expected(found, "f8", 4.0, 1e-9, host=True) for found in judged.bin_edges]
    numbers = judged.binnumber.reshape(points[0].shape)
    return [*results, *edges, Expected(numbers, "i8")]
