"""Stands in for CuPy's chunk backend: arrays on a GPU that is made up, and what staged copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.list_backend import ListArray
from support.list_backend import from_numpy as listed
from support.list_backend import to_numpy as unlisted

#: The copies that were made: where to, and in how much pinned memory.
copies: list[tuple[str, int | None]] = []


def from_numpy(x: np.ndarray[Any, Any], nbytes: int | None = None) -> ListArray:
    copies.append(("GPU", nbytes))
    return listed(x)


def to_numpy(x: ListArray, nbytes: int | None = None) -> Any:
    copies.append(("host", nbytes))
    return unlisted(x)
