"""Base sums on the host: all prefixes of the states of a line's chunks, level by level.

States are taken in groups, of `GROUP` or fewer, and combined one after the other within a group::

    s0 s1 .. s31 | s32 .. s63 | s64 ..      states
         t0      |     t1     |             totals of all groups but the last     (upsweep)
         t0      |   t0 + t1  |             their prefixes                         (spine)
    p0 p1 .. p31 | from t0 on | from t0 + t1 on                                    (downsweep)

The spine is the same again, of the totals: in groups if they are more than one, and so on.  So
nothing ever takes more states than a group has, and one that comes before them.

What a chunk is scanned from depends on that order alone.  A graph makes tasks of it, by
`by_groups` over keys, and the scheduler or a worker does it with many groups at a time, by
`stacked`: so floats come out the same, bit for bit.
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

#: States of a group. More of them save tasks, and time between tasks, but make messages larger.
GROUP = 32

#: Bytes of states, where they are known, of which one task takes no more than it has to.
TAKEN_BYTES = 1 << 24


def at_a_time(most: int, nbytes: float) -> int:
    """Return how many states of so many bytes one task takes: `most`, of large ones down to two.

    It is `most` also if the bytes are not known, which NaN stands for.
    """
    return max(2, int(TAKEN_BYTES // nbytes)) if nbytes * most > TAKEN_BYTES else most


def sequential(
    combine: Combine, states: Iterable[State], before: State | None = None
) -> list[State]:
    """Return the inclusive prefixes of `states`, from the state `before` them on."""
    found = list(itertools.accumulate(states, combine, initial=before))
    return found if before is None else found[1:]


def by_groups(
    states: Sequence[One],
    size: int,
    total: Callable[[int, int, Sequence[One]], One],
    bases: Callable[[int, int, Sequence[One], Many | None, int], Many],
    level: int = 0,
) -> list[Many]:
    """Make the prefixes of `states`, or of what stands for them, group by group.

    Parameters
    ----------
    states : sequence
    size : int
        States of a group.
    total : callable
        Combines the states of the group of a number, in their order, on a level: 0 are `states`, 1
        their totals, and so on.
    bases : callable
        Makes the prefixes of the states of the group of a number on a level, from those of a group
        of the level above, and there from a position on; of the first group, for which there is
        None, from nothing on.
    level : int
        That of `states`.

    Returns
    -------
    list
        What `bases` makes of each group of `states`.
    """
    groups = [states[i : i + size] for i in range(0, len(states), size)]
    totals = [total(level, g, group) for g, group in enumerate(groups[:-1])]
    above = by_groups(totals, size, total, bases, level + 1) if totals else []
    found = [bases(level, 0, groups[0], None, 0)] if groups else []
    for g, group in enumerate(groups[1:]):
        found.append(bases(level, g + 1, group, above[g // size], g % size))
    return found


def stacked(combine: Combine, states: State, size: int = GROUP) -> State:
    """Return the prefixes of states that are stacked along the first axis of each field.

    They are combined in the order of `by_groups`, all groups at a time.
    """
    found = tuple(np.empty_like(field) for field in states)
    more = (len(states[0]) - 1) // size
    totals = _in_groups(combine, states, found, size, max(more, 1))
    if totals is not None and more:
        spine = stacked(combine, totals, size)
        rest, into = (tuple(field[size:] for field in of) for of in (states, found))
        _in_groups(combine, rest, into, size, more, spine)
    return found


def base_of(op: Operation, prefix: State) -> State:
    """Return what a chunk is scanned from: without whether a scan has restarted, its last field."""
    return prefix[: len(op.monoid.fields)]


def _in_groups(
    combine: Combine,
    states: State,
    into: State,
    size: int,
    groups: int,
    before: State | None = None,
) -> State | None:
    """Put the prefixes of the first groups into place, and return the last ones."""
    for i in range(min(size, len(states[0]))):
        column = tuple(field[i::size][:groups] for field in states)
        if before is not None:
            # The last group may have ended.
            before = tuple(field[: len(column[0])] for field in before)
        before = column if before is None else combine(before, column)
        for field, values in zip(into, before, strict=True):
            field[i::size][:groups] = values
    return before
