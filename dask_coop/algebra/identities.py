"""The identities of minima and maxima."""

from __future__ import annotations

from typing import Any

import numpy as np


def highest(dtype: np.dtype[Any]) -> Any:
    """Return the highest value of `dtype`; complex numbers are in lexicographic order."""
    if dtype.kind == "b":
        return np.True_
    if dtype.kind in "mM":
        return np.int64(np.iinfo("i8").max).view(dtype)
    if dtype.kind == "c":
        return dtype.type(complex(np.inf, np.inf))
    return dtype.type(np.inf if dtype.kind == "f" else np.iinfo(dtype).max)


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return the lowest value of `dtype`, but for NaT."""
    if dtype.kind == "b":
        return np.False_
    if dtype.kind in "mM":
        # The lowest number stands for NaT.
        return np.int64(np.iinfo("i8").min + 1).view(dtype)
    if dtype.kind == "c":
        return dtype.type(complex(-np.inf, -np.inf))
    return dtype.type(-np.inf if dtype.kind == "f" else np.iinfo(dtype).min)
