"""The table of compiled loops, with the chunk sizes that are worth compiling them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

#: The fewest elements of a chunk for which the loops of a module are compiled. Where NumPy needs
#: some twenty calls a chunk instead, fewer elements are enough.
WORTH_COMPILING: dict[str, float] = {
    "compensated": (1 << 9) + 1,
    "gaps": 1 << 16,
    "groups": 1 << 13,
    "histogram": 1 << 15,
    "logaddexp": 1 << 16,
    "moments": 1 << 13,
    "paired": 1 << 13,
    "reproducible": 1,
    "runs": 1 << 13,
    "scans": 1 << 16,
    "select": 1 << 16,
    "selection": 1 << 15,
    "sums": 1 << 16,
    "unique": 1 << 15,
    "window_extrema": 1,
    "window_order": 1 << 16,
}


@cache
def loops(name: str) -> Any:
    """Return the module `name` of the folder `loops`, or None where Numba cannot be imported."""
    try:
        return import_module(f"dask_coop.chunks.numpy.loops.{name}")
    except ImportError:
        return None


def loops_for(name: str, size: int) -> Any:
    """Return the module, or None without Numba or for chunks of too few elements."""
    return loops(name) if size >= WORTH_COMPILING[name] else None
