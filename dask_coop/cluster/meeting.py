"""Exchange states of scans that are too large for the scheduler, or those of a user's monoid.

Every worker lifts its chunks and cuts the states into ranges of their lines. Each range goes to one
of a few workers, its *place*. A place waits for the states of all workers, makes the base sums of
its lines, and answers each worker with those of the worker's chunks::

    worker A: states --+-- lines 0..9   --> place 0: base sums --+--> worker A: scans its chunks
                       +-- lines 10..19 -->                      |
    worker B: states --+-- lines 0..9   -->                      +--> worker B: scans its chunks
                       +-- lines 10..19 --> place 1: base sums --+

No state is sent twice, and no worker holds all of the large ones. Each line is combined in the same
order as in one place. If a worker fails, the scheduler, which waits for all, ends the call on the
others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.cluster.calls import owned
from dask_coop.cluster.jobs import Stacked

Answer = dict[str, Any]

#: How many ended calls to remember, in case their states arrive late.
REMEMBERED = 1000


class _Waiting(NamedTuple):
    """The states that have come to a place, and the answer made of all of them."""

    states: list[Sequence[Stacked]]
    answer: asyncio.Future[Answer]


class Meetings:
    """The calls, by name, in which a worker is a place or has sent states to places."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._sent: dict[str, asyncio.Future[None]] = {}
        self._ended: deque[str] = deque(maxlen=REMEMBERED)

    async def answers(self, name: str, asks: Iterable[Awaitable[Answer]]) -> list[Answer]:
        """Return the answers of all places, or decline as soon as the call ends.

        A place that has gone would otherwise be noticed late.
        """
        answers = owned(asyncio.gather(*asks))
        over = self._sent[name] = asyncio.get_running_loop().create_future()
        try:
            if name not in self._ended:
                await asyncio.wait({answers, over}, return_when=asyncio.FIRST_COMPLETED)
            return answers.result() if answers.done() else [_ENDED]
        finally:
            del self._sent[name]
            answers.cancel()

    async def meet(
        self,
        name: str,
        states: Sequence[Stacked],
        members: int,
        make: Callable[[Sequence[Sequence[Stacked]]], Awaitable[Answer]],
    ) -> tuple[Answer, int]:
        """Wait for the states of all `members`.

        Return the result of `make` for all states, and the index of this member among them.
        """
        if name in self._ended:
            return _ENDED, 0
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(name, _Waiting([], loop.create_future()))
        index = len(waiting.states)
        waiting.states.append(states)
        if len(waiting.states) == members:
            answer = _ENDED
            try:
                answer = await make(waiting.states)
            finally:
                # Also if this member is cancelled meanwhile, or the call has ended.
                self._waiting.pop(name, None)
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)
        # Shielded: this member may be cancelled, and the others wait for the same future.
        return await asyncio.shield(waiting.answer), index

    def has_ended(self, name: str) -> bool:
        """Return whether a call has ended early; only the latest such calls are remembered."""
        return name in self._ended

    def end(self, name: str) -> None:
        """Stop waiting for a call's states and answers, and refuse states that come late."""
        self._ended.append(name)
        if (over := self._sent.get(name)) and not over.done():
            over.set_result(None)
        if waiting := self._waiting.pop(name, None):
            waiting.answer.set_result(_ENDED)


_ENDED: Answer = {"status": "declined", "reason": "another worker did not do its part"}


def split(batches: Sequence[Stacked], n: int) -> list[list[Stacked]]:
    """Cut states into `n` ranges of their lines; fields common to all lines go to each range."""
    if n == 1:
        return [[*batches]]
    ranges: list[list[Stacked]] = [[] for _ in range(n)]
    for batch in batches:
        axis, length = _longest_axis(batch)
        ends = pairwise(i * length // n for i in range(n + 1))
        for members, (start, stop) in zip(ranges, ends, strict=True):
            lines = (slice(None),) * axis + (slice(start, stop),)
            fields = (field[lines] if _varies(field, axis) else field for field in batch.fields)
            # Contiguous arrays are sent without a copy.
            members.append(Stacked(batch.numbers, tuple(map(np.ascontiguousarray, fields))))
    return ranges


def joined(batches: Sequence[Stacked], bases: Sequence[Sequence[Stacked]]) -> dict[int, State]:
    """Return the bases of chunks by number, each joined from its ranges of lines.

    Parameters
    ----------
    batches : sequence of Stacked
        The states of the chunks.
    bases : sequence of sequence of Stacked
        The bases for each range that `split` made. The first chunk of a line has none.
    """
    by_range = [
        {
            number: tuple(field[i] for field in fields)
            for numbers, fields in of_range
            for i, number in enumerate(numbers.tolist())
        }
        for of_range in bases
    ]
    first = by_range[0]
    if len(by_range) == 1:
        return first
    states = {}
    for batch in batches:
        axis, _ = _longest_axis(batch)
        for number in batch.numbers.tolist():
            if number in first:
                columns = zip(*(of_range[number] for of_range in by_range), strict=True)
                states[number] = tuple(
                    np.concatenate(column, axis - 1) if _varies(field, axis) else column[0]
                    for column, field in zip(columns, batch.fields, strict=False)
                )
    return states


def _longest_axis(batch: Stacked) -> tuple[int, int]:
    """Return the longest axis of the states behind the first, and its length."""
    ndim = batch.fields[0].ndim
    lengths = [max(field.shape[axis] for field in batch.fields) for axis in range(1, ndim)]
    longest = int(np.argmax(lengths))
    return 1 + longest, lengths[longest]


def _varies(field: Any, axis: int) -> bool:
    """Return whether a field has an entry for each line along `axis`."""
    return bool(field.shape[axis] != 1)
