"""Base sums on the host: all prefixes of the states of a line's chunks, in two levels.

States are taken in groups of `GROUP`, and combined one after the other within a group::

    s0 s1 .. s31 | s32 .. s63 | s64 ..      states
         t0      |     t1     |             totals of all groups but the last     (upsweep)
         t0      |   t0 + t1  |             their prefixes                         (spine)
    p0 p1 .. p31 | from t0 on | from t0 + t1 on                                    (downsweep)

What a chunk is scanned from depends on that order alone.  A graph makes tasks of it, by
`two_levels` over keys, and the scheduler or a worker does it with many groups at a time, by
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


def sequential(
    combine: Combine, states: Iterable[State], before: State | None = None
) -> list[State]:
    """Return the inclusive prefixes of `states`, from the state `before` them on."""
    found = list(itertools.accumulate(states, combine, initial=before))
    return found if before is None else found[1:]


def two_levels(
    states: Sequence[One],
    total: Callable[[int, Sequence[One]], One],
    spine: Callable[[Sequence[One]], Many],
    bases: Callable[[int, Sequence[One], Many | None], Many],
) -> list[Many]:
    """Make the prefixes of `states`, or of what stands for them, group by group.

    Parameters
    ----------
    states : sequence
    total : callable
        Combines the states of the group of a number, in their order.
    spine : callable
        Makes the prefixes of totals.
    bases : callable
        Makes the prefixes of the states of group g, from what `spine` has at g - 1 on; of the
        first group, for which there is None, from nothing on.

    Returns
    -------
    list
        What `bases` makes of each group.
    """
    groups = [states[i : i + GROUP] for i in range(0, len(states), GROUP)]
    above = None
    if len(groups) > 1:
        above = spine([total(g, group) for g, group in enumerate(groups[:-1])])
    return [bases(g, group, above if g else None) for g, group in enumerate(groups)]


def stacked(combine: Combine, states: State) -> State:
    """Return the prefixes of states that are stacked along the first axis of each field.

    They are combined in the order of `two_levels`, all groups at a time.
    """
    found = tuple(np.empty_like(field) for field in states)
    more = (len(states[0]) - 1) // GROUP
    totals = _in_groups(combine, states, found, max(more, 1))
    if totals is not None and more:
        rows = sequential(combine, zip(*totals, strict=True))
        spine = tuple(map(np.stack, zip(*rows, strict=True)))
        rest, into = (tuple(field[GROUP:] for field in of) for of in (states, found))
        _in_groups(combine, rest, into, more, spine)
    return found


def base_of(op: Operation, prefix: State) -> State:
    """Return what a chunk is scanned from: without whether a scan has restarted, its last field."""
    return prefix[: len(op.monoid.fields)]


def _in_groups(
    combine: Combine, states: State, into: State, groups: int, before: State | None = None
) -> State | None:
    """Put the prefixes of the first groups into place, and return the last ones."""
    for i in range(min(GROUP, len(states[0]))):
        column = tuple(field[i::GROUP][:groups] for field in states)
        if before is not None:
            # The last group may have ended.
            before = tuple(field[: len(column[0])] for field in before)
        before = column if before is None else combine(before, column)
        for field, values in zip(into, before, strict=True):
            field[i::GROUP][:groups] = values
    return before
