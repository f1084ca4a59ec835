"""Sigma clipping line by line, as astropy defines it."""

from __future__ import annotations

from typing import Any

import numpy as np

NORMAL = 1.482602218505602


def bounds_of(line: Any, low: float, high: float, rounds: int, center: str, spread: str) -> Any:
    """Return the bounds of the last round; a round that clips nothing is the last."""
    left = line[np.isfinite(line)].astype("f8")
    bounds = np.nan, np.nan
    for _ in range(rounds):
        if not left.size:
            break
        middle = np.median(left) if center == "median" else left.mean()
        away = left.std() if spread == "std" else mad(left) * NORMAL
        bounds = middle - low * away, middle + high * away
        kept = left[(left >= bounds[0]) & (left <= bounds[1])]
        if kept.size == left.size:
            break
        left = kept
    return bounds


def mad(line: Any) -> Any:
    return np.median(np.abs(line - np.median(line)))


def lines_of(x: Any, axis: Any) -> tuple[Any, tuple[int, ...]]:
    """Return lines along axes as rows, and the shape of a result for each."""
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis) % x.ndim)
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = tuple(x.shape[d] for d in kept)
    return x.transpose(*kept, *axes).reshape(int(np.prod(shape)), -1), shape


def clipped(x: Any, axis: Any, *args: Any) -> tuple[Any, Any, Any]:
    """Return which elements are clipped, and the bounds."""
    lines, shape = lines_of(x, axis)
    low, high = np.array([bounds_of(line, *args) for line in lines]).reshape(-1, 2).T
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis) % x.ndim)
    low, high = low.reshape(shape), high.reshape(shape)
    with np.errstate(all="ignore"):
        wide = x.astype("f8")
        outside = wide < np.expand_dims(low, axes)
        outside |= wide > np.expand_dims(high, axes)
    return outside | ~np.isfinite(wide), low, high
