"""Divide sorted runs at exact ranks, from samples of them.

A splitter of rank r takes the first elements of each run, r of all runs together, that a stable
sort of the runs puts first. Each run has a bracket, in which its number of such elements lies.
Samples of the brackets, in order, narrow them, until they are empty::

    run 0:  1 . . 4 . . 7 . . 9      the least 7 elements end between sample 4 and sample 5, so
    run 1:  3 . . 5 . . 5 . . 8      ( . . ) and ( . . ) are the next brackets

Equal elements are in the order of the runs, so every rank has one answer. P. J. Varman et al.,
"Merging multiple lists on hierarchical-memory multiprocessors", Journal of Parallel and Distributed
Computing 12, 1991.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dask_coop.algebra.digits import Array

#: The most samples that one task puts in order, of each run and of all; and the fewest of a
#: splitter for each run. A host takes longer to order many samples than a GPU to sort few runs.
OF_A_RUN, SAMPLES, FEWEST = 1 << 12, 1 << 18, 64


class Brackets(NamedTuple):
    """Where splitters divide runs: after `low` elements or more, and `high` or fewer.

    Attributes
    ----------
    low, high : numpy.ndarray
        int64, of shape ``(splitters, runs)``, or ``(1, runs)`` for all splitters.
    steps : numpy.ndarray
        The distance between the samples of each row.
    """

    low: Array
    high: Array
    steps: Array

    def positions(self, run: int) -> Array:
        """Return the positions of the samples of a run, row by row."""
        ends = zip(self.low[:, run], self.high[:, run], self.steps, strict=True)
        return np.concatenate([np.arange(*each) for each in ends])

    @property
    def counts(self) -> Array:
        """The number of samples in each bracket."""
        return -(-(self.high - self.low) // self.steps[:, np.newaxis])


def first_brackets(lengths: Sequence[int]) -> Brackets:
    """Return the brackets that are whole runs."""
    high = np.array([lengths], "i8")
    return Brackets(np.zeros_like(high), high, _steps(high, _most(len(lengths), 1)))


def rounds(lengths: Sequence[int], splitters: int) -> int:
    """Return how often runs are sampled, at most, until all brackets are empty."""
    # Sums of lower and upper bounds differ by less than a step for each run, on either side of r.
    width, most = sum(lengths), _most(len(lengths), 1)
    for number in itertools.count(1):
        step = -(-width // most)
        if step <= 1:
            return number
        width, most = (2 * len(lengths) + 1) * step, _most(len(lengths), splitters)
    raise AssertionError


def narrow(brackets: Brackets, ranks: Sequence[int], samples: Sequence[Array]) -> Brackets:
    """Return narrower brackets of ascending `ranks`, given the samples of each run."""
    ends = np.cumsum(brackets.counts, axis=0)
    rows = len(ends)
    of_rows = [ranks] if rows == 1 else [[rank] for rank in ranks]
    sides = []
    for row, wanted in enumerate(of_rows):
        begins = ends[row] - brackets.counts[row]
        values = [x[a:b] for x, a, b in zip(samples, begins, ends[row], strict=True)]
        low, high, step = (side[row] for side in brackets)
        sides.append(_narrowed(low, high, step, values, wanted))
    low, high = (np.concatenate(side) for side in zip(*sides, strict=True))
    return Brackets(low, high, _steps(high - low, _most(low.shape[1], len(ranks))))


def _most(runs: int, splitters: int) -> int:
    """Return the number of samples of a splitter."""
    return max(FEWEST * runs, min(SAMPLES, OF_A_RUN * runs) // max(1, splitters))


def _steps(widths: Array, most: int) -> Array:
    steps: Array = np.maximum(1, -(-widths.sum(axis=1) // most))
    return steps


def _narrowed(
    low: Array, high: Array, step: int, values: Sequence[Array], ranks: Sequence[int]
) -> tuple[Array, Array]:
    """Return the ends of narrower brackets for each of `ranks`, from the samples of one row."""
    runs, counts = len(low), [*map(len, values)]
    number = np.concatenate([np.arange(n) for n in counts])
    run = np.repeat(np.arange(runs), counts)
    order = np.argsort(np.concatenate(values), kind="stable")
    number, run = number[order], run[order]
    first, at = number == 0, low[run] + number * step
    # At least and at most so many elements of all runs come before each sample.
    more = np.where(first, 1, step)
    least = low.sum() + np.cumsum(more) - more + np.where(first, 0, step - 1)
    more = np.minimum(step, high[run] - at)
    most = low.sum() + np.cumsum(more) - more
    inside, outside = (
        np.stack([*_counted(run, np.searchsorted(bounds, ranks), runs)]) for bounds in (most, least)
    )
    narrowed = np.where(inside > 0, low + (inside - 1) * step + 1, low)
    return narrowed, np.minimum(high, low + outside * step)


def _counted(run: Array, ends: Array, runs: int) -> Iterator[Array]:
    """Yield for each of ascending `ends` how many of the samples before it are of each run."""
    count, begin = np.zeros(runs, "i8"), 0
    for end in ends:
        count = count + np.bincount(run[begin:end], minlength=runs)
        begin = end
        yield count
