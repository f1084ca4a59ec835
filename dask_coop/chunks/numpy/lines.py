"""Chunks in the form that compiled loops read: lines, in their order in memory.

The axes of a chunk become three, ``(outer, n, inner)``, and loops reduce the middle one. Lines
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

#: The first element of a scan, and the steps to the next group of lines and along a line.
Place = tuple[int, int, int]

#: At most so many neighbouring lines are scanned one after the other.
FEW = 12

#: The fewest elements of a chunk that is read in place instead of being copied, where possible.
_LARGE = 1 << 15


@dataclass(frozen=True)
class Layout:
    """The axes of a chunk that are outside the reduced ones in memory, and those within.

    Attributes
    ----------
    order : tuple of int
        All axes by decreasing stride; the reduced ones are neighbours.
    start, stop : int
        The range of the reduced axes in `order`.
    """

    order: tuple[int, ...]
    start: int
    stop: int

    def split(self, x: Array) -> Array:
        """Return `x`, or an array of its shape, as (outer, n, inner), a view if possible."""
        sizes = [x.shape[d] for d in self.order]
        bounds = (0, self.start), (self.start, self.stop), (self.stop, x.ndim)
        return x.transpose(self.order).reshape([math.prod(sizes[a:b]) for a, b in bounds])

    def join(self, field: Array, shape: tuple[int, ...]) -> Any:
        """Return the results of lines in the shape of the kept axes of an array of `shape`."""
        kept = self.order[: self.start] + self.order[self.stop :]
        result = field.reshape([shape[d] for d in kept])
        return (result if sorted(kept) == [*kept] else result.transpose(np.argsort(kept)))[()]


def find_layout(x: Array, axes: tuple[int, ...]) -> Layout:
    """Return the layout that reduces `x` over sorted `axes` with the fewest copies."""
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
    """Return the memory of (outer, n, inner), and its steps from line to line and along a line."""
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
    """Return `x`, copied if it is not aligned for loops, as arrays from messages may be."""
    return x if x.flags.aligned else x.copy("K")


def read_only(x: Array) -> Array:
    """Return the elements of a C-order array as one read-only axis: one type for Numba."""
    memory = x.reshape(-1)
    memory.flags.writeable = False
    return memory


@dataclass(frozen=True)
class Lines:
    """The memory of a chunk in the form that compiled loops read.

    Attributes
    ----------
    memory : numpy.ndarray
        Read-only, with one axis.
    steps : tuple of int
        The steps from a group of columns, or a row, to the next, and along a line.
    n, inner, count : int
        The elements of a line, the columns side by side, and the number of lines.
    keep : numpy.ndarray or None
        True for elements that count, in C order; None if all do.
    """

    memory: Array
    steps: tuple[int, int]
    n: int
    inner: int
    count: int
    keep: Array | None

    def call(self, of_rows: Any, of_columns: Any, *options: Any) -> None:
        """Call the loop of rows or that of columns."""
        if self.inner == 1:
            of_rows(self.memory, self.steps[0], self.n, self.keep, *options)
        else:
            of_columns(self.memory, *self.steps, self.n, self.inner, self.keep, *options)


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
    """Return (outer, n, inner) as read-only memory, of one type for Numba, and its place there.

    Lines must be neighbours in memory; otherwise the memory is that of a copy.
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
    """Return the place of the lines of (outer, n, inner) in `memory`."""
    first = x.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return first // x.itemsize, x.strides[0] // x.itemsize, x.strides[1] // x.itemsize


def place_heads(heads: Array | None) -> tuple[Array, tuple[int, ...]]:
    """Return memory and place of the head flags of lines, or of all lines, as loops expect them."""
    if heads is None:
        return NO_HEADS
    memory, start = memory_and_place(heads)
    return memory, (*start, int(heads.shape[2] > 1))


#: The arguments of loops where no line restarts.
NO_HEADS = place_heads(np.empty((1, 0, 1), "?"))
