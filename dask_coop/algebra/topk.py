"""The monoid of the k best elements of a line: the largest, or with a negative k the smallest.

A state has their values, and if needed their indices, along a last axis of its fields; or all
elements if a line has no more than k.  Among equal elements the first are kept, in their order.
Since only the order decides, states combine in the order of the elements only::

    5 1 5 | 3 5    k = 2    (5 5) (3 5)  --combine-->  (5 5)
    0 1 2   3 4             (0 2) (3 4)                (0 2)

NaN and NaT count as larger than any number, as in NumPy's sorts.
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
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return best, (self.k, self.positional)

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "TopK", self.k, self.positional

    @property
    def entries(self) -> int:
        """The most elements of a line in a state."""
        return abs(self.k)

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        return self.combine_all([a, b])

    def combine_all(self, states: Sequence[State]) -> State:
        """Combine states, first to last, in one selection."""
        if len(states) == 1:
            return states[0]
        joined = tuple(np.concatenate(fields, -1) for fields in zip(*states, strict=True))
        if joined[0].shape[-1] <= self.entries:
            return joined
        if not self.positional and isinstance(joined[0], np.ndarray):
            return (best_values(joined[0], self.k),)
        positions = find_best(joined[0], self.k)
        return tuple(np.take_along_axis(field, positions, -1) for field in joined)


@lru_cache
def best(k: int, indices: bool) -> TopK:
    """Return the monoid of the `k` best elements, with their indices if `indices`."""
    name = f"{'arg' if indices else ''}topk_{k}"
    fields = ARGMAX.fields if indices else ARGMAX.fields[:1]
    return TopK(name, fields, "biuf", "", commutative=False, k=k)


def best_values(x: np.ndarray[Any, Any], k: int) -> Array:
    """Return the best elements along the last axis, of length `k` or more, in any order."""
    n = x.shape[-1]
    partitioned = np.partition(x, place(n, k), -1) if k else x
    return partitioned[..., n - k :] if k > 0 else partitioned[..., : abs(k)]


def find_best(x: Array, k: int) -> Array:
    """Return the positions of the best elements along the last axis, of length `k` or more.

    Among equal elements these are the first ones, in their order.
    """
    *kept, n = x.shape
    if not isinstance(x, np.ndarray):
        # CuPy's arithmetic might flush subnormal floats to zero.
        return rank(x, k)[..., : abs(k)]
    if 0 in (k, x.size):
        return np.zeros((*kept, abs(k)), "i8")
    kth, lines = place(n, k), x.reshape(-1, n)
    if len(lines) == 1 and (positions := _find_without_ties(lines[0], k)) is not None:
        return positions.reshape(*kept, abs(k))
    bounds = np.partition(lines, kth, -1)[:, kth : kth + 1]
    return find_beyond(lines, k, bounds).reshape(*kept, abs(k))


def _find_without_ties(x: np.ndarray[Any, Any], k: int) -> Array | None:
    """Do what `find_best` does for one line; return None if the k-th best has an equal."""
    kth = place(len(x), k)
    order = np.argpartition(x, kth)
    if np.count_nonzero(x == x[order[kth]]) != 1:
        return None
    positions = order[kth:] if k > 0 else order[: kth + 1]
    # Integers of half the size sort in half the time.
    return np.sort(positions.astype("i4" if len(x) < 1 << 31 else "i8")).astype("i8")


def find_beyond(x: np.ndarray[Any, Any], k: int, bounds: Array) -> Array:
    """Return the positions of the best elements of lines, as `find_best` does.

    At least `k` elements of each line are as good as its bound, and ideally few more.
    """
    count, n = abs(k), x.shape[-1]
    # NaN is the largest: always among the largest, and never as small as a bound.
    good = ~(x < bounds) if k > 0 else x <= bounds
    if (nan := bounds != bounds).any():
        good = np.where(nan, x != x if k > 0 else True, good)
    candidates = np.flatnonzero(good)
    if len(candidates) == count * len(x):
        return candidates.reshape(-1, count) - n * np.arange(len(x))[:, np.newaxis]
    keys = ordered_keys(x.reshape(-1)[candidates], k)
    if len(x) == 1:
        return candidates[_find_largest(keys[np.newaxis], count)]
    line = candidates // n
    counts = np.bincount(line, minlength=len(x))
    column = np.arange(len(candidates)) - (np.cumsum(counts) - counts)[line]
    # The fill value is the least key, and comes last.
    table = np.full((len(x), counts.max()), np.iinfo(keys.dtype).min, keys.dtype)
    positions = np.zeros(table.shape, "i8")
    table[line, column], positions[line, column] = keys, candidates - n * line
    return np.take_along_axis(positions, _find_largest(table, count), -1)


def _find_largest(keys: Array, k: int) -> Array:
    """Return the positions of the `k` largest integers of lines, as `find_best` does."""
    n = keys.shape[-1]
    least = np.partition(keys, n - k, -1)[:, n - k : n - k + 1]
    better = keys > least
    equal = keys == least
    room = k - np.count_nonzero(better, -1, keepdims=True)
    keep = better | (equal & (np.cumsum(equal, -1) <= room))
    # Every line keeps k.
    return np.nonzero(keep)[1].reshape(-1, k)


def place(n: int, k: int) -> int:
    """Return the position of the k-th best of `n` sorted elements."""
    return n - k if k > 0 else -k - 1


def rank(x: Array, k: int) -> Array:
    """Return the positions of all elements along the last axis, the best first.

    Equal elements stay in their order.
    """
    if isinstance(x, np.ndarray):
        order = np.argsort(x, -1)
        ranked = np.take_along_axis(x, order, -1)
        # NaN come last.
        tie = (ranked[..., 1:] == ranked[..., :-1]) | (ranked[..., :-1] != ranked[..., :-1])
        order = order if k < 0 else order[..., ::-1]
        if (lines := tie.any(-1)).any():
            order[lines] = _rank_stably(x[lines], k)
        return order
    return _rank_stably(x, k)


def _rank_stably(x: Array, k: int) -> Array:
    if k < 0:
        return np.argsort(x, -1, kind="stable")
    return x.shape[-1] - 1 - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]


def ordered_keys(x: Array, k: int) -> Array:
    """Return integers in the order in which NumPy sorts elements; the best is the largest.

    All bits of negative floats but the sign are flipped; if the smallest are the best, all bits are
    flipped besides.
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
        # Both zeros get one key, and all NaN get another.
        keys += keys == -1
        nan = x != x
        if nan.any():
            keys[nan] = most
    return ~keys if k < 0 else keys
