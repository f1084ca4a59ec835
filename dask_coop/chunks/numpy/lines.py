"""Chunks as compiled loops read them: lines, in the order in which they are in memory.

The axes of a chunk become three, ``(outer, n, inner)``, of which the middle one is reduced. Lines
are rows where `inner` is 1; otherwise as many columns are side by side::

    sum(axis=1) of C order    rows        a b c d      sum(axis=0)    columns    a e
                                          e f g h                                b f
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

Array = np.ndarray[Any, Any]

#: The first element of a scan, and steps from there to the next group of lines and along a line.
Place = tuple[int, int, int]

#: Lines that are neighbours and so few that loops go along one after the other.
FEW = 12

#: The least elements of a chunk that is not copied where its memory can be read as it is.
_LARGE = 1 << 15


@dataclass(frozen=True)
class Layout:
    """Which axes of a chunk are outside the reduced ones in memory, and which within.

    Attributes
    ----------
    order : tuple of int
        All axes, from the one with the largest strides on; the reduced ones are neighbours.
    start, stop : int
        Where the reduced ones are in `order`.
    """

    order: tuple[int, ...]
    start: int
    stop: int

    def split(self, x: Array) -> Array:
        """Return `x`, or an array of its shape, as (outer, n, inner), a view where there is one."""
        sizes = [x.shape[d] for d in self.order]
        bounds = (0, self.start), (self.start, self.stop), (self.stop, x.ndim)
        return x.transpose(self.order).reshape([math.prod(sizes[a:b]) for a, b in bounds])

    def join(self, field: Array, shape: tuple[int, ...]) -> Any:
        """Return the results of lines of an array of `shape` with the axes that are left."""
        kept = self.order[: self.start] + self.order[self.stop :]
        result = field.reshape([shape[d] for d in kept])
        return (result if sorted(kept) == [*kept] else result.transpose(np.argsort(kept)))[()]


def find_layout(x: Array, axes: tuple[int, ...]) -> Layout:
    """Return the layout by which `x` is reduced over sorted `axes` with the fewest copies."""
    order = [*range(x.ndim)]
    if not x.flags.c_contiguous:
        order.sort(key=lambda d: -abs(x.strides[d]))
    positions = [at for at, d in enumerate(order) if d in axes]
    start, stop = (positions[0], positions[-1] + 1) if positions else (x.ndim, x.ndim)
    if stop - start > len(positions):
        order = [d for d in range(x.ndim) if d not in axes] + list(axes)
        start, stop = x.ndim - len(axes), x.ndim
    return Layout(tuple(order), start, stop)


def flatten(x: Array) -> tuple[Array, int, int]:
    """Return the memory of (outer, n, inner), and the elements from line to line and along one."""
    if x.flags.c_contiguous or x.size < _LARGE:
        return read_only(x), x.shape[1] * x.shape[2], x.shape[2]
    steps = [stride if n > 1 else 0 for n, stride in zip(x.shape, x.strides, strict=True)]
    apart = x.shape[2] > 1 and steps[2] != x.itemsize
    if apart or any(step < 0 or step % x.itemsize for step in steps):
        x = np.ascontiguousarray(x)
        steps = list(x.strides)
    span = 1 + sum((n - 1) * (step // x.itemsize) for n, step in zip(x.shape, steps, strict=True))
    memory = as_strided(x, (span,), (x.itemsize,), writeable=False)
    return memory, steps[0] // x.itemsize, steps[1] // x.itemsize


def aligned(x: Array) -> Array:
    """Return `x`, copied where loops cannot read it: what came in a message begins anywhere."""
    return x if x.flags.aligned else x.copy("K")


def read_only(x: Array) -> Array:
    """Return the elements of an array in C order as a line, for which loops are compiled once."""
    memory = x.reshape(-1)
    memory.flags.writeable = False
    return memory


@dataclass(frozen=True)
class Lines:
    """The memory of a chunk as compiled loops read it.

    Attributes
    ----------
    memory : numpy.ndarray
        Read-only, with one axis.
    steps : tuple of int
        The elements from a group of columns, or a row, to the next, and along a line.
    n, inner, count : int
        The elements of a line, the columns side by side, and how many lines there are.
    keep : numpy.ndarray or None
        What counts of each element, in C order.
    """

    memory: Array
    steps: tuple[int, int]
    n: int
    inner: int
    count: int
    keep: Array | None

    def call(self, of_rows: Any, of_columns: Any, *rest: Any) -> None:
        """Call one of two loops."""
        if self.inner == 1:
            of_rows(self.memory, self.steps[0], self.n, self.keep, *rest)
        else:
            of_columns(self.memory, *self.steps, self.n, self.inner, self.keep, *rest)


def read(layout: Layout, x: Array, keep: Array | None) -> Lines:
    """Return the lines of `x`, copied if rows or columns have gaps between their elements."""
    split = layout.split(x)
    outer, n, inner = split.shape
    if inner == 1 and n > 1 and split.strides[1] != x.itemsize:
        split = np.ascontiguousarray(split)
    memory, *steps = flatten(split)
    if keep is not None:
        keep = read_only(np.ascontiguousarray(layout.split(keep)))
    return Lines(memory, (steps[0], steps[1]), n, inner, outer * inner, keep)


def memory_and_place(x: Array) -> tuple[Array, Place]:
    """Return the memory of (outer, n, inner), read-only and so of one type for Numba; and a place.

    Lines are neighbours there; of an array where they are not it is a copy.
    """
    if x.dtype.kind == "b":
        x = x.view("u1")
    apart = x.shape[2] > 1 and x.strides[2] != x.itemsize
    if apart or any(step % x.itemsize for step in x.strides):
        x = np.ascontiguousarray(x)
    if x.flags.c_contiguous:
        memory = x.reshape(-1)
    else:
        lowest = x[tuple(slice(None, None, -1 if step < 0 else 1) for step in x.strides)]
        reach = sum((n - 1) * step for n, step in zip(x.shape, lowest.strides, strict=True))
        memory = as_strided(lowest, (reach // x.itemsize + 1,), (x.itemsize,))
    memory.flags.writeable = False
    return memory, place(x, memory)


def place(x: Array, memory: Array) -> Place:
    """Return where in `memory` the lines of (outer, n, inner) are."""
    first = x.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return first // x.itemsize, x.strides[0] // x.itemsize, x.strides[1] // x.itemsize


def place_heads(heads: Array | None) -> tuple[Array, tuple[int, ...]]:
    """Return the memory and place of head flags of lines, or of all lines, for the loops."""
    if heads is None:
        return NO_HEADS
    memory, start = memory_and_place(heads)
    return memory, (*start, int(heads.shape[2] > 1))


#: What loops take where no line restarts.
NO_HEADS = place_heads(np.empty((1, 0, 1), "?"))
