"""Cases of describe of dates and durations, in NumPy chunks, by Python's integers and fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from fuzz import draw, reductions
from fuzz.case import Array, Case
from fuzz.exact import Expected

UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"]
NAT, LAST = -(2**63), 2**63 - 1


def draw_dates(rng: draw.Generator) -> Case:
    """Draw a description of dates that are near to each other, far apart, or at an end of time."""
    sides = draw.shape(rng, least=1)
    match int(rng.integers(5)):
        case 0:
            ticks = rng.integers(-LAST, LAST, sides, endpoint=True)
        case 1:
            ticks = np.array([-LAST, LAST, 1 - LAST, LAST - 1])[rng.integers(4, size=sides)]
        case 2:
            ticks = rng.integers(-50, 50, sides)
        case 3:
            ticks = np.full(sides, int(rng.integers(-LAST, LAST)))
        case _:
            centre, reach = int(rng.integers(-(2**62), 2**62)), 10 ** int(rng.integers(0, 18))
            ticks = centre + rng.integers(-reach, reach, sides, endpoint=True)
    ticks = np.where(rng.random(sides) < draw.pick(rng, [0, 0, 0.1, 0.9, 1]), NAT, ticks)
    array = ticks.astype("i8").view(f"{draw.pick(rng, 'mM')}8[{draw.pick(rng, UNITS)}]")
    return reductions.case_of(rng, "dates", "describe", array, {})


def expect_dates(case: Case) -> list[Expected]:
    """Return the statistics of the lines."""
    lines, _ = reductions.lines_of(case)
    ticks, chunks = lines.view("i8"), reductions.kept_chunks(case)
    dates = case.x.dtype.kind == "M"
    names = ["count", "nans", "min", "max", *([] if dates else ["sum"]), "mean", "std"]
    values = {name: np.zeros(ticks.shape[:-1], "g" if name == "std" else "i8") for name in names}
    for index in np.ndindex(ticks.shape[:-1]):
        for name, value in _describe(ticks[index], dates).items():
            if name in values:
                values[name][index] = value
    duration = np.dtype(case.x.dtype.str.replace("M8", "m8"))
    dtypes = dict.fromkeys(names, case.x.dtype) | {"count": "i8", "nans": "i8", "std": duration}
    slacks = {"std": 0.5 + 1e-13 * np.abs(values["std"])}
    return [
        Expected(values[name], dtypes[name], None, slacks.get(name, 0.0), chunks) for name in names
    ]


def _describe(line: Array, dates: bool) -> dict[str, int | float]:
    """Return what is told of ticks, in exact arithmetic but for the root."""
    known = [tick for tick in line.tolist() if tick != NAT]
    found: dict[str, int | float] = {"count": len(known), "nans": line.size - len(known)}
    if not known:
        return found | dict.fromkeys(["min", "max", "mean", "std"], NAT)
    total = sum(known)
    mean = Fraction(total, len(known))
    m2 = sum((tick * len(known) - total) ** 2 for tick in known)
    std = math.isqrt(m2 * 4**20 // len(known) ** 3) / 2**20
    return found | {
        "min": min(known),
        "max": max(known),
        # It wraps, as NumPy's.
        "sum": (total + 2**63) % 2**64 - 2**63,
        # Rounded down, and those of durations, as NumPy divides them, towards zero.
        "mean": (math.floor if dates else math.trunc)(mean),
        "std": min(std, LAST),
    }
