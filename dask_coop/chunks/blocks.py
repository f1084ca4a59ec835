"""Divide lines into blocks, so that temporary copies are smaller than a chunk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def blocks(shape: tuple[int, ...], room: int) -> Iterator[tuple[slice, ...]]:
    """Yield the slices of blocks of at most `room` elements, each contiguous in C order."""
    steps = []
    for n in reversed(shape):
        steps.append(max(1, min(n, room)))
        room //= max(1, n)
    steps.reverse()
    for index in np.ndindex(*(-(-n // step) for n, step in zip(shape, steps, strict=True))):
        yield tuple(slice(i * step, (i + 1) * step) for i, step in zip(index, steps, strict=True))
