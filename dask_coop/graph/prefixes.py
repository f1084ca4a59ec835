"""Base sums on the host: all prefixes of the states of a line's chunks, level by level.

States are taken in groups of at most `GROUP`, and combined one after the other within a group::

    s0 s1 .. s31 | s32 .. s63 | s64 ..      states
         t0      |     t1     |             totals of all groups but the last     (upsweep)
         t0      |   t0 + t1  |             their prefixes                         (spine)
    p0 p1 .. p31 | from t0 on | from t0 + t1 on                                    (downsweep)

The spine does the same with the totals, in groups if they are more than one, and so on. So no step
takes more than the states of a group and one that comes before them.

The base of a chunk depends on this order alone. A graph turns it into tasks, by `by_groups` over
keys; the scheduler or a worker combines many groups at a time, by `stacked`. Both give the same
floats, bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation

Combine = Callable[[State, State], State]
One = TypeVar("One")
Many = TypeVar("Many")

#: The states of a group. Larger groups save tasks and the time between them; smaller ones make
#: smaller messages.
GROUP = 32

#: The bytes of states beyond which one task takes as few as possible.
TAKEN_BYTES = 1 << 24


def at_a_time(most: int, nbytes: float) -> int:
    """Return how many states of `nbytes` each one task takes: `most`, or down to two if large.

    It is `most` if the bytes are unknown, that is NaN.
    """
    return max(2, int(TAKEN_BYTES // nbytes)) if nbytes * most > TAKEN_BYTES else most


def sequential(
    combine: Combine, states: Iterable[State], before: State | None = None
) -> list[State]:
    """Return the inclusive prefixes of `states`, starting from the state `before` if any."""
    sums = list(itertools.accumulate(states, combine, initial=before))
    return sums if before is None else sums[1:]


def by_groups(
    states: Sequence[One],
    size: int,
    total: Callable[[int, int, Sequence[One]], One],
    bases: Callable[[int, int, Sequence[One], Many | None, int], Many],
    level: int = 0,
) -> list[Many]:
    """Return the prefixes of `states`, or of keys of states, group by group.

    Parameters
    ----------
    states : sequence
    size : int
        The number of states of a group.
    total : callable
        Combines the states of a group in their order, given the level, the group's number and its
        states. Level 0 holds `states`, level 1 their totals, and so on.
    bases : callable
        Makes the prefixes of the states of a group, given the level, the group's number, its
        states, the prefixes of a group of the level above, and the position there to start from.
        The first group has None and 0 in place of the last two.
    level : int
        The level of `states`.

    Returns
    -------
    list
        The values of `bases` for each group of `states`.
    """
    groups = [states[i : i + size] for i in range(0, len(states), size)]
    totals = [total(level, g, group) for g, group in enumerate(groups[:-1])]
    above = by_groups(totals, size, total, bases, level + 1) if totals else []
    prefixes = [bases(level, 0, groups[0], None, 0)] if groups else []
    for g, group in enumerate(groups[1:]):
        prefixes.append(bases(level, g + 1, group, above[g // size], g % size))
    return prefixes


def stacked(combine: Combine, states: State, size: int = GROUP) -> State:
    """Return the prefixes of states that are stacked along the first axis of each field.

    They are combined in the order of `by_groups`, many groups at a time.
    """
    prefixes = tuple(np.empty_like(field) for field in states)
    more = (len(states[0]) - 1) // size
    totals = _in_groups(combine, states, prefixes, size, max(more, 1))
    if totals is not None and more:
        spine = stacked(combine, totals, size)
        later, into = (tuple(field[size:] for field in state) for state in (states, prefixes))
        _in_groups(combine, later, into, size, more, spine)
    return prefixes


def base_of(op: Operation, prefix: State) -> State:
    """Return the base of a scan from a prefix, without the flag of restarts in its last field."""
    return prefix[: len(op.monoid.fields)]


def _in_groups(
    combine: Combine,
    states: State,
    into: State,
    size: int,
    groups: int,
    before: State | None = None,
) -> State | None:
    """Write the prefixes of the first groups into `into`, and return the last of each group."""
    for i in range(min(size, len(states[0]))):
        column = tuple(field[i::size][:groups] for field in states)
        if before is not None:
            # The last group may be shorter.
            before = tuple(field[: len(column[0])] for field in before)
        before = column if before is None else combine(before, column)
        for field, values in zip(into, before, strict=True):
            field[i::size][:groups] = values
    return before
