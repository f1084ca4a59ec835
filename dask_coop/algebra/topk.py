"""The monoid of the k best elements of a line: the largest, or with a negative k the smallest.

A state has these along a last axis of its fields, or all elements where a line has no more: their
values and, if asked for, their indices.  Of equal ones the first are kept, and stand in their
order; so what is before what tells all, and states combine in the order of the elements only::

    5 1 5 | 3 5    k = 2    (5 5) (3 5)  --combine-->  (5 5)
    0 1 2   3 4             (0 2) (3 4)                (0 2)

NaN counts as larger than any number, and so does NaT, as where NumPy sorts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import ARGMAX, MonoidRow, State

Array = Any


@dataclass(frozen=True, eq=False)
class TopK(MonoidRow):
    """The monoid of the k best elements; it has no functor."""

    k: int = 1

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it: tasks stay small and `is` holds."""
        return best, (self.k, self.positional)

    def __dask_tokenize__(self) -> Any:
        """Name the call that makes it, for Dask's keys."""
        return "TopK", self.k, self.positional

    @property
    def entries(self) -> int:
        """How many elements a line has in a state, at most."""
        return abs(self.k)

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        return self.combine_all([a, b])

    def combine_all(self, states: Sequence[State]) -> State:
        """Combine states, first to last: select once from all."""
        if len(states) == 1:
            return states[0]
        joined = tuple(np.concatenate(fields, -1) for fields in zip(*states, strict=True))
        if joined[0].shape[-1] <= self.entries:
            return joined
        at = find_best(joined[0], self.k)
        return tuple(np.take_along_axis(field, at, -1) for field in joined)


@lru_cache
def best(k: int, indices: bool) -> TopK:
    """Return the monoid of the `k` best elements, and of their indices if asked for."""
    name = f"{'arg' if indices else ''}topk_{k}"
    fields = ARGMAX.fields if indices else ARGMAX.fields[:1]
    return TopK(name, fields, "biuf", "", commutative=False, k=k)


def find_best(x: Array, k: int) -> Array:
    """Return the positions of the best elements along the last axis, which has more than `k`.

    Of equal ones these are the first, and in their order.
    """
    count = abs(k)
    if not isinstance(x, np.ndarray):
        # By arithmetic of another library's some floats might be zero.
        return rank(x, k)[..., :count]
    keys = ordered_keys(x, k)
    at = keys.shape[-1] - count
    least = np.partition(keys, at, -1)[..., at : at + 1] if count else keys[..., :0]
    keep = keys > least if count else np.zeros(keys.shape, "?")
    equal = keys == least if count else keep
    room = count - np.count_nonzero(keep, -1, keepdims=True)
    if (np.count_nonzero(equal, -1, keepdims=True) > room).any():
        equal &= np.cumsum(equal, -1) <= room
    keep |= equal
    return np.nonzero(keep)[-1].reshape(*keys.shape[:-1], count)


def rank(x: Array, k: int) -> Array:
    """Return the positions of all elements along the last axis from the best one on.

    Equal ones stay in their order.
    """
    if k < 0:
        return np.argsort(x, -1, kind="stable")
    return x.shape[-1] - 1 - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]


def ordered_keys(x: Array, k: int) -> Array:
    """Return integers that compare as NumPy's elements do where it sorts; the best is the largest.

    All bits of negative floats but the sign are flipped, as are all bits where the smallest are
    the best ones.
    """
    keys = x.view("u1") if x.dtype.kind == "b" else x
    if x.dtype.kind in "mM":
        # NaT is the least integer, and becomes the largest.
        keys = x.view("i8") - 1
    if x.dtype.kind == "f":
        bits = x.view(f"i{x.itemsize}")
        most = np.iinfo(bits.dtype).max
        keys = bits >> 8 * x.itemsize - 1
        keys &= most
        keys ^= bits
        # Zeros are equal, and so are NaN.
        keys[x == 0] = 0
        keys[x != x] = most
    return ~keys if k < 0 else keys
