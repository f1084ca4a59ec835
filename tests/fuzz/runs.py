"""Cases of runs of masks: statistics and lengths, held to a loop over `itertools.groupby`."""

from __future__ import annotations

from typing import Any

from support import runs

from fuzz import draw, scans
from fuzz.case import Case
from fuzz.exact import Expected

STATISTICS = ["longest_run", "count_runs", "count_in_runs", "first_run", "last_run"]


def draw_runs(rng: draw.Generator) -> Case:
    """Draw a function of runs, with segments now and then where it takes them."""
    sides = draw.large_shape(rng) if draw.chance(rng, 0.02) else draw.shape(rng)
    sides = sides or (1,)
    array = rng.random(sides) < draw.pick(rng, [0, 0.1, 0.5, 0.9, 0.99, 1])
    name = draw.pick(rng, [*STATISTICS, "run_lengths", "run_lengths"])
    options: dict[str, Any] = {"axis": int(rng.integers(0, len(sides)))}
    operands = {}
    x = draw.operand(rng, array)
    if name == "run_lengths":
        options["index"] = draw.pick(rng, ["first", "last"])
        if draw.chance(rng, 0.4):
            options["method"] = draw.pick(rng, scans.METHODS)
        operands = scans.segments(rng, x, options["axis"])
    elif name != "longest_run":
        options["min_length"] = int(draw.pick(rng, [1, 2, 3, 9, 1000]))
    return Case("runs", name, (x,), operands, options, compiled=draw.chance(rng, 0.4))


def expect_runs(case: Case) -> list[Expected]:
    """Return what the loop makes of the mask."""
    axis, x = case.option("axis"), case.x
    if case.function != "run_lengths":
        least = case.option("min_length") or 1
        return [Expected(runs.statistic(case.function, x, axis, least))]
    heads = case.operand("segments")
    if heads is not None and heads.ndim < x.ndim:
        heads = heads.reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    result = runs.lengths(x, axis, case.option("index"), heads)
    return [Expected(result, chunks=case.inputs[0].chunks)]
