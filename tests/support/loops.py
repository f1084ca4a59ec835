"""From how many elements on the loops over NumPy chunks are compiled, for the time of a test."""

from __future__ import annotations

import pytest

from dask_coop.chunks.numpy.loop_table import WORTH_COMPILING


def compile_from(patch: pytest.MonkeyPatch, least: float, *names: str) -> None:
    """Compile the loops of these modules, or of all, from so many elements on: `math.inf` never."""
    for name in names or WORTH_COMPILING:
        patch.setitem(WORTH_COMPILING, name, least)
