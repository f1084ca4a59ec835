"""How lines are taken in blocks, so that a copy of them is never one of a chunk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def blocks(shape: tuple[int, ...], room: int) -> Iterator[tuple[slice, ...]]:
    """Yield where blocks of up to `room` elements are, each a stretch of the array in C order."""
    steps = []
    for n in reversed(shape):
        steps.append(max(1, min(n, room)))
        room //= max(1, n)
    steps.reverse()
    for at in np.ndindex(*(-(-n // step) for n, step in zip(shape, steps, strict=True))):
        yield tuple(slice(i * step, (i + 1) * step) for i, step in zip(at, steps, strict=True))
