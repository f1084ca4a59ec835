"""Where the states of a scan meet, when they are too large or too much a user's for the scheduler.

Every worker lifts its chunks, cuts the states into shares of their lines, and sends each share to
another place, which is one of the workers. A place waits for all, makes the base sums of its lines,
and answers each with those of its chunks::

    worker A: states --+-- lines 0..9   --> place 0: base sums --+--> worker A: scans its chunks
                       +-- lines 10..19 -->                      |
    worker B: states --+-- lines 0..9   -->                      +--> worker B: scans its chunks
                       +-- lines 10..19 --> place 1: base sums --+

No state is sent twice, and nobody gets all of large ones. Each line is combined in the order that
it has in one place. Of a worker whose part fails nothing comes: the scheduler, which waits for all,
tells all others so.
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

#: Calls that have ended early, of which states may come late.
REMEMBERED = 1000


class _Waiting(NamedTuple):
    """Shares that have come to a place, and what is made of all."""

    shares: list[Sequence[Stacked]]
    made: asyncio.Future[Answer]


class Meetings:
    """Those for which a worker is a place, by their names, and those that it has sent shares to."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._sent: dict[str, asyncio.Future[None]] = {}
        self._ended: deque[str] = deque(maxlen=REMEMBERED)

    async def answers(self, name: str, asks: Iterable[Awaitable[Answer]]) -> list[Answer]:
        """Wait for the answers of all places; if the call ends before, for none of them.

        It would take its time to find out that a place is not there any more.
        """
        asked = owned(asyncio.gather(*asks))
        over = self._sent[name] = asyncio.get_running_loop().create_future()
        try:
            if name not in self._ended:
                await asyncio.wait({asked, over}, return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else [_ENDED]
        finally:
            del self._sent[name]
            asked.cancel()

    async def meet(
        self,
        name: str,
        share: Sequence[Stacked],
        members: int,
        make: Callable[[Sequence[Sequence[Stacked]]], Awaitable[Answer]],
    ) -> tuple[Answer, int]:
        """Wait for the shares of so many members.

        Return what `make` makes of them, and the position of this one among them.
        """
        if name in self._ended:
            return _ENDED, 0
        loop = asyncio.get_running_loop()
        here = self._waiting.setdefault(name, _Waiting([], loop.create_future()))
        mine = len(here.shares)
        here.shares.append(share)
        if len(here.shares) == members:
            answer = _ENDED
            try:
                answer = await make(here.shares)
            finally:
                # Also where who asks is cancelled meanwhile, or the call has ended.
                self._waiting.pop(name, None)
                if not here.made.done():
                    here.made.set_result(answer)
        # Who asks may be told to wait no longer, and the others wait for the same.
        return await asyncio.shield(here.made), mine

    def has_ended(self, name: str) -> bool:
        """Tell whether a call has ended early, as far as is remembered."""
        return name in self._ended

    def end(self, name: str) -> None:
        """Wait no longer for shares and answers of a call, nor for shares that come late."""
        self._ended.append(name)
        if (over := self._sent.get(name)) and not over.done():
            over.set_result(None)
        if here := self._waiting.pop(name, None):
            here.made.set_result(_ENDED)


_ENDED: Answer = {"status": "declined", "reason": "another worker did not do its part"}


def shares(parts: Sequence[Stacked], n: int) -> list[list[Stacked]]:
    """Cut states into `n` shares of their lines; what all lines have in common goes to each."""
    if n == 1:
        return [[*parts]]
    found: list[list[Stacked]] = [[] for _ in range(n)]
    for part in parts:
        axis, length = _cut(part)
        for share, (start, stop) in zip(
            found, pairwise(i * length // n for i in range(n + 1)), strict=True
        ):
            own = (slice(None),) * axis + (slice(start, stop),)
            fields = (field[own] if _has(field, axis) else field for field in part.fields)
            # What is in one piece goes without a copy on the way.
            share.append(Stacked(part.numbers, tuple(map(np.ascontiguousarray, fields))))
    return found


def joined(parts: Sequence[Stacked], bases: Sequence[Sequence[Stacked]]) -> dict[int, State]:
    """Return the base of each chunk of which there is one, joined of those of all shares.

    Parameters
    ----------
    parts : sequence of Stacked
        The states of the chunks.
    bases : sequence of sequence of Stacked
        What was made of each of their `shares`.
    """
    by_share = [
        {
            number: tuple(field[i] for field in fields)
            for numbers, fields in share
            for i, number in enumerate(numbers.tolist())
        }
        for share in bases
    ]
    first, *rest = by_share
    if not rest:
        return first
    found = {}
    for part in parts:
        axis, _ = _cut(part)
        for number in part.numbers.tolist():
            if number in first:
                pieces = zip(*(share[number] for share in by_share), strict=True)
                found[number] = tuple(
                    np.concatenate(piece, axis - 1) if _has(field, axis) else piece[0]
                    for piece, field in zip(pieces, part.fields, strict=False)
                )
    return found


def _cut(part: Stacked) -> tuple[int, int]:
    """Return the axis along which states are cut, and how long they are along it."""
    ndim = part.fields[0].ndim
    lengths = [max(field.shape[axis] for field in part.fields) for axis in range(1, ndim)]
    longest = int(np.argmax(lengths))
    return 1 + longest, lengths[longest]


def _has(field: Any, axis: int) -> bool:
    """Tell whether a field has an entry for each line along an axis."""
    return bool(field.shape[axis] != 1)
