"""Cases of xarray's arrays: calls with ours installed, held to plain xarray's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from support import xarray_calls

from fuzz import draw
from fuzz.case import Case, Operand
from fuzz.exact import Expected

DTYPES = ["?", "i1", "i2", "i4", "u1", "u2", "f4", "f4", "f8", "f8"]

#: What differs by calls, as docs/install.md says.
_KNOWN = {
    "chunks": re.compile(
        r"\.(rolling|cumulative|groupby\w*|resample|quantile|median|interp\w*|cumsum\(\))"
    ),
    "dtype": re.compile(r"[fb]fill\(.*limit"),
}


@dataclass(frozen=True)
class Labels(Case):
    """A call, as a line of Python, of an array with labels: its options ``line`` and ``name``."""

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Return whether nothing differs with ours installed.

        Raises
        ------
        AssertionError
            With what differs.
        """
        line, x = self.option("line"), self.inputs[0]
        array = xarray_calls.labelled(da.from_array(x.array, chunks=x.chunks), self.option("name"))
        for found in xarray_calls.compare(line, array):
            if found.aspect not in _KNOWN or not _KNOWN[found.aspect].search(line):
                raise AssertionError(f"{found.aspect} of {line}: {found.plain} -> {found.found}")
        return (np.array(True),)

    def code(self, xp: Any) -> str:
        """Return the call as a line of Python."""
        x = f"xarray_calls.labelled({self.inputs[0].code(xp)}, {self.option('name')!r})"
        return f"xarray_calls.compare({self.option('line')!r}, {x})"


def draw_labels(rng: draw.Generator) -> Case:
    """Draw an array along time and y, and a call."""
    sides = int(rng.integers(3, 20)), int(rng.integers(3, 8))
    dtype = draw.pick(rng, DTYPES)
    # Plain xarray adds up float32 in float32, which such elements make exact.
    array = draw.representable(rng, dtype, dtype, sides)
    if array.dtype.kind == "f":
        array[rng.random(sides) < draw.pick(rng, [0, 0.05, 0.3, 0.9])] = np.nan
    options = {"line": draw_line(rng, sides), "name": draw.pick(rng, ["t2m", None])}
    # flox makes a group of a chunk without elements.
    chunks = tuple(tuple(n for n in sizes if n) for sizes in draw.chunks(rng, sides))
    x = Operand(array, chunks, "ty")
    return Labels("labels", "xarray", (x,), {}, options)


def draw_line(rng: draw.Generator, sides: tuple[int, int]) -> str:
    """Draw a line of Python: a row of the tables, or windows of any size."""
    if draw.chance(rng, 0.5):
        return str(draw.pick(rng, draw.pick(rng, [*xarray_calls.CALLS.values()])))
    axis = int(rng.integers(2))
    window = int(rng.integers(1, sides[axis] + 1))
    given = [f"{('time', 'y')[axis]}={window}"]
    if draw.chance(rng, 0.6):
        given.append(f"min_periods={int(rng.integers(1, window + 1))}")
    if draw.chance(rng, 0.4):
        given.append("center=True")
    name = draw.pick(rng, ["sum", "mean", "std", "var", "min", "max", "median", "count"])
    keep = draw.pick(rng, ["", "keep_attrs=True", "keep_attrs=False"])
    return f"x.rolling({', '.join(given)}).{name}({keep})"


def expect_labels(case: Case) -> list[Expected]:
    """Return that nothing differs."""
    return [Expected(np.array(True), host=True)]
