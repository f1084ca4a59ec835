"""Cases of arrays in .npy files, of any number of axes, dtype and byte order."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import dask_coop as dc
from fuzz import draw
from fuzz.case import Case, show_array
from fuzz.exact import Expected


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzz-")


@dataclass(frozen=True)
class OfFile(Case):
    """An array that is written to a file first; its layout tells in which byte order."""

    @property
    def order(self) -> str:
        """The byte order."""
        return ">" if self.inputs[0].layout == ">" else "<"

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Return the array of the file."""
        array = self.x.astype(self.x.dtype.newbyteorder(self.order))
        described = f"{array.dtype.str} {array.shape}".encode() + array.tobytes()
        path = Path(_folder().name) / f"{hashlib.sha256(described).hexdigest()}.npy"
        if not path.exists():
            np.save(path, array)
        return (dc.from_npy(path, self.inputs[0].chunks),)

    def code(self, xp: Any) -> str:
        """Return that as a line of Python."""
        array = show_array(self.x, self.order)
        return f"np.save('x.npy', {array}) or dc.from_npy('x.npy', {self.inputs[0].chunks})"


def draw_file(rng: draw.Generator) -> Case:
    """Draw an array and its chunks."""
    sides = () if draw.chance(rng, 0.2) else draw.shape(rng)
    array = draw.values(rng, draw.pick(rng, draw.NUMBERS), sides)
    return OfFile("file", "from_npy", (draw.operand(rng, array),))


def expect_file(case: Case) -> list[Expected]:
    """Return the array."""
    return [Expected(case.x, chunks=case.inputs[0].chunks, host=True)]
